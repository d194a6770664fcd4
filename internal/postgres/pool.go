// Package postgres connects to PostgreSQL: the connection pool and its limits,
// migrations, classification of SQLSTATE codes, and notifications.
package postgres

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/singleflight"

	"petstore/internal/sleep"
)

const (
	connectTimeout  = 2 * time.Second
	acquireTimeout  = time.Second // a longer wait makes every waiter slow
	maxConnLifetime = time.Hour

	// endGrace is the time that a statement has to end after its context has ended. Then pgx closes
	// the connection. Without it, each client that leaves during a read would cost a connection.
	endGrace = 100 * time.Millisecond

	// pingTimeout limits the check of a connection that was idle for a second or
	// more. A silent connection takes this much of acquireTimeout, and endGrace.
	pingTimeout = 200 * time.Millisecond

	// keptForReads is the number of connections that writes leave free. A write
	// keeps its connection until its commit is on disk, and while it waits for
	// locks.
	keptForReads = 2
	// waitingShare is the share of the connections for writes, 1 in this many, that
	// writes may have while they wait for locks. The others keep writes that wait for
	// none from failing when rows stay locked.
	waitingShare = 2
	// fallingShare is the share of the connections, 1 in this many, that reads may have
	// which a replica could have served. So requests that need the primary go on when the
	// replicas fail.
	fallingShare = 2
)

// sessionParameters are set on every connection of a pool, unless its URL sets them. Behind
// a connection pooler, the role must have most of them ([RoleSettings]). A statement that
// exceeds a timeout fails with SQLSTATE 57014, 55P03 or 25P03, for which [Unavailable] is
// true.
var sessionParameters = map[string]string{
	"application_name":                    "petstore",
	"statement_timeout":                   "5s",
	"lock_timeout":                        "2s",
	"idle_in_transaction_session_timeout": "10s",
	"timezone":                            "UTC",
	// PostgreSQL decides to compile a statement by its estimated cost. A wrong estimate,
	// such as for pet 1 if many accounts have one, adds half a second to each run.
	"jit": "off",
	// Every statement of a request names its account, whose rows an index finds. A plan
	// made while a table is empty would scan the table, also after it has grown.
	"enable_seqscan": "off",
	// A statement after a lock must see what the one before the lock could not.
	"default_transaction_isolation": "read committed",
}

// DB runs statements on a connection pool. It waits at most one second for a
// connection. So an exhausted pool gives an error for which [Unavailable] is true
// instead of a queue. It implements db.DBTX.
type DB struct {
	*shared
	// limits have one value for each connection in use that counts towards them. A
	// statement takes a place of each, in order.
	limits []chan struct{}
	// bound is the longest time of a statement or a transaction; 0: as long as its context.
	bound time.Duration
}

// shared is the state that all handles of one pool share.
type shared struct {
	pool        *pgxpool.Pool
	writing     chan struct{} // limits the writes that have a connection
	canceled    atomic.Uint64 // writes that got none of these places in time
	falling     chan struct{} // limits the reads that a replica could have served
	servers     serverCounts
	longestWait time.Duration // for a connection: acquireTimeout, or the time given to WaitAtMost
	lastReset   atomic.Int64  // in Unix nanoseconds
	url         string
	outside     *pgx.ConnConfig // for connections outside the pool
	settings    settings
	reports     atomic.Bool // whether transactions report their positions
	sharded     atomic.Pointer[bool]
	maintenance singleflight.Group      // of calls of maintain_events
	cluster     atomic.Pointer[cluster] // nil: the database is not sharded
}

// Open creates a pool of at most maxConns connections for a libpq URL, which may
// name several hosts. It does not connect, so it fails only if the URL is invalid.
// The tracers see every statement.
func Open(ctx context.Context, url string, maxConns int, tracers ...pgx.QueryTracer) (*DB, error) {
	return OpenAs(ctx, sessionParameters["application_name"], url, maxConns, tracers...)
}

