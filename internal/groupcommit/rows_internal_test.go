package groupcommit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/stock"
)

// rowsOf returns the names of the categories and pets, the ship dates of the orders and the texts
// of the messages of a store.
func (f *fixture) rowsOf(store Store) string {
	f.t.Helper()
	found, err := f.database.Pool.Query(f.t.Context(), `
		SELECT format('category %s', name) FROM categories WHERE account_id = $1
		UNION ALL SELECT format('pet %s in stock %s', name, quantity) FROM pets JOIN inventory USING (account_id) WHERE account_id = $1 AND pet_id = id
		UNION ALL SELECT format('order of %s', extract(year FROM ship_date)) FROM orders WHERE account_id = $1
		UNION ALL SELECT format('message %s', message) FROM messages WHERE account_id = $1
		ORDER BY 1`, store.AccountID)
	var rows []string
	if err == nil {
		rows, err = pgx.CollectRows(found, pgx.RowTo[string])
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return strings.Join(rows, ", ")
}

// change returns a write with a decision that only changes the state.
func change(w Write, decide func(s *State)) *Write {
	w.Decide = func(s *State) (Response, error) {
		decide(s)
		return Response{Status: 200}, nil
	}
	return &w
}

// TestRowsOfEachKind: a write creates, changes and deletes the rows that it names, and no others.
func TestRowsOfEachKind(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec("DELETE FROM inventory WHERE pet_id > 1; DELETE FROM pets WHERE id > 1")
	var category, placed int64
	for _, step := range []struct {
		what  string
		write func() *Write
		want  string
	}{
		{"create a category", func() *Write {
			return change(Write{Alone: true, Creates: account.Categories}, func(s *State) {
				category = s.CreateCategory(db.Category{Name: "Cats", NameKey: "cats"})
			})
		}, "category Cats, category Dogs, pet Rex in stock 10"},
		{"rename the category", func() *Write {
			return change(Write{Alone: true, Category: category}, func(s *State) {
				c, _ := s.Category(category)
				c.Name, c.NameKey = "Birds", "birds"
				s.SetCategory(c)
			})
		}, "category Birds, category Dogs, pet Rex in stock 10"},
		{"create a pet", func() *Write {
			return change(Write{Category: category, Creates: account.Pets}, func(s *State) {
				s.CreatePet(Pet{CategoryID: category, Name: "Coco", NameKey: "coco", Stock: stock.State{Status: stock.Available}})
			})
		}, "category Birds, category Dogs, pet Coco in stock 0, pet Rex in stock 10"},
		{"rename a pet", func() *Write {
			return change(Write{Pet: 1}, func(s *State) {
				p, _ := s.Pet(1)
				p.Name, p.NameKey = "Max", "max"
				s.SetPet(p)
			})
		}, "category Birds, category Dogs, pet Coco in stock 0, pet Max in stock 10"},
		{"move a pet", func() *Write {
			return change(Write{Pet: 1, Category: category}, func(s *State) {
				p, _ := s.Pet(1)
				p.CategoryID = category
				s.SetPet(p)
			})
		}, "category Birds, category Dogs, pet Coco in stock 0, pet Max in stock 10"},
		{"delete the empty category", func() *Write {
			return change(Write{Alone: true, Category: 1}, func(s *State) { s.DeleteCategory(1) })
		}, "category Birds, pet Coco in stock 0, pet Max in stock 10"},
		{"place an order", func() *Write {
			return change(Write{Pet: 1, Creates: account.Orders}, func(s *State) {
				p, _ := s.Pet(1)
				p.Stock, _ = p.Stock.Place(1)
				s.SetPet(p)
				placed = s.CreateOrder(db.Order{PetID: 1, Quantity: 1})
			})
		}, "category Birds, order of , pet Coco in stock 0, pet Max in stock 9"},
		{"give the order a ship date", func() *Write {
			return change(Write{Pet: 1, Order: placed}, func(s *State) {
				o, _ := s.Order(placed)
				o.ShipDate = new(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
				s.SetOrder(o)
			})
		}, "category Birds, order of 2030, pet Coco in stock 0, pet Max in stock 9"},
		{"send a message", func() *Write { return send("hello") }, "category Birds, message hello, order of 2030, pet Coco in stock 0, pet Max in stock 9"},
	} {
		if _, err := f.Do(t.Context(), one, step.write()); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		if got := f.rowsOf(one); got != step.want {
			t.Errorf("%s: the store has %s, want %s", step.what, got, step.want)
		}
	}
	if got := f.rowsOf(two); !strings.Contains(got, "category Dogs") || strings.Contains(got, "Max") {
		t.Errorf("the other store has %s", got)
	}
}

// TestWriteThatFailsAfterAChange: whatever a write has changed before it fails, its group has no
// effect.
func TestWriteThatFailsAfterAChange(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	before := f.rowsOf(one)
	for name, decide := range map[string]func(s *State){
		"a pet":      func(s *State) { s.CreatePet(Pet{CategoryID: 1, Name: "Coco", NameKey: "coco"}) },
		"stock":      func(s *State) { p, _ := s.Pet(1); s.SetPet(p) },
		"an order":   func(s *State) { s.CreateOrder(db.Order{PetID: 1, Quantity: 1}) },
		"a category": func(s *State) { s.CreateCategory(db.Category{Name: "Cats", NameKey: "cats"}) },
		"a message":  func(s *State) { s.CreateMessage("hello") },
		"a pet and an order": func(s *State) {
			s.CreatePet(Pet{CategoryID: 1, Name: "Coco", NameKey: "coco"})
			s.CreateOrder(db.Order{PetID: 1, Quantity: 1})
		},
		"a pet and a category": func(s *State) {
			s.CreatePet(Pet{CategoryID: 1, Name: "Coco", NameKey: "coco"})
			s.CreateCategory(db.Category{Name: "Cats", NameKey: "cats"})
		},
		"a pet and a message": func(s *State) {
			s.CreatePet(Pet{CategoryID: 1, Name: "Coco", NameKey: "coco"})
			s.CreateMessage("hello")
		},
		"a pet twice": func(s *State) { p, _ := s.Pet(1); s.SetPet(p); s.DeletePet(1) },
	} {
		t.Run(name, func(t *testing.T) {
			failing := &Write{Pet: 1, Decide: func(s *State) (Response, error) {
				for kind := range sequences {
					s.ids[kind] = []int64{5001}
				}
				decide(s)
				return Response{}, errors.New("too late")
			}}
			if _, err := f.group(one, order(2, 1), failing); !errors.Is(err, errSpoiled) {
				t.Errorf("the group returns %v", err)
			}
			if got := f.rowsOf(one); got != before {
				t.Errorf("the store has %s", got)
			}
		})
	}
}

// TestSandboxFillsInOneGroup: the writes of a group together create no more rows than a sandbox may
// have.
func TestSandboxFillsInOneGroup(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.newSandbox()
	f.exec(fmt.Sprintf(`
		INSERT INTO messages (account_id, id, message) SELECT 3, 'msg_' || md5(n::text), 'x' FROM generate_series(1, %[1]d) AS n;
		INSERT INTO orders (account_id, id, pet_id, quantity) SELECT 3, n, 1, 1 FROM generate_series(1, %[1]d) AS n;
		UPDATE account_state SET last_message_id = %[1]d, last_order_id = %[1]d WHERE account_id = 3`, account.MaxRows-1))
	for name, writes := range map[string][]*Write{
		"messages": {send("a"), send("b"), send("c")},
		"orders":   {order(2, 1), order(3, 1), order(4, 1)},
	} {
		decided, err := f.group(sandbox, writes...)
		if err != nil {
			t.Fatal(err)
		}
		got := []bool{}
		for _, d := range decided {
			got = append(got, errors.Is(d.err, account.ErrFull))
		}
		if !slices.Equal(got, []bool{false, true, true}) {
			t.Errorf("%s: the sandbox is full for the writes %v of one group", name, got)
		}
	}
}
