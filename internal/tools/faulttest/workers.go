package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"
)

// workersKilled is row 40: a service and a worker deliver webhooks. Either of them and
// PostgreSQL are killed again and again. Then the worker is stopped for longer than it
// takes until the service takes over its jobs. At the end
//
//   - every event has reached each receiver that wants it, signed
//   - no delivery is pending or has failed, except to the receiver that redirects
//   - every message is delivered, with one event of that
//   - no attempt is recorded that no receiver has seen, or twice
func workersKilled(ctx context.Context, f *fixture) (string, error) {
	const kills, pause, stopped = 8, 700 * time.Millisecond, 20 * time.Second
	db, err := f.startDatabase(ctx, "", nil)
	if err != nil {
		return "", err
	}
	s, err := f.openWith(ctx, db, db.url(), allowLoopback)
	if err != nil {
		return "", err
	}
	worker, err := f.work(ctx, db.url(), allowLoopback)
	if err != nil {
		return "", err
	}
	receivers, err := s.receiveBadly(ctx)
	if err != nil {
		return "", err
	}
	forwarding, stopForwarding := context.WithCancel(ctx)
	defer stopForwarding()
	go s.repeatSoon(forwarding)
	l := startLoad(ctx, 4, func(number int) (response, error) { return s.makeEvent(ctx, number) })
	err = errors.Join(s.killWorkers(ctx, worker, kills, pause), worker.pauseFor(ctx, stopped))
	ledger := l.finish()
	if err := errors.Join(err, ledger.only(noResponse, http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusServiceUnavailable)); err != nil {
		return "", err
	}
	ended := time.Now()
	if err := s.awaitDelivered(ctx, 30*time.Second, receivers.redirecting.id); err != nil {
		return "", err
	}
	drained := time.Since(ended)
	if err := errors.Join(s.checkDeliveries(ctx, receivers), s.checkAttempts(ctx, receivers), s.checkMessages(ctx)); err != nil {
		return "", err
	}
	requests, events := receivers.total()
	return fmt.Sprintf("%d kills, stopped for %s: %s; %d events at %d receivers, 0 lost, %d sent again; all ended after %s",
		kills, stopped, ledger.summary(), events, len(receivers.all), requests-events, round(drained)), nil
}

// badReceivers are receivers of all events, some of which misbehave.
type badReceivers struct {
	all         []*receiver
	redirecting *receiver // gets only pet.updated
	resetting   *receiver
}

// receiveBadly starts receivers: four that take 20 ms, one that sends an endless body, one
// that resets a third of its connections, and one that redirects.
func (s *deployment) receiveBadly(ctx context.Context) (b badReceivers, err error) {
	const healthy, busy, third = 4, 20 * time.Millisecond, 3
	add := func(respond http.HandlerFunc, types ...string) (r *receiver) {
		if err == nil {
			r, err = s.receive(ctx, s.client, respond, types...)
			b.all = append(b.all, r)
		}
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
	b.resetting = add(func(http.ResponseWriter, *http.Request) {
		if rand.N(third) == 0 {
			panic(http.ErrAbortHandler)
		}
	})
	b.redirecting = add(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, b.all[0].url, http.StatusTemporaryRedirect)
	}, "pet.updated")
	return b, err
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

// makeEvent changes the store, so that there is an event.
func (s *deployment) makeEvent(ctx context.Context, number int) (response, error) {
	sleep(ctx, 50*time.Millisecond)
	switch rand.N(10) {
	case 0:
		return s.do(ctx, "PATCH", fmt.Sprintf("/pets/%d", 1+number), fmt.Sprintf(`{"name": "Pet %d"}`, rand.Uint64()))
	case 1, 2, 3:
		return s.do(ctx, "POST", "/messages", `{"message": "hello"}`)
	}
	return s.order(ctx, 1+number)
}

// repeatSoon makes deliveries due that wait for their next attempt, which would take hours.
// Errors do not matter, because PostgreSQL is killed meanwhile.
func (s *deployment) repeatSoon(ctx context.Context) {
	for ctx.Err() == nil {
		_ = s.db.exec(ctx, "UPDATE webhook_deliveries SET next_attempt_at = statement_timestamp() WHERE status = 'pending' AND next_attempt_at > statement_timestamp() + interval '1 second'")
		sleep(ctx, 300*time.Millisecond)
	}
}

