package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"petstore/internal/tools/must"
)

// silenceLimit is the maximum response time, and the maximum time that requests may fail,
// after connections go silent: the deadline of a request and one second.
const silenceLimit = 7 * time.Second

// silentConnections is row 23: a network drops the packets of all pooled connections, while
// new connections work. Every request gets its response in time, and soon all succeed
// again. If only one connection goes silent, at most two requests fail.
func silentConnections(ctx context.Context, f *fixture) string {
	const conns, tolerated = 24, 2
	db := f.startDatabase(ctx, "", nil)
	proxy := startBlackhole(ctx, f, db)
	s := f.openWith(ctx, db, proxy.url, fmt.Sprint("PETSTORE_DB_MAX_CONNS=", conns))
	s.fillPool(ctx, conns)
	// Orders share connections, and lists do not. So there are enough lists for all connections.
	all, allFailed := s.underSilence(ctx, 3*conns, silenceLimit, func() { proxy.drop(proxy.connections()) })
	must.Hold(allFailed == 0, "all silent: %d requests failed after more than %s: %s", allFailed, silenceLimit, all.summary())
	one, oneFailed := s.underSilence(ctx, conns, 0, func() { proxy.drop(1) })
	must.Hold(oneFailed <= tolerated, "one silent: %d requests failed: %s", oneFailed, one.summary())
	return fmt.Sprintf("all silent: %s, slowest %s, all succeed %s later; one silent: %d failed of %d, slowest %s",
		all.summary(), round(all.slowest), silenceLimit, oneFailed, one.total(), round(one.slowest))
}

// underSilence calls silence under clients that list and order. It returns how many
// requests failed that began more than grace after that.
func (s *deployment) underSilence(ctx context.Context, clients int, grace time.Duration, silence func()) (*ledger, int64) {
	var failed, silentAt atomic.Int64
	w := startLoad(ctx, clients, func(number int) (resp response, err error) {
		began := time.Now().UnixNano()
		if number%2 == 0 {
			resp, err = s.order(ctx, 1+number%pets)
		} else {
			resp, err = s.listOrders(ctx, 1+number)
		}
		at := silentAt.Load()
		if late := at > 0 && began > at+int64(grace); late && (err != nil || resp.status >= http.StatusBadRequest) {
			failed.Add(1)
		}
		return resp, err
	})
	sleep(ctx, 300*time.Millisecond)
	silence()
	silentAt.Store(time.Now().UnixNano())
	sleep(ctx, silenceLimit+2*time.Second)
	l := w.finish()
	l.wantOnly(http.StatusOK, http.StatusCreated, http.StatusServiceUnavailable)
	l.wantWithin(silenceLimit)
	s.audit(ctx, l)
	return l, failed.Load()
}

// silentShutdown is row 27: on SIGTERM the service ends within its grace period even if the
// database is silent. The exit code is 0 if every request got its response, and 1 if a
// request took longer than the grace period.
func silentShutdown(ctx context.Context, f *fixture) string {
	const grace = 8 * time.Second
	fast := f.shutDownSilently(ctx, grace, false, 0)
	slow := f.shutDownSilently(ctx, grace, true, 1)
	return fmt.Sprintf("ended after %s, exit code 0; with a slow body after %s, exit code 1; grace period %s", round(fast), round(slow), grace)
}

// shutDownSilently sends SIGTERM to a service under load whose database is silent. It returns
// how long the service took to end.
func (f *fixture) shutDownSilently(ctx context.Context, grace time.Duration, slowBody bool, wantCode int) time.Duration {
	db := f.startDatabase(ctx, fmt.Sprintf("%s/pg-%t", f.dir, slowBody), nil)
	proxy := startBlackhole(ctx, f, db)
	s := f.openWith(ctx, db, proxy.url, "PETSTORE_SHUTDOWN_GRACE="+grace.String(), "PETSTORE_REQUEST_TIMEOUT=3s")
	w := s.startWriters(ctx, 16)
	defer w.finish()
	sleep(ctx, 500*time.Millisecond)
	proxy.dropAll()
	if slowBody { // the header of an order without its body
		conn := dial(ctx, "tcp", s.api.addr)
		defer conn.Close()
		must.Get(fmt.Fprintf(conn, "POST /store/orders HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{",
			s.api.addr, s.key))
	}
	sleep(ctx, 300*time.Millisecond)
	began := time.Now()
	code := s.api.terminate(ctx)
	took := time.Since(began)
	must.Hold(took <= grace && code == wantCode, "slow body %t: exit code %d after %s; want %d within %s", slowBody, code, round(took), wantCode, grace)
	return took
}

