package postgres

import (
	"context"
	"errors"
	"log/slog"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"petstore/internal/sleep"
)

// The nodes of a sharded cluster fail one at a time. A node that is frozen responds to
// nothing, so each statement on it would hold a connection until the request times out. Soon
// all requests would wait, and the coordinator would run out of sessions: it cannot cancel a
// statement on such a node.
//
// So one node has at most half of the connections. If a connection is held for longer than
// [suspectAfter], the coordinator checks the node over a connection of its own. If the node
// does not respond within [silentAfter], it is lost: its connections are closed, and
// statements for its accounts fail at once. The check goes on until the node responds.
//
// A node that is dead holds nothing. But a statement for the accounts of all nodes fails, so
// others must know. The coordinator checks the nodes when it reports a lost connection.
//
// On a database that is not sharded, nothing of this happens.

const (
	suspectAfter   = time.Second
	silentAfter    = 2 * time.Second
	checkPause     = time.Second
	shardsInterval = 10 * time.Second // between two looks at which node has which shard
	// lookTimeout limits a look and a check, also if the coordinator freezes meanwhile. A slow
	// statement ends earlier, by statement_timeout.
	lookTimeout = 6 * time.Second

	// nodeShare is the share of the connections, 1 in this many, that one node may have.
	nodeShare = 2
)

var errNodeLost = errors.New("the node of the account does not respond")

// node is a node of a cluster that has shards.
type node struct {
	places chan struct{} // limits its connections
	lost   atomic.Bool

	mu       sync.Mutex
	host     string
	port     int32
	checking bool
	held     map[*connection]bool
}

// shard is a range of the hashes of account ids, up to the next shard.
type shard struct {
	from int32
	on   []*node // one
}

// cluster has the nodes and their shards, as they were at the last look. It does not change.
type cluster struct {
	shards []shard // sorted
	nodes  []*node
	check  func(*node)
}

// scope names the accounts whose rows statements use.
type scope struct {
	all      bool
	accounts []int64
}

type scopeKey struct{}

// ForAccounts returns a context for statements that use only rows of these accounts. Pass one
// account if its node is to be limited. If a node of one of them is lost, the statements fail
// at once.
func (d *DB) ForAccounts(ctx context.Context, ids ...int64) context.Context {
	return d.inScope(ctx, scope{accounts: ids})
}

// ForAllAccounts returns a context for statements that need all nodes. If one is lost, they
// fail at once.
func ForAllAccounts(ctx context.Context) context.Context {
	return context.WithValue(ctx, scopeKey{}, scope{all: true})
}

// ForNoAccount returns a context for statements that need no node but the coordinator.
func (d *DB) ForNoAccount(ctx context.Context) context.Context { return d.inScope(ctx, scope{}) }

func (d *DB) inScope(ctx context.Context, s scope) context.Context {
	if d.cluster.Load() == nil {
		return ctx
	}
	return context.WithValue(ctx, scopeKey{}, s)
}

// NodeOf returns what identifies the node of an account. It is nil if the database is not
// sharded.
func (d *DB) NodeOf(accountID int64) any {
	if c := d.cluster.Load(); c != nil {
		return c.of(accountID)[0]
	}
	return nil
}

// Reachable returns the accounts whose node is not lost.
func (d *DB) Reachable(ids []int64) []int64 {
	c := d.cluster.Load()
	if c == nil || !isAnyLost(c.nodes) {
		return ids
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return isAnyLost(c.of(id)) })
}

// HasLostNode reports whether a node of the cluster is lost.
func (d *DB) HasLostNode() bool {
	c := d.cluster.Load()
	return c != nil && isAnyLost(c.nodes)
}

// of returns the node of an account, as the only element.
func (c *cluster) of(accountID int64) []*node {
	at, found := slices.BinarySearchFunc(c.shards, hashOf(accountID), func(s shard, hash int32) int {
		return int(s.from) - int(hash)
	})
	if !found {
		at-- // the first shard begins at the least hash
	}
	return c.shards[at].on
}

func isAnyLost(nodes []*node) bool {
	return slices.ContainsFunc(nodes, func(n *node) bool { return n.lost.Load() })
}

// hashOf returns hashint8 of PostgreSQL, by which Citus distributes a bigint: the end of
// lookup3 by Bob Jenkins (https://burtleburtle.net/bob/c/lookup3.c, public domain).
func hashOf(id int64) int32 {
	key := uint32(id) ^ uint32((id>>63)^(id>>32)) //nolint:gosec // the bits
	const start = 0x9e3779b9 + 4 + 3923095
	a, b, c := start+key, uint32(start), uint32(start)
	for _, mix := range [...]struct {
		to, from *uint32
		by       int
	}{{&c, &b, 14}, {&a, &c, 11}, {&b, &a, 25}, {&c, &b, 16}, {&a, &c, 4}, {&b, &a, 14}, {&c, &b, 24}} {
		*mix.to = (*mix.to ^ *mix.from) - bits.RotateLeft32(*mix.from, mix.by)
	}
	return int32(c) //nolint:gosec // the bits
}

