package postgres_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// ear is a listener under test, with its reports.
type ear struct {
	connected, alive chan struct{}
	received         chan string
	ended            chan error
	log              *lines
	cancel           context.CancelFunc
}

// lines collects the log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// patience is the time after which a connection counts as silent in a test on a busy machine.
const patience = 10 * time.Second

func listen(t *testing.T, pool *postgres.DB) *ear {
	t.Helper()
	return listenAt(t, pool, "")
}

// listenAt listens with a URL of its own unless it is empty.
func listenAt(t *testing.T, pool *postgres.DB, url string) *ear {
	t.Helper()
	const more = 1000 // more reports than any test causes
	e := &ear{connected: make(chan struct{}, more), alive: make(chan struct{}, more), received: make(chan string, more), ended: make(chan error, 1), log: &lines{}}
	ctx, cancel := context.WithCancel(t.Context())
	e.cancel = cancel
	listener := &postgres.Listener{
		DB:        pool,
		URL:       url,
		Channel:   channel(t),
		Connected: func() { e.connected <- struct{}{} },
		Heard:     func(payload string) { e.received <- payload },
		Alive: func() {
			select {
			case e.alive <- struct{}{}:
			default:
			}
		},
		Patience: patience,
		Log:      slog.New(slog.NewTextHandler(e.log, nil)),
	}
	go func() {
		e.ended <- listener.Run(ctx)
		close(e.ended)
	}()
	t.Cleanup(func() {
		cancel()
		for range e.ended { // until it is closed
		}
	})
	return e
}

// await returns the next report, and fails the test if none comes within ten
// seconds.
func await[T any](t *testing.T, what string, reports <-chan T) T {
	t.Helper()
	select {
	case report := <-reports:
		return report
	case <-time.After(10 * time.Second):
		t.Fatalf("%s: no report within 10 s", what)
	}
	var none T
	return none
}

// channel returns the channel of a test.
func channel(t *testing.T) string {
	t.Helper()
	return "some Channel of " + t.Name()
}

func notify(t *testing.T, payload string) {
	t.Helper()
	pgtest.Exec(t, shared(t).Pool, "SELECT pg_notify($1, $2)", channel(t), payload)
}

func TestListener(t *testing.T) {
	t.Parallel()
	e := listen(t, open(t, shared(t).OwnerURL, 4))
	await(t, "connected", e.connected)
	await(t, "alive", e.alive)
	for _, payload := range []string{"1", "2", "", "drei"} {
		notify(t, payload)
		if got := await(t, "notification", e.received); got != payload {
			t.Errorf("received %q, want %q", got, payload)
		}
	}
	// without notifications it still reports that it is alive, on the same
	// connection
	for len(e.alive) > 0 {
		<-e.alive
	}
	const beats = 3
	for range beats {
		await(t, "alive", e.alive)
	}
	notify(t, "after the silence")
	if got := await(t, "notification", e.received); got != "after the silence" {
		t.Errorf("received %q", got)
	}
	if len(e.connected) > 0 {
		t.Error("it reconnected")
	}
	e.cancel()
	if err := await(t, "ended", e.ended); !errors.Is(err, context.Canceled) {
		t.Errorf("it returned %v", err)
	}
}

// TestListenerWithoutServer: without a server the listener is not alive, logs one
// warning, keeps trying, and can be stopped.
func TestListenerWithoutServer(t *testing.T) {
	t.Parallel()
	for _, url := range []string{closedPort, mute(t)} {
		e := listen(t, open(t, url, 4))
		need.Within(t, 30*time.Second, "the first failure is logged", func() bool { return strings.Contains(e.log.String(), "failures=1 ") })
		e.cancel()
		if err := await(t, "ended", e.ended); !errors.Is(err, context.Canceled) {
			t.Errorf("it returned %v", err)
		}
		if len(e.connected)+len(e.alive) > 0 {
			t.Errorf("it reported a connection")
		}
		if logged := e.log.String(); strings.Count(logged, "\n") != 1 {
			t.Errorf("logged: %s", logged)
		}
	}
}

// TestPoolParameters: pool_* parameters configure the pool and are not sent to the
// server, which does not know them.
func TestPoolParameters(t *testing.T) {
	t.Parallel()
	pool := open(t, shared(t).OwnerURL, 4, "pool_max_conns", "3", "pool_max_conn_idle_time", "1m")
	e := listen(t, pool)
	await(t, "connected", e.connected)
	openMigrations(t, pool.Pool().Config().ConnString())
}

// TestListenerFollowsThePool: the listener is never alive on another server than
// the pool's, where it would miss notifications, and moves to that server.
func TestListenerFollowsThePool(t *testing.T) {
	t.Parallel()
	url := shared(t).OwnerURL
	proxy := startProxy(t, url)
	pool := open(t, proxy.url, 4)
	need.OK(t, pool.Ping(t.Context()))
	proxy.leadTo(t, anotherServer(t, pool.Pool().Config().ConnConfig.Database))
	e := listen(t, pool)
	need.Within(t, 30*time.Second, "the other server is noticed", func() bool { return strings.Contains(e.log.String(), "another server") })
	if len(e.connected)+len(e.alive) > 0 {
		t.Error("it was alive on another server")
	}
	pool.Pool().Reset()
	need.OK(t, pool.Ping(t.Context()))
	await(t, "alive on the pool's new server", e.alive)

	// The pool moves to another server than the connected listener.
	for len(e.connected) > 0 {
		<-e.connected
	}
	proxy.leadTo(t, url)
	pool.Pool().Reset()
	need.OK(t, pool.Ping(t.Context()))
	await(t, "connected to the pool's server again", e.connected)
	notify(t, "hello")
	if got := await(t, "notification", e.received); got != "hello" {
		t.Errorf("received %q", got)
	}
}

// TestListenerHearsBeforeItIsAlive: while notifications wait, the listener calls Alive at most
// for a proof that began before them. They come during a proof, which takes long behind a pooler.
func TestListenerHearsBeforeItIsAlive(t *testing.T) {
	t.Parallel()
	database := shared(t)
	const waiting, more = 50, 1000
	var connected, sent atomic.Bool
	reports := make(chan string, more) // "alive" and payloads
	pool := pgtest.Open(t, pgtest.StartPooler(t, database.OwnerURL).URL+"&default_query_exec_mode=exec", 4, pgtest.Statements(func(string, []any) {
		if connected.Load() && sent.CompareAndSwap(false, true) {
			_, err := database.Pool.Exec(t.Context(), "SELECT pg_notify($1, n::text) FROM generate_series(1, $2::int) AS n", channel(t), waiting)
			if err != nil {
				t.Error(err)
			}
			reports <- "sent"
		}
	}))
	need.OK(t, pool.Ping(t.Context()))
	need.Background(t, func(ctx context.Context) {
		_ = (&postgres.Listener{
			DB: pool, URL: database.OwnerURL, Channel: channel(t), Patience: patience, Log: slog.New(slog.DiscardHandler),
			Connected: func() { connected.Store(true) },
			Heard:     func(payload string) { reports <- payload },
			Alive:     func() { reports <- "alive" },
		}).Run(ctx) // ends when canceled
	})
	for await(t, "the notifications are sent", reports) != "sent" {
	}
	alive := 0
	for heard := 0; heard < waiting; {
		if await(t, "a report", reports) == "alive" {
			alive++
		} else {
			heard++
		}
	}
	if alive > 1 {
		t.Errorf("it was alive %d times before it had heard all", alive)
	}
}
