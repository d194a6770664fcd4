package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"petstore/internal/sleep"
	"petstore/internal/tools/must"
	"petstore/internal/tools/run"
)

// firstAttemptLimit is how long an event may take to its first attempt, whatever other
// accounts do.
const firstAttemptLimit = 2 * time.Second

// webhookFairness is row 39: an account gets its events within two seconds (p99) while
// other accounts have
//
//   - 10,000 deliveries due at an endpoint that accepts connections and never responds
//   - webhooks at endpoints that hang, or that accept an event after 14 s
//   - 50,000 events that are not dispatched yet, in each of two accounts
func webhookFairness(ctx context.Context, f *fixture) string {
	const due, undispatched, during = 10_000, 50_000, 6 * time.Second
	s := f.open(ctx, allowLoopback)
	mute, slowURL, healthy := s.listenSlow(ctx, time.Hour), s.listenSlow(ctx, 14*time.Second), s.listenSlow(ctx, 0)
	backlog, unanswered, slow := numbered("backlog", 2), numbered("unanswered", 3), numbered("slow", 3)
	s.db.addAccounts(ctx, mute, 1, "hanging")
	s.db.addAccounts(ctx, healthy, 1, backlog...)
	s.db.addAccounts(ctx, mute, 20, unanswered...)
	s.db.addAccounts(ctx, slowURL, 20, slow...)
	r := s.receive(ctx, nil)
	s.db.addEvents(ctx, due, "hanging")
	s.db.awaitPending(ctx, due, due, "hanging")
	var figures []string
	for _, phase := range []struct {
		what    string
		disturb func()
	}{
		{"beside an endpoint that hangs", func() {}},
		{"beside slow endpoints", func() { s.db.addEvents(ctx, 10, append(unanswered, slow...)...) }},
		{"beside events to dispatch", func() { s.db.addEvents(ctx, undispatched, backlog...) }},
	} {
		must.Explain(phase.what, func() {
			figures = append(figures, phase.what+": "+s.timeEvents(ctx, r, 20*time.Millisecond, during, phase.disturb))
		})
	}
	return strings.Join(figures, "; ")
}

// numbered returns names of accounts.
func numbered(name string, count int) (names []string) {
	for i := range count {
		names = append(names, fmt.Sprint(name, " ", i))
	}
	return names
}

// awaitPending waits until accounts have a number of pending deliveries.
func (d *database) awaitPending(ctx context.Context, least, most int, accounts ...string) {
	must.Await(ctx, 20*time.Second, func() {
		pending := d.count(ctx, `
			SELECT count(*)
			FROM webhook_deliveries
			WHERE status = 'pending' AND account_id IN (SELECT id FROM accounts WHERE name = ANY ($1::text[]))`, accounts)
		must.Hold(pending >= least && pending <= most, "%d deliveries are pending", pending)
	})
}

// timeEvents disturbs the worker, and writes an event after each interval meanwhile. It
// returns the figures of their delays at a receiver of all events of the account.
func (s *deployment) timeEvents(ctx context.Context, r *receiver, interval, during time.Duration, disturb func()) string {
	r.mu.Lock()
	r.delays = nil
	before := len(r.requests)
	r.mu.Unlock()
	w := startLoad(ctx, 1, func(int) (response, error) {
		sleep.For(ctx, interval)
		return s.order(ctx, 1)
	})
	defer w.finish()
	disturb()
	sleep.For(ctx, during)
	l := w.finish()
	l.wantOnly(http.StatusCreated)
	placed := len(l.placed)
	must.Await(ctx, 2*firstAttemptLimit, func() {
		_, events := r.received()
		must.Hold(events >= before+placed, "%d of %d events have arrived", events-before, placed)
	})
	p99, longest := r.slowest()
	figures := fmt.Sprintf("%d events, p99 %s, slowest %s", placed, round(p99), round(longest))
	must.Hold(p99 <= firstAttemptLimit, "%s, want p99 below %s", figures, firstAttemptLimit)
	must.OK(r.err)
	return figures
}

