package delivery_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"petstore/db"
	"petstore/internal/delivery"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
	"petstore/internal/webhook"
)

// many is a number of messages that takes several steps.
const many = 3*delivery.SettlePage + 7

// queue queues messages from some time ago, with their events, and returns the number of
// the first event.
func (f *feed) queue(count int, age time.Duration) (first int64) {
	f.t.Helper()
	first = read[int64](f, "SELECT last_sequence + 1 FROM account_state WHERE account_id = $1", f.account)
	prefix := fmt.Sprintf("msg_%012x7000", time.Now().Add(-age).UnixMilli())
	f.exec("INSERT INTO messages (account_id, id, message, created_at) SELECT $1, $2::text || lpad(to_hex($3::bigint + n), 16, '0'), 'hello', $5 FROM generate_series(0, $4::int - 1) AS n", f.account, prefix, first, count, time.Now().Add(-age))
	f.exec(`
		INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data)
		SELECT $1, $3::bigint + n, now(), n, 'message.queued', '/messages/' || $2::text || lpad(to_hex($3::bigint + n), 16, '0'), '{}'
		FROM generate_series(0, $4::int - 1) AS n`, f.account, prefix, first, count)
	f.exec("UPDATE account_state SET last_sequence = last_sequence + $2, last_nonce = $2 - 1 WHERE account_id = $1", f.account, count)
	return first
}

// deliver makes deliveries to a webhook of messages whose events have some numbers, and
// moves the webhook after the last one.
func (f *feed) deliver(webhook, status string, first, last int64) {
	f.t.Helper()
	f.exec(`
		INSERT INTO webhook_deliveries (account_id, id, webhook_id, event_id, sequence, type, status, next_attempt_at)
		SELECT e.account_id, 'dlv_' || md5($2 || e.sequence || $3), $2, 'evt_' || lpad(to_hex(e.account_id), 12, '0') || lpad(to_hex(e.sequence), 12, '0') || lpad(to_hex(e.nonce), 8, '0'), e.sequence, e.type,
		       $3, CASE WHEN $3 = 'pending' THEN now() END
		FROM events AS e
		WHERE e.account_id = $1 AND e.sequence BETWEEN $4 AND $5`, f.account, webhook, status, first, last)
	f.exec("UPDATE webhooks SET after_sequence = greatest(after_sequence, $3) WHERE account_id = $1 AND id = $2", f.account, webhook, last)
}

// idleWorker returns a worker that does not run.
func (f *feed) idleWorker() *delivery.Worker {
	f.t.Helper()
	return delivery.New(f.options())
}

// settle lets a webhook take all its steps, and returns how many.
func (f *feed) settle(worker *delivery.Worker, webhook string) (steps int) {
	f.t.Helper()
	for more := true; more; steps++ {
		more = need.Value(worker.Settle(f.t.Context(), f.account, webhook))(f.t)
	}
	return steps
}

// settled notes that webhooks have been settled.
func (f *feed) settled() { f.t.Helper(); f.exec("UPDATE webhooks SET unsettled_after = NULL") }

// deleted creates deleted webhooks to which no message is adapted yet.
func (f *feed) deleted(count int) {
	f.t.Helper()
	f.exec(`
		INSERT INTO webhooks (account_id, id, url, types, secret, after_sequence, unsettled_after, status, disabled_reason, deleted_at)
		SELECT $1, 'wh_' || md5(n::text), 'http://127.0.0.1:1/', '{*}', $2, 0, '', 'disabled', 'manual', now() FROM generate_series(1, $3::int) AS n`, f.account, stored(key), count)
}

func (f *feed) change(webhook, status string, types ...string) {
	f.t.Helper()
	reason := new("manual")
	if status == "enabled" {
		reason = nil
	}
	url := read[string](f, "SELECT url FROM webhooks WHERE id = $1", webhook)
	need.Value(f.queries.WebhookUpdate(f.t.Context(), db.WebhookUpdateParams{
		AccountID: f.account, ID: webhook, URL: url, Types: types, Status: status, DisabledReason: reason,
	}))(f.t)
}

// statuses counts the messages by status.
func (f *feed) statuses() string {
	f.t.Helper()
	return read[string](f, byStatus("messages WHERE account_id = $1"), f.account)
}

// byStatus is a query that counts the rows of a table by status.
func byStatus(table string) string {
	return `
		SELECT coalesce(string_agg(status || ' ' || count, ', ' ORDER BY status), '')
		FROM (SELECT status, count(*) FROM ` + table + ` GROUP BY status) AS counted`
}

