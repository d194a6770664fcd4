package exchange_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/exchange"
	"petstore/internal/feed"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// fixture is a database with two sandboxes and a recorder.
type fixture struct {
	*exchange.Recorder

	t                *testing.T
	database         *pgtest.Database
	pool             *postgres.DB
	written, dropped atomic.Int64
	log              bytes.Buffer
	afterWrite       func() // runs after each statement that succeeds; nil: nothing
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, database: pgtest.New(t)}
	pool := pgtest.Open(t, f.database.URL, 4)
	f.pool = pool
	f.exec(`INSERT INTO accounts (id, name) VALUES (1, 'one'), (2, 'two');
		INSERT INTO account_state (account_id) VALUES (1), (2)`)
	hub := feed.New(pool, db.New(pool).FeedEnds)
	f.Recorder = exchange.New(pool, hub, slog.New(slog.NewTextHandler(&f.log, nil)), func(written, dropped int) {
		f.written.Add(int64(written))
		f.dropped.Add(int64(dropped))
		if f.afterWrite != nil {
			f.afterWrite()
		}
	})
	f.SetClosingTime(time.Minute)
	return f
}

func (f *fixture) exec(sql string) {
	f.t.Helper()
	pgtest.Exec(f.t, f.database.Pool, sql)
}

// add adds an exchange of a sandbox with a body of this size.
func (f *fixture) add(account int64, path string, size int) {
	f.Add(&exchange.Exchange{Account: account, Payer: account, Began: time.Now(), RequestID: "id", APIKeyID: 1, Method: "GET", Path: path, Status: 200, Messages: []byte(strings.Repeat("x", size))})
}

// flush writes the buffer once.
func (f *fixture) flush() { f.Flush(f.t.Context()) }

// begin begins a transaction with a statement.
func (f *fixture) begin(sql string) pgx.Tx {
	f.t.Helper()
	tx := pgtest.Begin(f.t, f.database.Pool)
	pgtest.Exec(f.t, tx, sql)
	return tx
}

// commit commits a transaction.
func (f *fixture) commit(tx pgx.Tx) {
	f.t.Helper()
	if err := tx.Commit(f.t.Context()); err != nil {
		f.t.Error(err)
	}
}

// lockLog locks the log of sandbox 1.
const lockLog = "SELECT FROM exchange_logs WHERE account_id = 1 FOR UPDATE"

// paths returns the paths in the record of a sandbox, in order, with their numbers.
func (f *fixture) paths(account int64) []string {
	f.t.Helper()
	return pgtest.List[string](f.t, f.database.Pool, "SELECT number || ' ' || path FROM exchanges WHERE account_id = $1 ORDER BY number", account)
}

// want fails the test unless the record of a sandbox has these paths.
func (f *fixture) want(account int64, paths ...string) {
	f.t.Helper()
	if got := f.paths(account); fmt.Sprint(got) != fmt.Sprint(paths) {
		f.t.Errorf("the record of %d has %q, want %q", account, got, paths)
	}
}

// TestNumbers: one write numbers the exchanges of each sandbox. Exchanges of a sandbox that is gone
// keep no others.
func TestNumbers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.add(1, "/a", 1)
	f.add(2, "/b", 1)
	f.add(3, "/gone", 1)
	f.add(1, "/c", 1)
	f.flush()
	f.add(1, "/d", 1)
	f.flush()
	f.want(1, "1 /a", "2 /c", "3 /d")
	f.want(2, "1 /b")
	f.want(3)
}

// TestLockedLog: the exchanges of a sandbox whose log is locked wait, and others do not.
func TestLockedLog(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.add(1, "/a", 1)
	f.flush()
	tx := f.begin(lockLog)
	f.add(1, "/b", 1)
	f.add(2, "/c", 1)
	f.flush()
	f.want(1, "1 /a")
	f.want(2, "1 /c")
	f.commit(tx)
	f.add(1, "/d", 1)
	f.flush()
	f.want(1, "1 /a", "2 /b", "3 /d")
	if f.dropped.Load() != 0 || f.written.Load() != 4 {
		t.Errorf("%d written, %d dropped", f.written.Load(), f.dropped.Load())
	}
}

