package main

import (
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
)

// ownDescriptors is how many descriptors the process needs besides those of its
// connections to clients and to the database: its listeners, the admin
// connections and what Go opens.
const ownDescriptors = 64

// connections is a listener that bounds how many of its connections are open. At
// the bound, a new connection takes the place of the oldest one that waits for a
// request header: a new connection, or an idle one that was kept alive. If a
// request is in progress on every connection, Accept waits, and newcomers wait in
// the backlog of the kernel.
//
// The header of a request can arrive at the moment at which its connection is
// closed. The client then sees a closed connection and no response, as it does
// when an idle connection times out, so it can repeat a GET or a request with an
// Idempotency-Key.
type connections struct {
	net.Listener
	most int

	mu      sync.Mutex
	changed sync.Cond // a place is free or can be taken, or the listener is closed
	open    int
	closed  bool
	evicted uint64
	waiting connection // the head of a ring of the connections that wait for a header, oldest first
}

// connection is a connection that counts against a bound. Its methods are those
// that net/http calls on a *net.TCPConn.
type connection struct {
	*net.TCPConn
	of         *connections
	counted    bool
	next, prev *connection // nil unless the connection waits for a header
}

// limitConnections bounds the open connections of a listener to most. The server
// that serves them must call track whenever their state changes.
func limitConnections(listener net.Listener, most int) *connections {
	c := &connections{Listener: listener, most: most}
	c.changed.L = &c.mu
	c.waiting.next, c.waiting.prev = &c.waiting, &c.waiting
	return c
}

// Accept returns the next connection, after it has made a place for it.
func (c *connections) Accept() (net.Conn, error) {
	accepted, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp, ok := accepted.(*net.TCPConn)
	if !ok {
		return accepted, nil // no listener of ours accepts others
	}
	conn := &connection{TCPConn: tcp, of: c}
	evicted, ok := c.admit(conn)
	if !ok {
		_ = tcp.Close() // nobody has read from it
		return nil, net.ErrClosed
	}
	if evicted != nil {
		_ = evicted.TCPConn.Close() // its client gets no more from it, whatever the error
	}
	return conn, nil
}

// admit counts a connection as soon as there is a place for it, and returns the
// connection whose place it takes, if any. It reports false if the listener is
// closed.
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

// forget no longer counts a connection. The caller holds the lock.
func (c *connections) forget(conn *connection) {
	if conn.counted {
		conn.counted = false
		conn.unlink()
		c.open--
	}
}

// track is for the ConnState of a http.Server, which sets StateActive when it has
// read a header and StateIdle when it has sent a response.
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

// counts returns how many connections are open, and how many were closed to make
// place for others since the start.
func (c *connections) counts() (open int, evicted uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open, c.evicted
}

// Close closes the listener. An Accept that waits for a place returns.
func (c *connections) Close() error {
	c.mu.Lock()
	c.closed = true
	c.changed.Broadcast()
	c.mu.Unlock()
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

// CloseWrite ends what the server sends. net/http does this after the response to
// a request that it did not read to the end, such as one whose headers are too
// long, and then waits 500 ms for the client to read that response. Such a
// connection is the first to be closed at the bound, so that nobody can fill the
// server with them.
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

// insertBefore puts the connection into a ring.
func (c *connection) insertBefore(next *connection) {
	c.next, c.prev = next, next.prev
	c.next.prev, c.prev.next = c, c
}

// unlink takes the connection out of its ring, if it is in one.
func (c *connection) unlink() {
	if c.next != nil {
		c.next.prev, c.prev.next = c.prev, c.next
		c.next, c.prev = nil, nil
	}
}

// warnOfDescriptors logs a warning if the process may not open enough descriptors
// for the connections that it is configured for.
func warnOfDescriptors(c config, log *slog.Logger) {
	var limit syscall.Rlimit
	needed := uint64(c.MaxConnections + c.DBMaxConns + ownDescriptors) //nolint:gosec // both are positive
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err == nil && limit.Cur < needed {
		log.Warn("the limit of open files is too low: raise it (ulimit -n), or lower PETSTORE_MAX_CONNECTIONS",
			"limit", limit.Cur, "needed", needed)
	}
}
