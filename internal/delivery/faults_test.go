package delivery_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"petstore/db"
	"petstore/internal/event"
	"petstore/internal/webhook"
)

// addBacklog adds events to the feed that no worker has seen.
func (f *feed) addBacklog(count int64) {
	f.t.Helper()
	f.exec(`WITH ended AS (UPDATE account_state SET last_sequence = last_sequence + $2 WHERE account_id = $1 RETURNING last_sequence)
		INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data)
		SELECT $1, last_sequence - $2 + i, now(), i, 'pet.created', '/pets/1', '{}' FROM ended, generate_series(1, $2::bigint) AS i`, f.account, count)
}

// TestAccountsTakeTurns: the backlogs of some accounts do not hold up the event of another.
func TestAccountsTakeTurns(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	hang, to := hanging(t), receive(t, nil)
	for _, name := range []string{"one", "two", "three"} {
		busy := f.of(name)
		for range 4 {
			busy.webhook(hang, "pet.created")
		}
		busy.addBacklog(5000)
	}
	f.webhook(to.url)
	worker := f.work()
	await(f, true, "SELECT bool_and(after_sequence > 0) FROM (SELECT max(after_sequence) AS after_sequence FROM webhooks WHERE account_id <> $1 GROUP BY account_id) AS begun", f.account)
	f.emit(event.Reset())
	worker.Wake(f.account)
	to.await(1)
	if done := read[int64](f, "SELECT count(*) FROM webhooks WHERE after_sequence = 5000"); done > 0 {
		t.Errorf("%d webhooks had a backlog of 5,000 events dispatched before the event of another account", done)
	}
}

// TestDeadProcess: another process ends the job of a process that has died, and delivers.
func TestDeadProcess(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	to := receive(t, nil)
	f.webhook(to.url)
	f.emit(pets(1, 1)...)
	worker, stop := f.start(f.options())
	worker.Wake(f.account)
	await(f, int64(1), "SELECT count(*) FROM river_job WHERE state = 'completed'")
	stop()
	f.exec("UPDATE river_job SET state = 'running', finalized_at = NULL, attempted_at = now() - interval '14 seconds'")
	f.emit(pets(2, 2)...)
	f.work()
	to.await(2)
}

// TestJobTakenForDead: a process that lives finds that its job was given to another. The
// attempts of both count as one.
func TestJobTakenForDead(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	release := make(chan struct{})
	to := receive(t, func(w http.ResponseWriter, _ *http.Request) {
		<-release
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	f.webhook(to.url)
	f.emit(pets(1, 4)...)
	f.work().Wake(f.account)
	to.await(4)
	f.exec("UPDATE river_job SET state = 'discarded', finalized_at = now() WHERE state = 'running'")
	to.await(8)
	close(release)
	await(f, int64(0), "SELECT count(*) FROM river_job WHERE finalized_at IS NULL")
	if got := read[string](f, "SELECT string_agg(jsonb_array_length(attempts)::text, ' ') FROM webhook_deliveries"); got != "1 1 1 1" {
		t.Errorf("%s attempts were recorded of 4 deliveries, want 1 of each", got)
	}
	if got := to.count(); got != 8 {
		t.Errorf("%d requests, want 4 of each job", got)
	}
}

// TestJobsAreDue: the clock of a process does not decide when a job begins.
func TestJobsAreDue(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	to := receive(t, nil)
	f.webhook(to.url)
	f.emit(pets(1, 1)...)
	f.work().Wake(f.account)
	to.await(1)
	if later := read[int64](f, "SELECT count(*) FROM river_job WHERE scheduled_at > 'epoch'"); later > 0 {
		t.Errorf("%d jobs are due by the clock of their process", later)
	}
}

// TestSlowWebhook: a webhook that succeeds slowly has its place among those that fail.
func TestSlowWebhook(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	to := receive(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(600 * time.Millisecond):
		case <-r.Context().Done():
		}
	})
	id := f.webhook(to.url)
	f.emit(pets(1, 1)...)
	worker := f.work()
	worker.Wake(f.account)
	await(f, true, "SELECT coalesce(slow_until > now() + interval '9 minutes', false) FROM webhooks WHERE id = $1", id)
	f.emit(pets(2, 2)...)
	worker.Wake(f.account)
	await(f, "webhooks webhooks_slow", "SELECT string_agg(queue, ' ' ORDER BY id) FROM river_job")
	if read[bool](f, "SELECT failing_since IS NOT NULL FROM webhooks") {
		t.Error("a slow webhook counts as failing")
	}
}

