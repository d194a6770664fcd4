package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// silenceLimit is the maximum response time, and the maximum time that requests may fail,
// after connections go silent: the deadline of a request and one second.
const silenceLimit = 7 * time.Second

// silentConnections is row 23: a network drops the packets of all pooled connections, while
// new connections work. Every request gets its response in time, and soon all succeed
// again. If only one connection goes silent, at most two requests fail.
func silentConnections(ctx context.Context, f *fixture) (string, error) {
	const conns, tolerated = 24, 2
	db, err := f.startDatabase(ctx, "", nil)
	if err != nil {
		return "", err
	}
	proxy, err := startBlackhole(ctx, f, db)
	if err != nil {
		return "", err
	}
	s, err := f.openWith(ctx, db, proxy.url, fmt.Sprint("PETSTORE_DB_MAX_CONNS=", conns))
	if err != nil {
		return "", err
	}
	if err := s.fillPool(ctx, conns); err != nil {
		return "", err
	}
	// Orders share connections, and lists do not. So there are enough lists for all connections.
	all, allFailed, err := s.underSilence(ctx, 3*conns, silenceLimit, func() { proxy.drop(proxy.connections()) })
	if err != nil {
		return "", fmt.Errorf("all silent: %w", err)
	}
	if allFailed > 0 {
		return "", fmt.Errorf("all silent: %d requests failed after more than %s: %s", allFailed, silenceLimit, all.summary())
	}
	one, oneFailed, err := s.underSilence(ctx, conns, 0, func() { proxy.drop(1) })
	if err != nil {
		return "", fmt.Errorf("one silent: %w", err)
	}
	if oneFailed > tolerated {
		return "", fmt.Errorf("one silent: %d requests failed: %s", oneFailed, one.summary())
	}
	return fmt.Sprintf("all silent: %s, slowest %s, all succeed %s later; one silent: %d failed of %d, slowest %s",
		all.summary(), round(all.slowest), silenceLimit, oneFailed, one.total(), round(one.slowest)), nil
}

