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
	"petstore/internal/tools/must"
)

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
			sleep(ctx, pause)
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
	target := "/events?limit=20&after=" + f.last.ID
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
