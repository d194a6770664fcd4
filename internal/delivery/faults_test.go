package delivery_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"petstore/db"
	"petstore/internal/admission"
	"petstore/internal/delivery"
	"petstore/internal/event"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
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
		busy := f.of(t, name)
		for range 4 {
			busy.webhook(hang, "pet.created")
		}
		busy.addBacklog(5000)
	}
	f.webhook(to.url)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lock := pgtest.Begin(t, f.owner.Pool)
	pgtest.Exec(t, lock, "LOCK TABLE webhook_deliveries IN SHARE MODE")
	worker := f.work()
	need.OK(t, pgtest.AwaitLockWaiters(ctx, f.owner.Pool, int(admission.Dispatches.Total))) // all turns are taken
	f.emit(event.Reset())
	worker.Wake(f.account)
	need.OK(t, lock.Commit(ctx))
	to.await(1)
	dispatched := read[time.Time](f, "SELECT created_at FROM webhook_deliveries WHERE account_id = $1", f.account)
	if done := read[int64](f, "SELECT count(*) FROM webhook_deliveries WHERE sequence = 5000 AND created_at < $1", dispatched); done > 0 {
		t.Errorf("%d webhooks had a backlog of 5,000 events dispatched before the event of another account", done)
	}
}

// TestLeaseIsRenewed: while a request takes long, no other process takes over.
func TestLeaseIsRenewed(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	release := make(chan struct{})
	to := receive(t, func(http.ResponseWriter, *http.Request) { <-release })
	f.webhook(to.url)
	f.emit(pets(1, 1)...)
	f.work().Wake(f.account)
	to.await(1)
	claimed := read[time.Time](f, "SELECT lease_until FROM webhooks")
	f.work()
	await(f, true, "SELECT lease_until > $1 FROM webhooks", claimed)
	close(release)
	await(f, "delivered", "SELECT status FROM webhook_deliveries")
	await(f, "1", "SELECT coalesce(string_agg(lease::text, ''), '') FROM webhooks WHERE lease_until IS NULL")
	if got := to.count(); got != 1 {
		t.Errorf("%d requests, want 1", got)
	}
}

// TestReleaseSeesDeliveries: a delivery that another process adds while a drain ends is sent
// at once, whether it comes before the release or after it. Nothing looks for deliveries that are due.
// Deliver for a webhook with nothing due, or for one that does not exist, holds up nothing.
func TestReleaseSeesDeliveries(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	to := receive(t, nil)
	id := f.webhook(to.url, "pet.created")
	var workers [2]*delivery.Worker
	for i := range workers {
		workers[i] = delivery.New(f.options())
		need.Background(t, workers[i].RunAsked)
		workers[i].Deliver(f.account, id)
	}
	for i := range 200 {
		f.test(id, i)
		workers[i%2].Deliver(f.account, "wh_00000000000000000000000000000000")
		workers[i%2].Deliver(f.account, id)
		if i%10 == 9 { // the others arrive while drains begin and end
			to.await(i + 1)
		}
	}
}

// TestSlowWebhook: a webhook that succeeds slowly has its place among those that fail.
func TestSlowWebhook(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	release := make(chan struct{})
	var count atomic.Int64
	to := receive(t, func(_ http.ResponseWriter, r *http.Request) {
		if count.Add(1) > 1 {
			<-release
			return
		}
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
	to.await(2)
	if fast, slow := worker.Draining(); fast != 0 || slow != 1 {
		t.Errorf("%d fast and %d slow webhooks, want 0 and 1", fast, slow)
	}
	if read[bool](f, "SELECT failing_since IS NOT NULL FROM webhooks") {
		t.Error("a slow webhook counts as failing")
	}
	close(release)
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
		need.Value(f.queries.WebhookRotate(t.Context(), db.WebhookRotateParams{AccountID: f.account, ID: id, Secret: current, GraceSeconds: 3600}))(t)
	}
	if _, err := (&webhook.Vault{}).Open(webhook.Endpoint{AccountID: f.account, ID: id}, sealed); err == nil {
		t.Fatal("the vault opens the sealed secret")
	}
	rotate(sealed)
	f.emit(pets(1, 1)...)
	f.work().Wake(f.account)
	await(f, true, "SELECT lease = 1 AND lease_until IS NULL FROM webhooks")
	// There is no attempt, and the webhook is healthy.
	has(f, "[] t", `
		SELECT concat(attempts, ' ', failing_since IS NULL) FROM webhook_deliveries JOIN webhooks USING (account_id)`)
	rotate(stored(key))
	f.work() // the first one leaves the webhook to others for a minute
	checkSignature(t, to.await(1)[0], key)
}

// TestClosedAccount: the webhooks of a closed account get no requests.
func TestClosedAccount(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	to, other := receive(t, nil), receive(t, nil)
	id := f.webhook(to.url)
	f.emit(pets(1, 1)...)
	worker, stop := f.start(f.options())
	worker.Wake(f.account)
	await(f, "delivered", "SELECT coalesce((SELECT status FROM webhook_deliveries), '')")
	stop()
	f.exec("UPDATE account_state SET closed = true")
	f.exec("UPDATE webhook_deliveries SET status = 'pending', next_attempt_at = now()")
	open := f.of(t, "open")
	open.webhook(other.url)
	open.emit(pets(1, 1)...)
	worker = f.work()
	worker.Deliver(f.account, id)
	other.await(1)
	open.emit(pets(2, 2)...)
	other.await(2)
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
	worker := delivery.New(options)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		worker.Run(ctx)
	}()
	worker.Wake(f.account)
	to.await(4)
	cancel()
	close(release)
	<-stopped
	if got := read[int64](f, "SELECT count(*) FROM webhook_deliveries WHERE status = 'delivered'"); got != 4 || to.count() != 4 {
		t.Errorf("%d of %d requests were recorded, want the 4 in flight", got, to.count())
	}
}
