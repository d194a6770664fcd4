package delivery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"petstore/db"
	"petstore/internal/event"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/telemetry"
	"petstore/internal/tools/need"
	"petstore/internal/webhook"
)

// trial is a transaction, and all of a state of the model that it can depend on.
type trial struct {
	stored

	what    stepKind
	process process
}

// seen is the effect of a trial.
type seen struct {
	Stored      stored
	IsNewNumber bool // the lease has another number
	IsRenewed   bool // it is valid for 15 seconds from then
	Process     process
}

// trials returns all trials of the states of the model.
func (all *search) trials(to map[trial]bool) {
	for _, s := range all.States {
		for i := range all.processes {
			p := &s.processes[i]
			to[trial{s.stored, stepDispatch, process{}}] = true
			to[trial{s.stored, stepSweep, process{}}] = true
			to[trial{s.stored, stepClaim, process{phase: phaseWoken}}] = true
			if s.lease == leaseExpired {
				to[trial{s.stored, stepLeave, process{phase: phaseWoken}}] = true
			}
			to[trial{s.stored, stepRead, process{phase: phaseDraining, fresh: true, target: true}}] = true
			if s.enabled {
				to[trial{s.stored, stepDisable, process{}}] = true
			} else {
				to[trial{s.stored, stepEnable, process{}}] = true
			}
			if p.phase < phaseDraining {
				continue
			}
			to[trial{s.stored, stepRenew, process{phase: phaseDraining, current: p.current}}] = true
			to[trial{s.stored, stepTarget, process{phase: phaseDraining, current: p.current}}] = true
			to[trial{s.stored, stepRelease, process{phase: phaseReleasing, current: p.current}}] = true
			results := process{phase: phaseDraining, current: p.current}
			for e, one := range p.slots {
				if one.state >= slotSucceeded {
					results.slots[e] = slot{state: one.state, attempts: one.attempts}
				}
			}
			if results.isBusy(slotSucceeded) {
				to[trial{s.stored, stepRecord, results}] = true
			}
		}
	}
}

// predict returns what the model does.
func (m model) predict(t trial) seen {
	s := state{stored: t.stored}
	s.processes[0], s.processes[1] = t.process, process{current: true} // the other one loses its lease to a new number
	_, _ = m.take(&s, step{what: t.what})
	return s.seen(t.what)
}

// seen returns what a step of the first process has done.
func (s *state) seen(what stepKind) seen {
	p := &s.processes[0]
	isRenewed := what == stepClaim && p.phase == phaseDraining || what == stepRenew && p.fresh
	return seen{s.stored, !s.processes[1].current, isRenewed, process{phase: p.phase, stopped: p.stopped, target: p.target && what == stepTarget, rest: p.rest, slots: p.slots}}
}

// lab is a database for trials. Each has an account with a webhook.
type lab struct {
	t        *testing.T
	owner    *pgtest.Database
	worker   *Worker
	newcomer *Worker // another one, which has just begun
	queries  *db.Queries
	began    time.Time // by the clock of the database
}

// firstAccount and number are the account of the first trial and the number of the leases.
const firstAccount, number = 100_001, 7

func newLab(t *testing.T, tracers ...pgx.QueryTracer) *lab {
	t.Helper()
	owner := pgtest.New(t)
	database := pgtest.Open(t, owner.URL, Connections, tracers...)
	options := Options{DB: database, Vault: &webhook.Vault{}, Metrics: telemetry.NewMetrics(), Log: slog.New(slog.DiscardHandler)}
	l := &lab{t: t, owner: owner, worker: New(options), newcomer: New(options), queries: db.New(database)}
	l.worker.TakeOver()
	l.began = pgtest.Read[time.Time](t, owner.Pool, "SELECT statement_timestamp()")
	return l
}

func (l *lab) exec(sql string, args ...any) {
	l.t.Helper()
	pgtest.Exec(l.t, l.owner.Pool, sql, args...)
}

// valueOf returns the only value of a query.
func valueOf[T any](l *lab, sql string, args ...any) T {
	l.t.Helper()
	return pgtest.Read[T](l.t, l.owner.Pool, sql, args...)
}

// endpointOf returns the webhook of a trial.
func endpointOf(trial int) endpoint {
	return endpoint{firstAccount + int64(trial), fmt.Sprintf("wh_%032x", firstAccount+trial)}
}

