package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"petstore/internal/tools/must"
)

// payerWork is row 44: under the default limits, an account lets its sandboxes do whatever
// is heavy. Twelve replay without end, 24 are reset 40 times at once, and each of their 480
// webhooks takes 14.5 s. Its own keys follow a feed of 300,000 events for a type that it does
// not have, and read 120 large pages at a time. Another account gets no error and its webhooks in
// time, and is slower only as [wantFair] allows. The database does not wait for its disk: a slow
// fsync delays all accounts, whatever one of them does.
func payerWork(ctx context.Context, f *fixture) string {
	const sandboxes, attacked = 24, 10 * time.Second
	db := f.startDatabase(ctx, "", map[string]string{"fsync": "off"})
	s := f.openWith(ctx, db, db.url(), append(defaultLimits, allowLoopback)...)
	h := &heavyPayer{deployment: s}
	h.prepare(ctx, sandboxes)
	normal := s.newNormal(ctx)
	r := s.receive(ctx, nil)
	db.exec(ctx, "CHECKPOINT")
	before := normal.measure(ctx, idleTime)
	work := h.work(ctx)
	defer work.finish()
	var webhooks string
	during := wantFair(ctx, before, func() (during time.Duration) {
		webhooks = s.timeEvents(ctx, r, 500*time.Millisecond, 0, func() { during = normal.measure(ctx, attacked) })
		return during
	})
	l := work.finish()
	l.wantOnly(http.StatusOK, http.StatusAccepted, http.StatusNoContent, http.StatusConflict, http.StatusTooManyRequests)
	must.Hold(l.count(http.StatusAccepted) > 0 && l.count(http.StatusNoContent) > 0, "no replay or no reset succeeded: %s", l.summary())
	return fmt.Sprintf("another account: no error, p99 %s (%s before), webhooks: %s; the heavy account: %s",
		round(during), round(before), webhooks, l.summary())
}

// maxPage is the maximum number of items of a page.
const maxPage = 200

// heavyPayer is an account that lets its sandboxes do heavy work.
type heavyPayer struct {
	*deployment
	own, sandboxes []*client
}

// prepare creates keys and sandboxes, webhooks of the sandboxes that take 14.5 s, and events
// that are due at them.
func (h *heavyPayer) prepare(ctx context.Context, sandboxes int) {
	const hooks, due, events, wait = 20, 10, 300_000, 14500 * time.Millisecond
	for _, key := range h.addKeys(ctx, "heavy", keysOfAccount, 0) {
		h.own = append(h.own, h.withKey(key))
	}
	for i := range sandboxes { // each costs ten of the 100 requests of a key
		h.sandboxes = append(h.sandboxes, h.withKey(h.own[i%keysOfAccount].create(ctx, "/sandboxes", `{}`)))
	}
	h.db.exec(ctx, "UPDATE accounts SET name = 'heavy sandbox ' || id WHERE parent_id IS NOT NULL")
	var names []string
	h.db.read(ctx, "SELECT array_agg(name) FROM accounts WHERE parent_id IS NOT NULL", nil, &names)
	h.db.addWebhooks(ctx, h.listenSlow(ctx, wait), hooks, names...)
	h.db.addEvents(ctx, events, "heavy")
	h.db.addMessages(ctx, maxPage, "heavy")
	h.db.addEvents(ctx, due, names...)
}

// work starts all kinds of work at once.
func (h *heavyPayer) work(ctx context.Context) *load {
	const replaying, resets, pages, pause = 12, 40, 120, 20 * time.Millisecond
	work := newLoad(ctx)
	ctx = work.stopping
	for _, c := range h.sandboxes[:replaying] {
		path := ""
		work.repeat(0, pause, func() (response, error) {
			if path != "" {
				return c.do(ctx, "POST", path, "{}")
			}
			resp, err := c.do(ctx, "GET", "/webhooks", "")
			var all []struct{ ID string }
			if err == nil && json.Unmarshal(resp.body, &all) == nil && len(all) > 0 {
				path = "/webhooks/" + all[0].ID + "/replay"
			}
			return resp, err
		})
	}
	for i := range resets {
		work.repeat(0, time.Second, func() (response, error) {
			return h.sandboxes[i%len(h.sandboxes)].do(ctx, "POST", "/sandboxes/current/reset", "")
		})
	}
	for i := range pages {
		work.repeat(0, 5*time.Second, func() (response, error) {
			return h.own[i%len(h.own)].do(ctx, "GET", fmt.Sprintf("/messages?limit=%d", maxPage-i), "", "Accept-Encoding", "gzip")
		})
	}
	for _, c := range h.own {
		work.repeat(0, pause, func() (response, error) {
			return c.do(ctx, "GET", "/events?type=order.completed", "", "Prefer", "wait=5")
		})
	}
	return work
}

// addKeys creates keys of an account, and sandboxes of it. It returns the keys of both.
func (s *deployment) addKeys(ctx context.Context, account string, keys, sandboxes int) []string {
	all := []string{s.newKey(ctx, s.db, account, "admin")}
	creator := s.withKey(all[0])
	for range keys - 1 {
		all = append(all, creator.create(ctx, "/account/api-keys", `{"name": "one more", "scope": "admin"}`))
	}
	for range sandboxes {
		all = append(all, creator.create(ctx, "/sandboxes", `{"sample": "empty"}`))
	}
	return all
}

// create creates a resource with a secret, and returns that.
func (c *client) create(ctx context.Context, path, body string) (secret string) {
	made := decode[struct {
		Secret string
		APIKey struct{ Secret string }
	}](c.want(ctx, http.StatusCreated, "POST", path, body))
	return made.Secret + made.APIKey.Secret
}