// nodesOf returns the nodes that a statement needs, as far as its context says.
func (d *DB) nodesOf(ctx context.Context) (c *cluster, nodes []*node) {
	if c = d.cluster.Load(); c == nil {
		return nil, nil
	}
	s, _ := ctx.Value(scopeKey{}).(scope)
	switch {
	case s.all:
		return c, c.nodes
	case len(s.accounts) == 1:
		return c, c.of(s.accounts[0])
	}
	for _, id := range s.accounts {
		if n := c.of(id)[0]; !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	return c, nodes
}

// holdOn counts the connection as one of some nodes until Release. It reports false if one of
// them is lost.
func (c *connection) holdOn(of *cluster, nodes []*node) bool {
	if len(nodes) == 0 {
		return true
	}
	c.nodes = nodes
	for _, n := range nodes {
		n.mu.Lock()
		n.held[c] = true
		n.mu.Unlock()
	}
	c.suspect = time.AfterFunc(suspectAfter, func() {
		for _, n := range nodes {
			of.check(n)
		}
	})
	return !isAnyLost(nodes) // a node that is lost from now on closes the connection
}

// checkNodes checks all nodes after an error of the coordinator, if it may come from a node.
func (d *DB) checkNodes(failed *pgconn.PgError) {
	if c := d.cluster.Load(); c != nil && (hasClass(failed.Code, classConnection) || lostServer(failed)) {
		for _, n := range c.nodes {
			c.check(n)
		}
	}
}

// leaveNodes ends holdOn.
func (c *connection) leaveNodes() {
	if c.suspect != nil {
		c.suspect.Stop()
	}
	for _, n := range c.nodes {
		n.mu.Lock()
		delete(n.held, c)
		n.mu.Unlock()
	}
}

// lose marks a node as lost, unless its check has ended: the node may respond when the timer of
// the check fires.
func (n *node) lose(log *slog.Logger) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.checking && !n.lost.Swap(true) {
		log.Warn("a node of the cluster does not respond; requests of its accounts get 503", "host", n.host, "port", n.port)
	}
}

// hangUp closes the connections that wait for a node, unless its check has ended.
func (n *node) hangUp() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.checking {
		return
	}
	for c := range n.held {
		_ = c.Conn.Conn().PgConn().Conn().Close() // pgx may have closed it just now
	}
}

// find notes that a node responds.
func (n *node) find(log *slog.Logger) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.checking = false
	if n.lost.Swap(false) {
		log.Info("a node of the cluster responds again", "host", n.host, "port", n.port)
	}
}

// FollowNodes follows the nodes of a sharded cluster until ctx ends. It returns at once if the
// database is not sharded. With a single node, there is nobody to protect.
func (d *DB) FollowNodes(ctx context.Context, log *slog.Logger) {
	d = d.Bounded(lookTimeout)
	var checks sync.WaitGroup
	defer checks.Wait()
	known := map[int32]*node{}
	check := func(n *node) {
		n.mu.Lock()
		defer n.mu.Unlock()
		if !n.checking {
			n.checking = true
			checks.Go(func() { d.checkNode(ctx, n, log) })
		}
	}
	for ctx.Err() == nil {
		c, err := d.readCluster(ctx, known)
		switch {
		case err == nil && c == nil:
			return
		case err == nil:
			c.check = check
			if len(c.nodes) < 2 {
				c = nil
			}
			d.cluster.Store(c)
		case ctx.Err() == nil:
			log.Warn("could not read which node has which shard", "error", err)
		}
		sleep.For(ctx, shardsInterval)
	}
}

// readCluster reads which node has which shard. It returns nil if the database is not sharded.
func (d *DB) readCluster(ctx context.Context, known map[int32]*node) (*cluster, error) {
	var sharded bool
	if err := d.QueryRow(ctx, "SELECT to_regclass('pg_dist_shard') IS NOT NULL").Scan(&sharded); err != nil || !sharded {
		return nil, err
	}
	rows, err := d.Query(ctx, `
		SELECT shard.shardminvalue::int, node.groupid, node.nodename, node.nodeport
		FROM pg_dist_shard AS shard
		JOIN pg_dist_placement AS placement ON placement.shardid = shard.shardid
		JOIN pg_dist_node AS node ON node.groupid = placement.groupid AND node.noderole = 'primary'
		WHERE shard.logicalrelid = 'account_state'::regclass
		ORDER BY shard.shardminvalue::int`)
	if err != nil {
		return nil, err
	}
	c := &cluster{}
	var from, group, port int32
	var host string
	_, err = pgx.ForEachRow(rows, []any{&from, &group, &host, &port}, func() error {
		n := known[group]
		if n == nil {
			n = &node{places: make(chan struct{}, max(1, int(d.pool.Config().MaxConns)/nodeShare)), held: map[*connection]bool{}}
			known[group] = n
		}
		n.moveTo(host, port)
		c.shards = append(c.shards, shard{from, []*node{n}})
		if !slices.Contains(c.nodes, n) {
			c.nodes = append(c.nodes, n)
		}
		return nil
	})
	return c, err
}

// moveTo notes the address of a node.
func (n *node) moveTo(host string, port int32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.host, n.port = host, port
}

// address returns the address of a node.
func (n *node) address() (host string, port int32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.host, n.port
}

// checkNode checks a node until it responds or ctx ends.
func (d *DB) checkNode(ctx context.Context, n *node, log *slog.Logger) {
	for ctx.Err() == nil {
		responds, err := d.responds(ctx, n, log)
		if responds || err != nil && !n.lost.Load() { // the error is of the coordinator
			break
		}
		n.lose(log)
		sleep.For(ctx, checkPause)
	}
	n.find(log)
}

// responds reports whether the coordinator can connect to a node. The session is new. In an
// old one, the coordinator may have a connection to the node, and could not cancel a statement.
func (d *DB) responds(ctx context.Context, n *node, log *slog.Logger) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, d.outsideConfig())
	if err != nil {
		return false, err
	}
	defer conn.Close(ctx)
	silent := time.AfterFunc(silentAfter, func() {
		n.lose(log)
		n.hangUp()
	})
	host, port := n.address()
	responds := false
	err = conn.QueryRow(ctx, "SELECT citus_check_connection_to_node($1, $2)", pgx.QueryExecModeExec, host, port).Scan(&responds)
	isSilent := !silent.Stop()
	return responds || err != nil && !isSilent, nil // the coordinator may not know the function
}
