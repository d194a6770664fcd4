package postgres_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/internal/pgtest"
)

// wantedPartitions names the partitions that events must have after maintain_events: those
// of the weeks from $1 before this one to four after it. A week is dropped when its last
// moment is 30 days ago.
const wantedPartitions = `
	SELECT 'events_' || to_char(week, 'YYYYMMDD')
	FROM (SELECT date_trunc('week', now() AT TIME ZONE 'UTC')::date + 7 * n AS week FROM generate_series(-$1::int, 4) AS n) AS weeks
	WHERE week + 37 > (now() AT TIME ZONE 'UTC')::date
	ORDER BY 1`

// partitionsOf returns the names of the partitions of events, sorted.
func partitionsOf(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	return collect(t, pool, "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'events'::regclass ORDER BY 1")
}

// collect returns the only column of a query.
func collect(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// addOldPartitions gives events the partitions of some weeks before this one. Each has an
// event of its first and one of its last moment.
func addOldPartitions(t *testing.T, pool *pgxpool.Pool, weeks int) {
	t.Helper()
	for n := 1; n <= weeks; n++ {
		var name, from, to string
		err := pool.QueryRow(t.Context(), `
			SELECT 'events_' || to_char(week, 'YYYYMMDD'), week || ' 00:00:00+00', week + 7 || ' 00:00:00+00'
			FROM (SELECT date_trunc('week', now() AT TIME ZONE 'UTC')::date - 7 * $1::int AS week) AS weeks`, n).Scan(&name, &from, &to)
		if err == nil {
			_, err = pool.Exec(t.Context(), "CREATE TABLE "+name+" PARTITION OF events FOR VALUES FROM ('"+from+"') TO ('"+to+"')")
		}
		for i, at := range []string{"'" + from + "'", "timestamptz '" + to + "' - interval '1 microsecond'"} {
			if err == nil {
				_, err = pool.Exec(t.Context(), "INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data) VALUES ($1, $2, "+at+", 0, 'store.reset', '/account', '{}')", n, 1+i)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// dropPartition drops a partition of events.
func dropPartition(t *testing.T, pool *pgxpool.Pool, name string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), "DROP TABLE "+name); err != nil {
		t.Fatal(err)
	}
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
	want := collect(t, database.Pool, wantedPartitions, 0)
	if diff := cmp.Diff(want, partitionsOf(t, database.Pool)); diff != "" {
		t.Fatalf("partitions after the migration (-want +got):\n%s", diff)
	}
	serving := open(t, database.URL, 1)
	if changed := maintain(t, serving); changed != 0 {
		t.Errorf("%d partitions changed without need", changed)
	}
	addOldPartitions(t, database.Pool, old)
	dropPartition(t, database.Pool, want[0])
	dropPartition(t, database.Pool, want[4])
	kept := collect(t, database.Pool, wantedPartitions, old)
	if changed, want := maintain(t, serving), 2+old+5-len(kept); changed != want {
		t.Errorf("%d partitions changed, want %d", changed, want)
	}
	if diff := cmp.Diff(kept, partitionsOf(t, database.Pool)); diff != "" {
		t.Errorf("partitions (-want +got):\n%s", diff)
	}
	var owned int
	var events int
	if err := database.Pool.QueryRow(t.Context(), "SELECT count(*) FROM events").Scan(&events); err != nil || events != 2*(len(kept)-5) {
		t.Errorf("%d events are kept, want %d: %v", events, 2*(len(kept)-5), err)
	}
	err := database.Pool.QueryRow(t.Context(), `
		SELECT count(*)
		FROM pg_class AS part
		JOIN pg_inherits ON inhrelid = part.oid AND inhparent = 'events'::regclass
		JOIN pg_class AS parent ON parent.oid = inhparent
		WHERE part.relowner = parent.relowner`).Scan(&owned)
	if err != nil || owned != len(kept) {
		t.Errorf("the owner of events owns %d of %d partitions: %v", owned, len(kept), err)
	}
	_, err = serving.Exec(t.Context(), "DROP TABLE "+want[0])
	if failure, ok := errors.AsType[*pgconn.PgError](err); !ok || failure.Code != "42501" {
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
	before, names := collect(t, database.Pool, bounds), partitionsOf(t, database.Pool)
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
		conn, err := pgx.Connect(t.Context(), database.OwnerURL)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "SELECT set_config($1, $2, false)", setting[0], setting[1]); err != nil {
			t.Fatal(err)
		}
		var changed int
		if err := conn.QueryRow(t.Context(), "SELECT public.maintain_events()").Scan(&changed); err != nil || changed != len(names)-1 {
			t.Errorf("%s: %d partitions: %v", setting, changed, err)
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(before, collect(t, database.Pool, bounds)); diff != "" {
			t.Errorf("%s (-before +after):\n%s", setting, diff)
		}
	}
}

// TestEventPartitionsAtOnce: of several concurrent calls, one makes the changes, and the
// others do nothing.
func TestEventPartitionsAtOnce(t *testing.T) {
	t.Parallel()
	const calls = 8
	database := pgtest.New(t)
	names := partitionsOf(t, database.Pool)
	addOldPartitions(t, database.Pool, 8)
	for _, name := range names[1:] {
		dropPartition(t, database.Pool, name)
	}
	kept := collect(t, database.Pool, wantedPartitions, 8)
	serving := open(t, database.URL, calls)
	var changed atomic.Int64
	var group sync.WaitGroup
	for range calls {
		group.Go(func() { changed.Add(int64(maintain(t, serving))) })
	}
	group.Wait()
	if want := int64(4 + 8 + 5 - len(kept)); changed.Load() != want {
		t.Errorf("%d partitions changed, want %d", changed.Load(), want)
	}
	if diff := cmp.Diff(kept, partitionsOf(t, database.Pool)); diff != "" {
		t.Errorf("partitions (-want +got):\n%s", diff)
	}
}

// TestEventPartitionsBesideTransactions: an open transaction that has read and written
// events, such as that of a dump, does not keep the next partitions from being created. The
// old ones are dropped when it has ended. A statement that waits meanwhile succeeds.
func TestEventPartitionsBesideTransactions(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	names := partitionsOf(t, database.Pool)
	addOldPartitions(t, database.Pool, 8)
	dropPartition(t, database.Pool, names[4])
	kept := collect(t, database.Pool, wantedPartitions, 8)
	old := slices.DeleteFunc(collect(t, database.Pool, "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'events'::regclass"),
		func(name string) bool { return slices.Contains(kept, name) })
	dump, err := database.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dump.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := dump.Exec(t.Context(), "INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data) SELECT 1, 3, now(), 0, 'store.reset', '/account', '{}' FROM (SELECT count(*) FROM events) AS counted"); err != nil {
		t.Fatal(err)
	}
	serving := open(t, database.URL, 1)
	if changed := maintain(t, serving); changed != 1 {
		t.Errorf("%d partitions changed beside a transaction, want the one that was missing", changed)
	}
	if got := partitionsOf(t, database.Pool); !slices.Contains(got, names[4]) || len(got) != len(kept)+len(old) {
		t.Errorf("partitions beside a transaction: %v", got)
	}
	if err := dump.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	if changed := maintain(t, serving); changed != len(old) {
		t.Errorf("%d partitions changed after the transaction, want %d", changed, len(old))
	}
	if diff := cmp.Diff(kept, partitionsOf(t, database.Pool)); diff != "" {
		t.Errorf("partitions (-want +got):\n%s", diff)
	}
}
