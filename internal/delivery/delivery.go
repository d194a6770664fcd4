// Package delivery sends the events of accounts to their webhooks.
//
// The dispatcher follows the feed of each account. It inserts a delivery for each event and
// each enabled webhook that wants it. The same transaction moves the position of the
// webhook and adds the job of River that delivers. Accounts take turns, a page of events at
// a time.
//
// A webhook has at most one job at a time. The job sends the deliveries that are due, with
// at most 4 requests in flight, and records the results. After a second, it gives way to the
// jobs of others.
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
	"petstore/internal/egress"
	"petstore/internal/event"
	"petstore/internal/postgres"
	"petstore/internal/telemetry"
	"petstore/internal/webhook"
)

// Connections is the number of database connections that the pool of a worker should have.
// River takes one more out of the pool, to wait for notifications.
const Connections = dbParallel + dispatchers + 4

// Descriptors is the maximum number of open files of a worker: its connections to the
// database and those to webhooks, in use and idle.
const Descriptors = Connections + 1 + (maxFast+maxSlow)*inFlight + egress.MaxIdle

const (
	// dbParallel is the number of jobs that use the database at a time. The others wait, so
	// that they leave connections to the sweeps and to River.
	dbParallel = 4
	// dispatchers is the number of accounts that a process dispatches at a time.
	dispatchers = 2

	// lookInterval is the time between two looks for events that another process has
	// written, and sweepInterval that between two looks for deliveries that are due.
	lookInterval  = 500 * time.Millisecond
	sweepInterval = time.Second
	// restFactor is how much longer than its own time a sweep rests, up to maxRest. So sweeps of
	// many webhooks do not keep the database busy.
	restFactor = 5
	maxRest    = 5 * time.Second
	// beatInterval is the time between two notes of which jobs run. A job is taken for dead
	// after 15 seconds without one (see JobsRescue in queries/delivery.sql).
	beatInterval = time.Second
	// beatTimeout limits the statements of a note, so that one that hangs is not the last.
	beatTimeout = 5 * time.Second
	// rescuePause is how long a process notes its own jobs before it ends those of others.
	// After an outage of the database, they may only be late.
	rescuePause = 3 * time.Second
	// countInterval is the time between two counts of webhooks that fail.
	countInterval = 15 * time.Second
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

	// maxFast and maxSlow are the numbers of webhooks to which a process delivers at a time.
	maxFast = 400
	maxSlow = 200
	// slowAfter is the time of a request after which a webhook counts as slow, for slowFor.
	slowAfter = 500 * time.Millisecond
	slowFor   = 10 * time.Minute
	// maxLive is the number of jobs that a sweep knows of. River drops superfluous ones.
	maxLive = 10_000

	// slice is the time in which a job begins requests. It then starts another job for the
	// rest, so that webhooks take turns.
	slice = time.Second
	// jobTimeout is slice and the time for the last request and its result.
	jobTimeout = slice + Timeout + 10*time.Second
	// rescueAfter switches off the rescue of River, which compares times of the database with
	// the clock of this process. The worker rescues jobs by the clock of the database.
	rescueAfter = 100 * 365 * 24 * time.Hour

	jobRetention = time.Minute
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
	places  chan struct{} // of jobs that use the database
	asked   asked         // by Deliver

	turns   *turns
	woken   chan struct{} // has an element if toLook is not empty
	mu      sync.Mutex
	toLook  map[int64]bool // accounts with new events
	idle    map[int64]bool // accounts without an enabled webhook, since the last sweep
	running map[int64]bool // the jobs that run in this process
	ending  bool
	behind  sync.Once // says that the schema is behind
}

