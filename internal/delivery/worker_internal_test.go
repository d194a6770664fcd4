package delivery

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"petstore/db"
	"petstore/internal/admission"
	"petstore/internal/event"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// TestRenewLeases: a process renews its leases that are 5 seconds old. It leaves out one that it has
// lost. A renewal shows that the database responds.
func TestRenewLeases(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	held := stored{enabled: true, until: noUntil, lease: leaseValid}
	l.store(slices.Repeat([]trial{{stored: held}}, 3))
	var drains []*drain
	for i, age := range []time.Duration{renewAfter - time.Second, renewAfter, renewAfter} {
		d := l.drain(endpointOf(i), process{current: i < 2})
		d.renewed = time.Now().Add(-age)
		l.worker.leases[d] = true
		drains = append(drains, d)
	}
	l.worker.renewLeases(t.Context())
	for i, got := range l.read(len(drains)) {
		isRenewed := time.Since(drains[i].renewed) < renewAfter-time.Second
		need.Value(drains[i].where(t.Context()))(t)
		if want := i == 1; got.IsRenewed != want || isRenewed != want || drains[i].stopped != (i == 2) {
			t.Errorf("lease %d is renewed: %t, the process knows: %t, and stops: %t", i+1, got.IsRenewed, isRenewed, drains[i].stopped)
		}
	}
	if need.Value(l.newcomer.renew(t.Context(), firstAccount, drains[:1]))(t); l.newcomer.responded.IsZero() {
		t.Error("the process does not note that the database has responded to a renewal")
	}
}

// TestTakeover: after an outage, a process leaves a lease that has run out to the process that had it,
// which records its results. Later it takes such a lease over, and the other process says so.
func TestTakeover(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	expired := sound
	expired.lease = leaseExpired
	l.store([]trial{{stored: expired}})
	var log bytes.Buffer
	l.worker.log = slog.New(slog.NewTextHandler(&log, nil))
	l.newcomer.leases[l.drain(endpoint{firstAccount, "\x00"}, process{})] = true // its renewals fail, as if its node were lost
	claims := func() bool {
		t.Helper()
		l.newcomer.renewLeases(t.Context())
		d := l.drain(endpointOf(0), process{})
		d.Worker = l.newcomer
		isClaimed := need.Value(d.claim(t.Context()))(t)
		return isClaimed
	}
	d := l.drain(endpointOf(0), process{current: true})
	l.worker.leases[d] = true // it is not renewed yet
	due := need.Value(d.due(t.Context(), position{}, 1))(t)
	record := func() string {
		t.Helper()
		need.OK(t, d.record(t.Context(), []result{{delivery: due[0], httpStatus: http.StatusOK}}))
		return valueOf[string](l, "SELECT status FROM webhook_deliveries")
	}
	if claims() {
		t.Error("a process takes over as soon as the database responds")
	}
	l.worker.renewLeases(t.Context())
	if status := record(); d.isExpired() || status != "delivered" || log.Len() > 0 {
		t.Errorf("the lease is expired: %t, the delivery is %s\n%s", d.isExpired(), status, &log)
	}
	if l.worker.responded.After(time.Now()) { // as newLab has said
		t.Error("the process does not ask whether the database responds")
	}
	l.exec("UPDATE webhooks SET lease_until = now()")
	if l.newcomer.responsive = l.newcomer.responsive.Add(-headStart); !claims() {
		t.Error("no process takes over")
	}
	if record(); !d.stopped || !strings.Contains(log.String(), "taken over") {
		t.Errorf("stopped: %t\n%s", d.stopped, &log)
	}
	before := l.newcomer.responded
	l.newcomer.db.Close()
	if l.newcomer.renewLeases(t.Context()); l.newcomer.responded != before {
		t.Error("a database that is closed has responded")
	}
}

// TestClockGoesBack: a sweep shortens a lease and a pause that end later than they can. A process that
// has the lease keeps it. Others stay as they are.
func TestClockGoesBack(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	var log bytes.Buffer
	l.worker.log = slog.New(slog.NewTextHandler(&log, nil))
	held := sound
	held.lease = leaseValid
	l.store([]trial{{stored: held}, {stored: held}, {stored: sound}})
	sweep := func() string {
		t.Helper()
		need.OK(t, l.worker.sweepWebhooks(t.Context()))
		return valueOf[string](l, `
			SELECT string_agg(concat_ws(' ', lease, lease_until <= statement_timestamp() + interval '15 seconds', retry_at <= statement_timestamp()), ', ' ORDER BY account_id)
			FROM webhooks`)
	}
	l.exec("UPDATE webhooks SET retry_at = now() + interval '100 seconds'")
	if got := sweep(); got != "7 f f, 7 f f, 7 f" || log.Len() > 0 {
		t.Errorf("with times that can be, the leases and pauses are %s\n%s", got, &log)
	}
	l.exec("UPDATE webhooks SET lease_until = CASE WHEN lease_until IS NOT NULL THEN $2::timestamptz END, retry_at = $2 WHERE account_id > $1", firstAccount, l.began.Add(time.Hour))
	if got := sweep(); got != "7 f f, 7 t t, 7 t" || !strings.Contains(log.String(), "gone back\" webhooks=2") {
		t.Errorf("after the clock has gone back, the leases and pauses are %s\n%s", got, &log)
	}
	d := l.drain(endpointOf(1), process{current: true})
	if err := d.renewLocked(t.Context()); err != nil || d.isExpired() {
		t.Errorf("the process has lost its lease: %v", err)
	}
}

