package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"petstore/internal/tools/must"
)

// restartEach restarts one instance after the other with SIGTERM and waits until each is
// ready.
func restartEach(ctx context.Context, instances [2]*service, rounds int) {
	const pause, readyWithin = 300 * time.Millisecond, 3 * time.Second
	for range rounds {
		for _, instance := range instances {
			sleep(ctx, pause)
			code := instance.process.Terminate(ctx)
			must.Hold(code == 0, "SIGTERM: exit code %d", code)
			instance.start()
			instance.awaitReady(ctx, readyWithin)
		}
	}
	sleep(ctx, pause)
}

// killInTurn kills processes by turns, and PostgreSQL once, and restarts them.
func (s *deployment) killInTurn(ctx context.Context, kills int, pause time.Duration, processes ...*service) {
	for kill := range kills {
		sleep(ctx, pause)
		process := processes[kill%len(processes)]
		process.kill()
		if kill == kills/2 {
			s.db.signal(syscall.SIGKILL)
			s.db.start(ctx)
		}
		process.restart(ctx)
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
