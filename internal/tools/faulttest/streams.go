package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"petstore/internal/event"
	"petstore/internal/sleep"
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
		sleep.For(ctx, interval)
		return s.order(ctx, 1+number)
	})
	sleep.For(ctx, open)
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

// feedEvent is an Event.
type feedEvent struct {
	ID        string                     `json:"id"`
	Sequence  int64                      `json:"sequence"`
	Type      string                     `json:"type"`
	Timestamp time.Time                  `json:"timestamp"`
	Subject   string                     `json:"subject"`
	Data      map[string]json.RawMessage `json:"data"`
}

// subscriber follows the feed of an account from an event on. It requires that the numbers
// of the events have no gaps, and that their times do not decrease. It connects again after
// every error, each time to the next instance.
type subscriber struct {
	instances []*client
	streams   bool   // whether it reads a stream; otherwise it waits for pages
	next      string // the next page

	mu          sync.Mutex
	last        feedEvent
	events      []feedEvent
	delays      durations // between the time of an event and its arrival
	connections int
	err         error // an event that is missing or twice
}

// subscribe starts subscribers from an event on. end stops them, and fails the row if an event
// was wrong.
func subscribe(ctx context.Context, last feedEvent, subscribers ...*subscriber) (end func()) {
	ctx, stop := context.WithCancel(ctx)
	for _, f := range subscribers {
		f.last = last
	}
	wait := must.Background(func() {
		must.Parallel(len(subscribers), func(number int) {
			subscribers[number].run(ctx, number)
			must.OK(subscribers[number].err)
		})
	})
	return func() { stop(); wait() }
}

// run follows the feed until the context ends or an event is wrong.
func (f *subscriber) run(ctx context.Context, number int) {
	const pause = 50 * time.Millisecond
	read := f.readPage
	if f.streams {
		read = f.readStream
	}
	for ; ctx.Err() == nil && f.err == nil; number++ {
		if err := read(ctx, f.instances[number%len(f.instances)]); err != nil {
			sleep.For(ctx, pause)
		}
	}
}

// received records an event.
func (f *subscriber) received(e feedEvent) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e.Sequence != f.last.Sequence+1 || e.Timestamp.Before(f.last.Timestamp) {
		f.err = fmt.Errorf("after event %s of %s came %s of %s", f.last.ID, f.last.Timestamp, e.ID, e.Timestamp)
		return f.err
	}
	f.last, f.events, f.delays = e, append(f.events, e), append(f.delays, time.Since(e.Timestamp))
	return nil
}

// position returns the number of the last event.
func (f *subscriber) position() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last.Sequence
}

// readPage waits for the next page of the feed, to which the page before has a link.
func (f *subscriber) readPage(ctx context.Context, c *client) error {
	target := "/events?limit=5&after=" + f.last.ID
	if f.next != "" {
		target = f.next
	}
	resp, err := c.do(ctx, "GET", target, "", "Prefer", "wait=2")
	return must.Attempt(func() {
		must.OK(err)
		events := decode[[]feedEvent](resp.check(http.StatusOK))
		f.next = cmp.Or(resp.next(), f.next)
		for _, e := range events {
			must.OK(f.received(e))
		}
	})
}

// readStream reads a stream until it ends.
func (f *subscriber) readStream(ctx context.Context, c *client) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/events", http.NoBody)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+c.key)
	request.Header.Set("Accept", "text/event-stream")
	request.Header.Set("Last-Event-ID", f.last.ID)
	opened, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer opened.Body.Close()
	if opened.StatusCode != http.StatusOK {
		return fmt.Errorf("a stream: %d", opened.StatusCode)
	}
	f.mu.Lock()
	f.connections++
	f.mu.Unlock()
	lines := bufio.NewReader(opened.Body)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return err
		}
		data, found := strings.CutPrefix(line, "data: ")
		if !found {
			continue
		}
		var e feedEvent
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return err
		}
		if err := f.received(e); err != nil {
			return err
		}
	}
}

// newest returns the newest event of the feed, as far as the next link names it.
func (c *client) newest(ctx context.Context) (newest feedEvent) {
	resp := c.want(ctx, http.StatusOK, "GET", "/events?after=latest", "")
	_, newest.ID, _ = strings.Cut(resp.next(), "after=")
	id, ok := event.ParseID(newest.ID)
	must.Hold(ok, "the cursor %q is no id", newest.ID)
	newest.Sequence = id.Sequence
	return newest
}

// awaitSubscribers waits until subscribers have the newest event.
func (c *client) awaitSubscribers(ctx context.Context, limit time.Duration, subscribers ...*subscriber) {
	newest := c.newest(ctx)
	must.Await(ctx, limit, func() {
		for i, f := range subscribers {
			at := f.position()
			must.Hold(at >= newest.Sequence, "subscriber %d has the events to %d of %d", i, at, newest.Sequence)
		}
	})
}
