package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// TestHashOf compares the hash of accounts with the one of the server.
func TestHashOf(t *testing.T) {
	t.Parallel()
	ids := []int64{0, 1, -1, math.MaxInt64, math.MinInt64, math.MaxInt32, math.MinInt32, 1 << 32, -1 << 32}
	for range 1000 {
		ids = append(ids, int64(rand.Uint64()>>rand.N(64)))
	}
	want := pgtest.List[int32](t, shared(t).Pool, "SELECT hashint8(id) FROM unnest($1::bigint[]) WITH ORDINALITY AS given (id, n) ORDER BY n", ids)
	for i, id := range ids {
		if got := postgres.HashOf(id); got != want[i] {
			t.Errorf("hash of %d: %d, want %d", id, got, want[i])
		}
	}
}

// nodesTest is a pool of a database with two nodes.
type nodesTest struct {
	*postgres.DB

	t             *testing.T
	database      *pgtest.Database
	proxy         *proxy // to the coordinator
	first, second int64  // accounts on nodes 1 and 2
}

func newNodesTest(t *testing.T, maxConns int) *nodesTest {
	t.Helper()
	pgtest.Not(t, pgtest.Citus, "the database has real nodes")
	pgtest.Not(t, pgtest.PgBouncer, "the time limits of the session must be off")
	database := pgtest.New(t)
	pgtest.Exec(t, database.Pool, pgtest.TwoNodes)
	proxy := startProxy(t, database.OwnerURL)
	pool := open(t, proxy.url, maxConns, "statement_timeout", "0", "lock_timeout", "0")
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	need.Background(t, func(ctx context.Context) { pool.FollowNodes(ctx, log) })
	n := &nodesTest{DB: pool, t: t, database: database, proxy: proxy, first: 1, second: 1}
	for postgres.HashOf(n.first) >= 0 {
		n.first++
	}
	for postgres.HashOf(n.second) < 0 {
		n.second++
	}
	need.Within(t, 30*time.Second, "the nodes are known", func() bool { return pool.NodeOf(1) != nil })
	return n
}

// freeze freezes the second node until the call of thaw.
func (n *nodesTest) freeze() (thaw func()) {
	n.t.Helper()
	node := need.Value(pgx.Connect(n.t.Context(), n.database.OwnerURL))(n.t)
	n.t.Cleanup(func() { _ = node.Close(context.WithoutCancel(n.t.Context())) })
	pgtest.Exec(n.t, node, "SELECT pg_advisory_lock(2)")
	return func() {
		n.t.Helper()
		pgtest.Exec(n.t, node, "SELECT pg_advisory_unlock(2)")
	}
}

// run runs a statement for an account on its node.
func (n *nodesTest) run(account int64) error {
	_, err := n.Exec(n.ForAccounts(n.t.Context(), account), "SELECT run_on($1)", account)
	return err
}

// wantLost checks that accounts of the second node fail, and others do not.
func (n *nodesTest) wantLost() {
	n.t.Helper()
	if err := n.run(n.first); err != nil {
		n.t.Errorf("a statement for the other node: %v", err)
	}
	all := postgres.ForAllAccounts(n.t.Context())
	both := n.ForAccounts(n.t.Context(), n.first, n.second)
	for _, ctx := range []context.Context{all, both, n.ForAccounts(n.t.Context(), n.second)} {
		if _, err := n.Exec(ctx, "SELECT"); !postgres.Unavailable(err) || postgres.FromServer(err) {
			n.t.Errorf("a statement for the lost node: %v", err)
		}
		if _, err := n.Exec(n.ForNoAccount(ctx), "SELECT"); err != nil {
			n.t.Errorf("a statement for the coordinator: %v", err)
		}
	}
	if got := n.Reachable([]int64{n.second, n.first}); !slices.Equal(got, []int64{n.first}) {
		n.t.Errorf("reachable: %v", got)
	}
}

