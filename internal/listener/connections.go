package listener

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"

	"petstore/internal/ratelimit"
)

// spareShare is the part of all places, one in so many, that is protected when a new
// connection needs a place: strangers keep a quarter of the places beside idle
// connections of known clients, and a network keeps a quarter beside the strangers of
// larger networks.
const spareShare = 4

// Limited is a listener that limits its open connections. At the limit, a new
// connection replaces another one: a stranger, or an idle connection of a known client.
// If all connections have a request with a known API key in progress, Accept waits, and
// new connections wait in the backlog of the kernel.
//
// A connection is a stranger until the API key of its request is verified, also while it
// sends a document or an error. So clients without a key cannot occupy all places. A
// stranger that has got a part of a response is replaced before one that has not.
//
// A request can arrive just when its connection is closed. The client then sees a closed
// connection without a response, as when an idle connection times out. It can retry a
// GET or a request with an Idempotency-Key.
type Limited struct {
	*Listener
	most int

	mu       sync.Mutex
	changed  sync.Cond // a place is free or can be freed, or the listener is closed
	open     int
	ending   int // replaced connections that the http.Server has not closed yet
	closed   bool
	evicted  uint64
	fresh    ring               // strangers without a response
	served   ring               // strangers with a response
	idle     ring               // connections of known clients without a request
	networks map[netip.Addr]int // strangers
	crowds   int                // networks with more than their share

	waiting  waitingStreams
	burst    float64     // frames that a client may send at once
	tls      *tls.Config // nil without TLS
	logError func(format string, args ...any)
}

// connection is a connection that counts against the limit. With TLS, it encrypts, so that it
// sees the [frames] of HTTP/2.
type connection struct {
	net.Conn
	tcp             *net.TCPConn
	handshake       func() error         // nil without TLS
	state           *tls.ConnectionState // nil without TLS
	frames          frames
	of              *Limited
	counted, ending bool
	known           bool        // the API key of a request is verified, until StateIdle
	knownStreams    int         // streams in progress whose API key is verified
	cut             bool        // closed, or about to be
	written         atomic.Bool // a part of a response
	wide            atomic.Bool // the kernel may buffer [maxUnsent] bytes
	network         netip.Addr  // while the connection is a stranger
	in              *ring
	next, prev      *connection // nil unless the connection is in a ring
}

// ring has connections that can be replaced, oldest first.
type ring struct {
	head connection
	len  int
}

// Limit limits the open connections of a listener to most.
func Limit(listener *Listener, most int) *Limited {
	c := &Limited{Listener: listener, most: most, networks: map[netip.Addr]int{}}
	c.waiting = waitingStreams{max(most, leastWaiting), map[*connection]int{}, 0}
	c.changed.L = &c.mu
	for _, r := range []*ring{&c.fresh, &c.served, &c.idle} {
		r.head.next, r.head.prev = &r.head, &r.head
	}
	return c
}

// headerSlop is the number of bytes that net/http reads beyond MaxHeaderBytes over HTTP/1.1. On
// a keep-alive connection it does not count bytes that it read before the request, at most as
// many again.
const headerSlop = 4 << 10

// Serve runs a server on the listener, with TLS if there is a configuration, and sets the fields
// of the server that concern connections. It logs the errors that clients can cause for debugging.
// If the server has a ConnState, Serve calls it after its own.
func (c *Limited) Serve(server *http.Server, secure *tls.Config, logger *slog.Logger) error {
	server.Handler, server.ConnContext = c.streams(server.Handler), connectionContext
	changed := server.ConnState
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		c.track(conn, state)
		if changed != nil {
			changed(conn, state)
		}
	}
	server.WriteTimeout, server.HTTP2 = WriteTimeout, http2Config()
	server.ErrorLog = slog.NewLogLogger(clientErrors{logger.Handler()}, slog.LevelWarn)
	if secure == nil {
		server.MaxHeaderBytes -= headerSlop
		return server.Serve(c)
	}
	c.tls, c.logError = secure, server.ErrorLog.Printf
	c.burst = framesAtOnce + maxStreams*float64(server.MaxHeaderBytes>>10)
	server.Protocols = &http.Protocols{}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true) // a connection encrypts itself
	return server.Serve(c)
}

// clientErrors logs the errors of TLS and HTTP/2 for debugging only, because any client can
// cause them.
type clientErrors struct{ slog.Handler }

// Handle implements [slog.Handler].
func (h clientErrors) Handle(ctx context.Context, record slog.Record) error {
	begins := func(prefix string) bool { return strings.HasPrefix(record.Message, prefix) }
	if begins("http: TLS handshake error") || begins("timeout waiting for SETTINGS") || begins("http2: ") && !begins("http2: panic") {
		if record.Level = slog.LevelDebug; !h.Enabled(ctx, record.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, record)
}

// connectionKey is the key of the connection in the context of its requests, or of the
// [stream] of a request over HTTP/2.
type connectionKey struct{}

// connectionContext is the ConnContext hook of an http.Server.
func connectionContext(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, conn)
}

