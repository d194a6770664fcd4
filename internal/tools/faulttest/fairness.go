package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"
)

// firstAttemptLimit is how long an event may take to its first attempt, whatever other
// accounts do.
const firstAttemptLimit = 2 * time.Second

// webhookFairness is row 39: an account gets its events within two seconds (p99) while
// other accounts have
//
//   - 10,000 deliveries due at an endpoint that accepts connections and never responds
//   - webhooks at endpoints that hang, or that accept an event after 14 s
//   - 50,000 events that are not dispatched yet, in each of two accounts
//   - 480 webhooks that accept an event after 14.5 s, in 24 sandboxes of one account
func webhookFairness(ctx context.Context, f *fixture) (string, error) {
	const due, undispatched, accounts, during = 10_000, 50_000, 6, 6 * time.Second
	db, err := f.startDatabase(ctx, "", nil)
	if err != nil {
		return "", err
	}
	s, err := f.openWith(ctx, db, db.url(), allowLoopback)
	if err != nil {
		return "", err
	}
	hanging, backlog, slow, err := s.addBadTenants(ctx, accounts)
	if err != nil {
		return "", err
	}
	r, err := s.receive(ctx, s.client, nil)
	if err != nil {
		return "", err
	}
	if err := s.awaitPending(ctx, due, hanging, func() error { return db.addEvents(ctx, due, hanging) }); err != nil {
		return "", err
	}
	var phases [3]string
	for i, disturb := range []func() error{
		func() error { return nil },
		func() error { return db.addEvents(ctx, 10, slow...) },
		func() error { return db.addEvents(ctx, undispatched, backlog...) },
	} {
		if phases[i], err = s.timeEvents(ctx, r, 20*time.Millisecond, during, disturb); err != nil {
			return "", fmt.Errorf("phase %d: %w", i+1, err)
		}
	}
	sandboxes, err := s.timeBesideSandboxes(ctx, r, during)
	if err != nil {
		return "", fmt.Errorf("with slow endpoints of sandboxes: %w", err)
	}
	return fmt.Sprintf("%d due at an endpoint that hangs: %s; with %d endpoints that hang or are slow: %s; with %d events to dispatch: %s; with slow endpoints of sandboxes: %s",
		due, phases[0], len(slow)*slow[0].hooks, phases[1], len(backlog)*undispatched, phases[2], sandboxes), nil
}

// timeBesideSandboxes is timeEvents while one payer has 24 sandboxes with 20 webhooks each
// that accept an event after 14.5 s.
func (s *deployment) timeBesideSandboxes(ctx context.Context, r *receiver, during time.Duration) (string, error) {
	const sandboxes, hooks, wait, each = 24, 20, 14500 * time.Millisecond, 5
	slowURL, err := s.listenSlow(ctx, wait)
	if err != nil {
		return "", err
	}
	payer := tenant{"payer", 0, slowURL}
	var all []tenant
	for i := range sandboxes {
		all = append(all, tenant{fmt.Sprintf("slow sandbox %d", i), hooks, slowURL})
	}
	if err := s.db.addTenants(ctx, append(all, payer)...); err != nil {
		return "", err
	}
	if err := s.db.exec(ctx, fmt.Sprintf(`
		UPDATE accounts
		SET parent_id = (SELECT id FROM accounts WHERE name = '%s'), sample = 'empty', expires_at = now() + interval '1 day'
		WHERE name IN ('%s')`, payer.name, names(all))); err != nil {
		return "", err
	}
	return s.timeEvents(ctx, r, 20*time.Millisecond, during, func() error { return s.db.addEvents(ctx, each, all...) })
}

// addBadTenants adds the accounts that may delay others: one with an endpoint that hangs,
// two with an endpoint that works, and some with 20 endpoints each. Half of these hang. The
// others accept an event after 14 s.
func (s *deployment) addBadTenants(ctx context.Context, accounts int) (hanging tenant, backlog, slow []tenant, err error) {
	const most, wait = 20, 14 * time.Second
	mute, err := s.listenMute(ctx)
	if err != nil {
		return hanging, nil, nil, err
	}
	slowURL, err := s.listenSlow(ctx, wait)
	if err != nil {
		return hanging, nil, nil, err
	}
	healthy, err := s.listenSlow(ctx, 0)
	if err != nil {
		return hanging, nil, nil, err
	}
	for i := range accounts {
		slow = append(slow, tenant{fmt.Sprintf("slow %d", i), most, []string{mute, slowURL}[i%2]})
	}
	hanging, backlog = tenant{"hanging", 1, mute}, []tenant{{"backlog 1", 1, healthy}, {"backlog 2", 1, healthy}}
	return hanging, backlog, slow, s.db.addTenants(ctx, slices.Concat(slow, backlog, []tenant{hanging})...)
}

