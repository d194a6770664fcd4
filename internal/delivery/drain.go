package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/event"
	"petstore/internal/httpjson"
	"petstore/internal/standardwebhooks"
	"petstore/internal/webhook"
)

const (
	// inFlight is the maximum number of requests to a webhook at a time.
	inFlight = 4
	// fastBatch is the least share of a drain in the deliveries that are read at a time, and
	// maxBatch the largest, while few drains run. slowBatch is the number for a webhook that fails
	// or is slow, and the least while others hold more than their shares. Bodies are in memory
	// until they are sent, and a few more, because deliveries are read ahead.
	fastBatch = 24
	maxBatch  = 128
	slowBatch = inFlight
	ahead     = 4
	// bodies is the number in the pages of all drains. A drain may exceed it by a slowBatch.
	bodies = 9600
	// maxUnrecorded is the number of results that wait to be recorded.
	maxUnrecorded = 128
	// targetAge is how long a drain uses the URL and the secrets that it has read.
	targetAge = time.Second
	// maxAge is the age of a delivery that fails while its webhook pauses, if the webhook has
	// failed as long. Its ten attempts would have taken as long.
	maxAge = 84 * time.Hour
	// expiryBatch is the number of such deliveries that end after an attempt.
	expiryBatch = 500
)

// errSecret means that this process does not have the key of a secret.
var errSecret = errors.New("delivery: the secret of a webhook cannot be read")

// run delivers what is due. One goroutine reads deliveries, 4 send them, and this one records
// the results. While one transaction records, more results arrive, and the next records
// them all. The error comes from the database, or is [errSecret].
func (d *drain) run(ctx context.Context) error {
	queue := make(chan delivery, ahead)
	results := make(chan result, maxUnrecorded)
	var unread error
	var sending sync.WaitGroup
	sending.Go(func() {
		defer close(queue)
		unread = guarded(func() error { return d.read(ctx, queue) })
	})
	for range inFlight {
		sending.Go(func() {
			for one := range queue {
				d.send(ctx, one, results)
			}
		})
	}
	go func() {
		sending.Wait()
		close(results)
	}()
	var failed error
	for first := range results {
		if err := d.record(ctx, collect(first, results)); err != nil {
			d.stop()
			failed = err
		}
	}
	if err := errors.Join(unread, failed); err != nil || d.failedAt.IsZero() {
		return err
	}
	return d.expire(ctx)
}

// read reads deliveries until none is due. After many failures, it reads one.
func (d *drain) read(ctx context.Context, queue chan<- delivery) error {
	to, err := d.where(ctx)
	if err != nil || to == nil {
		return err
	}
	d.failures = to.failures
	if d.isTrial = to.failures >= maxFailures; d.isTrial {
		return d.readTrial(ctx, queue)
	}
	if to.isSlow && !d.isSlow {
		return nil // the next turn has a place for slow webhooks
	}
	for after := (position{}); !d.isOver() && ctx.Err() == nil; {
		batch := int32(slowBatch)
		if !to.isSlow {
			batch = d.batch()
		}
		due, err := d.due(ctx, after, batch)
		d.notePage(len(due))
		if err != nil || len(due) == 0 {
			return err
		}
		after = due[len(due)-1].position
		for _, one := range due {
			queue <- one
		}
	}
	return nil
}

// batch returns how many deliveries the drain of a fast webhook reads next. It is less than its
// share while others hold larger pages, which they have read when there were fewer drains.
func (d *drain) batch() int32 {
	d.Worker.mu.Lock()
	defer d.Worker.mu.Unlock()
	left := bodies + d.page
	for other := range d.leases {
		left -= other.page
	}
	share := max(bodies/len(d.leases), fastBatch)
	size := min(max(min(share, left), slowBatch), maxBatch)
	d.page = size
	return int32(size)
}

// notePage notes that a page was read, which can be shorter than it might be. The first one begins
// the slice.
func (d *drain) notePage(page int) {
	d.Worker.mu.Lock()
	d.page = min(d.page, page)
	d.Worker.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.until.IsZero() {
		d.until = time.Now().Add(slice)
	}
}

