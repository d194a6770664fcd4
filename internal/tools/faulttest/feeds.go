package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"petstore/internal/tools/must"
)

// feedReplay is row 37: many clients change one store, and two clients each of many others,
// in every way at two instances. One instance and PostgreSQL are killed meanwhile. The events
// have no gaps, and each acknowledged order has one event. A copy of a store to which a client
// applies all events equals the lists.
func feedReplay(ctx context.Context, f *fixture) string {
	const clients, kills, pause = 12, 3, 500 * time.Millisecond
	s := f.open(ctx)
	instances := s.startSecond(ctx)
	feeds := make([]*followedFeed, len(s.keys))
	for store := range feeds {
		feeds[store] = instances[1].store(store).follow(ctx, instances[0].store(store), instances[1].store(store))
	}
	shoppers := s.newShoppers(spread(clients, 2*smallStores))
	w := startShoppers(ctx, shoppers, func(number int, do func(*client) (response, error)) (response, error) {
		return do(instances[number%2].client)
	})
	s.killInTurn(ctx, kills, pause, s.api)
	l := w.finish()
	l.wantOnly(noResponse, http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent,
		http.StatusNotFound, http.StatusConflict, http.StatusServiceUnavailable)
	events := 0
	for store, feed := range feeds {
		events += feed.check(ctx, ordersOf(shoppers, s.keys[store]))
	}
	return fmt.Sprintf("%d events of %d stores without a gap, the copies equal the stores: %s; %s", events, len(feeds), l.summary(), s.checkStores(ctx))
}

// followedFeed is the feed of a store that a client of pages and a client of a stream follow.
type followedFeed struct {
	reader      *client
	before      storeCopy
	subscribers []*subscriber
	end         func()
}

// follow starts to follow the feed of a store at some instances.
func (c *client) follow(ctx context.Context, instances ...*client) *followedFeed {
	f := &followedFeed{reader: c}
	last := c.newest(ctx)
	f.before = c.readStore(ctx)
	f.subscribers = []*subscriber{{instances: instances}, {instances: instances, streams: true}}
	f.end = subscribe(ctx, last, f.subscribers...)
	return f
}

// check fails the row unless all subscribers have all events without a gap. Their copies of
// the store must equal the lists, and each acknowledged order must have one event. It returns
// the number of events.
func (f *followedFeed) check(ctx context.Context, acknowledged []string) int {
	f.reader.awaitSubscribers(ctx, 10*time.Second, f.subscribers...)
	f.end()
	f.reader.compareStore(ctx, f.before, acknowledged, f.subscribers)
	return len(f.subscribers[0].events)
}

// storeCopy has the representations of a store by list and id.
type storeCopy map[string]map[string]string

// storeLists are the lists of a store by the field of their items in the data of an event.
var storeLists = map[string]string{
	"pet": "/pets", "inventory": "/store/inventory", "order": "/store/orders", "category": "/categories", "message": "/messages",
}

// readStore reads all lists.
func (c *client) readStore(ctx context.Context) storeCopy {
	all := storeCopy{}
	for field, list := range storeLists {
		all[list] = map[string]string{}
		for target := list + "?limit=200"; target != ""; {
			resp := c.want(ctx, http.StatusOK, "GET", target, "")
			for _, item := range decode[[]json.RawMessage](resp) {
				all[list][itemID(field, item)] = string(item)
			}
			target = resp.next()
		}
	}
	return all
}

// itemID returns the id of an item.
func itemID(field string, item []byte) string {
	var named struct{ ID, PetID json.RawMessage }
	if json.Unmarshal(item, &named) != nil {
		return ""
	}
	if field == "inventory" {
		return string(named.PetID)
	}
	return string(named.ID)
}

// apply applies an event.
func (s storeCopy) apply(e feedEvent) {
	for field, item := range e.Data {
		list := s[storeLists[field]]
		if strings.HasSuffix(e.Type, ".deleted") || e.Type == "order.cancelled" && field == "order" {
			delete(list, itemID(field, item))
		} else {
			list[itemID(field, item)] = string(item)
		}
	}
}

// compareStore applies the events of each subscriber to a copy of the store. It fails the row
// unless that equals the lists, and each acknowledged order has one event.
func (c *client) compareStore(ctx context.Context, before storeCopy, acknowledged []string, subscribers []*subscriber) {
	now := c.readStore(ctx)
	for _, f := range subscribers {
		after, placed := storeCopy{}, map[string]int{}
		for list, items := range before {
			after[list] = maps.Clone(items)
		}
		for _, e := range f.events {
			if after.apply(e); e.Type == "order.placed" {
				placed[e.Subject]++
			}
		}
		for list, items := range now {
			diff := cmp.Diff(items, after[list])
			must.Hold(diff == "", "%s has %d items, the copy made of %d events %d, or they differ (-list +copy):\n%s",
				list, len(items), len(f.events), len(after[list]), diff)
		}
		for _, path := range acknowledged {
			must.Hold(placed[path] == 1, "the acknowledged order %s has %d events", path, placed[path])
		}
	}
}

// shopper is a client that uses a store in every way.
type shopper struct {
	key    string
	pets   []int64
	plenty bool      // it leaves so many units in stock that all its requests succeed
	placed []string  // the paths of all its orders
	later  []request // with its orders and pets
}

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
				return c.withKey(all[number].key).send(ctx, r)
			})
		})
	})
}

// shop sends a random request.
func (s *shopper) shop(send func(request) (response, error)) (response, error) {
	did := s.draw()
	resp, err := send(did)
	if err == nil && resp.status == http.StatusCreated && did.target != "/categories" {
		next := newRequest("DELETE", resp.location(), "")
		if did.target == "/store/orders" {
			s.placed = append(s.placed, resp.location())
			if rand.N(2) == 0 {
				next = newRequest("PATCH", resp.location(), `{"complete": true}`)
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
		return newRequest("POST", "/categories", fmt.Sprintf(`{"name": %q}`, name))
	case 3:
		return newRequest("POST", "/pets", fmt.Sprintf(`{"name": %q, "categoryId": 1}`, name))
	case 4:
		return newRequest("PATCH", fmt.Sprintf("/pets/%d", pet), fmt.Sprintf(`{"name": %q}`, name))
	case 5:
		return newRequest("PUT", fmt.Sprintf("/store/inventory/%d", pet), fmt.Sprintf(`{"quantity": %d}`, units))
	case 6:
		return newRequest("POST", "/messages", fmt.Sprintf(`{"message": %q}`, name))
	case 7:
		return newRequest("PATCH", "/categories/1", fmt.Sprintf(`{"description": %q}`, name))
	case 8:
		if !s.plenty {
			status := []string{"available", "pending", "sold"}[rand.N(3)]
			return newRequest("PATCH", fmt.Sprintf("/pets/%d", pet), fmt.Sprintf(`{"status": %q}`, status))
		}
		return newRequest("GET", fmt.Sprintf("/store/inventory/%d", pet), "")
	case 9:
		list := []string{"/pets?status=available", "/store/orders?sort=id"}[rand.N(2)]
		return newRequest("GET", list+"&limit=20", "")
	}
	return newRequest("POST", "/store/orders", fmt.Sprintf(`{"petId": %d}`, pet))
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
