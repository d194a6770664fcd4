package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// shop is a server that the test kills and restarts on the same data.
type shop struct {
	t        *testing.T
	database *pgtest.Database
	environ  []string
	key      string

	mu     sync.Mutex
	server *process
	base   string // URL of the server
}

// openShop starts a server on a database with one pet that has plenty of stock.
func openShop(t *testing.T) *shop {
	t.Helper()
	database := pgtest.New(t)
	url := database.URL
	if !pgtest.Is(pgtest.PgBouncer) { // which passes on no settings
		url += "&lock_timeout=30s&statement_timeout=30s" // longer than tests hold locks
	}
	s := &shop{t: t, database: database, environ: []string{"DATABASE_URL=" + url, "PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_RATE_LIMIT=0"}}
	s.key = strings.TrimSpace(must(t, s.environ, "key", "create", "--account", "acme", "--scope", "write"))
	s.begin()
	post(t, s.base+"/categories", s.key, `{"name": "dogs"}`)
	post(t, s.base+"/pets", s.key, `{"name": "Rex", "categoryId": 1001}`)
	s.exec("UPDATE inventory SET quantity = 1000")
	return s
}

func (s *shop) begin() {
	s.t.Helper()
	server := begin(s.t, emptyDir, s.environ, "serve")
	base := server.address()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server, s.base = server, base
}

// kill kills the server, like a power failure. Another test may get its port.
func (s *shop) kill() {
	s.t.Helper()
	s.mu.Lock()
	s.base = "http://127.0.0.1:1"
	s.mu.Unlock()
	s.server.end(syscall.SIGKILL)
}

func (s *shop) exec(sql string) {
	s.t.Helper()
	pgtest.Exec(s.t, s.database.Pool, sql)
}

// ordered is the response to a successful order.
type ordered struct {
	id       int64
	replayed bool
}

// order places an order with an Idempotency-Key. Like a careful client, it retries
// until it gets a response.
func (s *shop) order(ctx context.Context, key string) (ordered, error) {
	for {
		s.mu.Lock()
		base := s.base
		s.mu.Unlock()
		got, err := httpRequest{
			http.MethodPost, base + "/store/orders", s.key, `{"petId": 1001, "quantity": 2}`, http.Header{"Idempotency-Key": {key}},
		}.try(ctx, http.DefaultClient)
		switch {
		case ctx.Err() != nil:
			return ordered{}, ctx.Err()
		case err == nil && got.status == http.StatusCreated:
			var order struct{ ID int64 }
			err := json.Unmarshal([]byte(got.body), &order)
			return ordered{order.ID, got.header.Get("Idempotent-Replayed") == "true"}, err
		case err == nil && got.status != http.StatusServiceUnavailable && !strings.Contains(got.body, `"idempotency_in_progress"`):
			return ordered{}, fmt.Errorf("%d %s", got.status, got.body)
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond): // the pause of an impatient client
		}
	}
}

// wantOrders fails the test unless there are this many orders, with their units and
// stored responses.
func (s *shop) wantOrders(want int) {
	s.t.Helper()
	var orders, responses, held, quantity int
	need.OK(s.t, s.database.Pool.QueryRow(s.t.Context(), `
		SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM idempotency_keys), held, quantity FROM inventory`).
		Scan(&orders, &responses, &held, &quantity))
	if orders != want || responses != want || held != 2*want || quantity != 1000-2*want {
		s.t.Errorf("%d orders, %d stored responses, %d units held and %d in stock; want %d orders of 2 units each", orders, responses, held, quantity, want)
	}
}

// TestKilledBeforeTheResponse: the server is killed at a point that a lock holds open,
// before sending the response. The statements that write an order reach PostgreSQL
// together with the COMMIT, so PostgreSQL carries them out even if the server is gone.
func TestKilledBeforeTheResponse(t *testing.T) {
	t.Parallel()
	const (
		waits   = "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END'; "
		trigger = "TRIGGER hold AFTER INSERT ON idempotency_keys %s FOR EACH ROW EXECUTE FUNCTION hold()"
		keep    = "SELECT pg_advisory_xact_lock(1) FROM account_state" // where the account is
	)
	for _, point := range []struct {
		name     string
		prepare  string // SQL that prepares the database
		hold     string // SQL that blocks the transaction at this point
		held     string // the statement that is blocked, without Citus
		survives bool   // whether the order survives
	}{
		{"before deciding about the order", "SELECT", "LOCK TABLE idempotency_keys IN ACCESS EXCLUSIVE MODE", "StoreKeysGet", false},
		{"before the commit", waits + "CREATE " + fmt.Sprintf(trigger, ""), keep, "StoresWrite", true},
		{"during the commit", waits + "CREATE CONSTRAINT " + fmt.Sprintf(trigger, "DEFERRABLE INITIALLY DEFERRED"), keep, "COMMIT", true},
	} {
		t.Run(point.name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t)
			s.exec(point.prepare)
			placed := s.orderAt(point.hold, point.held, s.kill, s.begin)
			need.Same(t, point.survives, placed.replayed, "order %d: replayed", placed.id)
			s.wantOrders(1)
		})
	}
}

// orderAt places an order, and calls ending while a lock blocks a statement of the order. It calls ended
// after it has released the lock.
func (s *shop) orderAt(hold, held string, ending, ended func()) (placed ordered) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	tx := pgtest.Begin(s.t, s.database.Pool)
	need.Value(tx.Exec(ctx, hold))(s.t)
	done := make(chan error, 1)
	go func() {
		var err error
		placed, err = s.order(ctx, "order")
		done <- err
	}()
	if pgtest.Is(pgtest.Citus) { // a worker waits, with a statement of its own
		need.OK(s.t, pgtest.AwaitLockWaiters(ctx, s.database.Pool, 1))
	} else {
		need.Within(s.t, patience, held+" waits for a lock", func() bool {
			var waits bool
			err := s.database.Pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%' AND pid <> pg_backend_pid())`, held).Scan(&waits)
			return err == nil && waits
		})
	}
	ending()
	pgtest.Rollback(s.t, tx)
	ended()
	need.OK(s.t, <-done)
	return placed
}

// TestTerminatedDuringAnOrder: an order waits for a lock when the server gets SIGTERM, and longer than it
// accepts connections. The order succeeds, and the exit code is 0.
func TestTerminatedDuringAnOrder(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	idle := need.Value((&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(s.base, "http://")))(t)
	defer idle.Close()
	need.Value(io.WriteString(idle, "GET /livez HTTP/1.1\r\nHost: shop\r\n\r\n"))(t)
	placed := s.orderAt("LOCK TABLE inventory IN ACCESS EXCLUSIVE MODE", "StorePetsLock", func() {
		need.OK(t, s.server.cmd.Process.Signal(syscall.SIGTERM))
		_, _ = io.Copy(io.Discard, idle) // ends when the server waits only for requests in progress
	}, func() {
		s.server.exits(0)
	})
	if placed.replayed {
		t.Error("the order got its response only at the second attempt")
	}
	s.wantOrders(1)
}