// TestTargetAge: a drain reads the URL again after a second, and stops if it has lost its
// lease.
func TestTargetAge(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.store([]trial{{stored: stored{enabled: true, until: noUntil, lease: leaseValid}}})
	d := l.drain(endpointOf(0), process{})
	d.to = &target{readAt: time.Now()}
	if to, err := d.where(t.Context()); to == nil || err != nil || d.stopped {
		t.Errorf("a target that was just read: %v, %v, stopped: %t", to, err, d.stopped)
	}
	d.to.readAt = time.Now().Add(-targetAge)
	if to, err := d.where(t.Context()); to != nil || err != nil || !d.stopped {
		t.Errorf("a target that was read a second ago: %v, %v, stopped: %t", to, err, d.stopped)
	}
}

// TestPersist: an action is repeated until it succeeds, until its context ends, or until others
// wait for the place and may take over the lease.
func TestPersist(t *testing.T) {
	t.Parallel()
	d := newLab(t).drain(endpoint{}, process{})
	ctx, cancel := context.WithCancel(t.Context())
	tries, failure, began := 0, errors.New("no"), time.Now()
	if err := d.persist(ctx, "it fails", func() error {
		if tries++; tries < 3 {
			return failure
		}
		return nil
	}); err != nil || tries != 3 {
		t.Errorf("%v after %d tries, want 3", err, tries)
	}
	if took := time.Since(began); took < 400*time.Millisecond {
		t.Errorf("3 tries take %s, want a pause of 200 ms after each failure", took)
	}
	cancel()
	if err := d.persist(ctx, "it fails", func() error { tries++; return failure }); !errors.Is(err, failure) || tries != 4 {
		t.Errorf("%v after %d tries, want 1", err, tries-3)
	}

	// Others wait for the only place.
	d.pool = admission.New(admission.Resource{Total: 1, Wait: admission.Forever})
	for payer := range int64(2) {
		need.Background(t, func(ctx context.Context) { _ = d.pool.Take(ctx, payer, 1) })
	}
	for !d.pool.IsContended() {
		runtime.Gosched()
	}
	since := d.responsive
	for age, want := range map[time.Duration]int{0: 2, leaseTime + time.Minute: 1, leaseTime + time.Hour: 2} {
		d.renewed, d.responsive, tries = time.Now().Add(-age), since, 0
		if age > time.Hour { // the database does not respond, either
			d.responsive = time.Now()
		}
		if err := d.persist(t.Context(), "it fails", func() error {
			if tries++; tries < 2 {
				return failure
			}
			return nil
		}); tries != want || (err == nil) != (want == 2) {
			t.Errorf("%v after %d tries with a lease from %s ago, want %d", err, tries, age, want)
		}
	}
}

// sound is a webhook with a delivery that is due and an event to dispatch.
var sound = stored{last: 2, after: 1, until: noUntil, enabled: true, rows: [maxEvents]row{{rows: 1, due: true, attempts: firstAttempts}}}

// TestSweeps: the sweeps find the work of more accounts than a page has. While a node of a
// cluster is lost, they find the work of the accounts of the other node.
func TestSweeps(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	trials := slices.Repeat([]trial{{stored: sound}}, page+3)
	trials[page+1].stored.after, trials[page+2].stored.after = sound.last, sound.last
	l.store(trials)
	l.sweepAll("all", func(int64) bool { return true })

	if pgtest.Is(pgtest.Citus) { // the database has real nodes
		return
	}
	l.exec(pgtest.TwoNodes + "; INSERT INTO dead VALUES (2)")
	need.Background(t, func(ctx context.Context) { l.worker.db.FollowNodes(ctx, slog.New(slog.DiscardHandler)) })
	for deadline := time.Now().Add(time.Minute); !l.worker.db.HasLostNode(); { // an error of the dead node shows that it is dead
		if time.Now().After(deadline) {
			t.Fatal("the dead node is not found")
		}
		_, _ = l.worker.db.Exec(t.Context(), "SELECT run_on(account_id) FROM account_state")
	}
	l.sweepAll("the reachable", func(accountID int64) bool { return len(l.worker.db.Reachable([]int64{accountID})) == 1 })
}

