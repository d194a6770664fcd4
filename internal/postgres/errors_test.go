package postgres_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// stateOf returns the SQLSTATE of an error, or "".
func stateOf(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

const foreignKeyViolation, insufficientPrivilege = "23503", "42501"

// anyState matches any SQLSTATE, because the client may see the broken connection
// before it reads the server's message.
const anyState = "*"

// TestUnavailable checks errors of real servers and networks.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	database := pgtest.NewEmpty(t)
	pgtest.Exec(t, database.Pool, "CREATE TABLE ones (id int PRIMARY KEY, other int REFERENCES ones); INSERT INTO ones VALUES (1)")
	absent := need.Value(url.Parse(database.URL))(t)
	absent.Path = "/petstore_no_such_database"
	for what, test := range map[string]struct {
		url, sql  string                   // a statement, by default on the database above
		fail      func(t *testing.T) error // instead
		state     string
		available bool
		lost      bool // the connection
	}{
		"terminated connection": {lost: true, state: "57P01", sql: "SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(60)"},
		"connection terminated earlier": {lost: true, state: anyState, fail: func(t *testing.T) error {
			t.Helper()
			conn := need.Value(open(t, database.URL, 1).Pool().Acquire(t.Context()))(t)
			defer conn.Release()
			pgtest.Exec(t, database.Pool, "SELECT pg_terminate_backend($1::int, 10000::bigint)", conn.Conn().PgConn().PID())
			_, err := conn.Exec(t.Context(), "SELECT")
			return err
		}},
		"dropped database":   {state: "3D000", url: absent.String(), sql: "SELECT"},
		"connection refused": {url: closedPort, sql: "SELECT"},
		"deadline of the caller": {fail: func(t *testing.T) error {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err := open(t, database.URL, 1).Exec(ctx, "SELECT pg_sleep(60)")
			return err
		}},

		"unique violation": {available: true, state: "23505", sql: "INSERT INTO ones VALUES (1)"},
		"no rows": {available: true, fail: func(t *testing.T) error {
			t.Helper()
			return open(t, database.URL, 1).QueryRow(t.Context(), "SELECT WHERE false").Scan()
		}},
		"no error":      {available: true, sql: "SELECT"},
		"another error": {available: true, fail: func(*testing.T) error { return errors.New("another") }},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var err error
			if test.sql != "" {
				_, err = open(t, cmp.Or(test.url, database.URL), 1).Exec(t.Context(), test.sql)
			} else {
				err = test.fail(t)
			}
			if got := stateOf(err); got != test.state && test.state != anyState {
				t.Errorf("%v has the SQLSTATE %q, want %q", err, got, test.state)
			}
			if got := postgres.Unavailable(err); got == test.available {
				t.Errorf("Unavailable(%v) = %t", err, got)
			}
			if got := postgres.ConnectionLost(err); got != test.lost {
				t.Errorf("ConnectionLost(%v) = %t", err, got)
			}
			if err == nil {
				return
			}
			if got := postgres.Unavailable(fmt.Errorf("wrapped: %w", err)); got == test.available {
				t.Errorf("wrapped, Unavailable(%v) = %t", err, got)
			}
			if got, want := postgres.IsUniqueViolation(err), test.state == "23505"; got != want {
				t.Errorf("IsUniqueViolation(%v) = %t", err, got)
			}
		})
	}
}

// TestUnavailableStates checks states that are hard to reproduce. A real server
// raises them.
func TestUnavailableStates(t *testing.T) {
	t.Parallel()
	pool := open(t, shared(t).OwnerURL, 1)
	for state, unavailable := range map[string]bool{
		"08006": true, "08P01": true, "25006": true, "25P03": true, "25P04": true, "40001": true, "40P01": true, "53100": true, "53200": true, "53300": true,
		"55000": true, "55P03": true, "57014": true, "57P01": true, "57P02": true, "57P03": true, "57P04": true, "57P05": true, "58030": true,
		"22001": false, "22003": false, "22021": false, "22P02": false, "23502": false, "23503": false, "23505": false, "23514": false, "25P02": false,
		"40002": false, "42501": false, "42601": false, "42703": false, "42804": false, "42P01": false, "P0001": false, "XX000": false,
	} {
		_, err := pool.Exec(t.Context(), fmt.Sprintf("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '%s'; END $$", state))
		if got := stateOf(err); got != state {
			t.Fatalf("raised %s, caught %q: %v", state, got, err)
		}
		if got := postgres.Unavailable(err); got != unavailable {
			t.Errorf("%s: Unavailable = %t", state, got)
		}
		if got, want := postgres.ConnectionLost(err), strings.HasPrefix(state, "08") || strings.HasPrefix(state, "57P") || state == "25P03" || state == "25P04"; got != want {
			t.Errorf("%s: ConnectionLost = %t", state, got)
		}
		if got, want := postgres.RolledBack(err), !strings.HasPrefix(state, "08"); got != want {
			t.Errorf("%s: RolledBack = %t", state, got)
		}
		// a pooler without its server reports class 08
		if got, want := postgres.StartingUp(err), state == "57P03" || state == "53300" || strings.HasPrefix(state, "08"); got != want {
			t.Errorf("%s: StartingUp = %t", state, got)
		}
	}
}

