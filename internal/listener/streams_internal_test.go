package listener

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"petstore/internal/selfsigned"
	"petstore/internal/tools/need"
)

// startBoundedTLS is [startBounded] with TLS.
func startBoundedTLS(t *testing.T, most int) *bounded {
	t.Helper()
	certFile, keyFile := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	need.OK(t, selfsigned.Make(certFile, keyFile, time.Now()))
	cert := need.Value(tls.LoadX509KeyPair(certFile, keyFile))(t)
	return startBoundedWith(t, most, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}})
}

// newClient returns a client over HTTP/2.
func newClient(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// request sends a GET in the background. The channel gets its error, or nil after the body.
func (b *bounded) request(client *http.Client, path, key string) <-chan error {
	done := make(chan error, 1)
	go func() {
		request, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, "https://"+b.limited.Addr().String()+path, nil)
		if err != nil {
			done <- err
			return
		}
		if key != "" {
			request.Header.Set("Authorization", key)
		}
		response, err := client.Do(request)
		if err == nil {
			_, err = io.Copy(io.Discard, response.Body)
			response.Body.Close()
		}
		done <- err
	}()
	return done
}

// limitWaiting limits the streams that wait.
func (b *bounded) limitWaiting(most int) {
	b.limited.mu.Lock()
	defer b.limited.mu.Unlock()
	b.limited.waiting.most = most
}

// waitingCount returns the number of streams that wait.
func (b *bounded) waitingCount() int {
	b.limited.mu.Lock()
	defer b.limited.mu.Unlock()
	return b.limited.waiting.total
}

// untilWaiting waits until this many streams wait.
func (b *bounded) untilWaiting(want int) {
	b.t.Helper()
	b.until(func(l *Limited) bool { return l.waiting.total == want })
}

// TestWaitingStreamsCloseTheirConnection: the connection with the most streams without a key is
// closed when there are too many, and streams with a key do not count.
func TestWaitingStreamsCloseTheirConnection(t *testing.T) {
	t.Parallel()
	const most = 12
	b := startBoundedTLS(t, most)
	b.limitWaiting(most)
	few, many, known := newClient(t), newClient(t), newClient(t)
	var kept, cut []<-chan error
	for range most / 2 {
		kept = append(kept, b.request(known, "/known", "a key"))
		b.handled("/known")
	}
	for range 2 {
		kept = append(kept, b.request(few, "/few", ""))
		b.handled("/few")
	}
	for range most - 2 {
		cut = append(cut, b.request(many, "/many", ""))
		b.handled("/many")
	}
	b.untilWaiting(most)
	b.wantEvicted(0)
	kept = append(kept, b.request(few, "/few", ""))
	b.handled("/few")
	b.until(func(l *Limited) bool { return l.evicted == 1 })
	for _, one := range cut {
		if err := <-one; err == nil {
			t.Error("a stream of the busiest connection got a response")
		}
	}
	close(b.proceed) // handlers of the closed connection may still wait too
	for _, one := range kept {
		if err := <-one; err != nil {
			t.Errorf("a stream that fits: %v", err)
		}
	}
	b.untilWaiting(0)
}

// TestUnreadStreamsWait: a stream counts while its client has no room for a response, also if
// net/http rejects its request before the handler.
func TestUnreadStreamsWait(t *testing.T) {
	t.Parallel()
	for name, field := range map[string][]string{
		"verified": {"authorization", "a key"},
		"400":      {"connection", "close"},
		"431":      {"x-long", strings.Repeat("x", 3<<10), "x-longer", strings.Repeat("x", 3<<10)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBoundedTLS(t, 3)
			b.limitWaiting(3)
			p := dialHTTP2(t, b.limited.Addr().String())
			for range 3 {
				p.get("/unread", field...)
				if name == "verified" {
					b.handled("/unread")
					b.finish()
				}
			}
			b.untilWaiting(3)
			b.wantEvicted(0)
			if p.get("/unread"); name != "verified" {
				_ = p.request("/unread", field...) // the connection may be cut already
			}
			b.until(func(l *Limited) bool { return l.evicted == 1 })
			b.untilWaiting(0)
		})
	}
}

