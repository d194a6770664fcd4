package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
)

// shopper is a client that uses a store in every way.
type shopper struct {
	key    string
	pets   []int64
	plenty bool      // it leaves so many units in stock that all its requests succeed
	placed []string  // the paths of all its orders
	later  []request // what it will do with its orders and pets
}

// request is a request without its headers.
type request struct{ method, target, body string }

// newShoppers returns a shopper for each of these stores. They share few pets.
func (s *suite) newShoppers(stores []int) (all []*shopper) {
	for _, store := range stores {
		all = append(all, &shopper{key: s.keys[store], pets: []int64{1, 2, 3, 4, 5, 6, 7, 8}})
	}
	return all
}

// startShoppers starts shoppers. send sends a request of one of them to an instance.
func startShoppers(ctx context.Context, all []*shopper, send func(number int, do func(*client) (response, error)) (response, error)) *load {
	return startLoad(ctx, len(all), func(number int) (response, error) {
		return all[number].shop(func(r request) (response, error) {
			return send(number, func(c *client) (response, error) {
				return c.withKey(all[number].key).do(ctx, r.method, r.target, r.body)
			})
		})
	})
}

// shop sends a random request.
func (s *shopper) shop(send func(request) (response, error)) (response, error) {
	did := s.draw()
	resp, err := send(did)
	if err == nil && resp.status == http.StatusCreated && did.target != "/categories" {
		next := request{"DELETE", resp.location(), ""}
		if did.target == "/store/orders" {
			s.placed = append(s.placed, resp.location())
			if rand.N(2) == 0 {
				next = request{"PATCH", resp.location(), `{"complete": true}`}
			}
		}
		s.later = append(s.later, next)
	}
	return resp, err
}

// draw returns a random request. A third of them are orders.
func (s *shopper) draw() request {
	const fewUnits = 5
	pet, name, units := s.pets[rand.N(len(s.pets))], fmt.Sprintf("%016x", rand.Uint64()), rand.N(fewUnits)
	if s.plenty {
		units = stockOfPet - units
	}
	kind := rand.N(15)
	if kind < 2 && len(s.later) > 0 {
		next := s.later[0]
		s.later = s.later[1:]
		return next
	}
	switch kind {
	case 2:
		return request{"POST", "/categories", fmt.Sprintf(`{"name": %q}`, name)}
	case 3:
		return request{"POST", "/pets", fmt.Sprintf(`{"name": %q, "categoryId": 1}`, name)}
	case 4:
		return request{"PATCH", fmt.Sprintf("/pets/%d", pet), fmt.Sprintf(`{"name": %q}`, name)}
	case 5:
		return request{"PUT", fmt.Sprintf("/store/inventory/%d", pet), fmt.Sprintf(`{"quantity": %d}`, units)}
	case 6:
		return request{"POST", "/messages", fmt.Sprintf(`{"message": %q}`, name)}
	case 7:
		return request{"PATCH", "/categories/1", fmt.Sprintf(`{"description": %q}`, name)}
	case 8:
		if !s.plenty {
			status := []string{"available", "pending", "sold"}[rand.N(3)]
			return request{"PATCH", fmt.Sprintf("/pets/%d", pet), fmt.Sprintf(`{"status": %q}`, status)}
		}
		return request{"GET", fmt.Sprintf("/store/inventory/%d", pet), ""}
	case 9:
		list := []string{"/pets?status=available", "/store/orders?sort=id"}[rand.N(2)]
		return request{"GET", list + "&limit=20", ""}
	}
	return request{"POST", "/store/orders", fmt.Sprintf(`{"petId": %d}`, pet)}
}

// ordersOf returns the paths of the orders that shoppers with a key have placed.
func ordersOf(all []*shopper, key string) (paths []string) {
	for _, s := range all {
		if s.key == key {
			paths = append(paths, s.placed...)
		}
	}
	return paths
}