// Keep protects the connection of a request with a verified API key until the
// end of the request.
func Keep(ctx context.Context) {
	conn, _ := ctx.Value(connectionKey{}).(*connection)
	if s, ok := ctx.Value(connectionKey{}).(*stream); ok {
		s.setKnown(true)
		conn = s.conn
	}
	if conn == nil {
		return
	}
	conn.of.mu.Lock()
	conn.known = true
	conn.leave()
	conn.of.mu.Unlock()
	if !conn.wide.Swap(true) {
		if raw, err := conn.tcp.SyscallConn(); err == nil {
			_ = limitUnsent(raw, maxUnsent) // otherwise large responses take longer
		}
	}
}

// Accept returns the next connection after it has made room for it.
func (c *Limited) Accept() (net.Conn, error) {
	accepted, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp := accepted.(*net.TCPConn) //nolint:forcetypeassert // of a TCPListener
	conn := &connection{Conn: tcp, tcp: tcp, of: c}
	if c.tls != nil {
		conn.encrypt()
	}
	evicted, ok := c.admit(conn)
	if !ok {
		_ = tcp.Close() // no data was read from it
		return nil, net.ErrClosed
	}
	if evicted != nil {
		_ = evicted.tcp.Close() // it is closed even if this fails
	}
	return conn, nil
}

// encrypt makes the first Read of a connection begin with the handshake of TLS.
func (c *connection) encrypt() {
	secure := tls.Server(c.tcp, c.of.tls)
	c.Conn = secure
	c.handshake = sync.OnceValue(func() error {
		err := secure.HandshakeContext(context.Background()) // net/http sets a deadline
		if err == nil {
			c.state = new(secure.ConnectionState())
			return nil
		}
		if plain, ok := errors.AsType[tls.RecordHeaderError](err); ok && plain.Conn != nil {
			_, _ = io.WriteString(c.tcp, "HTTP/1.0 400 Bad Request\r\n\r\nThis server needs HTTPS.\n")
		}
		_ = c.tcp.Close() // net/http closes it too
		c.of.logError("http: TLS handshake error from %s: %v", c.RemoteAddr(), err)
		return err
	})
}

// admit waits for a place and counts the connection. It returns the connection that
// it replaces, if any. It returns false if the listener is closed.
func (c *Limited) admit(conn *connection) (evicted *connection, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closed && c.open >= c.most && !c.canReplace() {
		c.changed.Wait()
	}
	if c.closed {
		return nil, false
	}
	if c.open >= c.most {
		evicted = c.replace()
	}
	conn.counted = true
	c.open++
	conn.enter(&c.fresh)
	return evicted, true
}

// canReplace reports whether a connection can be replaced. Handlers of replaced
// connections end soon, but not at once, so there may not be many of them. The caller
// holds the lock.
func (c *Limited) canReplace() bool {
	return c.strangers()+c.idle.len > 0 && c.ending <= c.most/spareShare
}

// strangers returns the number of strangers. The caller holds the lock.
func (c *Limited) strangers() int { return c.fresh.len + c.served.len }

// replace chooses the connection that a new one replaces, and stops counting it. The
// caller holds the lock.
func (c *Limited) replace() *connection {
	chosen := c.idle.head.next
	if c.idle.len == 0 || c.strangers() > c.most/spareShare {
		chosen = c.oldestStranger()
		if chosen.written.Load() {
			chosen.discard()
		}
	}
	c.forget(chosen)
	chosen.ending = true
	c.ending++
	c.evicted++
	return chosen
}

// oldestStranger returns the stranger to replace: of the networks with more than their
// share if there are any, with a response if there are any, and the oldest of these. The
// caller holds the lock. There must be a stranger.
func (c *Limited) oldestStranger() *connection {
	for conn := c.served.head.next; conn != &c.served.head; conn = conn.next {
		if c.crowds == 0 || c.isCrowd(conn.network) {
			return conn
		}
	}
	oldest := c.fresh.head.next
	for c.crowds > 0 && !c.isCrowd(oldest.network) {
		oldest = oldest.next
	}
	return oldest
}

// isCrowd reports whether a network has more strangers than its share.
func (c *Limited) isCrowd(network netip.Addr) bool { return c.networks[network] > c.most/spareShare }

// networkAddress returns the address of the network that limits a client.
func networkAddress(remote net.Addr) netip.Addr {
	tcp, _ := remote.(*net.TCPAddr)
	return ratelimit.Network(tcp.AddrPort().Addr()) // invalid if the address is
}