// TestQuietWebhook: a webhook that failed long ago, and had no events since, gets all
// attempts for the next one.
func TestQuietWebhook(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	to := receive(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	f.webhook(to.url)
	f.exec("UPDATE webhooks SET failing_since = now() - interval '20 days', failed_at = now() - interval '17 days'")
	f.emit(pets(1, 1)...)
	f.work().Wake(f.account)
	await(f, true, "SELECT failed_at > now() - interval '1 hour' FROM webhooks")
	if got := read[string](f, "SELECT status || ' ' || (failing_since = failed_at) FROM webhooks"); got != "enabled true" {
		t.Errorf("the webhook is %s, want it enabled and failing since now", got)
	}
}

// TestUnreadableSecrets: without the key of the previous secret, the current one signs.
// Without the key of that, deliveries wait for a process that has it.
func TestUnreadableSecrets(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	to := receive(t, nil)
	id := f.webhook(to.url)
	sealed := append([]byte{1}, strings.Repeat("x", 100)...) // with a key that the worker does not have
	rotate := func(current []byte) {
		t.Helper()
		if _, err := f.queries.WebhookRotate(t.Context(), db.WebhookRotateParams{AccountID: f.account, ID: id, Secret: current, GraceSeconds: 3600}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := (&webhook.Vault{}).Open(webhook.Endpoint{AccountID: f.account, ID: id}, sealed); err == nil {
		t.Fatal("the vault opens the sealed secret")
	}
	rotate(sealed)
	worker := f.work()
	f.emit(pets(1, 1)...)
	worker.Wake(f.account)
	await(f, true, "SELECT coalesce((SELECT next_attempt_at > now() + interval '30 seconds' FROM webhook_deliveries), false)")
	if got := read[string](f, "SELECT concat(attempts, ' ', failing_since IS NULL) FROM webhook_deliveries, webhooks"); got != "[] t" {
		t.Errorf("the attempts and the health of the webhook are %s, want none", got)
	}
	await(f, int64(0), "SELECT count(*) FROM river_job WHERE finalized_at IS NULL") // else it may have read the secret
	rotate(stored(key))
	f.exec("UPDATE webhook_deliveries SET next_attempt_at = now()")
	checkSignature(t, to.await(1)[0], key)
}

// TestClosedAccount: the webhooks of a closed account get no requests.
func TestClosedAccount(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	to, other := receive(t, nil), receive(t, nil)
	f.webhook(to.url)
	f.emit(pets(1, 1)...)
	worker, stop := f.start(f.options())
	worker.Wake(f.account)
	await(f, "delivered", "SELECT coalesce((SELECT status FROM webhook_deliveries), '')")
	stop()
	f.exec("UPDATE account_state SET closed = true")
	f.exec("UPDATE webhook_deliveries SET status = 'pending', next_attempt_at = now()")
	f.exec("UPDATE river_job SET state = 'available', finalized_at = NULL")
	open := f.of("open")
	open.webhook(other.url)
	open.emit(pets(1, 1)...)
	f.work()
	other.await(1)
	await(f, int64(0), "SELECT count(*) FROM river_job WHERE finalized_at IS NULL")
	if count := to.count(); count > 1 {
		t.Errorf("a webhook of a closed account got %d requests, want 1 from before", count)
	}
}

// TestGrace: a worker that stops waits for its requests in flight, and begins no others.
func TestGrace(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	release := make(chan struct{})
	to := receive(t, func(http.ResponseWriter, *http.Request) { <-release })
	f.webhook(to.url)
	f.emit(pets(1, 20)...)
	options := f.options()
	options.Grace = time.Minute
	worker, stop := f.start(options)
	worker.Wake(f.account)
	to.await(4)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	await(f, false, "SELECT EXISTS (SELECT FROM river_leader WHERE expires_at > now())") // the worker is stopping
	close(release)
	<-stopped
	if got := read[int64](f, "SELECT count(*) FROM webhook_deliveries WHERE status = 'delivered'"); got != 4 || to.count() != 4 {
		t.Errorf("%d of %d requests were recorded, want the 4 in flight", got, to.count())
	}
}

// TestLockedWebhook: a webhook that somebody has locked does not hold up the others, and
// gets its events when it is unlocked.
func TestLockedWebhook(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	to, other := receive(t, nil), receive(t, nil)
	id := f.webhook(to.url)
	f.webhook(other.url)
	f.work()
	holder, err := f.owner.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it may have ended
	if _, err := holder.Exec(t.Context(), "SELECT FROM webhooks WHERE id = $1 FOR UPDATE", id); err != nil {
		t.Fatal(err)
	}
	f.emit(pets(1, 3)...)
	other.await(3)
	if got := to.count(); got > 0 {
		t.Errorf("%d requests to a locked webhook", got)
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	to.await(3)
}
