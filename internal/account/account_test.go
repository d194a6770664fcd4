package account_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/auth"
	"petstore/internal/event"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// fixture is a database with the account "owner", used with the privileges of the
// serving role.
type fixture struct {
	t     testing.TB
	db    *postgres.DB
	owner *pgtest.Database
	id    int64
	log   *statementLog
}

// statementLog counts the rows that each statement has deleted.
type statementLog struct {
	mu        sync.Mutex
	deleted   []int64
	batches   int      // transactions
	forgotten []any    // ids of accounts
	lost      []string // errors of statements because of a concurrent one
}

type statementKey struct{}

func (l *statementLog) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.HasPrefix(data.SQL, "-- name: AccountForget ") {
		l.mu.Lock()
		l.forgotten = append(l.forgotten, data.Args[len(data.Args)-1])
		l.mu.Unlock()
	}
	return context.WithValue(ctx, statementKey{}, data.SQL)
}

func (l *statementLog) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	sql, _ := ctx.Value(statementKey{}).(string)
	l.mu.Lock()
	defer l.mu.Unlock()
	if data.CommandTag.Delete() {
		l.deleted = append(l.deleted, data.CommandTag.RowsAffected())
	}
	if sql == "begin" {
		l.batches++
	}
	if postgres.LostToAnother(data.Err) {
		l.lost = append(l.lost, fmt.Sprintf("%.40s: %v", sql, data.Err))
	}
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{t: t, owner: pgtest.New(t), log: &statementLog{}}
	f.db = pgtest.Open(t, f.owner.URL, 24, f.log)
	f.id = f.ensure("owner")
	return f
}

// newPatientFixture is newFixture with a pool whose statements may wait long. Many wait for each
// other on a busy machine.
func newPatientFixture(t testing.TB) *fixture {
	t.Helper()
	const connections = 40 // more than statements at once
	f := newFixture(t)
	f.db = pgtest.Open(t, f.owner.DirectURL+"&lock_timeout=30s&statement_timeout=60s", connections, f.log)
	return f
}

// ensure creates an account.
func (f *fixture) ensure(name string) int64 {
	f.t.Helper()
	return f.in(func(ctx context.Context, queries *db.Queries) (int64, error) {
		row, err := account.Ensure(ctx, queries, name)
		return row.ID, err
	})
}

// in runs an action in a transaction.
func (f *fixture) in(action func(context.Context, *db.Queries) (int64, error)) int64 {
	f.t.Helper()
	result := need.Value(f.try(action))(f.t)
	return result
}

func (f *fixture) try(action func(context.Context, *db.Queries) (int64, error)) (int64, error) {
	return postgres.Transact(f.t.Context(), f.db, func(ctx context.Context, tx pgx.Tx) (int64, error) {
		return action(ctx, db.New(tx))
	})
}

// sandbox creates a sandbox of an account.
func (f *fixture) sandbox(parent int64, sample string) (int64, error) {
	return f.try(func(ctx context.Context, queries *db.Queries) (int64, error) {
		made, err := account.CreateSandbox(ctx, queries, account.NewSandbox{ParentID: parent, Name: "test", Sample: sample, Expiry: account.DefaultExpiry})
		return made.Sandbox.ID, err
	})
}

func (f *fixture) mustSandbox(sample string) int64 {
	f.t.Helper()
	id := need.Value(f.sandbox(f.id, sample))(f.t)
	return id
}

// save saves a sandbox as a sample of its account.
func (f *fixture) save(parent int64, name string, from int64) (int64, error) {
	return f.try(func(ctx context.Context, queries *db.Queries) (int64, error) {
		made, _, err := account.SaveSample(ctx, queries, account.NewSample{ParentID: parent, Name: name, SandboxID: from})
		return made.ID, err
	})
}

// reset and remove reset and delete an account in a transaction of their own.
func (f *fixture) reset(id int64) error {
	_, err := f.try(func(ctx context.Context, queries *db.Queries) (int64, error) {
		return account.Reset(ctx, queries, id)
	})
	return err
}

func (f *fixture) remove(id int64) (deleted bool, err error) {
	_, err = f.try(func(ctx context.Context, queries *db.Queries) (int64, error) {
		deleted, err = account.Delete(ctx, queries, id)
		return 0, err
	})
	return deleted, err
}

