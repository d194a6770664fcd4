package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
)

// pairs are clients that write to one instance, and then read at the other one with the
// consistency token of the write. A read is stale if it does not show that write.
type pairs struct {
	ledger // of all requests

	instances [2]*client
	clients   []*pairClient

	done, pages atomic.Int64 // pairs, and responses that were read in them
}

// pairClient is a client with pets of its own: one that it changes, and one that it
// orders.
type pairClient struct {
	*pairs
	pet, ordered int
	number       int // counts the pairs
	version      int // of the last write to the pet
	shown        int // the version that every read with the token must show
	token        string
}

// newPairs returns clients for the pets from 2 on.
func newPairs(instances [2]*client, clients int) *pairs {
	p := &pairs{instances: instances}
	for number := range clients {
		p.clients = append(p.clients, &pairClient{pairs: p, pet: 2 + number, ordered: 2 + clients + number, number: number})
	}
	return p
}

// run has the clients make pairs until they have made that many in total. It returns the
// first error, such as a stale read.
func (p *pairs) run(ctx context.Context, count int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	until := p.done.Load() + int64(count)
	var group sync.WaitGroup
	for _, c := range p.clients {
		group.Go(func() {
			for p.done.Load() < until && ctx.Err() == nil {
				if err := c.pair(ctx); err != nil {
					cancel(err) // the first one counts
				}
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}

// pairKinds are the kinds of pairs. Each client makes them in turn.
var pairKinds = []func(*pairClient, context.Context) error{
	(*pairClient).rename, (*pairClient).renameInList, (*pairClient).restock,
	(*pairClient).place, (*pairClient).placeInList, (*pairClient).cancel, (*pairClient).category,
}

// pair writes and reads once. First, every tenth time, it reads with the token of the last
// rename, which may be from before a failover.
func (c *pairClient) pair(ctx context.Context) error {
	c.number++
	if c.number%10 == 0 && c.token != "" {
		if err := c.readPet(ctx, c.token, c.shown); err != nil {
			return err
		}
	}
	return pairKinds[c.number%len(pairKinds)](c, ctx)
}

// rename changes the name of the pet and reads the pet.
func (c *pairClient) rename(ctx context.Context) error {
	token := c.newName(ctx)
	if token == "" {
		return nil
	}
	return c.finish(c.readPet(ctx, token, c.version))
}

// renameInList changes the name of the pet and finds it in a list of several pages. Only
// the request for the first page has the token: the cursors must keep the promise.
func (c *pairClient) renameInList(ctx context.Context) error {
	token := c.newName(ctx)
	if token == "" {
		return nil
	}
	prefer := "consistency=" + token
	for target := "/pets?sort=id&limit=10"; target != ""; prefer = "consistency=eventual" {
		resp, err := c.read(ctx, target, prefer)
		if err != nil {
			return err
		}
		var page []listedPet
		if err := errors.Join(resp.check(http.StatusOK), resp.decode(&page)); err != nil {
			return err
		}
		for _, pet := range page {
			if pet.ID == int64(c.pet) {
				return c.finish(c.checkName(resp, pet.Name, c.version))
			}
		}
		target = resp.next()
	}
	return fmt.Errorf("the list does not have pet %d", c.pet)
}

// restock sets the quantity of the pet and reads it.
func (c *pairClient) restock(ctx context.Context) error {
	c.version++
	target := fmt.Sprint("/store/inventory/", c.pet)
	written := c.write(ctx, http.StatusOK, "PUT", target, fmt.Sprintf(`{"quantity": %d}`, c.version))
	if written == nil {
		return nil
	}
	resp, err := c.readAfter(ctx, *written, http.StatusOK, target)
	if err != nil {
		return err
	}
	var item stockItem
	if err := resp.decode(&item); err != nil {
		return err
	}
	if item.Quantity < c.version {
		return staleError(resp, fmt.Sprintf("quantity %d", c.version))
	}
	return c.finish(nil)
}

// place places an order and reads it.
func (c *pairClient) place(ctx context.Context) error {
	written, id, err := c.create(ctx, "/store/orders", fmt.Sprintf(`{"petId": %d}`, c.ordered))
	if written == nil || err != nil {
		return err
	}
	_, err = c.readAfter(ctx, *written, http.StatusOK, fmt.Sprint("/store/orders/", id))
	return c.finish(err)
}

// placeInList places an order and finds it in a list.
func (c *pairClient) placeInList(ctx context.Context) error {
	written, id, err := c.create(ctx, "/store/orders", fmt.Sprintf(`{"petId": %d}`, c.ordered))
	if written == nil || err != nil {
		return err
	}
	resp, err := c.readAfter(ctx, *written, http.StatusOK, fmt.Sprintf("/store/orders?petId=%d&sort=-id&limit=1", c.ordered))
	if err != nil {
		return err
	}
	var latest []order
	if err := resp.decode(&latest); err != nil {
		return err
	}
	if len(latest) == 0 || latest[0].ID < id {
		return staleError(resp, fmt.Sprintf("order %d", id))
	}
	return c.finish(nil)
}

// cancel places an order, cancels it, and reads that it is gone.
func (c *pairClient) cancel(ctx context.Context) error {
	written, id, err := c.create(ctx, "/store/orders", fmt.Sprintf(`{"petId": %d}`, c.ordered))
	if written == nil || err != nil {
		return err
	}
	target := fmt.Sprint("/store/orders/", id)
	if written = c.write(ctx, http.StatusNoContent, "DELETE", target, ""); written == nil {
		return nil
	}
	_, err = c.readAfter(ctx, *written, http.StatusNotFound, target)
	return c.finish(err)
}

// category creates a category and reads it.
func (c *pairClient) category(ctx context.Context) error {
	written, id, err := c.create(ctx, "/categories", fmt.Sprintf(`{"name": "category %d of client %d"}`, c.number, c.pet))
	if written == nil || err != nil {
		return err
	}
	_, err = c.readAfter(ctx, *written, http.StatusOK, fmt.Sprint("/categories/", id))
	return c.finish(err)
}

// finish counts a pair unless it failed.
func (c *pairClient) finish(err error) error {
	if err == nil {
		c.done.Add(1)
	}
	return err
}

// newName renames the pet to the next version and returns the token, or "" if the write
// was not acknowledged.
func (c *pairClient) newName(ctx context.Context) (token string) {
	c.version++
	written := c.write(ctx, http.StatusOK, "PATCH", fmt.Sprint("/pets/", c.pet), fmt.Sprintf(`{"name": "version %d"}`, c.version))
	if written == nil {
		return ""
	}
	c.token, c.shown = written.token(), c.version
	return c.token
}

// readPet reads the pet, which must show a version or a later one.
func (c *pairClient) readPet(ctx context.Context, token string, version int) error {
	resp, err := c.read(ctx, fmt.Sprint("/pets/", c.pet), "consistency="+token)
	if err != nil {
		return err
	}
	var pet listedPet
	if err := errors.Join(resp.check(http.StatusOK), resp.decode(&pet)); err != nil {
		return err
	}
	return c.checkName(resp, pet.Name, version)
}

func (c *pairClient) checkName(resp response, name string, version int) error {
	var got int
	if _, err := fmt.Sscanf(name, "version %d", &got); err != nil || got < version {
		return staleError(resp, fmt.Sprintf("version %d of pet %d", version, c.pet))
	}
	return nil
}

// create creates something and returns its id. The response is nil if the write was not
// acknowledged.
func (c *pairClient) create(ctx context.Context, target, body string) (written *response, id int64, err error) {
	if written = c.write(ctx, http.StatusCreated, "POST", target, body); written == nil {
		return nil, 0, nil
	}
	var created order
	err = written.decode(&created)
	return written, created.ID, err
}

// write sends a write to an instance. It returns nil if the write was not acknowledged.
func (c *pairClient) write(ctx context.Context, status int, method, target, body string) *response {
	resp, err := c.instances[c.number%2].do(ctx, method, target, body)
	c.record(resp, err)
	if err != nil || resp.status != status {
		sleep(ctx, loadPause)
		return nil
	}
	return &resp
}

// readAfter reads with the token of a write. Another status than that wanted is stale.
func (c *pairClient) readAfter(ctx context.Context, written response, status int, target string) (response, error) {
	resp, err := c.read(ctx, target, "consistency="+written.token())
	if err == nil && resp.status != status {
		err = staleError(resp, fmt.Sprint("status ", status))
	}
	return resp, err
}

// read reads at another instance than the write, three times of four. It repeats
// the read while the service is unavailable.
func (c *pairClient) read(ctx context.Context, target, prefer string) (response, error) {
	if prefer == "consistency=" {
		return response{}, errors.New("a successful write has no Petstore-Consistency header")
	}
	instance := c.number + 1
	if c.number%4 == 0 {
		instance = c.number
	}
	for {
		resp, err := c.instances[instance%2].do(ctx, "GET", target, "", "Prefer", prefer)
		if ctx.Err() != nil {
			return resp, context.Cause(ctx)
		}
		c.record(resp, err)
		if err != nil || resp.status == http.StatusServiceUnavailable {
			sleep(ctx, loadPause)
			continue
		}
		c.pages.Add(1)
		return resp, nil
	}
}

// token returns the consistency token of a write.
func (resp response) token() string { return resp.header.Get("Petstore-Consistency") }

// next returns the target of the next page, or "" after the last page.
func (resp response) next() string {
	if match := nextLink.FindStringSubmatch(resp.header.Get("Link")); match != nil {
		return match[1]
	}
	return ""
}

// staleError says what a read with a token does not show.
func staleError(resp response, wanted string) error {
	return fmt.Errorf("stale read: %s, want %s", resp, wanted)
}
