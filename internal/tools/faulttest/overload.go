package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"petstore/internal/tools/must"
)

// overload is row 13: sixty times the load costs at most 30 % of the throughput. Excess
// requests are rejected at once, and the service works normally afterwards.
func overload(ctx context.Context, f *fixture) string {
	const few, many, each, least = 16, 960, 3 * time.Second, 0.7
	s := f.open(ctx)
	measure := func(clients int) (*ledger, float64) {
		began := time.Now()
		w := s.startWriters(ctx, clients)
		sleep(ctx, each)
		l := w.finish()
		return l, float64(l.count(http.StatusCreated)) / time.Since(began).Seconds()
	}
	measure(few) // to warm up
	normal, goodput := measure(few)
	heavy, overloaded := measure(many)
	healthy := s.awaitWorking(ctx, time.Second)
	figures := fmt.Sprintf("%d writers %.0f/s, %d writers %.0f/s (%.0f%%): %s, slowest %s; working again after %s",
		few, goodput, many, overloaded, 100*overloaded/goodput, heavy.summary(), round(heavy.slowest), round(healthy))
	must.Hold(overloaded >= least*goodput, "%s", figures)
	normal.wantOnly(http.StatusCreated)
	heavy.wantOnly(http.StatusCreated, http.StatusServiceUnavailable, http.StatusTooManyRequests)
	heavy.wantInTime()
	s.audit(ctx, normal)
	s.audit(ctx, heavy)
	return figures
}
