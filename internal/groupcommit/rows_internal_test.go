package groupcommit

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/event"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// rowsOf describes the categories, pets, orders and messages of a store.
func (f *fixture) rowsOf(store Store) []string {
	f.t.Helper()
	return pgtest.List[string](f.t, f.database.Pool, `
		SELECT format('category %s', name) FROM categories WHERE account_id = $1
		UNION ALL SELECT format('pet %s of %s in stock %s', pets.name, categories.name, quantity)
			FROM pets JOIN categories USING (account_id) JOIN inventory USING (account_id)
			WHERE account_id = $1 AND pet_id = pets.id AND categories.id = category_id
		UNION ALL SELECT format('order of %s', extract(year FROM ship_date)) FROM orders WHERE account_id = $1
		UNION ALL SELECT format('message %s', message) FROM messages WHERE account_id = $1
		ORDER BY 1`, store.AccountID)
}

// change returns a write with a decision that only changes the state.
func change(w Write, decide func(s *State)) *Write {
	w.Decide = func(s *State) (Response, error) {
		decide(s)
		return Response{Status: 200}, nil
	}
	return &w
}

// TestWriteThatFailsAfterAChange: whatever a write has changed before it fails, its group has no
// effect.
func TestWriteThatFailsAfterAChange(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	before := f.rowsOf(one)
	restocks := func(s *State) {
		pet, _ := s.Pets.Get(1)
		pet.Stock = pet.Stock.Restock(5)
		s.Pets.Set(pet)
	}
	for name, decide := range map[string]func(s *State){
		"a pet":      func(s *State) { s.Pets.Create(Pet{CategoryID: 1, Name: "Coco", NameKey: "coco"}) },
		"stock":      restocks,
		"an order":   func(s *State) { s.Orders.Create(db.Order{PetID: 1, Quantity: 1}) },
		"a category": func(s *State) { s.Categories.Create(db.Category{Name: "Cats", NameKey: "cats"}) },
		"a message":  func(s *State) { s.CreateMessage("hello") },
		"a pet and an order": func(s *State) {
			s.Pets.Create(Pet{CategoryID: 1, Name: "Coco", NameKey: "coco"})
			s.Orders.Create(db.Order{PetID: 1, Quantity: 1})
		},
		"a pet and a category": func(s *State) {
			s.Pets.Create(Pet{CategoryID: 1, Name: "Coco", NameKey: "coco"})
			s.Categories.Create(db.Category{Name: "Cats", NameKey: "cats"})
		},
		"a pet and a message": func(s *State) {
			s.Pets.Create(Pet{CategoryID: 1, Name: "Coco", NameKey: "coco"})
			s.CreateMessage("hello")
		},
		"a pet twice": func(s *State) { restocks(s); s.Pets.Delete(1) },
		"an event":    func(s *State) { s.Emit(event.Event{Type: event.PetUpdated, Subject: "/pets/1", Data: []byte("{}")}) },
	} {
		t.Run(name, func(t *testing.T) {
			failing := &Write{Pet: 1, Decide: func(s *State) (Response, error) {
				for kind := range sequences {
					s.group.ids[kind] = []int64{5001}
				}
				decide(s)
				return Response{}, errors.New("too late")
			}}
			if _, err := f.group(one, order(2, 1), failing); !errors.Is(err, errSpoiled) {
				t.Errorf("the group returns %v", err)
			}
			if got := f.rowsOf(one); !slices.Equal(got, before) {
				t.Errorf("the store has %q", got)
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
		decided := need.Value(f.group(sandbox, writes...))(t)
		got := []bool{}
		for _, d := range decided {
			got = append(got, errors.Is(d.err, account.ErrFull))
		}
		if !slices.Equal(got, []bool{false, true, true}) {
			t.Errorf("%s: the sandbox is full for the writes %v of one group", name, got)
		}
	}
}