// sweepAll sweeps the stored trials, and checks what is started. The last two accounts have
// no event to dispatch.
func (l *lab) sweepAll(which string, isReachable func(accountID int64) bool) {
	l.t.Helper()
	for i := range page + 3 {
		l.worker.accounts.again[endpointOf(i).AccountID] = false
	}
	l.exec("UPDATE webhooks SET unsettled_after = ''")
	need.OK(l.t, errors.Join(l.worker.sweepWebhooks(l.t.Context()), l.worker.sweepAccounts(l.t.Context()), l.worker.settleWebhooks(l.t.Context())))
	l.worker.changed.wait()
	unsettled := valueOf[[]int64](l, "SELECT coalesce(array_agg(account_id), '{}') FROM webhooks WHERE unsettled_after IS NOT NULL")
	undispatched := 0
	for i := range page + 3 {
		to := endpointOf(i)
		want := isReachable(to.AccountID)
		hasEvents := want && i <= page
		if hasEvents {
			undispatched++
		}
		if delivers, dispatches, settles := l.isStarted(to), l.worker.accounts.again[to.AccountID], !slices.Contains(unsettled, to.AccountID); delivers != want || dispatches != hasEvents || settles != want {
			l.t.Fatalf("the sweeps of %s accounts deliver: %t, dispatch: %t, settle: %t; account %d", which, delivers, dispatches, settles, i+1)
		}
	}
	if got := scrape(l.t, l.worker, "petstore_webhook_undispatched_events"); got != strconv.Itoa(undispatched) {
		l.t.Errorf("%s undispatched events of %s accounts, want %d", got, which, undispatched)
	}
}

// TestOldestDelivery: a delivery counts as unclaimed if no process delivers to its webhook, which is not
// slow, because one client can have many slow webhooks.
func TestOldestDelivery(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	held := sound
	held.lease = leaseValid
	l.store([]trial{{stored: held}, {stored: sound}})
	l.exec("UPDATE webhook_deliveries SET next_attempt_at = now() - CASE account_id WHEN $1 THEN interval '2 hours' ELSE interval '1 hour' END", firstAccount)
	wantHours := func(oldest, unclaimed int) {
		t.Helper()
		need.OK(t, l.worker.sweepWebhooks(t.Context()))
		for name, want := range map[string]int{`petstore_webhook_oldest_due_seconds{failing="false"}`: oldest, "petstore_webhook_oldest_unclaimed_seconds": unclaimed} {
			seconds := need.Value(strconv.ParseFloat(scrape(t, l.worker, name), 64))(t)
			need.Same(t, want, int(seconds/time.Hour.Seconds()), "%s in hours", name)
		}
	}
	wantHours(2, 1)
	l.exec("UPDATE webhooks SET slow_until = now() + interval '1 minute' WHERE account_id > $1", firstAccount)
	wantHours(2, 0)
	l.exec("UPDATE webhooks SET slow_until = NULL, failing_since = now() WHERE account_id > $1", firstAccount)
	wantHours(2, 0)
}

