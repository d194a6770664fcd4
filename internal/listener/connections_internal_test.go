package listener

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"petstore/internal/tools/need"
)

// patience is the time in which everything that a test waits for must happen.
const patience = 60 * time.Second

// bounded is a server with a limit on its connections. Its handler sends the path
// of each request to began and waits until the test sends to proceed.
type bounded struct {
	t       *testing.T
	limited *Limited
	server  *http.Server
	began   chan string
	proceed chan struct{}
	served  chan error
	states  sync.Map // http.ConnState by the address of the client
	log     strings.Builder
}

func startBounded(t *testing.T, most int) *bounded {
	t.Helper()
	return startBoundedWith(t, most, nil)
}

// startBoundedWith is [startBounded] with TLS, unless the configuration is nil.
func startBoundedWith(t *testing.T, most int, secure *tls.Config) *bounded {
	t.Helper()
	inner := need.Value(Listen(t.Context(), "127.0.0.1:0"))(t)
	b := &bounded{t: t, limited: Limit(inner, most), began: make(chan string, 100), proceed: make(chan struct{}), served: make(chan error, 1)}
	b.server = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/verified-late" {
				b.began <- r.URL.Path
				<-b.proceed
			}
			if r.Header.Get("Authorization") != "" {
				Keep(r.Context())
			}
			b.began <- r.URL.Path
			if r.URL.Path == "/late" {
				_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(50 * time.Millisecond)) // the write then fails
			}
			if r.URL.Path == "/large" || r.URL.Path == "/late" {
				_, _ = w.Write(make([]byte, 1<<20)) // the client does not read it
				return
			}
			select {
			case <-b.proceed:
			case <-r.Context().Done():
			}
			_, _ = io.WriteString(w, r.URL.Path) // the client may be gone
		}),
		ConnState: func(conn net.Conn, state http.ConnState) {
			b.states.Store(conn.RemoteAddr().String(), state)
		},
		ReadHeaderTimeout: patience,
		MaxHeaderBytes:    headerSlop + 1,
	}
	go func() { b.served <- b.limited.Serve(b.server, secure, slog.New(slog.NewTextHandler(&b.log, nil))) }()
	t.Cleanup(func() { _ = b.server.Close() })
	return b
}

// peer is the client side of a connection.
type peer struct {
	t *testing.T
	net.Conn
	reader *bufio.Reader
}

// dial connects and sends text. It waits until the server has this many open
// connections.
func (b *bounded) dial(text string, open int) *peer {
	b.t.Helper()
	p := dialPeer(b.t, b.limited.Addr().String())
	p.send(text)
	b.until(func(l *Limited) bool { return l.open == open })
	return p
}

func dialPeer(t *testing.T, address string) *peer {
	t.Helper()
	return dialPeerFrom(t, &net.Dialer{}, address)
}

func dialPeerFrom(t *testing.T, dialer *net.Dialer, address string) *peer {
	t.Helper()
	conn := need.Value(dialer.DialContext(t.Context(), "tcp", address))(t)
	t.Cleanup(func() { conn.Close() })
	need.OK(t, conn.SetDeadline(time.Now().Add(patience)))
	return &peer{t, conn, bufio.NewReader(conn)}
}

// until waits for a state of the connections. It holds the lock while it looks.
func (b *bounded) until(reached func(*Limited) bool) {
	b.t.Helper()
	need.Within(b.t, patience, "the state of the connections", func() bool {
		b.limited.mu.Lock()
		defer b.limited.mu.Unlock()
		return reached(b.limited)
	})
}

// wantEvicted fails the test unless this many connections were closed to make room.
func (b *bounded) wantEvicted(want uint64) {
	b.t.Helper()
	if _, got := b.limited.Counts(); got != want {
		b.t.Errorf("%d connections were evicted, want %d", got, want)
	}
}

// handled waits until the handler receives a request with this path.
func (b *bounded) handled(path string) {
	b.t.Helper()
	select {
	case got := <-b.began:
		if got != path {
			b.t.Fatalf("the handler received %s, want %s", got, path)
		}
	case <-time.After(patience):
		b.t.Fatalf("the handler did not receive %s", path)
	}
}

