package postgres_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// replicated is a pool of the primary of a pair, with replicas.
type replicated struct {
	*pgtest.Pair

	t        *testing.T
	primary  *postgres.DB
	replicas *postgres.Replicas
}

// openReplicas opens replicas at these URLs and waits until they are in rotation. By
// default, that is the standby.
func openReplicas(t *testing.T, pair *pgtest.Pair, maxLag time.Duration, urls ...string) *replicated {
	t.Helper()
	return openWithPatience(t, pair, maxLag, patience, urls...)
}

func openWithPatience(t *testing.T, pair *pgtest.Pair, maxLag, patience time.Duration, urls ...string) *replicated {
	t.Helper()
	if len(urls) == 0 {
		urls = []string{pair.Standby.URL}
	}
	r := &replicated{Pair: pair, t: t, primary: open(t, pair.URL, 8)}
	options := postgres.ReplicaOptions{MaxConns: 4, MaxLag: maxLag, Patience: patience, Log: slog.New(slog.DiscardHandler)}
	r.replicas = need.Value(postgres.OpenReplicas(t.Context(), r.primary, urls, options))(t)
	t.Cleanup(r.replicas.Close)
	need.Background(t, r.replicas.Run)
	pgtest.Exec(t, pair.Pool, "INSERT INTO accounts (id, name) VALUES (1, '0') ON CONFLICT DO NOTHING")
	r.awaitRotation(true)
	return r
}

// awaitRotation waits until the first replica is in rotation, or not.
func (r *replicated) awaitRotation(in bool) {
	r.t.Helper()
	need.Within(r.t, 30*time.Second, "the rotation changes", func() bool { return r.replicas.Status(0).InRotation == in })
}

// write changes the name of the account 1, and returns the position after it.
func (r *replicated) write(name string) postgres.Position {
	r.t.Helper()
	_, position, err := postgres.TransactAt(r.t.Context(), r.primary, func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
		_, err := tx.Exec(ctx, "UPDATE accounts SET name = $1 WHERE id = 1", name)
		return struct{}{}, err
	})
	need.OK(r.t, err)
	if position == (postgres.Position{}) {
		r.t.Error("the commit has no position")
	}
	return position
}

// read reads the name of the account 1, and who served it.
func (r *replicated) read(after *postgres.Position) (name string, byReplica bool) {
	r.t.Helper()
	need.OK(r.t, r.replicas.Read(r.t.Context(), after, func(ctx context.Context) error {
		return postgres.Reads{DB: r.primary}.QueryRow(ctx, "SELECT name, pg_is_in_recovery() FROM accounts WHERE id = $1", 1).Scan(&name, &byReplica)
	}))
	return name, byReplica
}

// want fails the test unless a read returns a name.
func (r *replicated) want(after *postgres.Position, name string, byReplica bool) {
	r.t.Helper()
	if got, replica := r.read(after); got != name || replica != byReplica {
		r.t.Errorf("the read returns %q, by a replica: %t; want %q, %t", got, replica, name, byReplica)
	}
}

// awaitReplica waits until a replica serves a read, and compares what it returns.
func (r *replicated) awaitReplica(after *postgres.Position, name string) {
	r.t.Helper()
	need.Within(r.t, 30*time.Second, "a replica serves the read", func() bool {
		got, replica := r.read(after)
		if after != nil && got != name {
			r.t.Fatalf("the read returns %q, want %q", got, name)
		}
		return replica && got == name
	})
}

// TestReplicaServesPosition: a replica serves a read only if it includes its position.
func TestReplicaServesPosition(t *testing.T) {
	t.Parallel()
	r := openReplicas(t, pgtest.NewPair(t), time.Hour)
	first := r.write("1")
	r.awaitReplica(&first, "1")
	r.awaitReplica(nil, "1")

	r.Standby.Pause()
	second := r.write("2")
	r.want(&second, "2", false)
	r.want(&first, "1", true)
	r.want(nil, "1", true)
	other := first
	other.Timeline++
	r.want(&other, "2", false)
	r.want(&postgres.Position{}, "2", false)

	r.Standby.Resume()
	r.awaitReplica(&second, "2")
	for reason, atLeast := range map[postgres.ReadReason]uint64{postgres.ReadFresh: 5, postgres.ReadBehind: 1, postgres.ReadTimeline: 2} {
		if got := r.replicas.Reads(reason); got < atLeast {
			t.Errorf("%d reads for the reason %s", got, reason)
		}
	}
	testPositionAfterSwitch(t, r)
	testFailingReplica(t, r)
	testReadsThatFallBack(t, r)
}