// TestMessagesWaitForAWebhook: a webhook that is created gets all messages that wait, each one
// once, and no older event of another type.
func TestMessagesWaitForAWebhook(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	f.emit(pets(1, 3)...)
	f.queue(many, time.Hour)
	f.work()
	f.webhook(receive(t, nil).url, "message.queued", "pet.created")
	await(f, many, "SELECT count(*) FROM messages WHERE status = 'delivered'")
	has(f, many, "SELECT count(DISTINCT sequence) FROM webhook_deliveries WHERE status = 'delivered' AND type = 'message.queued'")
	has(f, many, "SELECT count(*) FROM webhook_deliveries")
	await(f, true, "SELECT unsettled_after IS NULL FROM webhooks")
}

// TestMessagesWaitForABacklog: a new webhook gets the messages that wait only while the account has
// few pending deliveries. Those of a disabled webhook do not count, unless it is deleted. The
// worker does not look at a long backlog all the time.
func TestMessagesWaitForABacklog(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	var looks atomic.Int64
	f.db = pgtest.Open(t, f.owner.URL, delivery.Connections, pgtest.Statements(func(sql string, _ []any) {
		if strings.Contains(sql, "name: SettleBacklog ") {
			looks.Add(1)
		}
	}))
	f.queue(2, time.Hour)
	busy, fresh := f.webhook("http://127.0.0.1:1/", "pet.created"), f.webhook("http://127.0.0.1:1/", "message.queued")
	f.exec("ALTER TABLE webhook_deliveries DROP CONSTRAINT webhook_deliveries_webhook_id_fkey, DROP CONSTRAINT webhook_deliveries_id_check") // for speed
	f.exec("DROP INDEX webhook_deliveries_status_idx")
	f.exec(`
		INSERT INTO webhook_deliveries (account_id, id, webhook_id, event_id, sequence, type, next_attempt_at)
		SELECT $1, 'dlv_' || n, $2, 'evt_00000000000000000000000000000000', n, 'pet.created', now() + interval '1 hour' FROM generate_series(1, $3::int) AS n`, f.account, busy, webhook.MaxBacklog+1)
	worker := f.idleWorker()
	for _, step := range []struct {
		change string
		want   int
	}{
		{"status = 'enabled'", 0},
		{"status = 'disabled', disabled_reason = 'manual', deleted_at = now()", 0},
		{"deleted_at = NULL", 2},
		{"status = 'enabled', disabled_reason = NULL", 2}, // the webhook already has all
	} {
		f.exec("UPDATE webhooks SET "+step.change+" WHERE id = $1", busy)
		f.exec("UPDATE webhooks SET unsettled_after = '' WHERE id = $1", fresh)
		f.settle(worker, fresh)
		got := read[int](f, "SELECT count(*) FROM webhook_deliveries WHERE webhook_id = $1", fresh)
		if waits := read[bool](f, "SELECT unsettled_after = '' IS TRUE FROM webhooks WHERE id = $1", fresh); got != step.want || waits != (got == 0) {
			t.Errorf("%s: %d deliveries, want %d; the messages wait for the webhook: %t", step.change, got, step.want, waits)
		}
	}
	looks.Store(0)
	next := f.webhook("http://127.0.0.1:1/", "message.queued")
	f.work()
	for range 4 { // sweeps
		f.exec("UPDATE webhooks SET unsettled_after = '' WHERE id = $1", busy)
		await(f, true, "SELECT unsettled_after IS NULL FROM webhooks WHERE id = $1", busy)
	}
	if n := looks.Load(); n != 1 {
		t.Errorf("%d looks at the backlog", n)
	}
	f.exec("DELETE FROM webhook_deliveries WHERE id IN ('dlv_1', 'dlv_2', 'dlv_3')") // the deliveries of messages count too
	f.settle(f.idleWorker(), next)
	has(f, 2, "SELECT count(*) FROM webhook_deliveries WHERE webhook_id = $1", next)
}

