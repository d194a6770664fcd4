// Package delivery sends the events of accounts to their webhooks. Any number of processes
// may run a [Worker] on one database.
//
// It has two steps. webhook_deliveries is between them, and is the truth:
//
//  1. Dispatch. A worker follows the feed of each account. It inserts a delivery for each
//     event and each webhook that wants it. The same transaction moves the position of the
//     webhook in the feed.
//  2. Drain. A worker claims a webhook, sends the deliveries that are due, with at most 4
//     requests in flight, and records the results.
//
// # Leases
//
// The row of a webhook has a lease: a number, and the time until which it is valid. All times
// are of the clock of the database.
//
//   - Claim. One UPDATE adds 1 to the number if no other lease is valid, so one process wins.
//     The lease is valid for 15 seconds.
//   - Renew. The process renews its leases about every 5 seconds. A lease of a process that
//     has died runs out, and another process claims the webhook. After an outage of the database, it
//     waits for 8 seconds, so that a process that lives can renew its lease and record its results.
//     If the clock goes back, a sweep shortens leases and pauses that end in more than 2 minutes.
//     A delivery that was added before it went back waits until the clock has caught up.
//   - Record. A transaction locks the row and records results only if the number has not
//     changed. So a process that was frozen records nothing after another one has
//     taken over. It also sends nothing after 15 seconds of its own clock without a renewal.
//   - Release. A transaction first ends the lease, then looks for deliveries that are due. If
//     there are any, it claims the webhook again.
//
// The tests search all interleavings of a model of these rules, and compare it with the database.
//
// No delivery is added unseen. A transaction that adds deliveries or makes them due locks the
// row of the webhook, and wakes the drain after its commit. If the lock comes before the
// release, the release waits for it and sees the deliveries. If it comes after, the webhook
// can be claimed. Deliveries that become due with time are found by a sweep, once a second.
// Each transaction has the rows of one account, so on Citus it runs on one shard.
//
// A process that dies loses nothing: its unrecorded deliveries are sent again. A result is
// recorded once, although the connection breaks at COMMIT: the delivery must have as many
// attempts as before it was sent.
//
// # Shares
//
// Places at the database, to dispatch, to adapt messages and to deliver are shared by payer
// ([petstore/internal/admission]). A drain goes on as long as something is due and nobody
// waits for a place. Otherwise it releases after a second, and waits for its next turn.
// Webhooks that fail, or that took long lately, have places of their own, because their
// requests may take 15 seconds each.
//
// # Failures
//
// A delivery has ten attempts. After ten failed attempts in a row, of any of its deliveries,
// a webhook pauses: 1 second, then twice as long each time, up to a minute. Then one delivery
// is sent. If it succeeds, everything that is due follows. A pause counts no attempts. So
// after a failed attempt of a webhook that has failed for 84 hours, deliveries that are as old
// fail. Those that a request has retried within the last hour wait for their attempts.
package delivery

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/admission"
	"petstore/internal/event"
	"petstore/internal/faults"
	"petstore/internal/postgres"
	"petstore/internal/sleep"
	"petstore/internal/telemetry"
	"petstore/internal/webhook"
)

// Connections is the number of database connections that the pool of a worker should have.
const Connections = 10

const (
	// lookInterval is the time between two looks for events that another process has
	// written, and sweepInterval that between two looks for deliveries that are due.
	lookInterval  = 500 * time.Millisecond
	sweepInterval = time.Second
	// restFactor is how much longer than its own time a sweep rests, up to maxRest. So sweeps of
	// many webhooks do not keep the database busy.
	restFactor = 5
	maxRest    = 5 * time.Second
	// countInterval is the time between two counts of webhooks that fail.
	countInterval = 15 * time.Second
	// expiryInterval is the time between two looks for messages that wait too long.
	expiryInterval = 5 * time.Minute
	// finishTimeout limits the release of a lease when the worker stops.
	finishTimeout = 2 * time.Second
)

// Options are the dependencies of a worker.
type Options struct {
	// DB has [Connections] connections of its own, so that requests to the API do not wait
	// for the worker.
	DB *postgres.DB
	// Client sends the requests. It must check their addresses.
	Client *http.Client
	// Vault opens the stored secrets.
	Vault *webhook.Vault
	// Announce is called after a commit with events; nil: nobody waits for them.
	Announce func(accountID int64)
	// Grace is the time that requests in flight have when the worker stops.
	Grace   time.Duration
	Metrics *telemetry.Metrics
	Log     *slog.Logger
}

// endpoint names a webhook.
type endpoint struct {
	AccountID int64
	WebhookID string
}

// Worker dispatches and delivers. It is safe for concurrent use.
type Worker struct {
	options Options
	db      *postgres.DB
	queries *db.Queries
	log     *slog.Logger
	faults  *faults.Injector // of sandboxes

	places      *admission.Pool // at the database, for drains
	dispatches  *admission.Pool
	settlements *admission.Pool
	fast, slow  *admission.Pool // webhooks

	woken    *inbox[int64]    // by Wake
	asked    *inbox[endpoint] // by Deliver
	accounts *tasks[int64]    // that dispatch
	webhooks *tasks[endpoint] // that deliver
	changed  *tasks[endpoint] // to which messages are adapted

	mu     sync.Mutex
	idle   map[int64]bool // accounts without a webhook to dispatch to, since the last sweep
	leases map[*drain]bool
	unfit  sync.Once // says that the schema does not fit

	responsive, responded time.Time // since when the database responds without a long gap, and when it last did
}

