package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"petstore/internal/tools/must"
)

// payerStreams is row 43: 100 keys and 100 sandboxes of one account open 600 streams and
// send 600 requests that wait. The account gets a quarter of all places for each. Another
// account still opens streams and waits.
func payerStreams(ctx context.Context, f *fixture) string {
	const keys, each, share, others = 100, 3, 200, 10
	const refused = 2*keys*each - share
	s := f.open(ctx)
	all := s.addKeys(ctx, "hostile", keys, keys)
	normal := f.newKey(ctx, s.db, "normal", "read")
	ctx, stop := context.WithCancel(ctx)
	streams := &eventClients{base: s.base, accept: "text/event-stream", refused: refused}
	polls := &eventClients{base: s.base, accept: "application/json", refused: refused}
	defer streams.group.Wait()
	defer polls.group.Wait()
	defer stop()
	for _, key := range all {
		for range each {
			streams.open(ctx, key, 30)
			polls.open(ctx, key, 30)
		}
	}
	took := must.Await(ctx, 20*time.Second, func() {
		streams.want(share)
		polls.want(0)
	})
	for range others {
		streams.open(ctx, normal, 30)
		polls.open(ctx, normal, 1)
	}
	must.Explain("another account", func() {
		must.Await(ctx, 5*time.Second, func() {
			streams.want(share + others)
			polls.want(others)
		})
	})
	return fmt.Sprintf("of %d streams and %d long polls, one account had %d of each after %s; another account opened %d and waited %d times",
		2*keys*each, 2*keys*each, share, round(took), others, others)
}

// eventClients has requests for the events of accounts, and their responses.
type eventClients struct {
	ledger

	base, accept string
	refused      int // the number of 429 that want expects
	group        sync.WaitGroup
}

// open opens a stream, or sends a request that waits for this number of seconds.
func (c *eventClients) open(ctx context.Context, key string, seconds int) {
	request := must.Get(http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/events?after=latest", http.NoBody))
	request.Header.Set("Authorization", "Bearer "+key)
	request.Header.Set("Accept", c.accept)
	request.Header.Set("Prefer", fmt.Sprintf("wait=%d", seconds))
	c.group.Go(func() {
		received, err := transport.RoundTrip(request)
		switch {
		case ctx.Err() != nil: // the row ends
		case err != nil:
			c.record(response{}, err)
		default:
			c.record(response{status: received.StatusCode}, nil)
		}
		if err == nil {
			_, _ = io.Copy(io.Discard, received.Body)
			received.Body.Close()
		}
	})
}

// want fails the row unless this many responses are 200, the expected number 429, and no others.
func (c *eventClients) want(opened int) {
	c.wantOnly(http.StatusOK, http.StatusTooManyRequests)
	must.Hold(c.count(http.StatusOK) == opened && c.count(http.StatusTooManyRequests) == c.refused, "%s: %d × 200 and %d × 429, want %d and %d",
		c.accept, c.count(http.StatusOK), c.count(http.StatusTooManyRequests), opened, c.refused)
}

// payerWork is row 44: under the default limits, an account lets its sandboxes do whatever
// is heavy. Twelve replay without end, 24 are reset 40 times at once, and each of their 480
// webhooks takes 14.5 s. Its own keys follow a feed of 300,000 events for a type that it does
// not have. Another account gets no error and its webhooks in time, and is slower only as
// [wantFair] allows. The database does not wait for its disk: a slow fsync delays all accounts,
// whatever one of them does.
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
	return fmt.Sprintf("another account: no error, p99 %s (%s before), webhooks: %s; the heavy account: %s",
		round(during), round(before), webhooks, l.summary())
}

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
	h.db.exec(ctx, fmt.Sprintf(`
		UPDATE accounts
		SET name = 'heavy sandbox ' || id
		WHERE parent_id IS NOT NULL;

		INSERT INTO webhooks (account_id, id, url, types, secret, after_sequence, unsettled_after)
		SELECT s.account_id, 'wh_' || md5(random()::text), '%s', '{*}', '\x00'::bytea || 'a key of at least 24 bytes'::bytea, s.last_sequence, NULL
		FROM accounts AS a
		JOIN account_state AS s ON s.account_id = a.id, generate_series(1, %d)
		WHERE a.parent_id IS NOT NULL`, h.listenSlow(ctx, wait), hooks))
	var names string
	h.db.read(ctx, "SELECT string_agg(name, ''', ''') FROM accounts WHERE parent_id IS NOT NULL", nil, &names)
	h.db.addEvents(ctx, events, tenant{name: "heavy"})
	h.db.addEvents(ctx, due, tenant{name: names})
}

// work starts all kinds of work at once.
func (h *heavyPayer) work(ctx context.Context) *load {
	const replaying, resets, pause = 12, 40, 20 * time.Millisecond
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