// TestManyMessagesWithoutAWebhook: when a webhook no longer subscribes, the messages are
// delivered that all others have accepted.
func TestManyMessagesWithoutAWebhook(t *testing.T) {
	t.Parallel()
	all := newFeed(t)
	worker := all.idleWorker()
	for name, change := range map[string]func(*feed, string){
		"disabled":     func(f *feed, id string) { f.change(id, "disabled", "message.queued") },
		"unsubscribed": func(f *feed, id string) { f.change(id, "enabled", "pet.created") },
		"deleted": func(f *feed, id string) {
			need.OK(f.t, f.queries.WebhookDelete(f.t.Context(), db.WebhookDeleteParams{AccountID: f.account, ID: id}))
		},
	} {
		f := all.of(t, name)
		leaving, staying := f.webhook("http://127.0.0.1:1/", "message.queued"), f.webhook("http://127.0.0.1:1/", "*")
		f.settled()
		first := f.queue(many, time.Hour)
		last := first + many - 1
		f.deliver(leaving, "pending", first, last)
		f.deliver(staying, "delivered", first, last-10)
		f.deliver(staying, "pending", last-9, last)
		change(f, leaving)
		if steps := f.settle(worker, leaving); steps != 4 {
			t.Errorf("%s: %d steps", name, steps)
		}
		if got, want := f.statuses(), fmt.Sprintf("delivered %d, queued 10", many-10); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		const events = "SELECT count(*) FROM events WHERE account_id = $1 AND type = 'message.delivered'"
		if n := read[int](f, events, f.account); n != many-10 {
			t.Errorf("%s: %d events", name, n)
		}
	}
}

// TestDeletedWebhookSettles: the deletion of a webhook starts to adapt messages only if the webhook
// subscribes to them, and ends nothing that has begun.
func TestDeletedWebhookSettles(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	const disabled = "status = 'disabled', disabled_reason = 'manual'"
	for before, want := range map[string]string{
		"unsettled_after = NULL":                             "from the first",
		"unsettled_after = NULL, types = '{message.queued}'": "from the first",
		"unsettled_after = NULL, types = '{pet.created}'":    "none",
		"unsettled_after = 'msg_7', types = '{pet.created}'": "after msg_7",
		"unsettled_after = NULL, " + disabled:                "none",
		"unsettled_after = 'msg_7', " + disabled:             "after msg_7",
	} {
		id := f.webhook("http://127.0.0.1:1/", "*")
		f.exec("UPDATE webhooks SET "+before+" WHERE id = $1", id)
		need.OK(t, f.queries.WebhookDelete(t.Context(), db.WebhookDeleteParams{AccountID: f.account, ID: id}))
		if got := f.unsettled(id); got != want {
			t.Errorf("%s: %s, want %s", before, got, want)
		}
	}
}

// unsettled says which messages are still to be adapted to a webhook.
func (f *feed) unsettled(webhook string) string {
	f.t.Helper()
	return read[string](f, `
		SELECT CASE unsettled_after WHEN '' THEN 'from the first' ELSE coalesce('after ' || unsettled_after, 'none') END
		FROM webhooks WHERE id = $1`, webhook)
}

// TestChangedWebhookSettles: a new or changed webhook starts to adapt messages only if it begins or ends to get
// them. So an account cannot keep the worker busy with changes of other types. A change ends nothing that has begun.
func TestChangedWebhookSettles(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	const subscribes, other, enabled, disabled = "message.queued", "pet.created", "enabled", "disabled"
	for _, test := range []struct{ types, status, toTypes, toStatus, want string }{
		{other, enabled, "pet.updated", enabled, "none"},
		{other, enabled, other, disabled, "none"},
		{other, disabled, other, enabled, "none"},
		{subscribes, enabled, "*", enabled, "none"},
		{subscribes, disabled, other, disabled, "none"},
		{subscribes, enabled, other, enabled, "from the first"},
		{subscribes, enabled, subscribes, disabled, "from the first"},
		{subscribes, disabled, subscribes, enabled, "from the first"},
		{other, enabled, "*", enabled, "from the first"},
		{other, disabled, subscribes, enabled, "from the first"},
	} {
		id := f.webhook("http://127.0.0.1:1/", test.types)
		f.change(id, test.status, test.types)
		for before, want := range map[string]string{"NULL": test.want, "'msg_7'": strings.Replace(test.want, "none", "after msg_7", 1)} {
			f.change(id, test.status, test.types)
			f.exec("UPDATE webhooks SET unsettled_after = "+before+" WHERE id = $1", id)
			f.change(id, test.toStatus, test.toTypes)
			if got := f.unsettled(id); got != want {
				t.Errorf("%+v, before: %s: %s, want %s", test, before, got, want)
			}
		}
	}
	for types, want := range map[string]string{"*": "from the first", subscribes: "from the first", other: "none"} {
		if got := f.unsettled(f.webhook("http://127.0.0.1:1/", types)); got != want {
			t.Errorf("a new webhook for %s: %s, want %s", types, got, want)
		}
	}
}

