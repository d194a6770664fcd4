package main

import (
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"

	"petstore/internal/delivery"
)

// ownDescriptors is the number of file descriptors that the process needs besides
// those of its client and database connections: listeners, admin connections and
// those of the Go runtime.
const ownDescriptors = 64

// connections is a listener that limits its open connections. At the limit, a new
// connection replaces the oldest one that waits for a request header: a new
// connection, or an idle keep-alive one. If all connections have a request in
// progress, Accept waits, and new connections wait in the backlog of the kernel.
//
// A request header can arrive just when its connection is closed. The client then
// sees a closed connection without a response, as when an idle connection times
// out. It can retry a GET or a request with an Idempotency-Key.
type connections struct {
	net.Listener
	most int

	mu      sync.Mutex
	changed sync.Cond // a place is free or can be freed, or the listener is closed
	open    int
	closed  bool
	evicted uint64
	waiting connection // head of the ring of connections that wait for a header, oldest first
}

// connection is a connection that counts against the limit. It has the methods of
// *net.TCPConn that net/http uses.
type connection struct {
	*net.TCPConn
	of         *connections
	counted    bool
	next, prev *connection // nil unless the connection waits for a header
}

// limitConnections limits the open connections of a listener to most. The
// http.Server must call track when the state of a connection changes.
func limitConnections(listener net.Listener, most int) *connections {
	c := &connections{Listener: listener, most: most}
	c.changed.L = &c.mu
	c.waiting.next, c.waiting.prev = &c.waiting, &c.waiting
	return c
}

// Accept returns the next connection after it has made room for it.
func (c *connections) Accept() (net.Conn, error) {
	accepted, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp, ok := accepted.(*net.TCPConn)
	if !ok {
		return accepted, nil // does not happen with our listeners
	}
	conn := &connection{TCPConn: tcp, of: c}
	evicted, ok := c.admit(conn)
	if !ok {
		_ = tcp.Close() // no data was read from it
		return nil, net.ErrClosed
	}
	if evicted != nil {
		_ = evicted.TCPConn.Close() // it is closed even if this fails
	}
	return conn, nil
}

// admit waits for a place and counts the connection. It returns the connection that
// it replaces, if any. It returns false if the listener is closed.
func (c *connections) admit(conn *connection) (evicted *connection, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.open >= c.most && c.waiting.next == &c.waiting && !c.closed {
		c.changed.Wait()
	}
	if c.closed {
		return nil, false
	}
	if c.open >= c.most {
		evicted = c.waiting.next
		c.forget(evicted)
		c.evicted++
	}
	conn.counted = true
	c.open++
	conn.insertBefore(&c.waiting)
	return evicted, true
}

// forget stops counting a connection. The caller holds the lock.
func (c *connections) forget(conn *connection) {
	if conn.counted {
		conn.counted = false
		conn.unlink()
		c.open--
	}
}

// track is the ConnState hook of an http.Server, which sets StateActive after it
// has read a header and StateIdle after a response.
func (c *connections) track(conn net.Conn, state http.ConnState) {
	tracked, ok := conn.(*connection)
	if !ok || state != http.StateActive && state != http.StateIdle {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	tracked.unlink()
	if state == http.StateIdle && tracked.counted {
		tracked.insertBefore(&c.waiting)
		c.changed.Signal()
	}
}

// counts returns the number of open connections, and of those closed to make room
// for others since the start.
func (c *connections) counts() (open int, evicted uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open, c.evicted
}

// Close closes the listener. An Accept that waits for a place returns. The first call
// closes, so that it has the result even if http.Server.Serve calls Close just then.
func (c *connections) Close() error {
	c.mu.Lock()
	closed := c.closed
	c.closed = true
	c.changed.Broadcast()
	c.mu.Unlock()
	if closed {
		return net.ErrClosed
	}
	return c.Listener.Close()
}

// Close closes the connection and frees its place.
func (c *connection) Close() error {
	c.of.mu.Lock()
	c.of.forget(c)
	c.of.changed.Signal()
	c.of.mu.Unlock()
	return c.TCPConn.Close()
}

// CloseWrite shuts down the sending side. net/http calls it after a response to a
// request that it has not read completely, such as one with too long headers. It
// then waits 500 ms for the client. Such a connection is replaced first, so that
// clients cannot fill the server with them.
func (c *connection) CloseWrite() error {
	err := c.TCPConn.CloseWrite()
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.counted && c.next == nil {
		c.insertBefore(c.of.waiting.next)
		c.of.changed.Signal()
	}
	return err
}

// insertBefore inserts the connection into a ring.
func (c *connection) insertBefore(next *connection) {
	c.next, c.prev = next, next.prev
	c.next.prev, c.prev.next = c, c
}

// unlink removes the connection from its ring, if it is in one.
func (c *connection) unlink() {
	if c.next != nil {
		c.next.prev, c.prev.next = c.prev, c.next
		c.next, c.prev = nil, nil
	}
}

// warnOfDescriptors logs a warning if the limit of open files is too low for the
// configured connections.
func warnOfDescriptors(c config, log *slog.Logger) {
	var limit syscall.Rlimit
	needed := uint64(c.MaxConnections + (1+len(c.replicaURLs()))*c.DBMaxConns + ownDescriptors) //nolint:gosec // both are positive
	if c.Worker {
		needed += delivery.Descriptors
	}
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err == nil && limit.Cur < needed {
		log.Warn("the limit of open files is too low; raise it (ulimit -n) or lower PETSTORE_MAX_CONNECTIONS",
			"limit", limit.Cur, "needed", needed)
	}
}