// store stores what trials begin with. Tasks of the worker only note that they are started.
func (l *lab) store(trials []trial) {
	l.t.Helper()
	var accounts, lasts, afters, untils, leases, ofRows, sequences, attempts []int64
	var isEnabled, isDue []bool
	var ids, states []string
	for i, s := range trials {
		to := endpointOf(i)
		l.worker.webhooks.again[to] = false
		accounts, ids = append(accounts, to.AccountID), append(ids, to.WebhookID)
		lasts, afters, untils = append(lasts, int64(s.last)), append(afters, int64(s.after)), append(untils, int64(s.until))
		leases, isEnabled = append(leases, int64(s.lease)), append(isEnabled, s.enabled)
		for e, r := range s.rows {
			if r.rows > 0 {
				ofRows, sequences, attempts = append(ofRows, to.AccountID), append(sequences, int64(e+1)), append(attempts, int64(r.attempts))
				states, isDue = append(states, []string{"pending", "delivered", "failed"}[r.status]), append(isDue, r.due)
			}
		}
	}
	l.exec("INSERT INTO accounts (id, name) SELECT id, 'account ' || id FROM unnest($1::bigint[]) AS id", accounts)
	l.exec("INSERT INTO account_state (account_id, last_sequence) SELECT unnest($1::bigint[]), unnest($2::bigint[])", accounts, lasts)
	l.exec(`
		INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data)
		SELECT account_id, sequence, now(), 1, 'pet.created', '/pets/1', '{}' FROM account_state, generate_series(1, last_sequence) AS sequence`)
	l.exec(`
		INSERT INTO webhooks (account_id, id, url, types, secret, unsettled_after, status, disabled_reason, after_sequence, until_sequence, lease, lease_until)
		SELECT account_id, id, 'http://127.0.0.1:1/', '{pet.created}', $1, NULL, CASE WHEN is_enabled THEN 'enabled' ELSE 'disabled' END, CASE WHEN NOT is_enabled THEN 'manual' END,
		       after, nullif(until, $2), $3, CASE lease WHEN $4 THEN $6::timestamptz + interval '100 seconds' WHEN $5 THEN $6 END
		FROM (SELECT unnest($7::bigint[]) AS account_id, unnest($8::text[]) AS id, unnest($9::boolean[]) AS is_enabled, unnest($10::bigint[]) AS after, unnest($11::bigint[]) AS until, unnest($12::bigint[]) AS lease) AS made`,
		make([]byte, 33), noUntil, number, leaseValid, leaseExpired, l.began, accounts, ids, isEnabled, afters, untils, leases)
	l.exec(`
		INSERT INTO webhook_deliveries (account_id, id, webhook_id, event_id, sequence, type, status, attempts, next_attempt_at)
		SELECT account_id, 'dlv_' || lpad(to_hex(sequence), 32, '0'), 'wh_' || lpad(to_hex(account_id), 32, '0'), 'evt_' || sequence, sequence, 'pet.created', status,
		       (SELECT jsonb_agg('{}'::jsonb) FROM generate_series(1, attempts)), CASE WHEN status = 'pending' THEN now() + CASE WHEN is_due THEN '0' ELSE interval '1 day' END END
		FROM (SELECT unnest($1::bigint[]) AS account_id, unnest($2::bigint[]) AS sequence, unnest($3::text[]) AS status, unnest($4::bigint[]) AS attempts, unnest($5::boolean[]) AS is_due) AS made`,
		ofRows, sequences, states, attempts, isDue)
}

// prolong lets the valid leases outlive a slow test. A sweep would shorten them.
func (l *lab) prolong() {
	l.exec("UPDATE webhooks SET lease_until = $2 WHERE lease_until > $1", l.began, l.began.Add(24*time.Hour))
}

