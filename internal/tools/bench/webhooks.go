package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"petstore/internal/standardwebhooks"
	"petstore/internal/tools/must"
)

// webhookBench measures deliveries to a local sink.
type webhookBench struct {
	*build
	*report
	options
	sink *sink
}

// measureWebhooks measures the rate and the delay of webhooks, and what they cost orders.
func measureWebhooks(ctx context.Context, o options, dir string, out io.Writer) {
	w := &webhookBench{newBuild(ctx, o, dir, "present", "."), newReport(ctx, o), o, newSink(ctx)}
	defer w.stop()
	defer w.sink.stop()
	w.machine += ", PostgreSQL " + w.binaries.Version
	fmt.Fprintf(out, "%s\n%s\n", w.machine, w.setting)
	w.build.serve(ctx)
	w.compareRates(ctx, 1)
	w.compareRates(ctx, 4)
	w.measureDelay(ctx, "same process", time.Second)
	w.compareOrders(ctx)
	w.measureBesideHanging(ctx)
	w.server.stop()
	w.build.serve(ctx, "PETSTORE_WORKER=false")
	defer w.build.start(ctx, "worker").stop()
	w.measureDelay(ctx, "another process", time.Second)
	w.print(out)
}

// compareRates compares the deliveries of stored events to webhooks with a bare client that
// posts the same signed bodies over as many connections.
func (w *webhookBench) compareRates(ctx context.Context, hooks int) {
	const deliveries, least = 24_000, 2000
	const connectionsOfWebhook = 4 // the maximum number of requests to a webhook at a time
	var measured pair
	for range w.rounds {
		measured[0] = append(measured[0], w.sink.postBare(ctx, connectionsOfWebhook*hooks, w.duration))
		measured[1] = append(measured[1], w.deliver(ctx, w.sink, hooks, deliveries))
	}
	row := (&result{workload{name: fmt.Sprintf("deliveries to %d webhooks", hooks), other: side{name: "bare client"}}, measured}).rateLine()
	row.target, row.verdict = fmt.Sprintf("at least %s/s", thousands(least)), verdict(medianOf(measured[1], rate) >= least)
	w.add(row)
}

// measureDelay places orders at a steady rate, and adds the line of the time from the
// commit of an event to its first request.
func (w *webhookBench) measureDelay(ctx context.Context, name string, limit time.Duration) {
	paths := w.addWebhooks(ctx, w.admin, 1, w.sink.url)
	placeOrders := func(during time.Duration) {
		const interval = 20 * time.Millisecond
		for began := time.Now(); time.Since(began) < during; time.Sleep(interval) {
			w.ask(ctx, http.MethodPost, "/store/orders", `{"petId": 1}`)
		}
	}
	placeOrders(warmUp)
	w.sink.startTiming()
	placeOrders(3 * w.duration)
	w.awaitEnd(ctx)
	w.deleteWebhooks(ctx, paths)
	delays := w.sink.stopTiming()
	p99 := delays[len(delays)*99/100]
	w.add(line{
		name:   "commit to first attempt, " + name,
		ours:   fmt.Sprintf("p50 %d, p99 %d, slowest %d ms of %d", delays[len(delays)/2].Milliseconds(), p99.Milliseconds(), delays[len(delays)-1].Milliseconds(), len(delays)),
		target: fmt.Sprintf("p99 at most %.0f s", limit.Seconds()), verdict: verdict(p99 <= limit),
	})
}

// measureBesideHanging measures the delay while many deliveries are due at a webhook of
// another account whose endpoint never responds.
func (w *webhookBench) measureBesideHanging(ctx context.Context) {
	const other, due = "other", 10_000
	mute := listen(ctx)
	defer mute.Close()
	w.addWebhooks(ctx, w.newKey(ctx, other, "admin"), 1, "http://"+mute.Addr().String())
	execute(ctx, w.database, addEvents, other, due)
	must.Await(ctx, deliveriesWithin, func() {
		pending, _ := w.unfinished(ctx, other)
		must.Hold(pending >= due, "%d of %d deliveries are pending", pending, due)
	})
	w.measureDelay(ctx, "10,000 due at a webhook that hangs", 2*time.Second)
}

