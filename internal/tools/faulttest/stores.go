package main

import (
	"context"
	"fmt"

	"petstore/internal/tools/must"
	"petstore/internal/tools/run"
)

// smallStores is the number of accounts in every copy beside [accountName], with the same
// pets. Their writes share groups, as long as an account has at most 8 in progress at an
// instance. It is odd, so that two clients of [spread] in the same store use two instances.
const smallStores = 25

// spread returns the stores of clients: of the first ones the store of [accountName], which
// is 0, and then the small stores by turns, from 1.
func spread(first, small int) []int {
	stores := make([]int, first, first+small)
	for i := range small {
		stores = append(stores, 1+i%smallStores)
	}
	return stores
}

// store returns a client of a store.
func (s *service) store(number int) *client { return s.withKey(s.fixture.keys[number]) }

// checkStores fails the row unless the events of each account have no gap and fit its orders.
// It also fails the row unless some transactions placed orders of several accounts, and none
// of these has more than 8 of one account. It returns their number.
func (s *deployment) checkStores(ctx context.Context) (figures string) {
	const backlog = 8
	wrong := s.db.count(ctx, `
		SELECT count(*)
		FROM account_state
		LEFT JOIN (
			SELECT account_id, count(*) AS events, max(sequence) AS newest,
			       count(*) FILTER (WHERE type = 'order.placed') - count(*) FILTER (WHERE type = 'order.cancelled') AS orders
			FROM events
			GROUP BY account_id
		) AS feed USING (account_id)
		LEFT JOIN (SELECT account_id, count(*) AS orders FROM orders GROUP BY account_id) AS store USING (account_id)
		WHERE last_sequence <> coalesce(events, 0) OR last_sequence <> coalesce(newest, 0) OR coalesce(feed.orders, 0) <> coalesce(store.orders, 0)`)
	must.Hold(wrong == 0, "the events of %d accounts have gaps, or do not fit their orders", wrong)
	var common, most int
	s.db.read(ctx, `
		SELECT count(*), coalesce(max(most), 0)
		FROM (
			SELECT max(orders) AS most
			FROM (SELECT xmin::text AS transaction, account_id, count(*) AS orders FROM orders GROUP BY 1, 2) AS placed
			GROUP BY transaction
			HAVING count(*) > 1
		) AS common`, nil, &common, &most)
	must.Hold(common > 0, "no transaction placed orders of several accounts")
	must.Hold(most <= backlog, "a group of several accounts has %d orders of one of them", most)
	return fmt.Sprintf("%d transactions of several accounts", common)
}

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