// countStranger counts a stranger of a network, or forgets one. The caller holds the lock.
func (c *Limited) countStranger(network netip.Addr, change int) {
	before := c.isCrowd(network)
	c.networks[network] += change
	switch after := c.isCrowd(network); {
	case after && !before:
		c.crowds++
	case before && !after:
		c.crowds--
	}
	if c.networks[network] == 0 {
		delete(c.networks, network)
	}
}

// forget stops counting a connection. The caller holds the lock.
func (c *Limited) forget(conn *connection) {
	if conn.counted {
		conn.counted = false
		conn.leave()
		c.open--
	}
}

// track is the ConnState hook of an http.Server, which sets StateActive when the header of
// a request has arrived, and StateIdle after a response. Until the key of its next request
// is verified, a connection of a known client is as if it had just become idle.
func (c *Limited) track(conn net.Conn, state http.ConnState) {
	tracked := conn.(*connection) //nolint:forcetypeassert // from Accept
	c.mu.Lock()
	defer c.mu.Unlock()
	if tracked.frames.isHTTP2() && tracked.frames.last == 0 {
		return // net/http sets both states before there is a request
	}
	switch {
	case state == http.StateActive && tracked.in == &c.idle:
		tracked.leave()
		tracked.enter(&c.idle)
	case state == http.StateIdle && tracked.counted:
		tracked.leave()
		if tracked.known {
			tracked.enter(&c.idle)
		} else {
			tracked.enter(&c.served)
		}
		tracked.known = false
		c.changed.Signal()
	}
}

// Counts returns the number of open connections, and of those closed to make room
// for others since the start.
func (c *Limited) Counts() (open int, evicted uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open, c.evicted
}

// Close closes the listener. An Accept that waits for a place returns. The first call
// closes, so that it has the result even if http.Server.Serve calls Close just then.
func (c *Limited) Close() error {
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

// Read reads a part of a request.
func (c *connection) Read(text []byte) (int, error) {
	if c.handshake != nil {
		if err := c.handshake(); err != nil {
			return 0, err
		}
	}
	n, err := c.Conn.Read(text)
	if n > 0 {
		if failed := c.received(text[:n]); failed != nil {
			return 0, failed
		}
	}
	return n, err
}

// Write writes a part of a response.
func (c *connection) Write(text []byte) (int, error) {
	if !c.frames.isHTTP2() && !c.written.Load() {
		c.of.mu.Lock()
		c.responded()
		c.of.mu.Unlock()
	}
	n, err := c.Conn.Write(text)
	c.sent(text[:n])
	if err != nil {
		c.discard()
	}
	return n, err
}

// responded says that a response has begun. The caller holds the lock.
func (c *connection) responded() {
	if !c.written.Swap(true) && c.in == &c.of.fresh {
		c.leave()
		c.enter(&c.of.served)
	}
}

// discard closes a connection without its place, and discards the part of a response that the
// client has not read yet. Otherwise the kernel would keep it for minutes, and Close with TLS
// would wait 5 s for room after it.
func (c *connection) discard() {
	_ = c.tcp.SetLinger(0) // fails only if the connection is closed
	_ = c.tcp.Close()      // net/http then closes the connection too
}

// Close closes the connection and frees its place.
func (c *connection) Close() error {
	c.of.mu.Lock()
	c.of.forget(c)
	c.unlist()
	if c.ending {
		c.ending = false
		c.of.ending--
	}
	c.of.changed.Signal()
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite shuts down the sending side. net/http calls it after a response to a
// request that it has not read completely, such as one with too long headers. It
// then waits 500 ms for the client. Such a connection is replaced first, so that
// clients cannot fill the server with them.
func (c *connection) CloseWrite() error {
	err := c.Conn.(interface{ CloseWrite() error }).CloseWrite() // *net.TCPConn or *tls.Conn
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.counted {
		c.leave()
		c.insert(&c.of.served, c.of.served.head.next)
		c.of.changed.Signal()
	}
	return err
}

// enter makes the connection the newest of a ring. The caller holds the lock.
func (c *connection) enter(r *ring) { c.insert(r, &r.head) }

// insert inserts the connection into a ring, before another one. The caller holds the lock.
func (c *connection) insert(r *ring, next *connection) {
	c.in, c.next, c.prev = r, next, next.prev
	c.next.prev, c.prev.next = c, c
	r.len++
	if r != &c.of.idle {
		c.network = networkAddress(c.RemoteAddr())
		c.of.countStranger(c.network, 1)
	}
}

// leave removes the connection from its ring, if it is in one. The caller holds the lock.
func (c *connection) leave() {
	if c.in == nil {
		return
	}
	c.next.prev, c.prev.next = c.prev, c.next
	c.in.len--
	if c.in != &c.of.idle {
		c.of.countStranger(c.network, -1)
	}
	c.in, c.next, c.prev = nil, nil, nil
}