// TestLogLockedForOneStatement: if only the first of several statements for a sandbox finds the log
// locked, the exchanges of the others wait behind its exchanges.
func TestLogLockedForOneStatement(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.add(1, "/first", 1)
	f.flush()
	tx := f.begin(lockLog)
	f.afterWrite = sync.OnceFunc(func() { f.commit(tx) })
	want := []string{"1 /first"}
	for number := 2; number <= 1100; number++ { // more than two statements
		path := fmt.Sprint("/", number)
		f.add(1, path, 1)
		want = append(want, fmt.Sprintf("%d %s", number, path))
	}
	f.add(2, "/other", 1)
	f.flush()
	f.want(2, "1 /other")
	f.flush()
	f.want(1, want...)
}

// TestEndWithLockedLog: at the end of the process, the exchanges of a sandbox whose log is locked are
// recorded when it is free.
func TestEndWithLockedLog(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.add(1, "/a", 1)
	f.flush()
	tx := f.begin(lockLog)
	f.afterWrite = sync.OnceFunc(func() { f.commit(tx) })
	f.add(1, "/b", 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.Run(ctx)
	f.want(1, "1 /a", "2 /b")
}

// TestEndDuringWrite: the end of the process does not cancel a write.
func TestEndDuringWrite(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.add(1, "/a", 1)
	f.flush()
	tx := f.begin("LOCK TABLE exchanges")
	f.add(1, "/b", 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.Run(ctx)
	}()
	need.OK(t, pgtest.AwaitLockWaiters(t.Context(), f.database.Pool, 1))
	cancel()
	f.commit(tx)
	<-ended
	f.want(1, "1 /a", "2 /b")
	if f.dropped.Load() != 0 {
		t.Errorf("%d dropped", f.dropped.Load())
	}
}

// TestEndWithoutDatabase: exchanges that are not written before the end of the process are counted and
// logged.
func TestEndWithoutDatabase(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.SetClosingTime(0)
	f.pool.Close()
	f.add(1, "/a", 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.Run(ctx)
	f.want(1)
	if f.dropped.Load() != 1 || !strings.Contains(f.log.String(), "requests=1") {
		t.Errorf("%d dropped, and the log has %q", f.dropped.Load(), f.log.String())
	}
}

// TestLimits: a sandbox keeps its newest exchanges, by number, size and age, also while another one fails.
func TestLimits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const large = exchange.MaxBytes / 8
	for i := range 10 {
		f.add(1, fmt.Sprint("/", i), large)
		f.flush()
	}
	if got := f.paths(1); len(got) != 7 || got[0] != "4 /3" {
		t.Errorf("the record has %q, want the last 7 in less than 16 MiB", got)
	}
	f.exec(`INSERT INTO exchange_logs (account_id, last_number) VALUES (2, 5000);
		INSERT INTO exchanges (account_id, number, start_byte, started_at, microseconds, request_id, api_key_id, method, path, query, operation, status, code, idempotency_key, fault, messages)
		SELECT 2, n, 0, now() - CASE WHEN n < 3001 THEN interval '24 hours 1 minute' ELSE interval '23 hours 59 minutes' END, 1, '', 1, 'GET', '/', '', '', 200, '', '', '', '' FROM generate_series(1, 5000) AS n`)
	f.add(2, "/a", 1)
	f.add(2, "/b", 1)
	f.flush()
	if got := f.paths(2); len(got) != exchange.MaxExchanges || got[0] != "3 /" {
		t.Errorf("the record has %d exchanges from %s on", len(got), got[0])
	}
	f.exec("UPDATE exchanges SET started_at = now() - interval '25 hours' WHERE account_id = 1 AND number = 4")
	resetting := f.begin("SELECT FROM exchanges WHERE account_id = 1 FOR UPDATE")
	if err := exchange.Expire(t.Context(), pgtest.Open(t, f.database.DirectURL+"&lock_timeout=10ms", 1)); !postgres.IsLockTimeout(err) {
		t.Errorf("beside a reset of a sandbox: %v", err)
	}
	pgtest.Rollback(t, resetting)
	if got := f.paths(2); len(got) != 2002 || got[0] != "3001 /" {
		t.Errorf("without the old ones, the record has %d exchanges from %s on", len(got), got[0])
	}
	expired := 0 // statements
	counting := pgtest.Open(t, f.database.URL, 1, pgtest.Statements(func(sql string, _ []any) {
		if strings.HasPrefix(sql, "-- name: ExchangesExpire ") {
			expired++
		}
	}))
	need.OK(t, exchange.Expire(t.Context(), counting))
	need.Same(t, 1, expired, "statements that delete old exchanges of the one sandbox with any")
	if got := f.paths(1); len(got) != 6 || got[0] != "5 /4" {
		t.Errorf("after the reset, the record has %q", got)
	}
	f.exec("UPDATE exchanges SET started_at = now() - interval '25 hours'")
	first, second := f.begin("SELECT FROM exchanges WHERE account_id = 1 FOR UPDATE"), f.begin("SELECT FROM exchanges WHERE account_id = 2 FOR UPDATE")
	err := exchange.Expire(t.Context(), pgtest.Open(t, f.database.DirectURL+"&lock_timeout=10ms", 1))
	if !postgres.IsLockTimeout(err) || strings.Contains(err.Error(), "\n") {
		t.Errorf("beside resets of both sandboxes: %v, want only the first error", err)
	}
	pgtest.Rollback(t, first)
	pgtest.Rollback(t, second)
}

// TestAppendToLongLog: a write looks neither at the exchanges that it keeps, nor at those that earlier ones have
// deleted. PostgreSQL keeps these for long, for example during a dump.
func TestAppendToLongLog(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "its tables have the statistics of their shards elsewhere")
	for _, accounts := range [][]int64{{1}, {1, 2}} {
		f := newFixture(t)
		f.exec(`INSERT INTO exchange_logs (account_id, last_number) VALUES (1, 6000), (2, 6000);
			INSERT INTO exchanges (account_id, number, start_byte, started_at, microseconds, request_id, api_key_id, method, path, query, operation, status, code, idempotency_key, fault, messages)
			SELECT account_id, n, 0, now(), 1, '', 1, 'GET', '/', '', '', 200, '', '', '', '' FROM exchange_logs, generate_series(1, 6000) AS n`)
		f.exec("DELETE FROM exchanges WHERE number <= 1000")
		ones, texts := slices.Repeat([]int64{1}, len(accounts)), slices.Repeat([]string{""}, len(accounts))
		scans, err := postgres.Transact(t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) (scans int, err error) {
			_, err = db.New(tx).ExchangesAppend(ctx, db.ExchangesAppendParams{
				Accounts: accounts, Additions: ones, AddedBytes: ones, Drops: ones,
				OfAccounts: accounts, Positions: ones, StartBytes: ones,
				Started: slices.Repeat([]time.Time{time.Now()}, len(accounts)), Durations: ones, RequestIds: texts, ApiKeyIds: ones, Methods: texts, Paths: texts, Queries: texts,
				Operations: texts, Statuses: slices.Repeat([]int32{200}, len(accounts)), Codes: texts, IdempotencyKeys: texts, Faults: texts, Documents: texts,
				Most: exchange.MaxExchanges, MostBytes: exchange.MaxBytes,
			})
			if err == nil {
				err = tx.QueryRow(ctx, "SELECT idx_scan + seq_tup_read + pg_stat_get_xact_tuples_returned('exchanges_pkey'::regclass) FROM pg_stat_xact_user_tables WHERE relname = 'exchanges'").Scan(&scans)
			}
			return scans, err
		})
		if err != nil || scans > 10*len(accounts) {
			t.Errorf("a write of an exchange for each of %v looks %d times at the others, %v", accounts, scans, err)
		}
		for _, account := range accounts {
			if got := f.paths(account); len(got) != exchange.MaxExchanges || got[0] != "1002 /" {
				t.Errorf("the record of %d has %d exchanges from %s on", account, len(got), got[0])
			}
		}
	}
}