// fillPool makes the service open that many connections: lists that wait for a lock at the
// same time take one each.
func (s *deployment) fillPool(ctx context.Context, conns int) error {
	release, err := s.db.holdLock(ctx, databaseName, "LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
	if err != nil {
		return err
	}
	defer release()
	var l ledger
	var group sync.WaitGroup
	for i := range conns {
		group.Go(func() { l.record(s.do(ctx, "GET", fmt.Sprintf("/store/orders?petId=%d", 1+i), "")) })
	}
	err = s.db.awaitLockWaits(ctx, conns)
	release()
	group.Wait()
	return errors.Join(err, l.only(http.StatusOK))
}

// underSilence calls silence under clients that list and order. It returns how many
// requests failed that began more than grace after that.
func (s *deployment) underSilence(ctx context.Context, clients int, grace time.Duration, silence func()) (*ledger, int64, error) {
	var failed, silentAt atomic.Int64
	l := startLoad(ctx, clients, func(number int) (resp response, err error) {
		began := time.Now().UnixNano()
		if number%2 == 0 {
			resp, err = s.order(ctx, 1+number%pets)
		} else {
			resp, err = s.do(ctx, "GET", fmt.Sprintf("/store/orders?petId=%d", 1+number), "")
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
	remembered := l.finish()
	return remembered, failed.Load(), errors.Join(
		remembered.only(http.StatusOK, http.StatusCreated, http.StatusServiceUnavailable),
		remembered.within(silenceLimit), s.audit(ctx, remembered))
}

// silentShutdown is row 27: on SIGTERM the service ends within its grace period even if the
// database is silent. The exit code is 0 if every request got its response, and 1 if a
// request took longer than the grace period.
func silentShutdown(ctx context.Context, f *fixture) (string, error) {
	const grace = 8 * time.Second
	var figures [2]string
	for i, slowBody := range []bool{false, true} {
		took, code, err := f.shutDownSilently(ctx, grace, slowBody)
		if err != nil {
			return "", err
		}
		want := 0
		if slowBody {
			want = 1
		}
		if took > grace || code != want {
			return "", fmt.Errorf("slow body %t: exit code %[3]d after %[2]s; want %[4]d within %[5]s", slowBody, round(took), code, want, grace)
		}
		figures[i] = fmt.Sprintf("%s, exit code %d", round(took), code)
	}
	return fmt.Sprintf("ended after %s; with a slow body after %s; grace period %s", figures[0], figures[1], grace), nil
}

// shutDownSilently sends SIGTERM to a service under load whose database is silent.
func (f *fixture) shutDownSilently(ctx context.Context, grace time.Duration, slowBody bool) (took time.Duration, code int, err error) {
	db, err := f.startDatabase(ctx, fmt.Sprintf("%s/pg-%t", f.dir, slowBody), nil)
	if err != nil {
		return 0, 0, err
	}
	proxy, err := startBlackhole(ctx, f, db)
	if err != nil {
		return 0, 0, err
	}
	s, err := f.openWith(ctx, db, proxy.url, "PETSTORE_SHUTDOWN_GRACE="+grace.String(), "PETSTORE_REQUEST_TIMEOUT=3s")
	if err != nil {
		return 0, 0, err
	}
	w := s.startWriters(ctx, 16)
	defer w.finish()
	sleep(ctx, 500*time.Millisecond)
	proxy.dropAll()
	if slowBody {
		conn, err := s.slowOrder(ctx)
		if err != nil {
			return 0, 0, err
		}
		defer conn.Close()
	}
	sleep(ctx, 300*time.Millisecond)
	began := time.Now()
	code, err = s.api.terminate(ctx)
	return time.Since(began), code, err
}

// slowOrder sends the header of an order without its body.
func (s *deployment) slowOrder(ctx context.Context) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.api.addr)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(conn, "POST /store/orders HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{",
		s.api.addr, s.key)
	return conn, err
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

// startBlackhole starts a proxy to a database. It ends with the row.
func startBlackhole(ctx context.Context, f *fixture, db *database) (*blackhole, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f.cleanup(func() { listener.Close() })
	to, err := pgx.ParseConfig(db.url())
	if err != nil {
		return nil, err
	}
	network, address := pgconn.NetworkAddress(to.Host, to.Port)
	through := url.URL{Scheme: "postgres", Host: listener.Addr().String(), Path: "/" + databaseName, User: url.User(to.User), RawQuery: "sslmode=disable"}
	s := &blackhole{url: through.String()}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.forward(ctx, conn, network, address)
		}
	}()
	return s, nil
}

// connections returns the number of connections that are open and not silent.
func (s *blackhole) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pipes)
}

// drop makes the newest connections silent.
func (s *blackhole) drop(connections int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	older := max(0, len(s.pipes)-connections)
	for _, p := range s.pipes[older:] {
		p.silent.Store(true)
	}
	s.pipes = s.pipes[:older]
}

// dropAll makes all connections silent, including new ones.
func (s *blackhole) dropAll() {
	s.mu.Lock()
	s.dropNew = true
	s.mu.Unlock()
	s.drop(s.connections())
}

// forward forwards one connection.
func (s *blackhole) forward(ctx context.Context, conn net.Conn, network, address string) {
	defer conn.Close()
	upstream, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return
	}
	defer upstream.Close()
	p := &pipe{}
	s.mu.Lock()
	p.silent.Store(s.dropNew)
	if !s.dropNew {
		s.pipes = append(s.pipes, p)
	}
	s.mu.Unlock()
	go func() {
		_, _ = io.Copy(pipeWriter{p, conn}, upstream)
		if !p.silent.Load() { // closing the connection would reveal that the other side is gone
			conn.Close()
		}
	}()
	_, _ = io.Copy(pipeWriter{p, upstream}, conn)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, open := range s.pipes {
		if open == p {
			s.pipes = append(s.pipes[:i:i], s.pipes[i+1:]...)
			break
		}
	}
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
