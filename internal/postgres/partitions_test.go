package postgres_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
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

// wantedPartitions names the partitions that events must have after maintain_events: one
// for each of the weeks from $1 before this one to four after it. A week is dropped when its last
// moment is 30 days ago.
const wantedPartitions = `
	SELECT 'events_' || to_char(week, 'YYYYMMDD')
	FROM (SELECT date_trunc('week', now() AT TIME ZONE 'UTC')::date + 7 * n AS week FROM generate_series(-$1::int, 4) AS n) AS weeks
	WHERE week + 37 > (now() AT TIME ZONE 'UTC')::date
	ORDER BY 1`

// partitionsOf returns the names of the partitions of events, sorted.
func partitionsOf(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	return pgtest.List[string](t, pool, "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'events'::regclass ORDER BY 1")
}

// addOldPartitions gives events the partitions of some weeks before this one. Each has an
// event of its first and one of its last moment.
func addOldPartitions(t *testing.T, pool *pgxpool.Pool, weeks int) {
	t.Helper()
	for n := 1; n <= weeks; n++ {
		var name, from, to string
		need.OK(t, pool.QueryRow(t.Context(), `
			SELECT 'events_' || to_char(week, 'YYYYMMDD'), week || ' 00:00:00+00', week + 7 || ' 00:00:00+00'
			FROM (SELECT date_trunc('week', now() AT TIME ZONE 'UTC')::date - 7 * $1::int AS week) AS weeks`, n).Scan(&name, &from, &to))
		pgtest.Exec(t, pool, "CREATE TABLE "+name+" PARTITION OF events FOR VALUES FROM ('"+from+"') TO ('"+to+"')")
		for i, at := range []string{"'" + from + "'", "timestamptz '" + to + "' - interval '1 microsecond'"} {
			pgtest.Exec(t, pool, "INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data) VALUES ($1, $2, "+at+", 0, 'store.reset', '/account', '{}')", n, 1+i)
		}
	}
}

// dropPartition drops a partition of events.
func dropPartition(t *testing.T, pool *pgxpool.Pool, name string) {
	t.Helper()
	pgtest.Exec(t, pool, "DROP TABLE "+name)
}

// maintain calls maintain_events, and returns the number of partitions that it has created
// and dropped.
func maintain(t *testing.T, pool interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
},
) (changed int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), "SELECT maintain_events()").Scan(&changed); err != nil {
		t.Errorf("maintain_events: %v", err)
	}
	return changed
}

// TestEventPartitions: the serving role, which may not create tables, has partitions
// created for the next weeks and dropped after 30 days. They belong to the owner.
func TestEventPartitions(t *testing.T) {
	t.Parallel()
	const old = 10 // weeks
	database := pgtest.New(t)
	want := pgtest.List[string](t, database.Pool, wantedPartitions, 0)
	need.Same(t, want, partitionsOf(t, database.Pool), "partitions after the migration")
	serving := open(t, database.URL, 1)
	if changed := maintain(t, serving); changed != 0 {
		t.Errorf("%d partitions changed without need", changed)
	}
	addOldPartitions(t, database.Pool, old)
	dropPartition(t, database.Pool, want[0])
	dropPartition(t, database.Pool, want[4])
	kept := pgtest.List[string](t, database.Pool, wantedPartitions, old)
	if changed, want := maintain(t, serving), 2+old+5-len(kept); changed != want {
		t.Errorf("%d partitions changed, want %d", changed, want)
	}
	need.Same(t, kept, partitionsOf(t, database.Pool), "partitions")
	if events := pgtest.Read[int](t, database.Pool, "SELECT count(*) FROM events"); events != 2*(len(kept)-5) {
		t.Errorf("%d events are kept, want %d", events, 2*(len(kept)-5))
	}
	page := need.Value(os.ReadFile("../docs/pages/webhooks.md"))(t) // a replay sends the oldest event again
	_, text, _ := strings.Cut(string(page), "Store each id for ")
	stored, _, _ := strings.Cut(text, " with")
	if older := pgtest.Read[int](t, database.Pool, "SELECT count(*) FROM events WHERE created_at < now() - $1::interval", stored); older > 0 {
		t.Errorf("receivers store ids for %q, and the feed has %d older events", stored, older)
	}
	const ofOwner = `
		SELECT count(*)
		FROM pg_class AS part
		JOIN pg_inherits ON inhrelid = part.oid AND inhparent = 'events'::regclass
		JOIN pg_class AS parent ON parent.oid = inhparent
		WHERE part.relowner = parent.relowner`
	if owned := pgtest.Read[int](t, database.Pool, ofOwner); owned != len(kept) {
		t.Errorf("the owner of events owns %d of %d partitions", owned, len(kept))
	}
	_, err := serving.Exec(t.Context(), "DROP TABLE "+want[0])
	if stateOf(err) != insufficientPrivilege {
		t.Errorf("the serving role drops a partition: %v", err)
	}
}