// dial opens a connection.
func dial(ctx context.Context, network, address string) net.Conn {
	var dialer net.Dialer
	return must.Get(dialer.DialContext(ctx, network, address))
}

// proxyTo starts a proxy to an address, which ends with the row. It returns the address of the
// proxy. forward handles each pair of connections.
func (f *fixture) proxyTo(ctx context.Context, network, address string, forward func(conn, upstream net.Conn)) string {
	listener := listenTCP(ctx)
	f.cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = must.Attempt(func() { // without the server, there is nothing to forward
					upstream := dial(ctx, network, address)
					defer upstream.Close()
					forward(conn, upstream)
				})
			}()
		}
	}()
	return listener.Addr().String()
}

// listenTCP listens on a free port.
func listenTCP(ctx context.Context) net.Listener {
	var config net.ListenConfig
	return must.Get(config.Listen(ctx, "tcp", "127.0.0.1:0"))
}

// blackhole is a proxy to a database. Its connections can go silent: they stay open, but
// drop everything that either side sends.
type blackhole struct {
	url string // of the database through the proxy

	mu      sync.Mutex
	pipes   []*pipe // open and not silent, the oldest first
	dropNew bool    // drop everything on new connections
}

// pipe is one connection through the proxy.
type pipe struct{ silent atomic.Bool }

// startBlackhole starts a proxy to a database.
func startBlackhole(ctx context.Context, f *fixture, db *database) *blackhole {
	to := must.Get(pgx.ParseConfig(db.url()))
	network, address := pgconn.NetworkAddress(to.Host, to.Port)
	b := &blackhole{}
	through := url.URL{Scheme: "postgres", Path: "/" + databaseName, User: url.User(to.User), RawQuery: "sslmode=disable"}
	through.Host = f.proxyTo(ctx, network, address, b.forward)
	b.url = through.String()
	return b
}

// connections returns the number of connections that are open and not silent.
func (b *blackhole) connections() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.pipes)
}

// drop makes the newest connections silent.
func (b *blackhole) drop(connections int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	older := max(0, len(b.pipes)-connections)
	for _, p := range b.pipes[older:] {
		p.silent.Store(true)
	}
	b.pipes = b.pipes[:older]
}

// dropAll makes all connections silent, including new ones.
func (b *blackhole) dropAll() {
	b.mu.Lock()
	b.dropNew = true
	b.mu.Unlock()
	b.drop(b.connections())
}

// forward forwards one connection.
func (b *blackhole) forward(conn, upstream net.Conn) {
	p := &pipe{}
	b.mu.Lock()
	p.silent.Store(b.dropNew)
	if !b.dropNew {
		b.pipes = append(b.pipes, p)
	}
	b.mu.Unlock()
	go func() {
		_, _ = io.Copy(pipeWriter{p, conn}, upstream)
		if !p.silent.Load() { // closing the connection would reveal that the other side is gone
			conn.Close()
		}
	}()
	_, _ = io.Copy(pipeWriter{p, upstream}, conn)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pipes = slices.DeleteFunc(b.pipes, func(open *pipe) bool { return open == p })
}

// pipeWriter writes to one side of a connection until the pipe is silent.
type pipeWriter struct {
	pipe *pipe
	to   io.Writer
}

func (w pipeWriter) Write(p []byte) (int, error) {
	if w.pipe.silent.Load() {
		return len(p), nil
	}
	return w.to.Write(p)
}