// read reads what trials have stored.
func (l *lab) read(count int) []seen {
	l.t.Helper()
	all := make([]seen, count)
	rows := need.Value(l.owner.Pool.Query(l.t.Context(), `
		SELECT account_id - $1, last_sequence, after_sequence, coalesce(until_sequence, $2), status = 'enabled',
		       CASE WHEN lease_until IS NULL THEN $3::int WHEN lease_until > $5::timestamptz THEN $4 ELSE $6 END,
		       lease > $7, coalesce(lease_until BETWEEN $5 + interval '15 seconds' AND statement_timestamp() + interval '15 seconds', false)
		FROM webhooks JOIN account_state USING (account_id)`,
		firstAccount, noUntil, leaseNone, leaseValid, l.began, leaseExpired, number))(l.t)
	var at int64
	var s stored
	var isNewNumber, isRenewed bool
	columns := []any{&at, &s.last, &s.after, &s.until, &s.enabled, &s.lease, &isNewNumber, &isRenewed}
	need.Value(pgx.ForEachRow(rows, columns, func() error {
		all[at].Stored, all[at].IsNewNumber, all[at].IsRenewed = s, isNewNumber, isRenewed
		return nil
	}))(l.t)
	rows = need.Value(l.owner.Pool.Query(l.t.Context(), `
		SELECT account_id - $1, sequence - 1, count(*), CASE min(status) WHEN 'pending' THEN $2::int WHEN 'delivered' THEN $3 ELSE $4 END,
		       coalesce(bool_or(next_attempt_at <= statement_timestamp()), false), min(jsonb_array_length(attempts))
		FROM webhook_deliveries GROUP BY account_id, sequence`,
		firstAccount, rowPending, rowDelivered, rowFailed))(l.t)
	var e int
	var r row
	need.Value(pgx.ForEachRow(rows, []any{&at, &e, &r.rows, &r.status, &r.due, &r.attempts}, func() error {
		if r.status == rowPending && r.attempts == 0 {
			r.attempts = firstAttempts // a new one
		}
		all[at].Stored.rows[e] = r
		return nil
	}))(l.t)
	return all
}

// drain returns the drain of a process of the model.
func (l *lab) drain(to endpoint, of process) *drain {
	lease := int64(number)
	if !of.current {
		lease--
	}
	return &drain{Worker: l.worker, endpoint: to, payer: to.AccountID, pool: l.worker.fast, ending: make(chan struct{}), lease: lease}
}

// results returns the results that a process of the model has.
func results(of process) (all []result) {
	for e, one := range of.slots {
		if one.state >= slotSucceeded {
			all = append(all, result{delivery: delivery{position: position{never, fmt.Sprintf("dlv_%032x", e+1)}, attempts: int(one.attempts)}, httpStatus: statuses[one.state]})
		}
	}
	return all
}

// isStarted reports whether the task of a webhook was started since the last call.
func (l *lab) isStarted(to endpoint) bool {
	l.worker.webhooks.mu.Lock()
	defer l.worker.webhooks.mu.Unlock()
	defer func() { l.worker.webhooks.again[to] = false }()
	return l.worker.webhooks.again[to]
}

// try runs the transaction of a process, and returns the process afterwards.
func (l *lab) try(ctx context.Context, to endpoint, what stepKind, of process) (after process, err error) {
	d := l.drain(to, of)
	after = process{phase: of.phase, slots: of.slots}
	switch what {
	case stepDispatch:
		var left rest
		left, err = l.worker.dispatchTurn(ctx, to.AccountID, to.AccountID)
		after.rest = left != restNone
	case stepClaim, stepLeave:
		if what == stepLeave {
			d.Worker = l.newcomer
		}
		var isClaimed bool
		if isClaimed, err = d.claim(ctx); isClaimed {
			after.phase = phaseDraining
		} else {
			after.phase = phaseIdle
		}
	case stepRenew:
		var skipped []*drain
		if skipped, err = l.worker.renew(ctx, to.AccountID, []*drain{d}); len(skipped) > 0 {
			err = d.renewLocked(ctx)
		}
	case stepTarget:
		var found *target
		found, err = d.where(ctx)
		after.target = found != nil
	case stepRead:
		var due []delivery
		due, err = d.due(ctx, position{}, maxEvents)
		for _, one := range due {
			after.slots[one.sequence-1] = slot{state: slotRead, attempts: int8(one.attempts)}
		}
	case stepRecord:
		after.slots = [maxEvents]slot{}
		_, err = postgres.Transact(ctx, l.worker.db, func(ctx context.Context, tx pgx.Tx) ([]event.Event, error) {
			return d.recordOnce(ctx, db.New(tx), results(of))
		})
	case stepRelease:
		var rest db.WebhookDueRow
		rest, err = d.release(ctx)
		after.phase, after.rest = phaseReleased, rest.IsDue
	case stepDisable, stepEnable:
		_, err = postgres.Transact(ctx, l.worker.db, func(ctx context.Context, tx pgx.Tx) (any, error) {
			return nil, change(ctx, db.New(tx), to, what)
		})
	default: // no transaction of a process
		err = errors.ErrUnsupported
	}
	if l.isStarted(to) {
		after.phase = phaseWoken
	}
	after.stopped = d.stopped
	return after, err
}

