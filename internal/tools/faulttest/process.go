package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"petstore/internal/tools/must"
)

// serviceKilled is row 10: the service may be killed at any moment. No acknowledged order
// is lost, and it is ready within three seconds of a restart.
func serviceKilled(ctx context.Context, f *fixture) string {
	const kills = 3
	s := f.open(ctx)
	w := s.startWriters(ctx, 16)
	var slowest time.Duration
	for range kills {
		sleep(ctx, 700*time.Millisecond)
		s.api.kill()
		s.api.start()
		slowest = max(slowest, s.awaitWorking(ctx, 3*time.Second))
	}
	sleep(ctx, 500*time.Millisecond)
	l := w.finish()
	l.wantOnly(http.StatusCreated, http.StatusServiceUnavailable, noResponse)
	s.audit(ctx, l)
	return fmt.Sprintf("%s, 0 of %d lost; working at most %s after a restart", l.summary(), len(l.placed), round(slowest))
}

// terminated is row 11: on SIGTERM the service exits with 0 and loses nothing. It finishes
// requests in progress, even slow ones, and cuts off at most 0.5 % of the requests under
// load.
func terminated(ctx context.Context, f *fixture) string {
	s := f.open(ctx)
	slow := s.terminatedSlow(ctx)
	s.api.restart(ctx)
	return slow + "; " + s.terminatedUnderLoad(ctx)
}

// terminatedSlow sends SIGTERM while eight orders wait for a lock.
func (s *deployment) terminatedSlow(ctx context.Context) string {
	const orders, groups = 8, 2 // the first order has the first group, and the others share the next
	release := s.db.holdLock(ctx, "LOCK TABLE inventory IN ACCESS EXCLUSIVE MODE")
	defer release()
	var l ledger
	wait := must.Background(func() { must.Parallel(orders, func(number int) { l.record(s.order(ctx, 1+number)) }) })
	s.db.awaitLockWaits(ctx, groups)
	s.api.signal(syscall.SIGTERM)
	sleep(ctx, time.Second) // long after the server has stopped accepting connections
	release()
	wait()
	code := s.api.exitCode(ctx)
	must.Hold(code == 0 && l.count(http.StatusCreated) == orders, "%d slow orders: %s, exit code %d", orders, l.summary(), code)
	s.audit(ctx, &l)
	return fmt.Sprintf("slow orders %s, exit code 0", l.summary())
}

// terminatedUnderLoad sends SIGTERM under writers that keep their connections.
func (s *deployment) terminatedUnderLoad(ctx context.Context) string {
	const clients, tolerated = 16, 0.005
	var l ledger
	wait := must.Background(func() {
		must.Parallel(clients, func(id int) {
			for ctx.Err() == nil {
				resp, err := s.order(ctx, 1+id)
				if errors.Is(err, syscall.ECONNREFUSED) {
					return // the service has ended, so nothing was sent
				}
				l.record(resp, err)
			}
		})
	})
	sleep(ctx, 1500*time.Millisecond)
	code := s.api.terminate(ctx)
	wait()
	cut := l.count(noResponse)
	must.Hold(float64(cut) <= tolerated*float64(l.total()) && code == 0, "%d of %d requests cut off under load, exit code %d", cut, l.total(), code)
	l.wantOnly(http.StatusCreated, http.StatusServiceUnavailable, noResponse)
	s.audit(ctx, &l)
	return fmt.Sprintf("under load %s: %d cut, 0 lost", l.summary(), cut)
}

// restartEach restarts one instance after the other with SIGTERM and waits until each is
// ready.
func restartEach(ctx context.Context, instances [2]*service, rounds int) {
	const pause, readyWithin = 300 * time.Millisecond, 3 * time.Second
	for range rounds {
		for _, instance := range instances {
			sleep(ctx, pause)
			code := instance.terminate(ctx)
			must.Hold(code == 0, "SIGTERM: exit code %d", code)
			instance.start()
			instance.awaitReady(ctx, readyWithin)
		}
	}
	sleep(ctx, pause)
}

// balancer spreads requests over two instances.
type balancer struct {
	instances [2]*service
	healthy   [2]atomic.Bool
	refused   atomic.Int64
}

// newBalancer starts a balancer that checks the health of the instances until stop is
// called.
func newBalancer(ctx context.Context, instances [2]*service) (b *balancer, stop func()) {
	const interval = 50 * time.Millisecond
	b = &balancer{instances: instances}
	ctx, cancel := context.WithCancel(ctx)
	wait := must.Background(func() {
		must.Parallel(len(instances), func(i int) {
			for ; ctx.Err() == nil; sleep(ctx, interval) {
				b.healthy[i].Store(must.Attempt(func() { instances[i].want(ctx, http.StatusOK, "GET", "/readyz", "") }) == nil)
			}
		})
	})
	return b, func() { cancel(); wait() }
}

// notConnected reports whether a connection was refused. The kernel resets it instead if
// the listener closes during the handshake, when nothing has been sent either.
func notConnected(err error) bool {
	dial, failed := errors.AsType[*net.OpError](err)
	return failed && dial.Op == "dial" && (errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET))
}

// send sends a request to an instance, to a healthy one if checked is true, and to the
// other one if the connection is refused.
func (b *balancer) send(checked bool, request func(*client) (response, error)) (response, error) {
	first := rand.N(len(b.instances))
	if checked && !b.healthy[first].Load() {
		first = 1 - first
	}
	resp, err := request(b.instances[first].client)
	if notConnected(err) {
		b.refused.Add(1)
		resp, err = request(b.instances[1-first].client)
	}
	return resp, err
}
