package main

import (
	"context"
	"fmt"

	"petstore/internal/tools/must"
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
