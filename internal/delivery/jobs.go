package delivery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"petstore/db"
	"petstore/internal/postgres"
)

// The queues of River. Requests to a webhook that fails or is slow may take 15 s each, so
// such webhooks have places of their own.
const (
	fastQueue = "webhooks"
	slowQueue = "webhooks_slow"
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
func drainJob(accountID int64, webhookID string, isSlow bool) river.InsertManyParams {
	options := river.InsertOpts{
		Queue: fastQueue,
		UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: []rivertype.JobState{
			rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRetryable, rivertype.JobStateRunning, rivertype.JobStateScheduled,
		}},
	}
	if isSlow {
		options.Queue = slowQueue
	}
	return river.InsertManyParams{Args: drainArgs{accountID, webhookID}, InsertOpts: &options}
}

// dueAtOnce makes jobs due since 1970. River would take the time of this process, whose clock
// may be ahead of that of the database. Jobs with the same time run in the order of their ids.
type dueAtOnce struct{ river.HookDefaults }

// InsertBegin implements [rivertype.HookInsertBegin].
func (dueAtOnce) InsertBegin(_ context.Context, job *rivertype.JobInsertParams) error {
	always := time.Unix(0, 0)
	job.ScheduledAt = &always
	return nil
}

// drainWorker runs the jobs of webhooks.
type drainWorker struct {
	river.WorkerDefaults[drainArgs]

	worker *Worker
}

// Work delivers what is due at a webhook, until nothing is or its slice of time has passed.
// It never fails: River would schedule the next attempt by the clock of this process. After
// an error, the sweep adds another job.
func (j *drainWorker) Work(ctx context.Context, job *river.Job[drainArgs]) error {
	w := j.worker
	w.begin(job.ID)
	defer w.end(job.ID)
	err := newDrain(w, job.Args).run(ctx)
	w.warn(ctx, "could not deliver to a webhook; trying again", err)
	finishing, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	w.warn(ctx, "could not end the job of a webhook; another process will", w.finish(finishing, job, err == nil))
	return nil
}

// finish ends a job. If the job succeeded and its webhook has more to do, it adds the next
// job in the same transaction. The update of the job comes first. A dispatcher that finds the job running
// locks its row until its own deliveries are visible, so this transaction sees them. One
// that comes later waits for this transaction and adds a job.
func (w *Worker) finish(ctx context.Context, job *river.Job[drainArgs], succeeded bool) error {
	_, err := transact(ctx, w, func(ctx context.Context, tx pgx.Tx) (none struct{}, err error) {
		// It changes no job that another process took for dead, and returns ErrNotFound if
		// River has deleted that.
		if _, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job); err != nil && !errors.Is(err, rivertype.ErrNotFound) {
			return none, err
		}
		if !succeeded {
			return none, nil
		}
		rest, err := db.New(tx).DrainRest(ctx, db.DrainRestParams{AccountID: job.Args.AccountID, ID: job.Args.WebhookID})
		if errors.Is(err, pgx.ErrNoRows) {
			return none, nil
		}
		if err == nil && rest.HasMore {
			_, err = w.jobs.InsertManyTx(ctx, tx, []river.InsertManyParams{drainJob(job.Args.AccountID, job.Args.WebhookID, rest.IsSlow)})
		}
		return none, err
	})
	if err != nil {
		return fmt.Errorf("delivery: ending the job of webhook %s: %w", job.Args.WebhookID, err)
	}
	return nil
}

func (w *Worker) begin(jobID int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[jobID] = true
}

func (w *Worker) end(jobID int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, jobID)
}

// heart notes which jobs run in this process, and ends the jobs of processes that have not
// done so for 15 seconds. After an error, it gives those time to recover as well.
type heart struct {
	conn  *pgxpool.Conn // of its own, so that it waits for no other statement; nil: none
	since time.Time     // of the first note after the last error; zero: there is none
}

// beat logs errors.
func (w *Worker) beat(ctx context.Context, h *heart) {
	limited, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	if err := w.tryBeat(limited, h); err != nil {
		h.since = time.Time{}
		h.release()
		w.warn(ctx, "could not look after the jobs of webhooks", err)
	}
}

func (w *Worker) tryBeat(ctx context.Context, h *heart) (err error) {
	if h.conn == nil {
		if h.conn, err = w.db.Pool().Acquire(ctx); err != nil {
			return err
		}
	}
	w.mu.Lock()
	running := slices.Sorted(maps.Keys(w.running))
	w.mu.Unlock()
	queries := db.New(h.conn)
	if err := queries.JobsTouch(ctx, running); err != nil {
		return err
	}
	if h.since.IsZero() {
		h.since = time.Now()
	}
	if time.Since(h.since) < rescuePause {
		return nil
	}
	return queries.JobsRescue(ctx)
}

// release gives the connection back.
func (h *heart) release() {
	if h.conn != nil {
		h.conn.Release()
		h.conn = nil
	}
}

// sweepWebhooks adds jobs for all webhooks that have something to do, but no job. It logs
// errors.
func (w *Worker) sweepWebhooks(ctx context.Context) {
	w.warn(ctx, "could not look for deliveries that are due", w.addJobs(ctx))
}

func (w *Worker) addJobs(ctx context.Context) error {
	live, err := w.queries.JobsLive(ctx, maxLive)
	if err != nil {
		return err
	}
	hasJob := map[string]bool{}
	for _, webhookID := range live {
		hasJob[webhookID] = true
	}
	due := w.options.Metrics.CountDue()
	for after := (db.DrainWebhooksParams{PageSize: page}); ; {
		rows, err := w.queries.DrainWebhooks(ctx, after)
		if err != nil {
			return err
		}
		var jobs []river.InsertManyParams
		for _, row := range rows {
			due.Add(row.IsFailing, row.DueFor)
			if !hasJob[row.ID] {
				jobs = append(jobs, drainJob(row.AccountID, row.ID, row.IsSlow))
			}
			after.AfterAccount, after.AfterID = row.AccountID, row.ID
		}
		if err := w.insertJobs(ctx, jobs); err != nil {
			return err
		}
		if len(rows) < page {
			due.Set()
			return nil
		}
	}
}

func (w *Worker) insertJobs(ctx context.Context, jobs []river.InsertManyParams) error {
	if len(jobs) == 0 {
		return nil
	}
	_, err := postgres.Transact(ctx, w.db, func(ctx context.Context, tx pgx.Tx) (any, error) { return w.jobs.InsertManyTx(ctx, tx, jobs) })
	if err != nil {
		return fmt.Errorf("delivery: adding jobs: %w", err)
	}
	return nil
}

// countFailing sets the metric of webhooks that fail. It logs errors.
func (w *Worker) countFailing(ctx context.Context) {
	count, err := w.queries.WebhooksFailing(ctx)
	if err == nil {
		w.options.Metrics.SetWebhooksFailing(count)
	}
	w.warn(ctx, "could not count the webhooks that fail", err)
}