// TestMetricsOfUnreachableDatabase: a worker that does not reach the database no longer reports what
// it has read before. Each sweep forgets what it has read itself.
func TestMetricsOfUnreachableDatabase(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	events := []string{"petstore_webhook_undispatched_events"}
	webhooks := []string{
		`petstore_webhooks_due{failing="false"}`, `petstore_webhook_oldest_due_seconds{failing="true"}`,
		"petstore_webhook_oldest_unclaimed_seconds", "petstore_webhooks_failing",
	}
	reports := func(want string, names []string) {
		t.Helper()
		for _, name := range names {
			if got := scrape(t, l.worker, name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
	}
	need.OK(t, errors.Join(l.worker.sweepAccounts(t.Context()), l.worker.sweepWebhooks(t.Context()), l.worker.countFailing(t.Context())))
	reports("0", slices.Concat(events, webhooks))
	l.worker.db.Close()
	if err := l.worker.sweepAccounts(t.Context()); err == nil {
		t.Error("a worker dispatches without a database")
	}
	reports("", events)
	reports("0", webhooks)
	if err := l.worker.sweepWebhooks(t.Context()); err == nil {
		t.Error("a worker drains without a database")
	}
	reports("", webhooks)
}

// TestLookAt: a worker that is woken dispatches what there is, and remembers the accounts
// without a webhook.
func TestLookAt(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	done := sound
	done.after = done.last
	l.store([]trial{{stored: sound}, {stored: done}, {stored: done}})
	const none = firstAccount + 2
	l.exec("DELETE FROM webhook_deliveries WHERE account_id = $1", none)
	l.exec("DELETE FROM webhooks WHERE account_id = $1", none)
	for i := range 3 {
		l.worker.accounts.again[endpointOf(i).AccountID] = false
	}
	need.OK(t, l.worker.lookAt(t.Context(), []int64{firstAccount, firstAccount + 1, none}))
	if again := l.worker.accounts.again; !again[firstAccount] || again[firstAccount+1] || again[none] {
		t.Errorf("started: %v, want only the first one", again)
	}
	if len(l.worker.idle) != 1 || !l.worker.idle[none] {
		t.Errorf("without a webhook: %v, want the third one", l.worker.idle)
	}
	for i := range 3 {
		l.worker.Wake(endpointOf(i).AccountID)
	}
	if len(l.worker.woken.keys) != 2 || l.worker.woken.keys[none] {
		t.Errorf("woken: %v, want the first two", l.worker.woken.keys)
	}
}

// TestTrial: after ten failures in a row, a drain reads one delivery. Before, it reads all. The
// pause before has ended when the drain has claimed the webhook, whatever a request asks for then.
func TestTrial(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	free := sound
	free.rows[1] = row{rows: 1, due: true, attempts: firstAttempts}
	l.store([]trial{{stored: free}, {stored: free}})
	longAgo := time.Unix(1e9, 0)
	var d *drain
	for i, want := range []int{2, 1} {
		to := endpointOf(i)
		l.exec("UPDATE webhooks SET failures = $1, retry_at = $2 WHERE account_id = $3", maxFailures-1+i, longAgo, to.AccountID)
		d = &drain{Worker: l.worker, endpoint: to, payer: to.AccountID, pool: l.worker.fast, ending: t.Context().Done()}
		if claimed, err := d.claim(t.Context()); err != nil || !claimed || !d.pauseEnd.Equal(longAgo) {
			t.Fatalf("claimed %t at %s, %v", claimed, d.pauseEnd, err)
		}
		need.OK(t, l.queries.WebhookRetryNow(t.Context(), db.WebhookRetryNowParams{AccountID: to.AccountID, ID: to.WebhookID}))
		queue := make(chan delivery, maxEvents)
		if err := d.read(t.Context(), queue); err != nil || len(queue) != want || d.isTrial != (want == 1) {
			t.Errorf("after %d failures, a drain reads %d deliveries, %v; want %d", maxFailures-1+i, len(queue), err, want)
		}
		if !d.pauseEnd.Equal(longAgo) {
			t.Errorf("after %d failures, a request ended the pause at %s", maxFailures-1+i, d.pauseEnd)
		}
	}
	l.exec("UPDATE webhooks SET lease_until = NULL, retry_at = now() + interval '1 minute'")
	if claimed, err := d.claim(t.Context()); err != nil || claimed {
		t.Errorf("a process claims a webhook that pauses: %t, %v", claimed, err)
	}
	l.exec("UPDATE webhook_deliveries SET next_attempt_at = now() + interval '1 hour'")
	if queue := make(chan delivery, 1); d.readTrial(t.Context(), queue) != nil || len(queue) > 0 {
		t.Error("a trial without a delivery that is due fails")
	}
}

// beforeDue calls a function before each statement that reads deliveries, with the size of the page.
func beforeDue(do *func(page int32)) pgtest.Around {
	return pgtest.Statements(func(sql string, args []any) {
		if strings.HasPrefix(sql, "-- name: DeliveriesDue ") {
			(*do)(args[len(args)-1].(int32))
		}
	})
}

// TestWaitsBeforeSlice: a drain sends, although others wait for its place and its first read has
// taken longer than its slice.
func TestWaitsBeforeSlice(t *testing.T) {
	t.Parallel()
	var slowly func(page int32)
	l := newLab(t, beforeDue(&slowly))
	l.store([]trial{{stored: sound}})
	var requests atomic.Int64
	receiver := need.Server(t, func(http.ResponseWriter, *http.Request) { requests.Add(1) })
	l.worker.options.Client = receiver.Client()
	l.exec("UPDATE webhooks SET url = $1", receiver.URL)
	l.exec("UPDATE webhook_deliveries SET type = 'webhook.test', sequence = NULL, body = '{}'")
	l.worker.fast = admission.New(admission.Resource{Total: 1, Wait: admission.Forever})
	reads := 0
	slowly = func(int32) {
		if reads++; reads == 1 {
			need.Background(t, func(ctx context.Context) { _ = l.worker.fast.Take(ctx, 0, 1) })
			for !l.worker.fast.IsContended() {
				runtime.Gosched()
			}
			<-time.After(slice) // as statements do that wait for their places
		}
	}
	to := endpointOf(0)
	if _, err := l.worker.drainTurn(t.Context(), to, db.WebhookDueRow{PayerID: to.AccountID}); err != nil || requests.Load() != 1 {
		t.Errorf("%d requests, %v; want 1", requests.Load(), err)
	}
}

// TestSlowAmongFast: a drain with a place for fast webhooks leaves a slow one to its next turn.
func TestSlowAmongFast(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.store([]trial{{stored: sound}})
	l.exec("UPDATE webhooks SET slow_until = now() + interval '1 minute'")
	for _, isSlow := range []bool{false, true} {
		d, queue := l.drain(endpointOf(0), process{current: true}), make(chan delivery, maxEvents)
		d.renewed, d.isSlow = time.Now(), isSlow
		if err := d.read(t.Context(), queue); err != nil || (len(queue) > 0) != isSlow {
			t.Errorf("with a slow place %t, the drain reads %d deliveries, %v", isSlow, len(queue), err)
		}
	}
}

// TestPagesAmongMore: a drain reads shorter pages when more drains run. At the end it does not hold any.
func TestPagesAmongMore(t *testing.T) {
	t.Parallel()
	var sized func(page int32)
	l := newLab(t, beforeDue(&sized))
	l.store([]trial{{stored: sound}})
	to := endpointOf(0)
	l.exec(`
		INSERT INTO webhook_deliveries (account_id, id, webhook_id, event_id, type, body, next_attempt_at)
		SELECT $1, 'dlv_' || lpad(to_hex(1000 + n), 32, '0'), $2, 'evt_1', 'webhook.test', '{}', now() FROM generate_series(1, 150) AS n`, to.AccountID, to.WebhookID)
	d := l.drain(to, process{current: true})
	d.renewed, l.worker.leases[d] = time.Now(), true
	var pages []int32
	sized = func(page int32) {
		pages = append(pages, page)
		for range 399 {
			if len(pages) == 1 {
				l.worker.leases[&drain{}] = true
			}
		}
	}
	l.exec("UPDATE webhooks SET lease = $1, lease_until = now() + interval '1 hour'", d.lease)
	queue := make(chan delivery, 151)
	if err := d.read(t.Context(), queue); err != nil || len(queue) != 151 || !slices.Equal(pages, []int32{128, 24, 24}) {
		t.Errorf("%d deliveries in pages of %d, %v; want 151 in 128, 24 and 24", len(queue), pages, err)
	}
	if d.page > 0 {
		t.Errorf("a drain that has read everything holds %d deliveries", d.page)
	}
}

// TestRetryNow: a request asks for another attempt only while a webhook pauses, or while a
// process makes the attempt after a pause.
func TestRetryNow(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	tests := []struct {
		failures int
		lease    leaseState
		pause    string // how much longer
		want     bool
	}{
		{maxFailures, leaseNone, "1 minute", true},
		{maxFailures, leaseValid, "-1 minute", true},
		{maxFailures, leaseExpired, "-1 minute", false},
		{maxFailures, leaseNone, "-1 minute", false},
		{maxFailures - 1, leaseValid, "-1 minute", false},
	}
	trials := slices.Repeat([]trial{{stored: sound}}, len(tests))
	for i := range trials {
		trials[i].stored.lease = tests[i].lease
	}
	l.store(trials)
	for i, test := range tests {
		to := endpointOf(i)
		l.exec("UPDATE webhooks SET failures = $1, retry_at = now() + $2::interval WHERE account_id = $3", test.failures, test.pause, to.AccountID)
		need.OK(t, l.queries.WebhookRetryNow(t.Context(), db.WebhookRetryNowParams{AccountID: to.AccountID, ID: to.WebhookID}))
		const isNow = "SELECT retry_at BETWEEN $1 AND statement_timestamp() FROM webhooks WHERE account_id = $2"
		if got := valueOf[bool](l, isNow, l.began, to.AccountID); got != test.want {
			t.Errorf("case %d: the request asks for an attempt: %t", i, got)
		}
	}
}

// TestPages: webhooks share a page of events. One that has all its events does not count, and
// one that gets none of them is not started. The clock has gone back since the events.
func TestPages(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.store([]trial{{stored: stored{until: noUntil, enabled: true}}})
	to := endpointOf(0)
	l.exec("UPDATE account_state SET last_sequence = $1", 2*page)
	l.exec(`
		INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data)
		SELECT $1, sequence, now() + interval '1 hour', 1, 'pet.created', '/pets/1', '{}' FROM generate_series(1, $2::int) AS sequence`, firstAccount, 2*page)
	l.exec(`
		INSERT INTO webhooks (account_id, id, url, types, secret, unsettled_after, after_sequence)
		SELECT account_id, 'wh_' || repeat(made.digit, 32), url, made.types, secret, unsettled_after, made.sequence
		FROM webhooks, (VALUES ('d', '{*}'::text[], $1::bigint), ('e', '{store.reset}', 0)) AS made (digit, types, sequence)`, 2*page)
	other := endpoint{to.AccountID, "wh_" + strings.Repeat("e", 32)}
	l.worker.webhooks.again[other] = false
	left, err := l.worker.dispatchTurn(t.Context(), to.AccountID, to.AccountID)
	if err != nil || left != restNow || !l.isStarted(to) || l.isStarted(other) {
		t.Errorf("a page leaves %d, %v; want %d, and only the first webhook started", left, err, restNow)
	}
	if got := valueOf[string](l, "SELECT string_agg(after_sequence::text, ' ' ORDER BY id) FROM webhooks"); got != "500 2000 500" {
		t.Errorf("the webhooks are at the events %s, want 500 2000 500", got)
	}
	if count, sum := scrape(t, l.worker, "petstore_webhook_dispatch_lag_seconds_count"), scrape(t, l.worker, "petstore_webhook_dispatch_lag_seconds_sum"); count != "1" || sum != "0" {
		t.Errorf("%s dispatches are counted, which took %s s, want 1 and 0", count, sum)
	}
	l.exec("DELETE FROM events")
	if left, err := l.worker.dispatchTurn(t.Context(), to.AccountID, to.AccountID); err != nil || left != restNone {
		t.Errorf("a page without events leaves %d, %v; want %d", left, err, restNone)
	}
}

// TestIdleWorker: a worker rests between two looks, also when somebody has locked the webhook
// that it dispatches to. It rests longer before it claims a webhook again whose secret it cannot open.
func TestIdleWorker(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	counts := map[string]int{} // of statements, by name
	l := newLab(t, pgtest.Statements(func(sql string, _ []any) {
		name, _, _ := strings.Cut(strings.TrimPrefix(sql, "-- name: "), " ")
		mu.Lock()
		defer mu.Unlock()
		if counts[name]++; name == "DrainWebhooks" && counts[name] == 3 {
			cancel()
		}
	}))
	l.store(slices.Repeat([]trial{{stored: sound}}, 3))
	l.exec("UPDATE webhook_deliveries SET next_attempt_at = now() + interval '1 hour' WHERE account_id = $1", firstAccount)
	l.exec("UPDATE webhooks SET failing_since = now() WHERE account_id <> $1", endpointOf(1).AccountID)
	l.exec("UPDATE webhooks SET secret = '\\x01' WHERE account_id <> $1", firstAccount)
	l.exec("UPDATE account_state SET closed = true WHERE account_id = $1", endpointOf(2).AccountID)
	delete(l.worker.webhooks.again, endpointOf(1)) // it is started
	holder := pgtest.Begin(t, l.owner.Pool)
	pgtest.Exec(t, holder, "SELECT FROM webhooks WHERE account_id = $1 FOR UPDATE", firstAccount)
	began := time.Now()
	l.worker.Run(ctx)
	took := time.Since(began)
	for name, interval := range map[string]time.Duration{
		"DispatchAccounts": 500 * time.Millisecond, "DispatchLock": 20 * time.Millisecond, "DrainWebhooks": time.Second, "WebhooksToSettle": time.Second,
		"WebhooksFailing": 15 * time.Second, "MessagesExpired": 5 * time.Minute, "WebhookClaim": time.Minute,
	} {
		if got, most := counts[name], 1+int(took/interval); got == 0 || got > most {
			t.Errorf("%d of %s in %s, want 1 to %d", got, name, took, most)
		}
	}
	if looks, sweeps := counts["DispatchLock"], counts["DispatchAccounts"]; looks <= sweeps {
		t.Errorf("%d looks at the locked webhook in %d sweeps, want more", looks, sweeps)
	}
	if got := scrape(t, l.worker, "petstore_webhooks_failing"); got != "1" {
		t.Errorf("the metric says that %q webhooks fail, want 1", got)
	}
}

// TestRecordAfterRetry: a delivery that a request has retried during an attempt stays due after
// the attempt, unless that has delivered it.
func TestRecordAfterRetry(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	tests := []struct {
		isRetried bool
		result    result
		want      string
	}{
		{false, result{httpStatus: http.StatusBadGateway}, "pending false"},
		{true, result{httpStatus: http.StatusBadGateway}, "pending true"},
		{true, result{delivery: delivery{unsent: "It has waited too long."}}, "pending true"},
		{true, result{httpStatus: http.StatusOK}, "delivered false"},
	}
	l.store(slices.Repeat([]trial{{stored: sound}}, len(tests)))
	for i, test := range tests {
		d := l.drain(endpointOf(i), process{current: true})
		due := need.Value(d.due(t.Context(), position{}, 1))(t)
		if test.isRetried {
			need.Value(l.queries.WebhookDeliveryRetry(t.Context(), db.WebhookDeliveryRetryParams{AccountID: d.AccountID, WebhookID: d.WebhookID, ID: due[0].id}))(t)
		}
		test.result.position, test.result.attempts = due[0].position, due[0].attempts
		need.OK(t, d.record(t.Context(), []result{test.result}))
		const state = `
			SELECT status || ' ' || coalesce(next_attempt_at <= statement_timestamp(), false)
			FROM webhook_deliveries WHERE account_id = $1 AND jsonb_array_length(attempts) = $2`
		if got := valueOf[string](l, state, d.AccountID, firstAttempts+1); got != test.want {
			t.Errorf("case %d: the delivery is %s, want %s", i, got, test.want)
		}
	}
}

// TestGivenUp: a webhook that has failed for five days is disabled by its next failure, and one that
// returns 410 at once. There is an event of that. A success ends the failing. The response of a former
// URL says nothing about the new one, which gets the event in the next turn.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	tests := []struct {
		failing, retried string // ago
		status           int
		unsent, url      string
		want             string
	}{
		{"5 days", "1 day", http.StatusBadGateway, "", "", "disabled (failing), 1 event, fails, stops"},
		{"5 days", "2 days", http.StatusBadGateway, "", "", "enabled, fails since now"}, // it had no events since
		{"5 days", "1 day", http.StatusOK, "", "", "enabled"},
		{"5 days", "1 day", 0, "The feed no longer has the event.", "", "enabled, fails"},
		{"119 hours", "1 day", http.StatusBadGateway, "", "", "enabled, fails"},
		{"1 hour", "1 hour", http.StatusGone, "", "", "disabled (gone), 1 event, fails, stops"},
		{"5 days", "1 day", http.StatusGone, "", "http://before", "enabled, fails, due, stops"},
	}
	l.store(slices.Repeat([]trial{{stored: sound}}, len(tests)))
	for i, test := range tests {
		to := endpointOf(i)
		l.exec("UPDATE webhooks SET failures = 3, failing_since = now() - $1::interval, retry_at = now() - $2::interval WHERE account_id = $3", test.failing, test.retried, to.AccountID)
		d := l.drain(to, process{current: true})
		due := need.Value(d.due(t.Context(), position{}, 1))(t)
		due[0].unsent = test.unsent
		need.OK(t, d.record(t.Context(), []result{{delivery: due[0], url: test.url, httpStatus: test.status}}))
		const state = `
			SELECT concat(status, ' (' || disabled_reason || ')', ', ' || nullif(events, 0) || ' event',
			              CASE WHEN failing_since >= $1 THEN ', fails since now' WHEN failing_since IS NOT NULL THEN ', fails' END,
			              (SELECT ', due' FROM webhook_deliveries WHERE account_id = $2 AND next_attempt_at <= statement_timestamp()))
			FROM webhooks AS w, LATERAL (
				SELECT count(*) AS events FROM events AS e
				WHERE e.account_id = $2 AND e.type = 'webhook.disabled' AND e.subject = '/webhooks/' || w.id) AS counted
			WHERE account_id = $2`
		got := valueOf[string](l, state, l.began, to.AccountID)
		if d.stopped {
			got += ", stops"
		}
		if got != test.want {
			t.Errorf("case %d: %s; want %s", i, got, test.want)
		}
	}
}

