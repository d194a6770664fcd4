package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"petstore/db"
	"petstore/internal/admission"
	"petstore/internal/postgres"
	"petstore/internal/sleep"
)

const (
	// leaseTime is how long a lease is valid after its claim or its renewal, by the clock of
	// this process. The statements have the same time by the clock of the database.
	leaseTime = 15 * time.Second
	// renewInterval is the time between two looks for leases that are older than renewAfter.
	renewInterval = time.Second
	renewAfter    = 5 * time.Second
	// headStart is how long the database has responded before a process takes over a lease that has run
	// out. The other process may have lacked the database, too, and renews the lease meanwhile. Its
	// renewal can hang for renewAfter, and the next one follows after renewInterval.
	headStart = 8 * time.Second
	// slice is the time after which a drain gives way to others that wait for its place. It
	// begins when the first deliveries are read: the waits before that can take longer.
	slice = time.Second
	// few is the number of elements that inParallel works on at a time.
	few = 2
	// keyPause is how long a process leaves a webhook whose secret it cannot open to others.
	keyPause = time.Minute
)

// drain delivers to a webhook under a lease.
type drain struct {
	*Worker
	endpoint

	payer  int64
	pool   *admission.Pool // in which the drain has a place
	isSlow bool            // whether that is the pool of slow webhooks
	ending <-chan struct{} // closed when the worker stops

	lease    int64
	isTrial  bool      // whether it sends one delivery, after a pause
	pauseEnd time.Time // of the pause
	failedAt time.Time // by the database: when the trial failed after maxAge of failures; zero: it has not
	page     int       // how many deliveries it holds of the page that was read last, under Worker.mu

	reading sync.Mutex
	to      *target // nil: it is not read yet

	mu       sync.Mutex
	until    time.Time // the end of the slice, which begins with the first page; zero: it has not begun
	renewed  time.Time // when the claim or the last renewal began
	stopped  bool      // whether no more requests begin
	failures int       // failed attempts in a row
}

// startDrain starts to deliver what is due at a webhook, in turns of its payer.
func (w *Worker) startDrain(ctx context.Context, to endpoint, payer int64, isSlow bool) {
	w.webhooks.start(to, payer, func() {
		rest := db.WebhookDueRow{PayerID: payer, IsSlow: isSlow, IsDue: true}
		for rest.IsDue && ctx.Err() == nil {
			var err error
			if rest, err = w.drainTurn(ctx, to, rest); err != nil {
				w.warn(ctx, "could not deliver to a webhook; trying again", err)
				if errors.Is(err, errSecret) {
					sleep.For(ctx, keyPause)
				}
				return // the sweep starts the next drain
			}
		}
	})
}

// drainTurn waits for a place, claims the webhook, delivers what is due, and releases the
// webhook. It returns whether something is due then.
func (w *Worker) drainTurn(ctx context.Context, to endpoint, due db.WebhookDueRow) (rest db.WebhookDueRow, err error) {
	d := &drain{Worker: w, endpoint: to, payer: due.PayerID, pool: w.fast, isSlow: due.IsSlow, ending: ctx.Done()}
	if d.isSlow {
		d.pool = w.slow
	}
	if err := d.pool.Take(ctx, d.payer, 1); err != nil {
		return rest, err
	}
	defer d.pool.Give(d.payer, 1)
	sending, cancel := outlive(w.db.ForAccounts(ctx, to.AccountID), sendingTime(w.options.Grace))
	defer cancel()
	if claimed, err := d.claim(sending); err != nil || !claimed {
		return rest, err
	}
	defer d.forget()
	err = guarded(func() error { return d.run(sending) })
	releasing, cancel := outlive(sending, finishTimeout)
	defer cancel()
	rest, releaseErr := d.release(releasing)
	return rest, errors.Join(err, releaseErr)
}

// sendingTime returns how much of the grace of a worker its requests have. The rest is for
// the release of the leases.
func sendingTime(grace time.Duration) time.Duration {
	return max(grace-finishTimeout, grace/2)
}

// outlive returns a context that ends a while after ctx.
func outlive(ctx context.Context, d time.Duration) (longer context.Context, cancel func()) {
	longer, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(d, end) })
	return longer, func() {
		stop()
		end()
	}
}

// claim takes the lease of the webhook. It reports false if another process has it, or if
// nobody may deliver at present.
func (d *drain) claim(ctx context.Context) (claimed bool, err error) {
	if err := d.places.Take(ctx, d.payer, 1); err != nil {
		return false, err
	}
	defer d.places.Give(d.payer, 1)
	d.renewed = time.Now()
	claim, err := d.queries.WebhookClaim(ctx, db.WebhookClaimParams{AccountID: d.AccountID, ID: d.WebhookID, TakesOver: d.takesOver()})
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("delivery: claiming a webhook: %w", err)
	}
	d.lease = claim.Lease
	if claim.RetryAt != nil {
		d.pauseEnd = *claim.RetryAt
	}
	d.Worker.mu.Lock()
	defer d.Worker.mu.Unlock()
	d.leases[d] = true
	return true, nil
}