// ignore receives what the handler sends, until the end of the test.
func (b *bounded) ignore() {
	for {
		select {
		case <-b.began:
		case <-b.t.Context().Done():
			return
		}
	}
}

// finish ends one request.
func (b *bounded) finish() {
	b.t.Helper()
	select {
	case b.proceed <- struct{}{}:
	case <-time.After(patience):
		b.t.Fatal("no request is in progress")
	}
}

// exchange sends a request through a connection, and waits for its response.
func (b *bounded) exchange(p *peer, header string) {
	b.t.Helper()
	p.send(header)
	path := strings.Fields(header)[1]
	b.handled(path)
	b.finish()
	p.want(http.StatusOK)
}

// dialIdle opens the first connections of known clients, which are idle then.
func (b *bounded) dialIdle(number int) (idle []*peer) {
	b.t.Helper()
	for i := range number {
		p := b.dial("", i+1)
		b.exchange(p, knownHeader)
		b.untilNewest(&b.limited.idle, p)
		idle = append(idle, p)
	}
	return idle
}

func (p *peer) send(text string) {
	p.t.Helper()
	need.Value(io.WriteString(p, text))(p.t)
}

// want reads a response and fails the test unless it has this status.
func (p *peer) want(status int) {
	p.t.Helper()
	response, err := http.ReadResponse(p.reader, nil)
	if err != nil {
		p.t.Fatalf("no response: %v", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != status {
		p.t.Fatalf("status %d, body %q, %v; want %d", response.StatusCode, body, err, status)
	}
}

// wantClosed fails the test unless the server closes the connection without sending
// a byte.
func (p *peer) wantClosed() {
	p.t.Helper()
	read, err := p.reader.ReadByte()
	if err == nil || errors.Is(err, syscall.EAGAIN) || isTimeout(err) {
		p.t.Errorf("the connection is still open: %q, %v", read, err)
	}
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

const (
	halfHeader  = "GET /half HTTP/1.1\r\nHost: petstore\r\nX-"
	restOfIt    = "Rest: x\r\n\r\n"
	largeHeader = "GET /large HTTP/1.1\r\nHost: petstore\r\n\r\n"
	wholeHeader = "GET /whole HTTP/1.1\r\nHost: petstore\r\n\r\n"
	knownHeader = "GET /known HTTP/1.1\r\nHost: petstore\r\nAuthorization: Bearer key\r\n\r\n"
)

func TestConnectionsOldestWithoutHeaderIsClosed(t *testing.T) {
	t.Parallel()
	b := startBounded(t, 2)
	oldest, second := b.dial(halfHeader, 1), b.dial("", 2)
	third := dialPeer(t, b.limited.Addr().String())
	third.send(wholeHeader)
	b.handled("/whole")
	oldest.wantClosed()
	b.finish()
	third.want(http.StatusOK)
	b.exchange(second, wholeHeader)
	b.wantEvicted(1)
}

// untilNewest waits until the connection of a peer is the newest of a ring.
func (b *bounded) untilNewest(r *ring, p *peer) {
	b.t.Helper()
	b.until(func(*Limited) bool { return r.len > 0 && r.head.prev.RemoteAddr().String() == p.LocalAddr().String() })
}

// untilIdle waits until the connection of a peer is idle.
func (b *bounded) untilIdle(p *peer) {
	b.t.Helper()
	b.until(func(*Limited) bool {
		state, _ := b.states.Load(p.LocalAddr().String())
		return state == http.StateIdle
	})
}

// TestConnectionsWithResponseAreReplacedFirst: a stranger that has got a response is
// replaced before one that waits for its first. Keep-alive connections age from their last
// response.
func TestConnectionsWithResponseAreReplacedFirst(t *testing.T) {
	t.Parallel()
	b := startBounded(t, 3)
	first, second, third := b.dial("", 1), b.dial("", 2), b.dial("", 3)
	for _, p := range []*peer{third, second} {
		b.exchange(p, wholeHeader)
		b.untilIdle(p) // the response arrives before
	}
	fourth := dialPeer(t, b.limited.Addr().String())
	third.wantClosed()
	for _, p := range []*peer{first, second, fourth} {
		b.exchange(p, wholeHeader)
	}
	b.wantEvicted(1)
}

// dialKnown connects when all places are taken, and sends a request with a known key.
func (b *bounded) dialKnown() *peer {
	b.t.Helper()
	p := dialPeer(b.t, b.limited.Addr().String())
	p.send(knownHeader)
	b.handled("/known")
	return p
}

// TestConnectionsOfSlowStrangersAreReplaced: a client without a key that sends many requests
// and reads no response does not keep its place. The kernel keeps nothing for it.
func TestConnectionsOfSlowStrangersAreReplaced(t *testing.T) {
	t.Parallel()
	b := startBounded(t, 1)
	stranger := b.dial(strings.Repeat(largeHeader, 12), 1)
	b.handled("/large")
	b.until(func(l *Limited) bool { return l.served.len > 0 }) // the response has begun
	newcomer := b.dialKnown()
	stranger.wantReset()
	b.until(func(l *Limited) bool { return l.ending == 0 }) // the handler of the stranger has ended
	b.finish()
	newcomer.want(http.StatusOK)
	b.wantEvicted(1)
}

// wantReset reads everything and fails the test unless the server resets the connection.
// Only then does the kernel keep nothing for a client that does not read.
func (p *peer) wantReset() {
	p.t.Helper()
	if _, err := io.Copy(io.Discard, p.reader); !errors.Is(err, syscall.ECONNRESET) {
		p.t.Errorf("the connection ends with %v, want a reset", err)
	}
}

// TestConnectionsOfPipelinedRequestsAreKept: a known key protects its connection also if
// the server has read the request together with the one before.
func TestConnectionsOfPipelinedRequestsAreKept(t *testing.T) {
	t.Parallel()
	b := startBounded(t, 1)
	pipelined := b.dial(knownHeader+knownHeader, 1)
	b.handled("/known")
	b.finish()
	pipelined.want(http.StatusOK)
	b.handled("/known")
	newcomer := dialPeer(t, b.limited.Addr().String())
	newcomer.send(wholeHeader)
	b.untilAccepted()
	b.wantEvicted(0)
	b.finish()
	pipelined.want(http.StatusOK)
	b.handled("/whole")
	b.finish()
	newcomer.want(http.StatusOK)
}

// untilAccepted waits until the server has accepted all connections of the kernel.
func (b *bounded) untilAccepted() {
	b.t.Helper()
	b.until(func(l *Limited) bool {
		waits, err := l.waits()
		return err == nil && !waits
	})
}

// TestConnectionsOfStrangersAreReplacedFirst: strangers replace an idle connection of a
// known client only while they hold a quarter of the places at most.
func TestConnectionsOfStrangersAreReplacedFirst(t *testing.T) {
	t.Parallel()
	b := startBounded(t, 4)
	idle := b.dialIdle(3)
	stranger := b.dial(halfHeader, 4) // a quarter
	second := dialPeer(t, b.limited.Addr().String())
	idle[0].wantClosed()
	third := dialPeer(t, b.limited.Addr().String()) // strangers have more than a quarter
	stranger.wantClosed()
	b.wantEvicted(2)
	for _, p := range []*peer{idle[1], idle[2], second, third} {
		b.exchange(p, knownHeader)
	}
}

// TestConnectionsWithNewRequestsAreReplacedLast: while the key of the next request of a known
// client is not verified yet, connections of known clients without a request go first.
func TestConnectionsWithNewRequestsAreReplacedLast(t *testing.T) {
	t.Parallel()
	b := startBounded(t, 4)
	idle := b.dialIdle(4)
	idle[0].send(wholeHeader) // the handler does not verify its key
	b.handled("/whole")
	b.untilNewest(&b.limited.idle, idle[0])
	newcomer := b.dialKnown()
	idle[1].wantClosed()
	b.finish()
	b.finish()
	idle[0].want(http.StatusOK)
	newcomer.want(http.StatusOK)
	b.wantEvicted(1)
}

// TestConnectionsAreCountedByNetwork: a network has one count of its strangers, also after a
// connection of it was known for a while.
func TestConnectionsAreCountedByNetwork(t *testing.T) {
	t.Parallel()
	b := startBounded(t, 4)
	first := b.dialIdle(1)[0] // the network has no strangers
	second := b.dial("", 2)
	b.exchange(first, wholeHeader)
	b.untilNewest(&b.limited.served, first)
	wantNetwork := func(strangers, crowds int) {
		t.Helper()
		b.limited.mu.Lock()
		defer b.limited.mu.Unlock()
		got := 0
		for _, n := range b.limited.networks {
			got += n
		}
		if got != strangers || b.limited.crowds != crowds {
			t.Errorf("%d strangers and %d crowds, want %d and %d", got, b.limited.crowds, strangers, crowds)
		}
	}
	wantNetwork(2, 1)
	second.Close()
	b.until(func(l *Limited) bool { return l.open == 1 })
	wantNetwork(1, 0)
	first.Close()
	b.until(func(l *Limited) bool { return l.open == 0 })
	wantNetwork(0, 0)
}

// TestConnectionsWithoutReadersAreReset: if the write deadline of a response passes, the
// kernel keeps nothing for the client.
func TestConnectionsWithoutReadersAreReset(t *testing.T) {
	t.Parallel()
	b := startBounded(t, 1)
	slow := dialPeer(t, b.limited.Addr().String()) // the connection may end before anybody counts it
	slow.send(strings.Replace(largeHeader, "/large", "/late", 1))
	b.handled("/late")
	b.until(func(l *Limited) bool { return l.open == 0 })
	slow.wantReset()
}

// TestConnectionsWithLongHeadersFillNothing: a rejected request does not keep its
// place while net/http waits for the client to read the response.
func TestConnectionsWithLongHeadersFillNothing(t *testing.T) {
	t.Parallel()
	for range 20 { // the wait of 500 ms can end before the next connection
		b := startBounded(t, 3)
		older := []*peer{b.dial("", 1), b.dial("", 2)}
		for _, p := range older {
			b.exchange(p, wholeHeader)
			b.untilIdle(p)
		}
		long := dialPeer(t, b.limited.Addr().String())
		long.send("GET / HTTP/1.1\r\nHost: petstore\r\nX-Long: " + strings.Repeat("x", 2*headerSlop))
		long.want(http.StatusRequestHeaderFieldsTooLarge)
		b.until(func(l *Limited) bool { // net/http closes the connection for writing after the response
			return l.open < 3 || l.served.head.next.RemoteAddr().String() == long.LocalAddr().String()
		})
		b.exchange(dialPeer(t, b.limited.Addr().String()), wholeHeader)
		if _, evicted := b.limited.Counts(); evicted > 0 {
			for _, p := range older {
				b.exchange(p, wholeHeader)
			}
			return
		}
	}
	t.Error("no connection was evicted after its 431")
}

// TestConnectionsClose: Close ends an Accept that waits for a place.
func TestConnectionsClose(t *testing.T) {
	t.Parallel()
	b := startBounded(t, 1)
	b.dial(knownHeader, 1)
	b.handled("/known")
	dialPeer(t, b.limited.Addr().String())
	b.untilAccepted()
	if err := b.limited.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-b.served:
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("Serve returned %v", err)
		}
	case <-time.After(patience):
		t.Error("Accept still waits")
	}
}

// TestConnectionsAreCounted: after many concurrent clients, no connection is
// counted as open.
func TestConnectionsAreCounted(t *testing.T) {
	t.Parallel()
	const clients, each, most = 8, 25, 4
	b := startBounded(t, most)
	go func() {
		for {
			select {
			case b.proceed <- struct{}{}:
			case <-t.Context().Done():
				return
			}
		}
	}()
	go b.ignore()
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			for range each {
				var dialer net.Dialer
				conn, err := dialer.DialContext(t.Context(), "tcp", b.limited.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.WriteString(conn, wholeHeader)
				_, _ = http.ReadResponse(bufio.NewReader(conn), nil) //nolint:bodyclose // the connection is
				conn.Close()
				if open, _ := b.limited.Counts(); open > most {
					t.Errorf("%d connections are open", open)
				}
			}
		})
	}
	group.Wait()
	b.until(func(l *Limited) bool { return l.open == 0 })
}