// TestConnectionsWithoutKnownStreamsAreReplaced: a new connection replaces one whose last stream
// with a key has ended. Other streams may wait, and the key may be verified after a reset.
func TestConnectionsWithoutKnownStreamsAreReplaced(t *testing.T) {
	t.Parallel()
	reset := func(p *http2Peer) {
		if err := p.framer.WriteRSTStream(1, http2.ErrCodeCancel); err != nil {
			t.Error(err)
		}
	}
	for name, use := range map[string]func(*bounded, *http2Peer){
		"another stream waits": func(b *bounded, p *http2Peer) {
			p.get("/known", "authorization", "a key")
			b.handled("/known")
			p.get("/large")
			b.handled("/large")
			b.finish()
			reset(p)
			b.untilWaiting(1)
		},
		"reset first": func(b *bounded, p *http2Peer) {
			p.get("/verified-late", "authorization", "a key")
			b.handled("/verified-late")
			reset(p)
			b.until(func(l *Limited) bool { return l.served.len == 1 }) // no stream is open
			b.finish()
			b.handled("/verified-late")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBoundedTLS(t, 1)
			use(b, dialHTTP2(t, b.limited.Addr().String()))
			dialPeer(t, b.limited.Addr().String())
			b.until(func(l *Limited) bool { return l.evicted == 1 })
		})
	}
}

// TestFailedWritesCloseTheSocket: a connection over TLS keeps its place until its socket is
// closed, even if the client reads nothing.
func TestFailedWritesCloseTheSocket(t *testing.T) {
	t.Parallel()
	b := startBoundedTLS(t, 1)
	p := peer{t: t, Conn: dialTLS(t, &net.Dialer{}, b.limited.Addr().String())}
	b.limited.mu.Lock()
	conn := b.limited.fresh.head.next
	b.limited.mu.Unlock()
	p.send(strings.Replace(largeHeader, "/large", "/late", 1))
	b.handled("/late")
	b.until(func(l *Limited) bool { return l.open == 0 })
	if err := conn.tcp.SetLinger(0); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the place is free while the socket is open: %v", err)
	}
}

// TestClientErrorsAreNoWarnings: a client that never sends its settings cannot fill the log.
func TestClientErrorsAreNoWarnings(t *testing.T) {
	t.Parallel()
	b := startBoundedTLS(t, 1)
	p := peer{t: t, Conn: dialTLS(t, &net.Dialer{}, b.limited.Addr().String(), "h2")}
	p.send(http2.ClientPreface)
	b.until(func(l *Limited) bool { return l.open == 0 })
	if b.log.Len() > 0 {
		t.Errorf("the log has: %s", b.log.String())
	}
}

// http2Peer is the client side of a connection over HTTP/2 that reads no response: its windows
// are 0.
type http2Peer struct {
	t      *testing.T
	conn   net.Conn
	framer *http2.Framer
	last   uint32 // id of a stream
}

func dialHTTP2(t *testing.T, address string) *http2Peer {
	t.Helper()
	p := beginHTTP2(t, &net.Dialer{}, address)
	go func() { _, _ = io.Copy(io.Discard, p.conn) }() // the windows limit only bodies
	return p
}

