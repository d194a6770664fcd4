// Package delivery sends the events of accounts to their webhooks.
//
// The dispatcher follows the feed of each account. It inserts a delivery for each event and
// each enabled webhook that wants it. The same transaction moves the position of the
// webhook and adds the job of River that delivers.
//
// A webhook has at most one job at a time. The job sends the deliveries that are due, with
// at most 4 requests in flight, and records the results.
//
// Sweeps start what nobody has started: twice a second the dispatch of events that another
// process has written, and once a second the retries that are due. They also start the
// jobs of processes that have died.
//
// So webhook_deliveries is the truth, and a job only says that somebody should look. A
// process that dies loses nothing: another one sends its unrecorded deliveries again.
package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"petstore/db"
	"petstore/internal/event"
	"petstore/internal/postgres"
	"petstore/internal/telemetry"
	"petstore/internal/webhook"
)

// Connections is the number of database connections that a worker should have: one waits
// for notifications, and River has one more.
const Connections = dbParallel + 4

const (
	// dbParallel is the number of transactions of a worker at a time. The others wait, so
	// that no result of an attempt is lost because a pool is exhausted.
	dbParallel = 4
	// dispatchers is the number of accounts that a process dispatches at a time.
	dispatchers = 2

	// lookInterval is the time between two looks for events that another process has
	// written, and sweepInterval that between two looks for deliveries that are due.
	lookInterval  = 500 * time.Millisecond
	sweepInterval = time.Second
	// expiryInterval is the time between two looks for messages that wait too long.
	expiryInterval = 5 * time.Minute

	// pollInterval is the time between two looks of River for jobs, if a notification does
	// not arrive. Behind a connection pooler none arrives.
	pollInterval = 250 * time.Millisecond
	// fetchCooldown is the time between two looks of River for jobs at least.
	fetchCooldown = 10 * time.Millisecond
	// notifyCooldown is that between two notifications. River sends none for a job that is
	// added sooner, which then waits for pollInterval.
	notifyCooldown = time.Millisecond

	// maxJobs is the number of webhooks to which a process delivers at a time, and of
	// failing webhooks. Failing ones have a queue of their own, because their requests
	// may take 15 s each.
	maxJobs = 200

	// slice is the time in which a job begins requests. It then starts another job for the
	// rest, so that webhooks take turns.
	slice = 15 * time.Second
	// jobTimeout is slice and the time for the last request and its result.
	jobTimeout = slice + Timeout + 10*time.Second
	// rescueAfter is when River starts a job again that has not ended. Usually the sweep
	// does so before, because a process notes each second which of its jobs run.
	rescueAfter = jobTimeout + 5*time.Second

	jobRetention = 10 * time.Minute
	startPause   = time.Second
)

// Options are the dependencies of a worker.
type Options struct {
	// DB has [Connections] connections of its own, so that requests to the API do not wait
	// for those of the worker.
	DB *postgres.DB
	// Client sends the requests. It must check their addresses.
	Client *http.Client
	// Vault opens the stored secrets.
	Vault *webhook.Vault
	// Disabled returns the data of the event webhook.disabled, in the transaction that has
	// disabled the webhook.
	Disabled func(ctx context.Context, queries *db.Queries, accountID int64, webhookID string) ([]byte, error)
	// Announce is called after a commit with events; nil: nobody waits for them.
	Announce func(accountID int64)
	// Grace is the time that requests in flight have when the worker stops.
	Grace   time.Duration
	Metrics *telemetry.Metrics
	Log     *slog.Logger
}

// Worker dispatches and delivers. It is safe for concurrent use.
type Worker struct {
	options Options
	db      *postgres.DB
	queries *db.Queries
	log     *slog.Logger
	jobs    *river.Client[pgx.Tx]
	places  chan struct{} // of transactions
	asked   asked         // by Deliver

	woken  chan struct{} // has an element if accounts is not empty
	mu     sync.Mutex
	toLook map[int64]bool   // accounts with new events
	idle   map[int64]bool   // accounts without an enabled webhook, since the last sweep
	busy   map[string]int64 // the jobs that run in this process, by webhook
	ending bool
}

// New returns a worker. Call [Worker.Run] to start it.
func New(options Options) (*Worker, error) {
	w := &Worker{
		options: options, db: options.DB, queries: db.New(options.DB), log: options.Log,
		places: make(chan struct{}, dbParallel), woken: make(chan struct{}, 1),
		asked:  asked{woken: make(chan struct{}, 1)},
		toLook: map[int64]bool{}, idle: map[int64]bool{}, busy: map[string]int64{},
	}
	workers := river.NewWorkers()
	if err := river.AddWorkerSafely(workers, &drainWorker{worker: w}); err != nil {
		return nil, fmt.Errorf("delivery: %w", err)
	}
	jobs, err := river.NewClient(riverpgxv5.New(options.DB.Pool()), &river.Config{
		Queues: map[string]river.QueueConfig{
			healthyQueue: {MaxWorkers: maxJobs, FetchCooldown: fetchCooldown},
			failingQueue: {MaxWorkers: maxJobs, FetchCooldown: fetchCooldown},
		},
		Workers:                     workers,
		FetchCooldown:               notifyCooldown,
		FetchPollInterval:           pollInterval,
		JobTimeout:                  jobTimeout,
		RescueStuckJobsAfter:        rescueAfter,
		RetryPolicy:                 retrySoon{},
		CompletedJobRetentionPeriod: jobRetention,
		CancelledJobRetentionPeriod: jobRetention,
		DiscardedJobRetentionPeriod: jobRetention,
		ReindexerIndexNames:         []string{}, // the role of serve may not reindex
		SoftStopTimeout:             options.Grace,
		ErrorHandler:                failures{w.log},
		Logger:                      slog.New(atLeast{w.log.Handler(), slog.LevelWarn}),
	})
	if err != nil {
		return nil, fmt.Errorf("delivery: %w", err)
	}
	w.jobs = jobs
	return w, nil
}