// change disables or enables a webhook as a request does.
func change(ctx context.Context, queries *db.Queries, to endpoint, what stepKind) error {
	if _, err := queries.WebhookGetLocked(ctx, db.WebhookGetLockedParams{AccountID: to.AccountID, ID: to.WebhookID}); err != nil {
		return err
	}
	params := db.WebhookUpdateParams{AccountID: to.AccountID, ID: to.WebhookID, URL: "http://127.0.0.1:1/", Types: []string{"pet.created"}, Status: "enabled"}
	if what == stepDisable {
		params.Status, params.DisabledReason = "disabled", new("manual")
	}
	_, err := queries.WebhookUpdate(ctx, params)
	return err
}

// transactionMistakes are the mistakes of a transaction alone.
var transactionMistakes = []string{
	claimsValidLease, claimsNoExpired, claimsSameNumber, claimsDisabled, renewsAnyNumber, renewsReleased, recordsAnyNumber,
	recordsTwice, releasesAnyNumber, looksNot, readsAnyTarget, wakesNobody, disablesWithoutEnd, forgetsRetries,
}

// TestLeaseModelOnDatabase runs every transaction in every state that the model reaches, and
// compares it with the model. The results differ from those of a model with a mistake.
func TestLeaseModelOnDatabase(t *testing.T) {
	t.Parallel()
	made := map[trial]bool{}
	for _, found := range searched() {
		found.trials(made)
	}
	trials := slices.Collect(maps.Keys(made))
	l := newLab(t)
	l.store(trials)
	need.OK(t, l.worker.sweepWebhooks(t.Context())) // of the webhooks of all trials
	l.prolong()
	indices, after := make([]int, len(trials)), make([]process, len(trials))
	for i, one := range trials {
		indices[i] = i
		if l.isStarted(endpointOf(i)) && one.what == stepSweep {
			after[i].phase = phaseWoken
		}
	}
	inParallel(indices, func(i int) {
		if trials[i].what == stepSweep {
			return
		}
		var err error
		if after[i], err = l.try(t.Context(), endpointOf(i), trials[i].what, trials[i].process); err != nil {
			t.Errorf("%+v: %v", trials[i], err)
		}
	})
	got := l.read(len(trials))
	for i, one := range trials {
		got[i].Process = after[i]
		if want := (model{}).predict(one); got[i] != want {
			t.Fatalf("%+v: %+v, want %+v", one, got[i], want)
		}
	}
	t.Logf("%d trials", len(trials))
	for _, mistake := range transactionMistakes {
		differ := 0
		for i, one := range trials {
			if (model{mistake: mistake}).predict(one) != got[i] {
				differ++
			}
		}
		if t.Logf("%s: %d trials differ", mistake, differ); differ == 0 {
			t.Errorf("no trial shows: %s", mistake)
		}
	}
}

// overlap is a transaction that begins while another process has not committed one.
type overlap struct {
	stored

	first, second   stepKind
	holder, waiting process
}

// overlaps returns all pairs of transactions for a webhook that has one delivery which is due
// and one event to dispatch. Two transactions of a process with a lease can overlap, too.
func overlaps() (all []overlap) {
	kinds := []stepKind{stepDispatch, stepDisable, stepClaim, stepRenew, stepRecord, stepRelease}
	for lease := leaseNone; lease <= leaseExpired; lease++ {
		s := stored{last: 2, after: 1, until: noUntil, enabled: true, lease: lease, rows: [maxEvents]row{{rows: 1, due: true, attempts: firstAttempts}}}
		for _, first := range kinds {
			for _, second := range kinds {
				for _, isCurrent := range []bool{false, true} {
					all = append(all, overlap{s, first, second, processFor(first, lease != leaseNone), processFor(second, lease != leaseNone && isCurrent)})
				}
			}
		}
	}
	return all
}

