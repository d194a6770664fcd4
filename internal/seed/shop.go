package seed

import (
	"iter"
	"math/rand/v2"
	"time"

	"petstore/db"
	"petstore/internal/casefold"
)

// Pets and orders have separate random generators, so that each sequence can be
// generated alone and repeatedly with the same result.
const (
	petSeed   = 1
	orderSeed = 2
)

// Orders are placed between firstDay and today. Orders with a ship date before today
// are complete, except for about 2% of them.
var (
	firstDay = time.Date(2026, time.May, 1, 0, 0, 0, 0, time.UTC)
	today    = time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)
)

// pet is a row of pets and its row of inventory.
type pet struct {
	number     int // from 1
	categoryID int
	name       string
	status     string
	stock      int
	held       int
}

func (p pet) row(c *copier) db.SamplePetsParams {
	return db.SamplePetsParams{
		AccountID: c.accountID, ID: c.petID(p.number), CategoryID: int64(p.categoryID),
		Name: p.name, NameKey: casefold.Key(p.name), Status: p.status,
	}
}

func (p pet) inventoryRow(c *copier) db.SampleInventoryParams {
	return db.SampleInventoryParams{AccountID: c.accountID, PetID: c.petID(p.number), Quantity: int64(p.stock), Held: int64(p.held)}
}

// order is a row of orders. A nil shipDate means that none is planned.
type order struct {
	number   int // from 1
	pet      int // the number of the pet
	quantity int
	shipDate *time.Time
	complete bool
}

func (o order) row(c *copier) db.SampleOrdersParams {
	return db.SampleOrdersParams{
		AccountID: c.accountID, ID: c.orderID(o.number), PetID: c.petID(o.pet),
		Quantity: int64(o.quantity), ShipDate: o.shipDate, Complete: o.complete,
	}
}

// allOrders yields as many orders as pets, sorted by number and by time of placement.
func allOrders(pets int) iter.Seq[order] {
	return func(yield func(order) bool) {
		r := rand.New(rand.NewPCG(orderSeed, orderSeed)) //nolint:gosec // the same numbers each time
		for number := 1; number <= pets; number++ {
			if !yield(newOrder(r, number, pets)) {
				return
			}
		}
	}
}

func newOrder(r *rand.Rand, number, pets int) order {
	placed := firstDay.Add(today.Sub(firstDay) / time.Duration(pets) * time.Duration(number-1))
	// Parcels leave on a minute between 08:00 and 18:00, within six weeks.
	ships := placed.Truncate(24*time.Hour).AddDate(0, 0, 1+r.IntN(42)).
		Add(8*time.Hour + time.Duration(r.IntN(10*60))*time.Minute)
	late := r.IntN(50) == 0
	o := order{
		number:   number,
		pet:      1 + r.IntN(pets),
		quantity: pick(r, quantities[:]),
		complete: ships.Before(today) && !late,
	}
	switch number {
	case 1:
		o.pet, o.complete = min(2, pets), false
	case 2:
		o.complete = true
	}
	// Orders that are not planned yet, or that were picked up, have no ship date.
	if dated := 1 + r.IntN(10); dated <= 7 || o.complete && dated <= 9 {
		o.shipDate = &ships
	}
	return o
}

// heldByPet returns the units of open orders for each pet. The index is the number of
// the pet minus one.
func heldByPet(pets int) []int32 {
	held := make([]int32, pets)
	for o := range allOrders(pets) {
		if !o.complete {
			held[o.pet-1] += int32(o.quantity) //nolint:gosec // at most 10, see quantities
		}
	}
	return held
}

// allPets yields a pet for each element of held, sorted by number.
func allPets(held []int32) iter.Seq[pet] {
	return func(yield func(pet) bool) {
		r := rand.New(rand.NewPCG(petSeed, petSeed)) //nolint:gosec // the same numbers each time
		for i, units := range held {
			if !yield(newPet(r, i+1, int(units))) {
				return
			}
		}
	}
}

func newPet(r *rand.Rand, number, held int) pet {
	p := pet{number: number, categoryID: pickCategory(r), name: newName(r), held: held}
	// Most pets have few units, and few pets have many.
	spread := r.Float64()
	p.status, p.stock = "available", 1+int(spread*spread*spread*60)
	switch {
	case number == 1:
		p.categoryID, p.name, p.stock = 1, "Rex", 100
	case held > 0 && r.IntN(2) == 0:
		p.status, p.stock = "pending", 0
	case held == 0 && r.IntN(5) == 0:
		p.status, p.stock = "sold", 0
	}
	return p
}

// newName returns a realistic name. Names repeat, as they do among real pets, but a
// large shop has many distinct ones.
func newName(r *rand.Rand) string {
	switch n := r.IntN(100); {
	case n < 4:
		return pick(r, otherScripts[:])
	case n < 30:
		return pick(r, names[:])
	case n < 45:
		return pick(r, titles[:]) + " " + pick(r, names[:])
	case n < 65:
		return pick(r, names[:]) + " " + pick(r, epithets[:])
	case n < 90:
		return pick(r, names[:]) + " of " + pick(r, places[:])
	default:
		return pick(r, titles[:]) + " " + pick(r, names[:]) + " of " + pick(r, places[:])
	}
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// pickCategory returns a random category id, weighted by the shares of the categories.
func pickCategory(r *rand.Rand) int {
	n := r.IntN(100)
	for i, c := range categories {
		if n -= c.share; n < 0 {
			return i + 1
		}
	}
	return len(categories)
}
