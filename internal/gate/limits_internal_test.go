package gate

import (
	"net/http"
	"testing"
	"time"

	"petstore/internal/admission"
	"petstore/internal/auth"
	"petstore/internal/ratelimit"
	"petstore/internal/tools/need"
)

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

// BenchmarkLimits reserves, counts and releases one request.
func BenchmarkLimits(b *testing.B) {
	l := newLimits(Options{KeyLimit: ratelimit.Limit{PerMinute: 60, Burst: 10}, AccountLimit: ratelimit.Limit{PerMinute: 240, Burst: 40}, MaxInFlight: 1, Now: steady()}, nil)
	header := http.Header{}
	b.ReportAllocs()
	for b.Loop() {
		reserved := reservation{payer: 1}
		need.OK(b, reserved.take(b.Context(), l.requests, 1))
		need.Value(l.countRequest(header, auth.Identity{KeyID: 1}, 1))(b)
		reserved.release()
	}
}