// readTrial reads one delivery: the first that has become due since the pause ended or a
// request ended it, or else the one that is due longest.
func (d *drain) readTrial(ctx context.Context, queue chan<- delivery) error {
	due, err := d.due(ctx, position{at: d.pauseEnd}, 1)
	if err == nil && len(due) == 0 {
		due, err = d.due(ctx, position{}, 1)
	}
	if err == nil && len(due) > 0 {
		queue <- due[0]
	}
	return err
}

// where returns where to send deliveries, which it reads again after [targetAge]. It returns
// nil and stops the drain if the webhook was disabled or deleted, or if the lease is lost.
func (d *drain) where(ctx context.Context) (*target, error) {
	d.reading.Lock()
	defer d.reading.Unlock()
	if d.to != nil && time.Since(d.to.readAt) < targetAge {
		return d.to, nil
	}
	if err := d.places.Take(ctx, d.payer, 1); err != nil {
		return nil, err
	}
	defer d.places.Give(d.payer, 1)
	row, err := d.queries.WebhookTarget(ctx, db.WebhookTargetParams{AccountID: d.AccountID, ID: d.WebhookID, Lease: d.lease})
	if errors.Is(err, pgx.ErrNoRows) {
		d.stop()
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("delivery: reading a webhook: %w", err)
	}
	d.to, err = d.targetOf(ctx, row)
	return d.to, err
}

// targetOf returns where and with which secrets to send events. Without the key of the
// previous secret, only the current one signs.
func (d *drain) targetOf(ctx context.Context, row db.WebhookTargetRow) (*target, error) {
	of := webhook.Endpoint{AccountID: d.AccountID, ID: d.WebhookID}
	current, err := d.options.Vault.Open(of, row.Secret)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSecret, err)
	}
	to := &target{url: row.URL, secrets: []standardwebhooks.Secret{current}, isSlow: row.IsSlow, failures: int(row.Failures), readAt: time.Now()}
	if row.BothSecrets {
		previous, err := d.options.Vault.Open(of, row.PreviousSecret)
		if err == nil {
			to.secrets = append(to.secrets, previous)
		} else {
			d.log.LogAttrs(ctx, slog.LevelWarn, "signing without the previous secret of a webhook", slog.Any("error", err))
		}
	}
	return to, nil
}

// position is the position of a delivery among those that are due at a webhook.
type position struct {
	at time.Time
	id string
}

// delivery is one delivery of an event.
type delivery struct {
	position

	eventID   string
	sequence  int64 // 0: webhook.test
	eventType string
	subject   string
	waited    time.Duration // from its insert until it was read
	readAt    time.Time     // when it was read, by this process
	now       time.Time     // the same time, by the database
	attempts  int           // before this one
	body      []byte        // nil: it is not sent
	unsent    string        // why it is not sent
}

// due returns deliveries that are due, with the bodies of their requests.
func (d *drain) due(ctx context.Context, after position, batch int32) ([]delivery, error) {
	if err := d.places.Take(ctx, d.payer, 1); err != nil {
		return nil, err
	}
	defer d.places.Give(d.payer, 1)
	rows, err := d.queries.DeliveriesDue(ctx, db.DeliveriesDueParams{AccountID: d.AccountID, WebhookID: d.WebhookID, AfterTime: after.at, AfterID: after.id, PageSize: batch})
	if err != nil {
		return nil, fmt.Errorf("delivery: reading deliveries: %w", err)
	}
	due, readAt := make([]delivery, len(rows)), time.Now()
	var sequences []int64
	for i, row := range rows {
		due[i] = delivery{
			position: position{row.DueAt, row.ID}, eventID: row.EventID, sequence: row.Sequence, eventType: row.Type,
			waited: seconds(row.Waited), readAt: readAt, now: row.Now, attempts: int(row.Attempts), body: row.Body,
		}
		if row.Sequence > 0 {
			sequences = append(sequences, row.Sequence)
			due[i].unsent = "The feed no longer has the event."
		}
	}
	return due, d.addBodies(ctx, due, sequences)
}

