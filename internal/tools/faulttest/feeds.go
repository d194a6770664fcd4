package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"
)

// feedReplay is row 37: clients change a store in every way at two instances. One instance
// and PostgreSQL are killed meanwhile. The events have no gaps, and each acknowledged order
// has one event. A copy of the store to which a client applies all events equals the lists.
func feedReplay(ctx context.Context, f *fixture) (string, error) {
	const clients, kills, pause = 12, 3, 500 * time.Millisecond
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	other, err := s.startSecond(ctx)
	if err != nil {
		return "", err
	}
	instances := []*client{s.client, other}
	last, err := other.newest(ctx)
	if err != nil {
		return "", err
	}
	store, err := other.readStore(ctx)
	if err != nil {
		return "", err
	}
	following, stop := context.WithCancel(ctx)
	defer stop()
	subscribers := []*subscriber{{instances: instances}, {instances: instances, streams: true}}
	wait := subscribe(following, last, subscribers...)
	changes := &storeChanges{instances: instances}
	l := startLoad(ctx, clients, func(number int) (response, error) { return changes.make(ctx, number) })
	err = s.killBoth(ctx, kills, pause)
	ledger := l.finish()
	if err == nil {
		err = other.awaitSubscribers(ctx, 10*time.Second, subscribers...)
	}
	stop()
	err = errors.Join(err, wait())
	if err == nil {
		err = other.compareStore(ctx, store, changes.placed, subscribers)
	}
	return fmt.Sprintf("%d events without a gap, the copy equals the store: %s", len(subscribers[0].events), ledger.summary()),
		errors.Join(err, ledger.only(noResponse, http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent,
			http.StatusNotFound, http.StatusConflict, http.StatusServiceUnavailable))
}

// killBoth kills the first instance several times, and PostgreSQL once, and restarts them.
func (s *deployment) killBoth(ctx context.Context, kills int, pause time.Duration) error {
	for kill := range kills {
		sleep(ctx, pause)
		s.api.kill()
		if kill == kills/2 {
			if err := s.db.signal(syscall.SIGKILL); err != nil {
				return err
			}
			if err := s.db.start(ctx); err != nil {
				return err
			}
		}
		if err := s.api.start(); err != nil {
			return err
		}
		if _, err := s.api.awaitReady(ctx, 5*time.Second); err != nil {
			return err
		}
	}
	sleep(ctx, pause)
	return nil
}

// storeChanges are random changes to the store of a template.
type storeChanges struct {
	instances []*client

	mu     sync.Mutex
	placed []string // the paths of acknowledged orders
}

// make makes a change at the instance of a client. It returns the response to its first
// request.
func (s *storeChanges) make(ctx context.Context, number int) (response, error) {
	const fewPets, fewUnits = 8, 5
	c, pet, name := s.instances[number%len(s.instances)], 1+rand.N(fewPets), fmt.Sprintf("%016x", rand.Uint64())
	switch rand.N(9) {
	case 0:
		return c.do(ctx, "POST", "/categories", fmt.Sprintf(`{"name": %q}`, name))
	case 1:
		made, err := c.do(ctx, "POST", "/pets", fmt.Sprintf(`{"name": %q, "categoryId": 1}`, name))
		if err == nil && made.status == http.StatusCreated {
			_, _ = c.do(ctx, "DELETE", made.header.Get("Location"), "") // the instance may be killed meanwhile
		}
		return made, err
	case 2:
		return c.do(ctx, "PATCH", fmt.Sprintf("/pets/%d", pet), fmt.Sprintf(`{"name": %q}`, name))
	case 3:
		status := []string{"available", "pending", "sold"}[rand.N(3)]
		return c.do(ctx, "PATCH", fmt.Sprintf("/pets/%d", pet), fmt.Sprintf(`{"status": %q}`, status))
	case 4:
		return c.do(ctx, "PUT", fmt.Sprintf("/store/inventory/%d", pet), fmt.Sprintf(`{"quantity": %d}`, rand.N(fewUnits)))
	case 5:
		return c.do(ctx, "POST", "/messages", fmt.Sprintf(`{"message": %q}`, name))
	case 6:
		return c.do(ctx, "PATCH", "/categories/1", fmt.Sprintf(`{"description": %q}`, name))
	}
	return s.order(ctx, c, pet)
}

// order orders a pet, and completes or cancels some orders.
func (s *storeChanges) order(ctx context.Context, c *client, pet int) (response, error) {
	placed, err := c.order(ctx, pet)
	if err != nil || placed.status != http.StatusCreated {
		return placed, err
	}
	path := placed.header.Get("Location")
	s.mu.Lock()
	s.placed = append(s.placed, path)
	s.mu.Unlock()
	switch rand.N(3) { // the instance may be killed meanwhile
	case 0:
		_, _ = c.do(ctx, "DELETE", path, "")
	case 1:
		_, _ = c.do(ctx, "PATCH", path, `{"complete": true}`)
	}
	return placed, nil
}

// storeCopy has the representations of a store by list and id.
type storeCopy map[string]map[string]string

// storeLists are the lists of a store by the field of their items in the data of an event.
var storeLists = map[string]string{
	"pet": "/pets", "inventory": "/store/inventory", "order": "/store/orders", "category": "/categories", "message": "/messages",
}

// readStore reads all lists.
func (c *client) readStore(ctx context.Context) (storeCopy, error) {
	all := storeCopy{}
	for field, list := range storeLists {
		all[list] = map[string]string{}
		for target := list + "?limit=200"; target != ""; {
			resp, err := c.want(ctx, http.StatusOK, "GET", target, "")
			if err != nil {
				return nil, err
			}
			var items []json.RawMessage
			if err := resp.decode(&items); err != nil {
				return nil, err
			}
			for _, item := range items {
				all[list][itemID(field, item)] = string(item)
			}
			target = ""
			if next := nextLink.FindStringSubmatch(resp.header.Get("Link")); next != nil {
				target = next[1]
			}
		}
	}
	return all, nil
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

// compareStore applies the events of each subscriber to a copy of the store. It returns an
// error unless that equals the lists, and each acknowledged order has one event.
func (c *client) compareStore(ctx context.Context, before storeCopy, acknowledged []string, subscribers []*subscriber) error {
	now, err := c.readStore(ctx)
	if err != nil {
		return err
	}
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
			if !maps.Equal(items, after[list]) {
				return fmt.Errorf("%s has %d items, the copy made of %d events %d, or they differ:\n%s", list, len(items), len(f.events), len(after[list]), firstDifference(items, after[list]))
			}
		}
		for _, path := range acknowledged {
			if count := placed[path]; count != 1 {
				return fmt.Errorf("the acknowledged order %s has %d events", path, count)
			}
		}
	}
	return nil
}

// firstDifference describes an item that differs.
func firstDifference(list, made map[string]string) string {
	for id, item := range list {
		if made[id] != item {
			return fmt.Sprintf("%s, the copy has %q", item, made[id])
		}
	}
	for id, item := range made {
		if _, found := list[id]; !found {
			return fmt.Sprintf("only the copy has %s", item)
		}
	}
	return ""
}
