package delivery

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"petstore/db"
	"petstore/internal/admission"
	"petstore/internal/event"
	"petstore/internal/telemetry"
	"petstore/internal/tools/need"
	"petstore/internal/webhook"
)

// at is the time of the tests, and ago a time before it.
var at = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) *time.Time { return new(at.Add(-d)) }

// in returns a time after [at].
func in(d time.Duration) *time.Time { return ago(-d) }

// isAbout reports whether a wait deviates by at most a tenth from another one.
func isAbout(got, want time.Duration) bool { return got >= want*9/10 && got <= want*11/10 }

const day = 24 * time.Hour

// TestWaits: a delivery has ten attempts, and the waits between them vary by a tenth.
func TestWaits(t *testing.T) {
	t.Parallel()
	for attempts, want := range []time.Duration{
		5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 14 * time.Hour, 20 * time.Hour, day,
	} {
		r := result{delivery: delivery{attempts: attempts}, httpStatus: http.StatusBadGateway}
		if got := r.next(at).Sub(at); r.status() != "pending" || !isAbout(got, want) {
			t.Errorf("after attempt %d, the delivery is %s and waits %s, want %s", attempts+1, r.status(), got, want)
		}
		r.retryAfter = 2 * want
		if got := r.next(at).Sub(at); got != 2*want {
			t.Errorf("after attempt %d with Retry-After, the delivery waits %s, want %s", attempts+1, got, 2*want)
		}
	}
	shortest, longest := day, time.Duration(0)
	for range 1000 {
		wait := vary(100 * time.Second)
		shortest, longest = min(shortest, wait), max(longest, wait)
	}
	if shortest < 90*time.Second || shortest > 92*time.Second || longest < 108*time.Second || longest > 110*time.Second {
		t.Errorf("100 s varies from %s to %s, want 90 s to 110 s", shortest, longest)
	}
}