// TestChangeAfterFailedTrial: old deliveries stay due if a request changes the URL after the failed
// attempt that would have ended them.
func TestChangeAfterFailedTrial(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	tests := []struct {
		failures int
		want     string
	}{{maxFailures, "failed"}, {0, "pending"}}
	l.store(slices.Repeat([]trial{{stored: sound}}, len(tests)))
	l.exec("UPDATE webhook_deliveries SET next_attempt_at = now() - interval '61 minutes', created_at = now() - interval '85 hours'") // their ids are old
	for i, test := range tests {
		d := l.drain(endpointOf(i), process{current: true})
		d.failedAt = l.began
		l.exec("UPDATE webhooks SET failures = $1 WHERE account_id = $2", test.failures, d.AccountID)
		need.OK(t, d.expire(t.Context()))
		if got := valueOf[string](l, "SELECT status FROM webhook_deliveries WHERE account_id = $1", d.AccountID); got != test.want {
			t.Errorf("after %d failures, the delivery is %s, want %s", test.failures, got, test.want)
		}
	}
}

// TestFailureCountsOnce: if the connection breaks at COMMIT, a failure that is recorded again counts
// once.
func TestFailureCountsOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.store([]trial{{stored: sound}})
	d := l.drain(endpointOf(0), process{current: true})
	due := need.Value(d.due(t.Context(), position{}, 1))(t)
	for range 2 {
		due[0].unsent = "" // the feed of the lab does not have the event
		need.OK(t, d.record(t.Context(), []result{{delivery: due[0], httpStatus: http.StatusBadGateway}}))
	}
	if failures := valueOf[int](l, "SELECT failures FROM webhooks"); failures != 1 {
		t.Errorf("%d failures, want 1", failures)
	}
}

