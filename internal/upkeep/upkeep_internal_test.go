package upkeep

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
	"petstore/internal/webhook"
)

func TestMain(m *testing.M) {
	os.Exit(pgtest.Run(m.Run))
}

// open opens a pool on a database.
func open(t *testing.T, database *pgtest.Database, tracers ...pgx.QueryTracer) *postgres.DB {
	t.Helper()
	const conns = 4
	return pgtest.Open(t, database.URL, conns, tracers...)
}

// openShared opens a pool on the database of the tests that need no rows.
func openShared(t *testing.T) *postgres.DB {
	t.Helper()
	return open(t, need.Value(pgtest.Shared())(t))
}

// TestRun: tasks run at once and again until the context ends, also after an error, which is
// logged.
func TestRun(t *testing.T) {
	t.Parallel()
	pool := openShared(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var log bytes.Buffer
	runs := 0
	Run(ctx, pool, slog.New(slog.NewTextHandler(&log, nil)), []Task{{
		Name: "tidy up", Every: time.Nanosecond,
		Run: func(context.Context) error {
			switch runs++; runs {
			case 1:
				return nil
			case 2:
				return errors.New("out of brooms")
			default:
				cancel()
				return errors.New("after the end")
			}
		},
	}})
	if text := log.String(); runs != 3 || strings.Count(text, `"tidy up"`) != 1 || !strings.Contains(text, "out of brooms") {
		t.Errorf("%d runs, log: %s", runs, text)
	}
}

// TestFirstRuns: the tasks of a process that starts run one after the other.
func TestFirstRuns(t *testing.T) {
	t.Parallel()
	pool := openShared(t)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		var mu sync.Mutex
		var starts []string
		task := Task{Every: time.Hour, Run: func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			starts = append(starts, time.Since(began).String())
			return nil
		}}
		Run(ctx, pool, slog.New(slog.DiscardHandler), []Task{task, task, task})
		if got := strings.Join(starts, " "); got != "0s 10ms 20ms" {
			t.Errorf("the tasks start after %s", got)
		}
	})
}

// TestNextRun: a task is due again after its interval, or sooner after an error.
func TestNextRun(t *testing.T) {
	t.Parallel()
	pool := openShared(t)
	var failure error
	task := Task{Name: "tidy up", Every: time.Hour, Again: time.Minute, Run: func(context.Context) error { return failure }}
	wantNext := func(want time.Duration) {
		t.Helper()
		if got := task.once(t.Context(), pool, slog.New(slog.DiscardHandler)); got != want {
			t.Errorf("the task is due again after %s, want %s", got, want)
		}
	}
	wantNext(time.Hour)
	failure = errors.New("out of brooms")
	wantNext(time.Minute)
	task.Again = 0
	wantNext(time.Hour)
}

// TestTasks: all tasks succeed on a current database. On an empty one they fail, and log
// nothing, because serve has already logged that the schema is behind. Without a database,
// they log a warning.
func TestTasks(t *testing.T) {
	t.Parallel()
	current, empty, closed := openShared(t), open(t, pgtest.NewEmpty(t)), openShared(t)
	closed.Close()
	for _, test := range []struct {
		name     string
		database *postgres.DB
		warnings int
		fails    bool
	}{
		{"current", current, 0, false},
		{"empty", empty, 0, true},
		{"closed", closed, 1, true},
	} {
		for _, task := range Tasks(test.database, &webhook.Vault{}) {
			var log bytes.Buffer
			failed := false
			run := task.Run
			task.Run = func(ctx context.Context) error {
				err := run(ctx)
				failed = err != nil
				return err
			}
			task.once(t.Context(), test.database, slog.New(slog.NewTextHandler(&log, nil)))
			if got := strings.Count(log.String(), task.Name); got != test.warnings || failed != test.fails {
				t.Errorf("%s database, %q: failed %t, %d warnings, want %t and %d", test.name, task.Name, failed, got, test.fails, test.warnings)
			}
		}
	}
}