// forget ends the renewals of the lease.
func (d *drain) forget() {
	d.Worker.mu.Lock()
	defer d.Worker.mu.Unlock()
	delete(d.leases, d)
}

// release ends the lease, and returns whether the webhook has deliveries that are due. The
// lease ends first. A transaction that adds deliveries holds a lock on the webhook. If the lock
// came first, the second statement sees the deliveries. Otherwise the webhook can be claimed.
func (d *drain) release(ctx context.Context) (rest db.WebhookDueRow, err error) {
	d.webhooks.listen(d.endpoint)
	err = d.persist(ctx, "could not release a webhook; trying again", func() error {
		if err := d.places.Take(ctx, d.payer, 1); err != nil {
			return err
		}
		defer d.places.Give(d.payer, 1)
		rest, err = postgres.Transact(ctx, d.db, func(ctx context.Context, tx pgx.Tx) (rest db.WebhookDueRow, err error) {
			queries := db.New(tx)
			released, err := queries.WebhookRelease(ctx, db.WebhookReleaseParams{AccountID: d.AccountID, ID: d.WebhookID, Lease: d.lease})
			if err != nil || released == 0 {
				return rest, err
			}
			rest, err = queries.WebhookDue(ctx, db.WebhookDueParams{AccountID: d.AccountID, ID: d.WebhookID})
			if errors.Is(err, pgx.ErrNoRows) {
				return rest, nil
			}
			return rest, err
		})
		return err
	})
	if err != nil {
		return rest, fmt.Errorf("delivery: releasing webhook %s: %w", d.WebhookID, err)
	}
	return rest, nil
}

// persist repeats an action until it succeeds, or until ctx ends. It gives up if the lease has run
// out, another process may take over, and others wait for the place of the drain. The deliveries
// are then sent again.
func (d *drain) persist(ctx context.Context, message string, action func() error) error {
	for wait := retryPause; ; wait = min(2*wait, maxRetryPause) {
		err := action()
		if err == nil || ctx.Err() != nil || d.isExpired() && d.pool.IsContended() && d.takesOver() {
			return err
		}
		d.warn(ctx, message, err)
		sleep.For(ctx, wait)
	}
}

// isExpired reports whether the lease has run out.
func (d *drain) isExpired() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.renewed) > leaseTime
}

// isOver reports whether the drain begins no more requests.
func (d *drain) isOver() bool {
	isEnding := false
	select {
	case <-d.ending:
		isEnding = true
	default:
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	isUsedUp := !d.until.IsZero() && time.Now().After(d.until)
	d.stopped = d.stopped || isEnding || time.Since(d.renewed) > leaseTime || isUsedUp && d.pool.IsContended()
	return d.stopped
}

// stop lets the drain begin no more requests.
func (d *drain) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
}

// renewLeases renews the leases of this process that are older than renewAfter, account by
// account. Webhooks that somebody has locked come last. It logs errors. It also asks whether the
// database responds.
func (w *Worker) renewLeases(ctx context.Context) {
	var asking sync.WaitGroup
	asking.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, renewAfter)
		defer cancel()
		if _, err := w.queries.Clock(ctx); err == nil {
			w.noteResponse()
		}
	})
	defer asking.Wait()
	byAccount := map[int64][]*drain{}
	w.mu.Lock()
	for d := range w.leases {
		d.mu.Lock()
		if time.Since(d.renewed) >= renewAfter {
			byAccount[d.AccountID] = append(byAccount[d.AccountID], d)
		}
		d.mu.Unlock()
	}
	w.mu.Unlock()
	var mu sync.Mutex
	var skipped []*drain
	inParallel(slices.Collect(maps.Keys(byAccount)), func(accountID int64) {
		left, err := w.renew(ctx, accountID, byAccount[accountID])
		w.warn(ctx, "could not renew the leases of webhooks", err)
		mu.Lock()
		defer mu.Unlock()
		skipped = append(skipped, left...)
	})
	began := time.Now()
	inParallel(skipped, func(d *drain) {
		if time.Since(began) < renewInterval { // else the next look renews it, and others are not held up
			w.warn(ctx, "could not renew the lease of a webhook that is locked", d.renewLocked(ctx))
		}
	})
}

// renew renews the leases of drains of an account, and returns the drains that it has skipped: their
// webhooks are locked, or they have lost their leases. [drain.where] stops those.
func (w *Worker) renew(ctx context.Context, accountID int64, drains []*drain) (skipped []*drain, err error) {
	ctx, cancel := context.WithTimeout(w.db.ForAccounts(ctx, accountID), renewAfter)
	defer cancel()
	params := db.WebhooksRenewParams{AccountID: accountID}
	for _, d := range drains {
		params.Ids, params.Leases = append(params.Ids, d.WebhookID), append(params.Leases, d.lease)
	}
	began := time.Now()
	held, err := w.queries.WebhooksRenew(ctx, params)
	if err != nil {
		return nil, err
	}
	w.noteResponse() // a look at many accounts can take longer than renewAfter
	for _, d := range drains {
		if slices.Contains(held, d.WebhookID) {
			d.noteRenewal(began)
		} else {
			skipped = append(skipped, d)
		}
	}
	return skipped, nil
}