// processFor returns a process before a transaction.
func processFor(what stepKind, isCurrent bool) process {
	switch what {
	case stepClaim:
		return process{phase: phaseWoken}
	case stepRenew:
		return process{phase: phaseDraining, current: isCurrent}
	case stepRecord:
		return process{phase: phaseDraining, current: isCurrent, slots: [maxEvents]slot{{state: slotSucceeded, attempts: firstAttempts}}}
	case stepRelease:
		return process{phase: phaseReleasing, current: isCurrent}
	default:
		return process{}
	}
}

// predict returns what the model does if the transactions do not overlap.
func (o overlap) predict(isReverse bool) seen {
	s := state{stored: o.stored}
	s.processes[0], s.processes[1] = o.waiting, o.holder
	for i := range 2 {
		if (i == 0) == isReverse {
			_, _ = model{}.take(&s, step{what: o.second})
		} else {
			_, _ = model{}.take(&s, step{what: o.first, process: 1})
		}
	}
	after := s.seen(o.second)
	after.IsNewNumber, after.IsRenewed = false, false
	return after
}

// hold runs the statements of a transaction, but does not commit it.
func (l *lab) hold(ctx context.Context, queries *db.Queries, to endpoint, what stepKind, of process) (err error) {
	d := l.drain(to, of)
	switch what {
	case stepDispatch:
		_, _, err = l.worker.dispatchPage(ctx, queries, to.AccountID)
	case stepClaim:
		if _, err = queries.WebhookClaim(ctx, db.WebhookClaimParams{AccountID: to.AccountID, ID: to.WebhookID, TakesOver: true}); errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
	case stepRenew:
		_, err = queries.WebhooksRenew(ctx, db.WebhooksRenewParams{AccountID: to.AccountID, Ids: []string{to.WebhookID}, Leases: []int64{d.lease}})
	case stepRecord:
		_, err = d.recordOnce(ctx, queries, results(of))
	case stepRelease:
		_, err = queries.WebhookRelease(ctx, db.WebhookReleaseParams{AccountID: to.AccountID, ID: to.WebhookID, Lease: d.lease})
	case stepDisable:
		err = change(ctx, queries, to, what)
	default:
		err = errors.ErrUnsupported
	}
	return err
}

// TestTransactionsDoNotOverlap: two transactions that overlap have the result of one after the
// other, which the model assumes.
func TestTransactionsDoNotOverlap(t *testing.T) {
	t.Parallel()
	all := overlaps()
	var trials []trial
	for _, o := range all {
		trials = append(trials, trial{stored: o.stored})
	}
	l := newLab(t)
	l.store(trials)
	l.prolong()
	after, waited := make([]process, len(all)), 0
	for i, o := range all {
		to := endpointOf(i)
		second := func() (err error) {
			after[i], err = l.try(t.Context(), to, o.second, o.waiting)
			return err
		}
		holder := pgtest.Begin(t, l.owner.Pool)
		need.OK(t, l.hold(t.Context(), db.New(holder), to, o.first, o.holder))
		if o.second == stepDispatch { // it does not wait, but looks again
			need.OK(t, errors.Join(second(), holder.Commit(t.Context())))
			if after[i].phase == phaseIdle {
				need.OK(t, second())
			}
			continue
		}
		done := make(chan error, 1)
		go func() { done <- second() }()
		var err error
		poll := time.NewTicker(time.Millisecond)
		for waiters := 0; waiters == 0 && len(done) == 0 && err == nil; <-poll.C {
			if waiters, err = pgtest.LockWaiters(t.Context(), l.owner.Pool); waiters > 0 {
				waited++
			}
		}
		poll.Stop()
		need.OK(t, errors.Join(err, holder.Commit(t.Context()), <-done))
	}
	for i, got := range l.read(len(all)) {
		got.IsNewNumber, got.IsRenewed, got.Process = false, false, after[i]
		if in, reverse := all[i].predict(false), all[i].predict(true); got != in && got != reverse {
			t.Errorf("%+v: %+v, want %+v or %+v", all[i], got, in, reverse)
		}
	}
	if t.Logf("%d overlaps, %d waited", len(all), waited); waited < len(all)/3 {
		t.Errorf("only %d of %d transactions waited for the other", waited, len(all))
	}
}

