package api_test

import (
	"testing"
	"time"

	stores "petstore/internal/account"
	"petstore/internal/api"
	"petstore/internal/ratelimit"
	"petstore/internal/tools/need"
)

// TestRecordIsLimited: a client cannot fill the record with requests that count against no rate. The
// record counts those that it lacks.
func TestRecordIsLimited(t *testing.T) {
	t.Parallel()
	const requests, rate = 100, 20
	type counts struct{ Recorded, Dropped int }
	for name, test := range map[string]struct {
		path string
		want counts
	}{
		"404": {"/petz", counts{1 + rate, requests - 1 - rate}},
		"429": {"/pets", counts{rate/2 + rate, requests - rate/2 - rate}}, // half of the rate is for sandboxes
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t).inSandbox(stores.SampleEmpty)
			p, _ = p.limited(ratelimit.Limit{}, ratelimit.Limit{}, func(o *api.Options) {
				o.AccountLimit = ratelimit.Limit{PerMinute: rate, Burst: rate}
			})
			p = p.trusting()
			p.get("/pets").want(200)
			for range requests - 1 {
				p.get(test.path)
			}
			var got counts
			need.Within(t, 20*time.Second, "all requests are counted", func() bool {
				if err := p.db.QueryRow(t.Context(), "SELECT last_number, dropped FROM exchange_logs WHERE account_id = $1", p.sandboxID).Scan(&got.Recorded, &got.Dropped); err != nil {
					return false
				}
				return got.Recorded+got.Dropped >= requests
			})
			need.Same(t, test.want, got, "requests")
		})
	}
}
