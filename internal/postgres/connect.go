package postgres

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A connection whose network swallows everything looks idle. The kernel ends it
// when the other end acknowledges neither what was sent, within unacknowledged,
// nor that the connection exists: about 8 s after the last sign of life.
const (
	unacknowledged    = 4 * time.Second // under the deadline of a request, so that a read can be retried
	keepAliveIdle     = 5 * time.Second
	keepAliveInterval = time.Second
	keepAliveCount    = 3
)

// boundNetwork bounds how long the connections of a configuration wait for a
// network or a server that is silent, and has them know their server.
func boundNetwork(config *pgx.ConnConfig) {
	config.DialFunc = dialWithin(config.ConnectTimeout)
	inherited := config.ValidateConnect
	config.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := identify(ctx, conn); err != nil || inherited == nil {
			return err
		}
		return inherited(ctx, conn)
	}
}

// dialWithin returns a function that makes connections with a deadline, which
// [identify] takes away. So a connection that cancels a statement, which pgx makes
// with this function too, ends within the timeout instead of pgx's 15 s.
func dialWithin(timeout time.Duration) pgconn.DialFunc {
	dialer := net.Dialer{
		Timeout: timeout,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount,
		},
		Control: boundUnacknowledged,
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return conn, nil
	}
}

// serverKey is where a connection keeps the name that identify gave its server.
const serverKey = "petstore server"

// identify finds out which server a new connection leads to. The start of its
// postmaster, in microseconds, tells servers apart, and every role may read it.
// The address does not: one server may have several.
func identify(ctx context.Context, conn *pgconn.PgConn) error {
	if err := conn.Conn().SetDeadline(time.Time{}); err != nil {
		return err
	}
	results, err := conn.Exec(ctx, "SELECT extract(epoch FROM pg_postmaster_start_time())").ReadAll()
	if err != nil {
		return err
	}
	conn.CustomData()[serverKey] = string(results[0].Rows[0][0])
	return nil
}

// serverOf returns the server that a connection leads to.
func serverOf(conn *pgx.Conn) string {
	server, _ := conn.PgConn().CustomData()[serverKey].(string)
	return server
}

// serverCounts counts the connections of a pool by the server that they lead to. It is
// safe for concurrent use.
type serverCounts struct {
	mu          sync.Mutex
	connections map[string]int
}

func (s *serverCounts) add(server string, connections int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connections == nil {
		s.connections = map[string]int{}
	}
	if s.connections[server] += connections; s.connections[server] == 0 {
		delete(s.connections, server)
	}
}

// only reports whether no connection leads to another server.
func (s *serverCounts) only(server string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.connections) == 0 || len(s.connections) == 1 && s.connections[server] > 0
}

// leadsTo reports whether every connection of the pool leads to this server. If
// not, it closes the idle ones that are dead, so that they do not count next time.
func (d *DB) leadsTo(ctx context.Context, server string) bool {
	if d.servers.only(server) {
		return true
	}
	for _, conn := range d.pool.AcquireAllIdle(ctx) { // which looks at each
		conn.Release()
	}
	return false
}

const (
	// farewell is how long the server has to end a broken connection: pgx cancels
	// its statement, says goodbye and waits for 15 s. A server that is there takes
	// milliseconds.
	farewell = 500 * time.Millisecond
	// closeTimeout bounds the wait for all connections when a pool closes.
	closeTimeout = time.Second

	// resetInterval is the least time between two doubts about a whole pool, so that
	// a server which is slow for another reason keeps its connections.
	resetInterval = 5 * time.Second
)

// hangUp is called before a connection leaves the pool. pgxpool keeps its place
// until the connection has ended, so hangUp ends it when the server does not. The
// idle connections are then likely to be silent too, and are given up.
func (d *DB) hangUp(conn *pgx.Conn) {
	d.servers.add(serverOf(conn), -1)
	if !conn.IsClosed() {
		return // pgxpool closes it without waiting for the server
	}
	timer := time.NewTimer(farewell)
	defer timer.Stop()
	select {
	case <-conn.PgConn().CleanupDone():
		return
	case <-timer.C:
	}
	_ = conn.PgConn().Conn().Close() // pgx may have closed it just now
	last, now := d.lastReset.Load(), time.Now().UnixNano()
	if now-last >= int64(resetInterval) && d.lastReset.CompareAndSwap(last, now) {
		d.pool.Reset()
	}
}
