package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Row 31. Two instances are restarted one after the other, and no request fails.
// Clients behave as load balancers do: half of them choose among the instances
// whose last GET /readyz was 200, the others among both, and a connection that is
// refused makes them try the other instance. All else counts as a failure.
func rollingRestart(ctx context.Context, b *bench) (string, error) {
	const clients, rounds, pause, readyWithin = 32, 3, 300 * time.Millisecond, 3 * time.Second
	s, err := b.open(ctx)
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
	l := startLoad(ctx, clients, func(number int) (answer, error) {
		pet := 1 + number%pets
		return balancer.send(number%2 == 0, func(c *client) (answer, error) {
			if number%8 == 0 {
				return c.do(ctx, "GET", fmt.Sprintf("/pets/%d", pet), "")
			}
			return c.order(ctx, pet)
		})
	})
	err = restartEach(ctx, services, rounds, pause, readyWithin)
	ledger := l.finish()
	figures := fmt.Sprintf("%d restarts: %s, slowest %s; %d refused connections, each request of which the other instance served",
		rounds*len(services), ledger.count(), round(ledger.slowest), balancer.refused.Load())
	return figures, errors.Join(err, ledger.only(http.StatusOK, http.StatusCreated), s.audit(ctx, ledger))
}

// restartEach ends one instance after the other with SIGTERM, and starts it again
// before it goes on with the next.
func restartEach(ctx context.Context, services [2]*service, rounds int, pause, readyWithin time.Duration) error {
	for range rounds {
		for _, service := range services {
			wait(ctx, pause)
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
			if _, err := service.ready(ctx, readyWithin); err != nil {
				return err
			}
		}
	}
	wait(ctx, pause)
	return nil
}

// balancer spreads requests over two instances.
type balancer struct {
	instances [2]*client
	healthy   [2]atomic.Bool
	refused   atomic.Int64
}

// newBalancer checks the health of instances until stop.
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
				wait(ctx, interval)
			}
		})
	}
	return b, func() { cancel(); group.Wait() }
}

// send sends a request to an instance, checked for its health or not, and to the
// other one when the connection is refused.
func (b *balancer) send(checked bool, request func(*client) (answer, error)) (answer, error) {
	first := rand.N(len(b.instances))
	if checked && !b.healthy[first].Load() {
		first = 1 - first
	}
	a, err := request(b.instances[first])
	if errors.Is(err, syscall.ECONNREFUSED) {
		b.refused.Add(1)
		a, err = request(b.instances[1-first])
	}
	return a, err
}
