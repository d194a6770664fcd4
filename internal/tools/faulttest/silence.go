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

// silenceLimit is how long a response may take, and how long requests may fail,
// when connections go silent: the deadline of a request and a second more.
const silenceLimit = 7 * time.Second

// Row 23. When a network swallows what the connections of the pool carry, and new
// ones work, every request gets its response in time, and soon all succeed again.
// When one of them goes silent, hardly a request fails.
func silentConnections(ctx context.Context, b *bench) (string, error) {
	const conns, tolerated = 24, 2
	db, err := b.startDatabase(ctx, "", nil)
	if err != nil {
		return "", err
	}
	proxy, err := startSwallower(ctx, b, db)
	if err != nil {
		return "", err
	}
	api, err := b.serve(ctx, proxy.url, fmt.Sprint("PETSTORE_DB_MAX_CONNS=", conns))
	if err != nil {
		return "", err
	}
	s := &shop{bench: b, db: db, api: api, client: &client{base: api.url(), key: b.key}}
	if err := s.fillPool(ctx, conns); err != nil {
		return "", err
	}
	all, allFailed, err := s.underSilence(ctx, conns, silenceLimit, func() { proxy.swallow(proxy.count()) })
	if err != nil {
		return "", fmt.Errorf("all silent: %w", err)
	}
	if allFailed > 0 {
		return "", fmt.Errorf("all silent: %d requests failed later than %s: %s", allFailed, silenceLimit, all.count())
	}
	one, oneFailed, err := s.underSilence(ctx, conns, 0, func() { proxy.swallow(1) })
	if err != nil {
		return "", fmt.Errorf("one silent: %w", err)
	}
	if oneFailed > tolerated {
		return "", fmt.Errorf("one silent: %d requests failed: %s", oneFailed, one.count())
	}
	return fmt.Sprintf("all silent: %s, slowest %s, all succeed %s later; one silent: %d failed of %d, slowest %s",
		all.count(), round(all.slowest), silenceLimit, oneFailed, one.total(), round(one.slowest)), nil
}

// fillPool makes the service hold that many connections: lists that wait for a lock
// at the same time take one each.
func (s *shop) fillPool(ctx context.Context, conns int) error {
	release, err := s.db.hold(ctx, databaseName, "LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
	if err != nil {
		return err
	}
	defer release()
	var l ledger
	var group sync.WaitGroup
	for i := range conns {
		group.Go(func() { l.note(s.do(ctx, "GET", fmt.Sprintf("/store/orders?petId=%d", 1+i), "")) })
	}
	err = s.db.untilWait(ctx, conns)
	release()
	group.Wait()
	return errors.Join(err, l.only(http.StatusOK))
}

// underSilence has clients list and order while connections go silent. It returns
// how many of the requests failed that began longer than grace after that.
func (s *shop) underSilence(ctx context.Context, clients int, grace time.Duration, silence func()) (*ledger, int64, error) {
	var failed, silentAt atomic.Int64
	l := startLoad(ctx, clients, func(number int) (a answer, err error) {
		began := time.Now().UnixNano()
		if number%2 == 0 {
			a, err = s.order(ctx, 1+number)
		} else {
			a, err = s.do(ctx, "GET", fmt.Sprintf("/store/orders?petId=%d", 1+number), "")
		}
		at := silentAt.Load()
		if late := at > 0 && began > at+int64(grace); late && (err != nil || a.status >= http.StatusBadRequest) {
			failed.Add(1)
		}
		return a, err
	})
	wait(ctx, 300*time.Millisecond)
	silence()
	silentAt.Store(time.Now().UnixNano())
	wait(ctx, silenceLimit+2*time.Second)
	remembered := l.finish()
	return remembered, failed.Load(), errors.Join(
		remembered.only(http.StatusOK, http.StatusCreated, http.StatusServiceUnavailable),
		remembered.within(silenceLimit), s.audit(ctx, remembered))
}

// Row 27. SIGTERM ends the service within its grace while the database is silent.
// It ends with 0 when every request has its response, and not with 0 when one that
// is slower than the grace is cut off.
func silentEnd(ctx context.Context, b *bench) (string, error) {
	const grace = 8 * time.Second
	var figures [2]string
	for i, slowBody := range []bool{false, true} {
		took, code, err := b.endSilently(ctx, grace, slowBody)
		if err != nil {
			return "", err
		}
		want := 0
		if slowBody {
			want = 1
		}
		if took > grace || code != want {
			return "", fmt.Errorf("with a slow body: %t: it ended after %s with %d; want %d within %s", slowBody, round(took), code, want, grace)
		}
		figures[i] = fmt.Sprintf("%s, exit code %d", round(took), code)
	}
	return fmt.Sprintf("ended after %s; beside a slow body after %s; the grace is %s", figures[0], figures[1], grace), nil
}

// endSilently ends a service under load whose database has gone silent.
func (b *bench) endSilently(ctx context.Context, grace time.Duration, slowBody bool) (took time.Duration, code int, err error) {
	db, err := b.startDatabase(ctx, fmt.Sprintf("%s/pg-%t", b.dir, slowBody), nil)
	if err != nil {
		return 0, 0, err
	}
	proxy, err := startSwallower(ctx, b, db)
	if err != nil {
		return 0, 0, err
	}
	api, err := b.serve(ctx, proxy.url, "PETSTORE_SHUTDOWN_GRACE="+grace.String(), "PETSTORE_REQUEST_TIMEOUT=3s")
	if err != nil {
		return 0, 0, err
	}
	s := &shop{bench: b, db: db, api: api, client: &client{base: api.url(), key: b.key}}
	w := s.startWriters(ctx, 16)
	defer w.finish()
	wait(ctx, 500*time.Millisecond)
	proxy.swallowAll()
	if slowBody {
		conn, err := s.slowOrder(ctx)
		if err != nil {
			return 0, 0, err
		}
		defer conn.Close()
	}
	wait(ctx, 300*time.Millisecond)
	began := time.Now()
	code, err = api.terminate(ctx)
	return time.Since(began), code, err
}

// slowOrder begins a request whose body does not come.
func (s *shop) slowOrder(ctx context.Context) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.api.addr)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(conn, "POST /store/orders HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{",
		s.api.addr, s.key)
	return conn, err
}

