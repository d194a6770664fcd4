package delivery_test

import (
	"net/http"
	"testing"
	"time"

	"petstore/db"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

const statusOf = "SELECT status FROM messages WHERE id = $1"

// TestTwoWebhooksAcceptAMessage at once: the second transaction waits for the first, and sees that its
// webhook was the last one. Otherwise the message would stay queued.
func TestTwoWebhooksAcceptAMessage(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	first, second := f.webhook(receive(t, nil).url, "message.queued"), f.webhook(receive(t, nil).url, "message.queued")
	f.settled()
	number := f.queue(1, 0)
	f.deliver(first, "pending", number, number)
	f.exec("UPDATE webhook_deliveries SET next_attempt_at = now() + interval '1 hour'") // its attempt runs
	accepted := pgtest.Begin(t, f.owner.Pool)
	pgtest.Exec(t, accepted, "UPDATE webhook_deliveries SET status = 'delivered', next_attempt_at = NULL WHERE account_id = $1", f.account)
	pgtest.Exec(t, accepted, "SELECT FROM messages WHERE account_id = $1 FOR NO KEY UPDATE", f.account)
	f.deliver(second, "pending", number, number)
	f.work()
	need.Within(t, 30*time.Second, "the second result waits for the first", func() bool {
		return need.Value(pgtest.LockWaiters(t.Context(), f.owner.Pool))(t) > 0
	})
	need.OK(t, accepted.Commit(t.Context()))
	await(f, "delivered 1", byStatus("messages"))
}

// TestMessageFails: a message has failed when one webhook has not accepted it in ten
// attempts, or when none has subscribed for 72 hours.
func TestMessageFails(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	to := reject(t, http.StatusBadGateway)
	other := receive(t, nil)
	f.webhook(to.url, "message.queued")
	f.webhook(other.url, "message.failed")
	old := f.of(t, "alone").message()
	f.exec("UPDATE messages SET created_at = now() - interval '73 hours'")
	worker := f.work()
	await(f, 0, "SELECT count(*) FROM webhooks WHERE unsettled_after IS NOT NULL") // settling would repeat a failed delivery
	id := f.message()
	worker.Wake(f.account)
	to.await(1)
	await(f, int32(1), "SELECT jsonb_array_length(attempts) FROM webhook_deliveries WHERE type = 'message.queued'")
	f.exec("UPDATE webhook_deliveries SET next_attempt_at = now(), attempts = (SELECT jsonb_agg('{}'::jsonb) FROM generate_series(1, 9)) WHERE type = 'message.queued'")
	await(f, "failed", statusOf, id)
	if got := other.await(1)[0]; got.event.Type != "message.failed" {
		t.Errorf("%s", got.body)
	}
	await(f, "failed", statusOf, old)
}

// TestDisabledWebhookHoldsUpNoMessage: a message that the other webhooks have accepted is
// delivered when the last one is disabled.
func TestDisabledWebhookHoldsUpNoMessage(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	to := receive(t, nil)
	id := f.webhook("http://127.0.0.1:1/closed", "message.queued")
	f.webhook(to.url, "message.queued")
	worker := f.work()
	message := f.message()
	worker.Wake(f.account)
	await(f, 2, "SELECT count(*) FROM webhook_deliveries WHERE jsonb_array_length(attempts) = 1")
	has(f, "queued", statusOf, message)
	need.OK(t, f.queries.WebhookDelete(t.Context(), db.WebhookDeleteParams{AccountID: f.account, ID: id}))
	await(f, "delivered", statusOf, message)
	await(f, true, "SELECT unsettled_after IS NULL FROM webhooks WHERE id = $1", id)
}