// TestVotesReadWebhooksOnce: the votes about a page of messages do not read the webhooks again for
// each message.
func TestVotesReadWebhooksOnce(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "its workers count the rows")
	const deleted, messages = 50, 100
	f := newFeed(t)
	f.deleted(deleted)
	f.webhook("http://127.0.0.1:1/", "*")
	f.exec("UPDATE webhooks SET unsettled_after = NULL, after_sequence = $1", messages)
	votes := db.MessageVotesParams{AccountID: f.account, PageSize: messages}
	for n := range int64(messages) {
		votes.Ids, votes.Sequences = append(votes.Ids, fmt.Sprintf("msg_%032x", n)), append(votes.Sequences, n)
	}
	tx := pgtest.Begin(t, f.owner.Pool)
	rows := func() int64 { // includes rows that recent transactions of the connection have read
		return pgtest.Read[int64](t, tx, "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relname = 'webhooks'")
	}
	before := rows()
	need.Value(db.New(tx).MessageVotes(t.Context(), votes))(t)
	if n := rows() - before; n == 0 || n > 2*(deleted+1) {
		t.Errorf("%d rows of %d webhooks were read", n, deleted+1)
	}
}

// TestDeletedWebhooksTakeTurns: many deleted webhooks of an account do not hold up the new
// webhook of another one.
func TestDeletedWebhooksTakeTurns(t *testing.T) {
	t.Parallel()
	const deleted = 300
	f := newFeed(t)
	f.queue(many, time.Hour)
	f.deleted(deleted)
	other := f.of(t, "other")
	other.queue(many, time.Hour)
	other.webhook(receive(t, nil).url, "message.queued")
	f.work()
	await(f, true, "SELECT unsettled_after IS NULL FROM webhooks WHERE account_id = $1", other.account)
	// The new webhook of the other account came before all deleted ones.
	has(f, deleted, "SELECT count(*) FROM webhooks WHERE account_id = $1 AND unsettled_after IS NOT NULL", f.account)
}