// addBodies adds the events of deliveries.
func (d *drain) addBodies(ctx context.Context, due []delivery, sequences []int64) error {
	if len(sequences) == 0 {
		return nil
	}
	found, err := d.queries.DeliveryEvents(ctx, db.DeliveryEventsParams{AccountID: d.AccountID, Sequences: sequences, PageSize: int32(len(sequences))}) //nolint:gosec // at most a batch
	if err != nil {
		return fmt.Errorf("delivery: reading events: %w", err)
	}
	source := account.Source(d.AccountID, d.AccountID != d.payer)
	events := map[string]event.Representation{}
	for _, row := range found {
		one := event.Represent(d.AccountID, source, db.EventListRow(row))
		events[one.ID] = one
	}
	for i := range due {
		one, ok := events[due[i].eventID]
		if !ok {
			continue
		}
		due[i].subject, due[i].unsent = one.Subject, ""
		if due[i].body, err = httpjson.Encode(one); err != nil {
			return fmt.Errorf("delivery: encoding event %s: %w", due[i].eventID, err)
		}
	}
	return nil
}

// send sends a delivery, unless the drain is over. A panic is a failed attempt.
func (d *drain) send(ctx context.Context, one delivery, results chan<- result) {
	if d.isOver() || ctx.Err() != nil {
		return
	}
	to, err := d.where(ctx)
	if err != nil || to == nil {
		d.stop()
		d.warn(ctx, "could not read a webhook", err)
		return
	}
	r := result{delivery: one, at: one.now.Add(time.Since(one.readAt)), problem: "The server could not send the event."}
	if err := guarded(func() error { r = d.attempt(ctx, to, one); return nil }); err != nil {
		d.log.LogAttrs(ctx, slog.LevelError, "panic while delivering to a webhook", slog.Any("error", err))
	}
	if ctx.Err() != nil {
		return // the request was cut off
	}
	r.body = nil
	d.note(&r)
	results <- r
}

// note stops the drain after too many failures in a row. It also stops a drain that has a
// place for fast webhooks after a request that took long.
func (d *drain) note(r *result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case r.saysNothing():
	case r.isSuccess():
		d.failures = 0
	default:
		d.failures++
	}
	d.stopped = d.stopped || d.failures >= maxFailures || r.took > slowAfter && !d.isSlow
}

// collect returns a result and those that have arrived by now.
func collect(first result, more <-chan result) []result {
	collected := []result{first}
	for len(collected) < maxUnrecorded {
		select {
		case r, ok := <-more:
			if !ok {
				return collected
			}
			collected = append(collected, r)
		default:
			return collected
		}
	}
	return collected
}

// expire ends deliveries that have waited too long for a webhook that fails.
func (d *drain) expire(ctx context.Context) error {
	due, err := d.expired(ctx)
	if err != nil || len(due) == 0 {
		return err
	}
	expired := make([]result, len(due))
	for i, one := range due {
		one.body, one.unsent = nil, "The endpoint has failed for 84 hours."
		expired[i] = result{delivery: one, at: d.failedAt, problem: one.unsent}
	}
	return d.record(ctx, expired)
}

// expired returns deliveries that have waited too long.
func (d *drain) expired(ctx context.Context) (due []delivery, err error) {
	if err := d.places.Take(ctx, d.payer, 1); err != nil {
		return nil, err
	}
	defer d.places.Give(d.payer, 1)
	before := d.failedAt.Add(-maxAge)
	rows, err := d.queries.DeliveriesExpired(ctx, db.DeliveriesExpiredParams{
		AccountID: d.AccountID, WebhookID: d.WebhookID, BeforeID: webhook.FirstDeliveryID(before), Before: before, PageSize: expiryBatch,
	})
	due = make([]delivery, len(rows))
	var messages []int64
	for i, row := range rows {
		due[i] = delivery{position: position{row.DueAt, row.ID}, eventID: row.EventID, sequence: row.Sequence, eventType: row.Type, attempts: int(row.Attempts)}
		if row.Type == messageQueued {
			messages = append(messages, row.Sequence)
		}
	}
	if err == nil {
		err = d.addBodies(ctx, due, messages) // for the paths of messages
	}
	return due, err
}
