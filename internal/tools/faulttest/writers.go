package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"petstore/internal/tools/must"
)

// noResponse is the status of a request whose connection ended without a response.
const noResponse = 0

// ledger records the responses to requests, and the orders that they acknowledge.
type ledger struct {
	mu       sync.Mutex
	placed   []int64 // ids of acknowledged orders
	statuses map[int]int
	slowest  time.Duration
	samples  map[int]string // for each status, one response
}

// record records a response.
func (l *ledger) record(resp response, err error) {
	status, text := resp.status, resp.String()
	if err != nil {
		status, text = noResponse, err.Error()
	}
	var o order
	if status == http.StatusCreated {
		if err := json.Unmarshal(resp.body, &o); err != nil {
			status, text = noResponse, err.Error()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.statuses == nil {
		l.statuses, l.samples = map[int]int{}, map[int]string{}
	}
	if status == http.StatusCreated {
		l.placed = append(l.placed, o.ID)
	}
	l.statuses[status]++
	l.slowest = max(l.slowest, resp.took)
	l.samples[status] = text
}

// wantOnly fails the row unless all responses have one of these statuses.
func (l *ledger) wantOnly(allowed ...int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for status, sample := range l.samples {
		must.Hold(slices.Contains(allowed, status), "%s; for example %d: %s", l.summary(), status, sample)
	}
}

// wantInTime fails the row if a response took longer than [responseLimit].
func (l *ledger) wantInTime() {
	must.Hold(l.slowest <= responseLimit, "the slowest response took %s, more than %s", round(l.slowest), responseLimit)
}

// count returns the number of responses with this status.
func (l *ledger) count(status int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.statuses[status]
}

// summary returns the number of responses for each status.
func (l *ledger) summary() string {
	var parts []string
	for _, status := range slices.Sorted(maps.Keys(l.statuses)) {
		name := fmt.Sprint(status)
		if status == noResponse {
			name = "no response"
		}
		parts = append(parts, fmt.Sprintf("%d × %s", l.statuses[status], name))
	}
	return strings.Join(parts, ", ")
}

// audit fails the row unless every acknowledged order exists and the units of every pet add
// up.
func (s *deployment) audit(ctx context.Context, l *ledger) {
	lost := s.db.count(ctx, "SELECT count(*) FROM unnest($1::bigint[]) AS acknowledged WHERE acknowledged NOT IN (SELECT id FROM orders)", l.placed)
	must.Hold(lost == 0, "%d of %d acknowledged orders are lost", lost, len(l.placed))
	wrong := s.db.count(ctx, `
		SELECT count(*)
		FROM inventory
		LEFT JOIN (SELECT account_id, pet_id, sum(quantity) AS units FROM orders WHERE NOT complete GROUP BY account_id, pet_id) AS ordered USING (account_id, pet_id)
		WHERE held <> coalesce(units, 0) OR quantity + held <> $1`, stockOfPet)
	must.Hold(wrong == 0, "the units of %d pets do not add up", wrong)
}

// load is a group of clients that run until they are stopped.
type load struct {
	ledger

	stopping context.Context // ends with stop
	stop     context.CancelFunc
	group    sync.WaitGroup
}

func newLoad(ctx context.Context) *load {
	l := &load{}
	l.stopping, l.stop = context.WithCancel(ctx)
	return l
}

// start calls a function in a goroutine, after a time.
func (l *load) start(after time.Duration, do func(context.Context)) {
	l.group.Go(func() {
		sleep(l.stopping, after)
		do(l.stopping)
	})
}

// repeat sends requests in turn, after a time and with pauses. It does not record responses
// that come after the end.
func (l *load) repeat(after, pause time.Duration, requests ...func() (response, error)) {
	l.start(after, func(stopping context.Context) {
		for ; stopping.Err() == nil; sleep(stopping, pause) {
			for _, send := range requests {
				if resp, err := send(); stopping.Err() == nil {
					l.record(resp, err)
				}
			}
		}
	})
}

// finish waits for the last response of each client and returns what they recorded.
func (l *load) finish() *ledger {
	l.stop()
	l.group.Wait()
	return &l.ledger
}

// loadPause follows a response that is not a success.
const loadPause = 20 * time.Millisecond

// startLoad starts numbered clients that each send one request after the other. After an
// error they ignore Retry-After and pause only briefly.
func startLoad(ctx context.Context, clients int, request func(client int) (response, error)) *load {
	l := newLoad(ctx)
	for number := range clients {
		l.start(0, func(stopping context.Context) {
			for stopping.Err() == nil {
				resp, err := request(number)
				l.record(resp, err)
				if err != nil || resp.status >= http.StatusBadRequest {
					sleep(stopping, loadPause)
				}
			}
		})
	}
	return l
}

// startWriters starts clients of one account that place orders.
func (s *deployment) startWriters(ctx context.Context, clients int) *load {
	return s.startWritersOf(ctx, spread(clients, 0))
}

// startWritersOf starts a client of each of these stores that places orders.
func (s *deployment) startWritersOf(ctx context.Context, stores []int) *load {
	return startLoad(ctx, len(stores), func(number int) (response, error) {
		return s.api.store(stores[number]).order(ctx, 1+number%pets)
	})
}

// checkWorks fails the row unless the service is ready and an order succeeds.
func (s *deployment) checkWorks(ctx context.Context) {
	s.want(ctx, http.StatusOK, "GET", "/readyz", "")
	must.Get(s.order(ctx, 1)).check(http.StatusCreated)
}

// awaitWorking waits until the service works, and returns how long that took.
func (s *deployment) awaitWorking(ctx context.Context, limit time.Duration) time.Duration {
	return must.Await(ctx, limit, func() { s.checkWorks(ctx) })
}

// sleep waits for d or until the context ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// durations are response times.
type durations []time.Duration

func (d durations) p99() time.Duration { return d.percentile(99) }

func (d durations) median() time.Duration { return d.percentile(50) }

// percentile fails the row if nothing was measured.
func (d durations) percentile(percent int) time.Duration {
	must.Hold(len(d) > 0, "no request was measured")
	return slices.Sorted(slices.Values(d))[len(d)*percent/100]
}

// round rounds a duration for printing.
func round(d time.Duration) time.Duration {
	if d > time.Second {
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(time.Millisecond)
}
