package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/event"
	"petstore/internal/httpjson"
	"petstore/internal/standardwebhooks"
	"petstore/internal/webhook"
)

const (
	// inFlight is the maximum number of requests to a webhook at a time.
	inFlight = 4
	// fastBatch is the number of deliveries that a job reads at a time. Their bodies are in
	// memory until they are sent.
	fastBatch = 32
	// slowBatch is that of a webhook that fails or is slow. In its slice of time, a job
	// begins hardly more requests.
	slowBatch = inFlight
	// finishTimeout limits the end of a job, whose own context may be over.
	finishTimeout = 2 * time.Second
)

// drain is the work of a job.
type drain struct {
	*Worker
	drainArgs

	until   time.Time   // when no more requests begin
	stopped atomic.Bool // whether the webhook was disabled or deleted
}

func newDrain(w *Worker, args drainArgs) *drain {
	return &drain{Worker: w, drainArgs: args, until: time.Now().Add(slice)}
}

// isOver reports whether the job begins no more requests.
func (d *drain) isOver() bool {
	return d.stopped.Load() || d.isEnding() || !time.Now().Before(d.until)
}

// run delivers what is due. The error comes from the database, or is that of a secret that
// cannot be read.
func (d *drain) run(ctx context.Context) error {
	for !d.isOver() && ctx.Err() == nil {
		to, due, err := d.next(ctx)
		if err != nil || len(due) == 0 {
			return err
		}
		if err := d.deliver(ctx, to, due); err != nil {
			return err
		}
	}
	return nil
}

// next returns deliveries that are due, and where to send them. There are none if the
// webhook is disabled or deleted.
func (d *drain) next(ctx context.Context) (to target, due []delivery, err error) {
	leave, err := d.place(ctx)
	if err != nil {
		return to, nil, err
	}
	defer leave()
	row, err := d.queries.DrainWebhook(ctx, db.DrainWebhookParams{AccountID: d.AccountID, ID: d.WebhookID})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return to, nil, nil
	case err != nil:
		return to, nil, fmt.Errorf("delivery: reading a webhook: %w", err)
	case row.Status != "enabled":
		return to, nil, nil
	}
	if due, err = d.due(ctx, row.IsSlow); err != nil || len(due) == 0 {
		return to, nil, err
	}
	if to, err = d.targetOf(ctx, row); err != nil {
		return to, nil, errors.Join(err, d.postpone(ctx, due))
	}
	return to, due, nil
}

// targetOf returns where and with which secrets to send events. Without the key of the
// previous secret, only the current one signs.
func (d *drain) targetOf(ctx context.Context, row db.DrainWebhookRow) (target, error) {
	of := webhook.Endpoint{AccountID: d.AccountID, ID: d.WebhookID}
	current, err := d.options.Vault.Open(of, row.Secret)
	if err != nil {
		return target{}, err
	}
	to := target{row.URL, []standardwebhooks.Secret{current}}
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

// postpone lets deliveries wait for a process that can read the secret.
func (d *drain) postpone(ctx context.Context, due []delivery) error {
	ids := make([]string, len(due))
	for i, one := range due {
		ids[i] = one.id
	}
	return d.queries.DeliveriesPostpone(ctx, db.DeliveriesPostponeParams{AccountID: d.AccountID, Ids: ids})
}

// delivery is one delivery of an event.
type delivery struct {
	id        string
	eventID   string
	sequence  int64 // 0: webhook.test
	eventType string
	subject   string
	waited    time.Duration // from its insert until it was read
	readAt    time.Time     // when it was read, by this process
	now       time.Time     // the same time, by the database
	attempts  int           // before this one
	body      []byte        // nil: the feed does not have the event any more
}

// due returns deliveries that are due, with the bodies of their requests.
func (d *drain) due(ctx context.Context, isSlow bool) ([]delivery, error) {
	batch := int32(fastBatch)
	if isSlow {
		batch = slowBatch
	}
	rows, err := d.queries.DeliveriesDue(ctx, db.DeliveriesDueParams{AccountID: d.AccountID, WebhookID: d.WebhookID, PageSize: batch})
	if err != nil {
		return nil, fmt.Errorf("delivery: reading deliveries: %w", err)
	}
	due, readAt := make([]delivery, len(rows)), time.Now()
	var sequences []int64
	for i, row := range rows {
		due[i] = delivery{id: row.ID, eventID: row.EventID, sequence: row.Sequence, eventType: row.Type, waited: seconds(row.Waited), readAt: readAt, now: row.Now, attempts: int(row.Attempts), body: row.Body}
		if row.Sequence > 0 {
			sequences = append(sequences, row.Sequence)
		}
	}
	if len(sequences) == 0 {
		return due, nil
	}
	found, err := d.queries.DeliveryEvents(ctx, db.DeliveryEventsParams{AccountID: d.AccountID, Sequences: sequences, PageSize: batch})
	if err != nil {
		return nil, fmt.Errorf("delivery: reading events: %w", err)
	}
	events := map[string]db.DeliveryEventsRow{}
	for _, row := range found {
		events[event.ID{Sequence: row.Sequence, Nonce: uint32(row.Nonce)}.String()] = row //nolint:gosec // events_nonce_check
	}
	for i := range due {
		row, ok := events[due[i].eventID]
		if !ok {
			continue
		}
		due[i].subject = row.Subject
		if due[i].body, err = httpjson.Encode(event.Representation{
			ID: due[i].eventID, Sequence: row.Sequence, Type: row.Type, Timestamp: row.CreatedAt.UTC(), Subject: row.Subject, Data: row.Data,
		}); err != nil {
			return nil, fmt.Errorf("delivery: encoding event %s: %w", due[i].eventID, err)
		}
	}
	return due, nil
}

// deliver sends deliveries and records their results. While one transaction records, more
// results arrive, and the next records them all.
func (d *drain) deliver(ctx context.Context, to target, due []delivery) error {
	queue := make(chan delivery, len(due))
	for _, one := range due {
		queue <- one
	}
	close(queue)
	results := make(chan result, len(due))
	var senders sync.WaitGroup
	for range inFlight {
		senders.Go(func() {
			for one := range queue {
				if d.isOver() || ctx.Err() != nil {
					return
				}
				if r := d.attempt(ctx, to, one); ctx.Err() == nil { // else the request was cut off
					results <- r
				}
			}
		})
	}
	go func() {
		senders.Wait()
		close(results)
	}()
	var failed error
	for first := range results {
		if err := d.record(ctx, collect(first, results)); err != nil {
			d.stopped.Store(true)
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// collect returns a result and those that have arrived by now.
func collect(first result, more <-chan result) []result {
	collected := []result{first}
	for {
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
}
