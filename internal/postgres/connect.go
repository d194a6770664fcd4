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

// A connection whose network drops all packets looks idle. The kernel closes it if
// the peer acknowledges neither sent data within unacknowledged nor keepalives:
// about 8 s after the last packet.
const (
	unacknowledged    = 4 * time.Second // below the request timeout, so that a read can be retried
	keepAliveIdle     = 5 * time.Second
	keepAliveInterval = time.Second
	keepAliveCount    = 3
)

// boundNetwork limits the time that connections wait for a silent network, server or
// DNS, and makes each connection identify its origin and take the settings.
func boundNetwork(config *pgx.ConnConfig, wanted settings) {
	config.DialFunc = dialWithin(config.ConnectTimeout)
	config.LookupFunc = lookUpWithin(config.ConnectTimeout, config.LookupFunc)
	inherited := config.ValidateConnect
	config.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := conn.Conn().SetDeadline(time.Time{}); err != nil {
			return err
		}
		if err := identify(ctx, conn, wanted); err != nil || inherited == nil {
			return err
		}
		return inherited(ctx, conn)
	}
}

// dialWithin returns a dial function that sets a deadline on each connection, which
// [boundNetwork] removes. pgx also uses it for connections that cancel a statement,
// which then end within the timeout instead of pgx's 15 s.
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

// lookUpWithin limits the time of a lookup of a host name. pgx looks all hosts of a URL up before it
// connects to one, and without those whose lookup fails.
func lookUpWithin(timeout time.Duration, lookUp pgconn.LookupFunc) pgconn.LookupFunc {
	return func(ctx context.Context, host string) ([]string, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return lookUp(ctx, host)
	}
}

// serverCounts counts the connections of a pool by the server that they lead to, and
// those that lead through a pooler. It is safe for concurrent use.
type serverCounts struct {
	mu          sync.Mutex
	connections map[string]int
	pooled      int
}

func (s *serverCounts) add(to origin, connections int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if to.pooled {
		s.pooled += connections
		return
	}
	if s.connections == nil {
		s.connections = map[string]int{}
	}
	if s.connections[to.server] += connections; s.connections[to.server] == 0 {
		delete(s.connections, to.server)
	}
}

// lead reports whether all counted connections without a pooler lead to the server, which is
// true if there are none. It also reports whether another one leads through a pooler.
func (s *serverCounts) lead(server string) (there, pooled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	there = len(s.connections) == 0 || len(s.connections) == 1 && s.connections[server] > 0
	return there, s.pooled > 0
}

// leadsTo reports whether every connection of the pool leads to the server. If not,
// it closes dead idle connections, so that they do not count the next time. A pooler
// may change the server of a connection, so leadsTo asks through the pool.
func (d *DB) leadsTo(ctx context.Context, server string) (bool, error) {
	there, pooled := d.servers.lead(server)
	switch {
	case there && pooled:
		var now string
		err := d.QueryRow(ctx, serverQuery).Scan(&now)
		return now == server, err
	case !there:
		for _, conn := range d.pool.AcquireAllIdle(ctx) { // checks each connection
			conn.Release()
		}
	}
	return there, nil
}

const (
	// closeGrace is the time that the server has to close a broken connection: pgx
	// cancels its statement, sends Terminate and waits up to 15 s. A responsive
	// server takes milliseconds.
	closeGrace = 500 * time.Millisecond
	// closeTimeout is the maximum time that Close waits for connections in use.
	closeTimeout = time.Second

	// resetInterval is the minimum time between two resets of the pool, so that a
	// server that is slow for another reason keeps its connections. After an error of a
	// read-only server, readOnlyInterval is: it may stay so, and still serve reads. So it is
	// after a read from a replica that was promoted.
	resetInterval    = 5 * time.Second
	readOnlyInterval = time.Second
)

// hangUp is the pool's BeforeClose hook. pgxpool counts a connection until it has
// ended, so hangUp closes the socket if the server does not respond in time. It
// then resets the pool, because the idle connections are probably silent too.
func (d *DB) hangUp(conn *pgx.Conn) {
	d.servers.add(originOf(conn), -1)
	if !conn.IsClosed() {
		return // pgxpool closes it without waiting for the server
	}
	timer := time.NewTimer(closeGrace)
	defer timer.Stop()
	select {
	case <-conn.PgConn().CleanupDone():
		return
	case <-timer.C:
	}
	_ = conn.PgConn().Conn().Close() // pgx may have closed it just now
	d.reset(resetInterval)
}

// reset closes the idle connections, and those in use when they are released, unless that has
// happened within an interval. A clock that has gone back does not prevent it.
func (d *DB) reset(interval time.Duration) {
	last, now := d.lastReset.Load(), time.Now().UnixNano()
	if max(now-last, last-now) >= int64(interval) && d.lastReset.CompareAndSwap(last, now) {
		d.pool.Reset()
	}
}
