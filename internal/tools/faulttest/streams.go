package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"petstore/internal/tools/must"
)

// streamRestart is row 38: streams at two instances lose, repeat and reorder nothing, while
// another program has a transaction open for 3 seconds. From commit to arrival they take at
// most 250 ms (p99). Then the instances are restarted one after the other under load, and
// the clients connect again with the id of their last event. No request fails: its clients
// behave like load balancers. Half of them choose among the instances whose last GET /readyz
// returned 200, the others among both. After a refused connection they try the other
// instance. Everything else counts as a failure.
func streamRestart(ctx context.Context, f *fixture) string {
	const streams, clients, rounds, p99Limit = 8, 32, 3, 250 * time.Millisecond
	s := f.open(ctx)
	instances := s.startSecond(ctx)
	must.Get(s.order(ctx, 1)).check(http.StatusCreated)
	subscribers := make([]*subscriber, streams)
	for i := range subscribers {
		subscribers[i] = &subscriber{instances: []*client{instances[0].client, instances[1].client}, streams: true}
	}
	end := subscribe(ctx, s.newest(ctx), subscribers...)
	p99, calm := s.followCalmly(ctx, subscribers)
	balancer, stopChecks := newBalancer(ctx, instances)
	defer stopChecks()
	w := startLoad(ctx, clients, func(number int) (response, error) {
		return balancer.send(number%2 == 0, func(c *client) (response, error) {
			if number%8 == 0 {
				return c.getPet(ctx, 1+number)
			}
			return c.order(ctx, 1+number)
		})
	})
	restartEach(ctx, instances, rounds)
	l := w.finish()
	s.awaitSubscribers(ctx, 10*time.Second, subscribers...)
	end()
	l.wantOnly(http.StatusOK, http.StatusCreated)
	s.audit(ctx, l)
	connections := 0
	for _, f := range subscribers {
		connections += f.connections
	}
	figures := fmt.Sprintf("%d streams: %d events beside an open transaction, p99 %s after the commit; %d restarts: %s, %d refused connections, %d events in %d connections; 0 lost, 0 out of order",
		streams, calm, round(p99), rounds*len(instances), l.summary(), balancer.refused.Load(), len(subscribers[0].events), connections)
	must.Hold(p99 <= p99Limit, "%s", figures)
	return figures
}

// followCalmly places orders at a steady rate while another program has a transaction open.
// It returns the p99 of the time from the commit of an event to its arrival, and the number
// of events.
func (s *deployment) followCalmly(ctx context.Context, subscribers []*subscriber) (p99 time.Duration, events int) {
	const clients, interval, open = 4, 20 * time.Millisecond, 3 * time.Second
	// A transaction with an id keeps readers of a feed by transaction ids from going on.
	release := s.db.holdLock(ctx, "SELECT pg_current_xact_id(), count(*) FROM events")
	defer release()
	must.Await(ctx, 5*time.Second, func() {
		for i, f := range subscribers {
			f.mu.Lock()
			connections := f.connections
			f.mu.Unlock()
			must.Hold(connections > 0, "subscriber %d has no stream", i)
		}
	})
	w := startLoad(ctx, clients, func(number int) (response, error) {
		sleep(ctx, interval)
		return s.order(ctx, 1+number)
	})
	sleep(ctx, open)
	l := w.finish()
	must.Explain("beside an open transaction", func() {
		l.wantOnly(http.StatusCreated)
		s.awaitSubscribers(ctx, time.Second, subscribers...)
	})
	var all durations
	for _, f := range subscribers {
		f.mu.Lock()
		all = append(all, f.delays...)
		f.mu.Unlock()
	}
	return all.p99(), len(l.placed)
}