// TestResetBeforeSettling: a reset can give the id of a message to another one just before a
// transaction locks it. The deliveries of the earlier one do not decide about it. Later, two of its own
// in one batch decide once.
func TestResetBeforeSettling(t *testing.T) {
	t.Parallel()
	var reset func() // before the first statement that locks messages
	l := newLab(t, pgtest.Statements(func(sql string, _ []any) {
		if reset != nil && strings.HasPrefix(sql, "-- name: MessagesLock ") {
			reset()
			reset = nil
		}
	}))
	l.store([]trial{{stored: stored{enabled: true, until: noUntil}}})
	to, id := endpointOf(0), "msg_"+strings.Repeat("0", 32)
	queue := func(sequence int) {
		l.exec("INSERT INTO messages (account_id, id, message) VALUES ($1, $2, 'hello')", to.AccountID, id)
		l.exec("INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data) VALUES ($1, $2, now(), 1, 'message.queued', '/messages/' || $3, '{}')", to.AccountID, sequence, id)
	}
	queue(1)
	l.exec("UPDATE webhooks SET types = '{message.queued}', after_sequence = 2")
	l.exec("INSERT INTO webhook_deliveries (account_id, id, webhook_id, event_id, sequence, type, status) VALUES ($1, 'dlv_' || repeat('1', 32), $2, 'evt_1', 1, 'message.queued', 'delivered')", to.AccountID, to.WebhookID)
	reset = func() {
		l.exec("DELETE FROM messages")
		queue(2)
	}
	settle := func(ctx context.Context, queries *db.Queries) ([]event.Event, error) {
		return settleMessages(ctx, queries, to.AccountID, []string{id, id}, time.Time{})
	}
	need.OK(t, l.worker.change(t.Context(), to.AccountID, to.AccountID, settle))
	if status := valueOf[string](l, "SELECT status FROM messages"); status != "queued" || reset != nil {
		t.Errorf("the new message is %s, and the store is reset: %t", status, reset == nil)
	}
	l.exec("UPDATE webhook_deliveries SET sequence = 2; UPDATE account_state SET last_sequence = 2")
	need.OK(t, l.worker.change(t.Context(), to.AccountID, to.AccountID, settle))
	need.Same(t, 1, valueOf[int](l, "SELECT count(*) FROM events WHERE type = 'message.delivered'"), "events")
}