// TestEventPartitionsInAnySession: neither the time zone, nor the format of dates, nor the
// search path of the caller changes the bounds.
func TestEventPartitionsInAnySession(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	const bounds = `
		SELECT inhrelid::regclass::text || ' ' || pg_get_expr(relpartbound, oid)
		FROM pg_inherits
		JOIN pg_class ON oid = inhrelid
		WHERE inhparent = 'events'::regclass
		ORDER BY 1`
	before, names := pgtest.List[string](t, database.Pool, bounds), partitionsOf(t, database.Pool)
	for _, setting := range [][2]string{
		{"timezone", "Pacific/Kiritimati"},
		{"timezone", "Pacific/Pago_Pago"},
		{"datestyle", "German"},
		{"datestyle", "SQL, MDY"},
		{"datestyle", "SQL, DMY"},
		{"datestyle", "Postgres, DMY"},
		{"search_path", "pg_catalog"},
		{"intervalstyle", "sql_standard"},
	} {
		for _, name := range names[1:] {
			dropPartition(t, database.Pool, name)
		}
		conn := need.Value(pgx.Connect(t.Context(), database.OwnerURL))(t)
		pgtest.Exec(t, conn, "SELECT set_config($1, $2, false)", setting[0], setting[1])
		if changed := pgtest.Read[int](t, conn, "SELECT public.maintain_events()"); changed != len(names)-1 {
			t.Errorf("%s: %d partitions", setting, changed)
		}
		need.OK(t, conn.Close(t.Context()))
		need.Same(t, before, pgtest.List[string](t, database.Pool, bounds), "%s (want: before, got: after)", setting)
	}
}

// TestEventPartitionsBesideTransactions: an open transaction that has read and written
// events, such as a dump, does not keep the next partitions from being created. The
// old ones are dropped when it has ended. A statement that waits meanwhile succeeds.
func TestEventPartitionsBesideTransactions(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	names := partitionsOf(t, database.Pool)
	addOldPartitions(t, database.Pool, 8)
	dropPartition(t, database.Pool, names[4])
	kept := pgtest.List[string](t, database.Pool, wantedPartitions, 8)
	old := slices.DeleteFunc(pgtest.List[string](t, database.Pool, "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'events'::regclass"),
		func(name string) bool { return slices.Contains(kept, name) })
	dump := pgtest.Begin(t, database.Pool)
	pgtest.Exec(t, dump, "INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data) SELECT 1, 3, now(), 0, 'store.reset', '/account', '{}' FROM (SELECT count(*) FROM events) AS counted")
	serving := open(t, database.URL, 1)
	if changed := maintain(t, serving); changed != 1 {
		t.Errorf("%d partitions changed beside a transaction, want the one that was missing", changed)
	}
	if got := partitionsOf(t, database.Pool); !slices.Contains(got, names[4]) || len(got) != len(kept)+len(old) {
		t.Errorf("partitions beside a transaction: %v", got)
	}
	need.OK(t, dump.Commit(t.Context()))
	if changed := maintain(t, serving); changed != len(old) {
		t.Errorf("%d partitions changed after the transaction, want %d", changed, len(old))
	}
	need.Same(t, kept, partitionsOf(t, database.Pool), "partitions")
}