func TestResults(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		attempts, httpStatus int
		unsent               string
		status, outcome      string
	}{
		{0, 200, "", "delivered", "delivered"},
		{9, 299, "", "delivered", "delivered"},
		{0, 199, "", "pending", "rejected"},
		{0, 300, "", "pending", "rejected"},
		{8, 500, "", "pending", "rejected"},
		{9, 500, "", "failed", "rejected"},
		{20, 500, "", "failed", "rejected"}, // a retry by request
		{0, 410, "", "failed", "rejected"},
		{0, 0, "", "pending", "unreachable"},
		{0, 0, "The feed no longer has the event.", "failed", "unreachable"},
	} {
		r := result{delivery: delivery{attempts: test.attempts, unsent: test.unsent}, httpStatus: test.httpStatus}
		if r.status() != test.status || r.outcome() != test.outcome || (r.next(at) == never) != (test.status != "pending") {
			t.Errorf("%+v: %s, %s, next attempt at %s", test, r.status(), r.outcome(), r.next(at))
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]time.Duration{
		"":                         0,
		"0":                        0,
		"7":                        7 * time.Second,
		"86399":                    day - time.Second,
		"86401":                    day,
		"99999999999999999999":     day,
		"-1":                       0,
		"1.5":                      0,
		"soon":                     0,
		at.Format(http.TimeFormat): 0,
		in(90 * time.Second).Format(http.TimeFormat): 90 * time.Second,
		in(25 * time.Hour).Format(http.TimeFormat):   day,
		ago(time.Hour).Format(http.TimeFormat):       0,
	} {
		if got := retryAfter(value, at); got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
}

// TestHealth: attempts decide when a webhook pauses, fails and is slow.
func TestHealth(t *testing.T) {
	t.Parallel()
	const accepted, rejected = http.StatusOK, http.StatusBadGateway
	ok, bad := result{httpStatus: accepted}, result{httpStatus: rejected}
	slow := func(took time.Duration) result { return result{httpStatus: accepted, took: took} }
	failing := func(failures int32, retryAt *time.Time) db.WebhookLockRow {
		return db.WebhookLockRow{Failures: failures, FailingSince: ago(day), RetryAt: retryAt}
	}
	for name, test := range map[string]struct {
		webhook   db.WebhookLockRow
		results   []result
		pauseEnd  *time.Time // nil: no trial
		failures  int32
		since     *time.Time
		retryAt   *time.Time // before the pause
		pause     time.Duration
		slowUntil *time.Time
		isChanged bool
	}{
		"a success":                      {results: []result{ok}},
		"the first failure":              {results: []result{bad}, failures: 1, since: &at, retryAt: &at, isChanged: true},
		"the second failure":             {webhook: failing(1, ago(time.Hour)), results: []result{bad}, failures: 2, since: ago(day), retryAt: &at, isChanged: true},
		"a success after a failure":      {webhook: failing(1, ago(time.Hour)), results: []result{ok}, isChanged: true},
		"a success after an old failure": {webhook: failing(0, nil), results: []result{ok}, isChanged: true},
		"a failure before a success":     {webhook: failing(3, ago(time.Hour)), results: []result{bad, ok}, isChanged: true},
		"a failure after a success":      {webhook: failing(3, ago(time.Hour)), results: []result{ok, bad}, failures: 1, retryAt: &at, isChanged: true},
		"nothing was sent":               {webhook: failing(3, ago(time.Hour)), results: []result{{delivery: delivery{unsent: "no event"}}}, failures: 3, since: ago(day), retryAt: ago(time.Hour)},
		"an event was not sent":          {webhook: failing(3, ago(time.Hour)), results: []result{{problem: webhook.Unsent}}, failures: 3, since: ago(day), retryAt: ago(time.Hour)},
		"a response was lost":            {webhook: failing(3, ago(time.Hour)), results: []result{{problem: webhook.LostResponse}}, failures: 3, since: ago(day), retryAt: ago(time.Hour)},
		"a success of the URL before":    {webhook: failing(3, ago(time.Hour)), results: []result{{url: "http://before", httpStatus: accepted, took: slowAfter + 1}}, failures: 3, since: ago(day), retryAt: ago(time.Hour)},
		"nine failures":                  {webhook: failing(8, &at), results: []result{bad}, failures: 9, since: ago(day), retryAt: &at, isChanged: true},
		"ten failures":                   {webhook: failing(8, &at), results: []result{bad, bad}, failures: 10, since: ago(day), retryAt: &at, pause: time.Second, isChanged: true},
		"failures in flight":             {webhook: failing(9, &at), results: []result{bad, bad, bad, bad}, failures: 10, since: ago(day), retryAt: &at, pause: time.Second, isChanged: true},
		"eleven failures":                {webhook: failing(10, &at), results: []result{bad}, pauseEnd: &at, failures: 11, since: ago(day), retryAt: &at, pause: 2 * time.Second, isChanged: true},
		"15 failures":                    {webhook: failing(14, &at), results: []result{bad}, pauseEnd: &at, failures: 15, since: ago(day), retryAt: &at, pause: 32 * time.Second, isChanged: true},
		"16 failures":                    {webhook: failing(15, &at), results: []result{bad}, pauseEnd: &at, failures: 16, since: ago(day), retryAt: &at, pause: time.Minute, isChanged: true},
		"a thousand failures":            {webhook: failing(999, &at), results: []result{bad}, pauseEnd: &at, failures: 1000, since: ago(day), retryAt: &at, pause: time.Minute, isChanged: true},
		"a failure within two days":      {webhook: failing(3, ago(2*day-time.Second)), results: []result{bad}, failures: 4, since: ago(day), retryAt: &at, isChanged: true},
		"a failure after two days":       {webhook: failing(3, ago(2*day)), results: []result{bad}, failures: 4, since: &at, retryAt: &at, isChanged: true},
		"a failed trial":                 {webhook: failing(12, ago(time.Hour)), results: []result{bad}, pauseEnd: ago(time.Hour), failures: 13, since: ago(day), retryAt: &at, pause: 8 * time.Second, isChanged: true},
		"a request during a trial":       {webhook: failing(12, ago(time.Minute)), results: []result{bad}, pauseEnd: ago(time.Hour), failures: 13, since: ago(day), retryAt: ago(time.Minute), isChanged: true},
		"a request after two days":       {webhook: failing(12, ago(time.Minute)), results: []result{bad}, pauseEnd: ago(2 * day), failures: 13, since: &at, retryAt: ago(time.Minute), isChanged: true},
		"500 ms":                         {results: []result{slow(500 * time.Millisecond)}},
		"more than 500 ms":               {results: []result{slow(501 * time.Millisecond)}, slowUntil: in(10 * time.Minute), isChanged: true},
		"slow for some time":             {webhook: db.WebhookLockRow{SlowUntil: in(5*time.Minute - time.Second)}, results: []result{slow(time.Second)}, slowUntil: in(10 * time.Minute), isChanged: true},
		"slow for a short time":          {webhook: db.WebhookLockRow{SlowUntil: in(5 * time.Minute)}, results: []result{slow(time.Second)}, slowUntil: in(10 * time.Minute)},
		"slow before":                    {webhook: db.WebhookLockRow{SlowUntil: ago(time.Hour)}, results: []result{ok}, slowUntil: ago(time.Hour)},
	} {
		d := &drain{}
		if test.pauseEnd != nil {
			d.isTrial, d.pauseEnd = true, *test.pauseEnd
		}
		test.webhook.Now = at
		got, isChanged := d.health(test.webhook, test.results)
		if pause := test.pause; pause > 0 && got.RetryAt != nil && isAbout(got.RetryAt.Sub(at), pause) {
			got.RetryAt = &at
		}
		want := db.WebhookHealthParams{Failures: test.failures, FailingSince: test.since, RetryAt: test.retryAt, SlowUntil: test.slowUntil}
		if diff := cmp.Diff(want, got); diff != "" || isChanged != test.isChanged {
			t.Errorf("%s: changed: %t; (-want +got)\n%s", name, isChanged, diff)
		}
	}
}

// TestNote: a drain stops after ten failures in a row, and when it has the wrong place.
func TestNote(t *testing.T) {
	t.Parallel()
	bad, slow := result{httpStatus: http.StatusBadGateway}, result{httpStatus: http.StatusOK, took: 501 * time.Millisecond}
	for name, test := range map[string]struct {
		failures int
		isSlow   bool
		result   result
		want     int
		stopped  bool
	}{
		"nine failures":       {failures: 8, result: bad, want: 9},
		"ten failures":        {failures: 9, result: bad, want: 10, stopped: true},
		"a success":           {failures: 9, result: result{httpStatus: http.StatusOK}},
		"nothing was sent":    {failures: 9, result: result{delivery: delivery{unsent: "no event"}}, want: 9},
		"500 ms":              {result: result{httpStatus: http.StatusOK, took: 500 * time.Millisecond}},
		"slow among the fast": {result: slow, stopped: true},
		"slow among the slow": {isSlow: true, result: slow},
	} {
		d := &drain{failures: test.failures, isSlow: test.isSlow}
		if d.note(&test.result); d.failures != test.want || d.stopped != test.stopped {
			t.Errorf("%s: %d failures, stopped: %t", name, d.failures, d.stopped)
		}
	}
}

// TestIsOver: a drain ends with its worker, 15 seconds after its last renewal, and when its
// time is over and another webhook waits for its place.
func TestIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		one := admission.Resource{Name: "places", Total: 1, Wait: admission.Forever}
		contended := admission.New(one)
		need.OK(t, contended.Take(t.Context(), 1, 1))
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = contended.Take(ctx, 2, 1) }()
		synctest.Wait()
		ended := make(chan struct{})
		close(ended)
		for name, test := range map[string]struct {
			ending  chan struct{}
			pool    *admission.Pool
			renewed time.Duration // ago
			until   time.Time
			want    bool
		}{
			"a drain":                       {make(chan struct{}), contended, 15 * time.Second, time.Now().Add(time.Second), false},
			"the worker stops":              {ended, contended, 0, time.Now().Add(time.Second), true},
			"the lease is over":             {make(chan struct{}), contended, 15*time.Second + 1, time.Now().Add(time.Second), true},
			"others wait for its place":     {make(chan struct{}), contended, 0, time.Now().Add(-1), true},
			"nobody waits for its place":    {make(chan struct{}), admission.New(one), 0, time.Now().Add(-time.Hour), false},
			"others wait, its time remains": {make(chan struct{}), contended, 0, time.Now(), false},
			"others wait, it has read none": {make(chan struct{}), contended, 0, time.Time{}, false},
		} {
			d := &drain{ending: test.ending, pool: test.pool, renewed: time.Now().Add(-test.renewed), until: test.until}
			if got := d.isOver(); got != test.want || d.stopped != test.want {
				t.Errorf("%s: over: %t, stopped: %t", name, got, d.stopped)
			}
		}
		cancel()
		synctest.Wait()
	})
}

