package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
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
		if err := resp.decode(&o); err != nil {
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

// only returns an error unless all responses have one of these statuses.
func (l *ledger) only(allowed ...int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for status, sample := range l.samples {
		if !slices.Contains(allowed, status) {
			return fmt.Errorf("%s; for example %d: %s", l.summary(), status, sample)
		}
	}
	return nil
}

// within returns an error if a response took longer.
func (l *ledger) within(limit time.Duration) error {
	if l.slowest > limit {
		return fmt.Errorf("the slowest response took %s, more than %s", round(l.slowest), limit)
	}
	return nil
}

// total returns the number of requests.
func (l *ledger) total() int {
	total := 0
	for _, count := range l.statuses {
		total += count
	}
	return total
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

// audit returns an error unless every acknowledged order exists and the units of every pet
// add up.
func (s *deployment) audit(ctx context.Context, l *ledger) error {
	var lost int
	if err := s.db.read(ctx, "SELECT count(*) FROM unnest($1::bigint[]) AS acknowledged WHERE acknowledged NOT IN (SELECT id FROM orders)",
		[]any{l.placed}, &lost); err != nil {
		return err
	}
	if lost > 0 {
		return fmt.Errorf("%d of %d acknowledged orders are lost", lost, len(l.placed))
	}
	var wrong int
	if err := s.db.read(ctx, `
		SELECT count(*)
		FROM inventory
		LEFT JOIN (SELECT account_id, pet_id, sum(quantity) AS units FROM orders WHERE NOT complete GROUP BY account_id, pet_id) AS ordered USING (account_id, pet_id)
		WHERE held <> coalesce(units, 0) OR quantity + held <> $1`, []any{stockOfPet}, &wrong); err != nil {
		return err
	}
	if wrong > 0 {
		return fmt.Errorf("the units of %d pets do not add up", wrong)
	}
	return nil
}

// load is a group of clients that each send one request after the other until they are
// stopped. After an error they ignore Retry-After and pause only briefly.
type load struct {
	ledger

	stop  context.CancelFunc
	group sync.WaitGroup
}

// loadPause follows a response that is not a success.
const loadPause = 20 * time.Millisecond

// startLoad starts numbered clients that send requests until they are stopped.
func startLoad(ctx context.Context, clients int, request func(client int) (response, error)) *load {
	stopping, stop := context.WithCancel(ctx)
	l := &load{stop: stop}
	for number := range clients {
		l.group.Go(func() {
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

// startWriters starts clients that place orders.
func (s *deployment) startWriters(ctx context.Context, clients int) *load {
	return startLoad(ctx, clients, func(number int) (response, error) { return s.order(ctx, 1+number%pets) })
}

// startReaders starts clients that read pets.
func (s *deployment) startReaders(ctx context.Context, clients int) *load {
	return startLoad(ctx, clients, func(number int) (response, error) {
		return s.do(ctx, "GET", fmt.Sprintf("/pets/%d", 1+number%pets), "")
	})
}

// finish waits for the last response of each client and returns what they recorded.
func (l *load) finish() *ledger {
	l.stop()
	l.group.Wait()
	return &l.ledger
}

// checkWorks returns an error unless the service is ready and an order succeeds.
func (s *deployment) checkWorks(ctx context.Context) error {
	if _, err := s.want(ctx, http.StatusOK, "GET", "/readyz", ""); err != nil {
		return err
	}
	resp, err := s.order(ctx, 1)
	if err == nil && resp.status != http.StatusCreated {
		err = fmt.Errorf("POST /store/orders: %s", resp)
	}
	return err
}

// awaitWorking waits until the service works, and returns how long that took.
func (s *deployment) awaitWorking(ctx context.Context, within time.Duration) (time.Duration, error) {
	return eventually(ctx, within, func() error { return s.checkWorks(ctx) })
}

// durations are response times.
type durations []time.Duration

func (d durations) p99() time.Duration { return slices.Sorted(slices.Values(d))[len(d)*99/100] }

// round rounds a duration for printing.
func round(d time.Duration) time.Duration {
	if d > time.Second {
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(time.Millisecond)
}
