package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"petstore/internal/tools/must"
	"petstore/internal/tools/run"
)

// deliveriesWithin is how long deliveries may take.
const deliveriesWithin = 2 * time.Minute

const deliveriesToOne, deliveriesToFour = "deliveries to one webhook", "deliveries to four webhooks"

// measureWebhooks measures the rate and the delay of webhooks, and what they cost orders.
func measureWebhooks(ctx context.Context, r *report, b *build) {
	s := b.newSink(ctx)
	b.serve(ctx)
	order := loadOf(randomOrders)
	r.measureRounds(ctx, []workload{
		{name: deliveriesToOne, ours: b.deliver(petstoreName, s, 1), other: b.deliver("four webhooks", s, 4), perSecond: 2000},
		{name: deliveriesToFour, ours: b.deliver(petstoreName, s, 4), other: b.deliver("one webhook", s, 1), perSecond: 3000},
		{name: randomOrders + ", to a webhook", ours: b.orderToWebhook(s, order), other: b.side("no webhook", order), atLeast: 0.85},
	})
	r.addDelay(ctx, b, s, "same process")
	b.server.stop(ctx)
	b.serve(ctx, "PETSTORE_WORKER=false")
	defer b.start(ctx, "worker").stop(ctx)
	r.addDelay(ctx, b, s, "another process")
}

// deliver measures how fast stored events reach new webhooks at a sink.
func (b *build) deliver(name string, s *sink, hooks int) side {
	return side{name, func(ctx context.Context, during time.Duration) measurement {
		number := int(4000 * during.Seconds()) // they may take longer
		paths := b.addWebhooks(ctx, hooks, s.url)
		defer b.deleteWebhooks(ctx, paths)
		s.reset()
		run.Exec(ctx, b.database, run.AddEvents, []string{benchAccount}, number/hooks)
		return withCPU(b.pids(), func() measurement {
			took, _ := s.await(ctx, number)
			must.Await(ctx, deliveriesWithin, func() {
				for _, path := range paths {
					_, pending := b.ask(ctx, http.MethodGet, path+"/deliveries?status=pending&limit=1", "")
					must.Hold(string(pending) == "[]", "deliveries are pending")
				}
			})
			return measurement{requests: number, perSecond: float64(number) / took.Seconds()}
		})
	}}
}

// orderToWebhook measures orders whose events go to a webhook.
func (b *build) orderToWebhook(s *sink, order load) side {
	return side{petstoreName, func(ctx context.Context, during time.Duration) measurement {
		paths := b.addWebhooks(ctx, 1, s.url)
		defer b.deleteWebhooks(ctx, paths)
		s.reset()
		m := b.wrk(ctx, b.server.url, order, during)
		s.await(ctx, m.requests)
		return m
	}}
}

// addWebhooks creates webhooks over HTTP, because builds may store them differently. It
// returns their paths.
func (b *build) addWebhooks(ctx context.Context, hooks int, target string) (paths []string) {
	for range hooks {
		header, _ := b.ask(ctx, http.MethodPost, "/webhooks", fmt.Sprintf(`{"url": %q, "types": ["*"]}`, target))
		paths = append(paths, header.Get("Location"))
	}
	return paths
}

// deleteWebhooks deletes webhooks with their deliveries.
func (b *build) deleteWebhooks(ctx context.Context, paths []string) {
	for _, path := range paths {
		b.ask(ctx, http.MethodDelete, path, "")
	}
}

// addDelay places orders at a steady rate, and adds the row of the time from the commit of an
// event to its first request.
func (r *report) addDelay(ctx context.Context, b *build, s *sink, name string) {
	name = "commit to first attempt, " + name
	if !r.only.MatchString(name) {
		return
	}
	paths := b.addWebhooks(ctx, 1, s.url)
	defer b.deleteWebhooks(ctx, paths)
	var delays []time.Duration
	for _, during := range []time.Duration{warmUp, 3 * r.duration} {
		const interval = 20 * time.Millisecond
		placed := 0
		s.reset()
		for began := time.Now(); time.Since(began) < during; time.Sleep(interval) {
			b.ask(ctx, http.MethodPost, "/store/orders", `{"petId": 1}`)
			placed++
		}
		_, delays = s.await(ctx, placed)
	}
	p99 := delays[len(delays)*99/100]
	r.others = append(r.others, line{
		name: name,
		ours: fmt.Sprintf("p50 %d, p99 %d, slowest %d ms of %d", delays[len(delays)/2].Milliseconds(), p99.Milliseconds(), delays[len(delays)-1].Milliseconds(), len(delays)),
	}.judged("p99 at most 1 s", p99 <= time.Second))
}

// sink is an endpoint that accepts everything.
type sink struct {
	url string

	mu     sync.Mutex
	first  time.Time       // of the first request
	delays []time.Duration // of all requests, since their events
}

// newSink starts a sink, which ends with the build.
func (b *build) newSink(ctx context.Context) *sink {
	s := &sink{}
	s.url = b.serveHTTP(ctx, s)
	return s
}

// ServeHTTP implements [http.Handler].
func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	var event struct{ Timestamp time.Time }
	if body, err := io.ReadAll(r.Body); err != nil || json.Unmarshal(body, &event) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.delays == nil {
		s.first = now
	}
	s.delays = append(s.delays, now.Sub(event.Timestamp))
	w.WriteHeader(http.StatusNoContent)
}

// reset forgets all requests.
func (s *sink) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delays = nil
}

// await waits until a number of requests have arrived. It returns the time since the first one,
// and the sorted delays of all.
func (s *sink) await(ctx context.Context, number int) (took time.Duration, delays []time.Duration) {
	must.Await(ctx, deliveriesWithin, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		must.Hold(len(s.delays) >= number, "%d of %d deliveries have arrived", len(s.delays), number)
		took, delays = time.Since(s.first), slices.Sorted(slices.Values(s.delays))
	})
	return took, delays
}