// exec runs a statement as the owner of the tables.
func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	pgtest.Exec(f.t, f.owner.Pool, sql, args...)
}

// rows returns the number of rows of an account by table.
func (f *fixture) rows(id int64) map[string]int {
	f.t.Helper()
	all := map[string]int{}
	for table, column := range tables {
		rows := pgtest.Read[int](f.t, f.owner.Pool, fmt.Sprintf("SELECT count(*) FROM %s WHERE %s = %d", table, column, id))
		if rows > 0 {
			all[table] = rows
		}
	}
	return all
}

// wantGone fails the test unless accounts have no rows.
func (f *fixture) wantGone(ids ...int64) {
	f.t.Helper()
	for _, id := range ids {
		if rows := f.rows(id); len(rows) > 0 {
			f.t.Errorf("account %d has %v", id, rows)
		}
	}
}

// wantNoDeadlocks fails the test if there were deadlocks. The statistics of the database lack deadlocks on
// workers of Citus, and the log lacks errors of batches.
func (f *fixture) wantNoDeadlocks() {
	f.t.Helper()
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	deadlocks := pgtest.Read[int](f.t, f.owner.Pool, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
	if deadlocks > 0 || len(f.log.lost) > 0 {
		f.t.Errorf("%d deadlocks on this server, and errors of statements:\n%s", deadlocks, strings.Join(f.log.lost, "\n"))
	}
}

// tables has every table with rows of an account, and the column of its id.
var tables = map[string]string{
	"accounts": "id", "account_state": "account_id", "api_keys": "account_id", "api_key_uses": "account_id",
	"categories": "account_id", "pets": "account_id", "inventory": "account_id", "orders": "account_id",
	"messages": "account_id", "idempotency_keys": "account_id", "sandbox_faults": "account_id",
	"events": "account_id", "webhooks": "account_id", "webhook_deliveries": "account_id",
}

// age makes the deletion or the expiry of an account longer ago than a minute.
func (f *fixture) age(id int64) {
	f.t.Helper()
	f.exec("UPDATE accounts SET deleted_at = now() - interval '1 minute' WHERE id = $1 AND deleted_at IS NOT NULL", id)
	f.exec("UPDATE accounts SET expires_at = now() - interval '1 minute' WHERE id = $1 AND kind = 'sandbox'", id)
}

func (f *fixture) sweep() {
	f.t.Helper()
	need.OK(f.t, account.Sweep(f.t.Context(), f.db))
}

// fill adds rows of every kind to an account with the sample shop.
func (f *fixture) fill(id int64, rows int) {
	f.t.Helper()
	for _, sql := range []string{
		"INSERT INTO categories (account_id, name, name_key) SELECT $1, 'c' || n, 'c' || n FROM generate_series(1, $2) AS n",
		"INSERT INTO pets (account_id, category_id, name, name_key) SELECT $1, 1, 'p', 'p' FROM generate_series(1, $2)",
		"INSERT INTO inventory (account_id, pet_id) SELECT $1, id FROM pets WHERE account_id = $1 AND id > 1000 AND $2 > 0",
		"INSERT INTO orders (account_id, pet_id, quantity) SELECT $1, 1, 1 FROM generate_series(1, $2)",
		"INSERT INTO messages (account_id, id, message) SELECT $1, 'msg_' || lpad(to_hex(n), 32, '0'), 'm' FROM generate_series(1, $2) AS n",
		"INSERT INTO api_keys (account_id, name, scope, prefix, secret_sha256, revoked_at) SELECT $1, 'k', 'read', 'x', sha256(($1 || ' ' || n)::bytea), now() FROM generate_series(1, least($2, 1010)) AS n", // no reset deletes them
		"INSERT INTO api_key_uses (account_id, api_key_id, last_used_at) SELECT $1, id, now() FROM api_keys WHERE account_id = $1 AND $2 > 0",
		`INSERT INTO idempotency_keys (account_id, api_key_id, key, fingerprint, status, location, body)
			SELECT $1, (SELECT min(id) FROM api_keys WHERE account_id = $1), 'k' || n, sha256('x'), 201, '/', '' FROM generate_series(1, $2) AS n`,
		"INSERT INTO sandbox_faults (account_id, position, operation, effect, status) SELECT $1, n, '*', 'status', 503 FROM generate_series(0, least($2, 19)) AS n",
		"INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data) SELECT $1, n + 1, now(), 0, 'store.reset', '/account', '{}' FROM generate_series(1, least($2, 1010)) AS n", // the event of a reset has 1
		"INSERT INTO webhooks (account_id, id, url, types, secret, after_sequence) SELECT $1, 'wh_' || lpad(to_hex(n), 32, '0'), 'https://hook.example', '{*}', '\\x00', 0 FROM generate_series(1, least($2, 1010)) AS n",
		`INSERT INTO webhook_deliveries (account_id, id, webhook_id, event_id, type, body, next_attempt_at)
			SELECT $1, 'dlv_' || substr(id, 4), id, 'evt', 'webhook.test', '{}', now() FROM webhooks WHERE account_id = $1 AND $2 > 0`,
	} {
		f.exec(strings.NewReplacer("$1", fmt.Sprint(id)+"::bigint", "$2", fmt.Sprint(rows)).Replace(sql))
	}
}

// TestSweep checks that a sweep removes every row of deleted accounts and expired
// sandboxes and of no other. No statement deletes more than 1000 rows.
func TestSweep(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	kept := f.mustSandbox(account.SampleShop)
	f.fill(kept, 10)
	before := f.rows(kept)
	deleted, expired := f.mustSandbox(account.SampleShop), f.mustSandbox(account.SampleShop)
	f.fill(deleted, 1010) // two batches
	f.fill(expired, 10)
	if ok, err := f.remove(deleted); !ok || err != nil {
		t.Fatal(ok, err)
	}
	f.exec("UPDATE accounts SET expires_at = now() WHERE id = $1", expired)
	f.sweep()
	for _, id := range []int64{deleted, expired} {
		if rows := f.rows(id); rows["pets"] == 0 {
			t.Errorf("a sweep within the minute in which requests may be in progress left only %v", rows)
		}
		f.age(id)
	}
	f.log.mu.Lock()
	f.log.deleted, f.log.batches = nil, 0
	f.log.mu.Unlock()
	need.Value(account.SweepOnce(t.Context(), f.db, 0))(t)
	need.Same(t, []any{expired, deleted}, f.log.forgotten, "an account with many rows keeps those after it waiting")
	var total, most int64
	for _, rows := range f.log.deleted {
		total, most = total+rows, max(most, rows)
	}
	if most != 1000 || total < 11*1010 || f.log.batches < 11*2 {
		t.Errorf("a statement deleted %d rows, want at most 1000; %d rows in %d transactions", most, total, f.log.batches)
	}
	f.wantGone(deleted, expired)
	need.Same(t, before, f.rows(kept), "rows of another account (want: before, got: after)")
	f.sweep() // finds nothing
}

// TestSweepOfAParent checks that the deletion of an account ends its sandboxes, and that
// one sweep removes all of them.
func TestSweepOfAParent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ids := []int64{f.id}
	for range 3 {
		ids = append(ids, f.mustSandbox(account.SampleShop))
	}
	other := f.ensure("other")
	if ok, err := f.remove(f.id); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if ok, err := f.remove(f.id); ok || err != nil {
		t.Errorf("the second deletion: %t, %v", ok, err)
	}
	for _, id := range ids {
		if err := f.reset(id); !errors.Is(err, account.ErrClosed) {
			t.Errorf("reset of a deleted account: %v", err)
		}
		if live := pgtest.Read[int](t, f.owner.Pool, "SELECT count(*) FROM api_keys WHERE account_id = $1 AND revoked_at IS NULL", id); live > 0 {
			t.Errorf("%d live keys", live)
		}
		f.age(id)
	}
	if _, err := f.sandbox(f.id, account.SampleEmpty); !errors.Is(err, account.ErrClosed) {
		t.Errorf("sandbox of a deleted account: %v", err)
	}
	f.sweep()
	f.wantGone(ids...)
	if rows := f.rows(other); rows["accounts"] != 1 {
		t.Errorf("another account has %v", rows)
	}
}

