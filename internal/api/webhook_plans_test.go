//go:build plans

package api_test

import (
	"fmt"
	"net/url"
	"testing"

	"petstore/internal/api"
	"petstore/internal/httpjson"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// TestPlansOfDeliveries checks the promises of docs/decisions/0005-lists.md for the list of
// deliveries, as TestListPlans does for the others. Nearly all deliveries of a webhook are
// delivered, and the failed ones are the oldest.
func TestPlansOfDeliveries(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "its workers plan each run")
	p, recorder, planner, secret := startRecorded(t)
	hook := p.newWebhook("*")
	p.newWebhook("*")
	const size = 50_000
	p.exec(`
		INSERT INTO webhook_deliveries (account_id, id, webhook_id, event_id, sequence, type, status)
		SELECT account_id, 'dlv_' || lpad(to_hex(n), 30, '0') || right(id, 2), id, 'evt_00000000000000000000000000000000', n, 'pet.created', CASE WHEN n <= 500 THEN 'failed' ELSE 'delivered' END
		FROM webhooks, generate_series(1, $1::int) AS n
		WHERE account_id = $2`, size, p.accountID())
	p.exec("ANALYZE webhook_deliveries")
	for _, filter := range []string{"", "&status=failed", "&status=delivered", "&status=pending"} {
		query := need.Value(url.ParseQuery(filter))(t)
		middle := httpjson.Position{Key: fmt.Sprintf("dlv_%030x00", size/2)}
		cursor := api.SealCursor(secret, api.List{Account: p.accountID(), Path: hook.path(), Sort: "-id", Query: query}, middle)
		read := func(filter string) []statement {
			t.Helper()
			return recorder.during(func() { p.get(hook.path() + "/deliveries?limit=200" + filter).want(200) })
		}
		first, deep := read(filter), read(filter+"&cursor="+cursor)
		for _, mode := range planModes(first) {
			what := fmt.Sprintf("the deliveries%s, %s", filter, mode)
			firstCost, deepCost := planner.cost(what, mode, first), planner.cost(what+", deep", mode, deep)
			if deepCost.pages > mostTimes*firstCost.pages+100 {
				t.Errorf("%s: a deep page reads %d pages, the first one %d", what, deepCost.pages, firstCost.pages)
			}
		}
		if planner.genericRuns(first) == 0 {
			t.Errorf("the deliveries%s: PostgreSQL plans each of ten runs again", filter)
		}
	}
}