// TestRenewBesideLock: webhooks that somebody has locked do not hold up the renewals of the others of
// their account, nor for long the next look. They keep their process, which waits for a few of them.
func TestRenewBesideLock(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	var log bytes.Buffer
	l.worker.log = slog.New(slog.NewTextHandler(&log, nil))
	l.store([]trial{{stored: stored{enabled: true, until: noUntil, lease: leaseValid}}})
	free := l.drain(endpointOf(0), process{current: true})
	l.worker.leases[free] = true
	var locked []*drain
	for i := range few + 1 {
		d := l.drain(endpoint{firstAccount, fmt.Sprintf("wh_%032d", i)}, process{current: true})
		l.exec(`
			INSERT INTO webhooks (account_id, id, url, types, secret, after_sequence, lease, lease_until)
			SELECT account_id, $1, url, types, secret, after_sequence, lease, lease_until FROM webhooks LIMIT 1`, d.WebhookID)
		l.worker.leases[d] = true
		locked = append(locked, d)
	}
	holder := pgtest.Begin(t, l.owner.Pool)
	pgtest.Exec(t, holder, "SELECT FROM webhooks WHERE account_id = $1 AND id <> $2 FOR UPDATE", free.AccountID, free.WebhookID)
	l.worker.renewLeases(t.Context())
	if waited := strings.Count(log.String(), "webhook that is locked"); free.isExpired() || waited != few {
		t.Errorf("the free one is expired: %t, and %d waited\n%s", free.isExpired(), waited, &log)
	}
	pgtest.Rollback(t, holder)
	for _, d := range locked {
		wasExpired := d.isExpired()
		if err := d.renewLocked(t.Context()); err != nil || !wasExpired || d.isExpired() || d.stopped {
			t.Errorf("expired: %t, and after the lock %t, stopped: %t, %v", wasExpired, d.isExpired(), d.stopped, err)
		}
	}
}

// later is a transaction of a database whose clock is an hour ahead.
type later struct{ pgx.Tx }

func anHourLater(sql string) string {
	return strings.ReplaceAll(sql, "statement_timestamp()", "(statement_timestamp() + interval '1 hour')")
}

func (l later) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return l.Tx.Exec(ctx, anHourLater(sql), args...)
}

func (l later) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return l.Tx.Query(ctx, anHourLater(sql), args...)
}

func (l later) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return l.Tx.QueryRow(ctx, anHourLater(sql), args...)
}

// TestAttemptsByTheDatabase: the next attempt is due, and a pause of the webhook ends, by the clock of
// the database.
func TestAttemptsByTheDatabase(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.store([]trial{{stored: stored{last: 1, after: 1, until: noUntil, enabled: true, lease: leaseValid, rows: [maxEvents]row{{rows: 1, due: true, attempts: firstAttempts}}}}})
	l.exec("UPDATE webhooks SET failures = $1", maxFailures-1)
	l.exec("UPDATE webhook_deliveries SET attempts = '[]'")
	failed := result{delivery: delivery{position: position{never, fmt.Sprintf("dlv_%032x", 1)}}, httpStatus: http.StatusServiceUnavailable}
	need.Value(postgres.Transact(t.Context(), l.worker.db, func(ctx context.Context, tx pgx.Tx) ([]event.Event, error) {
		return l.drain(endpointOf(0), process{current: true}).recordOnce(ctx, db.New(later{tx}), []result{failed})
	}))(t)
	var next, retry time.Time
	const times = "SELECT next_attempt_at, retry_at FROM webhook_deliveries JOIN webhooks USING (account_id)"
	need.OK(t, l.owner.Pool.QueryRow(t.Context(), times).Scan(&next, &retry))
	const ahead, late = time.Hour, time.Minute // late is for a busy machine
	for what, after := range map[string]time.Duration{"the next attempt": next.Sub(l.began), "the end of the pause": retry.Sub(l.began)} {
		if after < ahead || after > ahead+late {
			t.Errorf("%s comes %s after the beginning, want an hour and some seconds", what, after)
		}
	}
}
