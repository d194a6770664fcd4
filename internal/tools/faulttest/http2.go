package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"petstore/internal/selfsigned"
	"petstore/internal/sleep"
	"petstore/internal/tools/must"
)

// hostileHTTP2 is row 54. Clients begin handshakes and prefaces and stop, or send single bytes.
// They open 250 streams on each of 100 connections and read no response, without a key and with
// the key of one account. They open 2 streams on each of 1,000 connections, and 2,000 connections
// without a stream. They flood the server with frames that cause no response, such as resets
// (CVE-2023-44487), continuations (CVE-2024-27316) and data of closed streams.
//
// The server closes such connections and stays within its limit for memory. Another account
// succeeds in time, over HTTP/2 with up to 20 streams at once and on new connections, and so do
// health checks. An attack fails the row if it harms them three times in a row, because a busy
// machine stops any process at times.
func hostileHTTP2(ctx context.Context, f *fixture) string {
	const (
		descriptors = 4500 + 500 // of the handshakes that begin
		measured    = 6 * time.Second
		attempts    = 3
		mostHolding = 60 * mostStreams // the server lets 2,000 wait
	)
	needDescriptors(descriptors)
	// A key may send more than the measured client does. Without a limit, the flood of a valid key
	// would use all CPU time, over HTTP/1.1 too.
	s := f.openTLS(ctx, "PETSTORE_RATE_LIMIT=30000")
	h := &http2Attacks{deployment: s, key: "Bearer " + f.newKey(ctx, s.db, "hostile", "write")}
	var figures []string
	for _, one := range h.all() {
		var err error
		for range attempts {
			err = must.Attempt(func() {
				bursts := must.Background(func() { h.burst(ctx, measured) })
				figures = append(figures, h.during(ctx, one, measured, func() {
					bursts()
					h.most = max(h.most, h.holding.Load())
				}))
			})
			if err == nil {
				break
			}
		}
		must.OK(err)
		must.Hold(!h.accepted.Load(), "%s: the server accepted %d frames", one.what, mostFrames)
		must.Hold(h.most <= mostHolding, "%s: clients hold %d streams", one.what, h.most)
	}
	return strings.Join(figures, "; ")
}

// burst sends many requests at once, again and again. They must get no error.
func (h *http2Attacks) burst(ctx context.Context, during time.Duration) {
	const atOnce = 20
	for began := time.Now(); time.Since(began) < during; sleep.For(ctx, 300*time.Millisecond) {
		var waits []func()
		for pet := range atOnce {
			waits = append(waits, must.Background(func() { must.Get(h.getPet(ctx, 1+pet)).check(http.StatusOK) }))
		}
		for _, wait := range waits {
			wait()
		}
	}
}

const (
	mostFrames  = 4_000 // of a flood on one connection; the server accepts at most 2,700 in 6 s
	mostStreams = 100   // of a connection that the server allows
)

// http2Attacks are the attacks of row 54.
type http2Attacks struct {
	*deployment
	key      string
	holding  atomic.Int64 // streams that connections hold
	most     int64        // of holding, at the end of an attack
	accepted atomic.Bool  // a flood that the server did not end
}

// all returns the attacks.
func (h *http2Attacks) all() []attack {
	const few, some, many = 8, 100, 500
	const tooMany = 250 // streams; the server allows mostStreams
	long := strings.Repeat("x", 10<<10)
	withKey := []string{":path", "/pets?limit=200", "authorization", h.key}
	hold := func(streams int, fields ...string) func(context.Context, net.Conn) {
		return func(ctx context.Context, conn net.Conn) { h.hold(newHTTP2Peer(ctx, conn), streams, fields) }
	}
	flood := func(send func(*http2Peer) error) func(context.Context, net.Conn) {
		return func(ctx context.Context, conn net.Conn) { h.flood(ctx, newHTTP2Peer(ctx, conn), send) }
	}
	reset := func(fields ...string) func(context.Context, net.Conn) {
		return flood(func(p *http2Peer) error {
			p.get(true, fields...)
			return p.WriteRSTStream(p.last, http2.ErrCodeCancel)
		})
	}
	return []attack{
		{"begun handshakes", 4500, func(_ context.Context, conn net.Conn) { sendOnly(conn, "\x16\x03\x01\x02\x00\x01\x00") }},
		{"handshakes of single bytes", many, func(ctx context.Context, conn net.Conn) {
			must.OK(tls.Client(singleBytes{conn}, anyCertificate()).HandshakeContext(ctx))
		}},
		{"half prefaces", many, func(ctx context.Context, conn net.Conn) {
			sendOnly(encrypted(ctx, conn), http2.ClientPreface[:len(http2.ClientPreface)/2])
		}},
		{"unread streams without a key", some, hold(tooMany, ":path", "/openapi.json", "x-long", long)},
		{"unread streams with a key", some, hold(tooMany, withKey...)},
		{"unread 400s", some, hold(tooMany, ":path", "/", "connection", "close")},
		{"unread 431s", some, hold(tooMany, ":path", "/", "x-long", long, "x-longer", long)},
		{"connections with 2 streams", 1000, hold(2, ":path", "/openapi.json")},
		{"idle connections", 2000, hold(0)},
		{"resets without a key", few, reset(":path", "/openapi.json")},
		{"resets with a key", few, reset(withKey...)},
		{"pings", few, flood(func(p *http2Peer) error { return p.WritePing(false, [8]byte{}) })},
		{"settings", few, flood(func(p *http2Peer) error { return p.WriteSettings() })},
		{"continuations", few, flood(func(p *http2Peer) error {
			if p.last == 0 {
				p.get(false, ":path", "/")
			}
			return p.WriteContinuation(p.last, false, nil)
		})},
		{"data of closed streams", few, flood(func(p *http2Peer) error {
			if p.last == 0 {
				p.get(true, ":path", "/openapi.json")
				must.OK(p.WriteRSTStream(p.last, http2.ErrCodeCancel))
			}
			return p.WriteData(p.last, false, make([]byte, 128))
		})},
		{"windows of one byte", few, flood(func(p *http2Peer) error {
			if p.last == 0 {
				p.get(true, withKey...)
			}
			return p.WriteWindowUpdate(p.last, 1)
		})},
	}
}

