package postgres_test

import (
	"context"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

func TestMain(m *testing.M) {
	os.Exit(pgtest.Run(m.Run))
}

// shared returns a database for tests that change nothing in it.
func shared(t *testing.T) *pgtest.Database {
	t.Helper()
	return need.Value(pgtest.Shared())(t)
}

// proxy forwards TCP connections to a server. It can swallow their data.
type proxy struct {
	url string // URL of the database through the proxy

	mu               sync.Mutex
	network, address string
	pipes            []*pipe
	mute             bool // applies to new connections
}

// pipe is one connection through the proxy.
type pipe struct {
	mu     sync.Mutex
	silent bool
}

// startProxy starts a proxy to the server of a database. It runs until the test
// ends.
func startProxy(t *testing.T, databaseURL string) *proxy {
	t.Helper()
	p := &proxy{}
	p.leadTo(t, databaseURL)
	p.url = pgtest.Through(t, databaseURL, p.carry)
	return p
}

// leadTo forwards new connections to the server of another database.
func (p *proxy) leadTo(t *testing.T, databaseURL string) {
	t.Helper()
	config := need.Value(pgx.ParseConfig(databaseURL))(t)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.network, p.address = pgconn.NetworkAddress(config.Host, config.Port)
}

// swallow makes current connections silent, and with mute also new ones.
func (p *proxy) swallow(mute bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute = mute
	for _, one := range p.pipes {
		one.mu.Lock()
		one.silent = true
		one.mu.Unlock()
	}
}

// carry forwards a connection, which [pgtest.Through] closes.
func (p *proxy) carry(client net.Conn) {
	p.mu.Lock()
	network, address, one := p.network, p.address, &pipe{silent: p.mute}
	p.pipes = append(p.pipes, one)
	p.mu.Unlock()
	server, err := (&net.Dialer{}).DialContext(context.Background(), network, address)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		defer client.Close()
		_, _ = io.Copy(&swallower{one, client}, server)
	}()
	_, _ = io.Copy(&swallower{one, server}, client)
}

// swallower writes to a connection until its pipe is silent.
type swallower struct {
	pipe *pipe
	to   net.Conn
}

func (s *swallower) Write(p []byte) (int, error) {
	s.pipe.mu.Lock()
	silent := s.pipe.silent
	s.pipe.mu.Unlock()
	if silent {
		return len(p), nil
	}
	return s.to.Write(p)
}

// anotherServer starts a PostgreSQL server with an empty database of this name,
// until the test ends, and returns its URL.
func anotherServer(t *testing.T, database string) string {
	t.Helper()
	_, cluster := pgtest.NewCluster(t)
	need.OK(t, cluster.EnsureDatabase(t.Context(), database))
	return cluster.URL(database)
}

// acquire takes this many connections of a pool.
func acquire(t *testing.T, pool *postgres.DB, conns int) (held []*pgxpool.Conn) {
	t.Helper()
	for range conns {
		held = append(held, need.Value(pool.Pool().Acquire(t.Context()))(t))
	}
	return held
}

// release gives connections back.
func release(held []*pgxpool.Conn) {
	for _, conn := range held {
		conn.Release()
	}
}

// fill opens this many idle connections in a pool.
func fill(t *testing.T, pool *postgres.DB, conns int) {
	t.Helper()
	release(acquire(t, pool, conns))
}

// fails runs a statement that gets no response within 300 ms.
func fails(t *testing.T, pool *postgres.DB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := pool.Ping(ctx); !postgres.Unavailable(err) {
		t.Errorf("on a silent connection: %v", err)
	}
}

// TestSilentConnections: after one connection of a pool turns out to be silent, all
// places of silent connections are free long before pgx gives up on them.
func TestSilentConnections(t *testing.T) {
	t.Parallel()
	for name, mute := range map[string]bool{"new connections work": false, "new ones are silent at first": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const conns = 3
			proxy := startProxy(t, shared(t).OwnerURL)
			pool := open(t, proxy.url, conns)
			fill(t, pool, conns)
			proxy.swallow(mute)
			fails(t, pool)
			began := time.Now()
			need.Within(t, 30*time.Second, "all places are free", func() bool { return pool.Pool().Stat().TotalConns() == 0 })
			// docs/reliability.md says 7 s, of which the statement of a request may take 6.
			longest := 2 * time.Second
			if mute {
				longest += 2 * time.Second // the timeout of the connection that cancels the statement
			}
			if took := time.Since(began); took > longest {
				t.Errorf("all places are free %s after the error", took)
			}
			proxy.mu.Lock()
			proxy.mute = false
			proxy.mu.Unlock()
			fill(t, pool, conns)
			need.OK(t, pool.Ping(t.Context()))
		})
	}
}

// TestSilentLookup: a host name that cannot be looked up does not keep a pool from the other hosts.
func TestSilentLookup(t *testing.T) {
	t.Parallel()
	address := strings.Replace(startProxy(t, shared(t).OwnerURL).url, "@", "@silent:1,", 1) + "&connect_timeout=1"
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	conn := need.Value(postgres.Connect(ctx, address, func(ctx context.Context, host string) ([]string, error) {
		if host == "silent" {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return []string{host}, nil
	}))(t)
	need.OK(t, conn.Close(ctx))
}

// TestCloseWithAConnectionInUse: a pool closes soon, even if a connection is in use.
func TestCloseWithAConnectionInUse(t *testing.T) {
	t.Parallel()
	pool := open(t, shared(t).OwnerURL, 1)
	conn := need.Value(pool.Pool().Acquire(t.Context()))(t)
	defer conn.Release()
	began := time.Now()
	pool.Close()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the pool has closed after %s", took)
	}
	if err := pool.Ping(t.Context()); !postgres.Unavailable(err) {
		t.Errorf("on a closed pool: %v", err)
	}
}