// OpenAs is [Open] with an application_name, which pg_stat_activity shows. A name in the URL
// comes first, after "petstore", by which after-restore and deploy/backup/cutover.sh recognize
// processes.
func OpenAs(ctx context.Context, name, url string, maxConns int, tracers ...pgx.QueryTracer) (*DB, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	params := config.ConnConfig.RuntimeParams
	switch given := params["application_name"]; {
	case given == "":
		params["application_name"] = name
	case !strings.HasPrefix(given, "petstore"):
		params["application_name"] = "petstore " + given
	}
	wanted := boundSession(config.ConnConfig)
	d := &DB{shared: &shared{
		writing:  make(chan struct{}, max(1, maxConns-keptForReads)),
		falling:  make(chan struct{}, max(1, maxConns/fallingShare)),
		url:      url,
		outside:  config.ConnConfig.Copy(),
		settings: wanted, longestWait: acquireTimeout,
	}}
	config.MaxConns = int32(maxConns) //nolint:gosec // bounded by the configuration
	config.MaxConnLifetime = maxConnLifetime
	config.MaxConnLifetimeJitter = maxConnLifetime / 10
	if len(tracers) > 0 {
		config.ConnConfig.Tracer = multitracer.New(tracers...)
	}
	config.BeforeConnect = func(_ context.Context, config *pgx.ConnConfig) error {
		renew(config, url)
		return nil
	}
	config.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) { return isAlive(conn), nil }
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		d.servers.add(originOf(conn), 1)
		return nil
	}
	config.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn(), DeadlineDelay: endGrace}
	}
	config.BeforeClose = d.hangUp
	if config.PingTimeout == 0 {
		config.PingTimeout = pingTimeout
	}
	// A server that becomes a standby keeps its connections, but they accept no
	// writes. New connections go to the primary.
	inherited := config.ConnConfig.OnPgError
	config.ConnConfig.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		if err.Code == readOnlySQLTransaction {
			d.reset(readOnlyInterval)
		}
		d.checkNodes(err)
		return inherited(conn, err)
	}
	if d.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	return d, nil
}

// renew reads the files of the password and of the certificates of a URL again, unless they have mistakes.
// They may have been replaced since the start.
func renew(config *pgx.ConnConfig, url string) {
	now, err := pgxpool.ParseConfig(url)
	if err != nil || len(now.ConnConfig.Fallbacks) != len(config.Fallbacks) {
		return
	}
	config.Password, config.TLSConfig = now.ConnConfig.Password, now.ConnConfig.TLSConfig
	for i, other := range now.ConnConfig.Fallbacks {
		config.Fallbacks[i].TLSConfig = other.TLSConfig
	}
}

// outsideConfig returns the configuration of a connection outside the pool.
func (s *shared) outsideConfig() *pgx.ConnConfig {
	config := s.outside.Copy()
	renew(config, s.url)
	return config
}

// boundSession limits the statements and the network of a connection, unless its URL
// does. It returns the settings of the session.
func boundSession(config *pgx.ConnConfig) settings {
	wanted := takeSettings(config)
	if config.ConnectTimeout <= 0 || config.ConnectTimeout > connectTimeout {
		config.ConnectTimeout = connectTimeout
	}
	boundNetwork(config, wanted)
	return wanted
}

// Close closes the pool. It waits up to a second for connections in use, which end
// when they are released or when the process exits.
func (d *DB) Close() { sleep.AtMost(closeTimeout, d.pool.Close) }

// Pool returns the pool, for callers that need their own connection.
func (d *DB) Pool() *pgxpool.Pool { return d.pool }

// WaitAtMost changes how long statements of all handles of the pool wait for a connection. Commands, and
// tests on slow machines, call it before the first statement.
func (d *DB) WaitAtMost(longest time.Duration) { d.longestWait = longest }

// Writing returns a handle of the same pool for statements that write. Writes leave
// a few connections to reads, which would otherwise wait behind them.
func (d *DB) Writing() *DB { return &DB{d.shared, []chan struct{}{d.writing}, d.bound} }

// Bounded returns a handle of the same pool for loops whose contexts have no deadline. It closes the
// connection of a statement or a transaction that takes longer. Nothing else ends a statement if the
// server is frozen and its kernel still acknowledges.
func (d *DB) Bounded(longest time.Duration) *DB { return &DB{d.shared, d.limits, longest} }

// LockWaits returns how many of the connections of [DB.Writing] may wait for locks at a
// time, which the callers count ([petstore/internal/admission.Locks]).
func (d *DB) LockWaits() int { return max(1, cap(d.writing)/waitingShare) }

// Falling returns a handle of the same pool for reads that a replica could have served.
// They leave half of the connections to others.
func (d *DB) Falling() *DB { return &DB{d.shared, []chan struct{}{d.falling}, d.bound} }

