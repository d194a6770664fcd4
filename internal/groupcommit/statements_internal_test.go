package groupcommit

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
)

// sentWrites records the statements of groups that write rows.
type sentWrites struct{ names []string }

var aboutWrites = regexp.MustCompile(`^-- name: (\w+(?:Insert|Write|Delete)|StandbyAwait) `)

// TraceBatchStart implements pgx.BatchTracer.
func (s *sentWrites) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, queued := range data.Batch.QueuedQueries {
		if name := aboutWrites.FindStringSubmatch(queued.SQL); name != nil {
			s.names = append(s.names, name[1])
		}
	}
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (*sentWrites) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (*sentWrites) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// TraceQueryStart implements pgx.QueryTracer.
func (*sentWrites) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*sentWrites) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestStatementsOfWrites: a group sends the statements that its changes need, and no empty ones.
func TestStatementsOfWrites(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	sent := &sentWrites{}
	pool, err := postgres.Open(t.Context(), f.database.URL, 1, sent)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	c := newCommitter(pool)
	f.exec("INSERT INTO categories (account_id, id, name, name_key) VALUES (1, 2, 'Cats', 'cats')")
	f.exec("INSERT INTO orders (account_id, id, pet_id, quantity) VALUES (1, 7, 3, 1); UPDATE inventory SET held = 1 WHERE account_id = 1 AND pet_id = 3")
	for _, step := range []struct {
		what  string
		write *Write
		want  string
	}{
		{"nothing", change(Write{Pet: 1}, func(*State) {}), ""},
		{"stock", restock(1, 5), "StockWrite"},
		{"the same stock", restock(1, 5), ""},
		{"a name", change(Write{Pet: 1}, func(s *State) {
			pet, _ := s.Pet(1)
			pet.Name, pet.NameKey = "Max", "max"
			s.SetPet(pet)
		}), "PetsWrite"},
		{"an order", order(1, 1), "OrdersInsert StockWrite"},
		{"an order with a key", under("key", order(1, 1)), "IdempotencyKeysInsert OrdersInsert StockWrite"},
		{"a replay", under("key", order(1, 1)), "StandbyAwait"},
		{"a ship date", change(Write{Pet: 3, Order: 7}, func(s *State) {
			o, _ := s.Order(7)
			o.ShipDate = new(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
			s.SetOrder(o)
		}), "OrdersWrite"},
		{"a canceled order", f.closeOrder(one, 3, false), "OrdersDelete StockWrite"},
		{"a deleted pet", change(Write{Alone: true, Pet: 4}, func(s *State) { s.DeletePet(4) }), "PetDelete StockDelete"},
		{"a category", change(Write{Alone: true, Creates: account.Categories}, func(s *State) {
			s.CreateCategory(db.Category{Name: "Birds", NameKey: "birds"})
		}), "CategoryInsert"},
		{"a deleted category", change(Write{Alone: true, Category: 2}, func(s *State) { s.DeleteCategory(2) }), "CategoryDelete"},
		{"a message", send("hello"), "MessagesInsert"},
	} {
		sent.names = nil
		decided, err := c.run(t.Context(), newState(one, false), []*Write{step.write})
		if err != nil || decided[0].err != nil {
			t.Fatalf("%s: %v, %v", step.what, err, decided)
		}
		if got := strings.Join(slices.Sorted(slices.Values(sent.names)), " "); got != step.want {
			t.Errorf("%s: the group sends %s, want %s", step.what, got, step.want)
		}
	}
	for _, step := range []struct {
		what  string
		write *Write
		want  string
	}{
		{"an order of too much", order(1, 11), ""},
		{"an order of a missing pet", order(9, 1), "StandbyAwait"},
	} {
		sent.names = nil
		decided, err := c.run(t.Context(), newState(one, true), []*Write{step.write})
		if got := strings.Join(sent.names, " "); err != nil || decided[0].err == nil || got != step.want {
			t.Errorf("%s: the group sends %s, want %s, %v, %v", step.what, got, step.want, err, decided)
		}
	}
	if pgtest.Is(pgtest.Citus) {
		return // it has no common groups
	}
	for _, step := range []struct {
		what  string
		write *Write
		want  string
	}{
		{"stock", restock(2, 5), "StoresWrite"},
		{"the same stock", restock(2, 5), ""},
		{"a replay", under("key", order(1, 1)), "StandbyAwait"},
	} {
		sent.names = nil
		if decided, err := c.runCommon(t.Context(), []storeWrite{{one, step.write}}); err != nil || decided[0].err != nil {
			t.Fatalf("%s: %v, %v", step.what, err, decided)
		}
		if got := strings.Join(sent.names, " "); got != step.want {
			t.Errorf("%s: the common group sends %s, want %s", step.what, got, step.want)
		}
	}
}
