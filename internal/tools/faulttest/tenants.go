package main

import (
	"context"

	"petstore/internal/tools/run"
)

// addAccounts adds accounts with webhooks, which all have the same URL and all types.
func (d *database) addAccounts(ctx context.Context, url string, hooks int, accounts ...string) {
	d.exec(ctx, `
		WITH made AS (INSERT INTO accounts (name) SELECT unnest($1::text[]) RETURNING id)
		INSERT INTO account_state (account_id)
		SELECT id FROM made`, accounts)
	d.addWebhooks(ctx, url, hooks, accounts...)
}

// addWebhooks adds such webhooks to accounts.
func (d *database) addWebhooks(ctx context.Context, url string, hooks int, accounts ...string) {
	d.exec(ctx, `
		INSERT INTO webhooks (account_id, id, url, types, secret, after_sequence, unsettled_after)
		SELECT s.account_id, 'wh_' || md5(random()::text), $1, '{*}', '\x00'::bytea || 'a key of at least 24 bytes'::bytea, s.last_sequence, NULL
		FROM accounts AS a
		JOIN account_state AS s ON s.account_id = a.id, generate_series(1, $2::int)
		WHERE a.name = ANY ($3::text[])`, url, hooks, accounts)
}

// addEvents adds events to the feeds of accounts.
func (d *database) addEvents(ctx context.Context, count int, accounts ...string) {
	d.exec(ctx, run.AddEvents, accounts, count)
}

// addMessages adds messages of 16 KB to an account.
func (d *database) addMessages(ctx context.Context, count int, account string) {
	d.exec(ctx, `
		INSERT INTO messages (account_id, id, message)
		SELECT accounts.id, 'msg_' || lpad(to_hex(number), 32, '0'), repeat('🐕', 4000)
		FROM accounts, generate_series(1, $1::int) AS number
		WHERE accounts.name = $2`, count, account)
}

// addDeliveries makes all events of accounts due at all their webhooks, as they are after an
// outage of an hour. The ids have the present time, because the sweep deletes old ones.
func (d *database) addDeliveries(ctx context.Context, accounts ...string) {
	d.exec(ctx, `
		INSERT INTO webhook_deliveries (account_id, id, webhook_id, event_id, sequence, type, next_attempt_at)
		SELECT w.account_id, 'dlv_' || lpad(to_hex((extract(epoch FROM statement_timestamp()) * 1000)::bigint), 12, '0') || left(md5(w.id || e.sequence), 20), w.id, 'evt_' || lpad(to_hex(e.account_id), 12, '0') || lpad(to_hex(e.sequence), 12, '0') || '00000001', e.sequence, e.type,
		       statement_timestamp() - interval '1 hour' + e.sequence * interval '1 millisecond'
		FROM accounts AS a
		JOIN webhooks AS w ON w.account_id = a.id
		JOIN events AS e ON e.account_id = a.id
		WHERE a.name = ANY ($1::text[])`, accounts)
	d.exec(ctx, `
		UPDATE webhooks
		SET after_sequence = last_sequence
		FROM account_state, accounts AS a
		WHERE account_state.account_id = webhooks.account_id
		  AND a.id = webhooks.account_id
		  AND a.name = ANY ($1::text[])`, accounts)
}