// CanceledWrites returns how many writes got no connection in time because too many
// others were writing. The statistics of the pool do not include them.
func (d *DB) CanceledWrites() uint64 { return d.canceled.Load() }

// Exec runs a statement that returns no rows.
func (d *DB) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	conn, err := d.acquire(ctx)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	defer conn.Release()
	return conn.Exec(ctx, sql, args...)
}

// CopyFrom copies rows into a table and returns how many.
func (d *DB) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	conn, err := d.acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Release()
	return conn.CopyFrom(ctx, table, columns, rows)
}

// SendBatch sends several statements in one round trip. Closing the results releases
// the connection.
func (d *DB) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	conn, err := d.acquire(ctx)
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return &pooledBatch{conn.SendBatch(ctx, b), conn}
}

// Query runs a statement. Closing the rows releases the connection.
func (d *DB) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	conn, err := d.acquire(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		conn.Release()
		return nil, err
	}
	return &pooledRows{Rows: rows, conn: conn}, nil
}

// QueryRow runs a statement. Scan releases the connection.
func (d *DB) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := d.Query(ctx, sql, args...)
	return pooledRow{rows, err}
}

func (d *DB) acquire(ctx context.Context) (*connection, error) {
	cluster, nodes := d.nodesOf(ctx)
	if isAnyLost(nodes) {
		return nil, &acquireError{errNodeLost}
	}
	limits := d.limits
	if len(nodes) == 1 { // first, so that its statements do not wait with places of others
		limits = append([]chan struct{}{nodes[0].places}, limits...)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.longestWait, errPoolExhausted)
	defer cancel()
	for i, limit := range limits {
		select {
		case limit <- struct{}{}:
		case <-ctx.Done():
			giveBack(limits[:i])
			if limit == d.writing {
				d.canceled.Add(1)
			}
			return nil, &acquireError{context.Cause(ctx)}
		}
	}
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		giveBack(limits)
		return nil, &acquireError{err}
	}
	taken := &connection{Conn: conn, db: d, limits: limits}
	if d.bound > 0 {
		socket := conn.Conn().PgConn().Conn()
		taken.overdue = time.AfterFunc(d.bound, func() { _ = socket.Close() }) // pgx returns the error
	}
	if !taken.holdOn(cluster, nodes) {
		taken.Release()
		return nil, &acquireError{errNodeLost}
	}
	return taken, nil
}

// giveBack gives back a place of each limit.
func giveBack(limits []chan struct{}) {
	for _, limit := range limits {
		<-limit
	}
}

// connection is a connection of the pool until Release.
type connection struct {
	*pgxpool.Conn
	db     *DB
	limits []chan struct{} // of which it has a place

	overdue *time.Timer // closes it at the bound of the handle; nil: there is none
	nodes   []*node     // on which its statements run, as far as known
	suspect *time.Timer // checks the nodes; nil: there are none
}

// Release returns the connection to the pool.
func (c *connection) Release() {
	if c.overdue != nil && !c.overdue.Stop() {
		_ = c.Conn.Conn().PgConn().Conn().Close() // the timer is closing it, perhaps when another one has it
	}
	c.leaveNodes()
	c.Conn.Release()
	giveBack(c.limits)
}

// pooledRows releases its connection on Close.
type pooledRows struct {
	pgx.Rows
	conn *connection
}

// Close ends the statement and releases the connection.
func (r *pooledRows) Close() {
	r.Rows.Close()
	if r.conn != nil {
		r.conn.Release()
		r.conn = nil
	}
}

// pooledBatch releases its connection on Close.
type pooledBatch struct {
	pgx.BatchResults
	conn *connection
}

// Close ends the statements and releases the connection.
func (b *pooledBatch) Close() error {
	err := b.BatchResults.Close()
	if b.conn != nil {
		b.conn.Release()
		b.conn = nil
	}
	return err
}

// pooledRow is a row, or the error of its query.
type pooledRow struct {
	rows pgx.Rows
	err  error
}

// Scan reads the first row. It returns pgx.ErrNoRows if there is none.
func (r pooledRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	_, err := pgx.CollectOneRow(r.rows, func(row pgx.CollectableRow) (struct{}, error) { return struct{}{}, row.Scan(dest...) })
	return err
}

// Ping checks that the database responds.
func (d *DB) Ping(ctx context.Context) error {
	_, err := d.Exec(ctx, "SELECT")
	return err
}