// TestTakesOver: a process takes over when the database has responded for 8 seconds, without a gap of more
// than 5.
func TestTakesOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, test := range map[string]struct {
			responsive, responded time.Duration // ago
			want                  bool
		}{
			"a process begins":   {responsive: 1e6 * time.Hour, responded: 1e6 * time.Hour},
			"8 seconds":          {8 * time.Second, time.Second, true},
			"less":               {8*time.Second - 1, time.Second, false},
			"a gap":              {time.Hour, 5 * time.Second, true},
			"a gap that is long": {time.Hour, 5*time.Second + 1, false},
		} {
			w := &Worker{responsive: time.Now().Add(-test.responsive), responded: time.Now().Add(-test.responded)}
			before := w.takesOver()
			w.noteResponse()
			if after := w.takesOver(); before != test.want || after != test.want {
				t.Errorf("%s: %t, and after a response %t", name, before, after)
			}
		}
	})
}

// TestSendingTime: a worker that stops has 2 seconds to release its leases, or half of a
// short grace.
func TestSendingTime(t *testing.T) {
	t.Parallel()
	for grace, want := range map[time.Duration]time.Duration{15 * time.Second: 13 * time.Second, 4 * time.Second: 2 * time.Second, time.Second: time.Second / 2} {
		if got := sendingTime(grace); got != want {
			t.Errorf("with a grace of %s, requests have %s, want %s", grace, got, want)
		}
	}
}

