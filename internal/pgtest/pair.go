package pgtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/localpg"
	"petstore/internal/pgtest/standby"
)

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
	check(s.t, s.Stop(s.t.Context()))
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
	check(s.t, standby.Promote(s.t.Context(), s.Cluster))
}

// CatchUp waits until the standby has replayed all that has committed.
func (p *Pair) CatchUp(s *Standby) {
	p.t.Helper()
	var position string
	check(p.t, p.Pool.QueryRow(p.t.Context(), "SELECT pg_current_wal_flush_lsn()::text").Scan(&position))
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
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.Cluster.URL(clusterDatabase))
	check(s.t, err)
	defer conn.Close(s.t.Context())
	check(s.t, do(ctx, conn))
}
