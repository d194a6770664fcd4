package postgres_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// open opens a pool that the test closes. The parameters are names and values that
// are added to the URL.
func open(t *testing.T, databaseURL string, maxConns int, parameters ...string) *postgres.DB {
	t.Helper()
	parsed := need.Value(url.Parse(databaseURL))(t)
	query := parsed.Query()
	for i := 0; i+1 < len(parameters); i += 2 {
		query.Set(parameters[i], parameters[i+1])
	}
	parsed.RawQuery = query.Encode()
	return openAsServer(t, parsed.String(), maxConns)
}

// openAsServer opens a pool until the test ends, whose statements wait for a connection as long as in a server.
func openAsServer(t *testing.T, databaseURL string, maxConns int, tracers ...pgx.QueryTracer) *postgres.DB {
	t.Helper()
	pool := need.Value(postgres.Open(t.Context(), databaseURL, maxConns, tracers...))(t)
	t.Cleanup(pool.Close)
	return pool
}

// closedPort is the URL of a port without a listener. The system gives it to no other test.
const closedPort = "postgres://petstore@127.0.0.1:1/petstore?sslmode=disable"

// mute returns the URL of a server that accepts connections and sends nothing.
func mute(t *testing.T) string {
	t.Helper()
	silent := pgtest.ServeTCP(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	return "postgres://petstore@" + silent + "/petstore?sslmode=disable"
}

// TestChangedPassword: a new connection has the password that its file has by then.
func TestChangedPassword(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pgpass")
	write := func(password string) { need.OK(t, os.WriteFile(file, []byte("*:*:*:*:"+password), 0o600)) }
	write("first")
	pool := need.Value(postgres.Open(t.Context(), "postgres://petstore@127.0.0.1/petstore?passfile="+file, 1))(t)
	t.Cleanup(pool.Close)
	write("second")
	config := pool.Pool().Config()
	need.OK(t, config.BeforeConnect(t.Context(), config.ConnConfig))
	need.Same(t, []string{"second", "second"}, []string{config.ConnConfig.Password, pool.OutsideConfig().Password}, "the passwords of new connections")
}

// TestStatementsMayEnd: a statement that ends soon after its context does not cost its connection.
func TestStatementsMayEnd(t *testing.T) {
	t.Parallel()
	url := pgtest.NewEmpty(t).DirectURL
	owner, db := open(t, url, 1), open(t, url, 1)
	pgtest.Exec(t, owner.Pool(), "CREATE TABLE held (id int)")
	backend := func() int64 { return pgtest.Read[int64](t, db.Pool(), "SELECT pg_backend_pid()") }
	need.Within(t, 30*time.Second, "a connection survives the end of its context", func() bool {
		before := backend()
		lock := pgtest.Begin(t, owner.Pool())
		pgtest.Exec(t, lock, "LOCK TABLE held")
		ctx, end := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = db.Pool().QueryRow(ctx, "SELECT count(*) FROM held").Scan(new(int64)) })
		need.Within(t, 30*time.Second, "the statement waits", func() bool { return need.Value(pgtest.LockWaiters(t.Context(), lock))(t) == 1 })
		end()
		pgtest.Rollback(t, lock)
		running.Wait()
		return backend() == before
	})
}

