package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"

	"petstore/internal/pgtest"
)

// events collects the numbers of the events that a webhook receives.
type events struct {
	t *testing.T

	mu   sync.Mutex
	seen map[int64]int
}

func (e *events) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var event struct{ Sequence int64 }
	if err == nil {
		err = json.Unmarshal(body, &event)
	}
	if err != nil {
		return // the sender was killed
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen[event.Sequence]++
}

// missing returns the numbers up to last that have not arrived.
func (e *events) missing(last int64) (missing []int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for sequence := int64(1); sequence <= last; sequence++ {
		if e.seen[sequence] == 0 {
			missing = append(missing, sequence)
		}
	}
	return missing
}

// TestKilledWorkers: while clients write, processes that deliver are killed again and
// again. Every event arrives.
func TestKilledWorkers(t *testing.T) {
	t.Parallel()
	received := &events{t: t, seen: map[int64]int{}}
	receiver := httptest.NewServer(received)
	t.Cleanup(receiver.Close)
	database := pgtest.New(t)
	s := &shop{t: t, database: database, environ: []string{
		"DATABASE_URL=" + database.URL, "PETSTORE_DIRECT_URL=" + database.DirectURL, "PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_ADMIN_ADDR=off",
		"PETSTORE_RATE_LIMIT=0", "PETSTORE_WEBHOOK_ALLOW=127.0.0.0/8",
	}}
	s.key = strings.TrimSpace(must(t, s.environ, "key", "create", "--account", "acme", "--scope", "admin"))
	s.begin()
	post(t, s.base+"/webhooks", s.key, fmt.Sprintf(`{"url": %q, "types": ["*"]}`, receiver.URL))
	post(t, s.base+"/categories", s.key, `{"name": "dogs"}`)
	post(t, s.base+"/pets", s.key, `{"name": "Rex", "categoryId": 1001}`)
	s.exec("UPDATE inventory SET quantity = 1000000")
	const rounds, clients, orders = 2, 4, 15
	for round := range rounds {
		worker := begin(t, emptyDir, s.environ, "worker")
		var writing sync.WaitGroup
		for client := range clients {
			writing.Go(func() {
				for i := range orders {
					if _, err := s.order(t.Context(), fmt.Sprintf("order-%d-%d-%d", round, client, i)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		s.await(clients*orders*round+clients*orders/2, "SELECT count(*) FROM orders")
		s.kill()
		worker.end(syscall.SIGKILL)
		s.begin()
		writing.Wait()
	}
	s.await(1, "SELECT CASE WHEN count(*) = 0 THEN 1 ELSE 0 END FROM webhooks JOIN account_state USING (account_id) WHERE after_sequence < last_sequence")
	s.await(1, "SELECT CASE WHEN count(*) FILTER (WHERE status <> 'delivered') = 0 THEN 1 ELSE 0 END FROM webhook_deliveries")
	var last int64
	if err := database.Pool.QueryRow(t.Context(), "SELECT max(last_sequence) FROM account_state").Scan(&last); err != nil {
		t.Fatal(err)
	}
	if missing := received.missing(last); len(missing) > 0 || last != 2+rounds*clients*orders {
		t.Errorf("of %d events, %v have not arrived", last, missing)
	}
}
