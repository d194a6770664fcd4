package api_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"petstore/db"
	"petstore/internal/auth"
)

// Orders of one pet that go to the database together end as they would one after
// the other, whatever they ask for and whatever there is.
func TestOrdersTogetherAreOrdersInTurn(t *testing.T) {
	t.Parallel()
	const rounds, most = 60, 12
	p := start(t)
	queries := db.New(p.db)
	none := time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	type outcome struct {
		Placed   bool
		ShipDate *time.Time
		Status   string // of the pet, as the order found it
	}
	for round := range rounds {
		random := rand.New(rand.NewPCG(uint64(round), 1))
		status := []string{"available", "available", "pending", "sold"}[random.IntN(4)]
		stock := random.Int64N(20)
		inTurn, together := p.stage(on("available", stock)), p.stage(on("available", stock))
		for _, s := range []scene{inTurn, together} {
			p.patch(s.petPath(), object{"status": status}).want(200)
		}
		all := db.OrderPlaceManyParams{PetID: together.pet, NoShipDate: none}
		var want, got []outcome
		for range 1 + random.IntN(most) {
			quantity := 1 + random.Int64N(8)
			var shipDate *time.Time
			all.ShipDates = append(all.ShipDates, none)
			if random.IntN(2) == 0 {
				at := time.Date(2026, 1, 1+random.IntN(300), 0, 0, 0, 0, time.UTC)
				shipDate, all.ShipDates[len(all.ShipDates)-1] = &at, at
			}
			all.Quantities = append(all.Quantities, quantity)
			row, err := queries.OrderPlace(t.Context(), db.OrderPlaceParams{PetID: inTurn.pet, Quantity: quantity, ShipDate: shipDate})
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, outcome{row.ID > 0, row.ShipDate, row.PetStatus})
		}
		rows, err := queries.OrderPlaceMany(t.Context(), all)
		if err != nil {
			t.Fatal(err)
		}
		for i, row := range rows {
			got = append(got, outcome{row.ID > 0, row.ShipDate, row.PetStatus})
			if row.ID == 0 {
				continue
			}
			placed := decode[order](p.get(fmt.Sprintf("/store/orders/%d", row.ID)).want(200))
			if placed.Quantity != all.Quantities[i] || placed.PetID != together.pet {
				t.Errorf("order %d of round %d is answered by %+v", i, round, placed)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("round %d, %s with %d, %v: in turn -, together +\n%s", round, status, stock, all.Quantities, diff)
		}
		if one, other := inTurn.stored(), together.stored(); cmp.Diff(one, other) != "" {
			t.Errorf("round %d: in turn %v, together %v", round, one, other)
		}
	}
	if rows, err := queries.OrderPlaceMany(t.Context(), db.OrderPlaceManyParams{PetID: 1 << 40, Quantities: []int64{1}, ShipDates: []time.Time{none}, NoShipDate: none}); err != nil || len(rows) > 0 {
		t.Errorf("of a pet that is not there: %v, %v", rows, err)
	}
}

// Each of many orders that wait for one pet is answered for itself.
func TestEachOrderOfACrowdIsItsOwn(t *testing.T) {
	t.Parallel()
	const buyers = 40
	s := start(t).stage(on("available", buyers*buyers))
	begin := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	answers := make([]*response, buyers)
	s.heldUp(1, func(int) error { // the first holds the others up
		atOnce(t, buyers, func(i int) (err error) {
			answers[i], err = s.try("POST", "/store/orders", object{"petId": s.pet, "quantity": i + 1, "shipDate": begin.AddDate(0, 0, i)})
			return err
		})
		return nil
	})
	seen := map[int64]bool{}
	for i, answer := range answers {
		got := decode[order](answer.want(201))
		kept := decode[order](s.get(answer.header.Get("Location")).want(200))
		if diff := cmp.Diff(got, kept); diff != "" || seen[got.ID] {
			t.Errorf("buyer %d: answered -, kept +\n%s", i, diff)
		}
		if got.Quantity != int64(i+1) || got.ShipDate == nil || !got.ShipDate.Equal(begin.AddDate(0, 0, i)) {
			t.Errorf("buyer %d got %+v", i, got)
		}
		seen[got.ID] = true
	}
	if left := s.inventory(s.pet).Quantity; left != buyers*buyers-buyers*(buyers+1)/2 {
		t.Errorf("%d units are left", left)
	}
}

// Many reads of pets at once, of some that are not there: each gets its own.
func TestEachReadOfACrowdIsItsOwn(t *testing.T) {
	t.Parallel()
	const pets, readers = 10, 60
	p := start(t)
	ids := make([]int64, pets)
	for i := range ids {
		ids[i] = p.newPet(fmt.Sprint("Pet ", i), 0)
	}
	atOnce(t, readers, func(i int) error {
		for j := range 20 {
			n := (i*7 + j) % (pets + 1)
			path, want := fmt.Sprintf("/pets/%d", ids[n%pets]), "200"
			if n == pets {
				path, want = "/pets/999999", "404 pet_not_found"
			}
			answer, err := p.try("GET", path, nil)
			if err != nil || answer.brief() != want {
				return fmt.Errorf("%s: %v: %w", path, answer, err)
			}
			if answer.status == 200 && decode[pet](answer).Name != fmt.Sprint("Pet ", n) {
				return fmt.Errorf("%s: %s", path, answer.body)
			}
		}
		return nil
	})
}

// Many reads of lists at once, of two accounts: each gets the page that it asked
// for, and its own account's messages.
func TestEachPageOfACrowdIsItsOwn(t *testing.T) {
	t.Parallel()
	const readers, rounds = 60, 10
	p := start(t)
	for i := range 5 {
		p.newPet(fmt.Sprint("Pet ", i), int64(i))
	}
	accounts := []*petstore{p.as(p.newKey("one", auth.Write)), p.as(p.newKey("two", auth.Write))}
	for i, account := range accounts {
		account.post("/messages", object{"message": fmt.Sprint("of account ", i)}).want(202)
	}
	targets := []string{"/messages", "/messages?limit=1", "/pets?limit=2", "/pets?limit=2&sort=-id", "/pets?sort=-id&limit=2", "/store/inventory?maxQuantity=1", "/categories", "/store/orders"}
	type question struct {
		account         int
		target, counted string
	}
	alone := map[question]*response{}
	for account := range accounts {
		for _, target := range targets {
			for _, counted := range []string{"", "count=exact"} {
				alone[question{account, target, counted}] = accounts[account].do("GET", target, nil, "Prefer", counted).want(200)
			}
		}
	}
	atOnce(t, readers, func(i int) error {
		for j := range rounds {
			q := question{i % 2, targets[(i/2+j)%len(targets)], []string{"", "count=exact"}[(i/8+j)%2]}
			answer, err := accounts[q.account].try("GET", q.target, nil, "Prefer", q.counted)
			if err != nil {
				return err
			}
			want := alone[q]
			if !bytes.Equal(answer.body, want.body) || answer.header.Get("Link") != want.header.Get("Link") ||
				answer.header.Get("X-Total-Count") != want.header.Get("X-Total-Count") {
				return fmt.Errorf("%v: %v %s, want %v %s", q, answer.header, answer.body, want.header, want.body)
			}
		}
		return nil
	})
}
