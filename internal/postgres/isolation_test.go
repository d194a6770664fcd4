package postgres_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// storeTables are the tables whose rows belong to an account.
var storeTables = []string{
	"account_state", "api_key_uses", "categories", "events", "exchange_logs", "exchanges", "idempotency_keys", "inventory", "messages", "orders", "pets", "sandbox_faults",
	"webhook_deliveries", "webhooks",
}

// copies lists the queries that copy the rows of a sandbox to a sample, or return a sandbox to its
// sample. The row of accounts of the sandbox names both.
var copies = []string{"StoreCopyCategories", "StoreCopyInventory", "StoreCopyMessages", "StoreCopyOrders", "StoreCopyPets", "StoreRemoveMessages"}

// maintenance lists the queries that read or write rows of several accounts. No request
// runs them.
var maintenance = []string{"APIKeyMarkUsed", "DispatchAccounts", "DispatchAccountsOf", "DrainWebhooks", "ExchangeEnds", "ExchangeLogsPage", "FeedEnds", "IdempotencyKeySweep", "MessagesExpired", "WebhooksFailing", "WebhooksToSettle", "WebhooksToSweep"}

// ofCommonGroups lists the queries of groups with writes of several accounts. They name each
// row by the account and the id that a write has. A sharded cluster has no such groups.
var ofCommonGroups = []string{"StoreKeysGet", "StorePetsLock", "StoresRead"}

var (
	sqlComment      = regexp.MustCompile(`--[^\n]*`)
	insertOfAccount = regexp.MustCompile(`INTO \w+(?: AS \w+)? \(account_id[^)]*\)\s+(VALUES \((@account_id|\$1)|SELECT (@account_id|account_state\.account_id))`)
	tableReference  = regexp.MustCompile(`\b(FROM|JOIN|UPDATE|INTO|USING) (\w+)(?: AS (\w+))?`)
)

// TestQueriesNameTheAccount checks that each reference to a table of a store names the
// account of the request: `account_id = @account_id`, with the name of the table if a
// query has several references.
func TestQueriesNameTheAccount(t *testing.T) {
	t.Parallel()
	var exceptions []string
	listed := slices.Concat(maintenance, ofCommonGroups, copies)
	for name, query := range allQueries(t) {
		if missing := referencesWithoutAccount(query.text); len(missing) > 0 {
			exceptions = append(exceptions, name)
			if !slices.Contains(listed, name) {
				t.Errorf("%s: %s does not name the account of %v", query.file, name, missing)
			}
		}
	}
	slices.Sort(exceptions)
	need.Same(t, slices.Sorted(slices.Values(listed)), exceptions, "queries across accounts (want: listed, got: found)")
}

// appendEvents returns the statements of the function append_events as queries with
// parameters.
func appendEvents(t *testing.T) map[string]string {
	t.Helper()
	_, body, _ := strings.Cut(newest(t, "append_events"), "BEGIN\n")
	body, _, found := strings.Cut(body, "END\n$$;")
	statements := strings.Split(strings.TrimSpace(body), ";\n\n")
	if !found || len(statements) != 2 {
		t.Fatalf("append_events has the statements %q", statements)
	}
	for argument, parameter := range map[string]string{
		"account": "@account_id", "new_nonce": "@nonce", "types": "@types::text[]", "subjects": "@subjects::text[]", "documents": "@data::text[]",
		"new_category": "@last_category_id", "new_pet": "@last_pet_id", "new_order": "@last_order_id", "new_message": "@last_message_id",
	} {
		for i := range statements {
			statements[i] = regexp.MustCompile(`\b`+argument+`\b`).ReplaceAllString(statements[i], parameter)
		}
	}
	return map[string]string{"append_events, UPDATE": statements[0] + ";", "append_events, INSERT": statements[1]}
}

// newest returns the newest definition of a function, from its parameters to the end of the Up of
// its migration.
func newest(t *testing.T, function string) (text string) {
	t.Helper()
	names, texts := allMigrations(t)
	for _, name := range names {
		up, _, _ := strings.Cut(texts[name], "-- +goose Down")
		if _, after, found := strings.Cut(up, "FUNCTION "+function+"("); found {
			text = after
		}
	}
	return text
}

// appendExchanges returns the statements of the function append_exchanges as queries with
// parameters.
func appendExchanges(t *testing.T) map[string]string {
	t.Helper()
	text := newest(t, "append_exchanges")
	arguments, body, _ := strings.Cut(text, ") RETURNS")
	_, body, _ = strings.Cut(body, "BEGIN\n")
	body, _, found := strings.Cut(body, "END\n$$;")
	body = regexp.MustCompile(`(?s)\w+ := ARRAY\((.*?)\n +\);`).ReplaceAllString(body, "$1;")
	body = regexp.MustCompile(`(?m)^ *(-- .*|PERFORM set_config.*|IF .* THEN|END IF;|RETURN;|RETURN QUERY)$| INTO newest, end_byte\b`).ReplaceAllString(body, "")
	types := map[string]string{"locked": "bigint[]", "too_long": "bigint[]", "newest": "bigint", "end_byte": "bigint"}
	for argument := range strings.SplitSeq(arguments, ",") {
		name, kind, _ := strings.Cut(strings.TrimSpace(argument), " ")
		types[name] = kind
	}
	for name, kind := range types {
		body = regexp.MustCompile(`\b`+name+`\b`).ReplaceAllString(body, "(@"+name+"::"+kind+")")
	}
	statements := map[string]string{}
	for i, statement := range strings.Split(strings.TrimSuffix(strings.TrimSpace(body), ";"), ";\n") {
		statements[fmt.Sprint("append_exchanges ", i)] = statement
	}
	if !found || len(statements) != 15 {
		t.Fatalf("append_exchanges has the statements %q", statements)
	}
	return statements
}