// TestEventPartitionsWithoutStandby: while the synchronous standby is away, old partitions are dropped. Otherwise COMMIT
// would hold their locks until then, and all reads of events would wait.
func TestEventPartitionsWithoutStandby(t *testing.T) {
	t.Parallel()
	database, _ := pgtest.NewCluster(t) // the setting affects all databases of a cluster
	addOldPartitions(t, database.Pool, 8)
	pgtest.Exec(t, database.Pool, "ALTER SYSTEM SET synchronous_standby_names = 'away'")
	pgtest.Exec(t, database.Pool, "SELECT pg_reload_conf()")
	other := need.Value(pgx.Connect(t.Context(), database.OwnerURL))(t)
	var commits sync.WaitGroup
	commits.Go(func() { // commits until a commit waits
		var err error
		for i := 0; err == nil; i++ {
			_, err = other.Exec(t.Context(), "INSERT INTO accounts (name) VALUES ($1)", strconv.Itoa(i))
		}
	})
	need.Within(t, 30*time.Second, "a commit waits for the standby", func() bool {
		return pgtest.Read[bool](t, database.Pool, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')")
	})
	need.OK(t, open(t, database.URL, 1).MaintainEvents(t.Context()))
	need.Same(t, pgtest.List[string](t, database.Pool, wantedPartitions, 8), partitionsOf(t, database.Pool), "partitions")
	pgtest.Exec(t, database.Pool, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	commits.Wait()
}

// TestEventPartitionsByOperator: an operator creates the partitions with psql, whose session
// has the default settings of the planner. The names and bounds of other tables are not
// dates, and PostgreSQL has analyzed the catalogs.
func TestEventPartitionsByOperator(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	conn := need.Value(pgx.Connect(t.Context(), database.OwnerURL))(t)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	const prepare = `
		RESET ALL;
		CREATE TABLE events_backup (at text) PARTITION BY LIST (at);
		CREATE TABLE events_20261399 PARTITION OF events_backup FOR VALUES IN ('20261399');
		CREATE TABLE numbers (n int) PARTITION BY RANGE (n);
		CREATE TABLE numbers_99999999 PARTITION OF numbers FOR VALUES FROM (1) TO (MAXVALUE)`
	for _, statements := range []string{prepare, "ANALYZE"} {
		need.Value(conn.PgConn().Exec(t.Context(), statements).ReadAll())(t)
	}
	if changed := maintain(t, conn); changed != 0 {
		t.Errorf("%d partitions changed without need", changed)
	}
	names := partitionsOf(t, database.Pool)
	for _, name := range names {
		dropPartition(t, database.Pool, name)
	}
	if changed := maintain(t, conn); changed != len(names) {
		t.Errorf("%d partitions changed, want %d", changed, len(names))
	}
	need.Same(t, names, partitionsOf(t, database.Pool), "partitions")
}

// TestEventPartitionsBesideOthers: partitions that an operator has added stay, and the others
// fill the times between them. So each event of five weeks has a partition.
func TestEventPartitionsBesideOthers(t *testing.T) {
	t.Parallel()
	const attach = "CREATE TABLE mine PARTITION OF events "
	database := pgtest.New(t)
	serving := open(t, database.URL, 1)
	for what, test := range map[string]struct{ sql, want string }{ // {7} is the Monday of the next week
		"default":          {attach + "DEFAULT", "events_{0} events_{7} events_{14} events_{21} events_{28} mine"},
		"default in use":   {attach + "DEFAULT; INSERT INTO events SELECT 1, 1, now(), 0, 'x', '/', '{}'", "events_{7} events_{14} events_{21} events_{28} mine"},
		"days of a week":   {attach + "FOR VALUES FROM ('{8}') TO ('{10}')", "events_{0} events_{7} events_{10} events_{14} events_{21} events_{28} mine"},
		"an hour":          {attach + "FOR VALUES FROM ('{7} 06:00Z') TO ('{7} 07:00Z')", "events_{0} events_{7} events_{7}_ events_{14} events_{21} events_{28} mine"},
		"parts of weeks":   {attach + "FOR VALUES FROM ('{10}') TO ('{24}')", "events_{0} events_{7} events_{24} events_{28} mine"},
		"without bounds":   {attach + "FOR VALUES FROM ('{21}') TO (MAXVALUE)", "events_{0} events_{7} events_{14} mine"},
		"old":              {attach + "FOR VALUES FROM (MINVALUE) TO ('{-70}')", "events_{0} events_{7} events_{14} events_{21} events_{28} mine"},
		"detached":         {"CREATE TABLE events_{0} (n int)", "events_{0}_ events_{7} events_{14} events_{21} events_{28}"},
		"old, with a view": {"CREATE TABLE events_{-700} PARTITION OF events FOR VALUES FROM ('{-700}') TO ('{-693}'); CREATE VIEW v AS TABLE events_{-700}; CREATE TABLE events_{-693} PARTITION OF events FOR VALUES FROM ('{-693}') TO ('{-686}')", "events_{-700} events_{0} events_{7} events_{14} events_{21} events_{28}"},
	} {
		before := pgtest.List[string](t, database.Pool, `SELECT relname::text FROM pg_class WHERE relkind = 'r' AND (relname LIKE 'events\_%' OR relname = 'mine')`)
		pgtest.Exec(t, database.Pool, "DROP TABLE "+strings.Join(before, ", ")+" CASCADE") // with the view
		pgtest.Exec(t, database.Pool, inWeek(test.sql))
		maintain(t, serving)
		need.Same(t, strings.Fields(inWeek(test.want)), partitionsOf(t, database.Pool), "%s: partitions", what)
		for quarter := range 5 * 7 * 4 {
			if quarter%4 != 0 && quarter/4 != 7 { // only that Monday may have several partitions
				continue
			}
			if fit, err := serving.EventsFit(t.Context(), time.Until(monday().Add(time.Duration(6*quarter)*time.Hour+30*time.Minute))); err != nil || !fit {
				t.Fatalf("%s: no partition for events in the quarter %d of a day: %v", what, quarter, err)
			}
		}
		if changed := maintain(t, serving); changed != 0 {
			t.Errorf("%s: %d partitions changed again", what, changed)
		}
	}
}

// monday returns the start of this week.
func monday() time.Time {
	today := time.Now().UTC().Truncate(24 * time.Hour)
	return today.AddDate(0, 0, -(int(today.Weekday())+6)%7)
}

// inWeek replaces {n} with the date n days after Monday, in the form 20261123.
func inWeek(text string) string {
	return regexp.MustCompile(`\{-?\d+\}`).ReplaceAllStringFunc(text, func(found string) string {
		days, _ := strconv.Atoi(strings.Trim(found, "{}"))
		return monday().AddDate(0, 0, days).Format("20060102")
	})
}

// TestMissingPartition: a transaction whose event has no partition creates it and runs again.
// While that is impossible, the database is unavailable. A row that violates a CHECK is
// another mistake.
func TestMissingPartition(t *testing.T) {
	t.Parallel()
	const insert = "INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data) VALUES (1, $1, now(), 0, 'x', '/', '{}')"
	database := pgtest.New(t)
	serving := open(t, database.URL, 10)
	fill(t, serving, 10)
	transactions := map[string]func(sequence int) error{
		"Transact": func(sequence int) error {
			_, err := postgres.Transact(t.Context(), serving, func(ctx context.Context, tx pgx.Tx) (pgconn.CommandTag, error) {
				return tx.Exec(ctx, insert, sequence)
			})
			return err
		},
		"TransactThen": func(sequence int) error {
			return postgres.TransactThen(t.Context(), serving, func(_ context.Context, _ pgx.Tx, last *postgres.Pipeline) error {
				batch := &pgx.Batch{}
				batch.Queue(insert, sequence)
				return last.SendBatch(t.Context(), batch).Close()
			})
		},
		"Retry": func(sequence int) error {
			_, err := postgres.Retry(t.Context(), serving, func(ctx context.Context, sequence int) (pgconn.CommandTag, error) {
				return serving.Exec(ctx, insert, sequence)
			}, sequence)
			return err
		},
	}
	for what, transact := range transactions {
		for _, name := range partitionsOf(t, database.Pool) {
			dropPartition(t, database.Pool, name)
		}
		var group sync.WaitGroup
		for sequence := range 8 {
			group.Go(func() {
				if err := transact(1 + sequence); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			})
		}
		group.Wait()
		if err := transact(0); postgres.Unavailable(err) || stateOf(err) != "23514" {
			t.Errorf("%s of a row that violates a CHECK: %v", what, err)
		}
	}

	if t.Failed() {
		return
	}
	dropPartition(t, database.Pool, partitionsOf(t, database.Pool)[0])
	lock := pgtest.Begin(t, database.Pool)
	pgtest.Exec(t, lock, "LOCK TABLE events IN SHARE UPDATE EXCLUSIVE MODE")
	for what, transact := range transactions {
		if err := transact(100); !postgres.Unavailable(err) || !postgres.RolledBack(err) {
			t.Errorf("%s without a partition: %v", what, err)
		}
	}
	if fit, err := serving.EventsFit(t.Context(), 0); err != nil || fit {
		t.Errorf("EventsFit without a partition: %t, %v", fit, err)
	}
	pgtest.Rollback(t, lock)
	for what, transact := range transactions {
		if err := transact(100 + len(what)); err != nil {
			t.Errorf("%s after the lock: %v", what, err)
		}
	}
}

// TestPartitionReturns: another process creates the missing partition just after the last attempt.
func TestPartitionReturns(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	dropPartition(t, database.Pool, partitionsOf(t, database.Pool)[0])
	other := pgtest.Begin(t, database.Pool)
	pgtest.Exec(t, other, "SELECT pg_advisory_xact_lock(hashtextextended('maintain_events', 0))")
	const attempts = 4
	attempt := 0
	_, err := postgres.Transact(t.Context(), open(t, database.URL, 4), func(ctx context.Context, tx pgx.Tx) (pgconn.CommandTag, error) {
		tag, err := tx.Exec(ctx, "INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data) VALUES (1, 1, now(), 0, 'x', '/', '{}')")
		if attempt++; attempt == attempts {
			if changed := maintain(t, other); changed != 1 {
				t.Errorf("%d partitions changed, want 1", changed)
			}
			if err := other.Commit(ctx); err != nil {
				t.Error(err)
			}
		}
		return tag, err
	})
	if err != nil || attempt != attempts+1 {
		t.Errorf("after %d attempts: %v", attempt, err)
	}
}

// TestMaintainEventsEndsWithItsContext: a caller whose time is over does not wait for
// maintain_events, which continues for others.
func TestMaintainEventsEndsWithItsContext(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "its coordinator would call the other function on no worker")
	database := pgtest.New(t)
	serving := open(t, database.URL, 4)
	const slow = `CREATE OR REPLACE FUNCTION maintain_events() RETURNS int LANGUAGE sql AS $$ SELECT 0 FROM pg_advisory_xact_lock(21) $$`
	pgtest.Exec(t, database.Pool, slow)
	lock := pgtest.Begin(t, database.Pool)
	pgtest.Exec(t, lock, "SELECT pg_advisory_xact_lock(21)")
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- serving.MaintainEvents(ctx) }()
	need.OK(t, pgtest.AwaitLockWaiters(t.Context(), database.Pool, 1))
	go func() { second <- serving.MaintainEvents(t.Context()) }()
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("a caller without time: %v", err)
	}
	pgtest.Rollback(t, lock)
	if err := <-second; err != nil {
		t.Errorf("another caller: %v", err)
	}
}