// killWorkers kills the service and the worker in turn, and PostgreSQL once, and restarts
// them.
func (s *deployment) killWorkers(ctx context.Context, worker *service, kills int, pause time.Duration) error {
	for kill := range kills {
		sleep(ctx, pause)
		process := []*service{s.api, worker}[kill%2]
		process.kill()
		if kill == kills/2 {
			if err := s.db.signal(syscall.SIGKILL); err != nil {
				return err
			}
			if err := s.db.start(ctx); err != nil {
				return err
			}
		}
		if err := process.start(); err != nil {
			return err
		}
	}
	sleep(ctx, pause)
	_, err := s.awaitWorking(ctx, 5*time.Second)
	return err
}

// pauseFor stops the process for a time, in which it does not notice that time passes.
func (s *service) pauseFor(ctx context.Context, pause time.Duration) error {
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	sleep(ctx, pause)
	if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	sleep(ctx, time.Second)
	return nil
}

// checkDeliveries returns an error unless each receiver has got all events that it wants,
// except the receiver that redirects. The server pauses after its failures.
func (s *deployment) checkDeliveries(ctx context.Context, b badReceivers) error {
	for _, r := range b.all {
		var wanted []string
		if err := s.db.read(ctx, `
			SELECT array_agg('evt_' || lpad(to_hex(account_id), 12, '0') || lpad(to_hex(sequence), 12, '0') || lpad(to_hex(nonce), 8, '0'))
			FROM events
			JOIN webhooks USING (account_id)
			WHERE id = $1 AND events.created_at > webhooks.created_at AND ('*' = ANY (types) OR type = ANY (types))`,
			[]any{r.id}, &wanted); err != nil {
			return err
		}
		if err := r.has(wanted); err != nil && r != b.redirecting {
			return err
		}
		var delivered, failed int
		if err := s.db.read(ctx, "SELECT count(*) FILTER (WHERE status = 'delivered'), count(*) FILTER (WHERE status <> 'delivered') FROM webhook_deliveries WHERE webhook_id = $1",
			[]any{r.id}, &delivered, &failed); err != nil {
			return err
		}
		if r == b.redirecting {
			delivered, failed = failed, delivered
		}
		if delivered != len(wanted) || failed > 0 {
			return fmt.Errorf("webhook %d: of %d events %d have the right status, and %d do not", slices.Index(b.all, r), len(wanted), delivered, failed)
		}
	}
	return nil
}

// checkAttempts returns an error if attempts are recorded twice, or more than the receivers
// have seen.
func (s *deployment) checkAttempts(ctx context.Context, b badReceivers) error {
	for _, r := range b.all {
		var texts []string
		if err := s.db.read(ctx, `
			SELECT array_agg(event_id || ' ' || jsonb_array_length(attempts) || ' ' || (SELECT count(DISTINCT a->>'at') FROM jsonb_array_elements(attempts) AS a))
			FROM webhook_deliveries
			WHERE webhook_id = $1 AND (status <> 'pending' OR attempts <> '[]')`, []any{r.id}, &texts); err != nil {
			return err
		}
		for _, text := range texts {
			var id string
			var recorded, different int
			if _, err := fmt.Sscan(text, &id, &recorded, &different); err != nil {
				return err
			}
			if seen := r.requests[id]; recorded > seen || recorded > different || recorded < 1 {
				return fmt.Errorf("webhook %d has %d attempts of event %s at %d times, but its receiver has seen %d", slices.Index(b.all, r), recorded, id, different, seen)
			}
		}
	}
	return nil
}

// checkMessages returns an error unless every message is delivered and has one event of that.
func (s *deployment) checkMessages(ctx context.Context) error {
	var statuses []string
	if err := s.db.read(ctx, `
		SELECT array_agg(DISTINCT status || ', ' || (SELECT count(*) FROM events WHERE subject = '/messages/' || id AND type <> 'message.queued') || ' events')
		FROM messages`, nil, &statuses); err != nil {
		return err
	}
	if len(statuses) != 1 || statuses[0] != "delivered, 1 events" {
		return fmt.Errorf("messages are %s, want all delivered with 1 event", strings.Join(statuses, "; "))
	}
	return nil
}
