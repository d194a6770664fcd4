package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"petstore/internal/tools/must"
)

// workersKilled is row 40: a service and a worker deliver webhooks. Either of them and
// PostgreSQL are killed again and again. Then the worker is stopped for longer than it
// takes until the service takes over its jobs. At the end
//
//   - every event has reached each receiver that wants it, signed
//   - no delivery is pending or has failed, except to the receiver that redirects
//   - every message is delivered, with one event of that
//   - no attempt is recorded that no receiver has seen, or twice
func workersKilled(ctx context.Context, f *fixture) string {
	const kills, pause, stopped = 8, 700 * time.Millisecond, 20 * time.Second
	s := f.open(ctx, allowLoopback)
	worker := f.run(ctx, "worker", f.program.binary, s.db.url(), allowLoopback)
	receivers := s.receiveBadly(ctx)
	repeating, stopRepeating := context.WithCancel(ctx)
	defer stopRepeating()
	go s.repeatSoon(repeating)
	stores := spread(4, storesWithReceiver)
	w := startLoad(ctx, len(stores), func(number int) (response, error) { return s.makeEvent(ctx, s.api.store(stores[number]), number) })
	s.killInTurn(ctx, kills, pause, s.api, worker)
	s.awaitWorking(ctx, 5*time.Second)
	worker.process.Signal(syscall.SIGSTOP) // it does not notice that time passes
	sleep(ctx, stopped)
	worker.process.Signal(syscall.SIGCONT)
	sleep(ctx, time.Second)
	l := w.finish()
	l.wantOnly(noResponse, http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusServiceUnavailable)
	drained := s.awaitDelivered(ctx, 30*time.Second, receivers.redirecting.id)
	s.checkDeliveries(ctx, receivers)
	s.checkAttempts(ctx, receivers)
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
		add(func(http.ResponseWriter, *http.Request) { sleep(ctx, busy) })
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
	sleep(ctx, 50*time.Millisecond)
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
	for ; ctx.Err() == nil; sleep(ctx, 300*time.Millisecond) {
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

// checkAttempts fails the row if attempts are recorded twice, or more than the receivers have
// seen.
func (s *deployment) checkAttempts(ctx context.Context, b badReceivers) {
	for i, r := range b.all {
		var texts []string
		s.db.read(ctx, `
			SELECT array_agg(event_id || ' ' || jsonb_array_length(attempts) || ' ' || (SELECT count(DISTINCT a->>'at') FROM jsonb_array_elements(attempts) AS a))
			FROM webhook_deliveries
			WHERE webhook_id = $1 AND (status <> 'pending' OR attempts <> '[]')`, []any{r.id}, &texts)
		for _, text := range texts {
			var id string
			var recorded, different int
			must.Get(fmt.Sscan(text, &id, &recorded, &different))
			seen := r.requests[id]
			must.Hold(recorded <= seen && recorded <= different && recorded >= 1,
				"webhook %d has %d attempts of event %s at %d times, but its receiver has seen %d", i, recorded, id, different, seen)
		}
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