// TestFullBuffer: a sandbox with too many exchanges loses the newest, and no other one does.
func TestFullBuffer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for range 6 {
		f.add(1, "/a", 1<<20)
	}
	f.add(2, "/b", 1)
	f.flush()
	if got := f.paths(1); len(got) != 3 || f.dropped.Load() != 3 {
		t.Errorf("%d exchanges are recorded and %d dropped, want 3 and 3", len(got), f.dropped.Load())
	}
	f.want(2, "1 /b")
	if dropped := pgtest.Read[int](t, f.database.Pool, "SELECT dropped FROM exchange_logs WHERE account_id = 1"); dropped != 3 {
		t.Errorf("the log says that %d were dropped", dropped)
	}
	f.add(1, "/c", 1<<20)
	f.flush()
	if got := f.paths(1); len(got) != 4 {
		t.Errorf("after the write, the buffer is not free: %d", len(got))
	}
}

// TestDrop: one statement counts the dropped exchanges of all sandboxes. If the log of one is locked, its
// number waits, and so it does if the connection breaks.
func TestDrop(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "it has a statement for each sandbox")
	f := newFixture(t)
	f.add(1, "/a", 1)
	f.flush()
	tx := f.begin(lockLog)
	for _, account := range []int64{1, 2, 2, 3} { // 3 is gone
		f.Drop(account)
	}
	want := func(statements int, numbers string) {
		t.Helper()
		ran := 0
		f.afterWrite = func() { ran++ }
		f.flush()
		got := pgtest.Read[string](t, f.database.Pool, "SELECT string_agg(account_id || ':' || dropped, ' ' ORDER BY account_id) FROM exchange_logs")
		if got != numbers || ran != statements {
			t.Errorf("the logs have %s after %d statements, want %s after %d", got, ran, numbers, statements)
		}
	}
	want(1, "1:0 2:2")
	f.commit(tx)
	want(1, "1:1 2:2")
	want(0, "1:1 2:2")

	f.failWrites("08006") // connection_failure
	f.Drop(1)
	want(0, "1:1 2:2")
	f.exec("DROP TRIGGER fail ON exchange_logs")
	want(1, "1:2 2:2")
}