// beginHTTP2 does the handshake of TLS and sends the preface and settings of HTTP/2.
func beginHTTP2(t *testing.T, from *net.Dialer, address string) *http2Peer {
	t.Helper()
	p := &http2Peer{t: t, conn: dialTLS(t, from, address, "h2")}
	p.framer = http2.NewFramer(p.conn, p.conn)
	need.Value(io.WriteString(p.conn, http2.ClientPreface))(t)
	need.OK(t, p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	return p
}

// dialTLS does the handshake of TLS.
func dialTLS(t *testing.T, from *net.Dialer, address string, protocols ...string) net.Conn {
	t.Helper()
	dialer := tls.Dialer{NetDialer: from, Config: &tls.Config{InsecureSkipVerify: true, NextProtos: protocols}}
	conn := need.Value(dialer.DialContext(t.Context(), "tcp", address))(t)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// result returns the status of the next response, or the error code of a connection that ends.
func (p *http2Peer) result() string {
	p.t.Helper()
	p.framer.ReadMetaHeaders = hpack.NewDecoder(4<<10, nil)
	for {
		frame := need.Value(p.framer.ReadFrame())(p.t)
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			return f.PseudoValue("status")
		case *http2.GoAwayFrame:
			return f.ErrCode.String()
		case *http2.RSTStreamFrame:
			return f.ErrCode.String()
		}
	}
}

// get opens a stream with a GET and more header fields.
func (p *http2Peer) get(path string, fields ...string) {
	p.t.Helper()
	need.OK(p.t, p.request(path, fields...))
}

// request is get, but returns the error. The stream to /body stays open.
func (p *http2Peer) request(path string, fields ...string) error {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	all := append([]string{":method", "GET", ":scheme", "https", ":authority", "localhost", ":path", path}, fields...)
	for i := 0; i < len(all); i += 2 {
		_ = encoder.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]}) // to a buffer
	}
	p.last += 2
	return p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: p.last - 1, BlockFragment: block.Bytes(), EndStream: path != "/body", EndHeaders: true})
}

// TestFirstBody: the first request of a connection may send a body of 64 KiB before the client has the
// settings of the server.
func TestFirstBody(t *testing.T) {
	t.Parallel()
	b := startBoundedTLS(t, 1)
	p := beginHTTP2(t, &net.Dialer{}, b.limited.Addr().String())
	p.get("/body")
	for size := 64<<10 - 1; size > 0; size -= maxFrame {
		need.OK(t, p.framer.WriteData(1, size <= maxFrame, make([]byte, min(size, maxFrame))))
	}
	b.handled("/body")
	close(b.proceed)
	if got := p.result(); got != "200" {
		t.Errorf("the response is %s", got)
	}
}

// TestHandshakesAreNoResponses: a client in the middle of its handshake is not replaced before
// older connections that send nothing.
func TestHandshakesAreNoResponses(t *testing.T) {
	t.Parallel()
	b := startBoundedTLS(t, 3)
	first, second := b.dial("", 1), b.dial("", 2)
	inHandshake, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		dialer := tls.Dialer{NetDialer: &net.Dialer{}, Config: &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(tls.ConnectionState) error {
			close(inHandshake)
			<-goOn
			return nil
		}}}
		conn, err := dialer.DialContext(context.WithoutCancel(t.Context()), "tcp", b.limited.Addr().String())
		if err == nil {
			conn.Close()
		}
		done <- err
	}()
	<-inHandshake
	b.dial("", 3)
	first.wantClosed()
	b.dial("", 3)
	second.wantClosed()
	close(goOn)
	if err := <-done; err != nil {
		t.Errorf("the handshake: %v", err)
	}
}

// TestLongHeaders: beyond the limit of the header, the status is 431. A field that is longer than
// the limit ends the connection.
func TestLongHeaders(t *testing.T) {
	t.Parallel()
	for want, sizes := range map[string][]int{"200": {4_000}, "431": {2_500, 2_500}, "COMPRESSION_ERROR": {4_500}} {
		b := startBoundedTLS(t, 1)
		p := beginHTTP2(t, &net.Dialer{}, b.limited.Addr().String())
		var fields []string
		for _, size := range sizes {
			fields = append(fields, "x-long", strings.Repeat("x", size))
		}
		p.get("/long", fields...)
		if want == "200" {
			b.handled("/long")
			b.finish()
		}
		if got := p.result(); got != want {
			t.Errorf("fields of %d bytes: %s, want %s", sizes, got, want)
		}
	}
}
