package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// payerStreams is row 43: 100 keys and 100 sandboxes of one account open 600 streams and
// send 600 requests that wait. The account gets a quarter of all places for each. Another
// account still opens streams and waits.
func payerStreams(ctx context.Context, f *fixture) (string, error) {
	const keys, each, share, others = 100, 3, 200, 10
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	all, err := s.addKeys(ctx, "hostile", keys, keys)
	if err != nil {
		return "", err
	}
	normal, err := f.runCommand(ctx, s.db.url(), "key", "create", "--account", "normal", "--scope", "read")
	if err != nil {
		return "", err
	}
	ctx, stop := context.WithCancel(ctx)
	streams, polls := &eventClients{base: s.base, accept: "text/event-stream"}, &eventClients{base: s.base, accept: "application/json"}
	defer streams.group.Wait()
	defer polls.group.Wait()
	defer stop()
	for _, key := range all {
		for range each {
			streams.open(ctx, key, 30)
			polls.open(ctx, key, 30)
		}
	}
	streams.expected, polls.expected = 2*keys*each-share, 2*keys*each-share
	took, err := eventually(ctx, 20*time.Second, func() error { return errors.Join(streams.check(share), polls.check(0)) })
	if err != nil {
		return "", err
	}
	for range others {
		streams.open(ctx, strings.TrimSpace(normal), 30)
		polls.open(ctx, strings.TrimSpace(normal), 1)
	}
	if _, err := eventually(ctx, 5*time.Second, func() error { return errors.Join(streams.check(share+others), polls.check(others)) }); err != nil {
		return "", fmt.Errorf("another account: %w", err)
	}
	return fmt.Sprintf("of %d streams and %d long polls, one account had %d of each after %s; another account opened %d and waited %d times",
		2*keys*each, 2*keys*each, share, round(took), others, others), nil
}

// eventClients has requests for the events of accounts.
type eventClients struct {
	base, accept string
	expected     int // number of refused requests
	group        sync.WaitGroup

	mu              sync.Mutex
	opened, refused int
	failed          error
}

// open opens a stream, or sends a request that waits for this number of seconds.
func (f *eventClients) open(ctx context.Context, key string, seconds int) {
	f.group.Go(func() {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.base+"/events?after=latest", nil)
		if err != nil {
			f.add(0, err)
			return
		}
		request.Header.Set("Authorization", "Bearer "+key)
		request.Header.Set("Accept", f.accept)
		request.Header.Set("Prefer", fmt.Sprintf("wait=%d", seconds))
		received, err := transport.RoundTrip(request)
		switch {
		case ctx.Err() != nil: // the row ends
		case err != nil:
			f.add(0, err)
		default:
			f.add(received.StatusCode, nil)
		}
		if err == nil {
			_, _ = io.Copy(io.Discard, received.Body)
			received.Body.Close()
		}
	})
}

// add counts a response.
func (f *eventClients) add(status int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err != nil:
		f.failed = err
	case status == http.StatusOK:
		f.opened++
	case status == http.StatusTooManyRequests:
		f.refused++
	default:
		f.failed = fmt.Errorf("%s: status %d", f.accept, status)
	}
}

// check returns an error unless this many responses are 200, as many as expected 429, and no
// others.
func (f *eventClients) check(opened int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.opened != opened || f.refused != f.expected || f.failed != nil {
		return errors.Join(fmt.Errorf("%s: %d × 200 and %d × 429, want %d and %d", f.accept, f.opened, f.refused, opened, f.expected), f.failed)
	}
	return nil
}