// TestSweepTakesTurns: the sandbox of an account does not wait for all sandboxes of another.
func TestSweepTakesTurns(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var ids []any
	for _, parent := range []int64{f.id, f.id, f.id, f.ensure("other")} {
		id := need.Value(f.sandbox(parent, account.SampleEmpty))(t)
		need.Value(f.remove(id))(t)
		f.age(id)
		ids = append(ids, id)
	}
	f.sweep()
	need.Same(t, []any{ids[0], ids[3], ids[1], ids[2]}, f.log.forgotten, "the order of the sweep")
}

// TestStoredSandboxes checks that sandboxes that have ended count until the sweep has
// deleted them.
func TestStoredSandboxes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec("INSERT INTO accounts (kind, parent_id, name, sample_id, sample, expires_at, deleted_at) SELECT 'sandbox', $1, 'x', $1, 'empty', now(), now() FROM generate_series(1, $2)", f.id, account.MaxStored-1)
	f.exec("INSERT INTO account_state (account_id) SELECT id FROM accounts WHERE parent_id = $1", f.id)
	last := f.mustSandbox(account.SampleEmpty)
	if _, err := f.sandbox(f.id, account.SampleEmpty); !errors.Is(err, account.ErrTooManySandboxes) {
		t.Errorf("sandbox %d: %v", account.MaxStored+1, err)
	}
	need.Value(f.remove(last))(t)
	if _, err := f.sandbox(f.id, account.SampleEmpty); !errors.Is(err, account.ErrTooManySandboxes) {
		t.Errorf("after a deletion: %v", err)
	}
	f.age(last)
	f.sweep()
	f.mustSandbox(account.SampleEmpty)
}