// testPositionAfterSwitch: a replica includes the position after a change of the WAL file,
// without another record.
func testPositionAfterSwitch(t *testing.T, r *replicated) {
	t.Helper()
	r.write("1")
	pgtest.Exec(t, r.Pool, "SELECT pg_switch_wal()")
	position, err := r.primary.Position(t.Context())
	if err != nil || position.LSN%8192 != 0 {
		t.Errorf("the position is %v, want one at the start of a page: %v", position, err)
	}
	r.awaitReplica(&position, "1")
}

// testFailingReplica: the primary serves a read that a replica cancels, for example
// because it conflicts with recovery.
func testFailingReplica(t *testing.T, r *replicated) {
	t.Helper()
	position := r.write("1")
	r.awaitReplica(&position, "1")
	for _, sql := range []string{
		"SELECT pg_is_in_recovery() FROM (SELECT CASE WHEN pg_is_in_recovery() THEN pg_cancel_backend(pg_backend_pid()) END, pg_sleep(0.01)) AS canceled",
		"SELECT pg_is_in_recovery() FROM (SELECT CASE WHEN pg_is_in_recovery() THEN pg_terminate_backend(pg_backend_pid()) END, pg_sleep(0.01)) AS ended",
		"SELECT pg_is_in_recovery() FROM (SELECT 1 / CASE WHEN pg_is_in_recovery() THEN 0 ELSE 1 END) AS divided",
	} {
		for _, after := range []*postgres.Position{&position, nil} {
			byReplica := true
			err := r.replicas.Read(t.Context(), after, func(ctx context.Context) error {
				reads := postgres.Reads{DB: r.primary}
				batch := &pgx.Batch{}
				batch.Queue("SELECT")
				batch.Queue(sql)
				results := reads.SendBatch(ctx, batch)
				defer results.Close()
				if _, err := results.Exec(); err != nil {
					return err
				}
				return results.QueryRow().Scan(&byReplica)
			})
			if err != nil || byReplica {
				t.Errorf("%s, in a batch by the replica: %t, %v", sql, byReplica, err)
			}
			err = r.replicas.Read(t.Context(), after, func(ctx context.Context) error {
				return postgres.Reads{DB: r.primary}.QueryRow(ctx, sql).Scan(&byReplica)
			})
			if err != nil || byReplica {
				t.Errorf("%s, by the replica: %t, %v", sql, byReplica, err)
			}
		}
	}
	if r.replicas.Reads(postgres.ReadFailed) == 0 {
		t.Error("no replica failed")
	}
}

// testReadsThatFallBack: reads that a replica could serve leave connections of the primary
// to others.
func testReadsThatFallBack(t *testing.T, r *replicated) {
	t.Helper()
	need.OK(t, r.Standby.Stop(t.Context()))
	r.awaitRotation(false)
	lock := pgtest.Begin(t, r.Pool)
	pgtest.Exec(t, lock, "LOCK TABLE accounts")
	var reads sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for range 20 {
		reads.Go(func() {
			_ = r.replicas.Read(ctx, nil, func(ctx context.Context) error {
				var accounts int
				return postgres.Reads{DB: r.primary}.QueryRow(ctx, "SELECT count(*) FROM accounts").Scan(&accounts)
			})
		})
	}
	need.Within(t, 30*time.Second, "reads wait for the table", func() bool { return r.primary.Pool().Stat().AcquiredConns() >= 4 })
	for range 10 {
		if err := r.primary.Ping(t.Context()); err != nil {
			t.Errorf("another read: %v", err)
		}
	}
	cancel()
	reads.Wait()
}