// TestBatch: drains share the memory for the bodies that they have read.
func TestBatch(t *testing.T) {
	t.Parallel()
	for drains, want := range map[int]int32{1: 128, 75: 128, 96: 100, 300: 32, 400: 24, 600: 24} {
		d := &drain{Worker: &Worker{leases: map[*drain]bool{}}}
		for range drains {
			d.leases[&drain{}] = true
		}
		if got := d.batch(); got != want {
			t.Errorf("%d drains read %d deliveries at a time, want %d", drains, got, want)
		}
	}
	// 325 drains begin while 75 hold the largest pages, and get their shares when those have read again.
	w := &Worker{leases: map[*drain]bool{}}
	var drains []*drain
	for range 400 {
		d := &drain{Worker: w}
		drains, w.leases[d] = append(drains, d), true
		if len(drains) < 76 {
			d.page = 128
		}
	}
	for round, want := range []int32{4, 24, 24} {
		for i := range drains {
			if got := drains[len(drains)-1-i].batch(); got > 24 || got != want && i < 325 {
				t.Errorf("in round %d, drain %d reads %d deliveries, want %d", round, i, got, want)
			}
		}
	}
	if drains[0].notePage(1); drains[0].page != 1 {
		t.Errorf("a drain holds %d deliveries of the one that it has read", drains[0].page)
	}
}

// TestCollect: one transaction records at most 128 results.
func TestCollect(t *testing.T) {
	t.Parallel()
	const most, rest = 128, 2
	more := make(chan result, most+rest)
	for range most + rest - 1 {
		more <- result{}
	}
	close(more)
	if first, second := len(collect(result{}, more)), len(collect(<-more, more)); first != most || second != rest {
		t.Errorf("%d and %d results, want %d and %d", first, second, most, rest)
	}
}