// TestAppendEvents checks the statements of the function as those in queries/ are.
func TestAppendEvents(t *testing.T) {
	t.Parallel()
	for name, statement := range appendEvents(t) {
		if missing := referencesWithoutAccount(statement); len(missing) > 0 {
			t.Errorf("%s does not name the account of %v", name, missing)
		}
		if broken := brokenRules(statement); len(broken) > 0 {
			t.Errorf("%s has %v, which Citus does not support", name, broken)
		}
	}
}

// referencesWithoutAccount returns the references to tables of a store in a query that
// have no condition on the account.
func referencesWithoutAccount(query string) (missing []string) {
	query = sqlComment.ReplaceAllString(query, "")
	var references []string
	for _, found := range tableReference.FindAllStringSubmatch(query, -1) {
		verb, table, alias := found[1], found[2], found[3]
		switch {
		case !slices.Contains(storeTables, table):
		case verb == "INTO":
			if !insertOfAccount.MatchString(query) {
				missing = append(missing, table)
			}
		case alias != "":
			references = append(references, alias)
		default:
			references = append(references, table)
		}
	}
	if len(references) == 1 && strings.Contains(query, "WHERE account_id = @account_id") {
		return missing
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(references))) {
		count := 0
		for _, reference := range references {
			if reference == name {
				count++
			}
		}
		if strings.Count(query, name+".account_id = @account_id") < count {
			missing = append(missing, name)
		}
	}
	return missing
}

// TestQueriesThatForgetTheAccount checks that the test above notices.
func TestQueriesThatForgetTheAccount(t *testing.T) {
	t.Parallel()
	for query, want := range map[string][]string{
		"SELECT id FROM pets WHERE account_id = @account_id AND id = @id;":                                            nil,
		"SELECT id FROM pets WHERE id = @id;":                                                                         {"pets"},
		"SELECT id FROM pets WHERE pets.account_id = @account_id AND EXISTS (SELECT FROM pets WHERE id = @id);":       {"pets"},
		"SELECT 1 FROM orders JOIN pets ON pets.id = orders.pet_id WHERE orders.account_id = @account_id;":            {"pets"},
		"SELECT 1 FROM orders AS o WHERE o.account_id = @account_id AND o.id IN (SELECT p.id FROM pets AS p);":        {"p"},
		"INSERT INTO orders (id) VALUES (1);":                                                                         {"orders"},
		"INSERT INTO orders (account_id, id) VALUES (@account_id, 1);":                                                nil,
		"UPDATE pets SET name = 'a' -- WHERE account_id = @account_id\n;":                                             {"pets"},
		"DELETE FROM inventory USING entry WHERE inventory.account_id = @account_id AND inventory.pet_id = entry.id;": nil,
	} {
		need.Same(t, want, referencesWithoutAccount(query), "%s", query)
	}
}

// collector returns a function that returns the names that a query with storeTables finds.
func collector(t *testing.T) func(sql string) []string {
	t.Helper()
	pool := shared(t).Pool
	return func(sql string) []string {
		t.Helper()
		return pgtest.List[string](t, pool, sql, storeTables)
	}
}

// TestStoreTables checks that the list above is complete, and that each table starts
// with the account: in its columns, its primary key, its unique constraints and its
// foreign keys to other tables of a store.
func TestStoreTables(t *testing.T) {
	t.Parallel()
	collect := collector(t)
	if missing := collect(`
		SELECT table_name::text
		FROM information_schema.columns
		JOIN pg_class ON pg_class.oid = to_regclass(table_name) AND NOT relispartition
		WHERE table_schema = 'public' AND column_name = 'account_id' AND table_name <> 'api_keys' AND NOT table_name = ANY ($1)`); len(missing) > 0 {
		t.Errorf("add the tables %v with account_id to storeTables of this test, and their queries to package account", missing)
	}
	first := collect(`
		SELECT table_name::text
		FROM information_schema.columns
		WHERE table_schema = 'public' AND column_name = 'account_id' AND ordinal_position = 1 AND table_name = ANY ($1)
		ORDER BY table_name`)
	need.Same(t, storeTables, first, "tables whose first column is account_id")
	if wrong := collect(`
		SELECT conname::text
		FROM pg_constraint
		JOIN pg_attribute ON attrelid = conrelid AND attname = 'account_id'
		WHERE conrelid::regclass::text = ANY ($1)
		  AND conkey[1] <> attnum
		  AND (contype IN ('p', 'u') OR contype = 'f' AND confrelid::regclass::text = ANY ($1))`); len(wrong) > 0 {
		t.Errorf("keys that do not start with account_id: %v", wrong)
	}
}

