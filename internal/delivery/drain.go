package delivery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"petstore/db"
	"petstore/internal/event"
	"petstore/internal/httpjson"
	"petstore/internal/webhook"
)

// The queues of River.
const (
	healthyQueue = "webhooks"
	failingQueue = "webhooks_failing"
)

const (
	// inFlight is the maximum number of requests to a webhook at a time.
	inFlight = 4
	// batch is the number of deliveries that a job reads at a time.
	batch = 200
	// finishTimeout limits the end of a job, whose own context may be over.
	finishTimeout = 5 * time.Second
)

// drainArgs name the webhook of a job.
type drainArgs struct {
	AccountID int64  `json:"accountId"`
	WebhookID string `json:"webhookId"`
}

// Kind implements [river.JobArgs].
func (drainArgs) Kind() string { return "webhook_drain" }

// drainJob returns the job of a webhook. River drops it if the webhook has a job that has
// not ended.
func drainJob(accountID int64, webhookID string, isFailing bool) river.InsertManyParams {
	options := river.InsertOpts{
		Queue: healthyQueue,
		UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: []rivertype.JobState{
			rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRetryable, rivertype.JobStateRunning, rivertype.JobStateScheduled,
		}},
	}
	if isFailing {
		options.Queue = failingQueue
	}
	return river.InsertManyParams{Args: drainArgs{accountID, webhookID}, InsertOpts: &options}
}

// drainWorker runs the jobs of webhooks.
type drainWorker struct {
	river.WorkerDefaults[drainArgs]

	worker *Worker
}

// Work delivers what is due at a webhook, until nothing is or its slice of time has passed.
func (j *drainWorker) Work(ctx context.Context, job *river.Job[drainArgs]) error {
	w := j.worker
	w.begin(job.Args.WebhookID, job.ID)
	defer w.end(job.Args.WebhookID)
	d := &drain{Worker: w, drainArgs: job.Args, until: time.Now().Add(slice)}
	if err := d.run(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	finishing, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	return w.finish(finishing, job)
}

// finish ends a job. If its webhook has more to do, it adds the next job in the same
// transaction. The update of the job comes first. A dispatcher that finds the job running
// locks its row until its own deliveries are visible, so this transaction sees them. One
// that comes later waits for this transaction and adds a job.
func (w *Worker) finish(ctx context.Context, job *river.Job[drainArgs]) error {
	_, err := transact(ctx, w, func(ctx context.Context, tx pgx.Tx) (none struct{}, err error) {
		if _, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job); err != nil {
			return none, err
		}
		rest, err := db.New(tx).DrainRest(ctx, db.DrainRestParams{AccountID: job.Args.AccountID, ID: job.Args.WebhookID})
		if errors.Is(err, pgx.ErrNoRows) {
			return none, nil
		}
		if err == nil && rest.HasMore {
			_, err = w.jobs.InsertManyTx(ctx, tx, []river.InsertManyParams{drainJob(job.Args.AccountID, job.Args.WebhookID, rest.IsFailing)})
		}
		return none, err
	})
	if err != nil {
		return fmt.Errorf("delivery: ending the job of webhook %s: %w", job.Args.WebhookID, err)
	}
	return nil
}

func (w *Worker) begin(webhookID string, jobID int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy[webhookID] = jobID
}

func (w *Worker) end(webhookID string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.busy, webhookID)
}

func (w *Worker) isBusy(webhookID string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, busy := w.busy[webhookID]
	return busy
}

// drain is the work of a job.
type drain struct {
	*Worker
	drainArgs

	until   time.Time   // when no more requests begin
	stopped atomic.Bool // whether the webhook was disabled or deleted
}

// isOver reports whether the job begins no more requests.
func (d *drain) isOver() bool {
	return d.stopped.Load() || d.isEnding() || !time.Now().Before(d.until)
}

// run delivers what is due. The error comes from the database.
func (d *drain) run(ctx context.Context) error {
	for !d.isOver() && ctx.Err() == nil {
		row, err := d.queries.DrainWebhook(ctx, db.DrainWebhookParams{AccountID: d.AccountID, ID: d.WebhookID})
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return nil
		case err != nil:
			return fmt.Errorf("delivery: reading a webhook: %w", err)
		case row.Status != "enabled":
			return nil
		}
		target, err := d.targetOf(row)
		if err != nil {
			return err
		}
		due, err := d.due(ctx)
		if err != nil || len(due) == 0 {
			return err
		}
		if err := d.deliver(ctx, target, due); err != nil {
			return err
		}
	}
	return nil
}

// targetOf returns where and with which secrets to send events.
func (d *drain) targetOf(row db.DrainWebhookRow) (target, error) {
	secrets := [][]byte{row.Secret}
	if row.BothSecrets {
		secrets = append(secrets, row.PreviousSecret)
	}
	t := target{url: row.URL}
	for _, stored := range secrets {
		secret, err := d.options.Vault.Open(webhook.Endpoint{AccountID: d.AccountID, ID: d.WebhookID}, stored)
		if err != nil {
			return t, err
		}
		t.secrets = append(t.secrets, secret)
	}
	return t, nil
}

// delivery is one delivery of an event.
type delivery struct {
	id        string
	eventID   string
	sequence  int64 // 0: webhook.test
	eventType string
	subject   string
	createdAt time.Time
	attempts  int    // before this one
	body      []byte // nil: the feed does not have the event any more
}

// due returns deliveries that are due, with the bodies of their requests.
func (d *drain) due(ctx context.Context) ([]delivery, error) {
	rows, err := d.queries.DeliveriesDue(ctx, db.DeliveriesDueParams{AccountID: d.AccountID, WebhookID: d.WebhookID, PageSize: batch})
	if err != nil {
		return nil, fmt.Errorf("delivery: reading deliveries: %w", err)
	}
	due := make([]delivery, len(rows))
	var sequences []int64
	for i, row := range rows {
		due[i] = delivery{id: row.ID, eventID: row.EventID, sequence: row.Sequence, eventType: row.Type, createdAt: row.CreatedAt, attempts: int(row.Attempts), body: row.Body}
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
		due[i].subject, due[i].createdAt = row.Subject, row.CreatedAt
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