// renewLocked waits for the lock of the webhook, and renews the lease. A busy webhook can be locked
// most of the time, by the dispatcher and by the drain itself.
func (d *drain) renewLocked(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(d.db.ForAccounts(ctx, d.AccountID), renewAfter)
	defer cancel()
	began := time.Now()
	renewed, err := d.queries.WebhookRenew(ctx, db.WebhookRenewParams{AccountID: d.AccountID, ID: d.WebhookID, Lease: d.lease})
	if renewed > 0 {
		d.noteRenewal(began)
	}
	return err
}

// noteRenewal notes when the last renewal began.
func (d *drain) noteRenewal(began time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.renewed = began
}

// inParallel calls do for the elements of a slice, a few at a time.
func inParallel[T any](elements []T, do func(T)) {
	var running errgroup.Group
	running.SetLimit(few)
	for _, element := range elements {
		running.Go(func() error {
			do(element)
			return nil
		})
	}
	_ = running.Wait()
}

// noteResponse notes that the database has responded.
func (w *Worker) noteResponse() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.responded) > renewAfter { // leases can have run out meanwhile
		w.responsive = time.Now()
	}
	w.responded = time.Now()
}

// takesOver reports whether the database has responded for so long that the process may take over
// leases that have run out.
func (w *Worker) takesOver() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.responded) <= renewAfter && time.Since(w.responsive) >= headStart
}

// sweepWebhooks starts to deliver to all webhooks at which something is due, and to which no
// process delivers.
func (w *Worker) sweepWebhooks(ctx context.Context) error {
	count, oldest := map[bool]int{}, map[bool]float64{} // by whether the webhook is failing
	unclaimed, shortened := 0.0, 0
	err := everywhere(ctx, w, func(ctx context.Context, every bool, ids []int64, after db.DrainWebhooksRow) ([]db.DrainWebhooksRow, error) {
		return w.queries.DrainWebhooks(ctx, db.DrainWebhooksParams{Every: every, Ids: ids, AfterAccount: after.AccountID, AfterID: after.ID, PageSize: page})
	}, func(ctx context.Context, row db.DrainWebhooksRow) {
		if row.DueFor > 0 { // 0: nothing is due
			count[row.IsFailing]++
		}
		oldest[row.IsFailing] = max(oldest[row.IsFailing], row.DueFor)
		if row.IsFree && !row.IsSlow {
			unclaimed = max(unclaimed, row.DueFor)
		}
		switch {
		case row.IsFree:
			w.startDrain(ctx, endpoint{row.AccountID, row.ID}, row.PayerID, row.IsSlow)
		case row.IsAhead:
			shortened++
			w.warn(ctx, "could not shorten the lease or the pause of a webhook", w.shorten(ctx, row))
		}
	})
	if shortened > 0 {
		w.log.LogAttrs(ctx, slog.LevelWarn, "leases or pauses of webhooks ended too late, as if the clock of the database had gone back", slog.Int("webhooks", shortened))
	}
	switch {
	case err == nil:
		w.options.Metrics.SetOldestUnclaimed(unclaimed)
		for _, isFailing := range []bool{false, true} {
			w.options.Metrics.SetDue(isFailing, count[isFailing], oldest[isFailing])
		}
	case ctx.Err() == nil: // the worker does not stop
		w.options.Metrics.ForgetWebhooks()
	}
	return err
}

// shorten shortens a lease to its usual time, and ends a pause. The clock of the database has gone
// back since a process set them.
func (w *Worker) shorten(ctx context.Context, row db.DrainWebhooksRow) error {
	ctx = w.db.ForAccounts(ctx, row.AccountID)
	return errors.Join(
		w.queries.WebhookShorten(ctx, db.WebhookShortenParams{AccountID: row.AccountID, ID: row.ID}),
		w.queries.WebhookRetryNow(ctx, db.WebhookRetryNowParams{AccountID: row.AccountID, ID: row.ID}))
}

// deliverAsked starts to deliver to the webhooks that [Worker.Deliver] has named. Their
// deliveries are committed, so the release of a lease at this moment sees them.
func (w *Worker) deliverAsked(ctx context.Context, webhooks map[endpoint]bool) {
	for to := range webhooks {
		due, err := w.queries.WebhookDue(w.db.ForAccounts(ctx, to.AccountID), db.WebhookDueParams{AccountID: to.AccountID, ID: to.WebhookID})
		switch {
		case errors.Is(err, pgx.ErrNoRows):
		case err != nil:
			w.warn(ctx, "could not deliver what a request has made due", err)
		case due.IsDue:
			w.startDrain(ctx, to, due.PayerID, due.IsSlow)
		}
	}
}
