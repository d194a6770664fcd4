package listener

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
)

// The limits of a connection over HTTP/2. The connection has more of them: see [frames].
const (
	maxStreams = 100
	maxFrame   = 16 << 10
	// maxUnread is the number of bytes of all bodies that no handler has read yet, and of each one: a
	// client may send as many before it knows the limits (RFC 9113, sections 6.9.2 and 6.9.3).
	maxUnread = 64 << 10
)

// http2Config returns the limits of a connection over HTTP/2.
func http2Config() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams:          maxStreams,
		MaxReadFrameSize:              maxFrame,
		MaxReceiveBufferPerStream:     maxUnread,
		MaxReceiveBufferPerConnection: maxUnread,
		WriteByteTimeout:              WriteTimeout,
	}
}

// waitingStreams counts the streams that wait, by connection.
//
// A stream waits until the API key of its request is verified. It waits again after its handler,
// until the client has room for the end of the response. The limits of an account cover only the time
// between. Over HTTP/1.1 a connection has one request at a time, so the limit of connections
// limits both. With too many streams that wait, the server closes one (see busiest).
//
// The streams come from the frames, so they include requests that net/http rejects itself.
type waitingStreams struct {
	most  int
	of    map[*connection]int
	total int
}

// leastWaiting is the number of streams that may wait even if few connections are allowed. At
// the end of a wait for events, many streams end at once.
const leastWaiting = 1000

// streamGroup has the strangers of a network, or its known clients.
type streamGroup struct {
	strangers bool
	network   netip.Addr
}

// busiest returns the connection with the most streams, in the network with the most of them. It
// is a stranger if strangers have more than a quarter of all streams, and otherwise a known
// client. There must be a connection.
func (s *waitingStreams) busiest() (chosen *connection) {
	groups, ofStrangers := map[streamGroup]int{}, 0
	for conn, count := range s.of {
		group := conn.streamGroup()
		if groups[group] += count; group.strangers {
			ofStrangers += count
		}
	}
	for conn, count := range s.of {
		group := conn.streamGroup()
		if group.strangers == (ofStrangers > s.most/spareShare) &&
			(chosen == nil || cmp.Or(cmp.Compare(groups[group], groups[chosen.streamGroup()]), cmp.Compare(count, s.of[chosen])) > 0) {
			chosen = conn
		}
	}
	return chosen
}

// streamGroup returns the group of a connection. The caller holds the lock.
func (c *connection) streamGroup() streamGroup {
	return streamGroup{c.in == &c.of.fresh || c.in == &c.of.served, networkAddress(c.RemoteAddr())}
}

// wait changes the number of streams that wait. The caller holds the lock.
func (c *connection) wait(change int) {
	if c.cut {
		return
	}
	s := &c.of.waiting
	s.total += change
	if s.of[c] += change; s.of[c] == 0 {
		delete(s.of, c)
	}
	if s.total > s.most {
		s.busiest().cutOff()
	}
}

// unlist removes the streams of a connection that ends. The caller holds the lock.
func (c *connection) unlist() {
	c.of.waiting.total -= c.of.waiting.of[c]
	delete(c.of.waiting.of, c)
	c.cut = true
}

// cutOff closes a connection over HTTP/2 that asks for too much. The caller holds the lock.
func (c *connection) cutOff() {
	c.unlist()
	c.of.evicted++
	c.discard()
}

// stream is a request over HTTP/2 while its handler runs.
type stream struct {
	conn    *connection
	isKnown bool // its API key is verified
}

// streams passes requests on to a handler, over HTTP/2 with their [stream].
func (c *Limited) streams(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := r.Context().Value(connectionKey{}).(*connection) //nolint:forcetypeassert // of connectionContext
		if r.TLS = conn.state; r.ProtoMajor < 2 {
			next.ServeHTTP(w, r)
			return
		}
		if r.Context().Err() != nil {
			return // the client has reset the stream: a flood of them costs little
		}
		s := &stream{conn: conn}
		defer s.setKnown(false)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), connectionKey{}, s)))
	})
}

// setKnown says whether the limits of an account cover the stream. After the last such stream, the
// connection can be replaced, also while others wait.
func (s *stream) setKnown(known bool) {
	c := s.conn
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	switch {
	case known && !s.isKnown:
		c.knownStreams++
		c.wait(-1)
	case !known && s.isKnown:
		c.knownStreams--
		c.wait(1)
		if c.knownStreams == 0 && c.counted {
			c.leave()
			c.enter(&c.of.idle)
			c.of.changed.Signal()
		}
	}
	s.isKnown = known
}