// New returns a worker. Call [Worker.Run] to start it.
func New(options Options) *Worker {
	places := admission.New(admission.DeliveryTransactions)
	bounded := options.DB.Bounded(leaseTime) // a longer transaction has lost its lease
	return &Worker{
		options: options, db: bounded, queries: db.New(bounded), log: options.Log, faults: faults.New(bounded, nil, places),
		places: places, dispatches: admission.New(admission.Dispatches), settlements: admission.New(admission.Settlements),
		fast: admission.New(admission.FastWebhooks), slow: admission.New(admission.SlowWebhooks),
		woken: newInbox[int64](), asked: newInbox[endpoint](), accounts: newTasks[int64](options.Log), webhooks: newTasks[endpoint](options.Log), changed: newTasks[endpoint](options.Log),
		idle: map[int64]bool{}, leases: map[*drain]bool{},
	}
}

// Wake tells the worker that an account has new events. It does not block.
func (w *Worker) Wake(accountID int64) {
	w.mu.Lock()
	idle := w.idle[accountID]
	w.mu.Unlock()
	if !idle {
		w.woken.add(accountID)
	}
}

// Deliver tells the worker that a commit has made deliveries to a webhook due.
// It does not block. Without it, the next sweep finds them.
func (w *Worker) Deliver(accountID int64, webhookID string) {
	w.asked.add(endpoint{accountID, webhookID})
}

// Run works until ctx ends. It then starts no requests, and gives those in flight the
// grace of [Options].
func (w *Worker) Run(ctx context.Context) {
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var looking, renewal sync.WaitGroup
	renewal.Go(func() { sleep.Every(renewing, renewInterval, w.renewLeases) }) // until the last drain has ended
	looking.Go(func() { w.db.FollowNodes(ctx, w.log) })
	for i, one := range []struct {
		every   time.Duration
		action  func(context.Context) error
		failure string // the warning of an error
	}{
		{lookInterval, w.sweepAccounts, "could not look for events to deliver"},
		{sweepInterval, w.sweepWebhooks, "could not look for deliveries that are due"},
		{sweepInterval, w.settleWebhooks, "could not look for webhooks that have changed"},
		{countInterval, w.countFailing, "could not count the webhooks that fail"},
		{expiryInterval, w.expireMessages, "could not end messages that wait too long"},
	} {
		looking.Go(func() {
			sleep.Stagger(ctx, i)
			sweep(ctx, one.every, func(ctx context.Context) { w.warn(ctx, one.failure, one.action(ctx)) })
		})
	}
	looking.Go(func() { w.woken.each(ctx, w.lookAtWoken) })
	looking.Go(func() { w.asked.each(ctx, w.deliverAsked) })
	looking.Wait()
	w.accounts.wait()
	w.webhooks.wait()
	w.changed.wait()
	stop()
	renewal.Wait()
}

// change runs an action in a transaction, when its payer has a place for it. The transaction
// numbers the events that the action returns together with COMMIT, because all writers of
// the account wait from then on. It then wakes the requests that wait for events.
func (w *Worker) change(ctx context.Context, payer, accountID int64, action func(context.Context, *db.Queries) ([]event.Event, error)) error {
	if err := w.places.Take(ctx, payer, 1); err != nil {
		return err
	}
	defer w.places.Give(payer, 1)
	ctx = w.db.ForAccounts(ctx, accountID)
	emitted := 0
	err := postgres.TransactThen(ctx, w.db, func(ctx context.Context, tx pgx.Tx, last *postgres.Pipeline) error {
		events, err := action(ctx, db.New(tx))
		if err == nil {
			event.Queue(ctx, db.New(last), accountID, events, event.NewestIDs{})
		}
		emitted = len(events)
		return err
	})
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

// sweep runs an action as [sleep.Every] does. After an action that takes long, it rests longer.
func sweep(ctx context.Context, interval time.Duration, action func(context.Context)) {
	sleep.Every(ctx, interval, func(ctx context.Context) {
		began := time.Now()
		action(ctx)
		sleep.For(ctx, min(restFactor*time.Since(began), maxRest)-interval)
	})
}

// warn logs an error, unless it is the end of ctx or comes from a schema that does not
// fit.
func (w *Worker) warn(ctx context.Context, message string, err error) {
	if err != nil && ctx.Err() == nil && !w.schemaIsUnfit(ctx) {
		w.log.LogAttrs(ctx, slog.LevelWarn, message, slog.Any("error", err)) //nolint:sloglint // the message is a constant of the caller
	}
}

// schemaIsUnfit reports whether the schema does not fit this program, and says so once.
func (w *Worker) schemaIsUnfit(ctx context.Context) bool {
	fit, err := w.db.SchemaFit(ctx)
	if err != nil || fit == postgres.SchemaFits {
		return false
	}
	w.unfit.Do(func() {
		w.log.LogAttrs(ctx, slog.LevelWarn, "no webhooks are delivered", slog.String("reason", fit.Problem()))
	})
	return true
}

// countFailing sets the metric of webhooks that fail.
func (w *Worker) countFailing(ctx context.Context) error {
	count, err := w.queries.WebhooksFailing(postgres.ForAllAccounts(ctx))
	if err == nil {
		w.options.Metrics.SetWebhooksFailing(count)
	}
	return err
}
