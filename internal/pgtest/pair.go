package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/internal/localpg"
	"petstore/internal/postgres"
)

// pairSettings make a standby reconnect at once. The WAL of a commit reaches the standby
// with it, as on a server that waits for its disk. Backups of a standby need full pages.
var pairSettings = map[string]string{"wal_retrieve_retry_interval": "100ms", "synchronous_commit": "on", "full_page_writes": "on", "max_connections": "100"}

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

const (
	pairDatabase = "petstore"
	pairRole     = "petstore_serving"
)

// NewPair starts a pair of this machine's or of downloaded binaries. It ends with the test.
func NewPair(t testing.TB) *Pair {
	t.Helper()
	binaries, err := localpg.Find(t.Context(), os.Getenv("PETSTORE_PG_BIN"), os.Stderr)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	p := &Pair{t: t, Primary: startCluster(t, localpg.Options{Binaries: binaries, Settings: pairSettings})}
	if err := migratePair(t.Context(), p.Primary); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	owner := p.Primary.URL(pairDatabase)
	p.Database = &Database{URL: asRole(owner, pairRole), OwnerURL: owner}
	if p.Pool, err = pgxpool.New(context.WithoutCancel(t.Context()), owner); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(p.Pool.Close)
	p.Standby = p.AddStandby(nil)
	return p
}

// migratePair creates the database and the serving role.
func migratePair(ctx context.Context, primary *localpg.Cluster) error {
	if err := primary.EnsureDatabase(ctx, pairDatabase); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, primary.URL(pairDatabase))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "CREATE ROLE "+pairRole+" LOGIN IN ROLE pg_read_all_stats"); err != nil {
		return err
	}
	m, err := postgres.OpenMigrations(ctx, primary.URL(pairDatabase))
	if err != nil {
		return err
	}
	defer m.Close()
	if _, err := m.Up(ctx); err != nil {
		return err
	}
	return m.GrantServing(ctx, pairRole)
}

// asRole returns a URL of a cluster for another role.
func asRole(address, role string) string {
	parsed, err := url.Parse(address)
	if err != nil {
		panic(err) // localpg returns valid URLs
	}
	query := parsed.Query()
	query.Set("user", role)
	parsed.RawQuery = query.Encode()
	return parsed.String()
}

// startCluster starts a cluster in a directory of its own, which ends with the test.
func startCluster(t testing.TB, options localpg.Options) *localpg.Cluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "petstore-pair-") //nolint:usetesting // the server's user cannot enter t.TempDir
	if err == nil {
		err = os.Chmod(dir, localpg.DirMode())
	}
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	options.Dir, options.Disposable = dir, true
	return restart(t, options)
}

// restart starts the cluster of a directory again.
func restart(t testing.TB, options localpg.Options) *localpg.Cluster {
	t.Helper()
	cluster, err := localpg.Start(t.Context(), options)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() { _ = cluster.Stop(context.Background()) }) // it may have been stopped
	return cluster
}

// AddStandby starts another standby, of the primary or of another cluster.
func (p *Pair) AddStandby(of *localpg.Cluster) *Standby {
	p.t.Helper()
	if of == nil {
		of = p.Primary
	}
	options := p.Primary.Options()
	options.StandbyOf = of
	s := &Standby{t: p.t, Cluster: startCluster(p.t, options)}
	s.options = s.Cluster.Options()
	s.URL = asRole(s.Cluster.URL(pairDatabase), pairRole)
	return s
}

// Restart restarts the server.
func (s *Standby) Restart() {
	s.t.Helper()
	if err := s.Stop(s.t.Context()); err != nil {
		s.t.Fatalf("pgtest: %v", err)
	}
	s.Cluster = restart(s.t, s.options)
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
	s.exec("SELECT pg_promote()")
}

// CatchUp waits until the standby has replayed all that has committed.
func (p *Pair) CatchUp(s *Standby) {
	p.t.Helper()
	var position string
	if err := p.Pool.QueryRow(p.t.Context(), "SELECT pg_current_wal_flush_lsn()").Scan(&position); err != nil {
		p.t.Fatalf("pgtest: %v", err)
	}
	s.await(fmt.Sprintf("SELECT pg_last_wal_replay_lsn() >= '%s'", position))
}

func (s *Standby) exec(sql string) {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.Cluster.URL(pairDatabase))
	if err != nil {
		s.t.Fatalf("pgtest: %v", err)
	}
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
	conn, err := pgx.Connect(ctx, s.Cluster.URL(pairDatabase))
	if err != nil {
		s.t.Fatalf("pgtest: %v", err)
	}
	defer conn.Close(s.t.Context())
	for done := false; !done; {
		if err := conn.QueryRow(ctx, sql).Scan(&done); err != nil {
			s.t.Fatalf("pgtest: %s: %v", sql, err)
		}
	}
}