// awaitPending does something and waits until a tenant has that many pending deliveries.
func (s *deployment) awaitPending(ctx context.Context, count int, t tenant, do func() error) error {
	if err := do(); err != nil {
		return err
	}
	_, err := eventually(ctx, 20*time.Second, func() error {
		pending, err := s.db.pending(ctx, t)
		if err == nil && pending < count {
			err = fmt.Errorf("%d of %d deliveries are pending", pending, count)
		}
		return err
	})
	return err
}

// timeEvents disturbs the worker, and writes an event after each interval meanwhile. It
// returns the figures of their delays at a receiver of all events of the account.
func (s *deployment) timeEvents(ctx context.Context, r *receiver, interval, during time.Duration, disturb func() error) (string, error) {
	r.mu.Lock()
	r.delays = nil
	before := len(r.requests)
	r.mu.Unlock()
	l := startLoad(ctx, 1, func(int) (response, error) {
		sleep(ctx, interval)
		return s.order(ctx, 1)
	})
	err := disturb()
	if err == nil {
		sleep(ctx, during)
	}
	placed := len(l.finish().placed)
	if err := errors.Join(err, l.only(http.StatusCreated)); err != nil {
		return "", err
	}
	if _, err := eventually(ctx, 2*firstAttemptLimit, func() error {
		if _, events := r.received(); events < before+placed {
			return fmt.Errorf("%d of %d events have arrived", events-before, placed)
		}
		return nil
	}); err != nil {
		return "", err
	}
	p99, longest := r.slowest()
	figures := fmt.Sprintf("%d events, p99 %s, slowest %s", placed, round(p99), round(longest))
	if p99 > firstAttemptLimit {
		return "", fmt.Errorf("%s, want p99 below %s", figures, firstAttemptLimit)
	}
	return figures, r.err
}

// webhookBacklog is row 42: after an outage, many deliveries are due at 100 webhooks. They
// drain at 1,000 a second or more, although an old snapshot keeps the dead entries of the
// index. Meanwhile another account gets its events within two seconds.
func webhookBacklog(ctx context.Context, f *fixture) (string, error) {
	const accounts, hooks, leastRate = 5, 20, 1000
	db, err := f.startDatabase(ctx, "", nil)
	if err != nil {
		return "", err
	}
	var arrived atomic.Int64
	url, err := f.listen(ctx, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived.Add(1) }))
	if err != nil {
		return "", err
	}
	tenants := make([]tenant, accounts)
	for i := range tenants {
		tenants[i] = tenant{fmt.Sprintf("backlog %d", i), hooks, url}
	}
	if err := errors.Join(db.addTenants(ctx, tenants...), db.addEvents(ctx, backlogOfWebhook, tenants...), db.addDeliveries(ctx, tenants...)); err != nil {
		return "", err
	}
	release, err := db.holdLock(ctx, databaseName, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM accounts")
	if err != nil {
		return "", err
	}
	defer release()
	began := time.Now()
	s, err := f.openWith(ctx, db, db.url(), allowLoopback)
	if err != nil {
		return "", err
	}
	r, err := s.receive(ctx, s.client, nil)
	if err != nil {
		return "", err
	}
	const all = accounts * hooks * backlogOfWebhook
	others, err := s.timeEvents(ctx, r, 200*time.Millisecond, 0, func() error {
		_, err := eventually(ctx, all/leastRate*time.Second, func() error {
			if now := arrived.Load(); now < all {
				return fmt.Errorf("%d of %d deliveries have arrived", now, all)
			}
			return nil
		})
		return err
	})
	if err != nil {
		return "", err
	}
	took := time.Since(began)
	figures := fmt.Sprintf("%d deliveries in %s, %.0f a second, beside an old snapshot; another account: %s", all, round(took), all/took.Seconds(), others)
	if all/took.Seconds() < leastRate {
		return "", errors.New(figures)
	}
	_, err = eventually(ctx, 5*time.Second, func() error {
		pending, err := db.pending(ctx, tenants...)
		if err == nil && pending > 0 {
			err = fmt.Errorf("%d deliveries are pending", pending)
		}
		return err
	})
	return figures, err
}

// backlogOfWebhook is the number of deliveries that are due at each webhook of row 42.
const backlogOfWebhook = 600