// New returns a worker. Call [Worker.Run] to start it.
func New(options Options) (*Worker, error) {
	w := &Worker{
		options: options, db: options.DB, queries: db.New(options.DB), log: options.Log,
		places: make(chan struct{}, dbParallel), turns: newTurns(dispatchers), woken: make(chan struct{}, 1),
		asked:  asked{woken: make(chan struct{}, 1)},
		toLook: map[int64]bool{}, idle: map[int64]bool{}, running: map[int64]bool{},
	}
	workers := river.NewWorkers()
	if err := river.AddWorkerSafely(workers, &drainWorker{worker: w}); err != nil {
		return nil, fmt.Errorf("delivery: %w", err)
	}
	jobs, err := river.NewClient(riverpgxv5.New(options.DB.Pool()), &river.Config{
		Queues: map[string]river.QueueConfig{
			fastQueue: {MaxWorkers: maxFast, FetchCooldown: fetchCooldown},
			slowQueue: {MaxWorkers: maxSlow, FetchCooldown: fetchCooldown},
		},
		Workers:                     workers,
		Hooks:                       []rivertype.Hook{&dueAtOnce{}},
		FetchCooldown:               notifyCooldown,
		FetchPollInterval:           pollInterval,
		JobTimeout:                  jobTimeout,
		RescueStuckJobsAfter:        rescueAfter,
		CompletedJobRetentionPeriod: jobRetention,
		CancelledJobRetentionPeriod: jobRetention,
		DiscardedJobRetentionPeriod: jobRetention,
		ReindexerIndexNames:         []string{}, // the role of serve may not reindex
		SoftStopTimeout:             max(options.Grace-finishTimeout, options.Grace/2),
		ErrorHandler:                panics{w.log},
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
	beating, stop := context.WithCancel(context.WithoutCancel(ctx)) // until the last job has ended
	running.Go(func() {
		defer stop()
		w.runJobs(ctx)
	})
	running.Go(func() {
		var h heart
		defer h.release()
		every(beating, beatInterval, func(ctx context.Context) { w.beat(ctx, &h) })
	})
	running.Go(func() { sweep(ctx, lookInterval, w.sweepAccounts) })
	running.Go(func() { sweep(ctx, sweepInterval, w.sweepWebhooks) })
	running.Go(func() { sweep(ctx, sweepInterval, w.settleWebhooks) })
	running.Go(func() { w.deliverAsked(ctx) })
	running.Go(func() { sweep(ctx, countInterval, w.countFailing) })
	running.Go(func() { sweep(ctx, expiryInterval, w.expireMessages) })
	running.Go(func() { w.lookAtWoken(ctx) })
	for range dispatchers {
		running.Go(func() { w.dispatch(ctx) })
	}
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

// place waits for a place of the connections of jobs.
func (w *Worker) place(ctx context.Context) (leave func(), err error) {
	select {
	case w.places <- struct{}{}:
		return func() { <-w.places }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// transact runs an action of a job in a transaction, when there is a place for it.
func transact[Result any](ctx context.Context, w *Worker, action func(context.Context, pgx.Tx) (Result, error)) (result Result, err error) {
	leave, err := w.place(ctx)
	if err != nil {
		return result, err
	}
	defer leave()
	return postgres.Transact(ctx, w.db, action)
}

// change runs an action of a job in a transaction, when there is a place for it. The transaction
// numbers the events that the action returns together with COMMIT, because all writers of
// the account wait for that. It then wakes those that wait for them.
func (w *Worker) change(ctx context.Context, accountID int64, action func(context.Context, *db.Queries) ([]event.Event, error)) error {
	leave, err := w.place(ctx)
	if err != nil {
		return err
	}
	emitted := 0
	err = postgres.TransactThen(ctx, w.db, func(ctx context.Context, tx pgx.Tx, last *postgres.Pipeline) error {
		events, err := action(ctx, db.New(tx))
		if err == nil {
			event.Queue(ctx, db.New(last), accountID, events)
		}
		emitted = len(events)
		return err
	})
	leave()
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

// sweep runs an action as [every] does. After an action that takes long, it rests longer.
func sweep(ctx context.Context, interval time.Duration, action func(context.Context)) {
	every(ctx, interval, func(ctx context.Context) {
		began := time.Now()
		action(ctx)
		pause(ctx, min(restFactor*time.Since(began), maxRest)-interval)
	})
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

// warn logs an error, unless it is the end of ctx or comes from a schema that is not
// migrated yet.
func (w *Worker) warn(ctx context.Context, message string, err error) {
	if err != nil && ctx.Err() == nil && !w.schemaIsBehind(ctx) {
		w.log.LogAttrs(ctx, slog.LevelWarn, message, slog.Any("error", err)) //nolint:sloglint // the message is a constant of the caller
	}
}

// schemaIsBehind reports whether the schema is behind, and says so once.
func (w *Worker) schemaIsBehind(ctx context.Context) bool {
	if current, err := w.db.SchemaIsCurrent(ctx); err != nil || current {
		return false
	}
	w.behind.Do(func() {
		w.log.LogAttrs(ctx, slog.LevelWarn, "the schema of the database is behind, so no webhooks are delivered; run petstore migrate up")
	})
	return true
}

// panics logs the panics of jobs.
type panics struct{ log *slog.Logger }

// HandleError implements [river.ErrorHandler]. Jobs return no errors.
func (panics) HandleError(context.Context, *rivertype.JobRow, error) *river.ErrorHandlerResult {
	return nil
}

// HandlePanic implements [river.ErrorHandler].
func (p panics) HandlePanic(ctx context.Context, _ *rivertype.JobRow, value any, trace string) *river.ErrorHandlerResult {
	p.log.LogAttrs(ctx, slog.LevelError, "panic while delivering to a webhook", slog.Any("panic", value), slog.String("stack", trace))
	return &river.ErrorHandlerResult{SetCancelled: true} // else River retries it by the clock of this process
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