// TestFrozenNode: a node that responds to nothing has half of the connections, until it is
// lost. Then its statements end, and more fail at once. When it responds, they work again.
func TestFrozenNode(t *testing.T) {
	t.Parallel()
	const maxConns, statements = 8, 20
	n := newNodesTest(t, maxConns)
	thaw := n.freeze()
	var running sync.WaitGroup
	for range statements {
		running.Go(func() {
			if err := n.run(n.second); !postgres.Unavailable(err) || postgres.FromServer(err) {
				t.Errorf("a statement on the frozen node: %v", err)
			}
		})
	}
	need.Within(t, 30*time.Second, "half of the connections are in use", func() bool { return n.Pool().Stat().AcquiredConns() >= maxConns/2 })
	for range 100 {
		if err := n.run(n.first); err != nil {
			t.Errorf("a statement for the other node: %v", err)
		}
	}
	if used := n.Pool().Stat().AcquiredConns(); used > maxConns/2 {
		t.Errorf("the frozen node has %d of %d connections", used, maxConns)
	}
	running.Wait() // they have no other time limit
	n.wantLost()
	taken := acquire(t, n.DB, maxConns)
	if err := n.run(n.second); !errors.Is(err, postgres.ErrNodeLost) {
		t.Errorf("a statement waits for a connection, although its node is lost: %v", err)
	}
	release(taken)
	thaw()
	need.Within(t, 30*time.Second, "the node works", func() bool { return n.run(n.second) == nil })
	if n.HasLostNode() {
		t.Error("the node is still lost")
	}
}

// TestFrozenCoordinator: a check of a node gets no response from the coordinator. It gives up, and
// the next one finds the node.
func TestFrozenCoordinator(t *testing.T) {
	t.Parallel()
	n := newNodesTest(t, 4)
	thaw := n.freeze()
	if err := n.run(n.second); err == nil {
		t.Error("a statement on a frozen node succeeded")
	}
	n.proxy.swallow(false)
	thaw()
	need.Within(t, 30*time.Second, "the node works", func() bool { return n.run(n.second) == nil })
}

// TestStuckLook: a look at the shards ends although the database does not respond.
func TestStuckLook(t *testing.T) {
	t.Parallel()
	n := newNodesTest(t, 4)
	tx := pgtest.Begin(t, n.database.Pool)
	pgtest.Exec(t, tx, "LOCK TABLE pg_dist_shard")
	var log lines
	need.Background(t, func(ctx context.Context) { n.FollowNodes(ctx, slog.New(slog.NewTextHandler(&log, nil))) })
	need.Within(t, 30*time.Second, "the look has failed", func() bool { return strings.Contains(log.String(), "could not read which node") })
}

// TestDeadNode: an error of a connection to a node shows that the node is dead, so that others
// know it.
func TestDeadNode(t *testing.T) {
	t.Parallel()
	n := newNodesTest(t, 4)
	pgtest.Exec(t, n, "INSERT INTO dead VALUES (2)")
	need.Within(t, 30*time.Second, "the node is lost", func() bool { return n.run(n.second) != nil && n.HasLostNode() })
	n.wantLost()
	pgtest.Exec(t, n, "DELETE FROM dead")
	need.Within(t, 30*time.Second, "the node works", func() bool { return n.run(n.second) == nil })
}

// TestNoNodes: on a database that is not sharded, contexts stay as they are.
func TestNoNodes(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "the database has nodes")
	pool := open(t, shared(t).URL, 1)
	pool.FollowNodes(t.Context(), slog.New(slog.DiscardHandler)) // returns
	if ctx := t.Context(); pool.ForAccounts(ctx, 1) != ctx || pool.ForNoAccount(ctx) != ctx || pool.NodeOf(1) != nil || pool.HasLostNode() {
		t.Error("the pool knows nodes")
	}
	if got := fmt.Sprint(pool.Reachable([]int64{1, 2})); got != "[1 2]" {
		t.Errorf("reachable: %s", got)
	}
}