// sendOnly sends text and waits until the connection is closed.
func sendOnly(conn net.Conn, text string) {
	must.Get(io.WriteString(conn, text))
	_, _ = io.Copy(io.Discard, conn)
}

// singleBytes sends one byte at a time.
type singleBytes struct{ net.Conn }

func (s singleBytes) Write(text []byte) (int, error) {
	for i := range text {
		if _, err := s.Conn.Write(text[i : i+1]); err != nil {
			return i, err
		}
		<-time.After(50 * time.Millisecond)
	}
	return len(text), nil
}

// encrypted does the handshake of TLS for HTTP/2.
func encrypted(ctx context.Context, conn net.Conn) net.Conn {
	secure := tls.Client(conn, anyCertificate(http2.NextProtoTLS))
	must.OK(secure.HandshakeContext(ctx))
	return secure
}

// http2Peer is the client side of a connection whose windows are 0, so that the server can send
// no body.
type http2Peer struct {
	*http2.Framer

	closed <-chan struct{}
	block  bytes.Buffer
	last   uint32 // id of a stream
}

// newHTTP2Peer begins HTTP/2.
func newHTTP2Peer(ctx context.Context, conn net.Conn) *http2Peer {
	conn = encrypted(ctx, conn)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_, _ = io.Copy(io.Discard, conn) // until the connection is closed
	}()
	p := &http2Peer{Framer: http2.NewFramer(conn, nil), closed: closed}
	p.AllowIllegalWrites = true // a continuation after another one
	must.Get(io.WriteString(conn, http2.ClientPreface))
	must.OK(p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	return p
}

// get opens a stream with a GET and more header fields, the same ones each time. It encodes them
// once, so that an attack costs its client little. The encoded fields name no earlier ones.
func (p *http2Peer) get(endHeaders bool, fields ...string) {
	if p.block.Len() == 0 {
		coder := hpack.NewEncoder(&p.block)
		fields = append([]string{":method", "GET", ":scheme", "https", ":authority", "petstore"}, fields...)
		for i := 0; i < len(fields); i += 2 {
			must.OK(coder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
		}
	}
	p.last += 1 + p.last%2 // 1, 3, 5 and so on
	block := p.block.Bytes()
	first := block[:min(len(block), 16<<10)] // the largest frame
	must.OK(p.WriteHeaders(http2.HeadersFrameParam{StreamID: p.last, BlockFragment: first, EndStream: true, EndHeaders: endHeaders && len(first) == len(block)}))
	if rest := block[len(first):]; len(rest) > 0 {
		must.OK(p.WriteContinuation(p.last, endHeaders, rest))
	}
}

// hold opens streams and waits until the connection is closed.
func (h *http2Attacks) hold(p *http2Peer, streams int, fields []string) {
	for range streams {
		p.get(true, fields...)
	}
	held := int64(min(streams, mostStreams))
	h.holding.Add(held)
	defer h.holding.Add(-held)
	<-p.closed
}

// flood sends frames until the server closes the connection. The row fails if it does not.
func (h *http2Attacks) flood(ctx context.Context, p *http2Peer, send func(*http2Peer) error) {
	for range mostFrames {
		must.OK(send(p))
	}
	select {
	case <-p.closed: // the frames were in buffers
	case <-ctx.Done():
	case <-time.After(time.Second):
		h.accepted.Store(true)
	}
}

// anyCertificate accepts the certificate of a service.
func anyCertificate(protocols ...string) *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: protocols} //nolint:gosec // of this machine
}

// openTLS is [fixture.open] with HTTPS and HTTP/2.
func (f *fixture) openTLS(ctx context.Context, extra ...string) *deployment {
	certFile, keyFile := filepath.Join(f.dir, "cert.pem"), filepath.Join(f.dir, "key.pem")
	must.OK(selfsigned.Make(certFile, keyFile, time.Now()))
	db := f.startDatabase(ctx, "", nil)
	api := f.run(ctx, "serve", db.url(), append(extra, "PETSTORE_TLS_CERT_FILE="+certFile, "PETSTORE_TLS_KEY_FILE="+keyFile)...)
	api.base = "https://" + api.addr
	api.transport = &http.Transport{TLSClientConfig: anyCertificate(), ForceAttemptHTTP2: true, DisableCompression: true}
	api.awaitReady(ctx, 10*time.Second)
	return &deployment{fixture: f, db: db, api: api, client: api.client}
}
