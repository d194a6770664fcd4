package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/internal/localpg"
	"petstore/internal/pgtest/standby"
	"petstore/internal/tools/need"
)

const (
	// replayTimeout is the maximum time for the standby to replay a statement.
	replayTimeout = 20 * time.Second
	// completeAfter is the number of polls after which the primary writes a commit. The WAL
	// writer flushes whole pages, so the position may be within a record of a transaction in
	// progress. The standby replays that record when a commit has flushed the rest.
	completeAfter = 25
	// syncConns is the number of connections to each server that compare positions.
	syncConns = 4
)

// More settings of a primary and its standby. A standby receives only WAL that the primary has
// written, so a commit must write it at once. fsync stays off. Every clone of the template forces a
// checkpoint, which would remove WAL that the standby has not received. With the feedback, the
// primary keeps the row versions that queries on the standby need.
var replicaSettings = map[string]string{
	"synchronous_commit":   "on",
	"wal_writer_delay":     "10ms",
	"wal_keep_size":        "512MB",
	"hot_standby_feedback": "on",
}

// replicaServer is the standby of a server, with connections to both.
type replicaServer struct {
	url              *url.URL
	primary, standby *pgxpool.Pool
	replayed         atomic.Value // a position that the standby has replayed, as pg_lsn
}

// await returns when the standby has replayed everything that is committed now. Then a
// server under test reads on the standby what a test has written on the primary.
func (r *replicaServer) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, replayTimeout, fmt.Errorf("the standby is more than %s behind", replayTimeout))
	defer cancel()
	var position string
	err := r.primary.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn()::text").Scan(&position)
	if err == nil && position != r.replayed.Load() {
		err = awaitReplay(ctx, r.primary, r.standby, position)
	}
	if err != nil {
		return fmt.Errorf("waiting for the standby: %w", err)
	}
	r.replayed.Store(position)
	return nil
}

// awaitReplay waits until a standby has replayed a position of its primary.
func awaitReplay(ctx context.Context, primary *pgxpool.Pool, standby querier, position string) error {
	polls := 0
	return await(ctx, func() (done bool, err error) {
		if polls++; polls == completeAfter {
			_, err = primary.Exec(ctx, "SELECT pg_logical_emit_message(true, 'pgtest', '')")
		}
		if err == nil {
			err = standby.QueryRow(ctx, "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", position).Scan(&done)
		}
		return done, err
	})
}

// replicas has the ReplicaURL of each database by its URL.
var replicas sync.Map

// ReplicaOf returns the ReplicaURL of the database whose URL this is, or "" if it has none.
func ReplicaOf(databaseURL string) string {
	replica, _ := replicas.Load(databaseURL)
	address, _ := replica.(string)
	return address
}

// replayTracer waits for the standby before a connection returns to its pool, which is when a
// statement or a transaction ends. It is for the pool of a test, which writes past the server and
// gets no consistency token.
type replayTracer struct {
	Around

	replica *replicaServer
}

// TraceRelease waits for the standby.
func (r replayTracer) TraceRelease(*pgxpool.Pool, pgxpool.TraceReleaseData) {
	if err := r.replica.await(context.Background()); err != nil {
		say(err.Error()) // the reads of the test will show it
	}
}

// Pair is a primary with a streaming standby, for tests that change a standby. The database
// is one of the primary, as of [New].
type Pair struct {
	*Database

	Primary *localpg.Cluster
	Standby *Standby
	t       testing.TB
}

// Standby is a standby of a [Pair].
type Standby struct {
	*localpg.Cluster

	URL string // libpq URL of the database for the serving role
	t   testing.TB
}

// NewPair starts a pair. It ends with the test.
func NewPair(t testing.TB) *Pair {
	t.Helper()
	database, primary := NewCluster(t)
	p := &Pair{Database: database, Primary: primary, t: t}
	p.Standby = p.AddStandby(primary)
	return p
}

// In returns the same pair for a subtest.
func (p *Pair) In(t testing.TB) *Pair {
	t.Helper()
	return &Pair{p.Database, p.Primary, &Standby{p.Standby.Cluster, p.Standby.URL, t}, t}
}

// AddStandby starts another standby, of the primary or of another cluster.
func (p *Pair) AddStandby(of *localpg.Cluster) *Standby {
	p.t.Helper()
	options := p.Primary.Options()
	options.Dir, options.Copy = Dir(p.t), standby.Of(of)
	cluster := StartCluster(p.t, options)
	return &Standby{Cluster: cluster, URL: servingURLOf(cluster), t: p.t}
}

// Restart restarts the server.
func (s *Standby) Restart() {
	s.t.Helper()
	need.OK(s.t, s.Stop(s.t.Context()))
	s.Cluster = StartCluster(s.t, s.Options())
}

// Pause stops the replay of WAL. The standby keeps its state, and still receives WAL.
func (s *Standby) Pause() {
	s.t.Helper()
	s.Await("SELECT pg_get_wal_replay_pause_state() = 'paused' FROM pg_wal_replay_pause()")
}

// Resume ends a pause.
func (s *Standby) Resume() {
	s.t.Helper()
	s.Await("SELECT true FROM pg_wal_replay_resume()")
}

// Promote makes the standby a primary.
func (s *Standby) Promote() {
	s.t.Helper()
	need.OK(s.t, standby.Promote(s.t.Context(), s.Cluster))
}

// CatchUp waits until the standby has replayed all that has committed.
func (p *Pair) CatchUp(s *Standby) {
	p.t.Helper()
	var position string
	need.OK(p.t, p.Pool.QueryRow(p.t.Context(), "SELECT pg_current_wal_flush_lsn()::text").Scan(&position))
	s.withOwner(func(ctx context.Context, owner *pgx.Conn) error { return awaitReplay(ctx, p.Pool, owner, position) })
}

// Await waits until a query of the owner of the database returns true.
func (s *Standby) Await(sql string) {
	s.t.Helper()
	s.withOwner(func(ctx context.Context, owner *pgx.Conn) error {
		return await(ctx, func() (done bool, err error) {
			err = owner.QueryRow(ctx, sql).Scan(&done)
			return done, err
		})
	})
}

// withOwner calls a function with a connection of the owner of the database, for a minute.
func (s *Standby) withOwner(do func(context.Context, *pgx.Conn) error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), time.Minute)
	defer cancel()
	conn := need.Value(pgx.Connect(ctx, s.Cluster.URL(clusterDatabase)))(s.t)
	defer conn.Close(ctx)
	need.OK(s.t, do(ctx, conn))
}
