package postgres_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// seedSmall creates 3,000 accounts with a row in each table of which an account can have many. The first
// one has 20,000 rows in tables with n_distinct = 100, so PostgreSQL expects that each account has 230.
const seedSmall = `
	INSERT INTO accounts (name) SELECT 'small ' || n FROM generate_series(1, 3000) AS n;
	INSERT INTO account_state (account_id) SELECT id FROM accounts WHERE kind = 'account';
	CREATE TEMP TABLE small AS SELECT account_id AS a, lpad(account_id::text, 32, '0') AS hex FROM account_state;
	INSERT INTO api_keys (account_id, id, name, scope, prefix, secret_sha256) SELECT a, a, 'x', 'read', 'x', sha256(hex::bytea) FROM small;
	CREATE TEMP TABLE rows AS SELECT a, n FROM small, LATERAL generate_series(1, CASE WHEN a = (SELECT min(a) FROM small) THEN 20000 ELSE 1 END) AS n;
	INSERT INTO categories (account_id, id, name, name_key) SELECT a, n, 'x', n FROM rows;
	INSERT INTO pets (account_id, id, category_id, name, name_key, status) SELECT a, n, n, 'x', n, (ARRAY['available', 'pending', 'sold'])[1 + n % 3] FROM rows;
	INSERT INTO inventory (account_id, pet_id, quantity) SELECT a, n, n % 100 FROM rows;
	INSERT INTO orders (account_id, id, pet_id, quantity, ship_date, complete) SELECT a, n, n, 1, now() + n * interval '1 hour', n % 2 = 0 FROM rows;
	INSERT INTO messages (account_id, id, message, status) SELECT a, 'msg_' || lpad(n::text, 32, '0'), 'x', CASE WHEN n % 1000 = 0 THEN 'queued' ELSE 'delivered' END FROM rows;
	INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data) SELECT a, 1, now(), 1, 'message.queued', '/messages/msg_' || hex, '{}' FROM small;
	INSERT INTO webhooks (account_id, id, url, types, secret, after_sequence) SELECT a, 'wh_' || hex, 'x', '{*}', 'x', 1 FROM small;
	INSERT INTO webhook_deliveries (account_id, id, webhook_id, event_id, sequence, type, next_attempt_at)
		SELECT a, 'dlv_' || lpad(n::text, 32, '0'), 'wh_' || hex, 'x', n, 'message.queued', now() FROM small, generate_series(1, 2) AS n;
	INSERT INTO idempotency_keys (account_id, api_key_id, key, fingerprint, status, location, body) SELECT a, a, 'x', sha256('x'), 201, 'x', 'x' FROM small;
	INSERT INTO exchange_logs (account_id) SELECT a FROM small;
	INSERT INTO exchanges (account_id, number, start_byte, started_at, microseconds, request_id, api_key_id, method, path, query, operation, status, code, idempotency_key, fault, messages)
		SELECT a, 1, 1, now(), 1, 'x', a, 'x', 'x', 'x', 'x', 200, 'x', 'x', 'x', 'x' FROM small`

var (
	seeded = regexp.MustCompile(`^(categories|pets|inventory|orders|messages|events|webhooks|webhook_deliveries|idempotency_keys|exchanges)(_|$)`)
	// byKey matches a condition on a column of a key, or of the order of a list.
	byKey = regexp.MustCompile(`\((ROW\()?(id|pet_id|sequence|number|api_key_id|subject|name_key|next_attempt_at|ship_date|created_at)\b`)
	// readsAll matches the names of statements that may read many rows. They count, measure or copy the rows of an
	// account, ask whether there is one, or look at the webhooks of all accounts. Others read pending
	// deliveries or old exchanges, whose number has a limit.
	readsAll = regexp.MustCompile(`^(StoreCopy\w+|StoreRemoveMessages|StoreSize|(Inventory|Message|Order|Pet|WebhookDelivery)Count|InventorySummary|ExchangesDelete|SampleStoreIsEmpty|WebhookForget|ExchangesExpire|DispatchAccounts|DrainWebhooks|WebhooksFailing|WebhooksToSettle)$`)
)

// TestPlansOfSmallAccounts: PostgreSQL plans a statement for an account of average size, and keeps the
// plan for all. So a statement must look up rows by their keys, or stop at its limit, even if
// PostgreSQL expects that an account has few.
func TestPlansOfSmallAccounts(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "it cannot make generic plans of joins, and its workers plan each run")
	queries := (&served{Database: pgtest.New(t)}).prepareQueries(t)
	pgtest.Exec(t, queries, seedSmall)
	pgtest.Exec(t, queries, "VACUUM ANALYZE")
	pgtest.Exec(t, queries, "SET jit = off; SET enable_seqscan = off")
	for name, explain := range queries.explain {
		explain = strings.Replace(explain, "EXPLAIN ", "EXPLAIN (FORMAT JSON) ", 1)
		var plans []struct{ Plan planNode }
		if err := json.Unmarshal([]byte(pgtest.Read[string](t, queries, explain, pgx.QueryExecModeSimpleProtocol)), &plans); err != nil {
			t.Fatal(err)
		}
		if scans := plans[0].Plan.unbound(false); len(scans) > 0 != readsAll.MatchString(name) {
			t.Errorf("%s may read all rows of an account, or has an exception without need: %q", name, scans)
		}
	}
}

// TestPagesOfAllAccounts: a join with a page of all accounts also has a lower bound of the account. Otherwise
// PostgreSQL may read the index for each account before the page, from its rows up to the page. After half of
// 500,000 webhooks, that took more than 8 seconds instead of one.
func TestPagesOfAllAccounts(t *testing.T) {
	t.Parallel()
	position, found := regexp.MustCompile(`\bJOIN\b(?s:.*)\((\w+\.)account_id, \w+\.id\) > \(@after_account`), 0
	for name, query := range allQueries(t) {
		if page := position.FindStringSubmatch(query.text); page != nil {
			found++
			if !strings.Contains(query.text, "AND "+page[1]+"account_id >= @after_account\n") {
				t.Errorf("%s does not skip the accounts before its page", name)
			}
		}
	}
	need.Same(t, 2, found, "queries")
}

// planNode is a node of a plan.
type planNode struct {
	Type     string `json:"Node Type"`
	Parent   string `json:"Parent Relationship"`
	Relation string `json:"Relation Name"`
	Index    string `json:"Index Name"`
	Cond     string `json:"Index Cond"`
	Filter   string
	Plans    []planNode
}

// unbound returns the scans below a node that neither a key nor a limit bounds.
func (n planNode) unbound(limited bool) (scans []string) {
	switch n.Type {
	case "Limit":
		limited = true
	case "Sort", "Incremental Sort", "Aggregate", "Hash", "Merge Join":
		limited = false
	}
	name := cmp.Or(n.Relation, n.Index)
	bound := byKey.MatchString(n.Cond) || strings.HasPrefix(name, "webhooks") && strings.Contains(n.Cond, "account_id = ")
	if !bound && (!limited || n.Filter != "") && seeded.MatchString(name) && n.Type != "Bitmap Heap Scan" && n.Type != "ModifyTable" {
		scans = append(scans, fmt.Sprintf("%s %s %s %s %s", n.Type, n.Relation, n.Index, n.Cond, n.Filter))
	}
	for _, child := range n.Plans {
		scans = append(scans, child.unbound(limited && child.Parent != "Inner" && child.Parent != "InitPlan" && child.Parent != "SubPlan")...)
	}
	return scans
}