// compareOrders compares orders whose events go to a webhook with orders without one.
func (w *webhookBench) compareOrders(ctx context.Context) {
	var measured pair
	for range w.rounds {
		for hooks := range measured {
			paths := w.addWebhooks(ctx, w.admin, hooks, w.sink.url)
			measured[hooks] = append(measured[hooks], w.wrk(ctx, w.server.url, load{kind: "order", connections: 64}, w.duration))
			w.awaitEnd(ctx)
			w.deleteWebhooks(ctx, paths)
		}
	}
	w.add((&result{workload{name: randomOrders + ", to a webhook", other: side{name: "no webhook"}}, measured}).rateLine())
}

// awaitEnd waits until the webhooks of the large account have got everything.
func (w *webhookBench) awaitEnd(ctx context.Context) {
	must.Await(ctx, deliveriesWithin, func() {
		pending, behind := w.unfinished(ctx, benchAccount)
		must.Hold(pending+behind == 0, "%d deliveries are pending, %d webhooks do not have the newest events", pending, behind)
	})
}

// unfinished counts the deliveries of an account that have not ended, and its webhooks that do
// not have the newest events.
func (w *webhookBench) unfinished(ctx context.Context, account string) (pending, behind int) {
	scan(ctx, w.database, `
		SELECT (SELECT count(*) FROM webhook_deliveries AS d WHERE d.account_id = accounts.id AND status = 'pending'),
		       (SELECT count(*) FROM webhooks AS w JOIN account_state AS s USING (account_id) WHERE w.account_id = accounts.id AND after_sequence < last_sequence AND deleted_at IS NULL)
		FROM accounts
		WHERE name = $1`, []any{account}, &pending, &behind)
	return pending, behind
}

// sink is an endpoint that accepts everything.
type sink struct {
	url    string
	stop   func()
	count  atomic.Int64
	first  atomic.Int64 // the time of the first request, in nanoseconds
	timing atomic.Bool  // whether to read the times of events

	mu     sync.Mutex
	delays []time.Duration
}

func newSink(ctx context.Context) *sink {
	s := &sink{}
	s.url, s.stop = serve(ctx, s)
	return s
}

// ServeHTTP implements [http.Handler].
func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.first.CompareAndSwap(0, now.UnixNano())
	s.count.Add(1)
	if s.timing.Load() {
		var event struct{ Timestamp time.Time }
		if json.Unmarshal(body, &event) == nil {
			s.mu.Lock()
			s.delays = append(s.delays, now.Sub(event.Timestamp))
			s.mu.Unlock()
		}
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *sink) startTiming() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delays = nil
	s.timing.Store(true)
}

// stopTiming returns the delays since startTiming, sorted.
func (s *sink) stopTiming() []time.Duration {
	s.timing.Store(false)
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.delays)
	return s.delays
}

// postBare posts signed bodies to the sink with a net/http client.
func (s *sink) postBare(ctx context.Context, connections int, during time.Duration) measurement {
	secret := standardwebhooks.NewSecret()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}}
	defer client.CloseIdleConnections()
	body := bytes.Repeat([]byte("x"), 250) // as long as an event
	began, count := time.Now(), atomic.Int64{}
	must.Parallel(connections, func(int) {
		for ; time.Since(began) < during; count.Add(1) {
			request := must.Get(http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body)))
			request.Header.Set("Content-Type", "application/json")
			standardwebhooks.Sign(request.Header, "evt_1_00000001", time.Now(), body, secret)
			response, err := client.Do(request)
			must.OK(err)
			must.Get(io.Copy(io.Discard, response.Body))
			must.OK(response.Body.Close())
		}
	})
	return measurement{perSecond: float64(count.Load()) / time.Since(began).Seconds()}
}