// TestTooManyTasks: only a payer without tasks starts one beyond the limit.
func TestTooManyTasks(t *testing.T) {
	t.Parallel()
	all := newTasks[int](slog.New(slog.DiscardHandler))
	release := make(chan struct{})
	const limit, busy, other = 20_000, 1, 2
	for key := range limit - 1 {
		all.again[key] = false
	}
	started := make(chan int, limit)
	for key, payer := range []int64{busy, busy, other, other} { // the last place, and three more
		all.start(limit+key, payer, func() { started <- limit + key; <-release })
	}
	close(release)
	all.wait()
	close(started)
	var got []int
	for key := range started {
		got = append(got, key-limit)
	}
	if slices.Sort(got); !slices.Equal(got, []int{0, 2}) || len(all.payers) > 0 {
		t.Errorf("tasks %v have started, want 0 and 2; %v", got, all.payers)
	}
}

// TestSweepRests: after an action that takes long, a sweep rests five times as long, up to 5
// seconds.
func TestSweepRests(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{0: time.Second, 100 * time.Millisecond: 1100 * time.Millisecond, 600 * time.Millisecond: 3600 * time.Millisecond, 10 * time.Second: 15 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var began []time.Time
			sweep(ctx, time.Second, func(context.Context) {
				if began = append(began, time.Now()); len(began) == 2 {
					cancel()
				}
				<-time.After(took) // takes no real time in a bubble
			})
			if got := began[1].Sub(began[0]); got != want {
				t.Errorf("a sweep that takes %s runs every %s, want %s", took, got, want)
			}
		})
	}
}

// TestAddDeliveries: a webhook gets the events of its types that it has not got, up to the
// one at which it was disabled.
func TestAddDeliveries(t *testing.T) {
	t.Parallel()
	var events []db.DispatchEventsRow
	for sequence, kind := range []event.Type{event.PetCreated, event.PetCreated, event.PetCreated, event.MessageQueued, event.PetCreated, event.PetCreated} {
		events = append(events, db.DispatchEventsRow{Sequence: int64(sequence + 1), Type: string(kind)})
	}
	for name, test := range map[string]struct {
		to   db.DispatchLockRow
		want []int64
	}{
		"all types":       {db.DispatchLockRow{Types: []string{"*"}, IsEnabled: true}, []int64{1, 2, 3, 4, 5}},
		"some types":      {db.DispatchLockRow{Types: []string{"store.reset", "pet.created"}, IsEnabled: true}, []int64{1, 2, 3, 5}},
		"the last ones":   {db.DispatchLockRow{Types: []string{"*"}, IsEnabled: true, AfterSequence: 3}, []int64{4, 5}},
		"disabled":        {db.DispatchLockRow{Types: []string{"*"}, UntilSequence: new(int64(3)), AfterSequence: 1}, []int64{2, 3}},
		"disabled before": {db.DispatchLockRow{Types: []string{"*"}, UntilSequence: new(int64(9))}, []int64{1, 2, 3, 4, 5}},
		"enabled again":   {db.DispatchLockRow{Types: []string{"*"}, UntilSequence: new(int64(3)), IsEnabled: true}, []int64{1, 2, 3, 4, 5}},
	} {
		test.to.UntilSequence = new(endOf(test.to, 5))
		var made db.DeliveriesInsertParams
		if addDeliveries(&made, test.to, events); !slices.Equal(made.Sequences, test.want) {
			t.Errorf("%s: %v, want %v", name, made.Sequences, test.want)
		}
	}
}

