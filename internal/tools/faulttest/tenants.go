package main

import (
	"context"
	"fmt"
	"strings"
)

// tenant is an account with webhooks that a row adds with SQL.
type tenant struct {
	name  string
	hooks int // webhooks, all with the same URL and all types
	url   string
}

// addTenants adds accounts with their webhooks.
func (d *database) addTenants(ctx context.Context, tenants ...tenant) {
	for _, t := range tenants {
		d.exec(ctx, fmt.Sprintf(`
			WITH made AS (INSERT INTO accounts (name) VALUES ('%[1]s') RETURNING id)
			INSERT INTO account_state (account_id)
			SELECT id FROM made;

			INSERT INTO webhooks (account_id, id, url, types, secret, after_sequence, unsettled_after)
			SELECT id, 'wh_' || md5(random()::text), '%[2]s', '{*}', '\x00'::bytea || 'a key of at least 24 bytes'::bytea, 0, NULL
			FROM accounts, generate_series(1, %[3]d)
			WHERE name = '%[1]s'`, t.name, t.url, t.hooks))
	}
}

// addEvents adds events to the feeds of accounts.
func (d *database) addEvents(ctx context.Context, count int, tenants ...tenant) {
	d.exec(ctx, fmt.Sprintf(`
		WITH moved AS (
			UPDATE account_state
			SET last_sequence = last_sequence + %[1]d, last_nonce = 1, last_event_at = statement_timestamp()
			WHERE account_id IN (SELECT id FROM accounts WHERE name IN ('%[2]s'))
			RETURNING account_id, last_sequence - %[1]d AS before
		)
		INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data)
		SELECT account_id, before + i, statement_timestamp(), 1, 'pet.updated', '/pets/' || i,
		       json_build_object('pet', json_build_object('id', i, 'name', 'Bella the Brave', 'categoryId', 1, 'status', 'available'))
		FROM moved, generate_series(1, %[1]d) AS i`, count, names(tenants)))
}

// addMessages adds messages of 16 KB to an account.
func (d *database) addMessages(ctx context.Context, count int, account string) {
	d.exec(ctx, fmt.Sprintf(`
		INSERT INTO messages (account_id, id, message)
		SELECT accounts.id, 'msg_' || lpad(to_hex(number), 32, '0'), repeat('🐕', 4000)
		FROM accounts, generate_series(1, %d) AS number
		WHERE accounts.name = '%s'`, count, account))
}

// addDeliveries makes all events of accounts due at all their webhooks, as they are after an
// outage of an hour. The ids have the present time, because the sweep deletes old ones.
func (d *database) addDeliveries(ctx context.Context, tenants ...tenant) {
	d.exec(ctx, fmt.Sprintf(`
		INSERT INTO webhook_deliveries (account_id, id, webhook_id, event_id, sequence, type, next_attempt_at)
		SELECT w.account_id, 'dlv_' || lpad(to_hex((extract(epoch FROM statement_timestamp()) * 1000)::bigint), 12, '0') || left(md5(w.id || e.sequence), 20), w.id, 'evt_' || lpad(to_hex(e.account_id), 12, '0') || lpad(to_hex(e.sequence), 12, '0') || '00000001', e.sequence, e.type,
		       statement_timestamp() - interval '1 hour' + e.sequence * interval '1 millisecond'
		FROM accounts AS a
		JOIN webhooks AS w ON w.account_id = a.id
		JOIN events AS e ON e.account_id = a.id
		WHERE a.name IN ('%[1]s');

		UPDATE webhooks
		SET after_sequence = last_sequence
		FROM account_state, accounts AS a
		WHERE account_state.account_id = webhooks.account_id
		  AND a.id = webhooks.account_id
		  AND a.name IN ('%[1]s')`, names(tenants)))
}

// names returns the names of accounts, as the inside of a list in SQL.
func names(tenants []tenant) string {
	all := make([]string, len(tenants))
	for i, t := range tenants {
		all[i] = t.name
	}
	return strings.Join(all, "', '")
}