// TestExchangeThatCannotBeStored: one that PostgreSQL rejects is dropped alone.
func TestExchangeThatCannotBeStored(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, path := range []string{"/a", "/b", "/\x00", "/c", "/d"} {
		f.add(1, path, 1)
	}
	f.flush()
	f.want(1, "1 /a", "2 /b", "3 /c", "4 /d")
	if f.dropped.Load() != 1 || f.written.Load() != 4 {
		t.Errorf("%d written, %d dropped", f.written.Load(), f.dropped.Load())
	}
}

// failWrites lets writes to all logs fail.
func (f *fixture) failWrites(state string) {
	f.t.Helper()
	f.exec(fmt.Sprintf(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE SQLSTATE ''%s''; END';
		CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON exchange_logs FOR EACH ROW EXECUTE FUNCTION fail()`, state))
}

// TestFailingDatabase: exchanges wait while the database has no resources, and are dropped if it
// rejects them.
func TestFailingDatabase(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "its tables have no triggers")
	for _, test := range []struct {
		state   string
		dropped int64
		want    []string
	}{
		{"53100", 0, []string{"1 /a", "2 /b"}}, // disk_full
		{"22000", 1, []string{"1 /b"}},         // data_exception
	} {
		t.Run(test.state, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.failWrites(test.state)
			f.add(1, "/a", 1)
			f.flush()
			f.want(1)
			f.exec("DROP TRIGGER fail ON exchange_logs")
			f.add(1, "/b", 1)
			f.flush()
			f.want(1, test.want...)
			logged := pgtest.Read[int64](t, f.database.Pool, "SELECT dropped FROM exchange_logs")
			if f.dropped.Load() != test.dropped || logged != test.dropped {
				t.Errorf("%d dropped, and the log counts %d", f.dropped.Load(), logged)
			}
		})
	}
}