// payerWork is row 44: under the default limits, an account lets its sandboxes do whatever
// is heavy. Twelve replay without end, 24 are reset 40 times at once, and each of their 480
// webhooks takes 14.5 s. Its own keys follow a feed of 300,000 events for a type that it does
// not have. Another account gets no error and its webhooks in time. Its p99 is at most five
// times the value before, or 50 ms if that is more. The database does not wait for its disk:
// a slow fsync delays all accounts, whatever one of them does.
func payerWork(ctx context.Context, f *fixture) (string, error) {
	const (
		keys, sandboxes = 6, 24
		idle, attacked  = 3 * time.Second, 10 * time.Second
		slower, floor   = 5, 50 * time.Millisecond
	)
	db, err := f.startDatabase(ctx, "", map[string]string{"fsync": "off"})
	if err != nil {
		return "", err
	}
	// An empty variable has its default.
	s, err := f.openWith(ctx, db, db.url(), allowLoopback, "PETSTORE_RATE_LIMIT=", "PETSTORE_DB_MAX_CONNS=")
	if err != nil {
		return "", err
	}
	h := &heavyPayer{deployment: s}
	if err := h.prepare(ctx, keys, sandboxes); err != nil {
		return "", err
	}
	var normal []*client
	for range keys {
		key, err := f.runCommand(ctx, db.url(), "key", "create", "--account", "normal", "--scope", "write")
		if err != nil {
			return "", err
		}
		normal = append(normal, s.withKey(strings.TrimSpace(key)))
	}
	r, err := s.receive(ctx, s.client, nil)
	if err := errors.Join(err, db.fillStore(ctx, "normal"), db.exec(ctx, "CHECKPOINT")); err != nil {
		return "", err
	}
	before, err := normalClients(ctx, normal, idle)
	if err != nil {
		return "", fmt.Errorf("before: %w", err)
	}
	stop := h.work(ctx)
	defer stop()
	var during time.Duration
	webhooks, err := s.timeEvents(ctx, r, 500*time.Millisecond, 0, func() (err error) {
		during, err = normalClients(ctx, normal, attacked)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("another account: %w", err)
	}
	stop()
	figures := fmt.Sprintf("another account: no error, p99 %s (%s before), webhooks: %s; the heavy account: %s",
		round(during), round(before), webhooks, h.l.summary())
	if limit := max(slower*before, floor); during > limit {
		return "", errors.New(figures)
	}
	return figures, h.l.only(http.StatusOK, http.StatusAccepted, http.StatusNoContent, http.StatusConflict, http.StatusTooManyRequests)
}

// heavyPayer is an account that lets its sandboxes do heavy work.
type heavyPayer struct {
	*deployment
	own, sandboxes []*client
	l              ledger
}

// prepare creates keys and sandboxes, webhooks of the sandboxes that take 14.5 s, and events
// that are due at them.
func (h *heavyPayer) prepare(ctx context.Context, keys, sandboxes int) error {
	const hooks, due, events, wait = 20, 10, 300_000, 14500 * time.Millisecond
	all, err := h.addKeys(ctx, "heavy", keys, 0)
	if err != nil {
		return err
	}
	for _, key := range all {
		h.own = append(h.own, h.withKey(key))
	}
	for i := range sandboxes { // each costs ten of the 100 requests of a key
		secret, err := h.own[i%keys].create(ctx, "/sandboxes", `{}`)
		if err != nil {
			return err
		}
		h.sandboxes = append(h.sandboxes, h.withKey(secret))
	}
	slow, err := h.listenSlow(ctx, wait)
	if err != nil {
		return err
	}
	var names string
	return errors.Join(
		h.db.exec(ctx, fmt.Sprintf(`
			UPDATE accounts
			SET name = 'heavy sandbox ' || id
			WHERE parent_id IS NOT NULL;

			INSERT INTO webhooks (account_id, id, url, types, secret, after_sequence, unsettled_after)
			SELECT s.account_id, 'wh_' || md5(random()::text), '%s', '{*}', '\x00'::bytea || 'a key of at least 24 bytes'::bytea, s.last_sequence, NULL
			FROM accounts AS a
			JOIN account_state AS s ON s.account_id = a.id, generate_series(1, %d)
			WHERE a.parent_id IS NOT NULL`, slow, hooks)),
		h.db.read(ctx, "SELECT string_agg(name, ''', ''') FROM accounts WHERE parent_id IS NOT NULL", nil, &names),
		h.db.addEvents(ctx, events, tenant{name: "heavy"}),
		h.db.addEvents(ctx, due, tenant{name: names}))
}

// work does all kinds of work at once, until stop is called.
func (h *heavyPayer) work(ctx context.Context) (stop func()) {
	const replaying, resets, pause = 12, 40, 20 * time.Millisecond
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	repeat := func(pause time.Duration, send func() (response, error)) {
		group.Go(func() {
			for ; ctx.Err() == nil; sleep(ctx, pause) {
				if resp, err := send(); ctx.Err() == nil {
					h.l.record(resp, err)
				}
			}
		})
	}
	for _, c := range h.sandboxes[:replaying] {
		path := ""
		repeat(pause, func() (response, error) {
			if path != "" {
				return c.do(ctx, "POST", path, "{}")
			}
			resp, err := c.do(ctx, "GET", "/webhooks", "")
			var all []struct{ ID string }
			if err == nil && resp.status == http.StatusOK && resp.decode(&all) == nil && len(all) > 0 {
				path = "/webhooks/" + all[0].ID + "/replay"
			}
			return resp, err
		})
	}
	for i := range resets {
		repeat(time.Second, func() (response, error) {
			return h.sandboxes[i%len(h.sandboxes)].do(ctx, "POST", "/sandboxes/current/reset", "")
		})
	}
	for _, c := range h.own {
		repeat(pause, func() (response, error) {
			return c.do(ctx, "GET", "/events?type=order.completed", "", "Prefer", "wait=5")
		})
	}
	return func() {
		cancel()
		group.Wait()
	}
}

// addKeys creates keys of an account, and sandboxes of it. It returns the keys of both.
func (s *deployment) addKeys(ctx context.Context, account string, keys, sandboxes int) (all []string, err error) {
	first, err := s.runCommand(ctx, s.db.url(), "key", "create", "--account", account, "--scope", "admin")
	if err != nil {
		return nil, err
	}
	all = append(all, strings.TrimSpace(first))
	creator := s.withKey(all[0])
	for range keys - 1 {
		secret, err := creator.create(ctx, "/account/api-keys", `{"name": "one more", "scope": "admin"}`)
		if err != nil {
			return nil, err
		}
		all = append(all, secret)
	}
	for range sandboxes {
		secret, err := creator.create(ctx, "/sandboxes", `{"sample": "empty"}`)
		if err != nil {
			return nil, err
		}
		all = append(all, secret)
	}
	return all, nil
}

// create creates a resource with a secret, and returns that.
func (c *client) create(ctx context.Context, path, body string) (secret string, err error) {
	resp, err := c.want(ctx, http.StatusCreated, "POST", path, body)
	if err != nil {
		return "", err
	}
	var made struct {
		Secret string
		APIKey struct{ Secret string }
	}
	err = resp.decode(&made)
	return made.Secret + made.APIKey.Secret, err
}