// TestStoresAreCopiedAndDeleted: a query deletes the rows of each table of a store, and one copies
// each column that belongs to a sample.
func TestStoresAreCopiedAndDeleted(t *testing.T) {
	t.Parallel()
	var copied, deleted []string
	for name, query := range allQueries(t) {
		into, from := regexp.MustCompile(`INTO (\w+) \(([^)]*)\)`).FindStringSubmatch(query.text), regexp.MustCompile(`DELETE FROM (\w+)`).FindStringSubmatch(query.text)
		switch {
		case strings.HasPrefix(name, "StoreCopy") && into != nil:
			for column := range strings.SplitSeq(into[2], ", ") {
				copied = append(copied, into[1]+"."+column)
			}
		case strings.HasPrefix(name, "StoreDelete") && from != nil:
			deleted = append(deleted, from[1])
		case strings.HasPrefix(name, "StoreCopy"), strings.HasPrefix(name, "StoreDelete"):
			t.Errorf("%s: %s must name its table, and a copy its columns", query.file, name)
		}
	}
	slices.Sort(deleted)
	need.Same(t, storeTables, deleted, "tables that a query StoreDelete… deletes from")
	slices.Sort(copied)
	need.Same(t, collector(t)(`
		SELECT (table_name || '.' || column_name) COLLATE "C"
		FROM information_schema.columns
		WHERE table_schema = 'public' AND is_generated = 'NEVER' AND table_name = ANY ($1)
		  AND table_name NOT IN ('account_state', 'api_key_uses', 'events', 'exchange_logs', 'exchanges', 'idempotency_keys', 'sandbox_faults', 'webhook_deliveries', 'webhooks')
		  AND (table_name, column_name) <> ('messages', 'created_at') -- a copy is new
		ORDER BY 1`), copied, "columns that a query StoreCopy… copies")
}

// TestReferencesAcrossAccounts checks that Postgres itself rejects a row that refers to
// a row of another account, whatever the queries do.
func TestReferencesAcrossAccounts(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).Pool
	pgtest.Exec(t, pool, `
		INSERT INTO accounts (id, name) VALUES (1, 'one'), (2, 'two');
		INSERT INTO account_state (account_id) VALUES (1), (2);
		INSERT INTO categories (account_id, id, name, name_key) VALUES (1, 10, 'Dogs', 'dogs'), (2, 20, 'Dogs', 'dogs');
		INSERT INTO pets (account_id, id, category_id, name, name_key) VALUES (1, 100, 10, 'Rex', 'rex'), (2, 200, 20, 'Rex', 'rex');
		INSERT INTO orders (account_id, id, pet_id, quantity) VALUES (1, 1000, 100, 1)`)
	const notSupported = "0A000" // Citus rejects a change of the account itself
	for _, statement := range []string{
		"INSERT INTO pets (account_id, id, category_id, name, name_key) VALUES (1, 101, 20, 'Rex', 'rex')",
		"UPDATE pets SET category_id = 20 WHERE account_id = 1",
		"UPDATE pets SET account_id = 2 WHERE account_id = 1",
		"INSERT INTO inventory (account_id, pet_id) VALUES (1, 200)",
		"INSERT INTO orders (account_id, id, pet_id, quantity) VALUES (1, 1001, 200, 1)",
		"UPDATE orders SET pet_id = 200 WHERE account_id = 1",
		"UPDATE orders SET account_id = 2 WHERE account_id = 1",
	} {
		_, err := pool.Exec(t.Context(), statement)
		if stateOf(err) == notSupported && strings.Contains(statement, "SET account_id") && pgtest.Is(pgtest.Citus) {
			continue
		}
		if stateOf(err) != foreignKeyViolation {
			t.Errorf("%s: %v, want a foreign key violation", statement, err)
		}
	}
}

// TestSampleGetLooksAtOneAccount: the query finds the account by the index, although a built-in sample has none.
func TestSampleGetLooksAtOneAccount(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "its plan depends on the values")
	queries := (&served{Database: pgtest.New(t)}).prepareQueries(t)
	pgtest.Exec(t, queries, `
		INSERT INTO accounts (name) SELECT n FROM generate_series(1, 100) AS n;
		INSERT INTO accounts (kind, parent_id, name) SELECT 'sample', id, n FROM accounts CROSS JOIN generate_series(1, 20) AS n;
		ANALYZE accounts; SET enable_seqscan = off`)
	plan := strings.Join(pgtest.List[string](t, queries, queries.explain["SampleGet"], pgx.QueryExecModeSimpleProtocol), "\n")
	if !strings.Contains(plan, "Index Cond: ((parent_id = $1) AND (name = $2))") {
		t.Errorf("the plan is\n%s", plan)
	}
}