// TestReplicaRotation: a replica that lags too much leaves the rotation, and returns when it
// has caught up. So does one that restarts.
func TestReplicaRotation(t *testing.T) {
	t.Parallel()
	const maxLag = 300 * time.Millisecond
	r := openReplicas(t, pgtest.NewPair(t), maxLag)
	r.Standby.Pause()
	position := r.write("1")
	r.awaitRotation(false)
	if lag := r.replicas.Status(0).Lag; lag <= maxLag.Seconds() {
		t.Errorf("the lag is %g s", lag)
	}
	r.want(nil, "1", false)
	r.want(&position, "1", false)
	r.Standby.Resume()
	r.awaitReplica(&position, "1")
	if slots := pgtest.Read[int](t, r.Pool, "SELECT count(*) FROM pg_replication_slots"); slots != 0 {
		t.Errorf("the primary keeps WAL in %d slots", slots)
	}

	need.OK(t, r.Standby.Stop(t.Context()))
	r.want(&position, "1", false)
	r.awaitRotation(false)
	r.want(nil, "1", false)
	position = r.write("2")
	r.Standby.Restart()
	r.awaitReplica(&position, "2")
	r.awaitReplica(nil, "2")
	if lag := r.replicas.Status(0).Lag; lag > maxLag.Seconds() {
		t.Errorf("the lag is %g s", lag)
	}
}

// TestOtherServerBehindAddress: an address may lead to several standbys. A read is not
// stale if its standby is behind another one that the polls see.
func TestOtherServerBehindAddress(t *testing.T) {
	t.Parallel()
	pair := pgtest.NewPair(t)
	behind := pair.AddStandby(pair.Primary)
	proxy := startProxy(t, pair.Standby.URL)
	r := openReplicas(t, pair, time.Hour, proxy.url)
	r.write("1")
	pair.CatchUp(behind)
	behind.Pause()
	position := r.write("2")
	pair.CatchUp(pair.Standby)
	// The polls keep their connection to the first standby. The reads open new ones.
	proxy.leadTo(t, behind.URL)
	for range 5 {
		r.want(&position, "2", false)
	}
	r.want(nil, "1", true)
	behind.Resume()
	r.awaitReplica(&position, "2")
	testSilentReplica(t, pair)
	testSilentHost(t, pair, proxy.url)
	testPromotedServerBehindAddress(t, pair, behind)
}

// testSilentHost: a host that drops all packets leaves the next host of a URL its own time to connect.
func testSilentHost(t *testing.T, pair *pgtest.Pair, databaseURL string) {
	t.Helper()
	silent := pgtest.ServeTCP(t, func(client net.Conn) { _, _ = io.Copy(io.Discard, client) })
	openReplicas(t, pair, time.Hour, strings.Replace(databaseURL, "@", "@"+silent+",", 1))
}

// testPromotedServerBehindAddress: when a standby behind an address is promoted, another one there
// serves reads.
func testPromotedServerBehindAddress(t *testing.T, pair *pgtest.Pair, other *pgtest.Standby) {
	t.Helper()
	proxy := startProxy(t, pair.Standby.URL)
	r := openReplicas(t, pair, time.Hour, proxy.url)
	position := r.write("1")
	r.awaitReplica(&position, "1") // one connection for reads stays idle
	proxy.leadTo(t, other.URL)
	pair.Standby.Promote()
	r.awaitReplica(&position, "1")
}

// TestPromotedReplica: a promoted standby serves no reads, and neither does one that
// follows it, because the primary has another timeline.
func TestPromotedReplica(t *testing.T) {
	t.Parallel()
	pair := pgtest.NewPair(t)
	follower := pair.AddStandby(pair.Standby.Cluster)
	r := openReplicas(t, pair, time.Hour, follower.URL, pair.Standby.URL)
	position := r.write("1")
	for _, standby := range []*pgtest.Standby{follower, pair.Standby} {
		pair.CatchUp(standby)
	}
	pair.Standby.Promote()
	pgtest.Exec(t, pair.Pool, "SELECT")
	pair.Standby.Await("WITH changed AS (UPDATE accounts SET name = 'elsewhere' WHERE id = 1 RETURNING true) SELECT true FROM changed")
	for range 10 {
		if name, _ := r.read(&position); name != "1" {
			t.Fatalf("the read returns %q", name)
		}
	}
	for i, name := range []string{"the follower", "the promoted standby"} {
		need.Within(t, 30*time.Second, name+" leaves the rotation", func() bool { return !r.replicas.Status(i).InRotation })
	}
	r.want(nil, "1", false)
}

