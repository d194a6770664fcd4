// Package postgres knows PostgreSQL: the pool of connections and its limits,
// the migrations, what SQLSTATE codes mean, and notifications.
package postgres

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	connectTimeout  = 2 * time.Second
	acquireTimeout  = time.Second // a longer wait makes every waiter slow
	maxConnLifetime = time.Hour

	// pingTimeout bounds the look at a connection that was idle for a second or more.
	// One that is silent costs its statement this much of acquireTimeout.
	pingTimeout = 300 * time.Millisecond

	// keptForReads is how many connections writes leave: they hold theirs until the
	// disk has their commit, and while they wait for locks.
	keptForReads = 2
)

// sessionParameters are set on every connection of a pool. A statement that
// outlives them fails with SQLSTATE 57014, 55P03 or 25P03, all of which
// [Unavailable] knows.
var sessionParameters = map[string]string{
	"application_name":                    "petstore",
	"statement_timeout":                   "5s",
	"lock_timeout":                        "2s",
	"idle_in_transaction_session_timeout": "10s",
	"timezone":                            "UTC",
}

// DB runs statements on a pool of connections. It waits for a connection for a
// second at most, so that a pool that is exhausted is an error that [Unavailable]
// knows, and not a queue. It implements db.DBTX.
type DB struct {
	*shared
	writing bool
}

// shared is what the handles of one pool share.
type shared struct {
	pool      *pgxpool.Pool
	writers   writers
	servers   serverCounts
	lastReset atomic.Int64    // in Unix nanoseconds
	outside   *pgx.ConnConfig // for connections outside the pool
}

// writers are the statements that write.
type writers struct {
	connections chan struct{} // has a value for each that has a connection
	canceled    atomic.Uint64
}

// Open makes a pool of at most maxConns connections for a libpq URL, which may
// name several hosts. It connects to none yet: the only error is a URL that
// cannot be read. Every statement is shown to the tracers.
func Open(ctx context.Context, url string, maxConns int, tracers ...pgx.QueryTracer) (*DB, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	limitSession(config.ConnConfig)
	boundNetwork(config.ConnConfig)
	d := &DB{shared: &shared{
		writers: writers{connections: make(chan struct{}, max(1, maxConns-keptForReads))},
		outside: config.ConnConfig.Copy(),
	}}
	config.MaxConns = int32(maxConns) //nolint:gosec // bounded by the configuration
	config.MaxConnLifetime = maxConnLifetime
	config.MaxConnLifetimeJitter = maxConnLifetime / 10
	if len(tracers) > 0 {
		config.ConnConfig.Tracer = multitracer.New(tracers...)
	}
	config.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) { return isAlive(conn), nil }
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		d.servers.add(serverOf(conn), 1)
		return nil
	}
	config.BeforeClose = d.hangUp
	if config.PingTimeout == 0 {
		config.PingTimeout = pingTimeout
	}
	// A server that has become a standby keeps its connections. None of them takes
	// a write any more; new ones find the server that does.
	inherited := config.ConnConfig.OnPgError
	config.ConnConfig.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		if err.Code == readOnlySQLTransaction {
			d.pool.Reset()
		}
		return inherited(conn, err)
	}
	if d.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	return d, nil
}

// limitSession sets our limits where the URL does not say otherwise.
func limitSession(config *pgx.ConnConfig) {
	for name, value := range sessionParameters {
		if _, set := config.RuntimeParams[name]; !set {
			config.RuntimeParams[name] = value
		}
	}
	if config.ConnectTimeout <= 0 || config.ConnectTimeout > connectTimeout {
		config.ConnectTimeout = connectTimeout
	}
}

// Close closes the pool. It waits up to a second for connections that are in use;
// they end when they are given back, or with the process.
func (d *DB) Close() {
	closed := make(chan struct{})
	go func() {
		d.pool.Close()
		close(closed)
	}()
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
	}
}

// Pool is the pool itself, for what needs a connection of its own.
func (d *DB) Pool() *pgxpool.Pool { return d.pool }

// Writing is the same database for statements that write. They leave a few of the
// connections to those that do not, which would else wait behind them.
func (d *DB) Writing() *DB { return &DB{shared: d.shared, writing: true} }

// CanceledWrites counts the writes that got no connection in time because as many
// as may were writing; the pool does not know of them.
func (d *DB) CanceledWrites() uint64 { return d.writers.canceled.Load() }

// Exec runs a statement that returns no rows.
func (d *DB) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	conn, err := d.acquire(ctx)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	defer conn.Release()
	return conn.Exec(ctx, sql, args...)
}

// Query runs a statement; its connection is given back when the rows are closed.
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

// QueryRow runs a statement; its connection is given back by Scan.
func (d *DB) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := d.Query(ctx, sql, args...)
	return pooledRow{rows, err}
}

func (d *DB) acquire(ctx context.Context) (*connection, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, acquireTimeout, errPoolExhausted)
	defer cancel()
	if d.writing {
		select {
		case d.writers.connections <- struct{}{}:
		case <-ctx.Done():
			d.writers.canceled.Add(1)
			return nil, &acquireError{context.Cause(ctx)}
		}
	}
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		d.written()
		return nil, &acquireError{err}
	}
	return &connection{conn, d}, nil
}

// written lets another write have a connection.
func (d *DB) written() {
	if d.writing {
		<-d.writers.connections
	}
}

// connection is one of the pool, until it is released.
type connection struct {
	*pgxpool.Conn
	db *DB
}

// Release gives the connection back.
func (c *connection) Release() {
	c.Conn.Release()
	c.db.written()
}

// pooledRows gives its connection back when it is closed.
type pooledRows struct {
	pgx.Rows
	conn *connection
}

// Close ends the statement and gives its connection back.
func (r *pooledRows) Close() {
	r.Rows.Close()
	if r.conn != nil {
		r.conn.Release()
		r.conn = nil
	}
}

// pooledRow is a row, or the error of the query that should have given it.
type pooledRow struct {
	rows pgx.Rows
	err  error
}

// Scan reads the first row; pgx.ErrNoRows when there is none.
func (r pooledRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

// Ping makes sure that the database answers.
func (d *DB) Ping(ctx context.Context) error {
	_, err := d.Exec(ctx, "SELECT")
	return err
}