// TestSweepIdempotencyKeys: one process at a time deletes the stored responses that have expired. Each batch
// begins where the one before ended. An old snapshot keeps the entries of deleted rows, and reading them again
// would take long.
func TestSweepIdempotencyKeys(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	newest := pgtest.Read[time.Time](t, database.Pool, `
		WITH account AS (
			INSERT INTO accounts (name) VALUES ('one') RETURNING id
		), key AS (
			INSERT INTO api_keys (account_id, name, scope, prefix, secret_sha256) SELECT id, 'x', 'read', '', sha256('') FROM account RETURNING account_id, id
		), stored AS (
			INSERT INTO idempotency_keys (account_id, api_key_id, key, fingerprint, status, location, body, created_at)
			SELECT account_id, id, n, sha256(''), 201, '/pets/1', '{}', now() - interval '24 hours' - n * interval '1 second'
			FROM key, generate_series(1, 2 * $1) AS n
			RETURNING created_at
		)
		SELECT max(created_at) FROM stored`, keysPerBatch)
	pgtest.Exec(t, database.Pool, `
		INSERT INTO idempotency_keys (account_id, api_key_id, key, fingerprint, status, location, body, created_at)
		SELECT account_id, api_key_id, 'fresh', fingerprint, status, location, body, now() - interval '23:59' FROM idempotency_keys LIMIT 1`)
	var got []time.Time // from which the batches begin
	pool := open(t, database, pgtest.Statements(func(sql string, args []any) {
		if strings.Contains(sql, "IdempotencyKeySweep") {
			at, _ := args[0].(time.Time)
			got = append(got, at)
		}
	}))
	tx := pgtest.Begin(t, database.Pool)
	need.Same(t, true, need.Value(db.New(tx).IdempotencyKeysTryLockSweep(t.Context()))(t), "whether the sweep is locked")
	need.OK(t, SweepIdempotencyKeys(t.Context(), pool)) // while another process sweeps
	pgtest.Rollback(t, tx)
	need.OK(t, SweepIdempotencyKeys(t.Context(), pool))
	need.Same(t, "fresh", pgtest.Read[string](t, database.Pool, "SELECT coalesce(string_agg(key, ' '), '') FROM idempotency_keys"), "the keys that are left")
	want := []time.Time{{}, newest.Add(-keysPerBatch * time.Second), newest}
	if !slices.EqualFunc(got, want, time.Time.Equal) {
		t.Errorf("batches from %v, want %v", got, want)
	}
}

// TestSweepAPIKeys: keys that were revoked more than 30 days ago end with their uses, and others stay.
func TestSweepAPIKeys(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	exec := func(sql string, args ...any) {
		t.Helper()
		pgtest.Exec(t, database.Pool, sql, args...)
	}
	exec("INSERT INTO accounts (id, name) VALUES (1, 'one'), (2, 'two')")
	exec("INSERT INTO account_state (account_id) VALUES (1), (2)")
	for _, keys := range []struct {
		name             string
		number           int
		expired, revoked any // how long ago; nil: never
	}{
		{"old", keysPerBatch + 1, nil, "31 days"},
		{"live", 1, nil, nil},
		{"expired", 1, "31 days", nil},
		{"recent", 1, "31 days", "29 days"},
	} {
		exec(`INSERT INTO api_keys (account_id, name, scope, prefix, secret_sha256, expires_at, revoked_at)
			SELECT 1 + n % 2, $1, 'read', '', sha256(($1 || n)::bytea), now() - $3::interval, now() - $4::interval
			FROM generate_series(1, $2::int) AS n`, keys.name, keys.number, keys.expired, keys.revoked)
	}
	exec("INSERT INTO api_key_uses SELECT account_id, id, now() FROM api_keys")
	need.OK(t, SweepAPIKeys(t.Context(), open(t, database)))
	if kept := pgtest.Read[string](t, database.Pool, "SELECT string_agg(name, ' ' ORDER BY id) FROM api_keys JOIN api_key_uses ON api_key_id = id"); kept != "live expired recent" {
		t.Errorf("keys after the sweep: %.100s", kept)
	}
}