// TestAnnounce: those that wait for events are woken after a commit with events.
func TestAnnounce(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.store([]trial{{stored: sound}})
	var announced []int64
	l.worker.options.Announce = func(accountID int64) { announced = append(announced, accountID) }
	failure := errors.New("no")
	for _, test := range []struct {
		events []event.Event
		err    error
		want   int
	}{{nil, nil, 0}, {[]event.Event{event.Reset()}, failure, 0}, {[]event.Event{event.Reset(), event.Reset()}, nil, 1}} {
		announced = nil
		err := l.worker.change(t.Context(), firstAccount, firstAccount, func(context.Context, *db.Queries) ([]event.Event, error) { return test.events, test.err })
		if !errors.Is(err, test.err) || len(announced) != test.want || len(l.worker.woken.keys) != test.want {
			t.Errorf("%d events, %v: announced to %v, %v", len(test.events), test.err, announced, err)
		}
	}
	if got := l.read(1)[0].Stored.last; got != sound.last+2 {
		t.Errorf("the last event is %d, want %d", got, sound.last+2)
	}
}

// TestWarn: errors are logged, except those of the end of the worker and of a schema that is
// behind, which is logged once.
func TestWarn(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	var log bytes.Buffer
	l.worker.log = slog.New(slog.NewTextHandler(&log, nil))
	ended, end := context.WithCancel(t.Context())
	end()
	failure := errors.New("no")
	l.worker.warn(t.Context(), "nothing", nil)
	l.worker.warn(ended, "the end", failure)
	if log.Len() > 0 {
		t.Errorf("%s", &log)
	}
	l.worker.warn(t.Context(), "a failure", failure)
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `msg="a failure" error=no`) {
		t.Errorf("%s", got)
	}
	l.exec("DELETE FROM goose_db_version WHERE version_id > 1")
	log.Reset()
	for range 2 {
		l.worker.warn(t.Context(), "a failure", failure)
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "run `petstore migrate up`") {
		t.Errorf("%s", got)
	}
}