// TestSessionLimits: every connection has the default limits, or the limits of the URL.
func TestSessionLimits(t *testing.T) {
	t.Parallel()
	database := pgtest.NewEmpty(t)
	pgtest.Exec(t, database.Pool, repeatableRead)
	for _, test := range []struct {
		pool *postgres.DB
		want map[string]string
	}{
		{open(t, database.URL, 1), map[string]string{"statement_timeout": "5s", "lock_timeout": "2s", "idle_in_transaction_session_timeout": "10s", "TimeZone": "UTC", "jit": "off", "default_transaction_isolation": "read committed", "application_name": "petstore"}},
		{open(t, database.URL, 1, "statement_timeout", "1s", "application_name", "ours"), map[string]string{"statement_timeout": "1s", "lock_timeout": "2s", "application_name": "petstore ours"}},
	} {
		for name, want := range test.want {
			if got := pgtest.Read[string](t, test.pool, "SELECT current_setting($1)", name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
	}
}

// TestConnectionsAreGivenBack: every way to end a statement releases its
// connection. The pool has one connection, so the next statement would fail.
func TestConnectionsAreGivenBack(t *testing.T) {
	t.Parallel()
	pool := open(t, shared(t).OwnerURL, 1)
	ctx := t.Context()
	var number int
	for range 3 {
		if err := pool.QueryRow(ctx, "SELECT $1::int", 7).Scan(&number); err != nil || number != 7 {
			t.Errorf("a row: %d, %v", number, err)
		}
		if err := pool.QueryRow(ctx, "SELECT 1 WHERE $1::int > 7", 7).Scan(&number); !errors.Is(err, pgx.ErrNoRows) {
			t.Errorf("no row: %v", err)
		}
		if err := pool.QueryRow(ctx, "SELECT 'x' || $1::text", "y").Scan(&number); err == nil {
			t.Errorf("a text was read as a number")
		}
		if err := pool.QueryRow(ctx, "SELEC").Scan(&number); err == nil {
			t.Errorf("no SQL, and no error")
		}
		if err := pool.QueryRow(ctx, "SELECT 1 / $1::int", 0).Scan(&number); err == nil {
			t.Errorf("a division by zero, and no error")
		}
		if err := pool.QueryRow(ctx, "SELECT generate_series(1, $1::int)", 1000).Scan(&number); err != nil || number != 1 {
			t.Errorf("the first of many rows: %d, %v", number, err)
		}
		rows := need.Value(pool.Query(ctx, "SELECT generate_series(1, $1::int)", 1000))(t)
		rows.Next()
		rows.Close() // before the end
		rows.Close()
		if tag, err := pool.Exec(ctx, "SELECT $1::int", 1); err != nil || tag.RowsAffected() != 1 {
			t.Errorf("%v, %v", tag, err)
		}
		if _, err := pool.Exec(ctx, "SELEC"); err == nil {
			t.Errorf("no SQL, and no error")
		}
		if err := pool.Ping(ctx); err != nil {
			t.Errorf("%v", err)
		}
	}
	if acquired := pool.Pool().Stat().AcquiredConns(); acquired != 0 {
		t.Errorf("%d connections were not released", acquired)
	}
}

// waits checks that the wait of each statement for a connection ends within a second.
type waits struct {
	pgx.QueryTracer
	t *testing.T
}

func (w waits) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	if end, ok := ctx.Deadline(); !ok || time.Until(end) > time.Second {
		w.t.Errorf("a statement waits for a connection until %v", end)
	}
	return ctx
}

func (waits) TraceAcquireEnd(context.Context, *pgxpool.Pool, pgxpool.TraceAcquireEndData) {}

// openTimed opens a pool of one connection that checks how long statements wait for it.
func openTimed(t *testing.T, url string) *postgres.DB {
	t.Helper()
	return openAsServer(t, url, 1, waits{pgtest.Statements(func(string, []any) {}), t})
}

// TestPoolExhausted: callers that wait for a connection get an error after a
// second, all at the same time. The pool works again when a connection is free.
func TestPoolExhausted(t *testing.T) {
	t.Parallel()
	pool := openTimed(t, shared(t).OwnerURL)
	need.OK(t, pool.Ping(t.Context())) // opens the connection
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	held := need.Value(pool.Pool().Acquire(ctx))(t)
	const waiters = 20
	failed, began := make(chan error, waiters), time.Now()
	for i := range waiters {
		go func() {
			if i%2 == 0 {
				failed <- pool.Ping(t.Context())
			} else {
				failed <- pool.QueryRow(t.Context(), "SELECT").Scan()
			}
		}()
	}
	for range waiters {
		if err := <-failed; !postgres.Unavailable(err) {
			t.Errorf("%v is not Unavailable", err)
		}
	}
	if took := time.Since(began); took < 900*time.Millisecond {
		t.Errorf("the callers got their errors after %s", took)
	}
	held.Release()
	need.OK(t, pool.Ping(t.Context()))
}

// TestMuteServer: a server that accepts connections and does not respond is
// unavailable as quickly as an exhausted pool.
func TestMuteServer(t *testing.T) {
	t.Parallel()
	pool := openTimed(t, mute(t))
	if err := pool.Ping(t.Context()); !postgres.Unavailable(err) || !postgres.StartingUp(err) {
		t.Errorf("%v is not Unavailable and StartingUp", err)
	}
}

// TestBackendsTerminated: the pool sends no statement on a connection that the
// server has closed, so none fails.
func TestBackendsTerminated(t *testing.T) {
	t.Parallel()
	const conns = 3
	database := pgtest.New(t)
	pool := open(t, database.DirectURL, conns)
	for range 3 {
		fill(t, pool, conns)
		// Wait until the connections are gone.
		if terminated := pgtest.Read[int](t, database.Pool, `
			SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'petstore'`); terminated != conns {
			t.Errorf("%d connections terminated, want %d", terminated, conns)
		}
		for range conns {
			need.OK(t, pool.Ping(t.Context()))
		}
	}
}

// TestAcquireWhileReading: pgx may release a connection with a read still running,
// and the connection check must not wait for that.
func TestAcquireWhileReading(t *testing.T) {
	t.Parallel()
	pool := open(t, shared(t).URL, 1)
	conn := need.Value(pool.Pool().Acquire(t.Context()))(t)
	under := conn.Conn().PgConn().Conn()
	conn.Release()
	ended := make(chan struct{})
	go func() {
		_, _ = under.Read(make([]byte, 1)) // until the connection is closed
		close(ended)
	}()
	acquired := make(chan error, 1)
	go func() {
		for range 100 { // by then the read is running
			again, err := pool.Pool().Acquire(t.Context())
			if err != nil {
				acquired <- err
				return
			}
			again.Release()
		}
		acquired <- nil
	}()
	select {
	case err := <-acquired:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the idle connection is not available")
	}
	need.OK(t, under.Close())
	<-ended
}

// TestReadOnlyServer: after the first write that fails because the server is
// read-only, the pool closes all connections to it, also if the clock has gone back.
func TestReadOnlyServer(t *testing.T) {
	t.Parallel()
	const conns = 3
	pool := open(t, shared(t).DirectURL, conns)
	pool.SetLastReset(time.Now().Add(time.Hour))
	held := acquire(t, pool, conns)
	for _, conn := range held {
		pgtest.Exec(t, conn, "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
	}
	release(held)
	write := func() error {
		_, err := pool.Exec(t.Context(), "DELETE FROM accounts WHERE id = 0")
		return err
	}
	if err := write(); !postgres.Unavailable(err) {
		t.Errorf("a write on a standby: %v, want an unavailable error", err)
	}
	for range 2 * conns {
		if err := write(); err != nil {
			t.Errorf("a write after that: %v", err)
		}
	}
}

// TestReadOnlyServerKeepsConnections: a server that stays read-only serves reads. Writes that fail do
// not close the connections of others each time.
func TestReadOnlyServerKeepsConnections(t *testing.T) {
	t.Parallel()
	const conns, writes = 3, 30
	pool := open(t, shared(t).DirectURL, conns, "default_transaction_read_only", "on")
	began := time.Now()
	for range writes {
		if _, err := pool.Exec(t.Context(), "INSERT INTO accounts (name) VALUES ('a')"); !postgres.Unavailable(err) {
			t.Fatalf("a write: %v, want an unavailable error", err)
		}
	}
	seconds := 1 + int64(time.Since(began)/time.Second)
	if opened := pool.Pool().Stat().NewConnsCount(); opened > conns*(1+seconds) {
		t.Errorf("%d writes in %d s opened %d connections", writes, seconds, opened)
	}
}

// TestBounded: a handle with a bound ends a statement, and a transaction with several, that take
// longer. The pool goes on with other connections.
func TestBounded(t *testing.T) {
	t.Parallel()
	const longest = 100 * time.Millisecond
	unbounded := open(t, shared(t).OwnerURL, 1)
	pool := unbounded.Bounded(longest)
	type statements interface {
		Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
	}
	wait := func(ctx context.Context, on statements, d time.Duration) error {
		_, err := on.Exec(ctx, "SELECT pg_sleep($1::float8)", d.Seconds())
		return err
	}
	for what, long := range map[string]func(context.Context) error{
		"a statement": func(ctx context.Context) error { return wait(ctx, pool.Writing(), time.Minute) },
		"a transaction": func(ctx context.Context) error {
			_, err := postgres.Transact(ctx, pool, func(ctx context.Context, tx pgx.Tx) (any, error) {
				for range 20 {
					if err := wait(ctx, tx, longest/10); err != nil {
						return nil, err
					}
				}
				return nil, nil
			})
			return err
		},
	} {
		err := long(t.Context())
		if _, isServers := errors.AsType[*pgconn.PgError](err); err == nil || isServers {
			t.Errorf("%s ended with %v", what, err)
		}
		if err := wait(t.Context(), unbounded, 0); err != nil {
			t.Errorf("after %s: %v", what, err)
		}
	}
}

// TestBoundAtTheEnd: nobody gets a connection that the bound of another one is closing.
func TestBoundAtTheEnd(t *testing.T) {
	t.Parallel()
	pool := open(t, shared(t).OwnerURL, 1)
	before := need.Value(pool.ReleaseOverdue(t.Context()))(t)
	var process uint32
	need.OK(t, pool.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&process))
	if process == before {
		t.Error("the next statement got the connection")
	}
}

// TestWritesLeaveConnections: writes hold all but two connections at most, and a
// write that ends lets the next one start.
func TestWritesLeaveConnections(t *testing.T) {
	t.Parallel()
	const size, writers = 5, 3
	pool := open(t, shared(t).OwnerURL, size)
	hold := func(d *postgres.DB) (release func()) {
		t.Helper()
		rows := need.Value(d.Query(t.Context(), "SELECT"))(t) //nolint:sqlclosecheck // held until the end on purpose
		t.Cleanup(rows.Close)
		return rows.Close
	}
	fails := func() {
		t.Helper()
		if _, err := pool.Writing().Exec(t.Context(), "SELECT"); !postgres.Unavailable(err) {
			t.Errorf("one more write: %v", err)
		}
	}
	release := hold(pool.Writing())
	for range writers - 1 {
		hold(pool.Writing())
	}
	fails()
	for range size - writers {
		hold(pool)
	}
	release()
	release() // a second release has no effect
	hold(pool.Writing())
	fails()
	nothing := func(context.Context, pgx.Tx) (any, error) { return nil, nil }
	if _, err := postgres.Transact(t.Context(), pool, nothing); !postgres.Unavailable(err) {
		t.Errorf("one more transaction: %v", err)
	}
	if got := pool.CanceledWrites(); got != 3 {
		t.Errorf("%d canceled writes", got)
	}
}