// TestDecide: the deliveries of a message decide about it.
func TestDecide(t *testing.T) {
	t.Parallel()
	for want, all := range map[string][]struct {
		votes   db.MessageVotesRow
		expired bool
	}{
		"failed": {
			{db.MessageVotesRow{Failed: 1}, false},
			{db.MessageVotesRow{Failed: 1, Pending: 1, Accepted: 1, IsAhead: true}, false},
			{db.MessageVotesRow{}, true},
		},
		"delivered": {
			{db.MessageVotesRow{Accepted: 1}, false},
			{db.MessageVotesRow{Accepted: 2}, true},
		},
		"": {
			{db.MessageVotesRow{}, false},
			{db.MessageVotesRow{Pending: 1, Accepted: 1}, false},
			{db.MessageVotesRow{Pending: 1}, true},
			{db.MessageVotesRow{IsAhead: true, Accepted: 1}, true},
		},
	} {
		for _, test := range all {
			if _, got := decide(test.votes, test.expired); got != want {
				t.Errorf("%+v: %q, want %q", test, got, want)
			}
		}
	}
}

func TestSeconds(t *testing.T) {
	t.Parallel()
	if got := seconds(1.5); got != 1500*time.Millisecond {
		t.Errorf("1.5 seconds are %s", got)
	}
}

// tail is a body that notes whether its end was read, and whether it was closed.
type tail struct {
	io.Reader

	ended, closed bool
}

func (b *tail) Read(p []byte) (n int, err error) {
	n, err = b.Reader.Read(p)
	b.ended = b.ended || errors.Is(err, io.EOF)
	return n, err
}

func (b *tail) Close() error { b.closed = true; return nil }

// TestFinish: a connection can be used again after a response of at most 4 KiB, which is read
// to its end. It is cut if that takes a second.
func TestFinish(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]bool{0: true, 4096: true, 4097: false, 100_000: false} {
		body := &tail{Reader: strings.NewReader(strings.Repeat("x", size))}
		if finish(body, func() {}); body.ended != want || !body.closed {
			t.Errorf("the end of a body of %d bytes is read: %t, and it is closed: %t", size, body.ended, body.closed)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		slow, cut := io.Pipe()
		began := time.Now()
		if finish(slow, func() { _ = cut.Close() }); time.Since(began) != time.Second {
			t.Errorf("a slow body is cut after %s, want 1s", time.Since(began))
		}
	})
}

// TestSend: an attempt has a result without the body, and the first one is counted with the
// time since the insert of the delivery.
func TestSend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := &Worker{
			options: Options{Client: &http.Client{Transport: accepting{}}, Metrics: telemetry.NewMetrics()},
			log:     slog.New(slog.NewTextHandler(&log, nil)),
		}
		d := &drain{Worker: w, renewed: time.Now(), until: time.Now().Add(time.Hour), to: &target{url: "http://127.0.0.1:1/", readAt: time.Now()}}
		results := make(chan result, 2)
		for attempts := range 2 {
			d.send(t.Context(), delivery{attempts: attempts, body: []byte("{}"), waited: time.Duration(3+attempts) * time.Second, readAt: time.Now().Add(-time.Second)}, results)
			if r := <-results; !r.isSuccess() || r.body != nil {
				t.Errorf("the result is %+v, want a success without a body", r)
			}
		}
		if log.Len() > 0 {
			t.Errorf("a success is logged: %s", &log)
		}
		if got := scrape(t, w, "petstore_webhook_first_attempt_lag_seconds_sum"); got != "4" {
			t.Errorf("the first attempts have waited for %s s, want 4", got)
		}
	})
}

// accepting accepts all requests.
type accepting struct{}

func (accepting) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}, nil
}

func scrape(t *testing.T, w *Worker, name string) string {
	t.Helper()
	recorder := httptest.NewRecorder()
	w.options.Metrics.Handler().ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	_, value, _ := strings.Cut(recorder.Body.String(), "\n"+name+" ")
	value, _, _ = strings.Cut(value, "\n")
	return value
}

// TestTaskThatPanics: a panic of a task is logged, and nothing else of it.
func TestTaskThatPanics(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	all := newTasks[int](slog.New(slog.NewTextHandler(&log, nil)))
	all.start(1, 1, func() {})
	all.wait()
	if log.Len() > 0 {
		t.Errorf("a task that ends is logged: %s", &log)
	}
	all.start(1, 1, func() { panic("no") })
	all.wait()
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "panic: no") || len(all.again) > 0 {
		t.Errorf("after a panic, %d tasks are left: %s", len(all.again), got)
	}
}