// testSilentReplica: reads do not wait for a replica whose network drops all packets, and
// it returns to the rotation.
func testSilentReplica(t *testing.T, pair *pgtest.Pair) {
	t.Helper()
	proxy := startProxy(t, pair.Standby.URL)
	r := openWithPatience(t, pair, time.Hour, 0, proxy.url)
	position := r.write("1")
	r.awaitReplica(&position, "1")
	need.OK(t, r.replicas.Read(t.Context(), &position, func(ctx context.Context) error { // so that one connection stays idle
		rows, err := postgres.Reads{DB: r.primary}.Query(ctx, "SELECT")
		if err == nil {
			r.awaitReplica(&position, "1")
			rows.Close()
		}
		return err
	}))
	proxy.swallow(true)
	// statement_timeout and TCP would end these reads after seconds.
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	for range 3 {
		var byReplica bool
		err := r.replicas.Read(ctx, &position, func(ctx context.Context) error {
			return postgres.Reads{DB: r.primary}.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&byReplica)
		})
		if err != nil || byReplica {
			t.Errorf("by the replica: %t, %v", byReplica, err)
		}
	}
	if r.replicas.Status(0).InRotation {
		t.Error("the silent replica is in rotation")
	}
	if idle := r.replicas.IdleConns(0); idle != 0 {
		t.Errorf("%d connections that may stay silent are idle", idle)
	}
	proxy.mu.Lock()
	proxy.mute = false
	proxy.mu.Unlock()
	r.awaitReplica(&position, "1")
}

// TestUnsuitableReplicas: a standby of another server never serves reads, also if the primary
// had no free connection to compare them at first. Neither does another database of a standby,
// one behind a pooler that drops settings, or one whose timeline the role may not see. The log has the problems. Replicas of a Citus coordinator are an error.
func TestUnsuitableReplicas(t *testing.T) {
	t.Parallel()
	pair := pgtest.NewPair(t)
	unrelated := pair.Primary.Options()
	unrelated.Dir, unrelated.Copy = pgtest.Dir(t), nil // initdb makes a new system
	other := pair.AddStandby(pgtest.StartCluster(t, unrelated))
	var log lines
	primary, options := open(t, pair.URL, 8), postgres.ReplicaOptions{MaxConns: 2, MaxLag: time.Hour, Patience: 10 * time.Second, Log: slog.New(slog.NewTextHandler(&log, nil))}
	replicas := need.Value(postgres.OpenReplicas(t.Context(), primary, []string{other.Cluster.URL("postgres"), pair.Standby.URL, pgtest.StartPooler(t, pair.Standby.URL).URL, pair.Standby.Cluster.URL("postgres")}, options))(t)
	t.Cleanup(replicas.Close)
	used := primary.Pool().AcquireAllIdle(t.Context())
	for len(used) < 8 {
		used = append(used, need.Value(primary.Pool().Acquire(t.Context()))(t))
	}
	need.Background(t, replicas.Run)
	need.Within(t, 30*time.Second, "the primary has no connection", func() bool { return strings.Contains(replicas.Status(0).Problem, "the primary cannot be compared") })
	release(used)
	need.Within(t, 30*time.Second, "the standby of the primary is in rotation", func() bool { return replicas.Status(1).InRotation })
	need.Within(t, 30*time.Second, "the other one is no copy", func() bool { return strings.Contains(replicas.Status(0).Problem, "no copy of the primary") })
	need.Within(t, 30*time.Second, "the last one is another database", func() bool { return strings.Contains(replicas.Status(3).Problem, "names another database") })
	need.Within(t, 30*time.Second, "the pooler drops settings", func() bool {
		return strings.Contains(replicas.Status(2).Problem, "lacks settings that a connection pooler or Citus does not pass on")
	})

	pgtest.Exec(t, pair.Pool, "REVOKE pg_read_all_stats FROM petstore_serving")
	for _, problem := range []string{"no copy of the primary", "names another database", "lacks settings", "GRANT pg_read_all_stats"} {
		need.Within(t, 30*time.Second, "the log says "+problem, func() bool { return strings.Contains(log.String(), problem) })
	}

	// The server does not have the extension, so the test only pretends.
	pgtest.Exec(t, pair.Pool, "INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion) VALUES (99999, 'citus', 10, 11, false, '13')")
	if _, err := postgres.OpenReplicas(t.Context(), open(t, pair.URL, 1), []string{pair.Standby.URL}, options); err == nil || !strings.Contains(err.Error(), "PETSTORE_REPLICA_URLS does not work with Citus") {
		t.Errorf("on Citus: %v", err)
	}
}