// TestSweepsAtOnce checks that several processes can sweep the same accounts.
func TestSweepsAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var ids []int64
	for range 2 {
		id := f.mustSandbox(account.SampleShop)
		f.fill(id, 1010) // two batches
		need.Value(f.remove(id))(t)
		f.age(id)
		ids = append(ids, id)
	}
	var group sync.WaitGroup
	for range 5 {
		group.Go(func() {
			if err := account.Sweep(t.Context(), f.db); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	f.sweep() // two processes may have given way to each other
	f.wantGone(ids...)
}

// TestSweepContinues checks that accounts that cannot be deleted do not keep the others,
// and that the sweep returns some of the errors.
func TestSweepContinues(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const failing, kept = 12, 10 // accounts that fail, and errors that the sweep returns
	var ids []int64
	for range failing + 2 {
		id := f.mustSandbox(account.SampleShop)
		need.Value(f.remove(id))(t)
		f.age(id)
		ids = append(ids, id)
	}
	f.exec(fmt.Sprintf(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN IF OLD.account_id < %d THEN RAISE EXCEPTION 'broken'; END IF; RETURN OLD; END $$`, ids[failing]))
	f.exec("CREATE TRIGGER fail BEFORE DELETE ON pets FOR EACH ROW EXECUTE FUNCTION fail()")
	err := account.Sweep(t.Context(), f.db)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("account %d", ids[0])) || strings.Count(err.Error(), "broken") != kept {
		t.Errorf("the error is %v, want %d errors", err, kept)
	}
	f.wantGone(ids[failing:]...)
}

// TestResetOfAFullSandbox checks that a sandbox with the maximum of rows can be reset
// under the time limits of the server. The number of stored responses has no bound, so
// the reset deletes none.
func TestResetOfAFullSandbox(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.mustSandbox(account.SampleShop)
	want := f.rows(id)
	const stored = 12_000
	f.fill(id, account.MaxRows+50)
	f.exec(`INSERT INTO idempotency_keys (account_id, api_key_id, key, fingerprint, status, location, body)
		SELECT account_id, api_key_id, key || ' again', fingerprint, status, location, body
		FROM idempotency_keys WHERE account_id = $1 LIMIT $2`, id, stored-account.MaxRows-50)
	want["idempotency_keys"] = stored
	need.OK(t, f.reset(id))
	got := f.rows(id)
	for _, kept := range []string{"api_keys", "api_key_uses", "sandbox_faults", "events", "webhooks", "webhook_deliveries"} {
		delete(want, kept)
		delete(got, kept)
	}
	need.Same(t, want, got, "rows after the reset (want: sample, got: got)")
}

// TestLongMessages checks that copies of messages are not compressed. To compress the messages of a full
// sandbox would take longer than a statement may.
func TestLongMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	source := f.mustSandbox(account.SampleEmpty)
	f.exec("INSERT INTO messages (account_id, id, message) VALUES ($1, 'msg_' || repeat('0', 32), repeat('x', 4000))", source)
	sample := need.Value(f.save(f.id, "long", source))(t)
	var size int
	if err := f.owner.Pool.QueryRow(t.Context(), "SELECT sum(pg_column_size(message)) FROM messages WHERE account_id = $1", sample).Scan(&size); err != nil || size < 4000 {
		t.Errorf("a message of 4,000 bytes takes %d: %v", size, err)
	}
}

// TestResetOfMessages checks that a reset returns the messages of a sandbox to its sample as new ones, and
// does not write their texts again. The texts of a full sandbox have 137 MB, and other commits wait for such a write.
func TestResetOfMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	source := f.mustSandbox(account.SampleEmpty)
	const insert = "INSERT INTO messages (account_id, id, message, status) SELECT $1, 'msg_' || lpad(n::text, 32, '0'), repeat('x', 4000), $2 FROM generate_series($3::int, $4::int) AS n"
	f.exec(insert, source, "queued", 1, 2)
	f.exec(insert, source, "delivered", 3, 3)
	sample := need.Value(f.save(f.id, "messages", source))(t)
	id := f.mustSandbox("messages")
	texts := f.texts()
	f.exec("UPDATE messages SET status = 'failed' WHERE account_id = $1", id)
	f.exec(insert, id, "queued", 4, 5)
	began := pgtest.Read[time.Time](t, f.owner.Pool, "SELECT clock_timestamp()")
	need.OK(t, f.reset(id))
	const list = "SELECT id || ' ' || status || ' ' || md5(message) FROM messages WHERE account_id = $1 ORDER BY id"
	need.Same(t, pgtest.List[string](t, f.owner.Pool, list, sample), pgtest.List[string](t, f.owner.Pool, list, id), "messages (want: sample, got: sandbox)")
	if oldest := pgtest.Read[time.Time](t, f.owner.Pool, "SELECT min(created_at) FROM messages WHERE account_id = $1", id); oldest.Before(began) {
		t.Errorf("a message of the sample is from %s, before the reset at %s", oldest, began)
	}
	need.Same(t, texts, f.texts(), "stored long texts")

	f.exec("DELETE FROM messages WHERE account_id = $1", id)
	need.OK(t, f.reset(id))
	need.Same(t, pgtest.List[string](t, f.owner.Pool, list, sample), pgtest.List[string](t, f.owner.Pool, list, id), "messages after a reset without any (want: sample, got: sandbox)")
}

// TestResetBesideADelivery: a worker locks the messages that it has delivered before the feed, and so does a
// reset, which is waiting for one of them here.
func TestResetBesideADelivery(t *testing.T) {
	t.Parallel()
	f := newPatientFixture(t)
	id := f.mustSandbox(account.SampleEmpty)
	const message = "msg_00000000000000000000000000000001"
	f.exec("INSERT INTO messages (account_id, id, message) VALUES ($1, $2, 'x')", id, message)
	var group sync.WaitGroup
	f.in(func(ctx context.Context, queries *db.Queries) (int64, error) {
		if _, err := queries.MessagesLock(ctx, db.MessagesLockParams{AccountID: id, Ids: []string{message}, PageSize: 1}); err != nil {
			return 0, err
		}
		group.Go(func() {
			if err := f.reset(id); err != nil {
				t.Error(err)
			}
		})
		return 0, errors.Join(pgtest.AwaitLockWaiters(ctx, f.owner.Pool, 1), event.Append(ctx, queries, id, event.Reset()))
	})
	group.Wait()
	f.wantNoDeadlocks()
}

// TestResetBesideACount: a request that waits for a reset is counted by all of its rules or by none. The first
// rule is not used up any more.
func TestResetBesideACount(t *testing.T) {
	t.Parallel()
	f := newPatientFixture(t)
	id := f.mustSandbox(account.SampleEmpty)
	ids := pgtest.List[int64](t, f.owner.Pool, `
		INSERT INTO sandbox_faults (account_id, position, operation, effect, status, first, matched)
		SELECT $1, n, '*', 'status', 503, 1, 1 - n FROM generate_series(0, 1) AS n RETURNING id`, id)
	var group sync.WaitGroup
	f.in(func(ctx context.Context, queries *db.Queries) (int64, error) {
		_, err := account.Reset(ctx, queries, id)
		group.Go(func() {
			rows, err := db.New(f.db).FaultCount(ctx, db.FaultCountParams{AccountID: id, Ids: ids, Requests: 1})
			if len(rows) > 0 || err != nil {
				t.Errorf("counted by %v, %v", rows, err)
			}
		})
		return 0, errors.Join(err, pgtest.AwaitLockWaiters(ctx, f.owner.Pool, 1))
	})
	group.Wait()
	need.Same(t, []int64{0, 0}, pgtest.List[int64](t, f.owner.Pool, "SELECT matched FROM sandbox_faults WHERE account_id = $1", id), "counts of the rules")
}

// texts returns the ids of the long texts of all messages. A copy of a text gets a new one.
func (f *fixture) texts() []int64 {
	f.t.Helper()
	table := pgtest.Read[string](f.t, f.owner.Pool, "SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = 'messages'::regclass")
	return pgtest.List[int64](f.t, f.owner.Pool, "SELECT DISTINCT chunk_id::bigint FROM "+table+" ORDER BY 1")
}

// TestLocksDoNotDeadlock runs everything that takes locks of an account at the same time.
// A deadlock would be repeated by postgres.Transact, so this test counts them.
func TestLocksDoNotDeadlock(t *testing.T) {
	t.Parallel()
	f := newPatientFixture(t)
	for range 5 {
		id := f.mustSandbox(account.SampleEmpty)
		key := f.in(func(ctx context.Context, queries *db.Queries) (int64, error) {
			row, _, err := auth.Issue(ctx, queries, auth.NewKey{AccountID: id, Name: "k", Scope: auth.Admin})
			return row.ID, err
		})
		entered := func(run func(context.Context, *db.Queries) error) func(context.Context, *db.Queries) (int64, error) {
			return func(ctx context.Context, queries *db.Queries) (int64, error) {
				if err := account.Enter(ctx, queries, id, false); err != nil {
					return 0, err
				}
				return 0, run(ctx, queries)
			}
		}
		var group sync.WaitGroup
		for i, run := range []func(context.Context, *db.Queries) (int64, error){
			entered(func(ctx context.Context, queries *db.Queries) error {
				_, _, err := auth.Rotate(ctx, queries, id, key, time.Hour)
				return err
			}),
			entered(func(ctx context.Context, queries *db.Queries) error {
				_, _, err := auth.Issue(ctx, queries, auth.NewKey{AccountID: id, Name: "k", Scope: auth.Read})
				return err
			}),
			func(ctx context.Context, queries *db.Queries) (int64, error) { // without Enter
				_, err := auth.Revoke(ctx, queries, id, key)
				return 0, err
			},
			func(ctx context.Context, queries *db.Queries) (int64, error) {
				return account.Reset(ctx, queries, id)
			},
			func(ctx context.Context, queries *db.Queries) (int64, error) {
				_, err := account.Delete(ctx, queries, id)
				return 0, err
			},
			func(ctx context.Context, queries *db.Queries) (int64, error) {
				_, err := account.CreateSandbox(ctx, queries, account.NewSandbox{ParentID: f.id, Name: "x", Sample: account.SampleEmpty, Expiry: time.Hour})
				return 0, err
			},
		} {
			for range 2 {
				group.Go(func() {
					if _, err := f.try(run); err != nil && !errors.Is(err, account.ErrClosed) && !errors.Is(err, auth.ErrNoKey) {
						t.Errorf("action %d: %v", i, err)
					}
				})
			}
		}
		group.Wait()
	}
	f.wantNoDeadlocks()
}

// TestRevocationOfAnExpiredKey: it waits for no key with a greater id, unlike a deletion, which may have locked
// the expired one before.
func TestRevocationOfAnExpiredKey(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "a write to api_keys locks the whole table")
	f := newFixture(t)
	id := f.mustSandbox(account.SampleEmpty)
	expired := pgtest.Read[int64](t, f.owner.Pool, "UPDATE api_keys SET expires_at = now() WHERE account_id = $1 RETURNING id", id)
	live := f.in(func(ctx context.Context, queries *db.Queries) (int64, error) {
		row, _, err := auth.Issue(ctx, queries, auth.NewKey{AccountID: id, Name: "k", Scope: auth.Admin})
		return row.ID, err
	})
	pgtest.Exec(t, pgtest.Begin(t, f.owner.Pool), "SELECT FROM api_keys WHERE id = $1 FOR NO KEY UPDATE", live)
	f.in(func(ctx context.Context, queries *db.Queries) (int64, error) {
		_, err := auth.Revoke(ctx, queries, id, expired)
		return 0, err
	})
}

// TestSandboxOfAParentBeingDeleted checks that the deletion of an account waits for a sandbox
// that is being created, which does not outlive it.
func TestSandboxOfAParentBeingDeleted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var group sync.WaitGroup
	f.in(func(ctx context.Context, queries *db.Queries) (int64, error) {
		_, err := account.CreateSandbox(ctx, queries, account.NewSandbox{ParentID: f.id, Name: "x", Sample: account.SampleEmpty, Expiry: time.Hour})
		waits, stop := context.WithCancel(ctx)
		group.Go(func() {
			defer stop()
			if _, err := f.remove(f.id); err != nil {
				t.Error(err)
			}
		})
		return 0, errors.Join(err, pgtest.AwaitLockWaiters(waits, f.owner.Pool, 1))
	})
	group.Wait()
	if live := pgtest.Read[int](t, f.owner.Pool, "SELECT count(*) FROM accounts WHERE parent_id = $1 AND deleted_at IS NULL", f.id); live > 0 {
		t.Errorf("%d sandboxes outlive the account", live)
	}
}

// TestResetWaitsAndGivesUp checks that a reset waits for a write in progress. If the
// write takes longer than the lock timeout, the reset returns an error for which the API
// sends 503.
func TestResetWaitsAndGivesUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.mustSandbox(account.SampleEmpty)
	err := pgx.BeginFunc(t.Context(), f.owner.Pool, func(tx pgx.Tx) error {
		if err := account.Enter(t.Context(), db.New(tx), id, false); err != nil {
			return err
		}
		return f.reset(id)
	})
	if !postgres.Unavailable(err) {
		t.Errorf("the error is %v", err)
	}
	if err := f.reset(id); err != nil {
		t.Errorf("after the write: %v", err)
	}
}

// TestSweepOfASample checks that a deleted sample is stored until its last sandbox has ended, and
// counts as long.
func TestSweepOfASample(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	source := f.mustSandbox(account.SampleShop)
	sample := need.Value(f.save(f.id, "mine", source))(t)
	fork := f.mustSandbox("mine")
	want := f.rows(fork)["pets"]
	need.Value(f.remove(sample))(t)
	f.age(sample)
	f.sweep()
	f.fill(fork, 5)
	if err := f.reset(fork); err != nil || want != 200 || f.rows(fork)["pets"] != want {
		t.Errorf("a reset to a deleted sample: %v, %v", err, f.rows(fork))
	}
	if _, err := f.sandbox(f.id, "mine"); !errors.Is(err, account.ErrNoSample) {
		t.Errorf("a sandbox of a deleted sample: %v", err)
	}
	f.exec("INSERT INTO accounts (kind, parent_id, name, deleted_at) SELECT 'sample', $1, 'x', now() FROM generate_series(2, $2::int)", f.id, account.MaxStoredSamples)
	if _, err := f.save(f.id, "more", source); !errors.Is(err, account.ErrTooManySamples) {
		t.Errorf("sample %d: %v", account.MaxStoredSamples+1, err)
	}
	need.Value(f.remove(fork))(t)
	if _, err := f.save(f.id, "more", fork); !errors.Is(err, account.ErrTooManySamples) {
		t.Errorf("while the deleted sample is stored: %v", err)
	}
	f.age(fork)
	f.sweep()
	f.wantGone(sample, fork)
	if _, err := f.save(f.id, "more", fork); !errors.Is(err, account.ErrNoSandbox) {
		t.Errorf("a sample of a sandbox that has ended: %v", err)
	}
	if _, err := f.save(f.id, "more", source); err != nil {
		t.Error(err)
	}
}

// TestSamplesAtOnce: forks, saves, resets and deletions do not deadlock, and a fork has the whole
// sample or none.
func TestSamplesAtOnce(t *testing.T) {
	t.Parallel()
	f := newPatientFixture(t)
	source := f.mustSandbox(account.SampleShop)
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			made, err := f.save(f.id, fmt.Sprint("s", i%4), source)
			if errors.Is(err, account.ErrSampleExists) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			var inner sync.WaitGroup
			for range 2 {
				inner.Go(func() {
					id, err := f.sandbox(f.id, fmt.Sprint("s", i%4))
					if err == nil && f.rows(id)["orders"] != 200 {
						t.Errorf("a fork has %v", f.rows(id))
					}
					if err != nil && !errors.Is(err, account.ErrNoSample) {
						t.Error(err)
					}
				})
			}
			inner.Go(func() {
				if err := f.reset(source); err != nil {
					t.Error(err)
				}
			})
			inner.Go(func() {
				if _, err := f.remove(made); err != nil {
					t.Error(err)
				}
			})
			inner.Wait()
		})
	}
	group.Wait()
	f.wantNoDeadlocks()
}

// BenchmarkSandbox measures a sandbox with a sample of 1000 rows: its creation, its reset, saving
// it, and the creation of many by ten accounts at once.
func BenchmarkSandbox(b *testing.B) {
	const parents, rows = 10, 1000
	f := newFixture(b)
	must := func(id int64, err error) int64 {
		if err != nil {
			b.Error(err)
		}
		return id
	}
	var owners, sources []int64
	for i := range parents {
		owner := f.ensure(fmt.Sprint("owner ", i))
		source := must(f.sandbox(owner, account.SampleEmpty))
		f.exec("INSERT INTO categories (account_id, id, name, name_key) VALUES ($1, 1, 'Dogs', 'dogs')", source)
		f.exec("INSERT INTO pets (account_id, id, category_id, name, name_key) SELECT $1, n, 1, 'Rex', 'rex' FROM generate_series(1, $2::int) AS n", source, rows/3)
		f.exec("INSERT INTO inventory (account_id, pet_id, quantity) SELECT $1, n, 5 FROM generate_series(1, $2::int) AS n", source, rows/3)
		f.exec("INSERT INTO orders (account_id, id, pet_id, quantity) SELECT $1, n, n, 1 FROM generate_series(1, $2::int) AS n", source, rows/3)
		must(f.save(owner, "thousand", source))
		owners, sources = append(owners, owner), append(sources, source)
	}
	f.exec("ANALYZE")
	free := func() {
		f.exec("UPDATE accounts SET expires_at = now(), parent_id = $1 WHERE kind = 'sandbox' AND id <> ALL ($2)", f.id, sources)
	}
	for _, sample := range []string{account.SampleShop, "thousand"} {
		b.Run("create "+sample, func(b *testing.B) {
			for b.Loop() {
				must(f.sandbox(owners[0], sample))
				b.StopTimer()
				free()
				b.StartTimer()
			}
		})
	}
	id := must(f.sandbox(owners[0], "thousand"))
	b.Run("reset", func(b *testing.B) {
		for b.Loop() {
			must(0, f.reset(id))
		}
	})
	b.Run("save", func(b *testing.B) {
		for b.Loop() {
			must(f.save(owners[1], "another", sources[1]))
			b.StopTimer()
			f.exec("UPDATE accounts SET name = name || id, parent_id = NULL WHERE kind = 'sample' AND name = 'another'")
			b.StartTimer()
		}
	})
	b.Run("create by ten accounts", func(b *testing.B) {
		for range b.N {
			b.StopTimer()
			free()
			b.StartTimer()
			var group sync.WaitGroup
			for _, owner := range owners {
				group.Go(func() {
					for range account.MaxSandboxes - 1 {
						must(f.sandbox(owner, "thousand"))
					}
				})
			}
			group.Wait()
		}
		b.ReportMetric(float64(b.N*parents*(account.MaxSandboxes-1))/b.Elapsed().Minutes(), "forks/min")
	})
}