// swallower is a proxy to a database. Connections through it can go silent: they
// stay open, and what either end sends is swallowed.
type swallower struct {
	url string // of the database, through the proxy

	mu    sync.Mutex
	pipes []*pipe // those that are open and not silent, the oldest first
	mute  bool    // new connections are silent
}

// pipe is one connection through a proxy.
type pipe struct{ silent atomic.Bool }

// startSwallower starts a proxy to a database, until the row ends.
func startSwallower(ctx context.Context, b *bench, db *database) (*swallower, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b.atEnd(func() { listener.Close() })
	to, err := pgx.ParseConfig(db.url())
	if err != nil {
		return nil, err
	}
	network, address := pgconn.NetworkAddress(to.Host, to.Port)
	through := url.URL{Scheme: "postgres", Host: listener.Addr().String(), Path: "/" + databaseName, User: url.User(to.User), RawQuery: "sslmode=disable"}
	s := &swallower{url: through.String()}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.carry(ctx, conn, network, address)
		}
	}()
	return s, nil
}

// count is how many connections are open and not silent.
func (s *swallower) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pipes)
}

// swallow makes the newest connections silent.
func (s *swallower) swallow(connections int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	older := max(0, len(s.pipes)-connections)
	for _, p := range s.pipes[older:] {
		p.silent.Store(true)
	}
	s.pipes = s.pipes[:older]
}

// swallowAll makes all connections silent, and new ones too.
func (s *swallower) swallowAll() {
	s.mu.Lock()
	s.mute = true
	s.mu.Unlock()
	s.swallow(s.count())
}

// carry carries one connection.
func (s *swallower) carry(ctx context.Context, conn net.Conn, network, address string) {
	defer conn.Close()
	upstream, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return
	}
	defer upstream.Close()
	p := &pipe{}
	s.mu.Lock()
	p.silent.Store(s.mute)
	if !s.mute {
		s.pipes = append(s.pipes, p)
	}
	s.mu.Unlock()
	go func() {
		_, _ = io.Copy(pipeWriter{p, conn}, upstream)
		if !p.silent.Load() { // the end would be a sign of life
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

// pipeWriter writes to one end of a connection until it is silent.
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
