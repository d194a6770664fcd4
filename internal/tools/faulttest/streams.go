package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// streamRestart is row 38: streams at two instances lose, repeat and reorder nothing, while
// another program has a transaction open for 3 seconds. From commit to arrival they take at
// most 250 ms (p99). Then the instances are restarted one after the other under load, and
// the clients connect again with the id of their last event.
func streamRestart(ctx context.Context, f *fixture) (string, error) {
	const streams, open, rounds, pause, readyWithin, p99Limit = 8, 3 * time.Second, 2, 300 * time.Millisecond, 3 * time.Second, 250 * time.Millisecond
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	other, err := s.serve(ctx, s.db.url())
	if err != nil {
		return "", err
	}
	instances := [2]*client{s.client, {base: other.url(), key: s.key}}
	first, err := s.order(ctx, 1)
	if err := errors.Join(err, first.check(http.StatusCreated)); err != nil {
		return "", err
	}
	last, err := s.newest(ctx)
	if err != nil {
		return "", err
	}
	following, stop := context.WithCancel(ctx)
	defer stop()
	subscribers := make([]*subscriber, streams)
	for i := range subscribers {
		subscribers[i] = &subscriber{instances: instances[:], streams: true}
	}
	wait := subscribe(following, last, subscribers...)
	p99, calm, err := s.followCalmly(ctx, open, subscribers)
	if err != nil {
		return "", errors.Join(err, context.Cause(following))
	}
	balancer, stopChecks := newBalancer(ctx, instances)
	defer stopChecks()
	l := startLoad(ctx, streams, func(number int) (response, error) {
		return balancer.send(true, func(c *client) (response, error) { return c.order(ctx, 1+number) })
	})
	err = restartEach(ctx, [2]*service{s.api, other}, rounds, pause, readyWithin)
	ledger := l.finish()
	if err == nil {
		err = s.awaitSubscribers(ctx, 10*time.Second, subscribers...)
	}
	stop()
	err = errors.Join(err, wait(), ledger.only(http.StatusCreated))
	connections := 0
	for _, f := range subscribers {
		connections += f.connections
	}
	figures := fmt.Sprintf("%d streams: %d events beside an open transaction, p99 %s after the commit; %d restarts: %s, %d events in %d connections; 0 lost, 0 out of order",
		streams, calm, round(p99), 2*rounds, ledger.summary(), len(subscribers[0].events), connections)
	if err == nil && p99 > p99Limit {
		err = errors.New(figures)
	}
	return figures, err
}

// followCalmly places orders at a steady rate while another program has a transaction open.
// It returns the p99 of the time from the commit of an event to its arrival, and the number
// of events.
func (s *deployment) followCalmly(ctx context.Context, open time.Duration, subscribers []*subscriber) (p99 time.Duration, events int, err error) {
	const clients, interval = 4, 20 * time.Millisecond
	// A transaction with an id keeps readers of a feed by transaction ids from going on.
	release, err := s.db.holdLock(ctx, databaseName, "SELECT pg_current_xact_id(), count(*) FROM events")
	if err != nil {
		return 0, 0, err
	}
	defer release()
	if _, err := eventually(ctx, 5*time.Second, func() error { return subscribersConnected(subscribers) }); err != nil {
		return 0, 0, err
	}
	l := startLoad(ctx, clients, func(number int) (response, error) {
		sleep(ctx, interval)
		return s.order(ctx, 1+number)
	})
	sleep(ctx, open)
	ledger := l.finish()
	if err := errors.Join(ledger.only(http.StatusCreated), s.awaitSubscribers(ctx, time.Second, subscribers...)); err != nil {
		return 0, 0, fmt.Errorf("beside an open transaction: %w", err)
	}
	var all durations
	for _, f := range subscribers {
		f.mu.Lock()
		all = append(all, f.delays...)
		f.mu.Unlock()
	}
	return all.p99(), len(ledger.placed), nil
}

// subscribersConnected returns an error unless every subscriber has a stream.
func subscribersConnected(subscribers []*subscriber) error {
	for i, f := range subscribers {
		f.mu.Lock()
		connected := f.connections > 0
		f.mu.Unlock()
		if !connected {
			return fmt.Errorf("subscriber %d has no stream", i)
		}
	}
	return nil
}