// TestSettleThatFails: a webhook to which messages cannot be adapted gets other events, and
// does not hold up other webhooks. A message that the others have accepted waits for it.
func TestSettleThatFails(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	message := f.message()
	stuck, other := receive(t, nil), receive(t, nil)
	id := f.webhook(stuck.url, "message.queued", "pet.created")
	f.webhook(other.url, "message.queued")
	f.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$`)
	f.exec(`CREATE TRIGGER refuse BEFORE UPDATE OF unsettled_after ON webhooks FOR EACH ROW WHEN (NEW.id = '` + id + `') EXECUTE FUNCTION refuse()`)
	worker := f.work()
	other.await(1)
	await(f, 1, "SELECT count(*) FROM webhook_deliveries WHERE status = 'delivered'")
	for i := range 3 {
		f.emit(pets(i, i)...)
		worker.Wake(f.account)
		if got := stuck.await(i + 1)[i]; got.event.Type != "pet.created" {
			t.Errorf("%s", got.body)
		}
	}
	has(f, "queued", statusOf, message)
	f.exec("DROP TRIGGER refuse ON webhooks")
	await(f, "delivered", statusOf, message)
	if n := stuck.count(); n != 4 {
		t.Errorf("%d requests", n)
	}
}

// TestEnabledAfterGone: a webhook that returned 410 to a message gets it again when it is
// enabled, in new attempts. The event webhook.disabled has nothing that only the scope admin
// may see.
func TestEnabledAfterGone(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	to := reject(t, http.StatusGone)
	id := f.webhook(to.url, "message.queued")
	f.exec("UPDATE webhooks SET description = 'for the scope admin'")
	worker := f.work()
	message := f.message()
	worker.Wake(f.account)
	await(f, "gone", "SELECT coalesce(disabled_reason, '') FROM webhooks")
	has(f, true, `
		SELECT data::jsonb #- '{webhook,createdAt}' = jsonb_build_object('webhook', jsonb_build_object('id', w.id, 'types', w.types, 'status', w.status, 'disabledReason', w.disabled_reason))
		   AND subject = '/webhooks/' || w.id
		   AND (data->'webhook'->>'createdAt')::timestamptz = w.created_at
		FROM events JOIN webhooks AS w USING (account_id) WHERE type = 'webhook.disabled'`)
	await(f, true, "SELECT unsettled_after IS NULL FROM webhooks")
	has(f, "queued", statusOf, message)
	to.status.Store(http.StatusOK)
	f.change(id, "enabled", "message.queued")
	await(f, "delivered", statusOf, message)
	has(f, "failed 1, delivered 1", "SELECT string_agg(status || ' ' || jsonb_array_length(attempts), ', ' ORDER BY id) FROM webhook_deliveries")
}

// TestMessageWaitsForTheOtherWebhook: a message that one webhook has accepted stays queued
// until the other one has got it, which is behind in the feed or in settling. Neither a retry nor a
// replay that the first one refuses makes the message fail.
func TestMessageWaitsForTheOtherWebhook(t *testing.T) {
	t.Parallel()
	all := newFeed(t)
	worker := all.idleWorker()
	const notSettled = "UPDATE webhooks SET unsettled_after = '' WHERE id = $1"
	for name, test := range map[string]struct{ again, behind string }{
		"not dispatched": {"", "UPDATE webhooks SET after_sequence = 0 WHERE id = $1"},
		"not settled":    {"", notSettled},
		"settled before": {"", "UPDATE webhooks SET unsettled_after = 'msg_00' WHERE id = $1"},
		"enabled after it failed": {"", `
			WITH made AS (
			    INSERT INTO webhook_deliveries (account_id, id, webhook_id, event_id, sequence, type, status)
			    SELECT account_id, 'dlv_' || md5('x'), $1, 'evt_00000000000000000000000000000000', 1, 'message.queued', 'failed' FROM webhooks WHERE id = $1)
			UPDATE webhooks SET unsettled_after = '' WHERE id = $1`},
		"a retry": {`UPDATE webhook_deliveries SET status = 'failed', attempts = '[{"httpStatus": 204}, {"httpStatus": 502}]' WHERE webhook_id = $1`, notSettled},
		"a replay": {`
			INSERT INTO webhook_deliveries (account_id, id, webhook_id, event_id, sequence, type, status)
			SELECT account_id, 'dlv_' || md5('x'), webhook_id, event_id, sequence, type, 'failed' FROM webhook_deliveries WHERE webhook_id = $1`, notSettled},
	} {
		f := all.of(t, name)
		quick, slow := f.webhook("http://127.0.0.1:1/", "message.queued"), f.webhook("http://127.0.0.1:1/", "*")
		first := f.queue(1, time.Hour)
		f.deliver(quick, "delivered", first, first)
		f.exec("UPDATE webhooks SET after_sequence = $1, unsettled_after = NULL", first)
		if test.again != "" {
			f.exec(test.again, quick)
		}
		f.exec(test.behind, slow)
		f.exec(notSettled, quick)
		f.settle(worker, quick)
		if got := f.statuses(); got != "queued 1" {
			t.Errorf("%s: %s while a webhook is behind", name, got)
		}
		f.deliver(slow, "delivered", first, first)
		f.exec(notSettled, slow)
		f.settle(worker, slow)
		if got := f.statuses(); got != "delivered 1" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestNoExpiryBesideABacklog: after an outage of the workers, messages do not fail that a
// webhook is still to get.
func TestNoExpiryBesideABacklog(t *testing.T) {
	t.Parallel()
	all := newFeed(t)
	worker := all.idleWorker()
	for name, c := range map[string]struct {
		age     time.Duration
		prepare string // also changes the accounts of earlier cases
		want    string
	}{
		"no webhook":                        {80 * time.Hour, "UPDATE webhooks SET status = 'disabled', disabled_reason = 'manual'", "failed 1"},
		"no webhook that subscribes":        {80 * time.Hour, "UPDATE webhooks SET types = '{pet.created}'", "failed 1"},
		"no webhook, but young":             {70 * time.Hour, "UPDATE webhooks SET status = 'disabled', disabled_reason = 'manual'", "queued 1"},
		"a webhook":                         {80 * time.Hour, "UPDATE webhooks SET unsettled_after = NULL, after_sequence = 99", "queued 1"},
		"a webhook and no event":            {1000 * time.Hour, "UPDATE webhooks SET unsettled_after = NULL, after_sequence = 99", "failed 1"},
		"a webhook that is not dispatched":  {1000 * time.Hour, "UPDATE webhooks SET unsettled_after = NULL", "queued 1"},
		"a webhook that is not settled yet": {1000 * time.Hour, "UPDATE webhooks SET after_sequence = 99", "queued 1"},
		"a sample":                          {1000 * time.Hour, "UPDATE accounts SET kind = 'sample'; UPDATE webhooks SET status = 'disabled', disabled_reason = 'manual'", "queued 1"},
		"a deleted account":                 {1000 * time.Hour, "UPDATE webhooks SET status = 'disabled', disabled_reason = 'manual'; UPDATE account_state SET closed = true", "queued 1"},
	} {
		f := all.of(t, name)
		f.webhook("http://127.0.0.1:1/", "message.queued")
		f.queue(1, c.age)
		f.exec(c.prepare)
		need.OK(t, worker.ExpireMessages(t.Context()))
		events := read[int](f, "SELECT count(*) FROM events WHERE account_id = $1 AND type = 'message.failed'", f.account)
		if got := f.statuses(); got != c.want || (events == 1) != (got == "failed 1") {
			t.Errorf("%s: %s, want %s; %d events", name, got, c.want, events)
		}
	}
}

// TestExpiryBesideSamples: the messages of samples and of deleted accounts do not expire. Each statement reads a page
// of them at most, and the messages of samples are read once, also while sandboxes keep a deleted sample.
func TestExpiryBesideSamples(t *testing.T) {
	t.Parallel()
	const kept = 1000 // a page
	f := newFeed(t)
	var statements atomic.Int64
	f.db = pgtest.Open(t, f.owner.URL, delivery.Connections, pgtest.Statements(func(sql string, _ []any) {
		if strings.HasPrefix(sql, "-- name: MessagesExpired ") {
			statements.Add(1)
		}
	}))
	sample, deleted, deletedSample := f.of(t, "sample"), f.of(t, "deleted"), f.of(t, "deleted sample")
	for _, account := range []*feed{sample, deleted, deletedSample} {
		account.queue(kept, 90*time.Hour)
	}
	f.queue(1, 80*time.Hour)
	f.exec("UPDATE accounts SET kind = 'sample' WHERE id IN ($1, $2)", sample.account, deletedSample.account)
	f.exec("UPDATE account_state SET closed = true WHERE account_id IN ($1, $2)", deleted.account, deletedSample.account)
	worker := f.idleWorker()
	for run, want := range []int64{4, 2} { // the last page is not full
		need.OK(t, worker.ExpireMessages(t.Context()))
		need.Same(t, want, statements.Swap(0), "statements of run %d", run)
	}
	for account, want := range map[*feed]string{f: "failed 1", sample: "queued 1000", deleted: "queued 1000", deletedSample: "queued 1000"} {
		need.Same(t, want, account.statuses(), "messages of account %d", account.account)
	}
}

// TestSettleWithoutEvents: a webhook does not get a message whose event the feed no longer has.
func TestSettleWithoutEvents(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	f.queue(2, time.Hour)
	f.exec("DELETE FROM events WHERE sequence = 1")
	id := f.webhook("http://127.0.0.1:1/", "message.queued")
	f.settle(f.idleWorker(), id)
	has(f, "2", "SELECT string_agg(sequence::text, ' ') FROM webhook_deliveries")
}

// TestExpiryThatFails: an account whose messages cannot be ended keeps no other account.
func TestExpiryThatFails(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	f.queue(2, 90*time.Hour)
	f.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$`)
	f.exec(`CREATE TRIGGER refuse BEFORE UPDATE OF status ON messages FOR EACH ROW WHEN (NEW.account_id = ` + fmt.Sprint(f.account) + `) EXECUTE FUNCTION refuse()`)
	f.exec(`
		WITH made AS (INSERT INTO accounts (name) SELECT 'other ' || n FROM generate_series(1, 1050) AS n RETURNING id)
		INSERT INTO account_state (account_id) SELECT id FROM made`)
	f.exec("INSERT INTO messages (account_id, id, message, created_at) SELECT account_id, 'msg_' || lpad(to_hex(account_id), 32, '0'), 'hello', now() - interval '100 hours' FROM account_state WHERE account_id <> $1", f.account)
	err := f.idleWorker().ExpireMessages(context.WithoutCancel(t.Context()))
	if err == nil || strings.Count(err.Error(), "refused") != 1 {
		t.Errorf("%v", err)
	}
	if failed := read[int64](f, "SELECT count(*) FROM messages WHERE status = 'failed'"); failed != 1050 || f.statuses() != "queued 2" {
		t.Errorf("%d messages of other accounts have failed, want 1050; the account has %s, want queued 2", failed, f.statuses())
	}
}