// webhookBacklog is row 42: after an outage, many deliveries are due at 100 webhooks. They
// drain at 1,000 a second or more, although an old snapshot keeps the dead entries of the
// index. One transaction records many of them, so that a slow disk does not set the rate.
// Meanwhile another account gets its events within two seconds.
func webhookBacklog(ctx context.Context, f *fixture) string {
	const accounts, hooks, each, leastRate = 5, 20, 600, 1000
	const all, mostCommits = accounts * hooks * each, accounts * hooks * each / 2
	db := f.startDatabase(ctx, "", nil)
	var arrived atomic.Int64
	url := f.listen(ctx, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived.Add(1) }))
	backlog := numbered("backlog", accounts)
	db.addAccounts(ctx, url, hooks, backlog...)
	db.addEvents(ctx, each, backlog...)
	db.addDeliveries(ctx, backlog...)
	release := db.holdLock(ctx, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM accounts")
	defer release()
	countCommits := func() int {
		return db.count(ctx, "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
	}
	before, began := countCommits(), time.Now()
	s := f.openWith(ctx, db, db.url(), allowLoopback)
	r := s.receive(ctx, nil)
	others := s.timeEvents(ctx, r, 200*time.Millisecond, 0, func() {
		must.Await(ctx, all/leastRate*time.Second, func() {
			now := arrived.Load()
			must.Hold(now >= all, "%d of %d deliveries have arrived", now, all)
		})
	})
	took := time.Since(began)
	db.awaitPending(ctx, 0, 0, backlog...)
	commits := countCommits() - before
	figures := fmt.Sprintf("%d deliveries in %s, %.0f a second, with %d transactions, beside an old snapshot; another account: %s", all, round(took), all/took.Seconds(), commits, others)
	must.Hold(all/took.Seconds() >= leastRate && commits <= mostCommits, "%s", figures)
	return figures
}

// workersKilled is row 40: a service and a worker deliver webhooks. Either of them and
// PostgreSQL are killed again and again. Then the worker is stopped for longer than it
// takes until the service takes over its jobs. At the end
//
//   - every event has reached each receiver that wants it, signed
//   - no delivery is pending or has failed, except to the receiver that redirects
//   - every message is delivered, with one event of that
func workersKilled(ctx context.Context, f *fixture) string {
	const kills, pause, stopped = 8, 700 * time.Millisecond, 20 * time.Second
	s := f.open(ctx, allowLoopback)
	worker := f.run(ctx, "worker", s.db.url(), allowLoopback)
	receivers := s.receiveBadly(ctx)
	repeating, stopRepeating := context.WithCancel(ctx)
	defer stopRepeating()
	go s.repeatSoon(repeating)
	stores := spread(4, storesWithReceiver)
	w := startLoad(ctx, len(stores), func(number int) (response, error) { return s.makeEvent(ctx, s.api.store(stores[number]), number) })
	s.killInTurn(ctx, kills, pause, s.api, worker)
	s.awaitWorking(ctx, 5*time.Second)
	worker.process.Signal(syscall.SIGSTOP) // it does not notice that time passes
	sleep.For(ctx, stopped)
	worker.process.Signal(syscall.SIGCONT)
	sleep.For(ctx, time.Second)
	l := w.finish()
	l.wantOnly(noResponse, http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusServiceUnavailable)
	drained := s.awaitDelivered(ctx, 30*time.Second, receivers.redirecting.id)
	s.checkDeliveries(ctx, receivers)
	s.checkMessages(ctx)
	requests, events := receivers.total()
	return fmt.Sprintf("%d kills, stopped for %s: %s; %d events at %d receivers, 0 lost, %d sent again; all ended after %s; %s",
		kills, stopped, l.summary(), events, len(receivers.all), requests-events, round(drained), s.checkStores(ctx))
}

// storesWithReceiver is the number of small stores that have a receiver.
const storesWithReceiver = 10

// badReceivers are receivers of all events, some of which misbehave.
type badReceivers struct {
	all         []*receiver
	redirecting *receiver // gets only pet.updated
	resetting   *receiver
}

// receiveBadly starts receivers: four that take 20 ms, one that sends an endless body, one
// that resets a third of its connections, and one that redirects. Some small stores have one
// that responds at once. No event is reset so often that its delivery fails.
func (s *deployment) receiveBadly(ctx context.Context) (b badReceivers) {
	const healthy, busy, third, resets = 4, 20 * time.Millisecond, 3, 5
	add := func(respond http.HandlerFunc, types ...string) *receiver {
		r := s.receive(ctx, respond, types...)
		b.all = append(b.all, r)
		return r
	}
	for range healthy {
		add(func(http.ResponseWriter, *http.Request) { sleep.For(ctx, busy) })
	}
	add(func(w http.ResponseWriter, _ *http.Request) {
		for block := make([]byte, 32<<10); ; {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	b.resetting = add(func(_ http.ResponseWriter, r *http.Request) {
		if rand.N(third) == 0 && b.resetting.count(r.Header.Get("Webhook-Id")) <= resets {
			panic(http.ErrAbortHandler)
		}
	})
	b.redirecting = add(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, b.all[0].url, http.StatusTemporaryRedirect)
	}, "pet.updated")
	for store := range storesWithReceiver {
		other := *s
		other.client = s.api.store(1 + store)
		b.all = append(b.all, other.receive(ctx, nil))
	}
	return b
}

// total returns the numbers of requests and of different events of all receivers that accept
// every event at once.
func (b badReceivers) total() (requests, events int) {
	for _, r := range b.all {
		if r != b.redirecting && r != b.resetting {
			some, different := r.received()
			requests, events = requests+some, events+different
		}
	}
	return requests, events
}

// makeEvent changes a store, so that there is an event.
func (s *deployment) makeEvent(ctx context.Context, c *client, number int) (response, error) {
	sleep.For(ctx, 50*time.Millisecond)
	switch rand.N(10) {
	case 0:
		return c.do(ctx, "PATCH", fmt.Sprintf("/pets/%d", 1+number), fmt.Sprintf(`{"name": "Pet %d"}`, rand.Uint64()))
	case 1, 2, 3:
		return c.do(ctx, "POST", "/messages", `{"message": "hello"}`)
	}
	return c.order(ctx, 1+number)
}

// repeatSoon makes deliveries due that wait for their next attempt, which would take hours.
// Failures do not matter, because PostgreSQL is killed meanwhile.
func (s *deployment) repeatSoon(ctx context.Context) {
	for ; ctx.Err() == nil; sleep.For(ctx, 300*time.Millisecond) {
		_ = must.Attempt(func() {
			s.db.exec(ctx, "UPDATE webhook_deliveries SET next_attempt_at = statement_timestamp() WHERE status = 'pending' AND next_attempt_at > statement_timestamp() + interval '1 second'")
		})
	}
}

// awaitDelivered waits until no delivery is pending, except those to some webhooks, and all
// events are dispatched. It returns how long that took. One statement counts both, because a
// dispatch makes deliveries pending, and the end of the last one may be an event.
func (s *deployment) awaitDelivered(ctx context.Context, limit time.Duration, except ...string) time.Duration {
	return must.Await(ctx, limit, func() {
		var pending, behind int
		s.db.read(ctx, `
			SELECT (SELECT count(*) FROM webhook_deliveries WHERE status = 'pending' AND webhook_id <> ALL (coalesce($1::text[], '{}'))),
			       (SELECT count(*) FROM webhooks JOIN account_state USING (account_id) WHERE after_sequence < last_sequence)`, []any{except}, &pending, &behind)
		must.Hold(pending+behind == 0, "%d deliveries are pending, and %d webhooks do not have the newest events", pending, behind)
	})
}

// checkDeliveries fails the row unless each receiver has got all events that it wants,
// except the receiver that redirects. The server pauses after its failures.
func (s *deployment) checkDeliveries(ctx context.Context, b badReceivers) {
	for i, r := range b.all {
		var wanted []string
		s.db.read(ctx, `
			SELECT array_agg('evt_' || lpad(to_hex(account_id), 12, '0') || lpad(to_hex(sequence), 12, '0') || lpad(to_hex(nonce), 8, '0'))
			FROM events
			JOIN webhooks USING (account_id)
			WHERE id = $1 AND events.created_at > webhooks.created_at AND ('*' = ANY (types) OR type = ANY (types))`,
			[]any{r.id}, &wanted)
		var delivered, others int
		s.db.read(ctx, "SELECT count(*) FILTER (WHERE status = 'delivered'), count(*) FILTER (WHERE status <> 'delivered') FROM webhook_deliveries WHERE webhook_id = $1",
			[]any{r.id}, &delivered, &others)
		if r == b.redirecting {
			delivered, others = others, delivered
		} else {
			r.has(wanted)
		}
		must.Hold(delivered == len(wanted) && others == 0, "webhook %d: of %d events %d have the right status, and %d do not", i, len(wanted), delivered, others)
	}
}

// checkMessages fails the row unless every message is delivered and has one event of that.
func (s *deployment) checkMessages(ctx context.Context) {
	var statuses []string
	s.db.read(ctx, `
		SELECT array_agg(DISTINCT status || ', ' || (SELECT count(*) FROM events WHERE subject = '/messages/' || id AND type <> 'message.queued') || ' events')
		FROM messages`, nil, &statuses)
	must.Hold(slices.Equal(statuses, []string{"delivered, 1 events"}), "messages are %s, want all delivered with 1 event", strings.Join(statuses, "; "))
}

// allowLoopback lets webhooks have http URLs on this machine.
const allowLoopback = "PETSTORE_WEBHOOK_ALLOW=127.0.0.0/8"

// receiver is the endpoint of a webhook. It verifies the signature of every request, and
// counts the requests of each event.
type receiver struct {
	id, url string
	respond http.HandlerFunc // nil: 204 at once

	mu       sync.Mutex
	key      []byte
	requests map[string]int // by the id of the event
	delays   durations      // between the time of an event and its first request
	err      error          // a request that is not valid
}

// receive starts a receiver, and creates a webhook for it. Without types it gets all events.
func (s *deployment) receive(ctx context.Context, respond http.HandlerFunc, types ...string) *receiver {
	r := &receiver{respond: respond, requests: map[string]int{}}
	r.url = s.listen(ctx, r)
	if len(types) == 0 {
		types = []string{"*"}
	}
	body := must.Get(json.Marshal(map[string]any{"url": r.url, "types": types}))
	webhook := decode[struct{ ID, Secret string }](s.want(ctx, http.StatusCreated, "POST", "/webhooks", string(body)))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.id, r.key = webhook.ID, must.Get(base64.StdEncoding.DecodeString(strings.TrimPrefix(webhook.Secret, "whsec_")))
	return r
}

// listen starts an HTTP server on a free port, which ends with the row. It returns its URL.
func (f *fixture) listen(ctx context.Context, handler http.Handler) string {
	url, stop := run.Serve(ctx, handler)
	f.cleanup(stop)
	return url
}

// listenSlow starts an HTTP server that responds after a time.
func (f *fixture) listenSlow(ctx context.Context, wait time.Duration) string {
	return f.listen(ctx, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // then the server notices that the client disconnects
		sleep.For(r.Context(), wait)
	}))
}

