package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// rollingRestart is row 31: two instances are restarted one after the other, and no request
// fails. The clients behave like load balancers. Half of them choose among the instances
// whose last GET /readyz returned 200, the others among both. After a refused connection
// they try the other instance. Everything else counts as a failure.
func rollingRestart(ctx context.Context, f *fixture) (string, error) {
	const clients, rounds, pause, readyWithin = 32, 3, 300 * time.Millisecond, 3 * time.Second
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	other, err := s.serve(ctx, s.db.url())
	if err != nil {
		return "", err
	}
	services := [2]*service{s.api, other}
	balancer, stopChecks := newBalancer(ctx, [2]*client{s.client, {base: other.url(), key: s.key}})
	defer stopChecks()
	l := startLoad(ctx, clients, func(number int) (response, error) {
		pet := 1 + number%pets
		return balancer.send(number%2 == 0, func(c *client) (response, error) {
			if number%8 == 0 {
				return c.do(ctx, "GET", fmt.Sprintf("/pets/%d", pet), "")
			}
			return c.order(ctx, pet)
		})
	})
	err = restartEach(ctx, services, rounds, pause, readyWithin)
	ledger := l.finish()
	figures := fmt.Sprintf("%d restarts: %s, slowest %s; %d refused connections, all requests served by the other instance",
		rounds*len(services), ledger.summary(), round(ledger.slowest), balancer.refused.Load())
	return figures, errors.Join(err, ledger.only(http.StatusOK, http.StatusCreated), s.audit(ctx, ledger))
}

// restartEach restarts one instance after the other with SIGTERM and waits until each is
// ready.
func restartEach(ctx context.Context, services [2]*service, rounds int, pause, readyWithin time.Duration) error {
	for range rounds {
		for _, service := range services {
			sleep(ctx, pause)
			code, err := service.terminate(ctx)
			if err != nil {
				return err
			}
			if code != 0 {
				return fmt.Errorf("SIGTERM: exit code %d", code)
			}
			if err := service.start(); err != nil {
				return err
			}
			if _, err := service.awaitReady(ctx, readyWithin); err != nil {
				return err
			}
		}
	}
	sleep(ctx, pause)
	return nil
}

// balancer spreads requests over two instances.
type balancer struct {
	instances [2]*client
	healthy   [2]atomic.Bool
	refused   atomic.Int64
}

// newBalancer starts a balancer that checks the health of the instances until stop is
// called.
func newBalancer(ctx context.Context, instances [2]*client) (b *balancer, stop func()) {
	const interval = 50 * time.Millisecond
	b = &balancer{instances: instances}
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	for i, instance := range instances {
		b.healthy[i].Store(true)
		group.Go(func() {
			for ctx.Err() == nil {
				_, err := instance.want(ctx, http.StatusOK, "GET", "/readyz", "")
				b.healthy[i].Store(err == nil)
				sleep(ctx, interval)
			}
		})
	}
	return b, func() { cancel(); group.Wait() }
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
	resp, err := request(b.instances[first])
	if notConnected(err) {
		b.refused.Add(1)
		resp, err = request(b.instances[1-first])
	}
	return resp, err
}