// TestErrorsOfServer checks errors whose severity or message counts, too, and which are hard to reproduce.
// TestLostWorkerOnCitus has real ones of a coordinator that has lost a worker.
func TestErrorsOfServer(t *testing.T) {
	t.Parallel()
	const wraparound = `database is not accepting commands that assign new transaction IDs to avoid wraparound data loss in database "petstore"`
	for _, test := range []struct {
		severity, code, message       string
		unavailable, lost, rolledBack bool
	}{
		{"PANIC", "58030", "fsync fails at COMMIT", true, true, false},
		{"PANIC", "XX000", "any other crash", true, true, false},
		{"ERROR", "58030", "fsync fails, no crash", true, false, true},
		{"FATAL", "25P04", "a transaction_timeout", true, true, true},
		{"ERROR", "54000", wraparound, true, false, true},
		{"ERROR", "54000", "index row size exceeds maximum", false, false, true},
		{"ERROR", "XX000", "server closed the connection unexpectedly\n\tThis probably means the server terminated abnormally", true, true, false},
		{"ERROR", "XX000", "could not receive data from server: Connection reset by peer", true, true, false},
		{"ERROR", "XX000", "could not send data to server: Broken pipe", true, true, false},
		{"ERROR", "XX000", "SSL SYSCALL error: EOF detected", true, true, false},
		{"ERROR", "XX000", "FATAL:  terminating connection due to administrator command", true, true, false},
		{"ERROR", "XX000", "failure on connection marked as essential: 127.0.0.1:5432", true, true, false},
		{"ERROR", "XX000", "could not commit transaction for shard 102013 on at least one active node", true, true, false},
		{"ERROR", "XX000", "cache lookup failed for relation 16384", false, false, true},
		{"ERROR", "P0001", "could not commit transaction for shard 1", false, false, true},
	} {
		err := fmt.Errorf("wrapped: %w", &pgconn.PgError{SeverityUnlocalized: test.severity, Code: test.code, Message: test.message})
		if unavailable, lost, rolledBack := postgres.Unavailable(err), postgres.ConnectionLost(err), postgres.RolledBack(err); unavailable != test.unavailable || lost != test.lost || rolledBack != test.rolledBack {
			t.Errorf("%s %s, %s: Unavailable %t, ConnectionLost %t, RolledBack %t", test.severity, test.code, test.message, unavailable, lost, rolledBack)
		}
	}
}

func TestStartingUp(t *testing.T) {
	t.Parallel()
	if err := open(t, closedPort, 1).Ping(t.Context()); !postgres.StartingUp(err) {
		t.Errorf("connection refused: %v", err)
	}
	if postgres.StartingUp(nil) || postgres.StartingUp(errors.New("another")) {
		t.Error("StartingUp accepts any error")
	}
	err := &pgconn.PgError{Code: "08P01", Message: "transaction blocks not allowed in statement pooling mode"} // of PgBouncer at BEGIN
	if got := postgres.Explain(err); postgres.StartingUp(err) || !strings.HasSuffix(got, "; set pool_mode = transaction in the connection pooler") {
		t.Errorf("explained as %q: %v", got, err)
	}
}

// TestRetry: Retry repeats a transaction at most three times if the server ended it because of
// another one, and time is left.
func TestRetry(t *testing.T) {
	t.Parallel()
	pool := open(t, shared(t).OwnerURL, 1)
	for _, test := range []struct {
		state           string
		fails, attempts int
		canceled        bool // during the first attempt
	}{
		{state: "40001", fails: 0, attempts: 1},
		{state: "40001", fails: 1, attempts: 2},
		{state: "40001", fails: 3, attempts: 4},
		{state: "40001", fails: 4, attempts: 4},
		{state: "40P01", fails: 1, attempts: 2},
		{state: "23505", fails: 1, attempts: 1},
		{state: "40001", fails: 1, attempts: 1, canceled: true},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		attempts := 0
		got, err := postgres.Retry(ctx, pool, func(ctx context.Context, result int) (int, error) {
			if attempts++; attempts > test.fails {
				return result, nil
			}
			_, err := pool.Exec(ctx, fmt.Sprintf("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '%s'; END $$", test.state))
			if test.canceled {
				cancel()
			}
			return 0, err
		}, 7)
		cancel()
		result, state := 7, ""
		if test.attempts <= test.fails {
			result, state = 0, test.state
		}
		if attempts != test.attempts || got != result || stateOf(err) != state {
			t.Errorf("%+v: %d attempts ended with %d and %v", test, attempts, got, err)
		}
	}
}

// TestExplainHidesTheURL: the driver's message about an invalid URL has parts of a password.
func TestExplainHidesTheURL(t *testing.T) {
	t.Parallel()
	_, err := postgres.OpenAs(t.Context(), "petstore", "postgres://me:hun/t@er2@host/x?sslmode=no", 1)
	if got := postgres.Explain(postgres.OfVariable("PETSTORE_DIRECT_URL", err)); got != "PETSTORE_DIRECT_URL is not the URL of a PostgreSQL database" {
		t.Errorf("%v is explained as %q", err, got)
	}
}

// TestIgnoredErrors: a transaction in which a statement has failed is an error, also if the action
// ignores that.
func TestIgnoredErrors(t *testing.T) {
	t.Parallel()
	const fails = "SELECT 1 / 0"
	pool := open(t, shared(t).OwnerURL, 1)
	_, err := postgres.Transact(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) (pgconn.CommandTag, error) {
		_, _ = tx.Exec(ctx, fails)
		return pgconn.CommandTag{}, nil
	})
	_, pipeErr := postgres.Pipe(t.Context(), pool, func(ctx context.Context, p *postgres.Pipeline) error {
		batch := &pgx.Batch{}
		batch.Queue(fails)
		results := p.SendBatch(ctx, batch)
		if err := p.Send(ctx); err != nil {
			return err
		}
		_, _ = results.Exec()
		_ = p.Commit(ctx, nil)
		return p.Commit(ctx, nil)
	})
	if !errors.Is(err, pgx.ErrTxCommitRollback) || !errors.Is(pipeErr, pgx.ErrTxCommitRollback) {
		t.Errorf("the transactions end with %v and %v", err, pipeErr)
	}
	need.OK(t, pool.Ping(t.Context()))
}
