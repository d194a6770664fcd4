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

	URL     string // libpq URL of the database for the serving role
	t       testing.TB
	options localpg.Options
}

// NewPair starts a pair. It ends with the test.
func NewPair(t testing.TB) *Pair {
	t.Helper()
	return newPair(t, copyCluster)
}

// NewUnrelatedPair is [NewPair] whose servers are no copies of the servers of other pairs.
func NewUnrelatedPair(t testing.TB) *Pair {
	t.Helper()
	return newPair(t, makeCluster)
}

func newPair(t testing.TB, prepare func(context.Context, localpg.Options) error) *Pair {
	t.Helper()
	database, primary := newCluster(t, prepare)
	p := &Pair{Database: database, Primary: primary, t: t}
	p.Standby = p.AddStandby(nil)
	return p
}

// AddStandby starts another standby, of the primary or of another cluster.
func (p *Pair) AddStandby(of *localpg.Cluster) *Standby {
	p.t.Helper()
	if of == nil {
		of = p.Primary
	}
	options := p.Primary.Options()
	options.Dir, options.Copy = Dir(p.t), standby.Of(of)
	s := &Standby{t: p.t, Cluster: startCluster(p.t, options)}
	s.options = s.Cluster.Options()
	s.URL = asRole(s.Cluster.URL(clusterDatabase), clusterRole)
	return s
}

// Restart restarts the server.
func (s *Standby) Restart() {
	s.t.Helper()
	check(s.t, s.Stop(s.t.Context()))
	s.Cluster = startCluster(s.t, s.options)
}

// Pause stops the replay of WAL. The standby keeps its state, and still receives WAL.
func (s *Standby) Pause() {
	s.t.Helper()
	s.exec("SELECT pg_wal_replay_pause()")
	s.await("SELECT pg_get_wal_replay_pause_state() = 'paused'")
}

// Resume ends a pause.
func (s *Standby) Resume() {
	s.t.Helper()
	s.exec("SELECT pg_wal_replay_resume()")
}

// Promote makes the standby a primary.
func (s *Standby) Promote() {
	s.t.Helper()
	check(s.t, standby.Promote(s.t.Context(), s.Cluster))
}

// CatchUp waits until the standby has replayed all that has committed.
func (p *Pair) CatchUp(s *Standby) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	var position string
	check(p.t, p.Pool.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn()::text").Scan(&position))
	conn, err := pgx.Connect(ctx, s.Cluster.URL(clusterDatabase))
	check(p.t, err)
	defer conn.Close(p.t.Context())
	check(p.t, awaitReplay(ctx, p.Pool, conn, position))
}

func (s *Standby) exec(sql string) {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.Cluster.URL(clusterDatabase))
	check(s.t, err)
	defer conn.Close(s.t.Context())
	if _, err := conn.Exec(s.t.Context(), sql); err != nil {
		s.t.Fatalf("pgtest: %s: %v", sql, err)
	}
}

// await waits until a query returns true.
func (s *Standby) await(sql string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.Cluster.URL(clusterDatabase))
	check(s.t, err)
	defer conn.Close(s.t.Context())
	if err := await(ctx, func() (done bool, err error) {
		err = conn.QueryRow(ctx, sql).Scan(&done)
		return done, err
	}); err != nil {
		s.t.Fatalf("pgtest: %s: %v", sql, err)
	}
}
