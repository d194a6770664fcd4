//go:build soak

package delivery_test

import (
	"fmt"
	"testing"
	"time"

	"petstore/internal/pgtest"
	"petstore/internal/sleep"
)

// TestLostWorker lets one of the two workers fail. Events of accounts on the other worker,
// which another process has written, are still delivered. When the worker goes on, the
// events of its accounts follow.
func TestLostWorker(t *testing.T) { //nolint:paralleltest // it loses a worker that all tests have
	for name, how := range map[string]pgtest.Outage{"frozen": pgtest.Frozen, "dead": pgtest.Dead} {
		t.Run(name, func(t *testing.T) { testLostWorker(t, how) })
	}
}

func testLostWorker(t *testing.T, how pgtest.Outage) {
	t.Helper()
	const lostFor, known, events = 40 * time.Second, 10 * time.Second, 20
	f := newFeed(t)
	_, first := pgtest.WorkerOf(t, f.owner, f.account)
	healthy, lost := f, f
	for n := 0; lost == f; n++ {
		other := f.of(t, fmt.Sprint("other ", n))
		if _, port := pgtest.WorkerOf(t, f.owner, other.account); port != first {
			lost = other
		}
	}
	toHealthy, toLost := receive(t, nil), receive(t, nil)
	healthy.webhook(toHealthy.url, "pet.created")
	lost.webhook(toLost.url, "pet.created")
	f.work()
	healthy.emit(pets(1, 1)...)
	toHealthy.await(1)
	pgtest.FailWorker(t, f.owner, lost.account, how, lostFor)
	began := time.Now()
	sleep.For(t.Context(), known)
	var slowest time.Duration
	for n := range events {
		emitted := time.Now()
		healthy.emit(pets(n+2, n+2)...)
		toHealthy.await(n + 2)
		slowest = max(slowest, time.Since(emitted))
	}
	t.Logf("%d events were delivered in %s; the slowest took %s", events, (time.Since(began) - known).Round(time.Millisecond), slowest.Round(time.Millisecond))
	if time.Since(began) > lostFor {
		t.Error("the worker was not lost any more")
	}
	sleep.For(t.Context(), lostFor-time.Since(began))
	eventuallyWorks(lost)
	toLost.await(1)
	toHealthy.await(events + 1)
}

// eventuallyWorks appends an event when the worker of the account works.
func eventuallyWorks(f *feed) {
	f.t.Helper()
	if !eventually(f.t, func() bool {
		var id int64
		return f.owner.Pool.QueryRow(f.t.Context(), "SELECT account_id FROM account_state WHERE account_id = $1", f.account).Scan(&id) == nil
	}) {
		f.t.Fatal("the worker does not go on")
	}
	f.emit(pets(1, 1)...)
}
