//go:build citus

package postgres_test

import (
	"context"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// literals are values of the parameters of queries, by the OID of their type. A text is
// also valid JSON, because some queries cast it.
var literals = map[uint32]string{
	pgtype.Int8OID: "'1'", pgtype.Int4OID: "'1'", pgtype.Float8OID: "'1'", pgtype.TextOID: "'1'", pgtype.BoolOID: "'true'",
	pgtype.TimestamptzOID: "'2026-01-01'", pgtype.ByteaOID: `'\x01'`,
	pgtype.Int8ArrayOID: "'{1}'", pgtype.Int4ArrayOID: "'{1}'", pgtype.TextArrayOID: "'{1}'", pgtype.BoolArrayOID: "'{true}'",
	pgtype.TimestamptzArrayOID: "'{2026-01-01}'", pgtype.ByteaArrayOID: `'{"\\x01"}'`,
}

// The kinds of plans on Citus.
const (
	oneTask   = "one task on one shard"
	onlyHere  = "only the coordinator"
	severally = "several tasks of one shard each"
	allShards = "tasks on all shards"
)

// planExceptions lists the queries that do not run as one task, and why. Queries on all
// shards are the background work of a process: no request runs them.
var planExceptions = map[string]struct{ kind, why string }{
	"StandbyAwaitHere":            {onlyHere, "a message in the WAL of the coordinator, whose commit waits for its standby"},
	"BuiltInSamplesLock":          {onlyHere, "an advisory lock between processes, all of which connect to the coordinator"},
	"Clock":                       {onlyHere, "the time of the coordinator, which all statements use"},
	"StoresTryEnter":              {onlyHere, "a statement of common groups, which a cluster does not have"},
	"StoreKeysLock":               {onlyHere, "a statement of common groups, which a cluster does not have"},
	"StoresWrite":                 {onlyHere, "a statement of common groups, which a cluster does not have"},
	"EventsAppend":                {onlyHere, "a function of the coordinator, whose statements run on the shard of the account"},
	"ExchangesAppend":             {onlyHere, "a function of the coordinator"},
	"EventsFit":                   {onlyHere, "the catalog of the coordinator, which has the partitions of the shards"},
	"EventsOverdue":               {onlyHere, "the catalog of the coordinator, which has the partitions of the shards"},
	"EventsMaintain":              {onlyHere, "a function of the coordinator, which changes partitions on all nodes once an hour"},
	"FaultAnnounce":               {onlyHere, "a notification, which only the coordinator sends"},
	"IDsReserve":                  {onlyHere, "a sequence of the coordinator"},
	"IdempotencyKeysTryLockSweep": {onlyHere, "an advisory lock between processes, all of which connect to the coordinator"},
	"SampleReserveIDs":            {onlyHere, "a sequence of the coordinator"},
	"SchemaFit":                   {onlyHere, "the table of goose, which only the coordinator has"},
	"SigningKeyGet":               {onlyHere, "a table without an account, which a process reads once"},
	"StatementsLimit":             {onlyHere, "a setting of the transaction"},
	"TransactionTime":             {onlyHere, "the time of the coordinator, which sends the default of created_at to the shard"},

	"APIKeyRevokeAll": {severally, "an update of the copies of api_keys, then its notification on the coordinator"},
	"APIKeyRevokeOwn": {severally, "an update of the copies of api_keys, then its notification on the coordinator"},
	"APIKeyRotate":    {severally, "an update of the copies of api_keys, then its notification on the coordinator"},

	"APIKeyMarkUsed":      {allShards, "a process stores the last uses of the keys of all accounts together, in the background"},
	"append_exchanges 8":  {allShards, "a statement for several sandboxes, which a cluster does not have"},
	"append_exchanges 10": {allShards, "a statement for several sandboxes, which a cluster does not have"},
	"append_exchanges 11": {allShards, "a statement for several sandboxes, which a cluster does not have"},
	"append_exchanges 13": {allShards, "a statement for several sandboxes, which a cluster does not have"},
	"DispatchAccounts":    {allShards, "a worker looks for events to dispatch of all accounts"},
	"ExchangeEnds":        {allShards, "a process looks for new exchanges of the sandboxes for which requests wait"},
	"ExchangeLogsPage":    {allShards, "a sweep finds the sandboxes with a record"},
	"DrainWebhooks":       {allShards, "a worker looks for due deliveries of all accounts"},
	"IdempotencyKeySweep": {allShards, "the sweep deletes expired responses of all accounts"},
	"MessagesExpired":     {allShards, "a worker looks for expired messages of all accounts"},
	"KeyTableLockShared":  {allShards, "an insert of no row, which locks tables on the coordinator and the first worker"},
	"WebhooksFailing":     {allShards, "a worker counts the failing webhooks of all accounts for a metric"},
	"WebhooksToSettle":    {allShards, "a worker looks for changed webhooks of all accounts"},
	"WebhooksToSweep":     {allShards, "the sweep looks at the webhooks of all accounts"},
}

// TestPlansOnCitus checks that each query of a request runs on one shard.
func TestPlansOnCitus(t *testing.T) {
	t.Parallel()
	queries := (&served{Database: pgtest.New(t)}).prepareQueries(t)
	pgtest.Exec(t, queries, "RESET plan_cache_mode")
	want, got := map[string]string{}, map[string]string{}
	for name, exception := range planExceptions {
		want[name] = exception.kind
	}
	for name, sql := range queries.queries {
		if slices.Contains(ofCommonGroups, name) || slices.Contains(copies, name) { // EXPLAIN rejects their parameters
			continue
		}
		if kind := planKind(explainWithValues(t, queries.Conn, name, sql, literals)); kind != oneTask {
			got[name] = kind
		}
	}
	need.Same(t, want, got, "queries that do not run as one task (want: listed, got: found)")
	if single := len(queries.queries) - len(got); single < 90 {
		t.Errorf("only %d queries run as one task", single)
	}
}

// TestSweepsOfAccounts: a sweep of the worker can leave out the accounts of a node that has
// failed. Then it runs on the shards of the others only.
func TestSweepsOfAccounts(t *testing.T) {
	t.Parallel()
	queries := (&served{Database: pgtest.New(t)}).prepareQueries(t)
	pgtest.Exec(t, queries, "RESET plan_cache_mode")
	ofAccounts := maps.Clone(literals)
	ofAccounts[pgtype.BoolOID] = "'false'" // every
	for _, name := range []string{"DispatchAccounts", "DrainWebhooks", "WebhooksToSettle", "FeedEnds"} {
		if plan := explainWithValues(t, queries.Conn, name, queries.queries[name], ofAccounts); !strings.Contains(plan, "Task Count: 1\n") {
			t.Errorf("%s does not run on the shard of its account:\n%s", name, plan)
		}
	}
}

// planKind returns the kind of a plan.
func planKind(plan string) string {
	tasks := strings.Count(plan, "Task Count: ")
	switch {
	case !strings.Contains(plan, "Citus"):
		return onlyHere
	case tasks != strings.Count(plan, "Task Count: 1\n"):
		return allShards
	case strings.Contains(plan, "INSERT/SELECT method: pull to coordinator"):
		return allShards
	case tasks == 1 && !strings.Contains(plan, "Distributed Subplan"):
		return oneTask
	}
	return severally
}

// explainWithValues returns the plan of a prepared query for some values.
func explainWithValues(t *testing.T, conn *pgx.Conn, name, sql string, literals map[uint32]string) string {
	t.Helper()
	prepared := need.Value(conn.Prepare(t.Context(), "p_"+name, sql))(t)
	var values []string
	for _, oid := range prepared.ParamOIDs {
		if literals[oid] == "" {
			t.Fatalf("%s: no value for the type %d", name, oid)
		}
		values = append(values, literals[oid])
	}
	explain := "EXPLAIN EXECUTE " + pgx.Identifier{"p_" + name}.Sanitize()
	if len(values) > 0 {
		explain += "(" + strings.Join(values, ", ") + ")"
	}
	return strings.Join(pgtest.List[string](t, conn, explain), "\n")
}

// fewShards makes the tables that a test distributes have few shards, which is faster.
func fewShards(url string) string { return url + "&citus.shard_count=4" }

// kinds returns the kind of each table of a store and of the reference tables.
func kinds(t *testing.T, database *pgtest.Database) map[string]string {
	t.Helper()
	rows := need.Value(database.Pool.Query(t.Context(), `
		SELECT table_name::text, citus_table_type || ' ' || distribution_column
		FROM citus_tables
		JOIN pg_class ON oid = table_name
		WHERE NOT relispartition`))(t)
	all := map[string]string{}
	var table, kind string
	need.Value(pgx.ForEachRow(rows, []any{&table, &kind}, func() error { all[table] = kind; return nil }))(t)
	return all
}

// wantKinds returns the kinds of all tables, with some more tables of a store.
func wantKinds(more ...string) map[string]string {
	want := map[string]string{"accounts": "reference <none>", "api_keys": "reference <none>"}
	for _, table := range append(more, storeTables...) {
		want[table] = "distributed account_id"
	}
	return want
}

const someRows = `
	INSERT INTO accounts (name) SELECT 'account ' || n FROM generate_series(1, 20) AS n;
	INSERT INTO account_state (account_id) SELECT id FROM accounts;
	INSERT INTO api_keys (account_id, name, scope, prefix, secret_sha256) SELECT id, 'k', 'read', 'p', sha256(id::text::bytea) FROM accounts;
	INSERT INTO categories (account_id, id, name, name_key) SELECT id, 1, 'Dogs', 'dogs' FROM accounts;
	INSERT INTO pets (account_id, id, category_id, name, name_key) SELECT a.id, n, 1, 'Rex', 'rex' FROM accounts AS a, generate_series(1, 100) AS n;
	INSERT INTO inventory (account_id, pet_id, quantity) SELECT account_id, id, 5 FROM pets;
	INSERT INTO orders (account_id, id, pet_id, quantity) SELECT account_id, id, id, 1 FROM pets;
	INSERT INTO idempotency_keys (account_id, api_key_id, key, fingerprint, status, location, body)
		SELECT account_id, id, 'k', sha256(''), 201, '/', '{}' FROM api_keys;
	INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data)
		SELECT id, 1, now(), 0, 'store.reset', '/account', '{}' FROM accounts`

// TestDistribute distributes a database with rows, and does nothing the second time.
func TestDistribute(t *testing.T) {
	t.Parallel()
	database := pgtest.NewEmpty(t)
	m := openMigrations(t, fewShards(database.OwnerURL))
	if err := m.Distribute(t.Context(), func(string, time.Duration) {}); err == nil || !strings.Contains(err.Error(), "run petstore migrate up first") {
		t.Errorf("without tables: %v", err)
	}
	need.Value(m.Up(t.Context()))(t)
	if got := kinds(t, database); len(got) > 0 {
		t.Errorf("up has distributed %v", got)
	}
	pgtest.Exec(t, database.Pool, someRows)
	before := constraints(t, database)
	var steps []string
	need.OK(t, m.Distribute(t.Context(), func(step string, _ time.Duration) { steps = append(steps, step) }))
	if len(steps) != len(storeTables)+2+1 || steps[0] != "copied accounts to every node" || !slices.Contains(steps, "distributed pets") {
		t.Errorf("steps %q", steps)
	}
	need.Same(t, wantKinds(), kinds(t, database), "tables")
	need.Same(t, before, constraints(t, database), "constraints (want: before, got: after)")
	for table, want := range map[string]int{"accounts": 20, "api_keys": 20, "pets": 2000, "orders": 2000, "idempotency_keys": 20, "events": 20} {
		var got, left int
		err := database.Pool.QueryRow(t.Context(), "SELECT count(*), pg_relation_size($1::text::regclass) FROM "+table, table).Scan(&got, &left)
		if err != nil || got != want || left != 0 {
			t.Errorf("%s has %d rows, want %d, and %d bytes on the coordinator: %v", table, got, want, left, err)
		}
	}
	steps = nil
	if err := m.Distribute(t.Context(), func(step string, _ time.Duration) { steps = append(steps, step) }); err != nil || len(steps) > 0 {
		t.Errorf("the second time: %q, %v", steps, err)
	}
}

// constraints describes the constraints of all tables.
func constraints(t *testing.T, database *pgtest.Database) []string {
	t.Helper()
	all := schema(t, database.Pool)
	return slices.DeleteFunc(all, func(line string) bool { return !strings.HasPrefix(line, "constraint ") })
}

// TestDistributeWithoutWorkers: distribute explains what is missing.
func TestDistributeWithoutWorkers(t *testing.T) {
	t.Parallel()
	database := pgtest.NewEmpty(t)
	need.Within(t, 30*time.Second, "the workers are removed", func() bool { // it can deadlock with the maintenance daemon
		_, err := database.Pool.Exec(t.Context(), "SELECT citus_remove_node(nodename, nodeport) FROM pg_dist_node WHERE groupid <> 0")
		return err == nil
	})
	m := openMigrations(t, database.OwnerURL)
	need.Value(m.Up(t.Context()))(t)
	if err := m.Distribute(t.Context(), func(string, time.Duration) {}); err == nil || !strings.Contains(err.Error(), "citus_add_node") {
		t.Errorf("without a worker: %v", err)
	}
}

// laterMigrations are the migrations of this program and two later ones.
func laterMigrations(t *testing.T) fs.FS {
	t.Helper()
	all := fstest.MapFS{
		"00098_create_visits.sql": {Data: []byte(`-- +goose Up
ALTER TABLE pets ADD COLUMN nickname text;
ALTER TABLE pets ADD CONSTRAINT pets_nickname_check CHECK (char_length(nickname) <= 200);
CREATE INDEX pets_nickname_idx ON pets (account_id, nickname, id);
ALTER TABLE accounts ADD COLUMN plan text NOT NULL DEFAULT 'free';
CREATE TABLE visits (
    account_id bigint NOT NULL,
    id         bigint GENERATED BY DEFAULT AS IDENTITY (START 1001 MAXVALUE 9007199254740991),
    pet_id     bigint NOT NULL,
    CONSTRAINT visits_pkey PRIMARY KEY (account_id, id)
);
COMMENT ON TABLE visits IS 'Visits of pets.';
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pets_of(accounts bigint[]) RETURNS bigint LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN (SELECT count(*) FROM pets WHERE account_id = ANY (accounts));
END
$$;
-- +goose StatementEnd
-- +goose Down
DROP FUNCTION pets_of(bigint[]);
DROP TABLE visits;
ALTER TABLE accounts DROP COLUMN plan;
ALTER TABLE pets DROP COLUMN nickname;
`)},
		"00099_add_visits_keys.sql": {Data: []byte(`-- +goose Up
ALTER TABLE visits ADD CONSTRAINT visits_account_id_fkey FOREIGN KEY (account_id) REFERENCES accounts (id);
ALTER TABLE visits ADD CONSTRAINT visits_pet_id_fkey FOREIGN KEY (account_id, pet_id) REFERENCES pets (account_id, id);
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pets_of(accounts bigint[]) RETURNS bigint LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN (SELECT -count(*) FROM pets WHERE account_id = ANY (accounts));
END
$$;
-- +goose StatementEnd
-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pets_of(accounts bigint[]) RETURNS bigint LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN (SELECT count(*) FROM pets WHERE account_id = ANY (accounts));
END
$$;
-- +goose StatementEnd
ALTER TABLE visits DROP CONSTRAINT visits_pet_id_fkey;
ALTER TABLE visits DROP CONSTRAINT visits_account_id_fkey;
`)},
	}
	for name, file := range all {
		for _, broken := range brokenMigrationRules(name, string(file.Data)) {
			t.Errorf("%s has %s", name, broken)
		}
	}
	_, texts := allMigrations(t)
	for name, text := range texts {
		all[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return all
}

// TestStorageOfShards: migrations of a distributed database change how its shards store messages.
func TestStorageOfShards(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	m := openMigrations(t, database.OwnerURL)
	check := func(want string) {
		t.Helper()
		if got := pgtest.Read[string](t, database.Pool, `
			SELECT string_agg(DISTINCT result, ' ')
			FROM run_command_on_shards('messages', $$SELECT attstorage FROM pg_attribute WHERE attrelid = '%s'::regclass AND attname = 'message'$$)`,
		); got != want {
			t.Errorf("the storage is %q, want %q", got, want)
		}
	}
	// Without the limit of the tests, which the workers have.
	pgtest.Exec(t, database.Pool, "SELECT run_command_on_workers(format('ALTER DATABASE %I RESET lock_timeout', current_database()))")
	pgtest.Exec(t, database.Pool, someRows)
	read := pgtest.Read[string](t, database.Pool, "SELECT format('SELECT FROM %s', shard_name('messages', get_shard_id_for_distribution_column('messages', 1001)))")
	// wait makes a change fail while a transaction has read a shard, and then succeed.
	wait := func(change func(context.Context) ([]postgres.Migration, error)) {
		t.Helper()
		tx := need.Value(database.Pool.Begin(t.Context()))(t)
		defer func() { _ = tx.Rollback(t.Context()) }() // which gives its connection back
		pgtest.Read[string](t, tx, "SELECT query_to_xml($1, true, true, '')::text FROM account_state WHERE account_id = 1001", read)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := change(ctx); err == nil || !strings.Contains(err.Error(), "canceling statement due to lock timeout") {
			t.Errorf("while a transaction has read a shard: %v", err)
		}
		pgtest.Exec(t, tx, "ROLLBACK")
		if changed, err := change(t.Context()); err != nil || len(changed) == 0 {
			t.Fatal(changed, err)
		}
	}
	check("e")
	for need.Value(m.Version(t.Context()))(t) > 23 {
		need.Value(m.Down(t.Context()))(t)
	}
	wait(m.Down)
	check("x")
	wait(m.Up)
	check("e")
}

// TestLaterMigrations: up applies later migrations to a distributed database, distributes
// their tables, and down reverts them.
func TestLaterMigrations(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	pgtest.Exec(t, database.Pool, someRows)
	m := need.Value(postgres.OpenMigrationsOf(t.Context(), database.OwnerURL, laterMigrations(t)))(t)
	defer m.Close()
	for range 2 {
		applied, err := m.Up(t.Context())
		if err != nil || len(applied) != 2 {
			t.Fatalf("applied %v: %v", applied, err)
		}
		need.Same(t, wantKinds("visits"), kinds(t, database), "tables")
		pgtest.Exec(t, database.Pool, "INSERT INTO visits (account_id, pet_id) SELECT account_id, id FROM pets")
		if _, err := database.Pool.Exec(t.Context(), "INSERT INTO visits (account_id, pet_id) VALUES (1001, 1000000)"); stateOf(err) != foreignKeyViolation {
			t.Errorf("a visit of a missing pet: %v", err)
		}
		if applied, err := m.Up(t.Context()); err != nil || len(applied) > 0 {
			t.Errorf("applied again %v: %v", applied, err)
		}
		wantPets(t, database, -100)
		need.Value(m.Down(t.Context()))(t)
		wantPets(t, database, 100)
		need.Value(m.Down(t.Context()))(t)
	}
}

// wantPets fails the test unless the function of [laterMigrations] runs and returns a number.
// Citus rejects its statement in a plan for all values of the parameter.
func wantPets(t *testing.T, database *pgtest.Database, want int) {
	t.Helper()
	if got := pgtest.Read[int](t, database.Pool, "SELECT pets_of('{1001}')"); got != want {
		t.Errorf("the function returns %d, want %d", got, want)
	}
}

// TestServingRoleOnCitus: the role has its privileges on the shards too, and no others.
func TestServingRoleOnCitus(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	pgtest.Exec(t, database.Pool, someRows)
	serving := open(t, database.URL, 2)
	if pets := pgtest.Read[int](t, serving, "SELECT count(id) FROM pets WHERE account_id = 1001"); pets != 100 {
		t.Errorf("%d pets", pets)
	}
	for _, statement := range []string{
		"ALTER TABLE pets ADD COLUMN mine int", "TRUNCATE orders", "DROP TABLE orders", "UPDATE api_keys SET scope = 'admin'",
		"SELECT citus_drain_node('127.0.0.1', 1)", "SELECT citus_add_node('127.0.0.1', 1)", "SELECT undistribute_table('pets')",
		"UPDATE pg_dist_node SET nodeport = 1", "SELECT create_reference_table('pets')",
	} {
		_, err := serving.Exec(t.Context(), statement)
		if err == nil {
			t.Errorf("%s succeeded", statement)
		}
	}
}

// TestLostWorkerOnCitus checks the errors of a transaction that loses its workers. Those of
// COMMIT can be XX000, and a worker may have committed nevertheless. With 57P01, a worker has
// ended before PREPARE TRANSACTION, so nobody has committed.
func TestLostWorkerOnCitus(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	pgtest.Exec(t, database.Pool, someRows)
	const restock = "UPDATE inventory SET quantity = quantity + 1"
	for what, test := range map[string]struct{ write, next, state string }{
		"a commit on one worker":         {restock + " WHERE account_id = 1001", "COMMIT", "XX000"},
		"a commit on two workers":        {restock, "COMMIT", anyState},
		"a commit of a reference table":  {"UPDATE accounts SET name = name || '.'", "COMMIT", anyState},
		"a statement on the same worker": {restock + " WHERE account_id = 1001", restock + " WHERE account_id = 1001", anyState},
	} {
		t.Run(what, func(t *testing.T) {
			database.Pool.Reset() // a session of the coordinator may keep a connection that the last one has lost
			conn := need.Value(database.Pool.Acquire(t.Context()))(t)
			defer conn.Release()
			for _, sql := range []string{"BEGIN", test.write} {
				pgtest.Exec(t, conn, sql)
			}
			before := contentsOf(t, database)
			loseWorkers(t, database)
			_, err := conn.Exec(t.Context(), test.next)
			if got := stateOf(err); got != test.state && test.state != anyState {
				t.Errorf("%q, want %s: %v", got, test.state, err)
			}
			if postgres.RolledBack(err) && contentsOf(t, database) != before {
				t.Errorf("%v: a worker has committed", err)
			}
			if !postgres.Unavailable(err) || !postgres.ConnectionLost(err) || postgres.RolledBack(err) != (stateOf(err) == "57P01") {
				t.Errorf("%v: Unavailable %t, ConnectionLost %t, RolledBack %t", err, postgres.Unavailable(err), postgres.ConnectionLost(err), postgres.RolledBack(err))
			}
		})
	}
}

// contentsOf returns what the transactions of TestLostWorkerOnCitus change.
func contentsOf(t *testing.T, database *pgtest.Database) (contents string) {
	t.Helper()
	return pgtest.Read[string](t, database.Pool, "SELECT (SELECT sum(quantity) FROM inventory) || (SELECT string_agg(name, ' ' ORDER BY id) FROM accounts)")
}

// loseWorkers ends the sessions of a coordinator on its workers.
func loseWorkers(t *testing.T, database *pgtest.Database) {
	t.Helper()
	if ended := pgtest.Read[int](t, database.Pool, `
		SELECT sum(result::int)
		FROM run_command_on_workers($$
			SELECT count(pg_terminate_backend(pid, 10000))
			FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'$$)`); ended == 0 {
		t.Fatal("ended no sessions")
	}
}
