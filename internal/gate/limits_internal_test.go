package gate

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"petstore/internal/admission"
	"petstore/internal/auth"
	"petstore/internal/ratelimit"
	"petstore/internal/tools/need"
)

// TestRateLimitHeader compares the header RateLimit with the state of the bucket.
func TestRateLimitHeader(t *testing.T) {
	t.Parallel()
	for _, limit := range []ratelimit.Limit{
		{PerMinute: 600, Burst: 100},
		{PerMinute: 1, Burst: 1},
		{PerMinute: 7, Burst: 3},
		{PerMinute: 3, Burst: 50},
		{PerMinute: 60, Burst: 1},
		{PerMinute: 100_000, Burst: 17},
		{PerMinute: 5, Burst: 20_000},
	} {
		now := time.Now()
		l := newLimits(Options{KeyLimit: limit, Now: func() time.Time { return now }}, nil)
		random := rand.New(rand.NewPCG(1, 2))
		for range 2000 {
			header, bucket := takeToken(l)
			full := int((bucket.Full + time.Second - time.Nanosecond).Seconds())
			if got, want := header.Get("RateLimit"), fmt.Sprintf(`"key";r=%d;t=%d`, bucket.Left, full); got != want {
				t.Fatalf("%+v, %+v: RateLimit %s, want %s", limit, bucket, got, want)
			}
			now = now.Add(time.Duration(random.Float64() * 2 * float64(time.Minute) / float64(limit.PerMinute)))
		}
		// And from full to empty.
		now = now.Add(l.keys.Capacity())
		for i := range limit.Burst {
			header, _ := takeToken(l)
			left, full := 0, 0
			if _, err := fmt.Sscanf(header.Get("RateLimit"), `"key";r=%d;t=%d`, &left, &full); err != nil || left != limit.Burst-i-1 || full < (i+1)*60/limit.PerMinute {
				t.Fatalf("%+v, request %d: RateLimit %s (%v)", limit, i, header.Get("RateLimit"), err)
			}
		}
	}
}

// takeToken takes a token of a key and returns the headers of the response.
func takeToken(l *Limits) (http.Header, ratelimit.Bucket) {
	identity, header := auth.Identity{KeyID: 1}, http.Header{}
	bucket := l.keys.Take(1, 1)
	l.writeRateHeaders(header, l.claims(identity), [len(policies)]ratelimit.Bucket{bucket})
	return header, bucket
}

// steady is a clock by which a token is regained between two readings.
func steady() func() time.Time {
	at := time.Now()
	return func() time.Time {
		at = at.Add(time.Second)
		return at
	}
}

// TestFewConnections: with few connections, a payer has less of what holds a connection.
func TestFewConnections(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		connections   int
		waits, delays int64
	}{{1_000_000, 200, 128}, {2000, 200, 128}, {400, 40, 26}, {1, 1, 1}} {
		l := newLimits(Options{MaxConnections: test.connections, Now: steady()}, nil)
		for pool, want := range map[*admission.Pool]int64{l.streams: test.waits, l.longPolls: test.waits, l.delays: test.delays, l.bodies: test.delays} {
			need.OK(t, pool.Take(t.Context(), 1, want))
			if err := pool.Take(t.Context(), 1, 1); err == nil {
				t.Errorf("with %d connections, a payer has more than %d of a resource", test.connections, want)
			}
		}
	}
}

// pass reserves, counts and releases one request.
func pass(t testing.TB, l *Limits, header http.Header) {
	t.Helper()
	reserved := reservation{payer: 1}
	need.OK(t, reserved.take(t.Context(), l.requests, 1))
	need.Value(l.countRequest(header, auth.Identity{KeyID: 1}, 1))(t)
	reserved.release()
}

func BenchmarkLimits(b *testing.B) {
	l := newLimits(Options{KeyLimit: ratelimit.Limit{PerMinute: 60, Burst: 10}, AccountLimit: ratelimit.Limit{PerMinute: 240, Burst: 40}, MaxInFlight: 1, Now: steady()}, nil)
	header := http.Header{}
	b.ReportAllocs()
	for b.Loop() {
		pass(b, l, header)
	}
}