// ServeHTTP implements [http.Handler].
func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return // the sender was killed
	}
	r.arrived(request.Header, body)
	if r.respond == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	r.respond(w, request)
}

// arrived records a request.
func (r *receiver) arrived(header http.Header, body []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id, now := header.Get("Webhook-Id"), time.Now()
	var e feedEvent
	err := errors.Join(verifyWebhook(r.key, header, body), json.Unmarshal(body, &e))
	if err == nil && e.ID != id {
		err = fmt.Errorf("the request of event %s has the webhook-id %s", e.ID, id)
	}
	if err != nil {
		r.err = err
		return
	}
	if r.requests[id]++; r.requests[id] == 1 {
		r.delays = append(r.delays, now.Sub(e.Timestamp))
	}
}

// verifyWebhook checks the signature of a request as the Standard Webhooks specification
// says.
func verifyWebhook(key []byte, header http.Header, body []byte) error {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", header.Get("Webhook-Id"), header.Get("Webhook-Timestamp"), body)
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	if !slices.Contains(strings.Fields(header.Get("Webhook-Signature")), want) {
		return fmt.Errorf("the signature of event %s is wrong: %s, want %s", header.Get("Webhook-Id"), header.Get("Webhook-Signature"), want)
	}
	return nil
}

// received returns the number of requests and the number of different events.
func (r *receiver) received() (requests, events int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, count := range r.requests {
		requests += count
	}
	return requests, len(r.requests)
}

// count returns the number of requests of an event.
func (r *receiver) count(event string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests[event]
}

// slowest returns the delays of the first requests: the p99 and the longest.
func (r *receiver) slowest() (p99, longest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.delays.p99(), slices.Max(r.delays)
}

// has fails the row unless the receiver has got all these events, in valid requests.
func (r *receiver) has(events []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	missing := slices.DeleteFunc(slices.Clone(events), func(id string) bool { return r.requests[id] > 0 })
	must.Hold(len(missing) == 0, "%d of %d events have not reached the receiver of %s, for example %s", len(missing), len(events), r.id, strings.Join(missing[:min(1, len(missing))], ""))
	must.OK(r.err)
}