// Wake tells the worker that an account has new events. It does not block.
func (w *Worker) Wake(accountID int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.idle[accountID] || w.toLook[accountID] {
		return
	}
	w.toLook[accountID] = true
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// Run works until ctx ends. It then starts no requests, and gives those in flight the
// grace of [Options].
func (w *Worker) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { w.runJobs(ctx) })
	running.Go(func() { every(ctx, lookInterval, w.sweepAccounts) })
	running.Go(func() { every(ctx, sweepInterval, w.sweepWebhooks) })
	running.Go(func() { every(ctx, sweepInterval, w.settleWebhooks) })
	running.Go(func() { every(ctx, expiryInterval, w.expireMessages) })
	running.Go(func() { w.dispatchWoken(ctx) })
	running.Go(func() { w.deliverAsked(ctx) })
	running.Wait()
}

// runJobs runs River until ctx ends. River does not start while the database is away or
// its tables are missing, so it tries again.
func (w *Worker) runJobs(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ending = true
	})
	defer stop()
	for warned := false; ctx.Err() == nil; {
		err := w.jobs.Start(ctx)
		if err == nil {
			<-w.jobs.Stopped()
			return
		}
		if !warned && ctx.Err() == nil {
			w.log.LogAttrs(ctx, slog.LevelWarn, "could not start to deliver webhooks; trying again", slog.Any("error", err))
			warned = true
		}
		pause(ctx, startPause)
	}
}

// isEnding reports whether the worker starts no more requests.
func (w *Worker) isEnding() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ending
}

// transact runs an action in a transaction, when there is a place for it.
func transact[Result any](ctx context.Context, w *Worker, action func(context.Context, pgx.Tx) (Result, error)) (result Result, err error) {
	select {
	case w.places <- struct{}{}:
	case <-ctx.Done():
		return result, ctx.Err()
	}
	defer func() { <-w.places }()
	return postgres.Transact(ctx, w.db, action)
}

// change runs an action in a transaction, when there is a place for it. The transaction
// numbers the events that the action returns together with COMMIT, because all writers of
// the account wait for that. It then wakes those that wait for them.
func (w *Worker) change(ctx context.Context, accountID int64, action func(context.Context, *db.Queries) ([]event.Event, error)) error {
	select {
	case w.places <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	emitted := 0
	err := postgres.TransactThen(ctx, w.db, func(ctx context.Context, tx pgx.Tx, last *postgres.Pipeline) error {
		events, err := action(ctx, db.New(tx))
		if err == nil {
			event.Queue(ctx, db.New(last), accountID, events)
		}
		emitted = len(events)
		return err
	})
	<-w.places
	if err == nil && emitted > 0 {
		w.announce(accountID)
	}
	return err
}

// announce wakes those that wait for the events that a transaction of the worker has
// committed.
func (w *Worker) announce(accountID int64) {
	w.Wake(accountID)
	if w.options.Announce != nil {
		w.options.Announce(accountID)
	}
}

// every runs an action at once, and again after each interval, until ctx ends.
func every(ctx context.Context, interval time.Duration, action func(context.Context)) {
	for ctx.Err() == nil {
		action(ctx)
		pause(ctx, interval)
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// warn logs an error, unless it is the end of ctx.
func (w *Worker) warn(ctx context.Context, message string, err error) {
	if err != nil && ctx.Err() == nil {
		w.log.LogAttrs(ctx, slog.LevelWarn, message, slog.Any("error", err))
	}
}

// retrySoon retries a job after a second. Jobs fail when the database does.
type retrySoon struct{}

// NextRetry implements [river.ClientRetryPolicy].
func (retrySoon) NextRetry(*rivertype.JobRow) time.Time { return time.Now().Add(startPause) }

// failures logs the errors of jobs.
type failures struct{ log *slog.Logger }

// HandleError implements [river.ErrorHandler].
func (f failures) HandleError(ctx context.Context, _ *rivertype.JobRow, err error) *river.ErrorHandlerResult {
	if !errors.Is(err, context.Canceled) {
		f.log.LogAttrs(ctx, slog.LevelWarn, "could not deliver to a webhook; trying again", slog.Any("error", err))
	}
	return nil
}

// HandlePanic implements [river.ErrorHandler].
func (f failures) HandlePanic(ctx context.Context, _ *rivertype.JobRow, value any, trace string) *river.ErrorHandlerResult {
	f.log.LogAttrs(ctx, slog.LevelError, "panic while delivering to a webhook", slog.Any("panic", value), slog.String("stack", trace))
	return nil
}

// atLeast is a log handler that drops what is below a level.
type atLeast struct {
	slog.Handler

	level slog.Level
}

// Enabled implements [slog.Handler].
func (h atLeast) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= h.level && h.Handler.Enabled(ctx, level)
}

// WithAttrs implements [slog.Handler].
func (h atLeast) WithAttrs(attrs []slog.Attr) slog.Handler {
	return atLeast{h.Handler.WithAttrs(attrs), h.level}
}

// WithGroup implements [slog.Handler].
func (h atLeast) WithGroup(name string) slog.Handler {
	return atLeast{h.Handler.WithGroup(name), h.level}
}