// TestOpenReplicasFails: an invalid URL is an error, and a replica that does not run is none.
func TestOpenReplicasFails(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "it has no replicas")
	primary := open(t, shared(t).OwnerURL, 2)
	options := postgres.ReplicaOptions{MaxConns: 2, MaxLag: time.Hour, Log: slog.New(slog.DiscardHandler)}
	if _, err := postgres.OpenReplicas(t.Context(), primary, []string{closedPort, "postgres://secret@localhost:x/"}, options); err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "number 2") {
		t.Errorf("an invalid URL: %v", err)
	}
	replicas := need.Value(postgres.OpenReplicas(t.Context(), primary, []string{closedPort}, options))(t)
	replicas.Close()
}

// TestEndOfRecord: a position after the header of a page is the end of the page before.
func TestEndOfRecord(t *testing.T) {
	t.Parallel()
	server := open(t, shared(t).OwnerURL, 1)
	var block, segment int64
	need.OK(t, server.QueryRow(t.Context(), "SELECT current_setting('wal_block_size')::bigint, pg_size_bytes(current_setting('wal_segment_size'))").Scan(&block, &segment))
	for lsn, want := range map[int64]int64{
		3 * segment:              3 * segment,
		3*segment + 40:           3 * segment,
		3*segment + 48:           3*segment + 48,
		3*segment + block:        3*segment + block,
		3*segment + block + 24:   3*segment + block,
		3*segment + block + 40:   3*segment + block + 40,
		3*segment + 2*block - 24: 3*segment + 2*block - 24,
	} {
		if got := pgtest.Read[int64](t, server, "SELECT "+postgres.EndOfRecord+" FROM (SELECT $1::bigint AS lsn OFFSET 0) AS inserted", lsn); got != want {
			t.Errorf("the record before %d ends at %d, want %d", lsn, got, want)
		}
	}
}

// TestPositionOnlyWithReplicas: without replicas, a transaction runs no statement for its
// position.
func TestPositionOnlyWithReplicas(t *testing.T) {
	t.Parallel()
	reads := 0 // of the position
	pool := pgtest.Open(t, shared(t).URL, 1, pgtest.Statements(func(sql string, _ []any) {
		if strings.Contains(sql, "pg_current_wal_insert_lsn") {
			reads++
		}
	}))
	for _, reports := range []bool{false, true} {
		if reports {
			pool.ReportPositions()
		}
		reads = 0
		piped := need.Value(postgres.Pipe(t.Context(), pool, func(ctx context.Context, p *postgres.Pipeline) error { return p.Commit(ctx, nil) }))(t)
		_, transacted, err := postgres.TransactAt(t.Context(), pool, func(context.Context, pgx.Tx) (int, error) { return 0, nil })
		need.OK(t, err)
		known := piped.Timeline > 0 && transacted.Includes(piped)
		if wanted := map[bool]int{true: 2}[reports]; known != reports || reads != wanted {
			t.Errorf("reports %t: the positions are %v and %v, %d statements", reports, piped, transacted, reads)
		}
	}
}
