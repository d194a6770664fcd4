package delivery_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"petstore/internal/pgtest"
)

// ofAccount matches a condition that all rows of an account in a table meet.
var ofAccount = regexp.MustCompile(`on (webhook_deliveries|events).*\n *Index Cond: \(account_id = \$\d+\)\n`)

// TestPlansOfSmallAccounts: PostgreSQL plans a statement for an account of average size, and keeps the
// plan for all. So a statement about the deliveries of a page must look up rows by their keys, even
// if it expects that an account has few.
func TestPlansOfSmallAccounts(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "it cannot make generic plans of joins, and its workers plan each run")
	f := newFeed(t)
	f.webhook("http://127.0.0.1")
	f.emit(pets(1, 2)...)
	f.exec(`
		INSERT INTO webhook_deliveries (account_id, id, webhook_id, event_id, sequence, type, next_attempt_at)
		SELECT account_id, 'dlv_' || lpad(n::text, 32, '0'), id, 'evt', n, 'pet.created', now() FROM webhooks, generate_series(1, 2) AS n`)
	f.exec("VACUUM ANALYZE")
	generated, err := os.ReadFile("../../db/delivery.sql.go")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := f.db.Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	pgtest.Exec(t, conn, "SET plan_cache_mode = force_generic_plan")
	for _, name := range []string{"DeliveriesDue", "DeliveryEvents", "DeliveriesRecord"} {
		query := regexp.MustCompile("(?s)-- name: " + name + " [^`]*").FindString(string(generated))
		prepared, err := conn.Conn().Prepare(t.Context(), name, query)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		arguments := strings.TrimSuffix(strings.Repeat("NULL, ", len(prepared.ParamOIDs)), ", ")
		explain := fmt.Sprintf("EXPLAIN EXECUTE %s(%s)", pgx.Identifier{name}.Sanitize(), arguments)
		plan := strings.Join(pgtest.List[string](t, conn, explain, pgx.QueryExecModeSimpleProtocol), "\n")
		if !strings.Contains(plan, "Index Cond: ((account_id = ") || ofAccount.MatchString(plan) {
			t.Errorf("%s reads all rows of an account:\n%s", name, plan)
		}
	}
}
