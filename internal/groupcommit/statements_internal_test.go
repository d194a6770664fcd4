package groupcommit

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/pgtest"
	"petstore/internal/stock"
)

var aboutWrites = regexp.MustCompile(`^-- name: (\w+(?:Insert|Write|Delete)|StandbyAwait) `)

// alterations describes the rows that are missing after a write, and the new ones.
func alterations(before, after []string) string {
	var found []string
	for _, row := range before {
		if i := slices.Index(after, row); i >= 0 {
			after = slices.Delete(after, i, i+1)
		} else {
			found = append(found, "-"+row)
		}
	}
	for _, row := range after {
		found = append(found, "+"+row)
	}
	return strings.Join(found, ", ")
}

// TestStatementsOfWrites: a write creates, changes and deletes the rows that it names, and no
// others. Its group sends the statements for that, and no empty ones.
func TestStatementsOfWrites(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var sent []string // the statements that write rows
	pool := pgtest.Open(t, f.database.URL, 1, pgtest.Statements(func(sql string, _ []any) {
		if name := aboutWrites.FindStringSubmatch(sql); name != nil {
			sent = append(sent, name[1])
		}
	}))
	c := newCommitter(pool)
	f.exec("INSERT INTO categories (account_id, id, name, name_key) VALUES (1, 2, 'Cats', 'cats'), (1, 3, 'Fish', 'fish')")
	f.exec("INSERT INTO orders (account_id, id, pet_id, quantity) VALUES (1, 7, 3, 1); UPDATE inventory SET held = 1 WHERE account_id = 1 AND pet_id = 3")
	alter := func(w Write, alter func(*Pet)) *Write {
		return change(w, func(s *State) {
			pet, _ := s.Pets.Get(w.Pet)
			alter(&pet)
			s.Pets.Set(pet)
		})
	}
	another := f.rowsOf(two)
	for _, step := range []struct {
		what  string
		kind  groupKind
		write *Write
		want  string
		rows  string
	}{
		{"nothing", ownGroup, change(Write{Pet: 1}, func(*State) {}), "", ""},
		{"stock", ownGroup, restock(1, 5), "StockWrite", "-pet Rex of Dogs in stock 10, +pet Rex of Dogs in stock 5"},
		{"the same stock", ownGroup, restock(1, 5), "", ""},
		{"a name", ownGroup, alter(Write{Pet: 1}, func(p *Pet) { p.Name, p.NameKey = "Max", "max" }), "PetsWrite", "-pet Rex of Dogs in stock 5, +pet Max of Dogs in stock 5"},
		{"only the key of a name", ownGroup, alter(Write{Pet: 1}, func(p *Pet) { p.NameKey = "maximilian" }), "PetsWrite", ""},
		{"another category", ownGroup, alter(Write{Pet: 1, Category: 2}, func(p *Pet) { p.CategoryID = 2 }), "PetsWrite", "-pet Max of Dogs in stock 5, +pet Max of Cats in stock 5"},
		{"an order", ownGroup, order(1, 1), "OrdersInsert StockWrite", "-pet Max of Cats in stock 5, +order of , +pet Max of Cats in stock 4"},
		{"an order with a key", ownGroup, under("key", order(1, 1)), "IdempotencyKeysInsert OrdersInsert StockWrite", "-pet Max of Cats in stock 4, +order of , +pet Max of Cats in stock 3"},
		{"a replay", ownGroup, under("key", order(1, 1)), "StandbyAwait", ""},
		{"a ship date", ownGroup, change(Write{Pet: 3, Order: 7}, func(s *State) {
			o, _ := s.Orders.Get(7)
			o.ShipDate = new(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
			s.Orders.Set(o)
		}), "OrdersWrite", "-order of , +order of 2030"},
		{"a canceled order", ownGroup, f.closeOrder(one, 3, false), "OrdersDelete StockWrite", "-order of 2030, -pet Rex of Dogs in stock 10, +pet Rex of Dogs in stock 11"},
		{"a pet", ownGroup, change(Write{Category: 1, Creates: account.Pets}, func(s *State) {
			s.Pets.Create(Pet{CategoryID: 1, Name: "Coco", NameKey: "coco", Stock: stock.State{Status: stock.Available}})
		}), "PetsInsert StockInsert", "+pet Coco of Dogs in stock 0"},
		{"a deleted pet", ownGroup, change(Write{Alone: true, Pet: 4}, func(s *State) { s.Pets.Delete(4) }), "PetDelete StockDelete", "-pet Rex of Dogs in stock 10"},
		{"a category", ownGroup, change(Write{Alone: true, Creates: account.Categories}, func(s *State) {
			s.Categories.Create(db.Category{Name: "Birds", NameKey: "birds"})
		}), "CategoryInsert", "+category Birds"},
		{"the name of a category", ownGroup, change(Write{Alone: true, Category: 3}, func(s *State) {
			s.Categories.Set(db.Category{ID: 3, Name: "Horses", NameKey: "horses"})
		}), "CategoryWrite", "-category Fish, +category Horses"},
		{"a deleted category", ownGroup, change(Write{Alone: true, Category: 3}, func(s *State) { s.Categories.Delete(3) }), "CategoryDelete", "-category Horses"},
		{"a message", ownGroup, send("hello"), "MessagesInsert", "+message hello"},
		{"an order of too much", waitingGroup, order(1, 11), "", "refused"},
		{"an order of a missing pet", waitingGroup, order(9, 1), "StandbyAwait", "refused"},
		{"stock", commonGroup, restock(2, 5), "StoresWrite", "-pet Rex of Dogs in stock 10, +pet Rex of Dogs in stock 5"},
		{"the same stock", commonGroup, restock(2, 5), "", ""},
		{"a name", commonGroup, alter(Write{Pet: 2}, func(p *Pet) { p.Name, p.NameKey = "Tom", "tom" }), "StoresWrite", "-pet Rex of Dogs in stock 5, +pet Tom of Dogs in stock 5"},
		{"an order", commonGroup, order(2, 1), "StoresWrite", "-pet Tom of Dogs in stock 5, +order of , +pet Tom of Dogs in stock 4"},
		{"a replay", commonGroup, under("key", order(1, 1)), "StandbyAwait", ""},
	} {
		if step.kind == commonGroup && pgtest.Is(pgtest.Citus) {
			continue // it has no such groups
		}
		before := f.rowsOf(one)
		sent = nil
		decided, err := c.run(t.Context(), newGroup(step.kind, storeWrite{one, step.write}))
		rows := alterations(before, f.rowsOf(one))
		if decided[0].err != nil {
			rows += "refused"
		}
		if got := strings.Join(slices.Sorted(slices.Values(sent)), " "); err != nil || got != step.want || rows != step.rows {
			t.Fatalf("%d %s: %v, %v, the group sends %s, want %s; alters %s, want %s", step.kind, step.what, err, decided[0].err, got, step.want, rows, step.rows)
		}
	}
	if got := f.rowsOf(two); !slices.Equal(got, another) {
		t.Errorf("the other store has %q", got)
	}
}
