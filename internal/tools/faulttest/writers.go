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

// noAnswer stands for a status where the connection ended without one.
const noAnswer = 0

// ledger is what clients remember of the orders that they placed.
type ledger struct {
	mu       sync.Mutex
	placed   []int64 // acknowledged
	statuses map[int]int
	slowest  time.Duration
	strange  map[int]string // for each status, one answer of it
}

// note writes down an answer to an order.
func (l *ledger) note(a answer, err error) {
	status, told := a.status, a.String()
	if err != nil {
		status, told = noAnswer, err.Error()
	}
	var o order
	if status == http.StatusCreated {
		if err := a.decode(&o); err != nil {
			status, told = noAnswer, err.Error()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.statuses == nil {
		l.statuses, l.strange = map[int]int{}, map[int]string{}
	}
	if status == http.StatusCreated {
		l.placed = append(l.placed, o.ID)
	}
	l.statuses[status]++
	l.slowest = max(l.slowest, a.took)
	l.strange[status] = told
}

// only is an error unless all answers had one of these statuses.
func (l *ledger) only(allowed ...int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for status, told := range l.strange {
		if !slices.Contains(allowed, status) {
			return fmt.Errorf("%s; the one with %d: %s", l.count(), status, told)
		}
	}
	return nil
}

// within is an error when an answer took longer.
func (l *ledger) within(limit time.Duration) error {
	if l.slowest > limit {
		return fmt.Errorf("the slowest response took %s, more than %s", round(l.slowest), limit)
	}
	return nil
}

// total is the number of requests.
func (l *ledger) total() int {
	total := 0
	for _, count := range l.statuses {
		total += count
	}
	return total
}

// count says how often there was which status.
func (l *ledger) count() string {
	var parts []string
	for _, status := range slices.Sorted(maps.Keys(l.statuses)) {
		name := fmt.Sprint(status)
		if status == noAnswer {
			name = "no response"
		}
		parts = append(parts, fmt.Sprintf("%d × %s", l.statuses[status], name))
	}
	return strings.Join(parts, ", ")
}

// audit is an error unless each order that was acknowledged is there, and the
// units of every pet add up.
func (s *shop) audit(ctx context.Context, l *ledger) error {
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
		LEFT JOIN (SELECT pet_id, sum(quantity) AS units FROM orders WHERE NOT complete GROUP BY pet_id) AS ordered USING (pet_id)
		WHERE held <> coalesce(units, 0) OR quantity + held <> $1`, []any{stockOfPet}, &wrong); err != nil {
		return err
	}
	if wrong > 0 {
		return fmt.Errorf("the units of %d pets do not add up", wrong)
	}
	return nil
}

// load is clients that each ask for one thing after the other, until they are
// stopped. They do not wait as Retry-After asks, only long enough not to spin.
type load struct {
	ledger

	stop  context.CancelFunc
	group sync.WaitGroup
}

// loadPause follows an answer that is not a success.
const loadPause = 20 * time.Millisecond

// startLoad has clients, which are numbered, ask until they are stopped.
func startLoad(ctx context.Context, clients int, ask func(client int) (answer, error)) *load {
	stopping, stop := context.WithCancel(ctx)
	l := &load{stop: stop}
	for number := range clients {
		l.group.Go(func() {
			for stopping.Err() == nil {
				a, err := ask(number)
				l.note(a, err)
				if err != nil || a.status >= http.StatusBadRequest {
					wait(stopping, loadPause)
				}
			}
		})
	}
	return l
}

// startWriters has clients place orders.
func (s *shop) startWriters(ctx context.Context, clients int) *load {
	return startLoad(ctx, clients, func(number int) (answer, error) { return s.order(ctx, 1+number%pets) })
}

// startReaders has clients read pets.
func (s *shop) startReaders(ctx context.Context, clients int) *load {
	return startLoad(ctx, clients, func(number int) (answer, error) {
		return s.do(ctx, "GET", fmt.Sprintf("/pets/%d", 1+number%pets), "")
	})
}

// finish lets each client get its last answer, and returns what all remember.
func (l *load) finish() *ledger {
	l.stop()
	l.group.Wait()
	return &l.ledger
}

// works is an error unless the service is ready and an order succeeds.
func (s *shop) works(ctx context.Context) error {
	if _, err := s.want(ctx, http.StatusOK, "GET", "/readyz", ""); err != nil {
		return err
	}
	a, err := s.order(ctx, 1)
	if err == nil && a.status != http.StatusCreated {
		err = fmt.Errorf("an order: %s", a)
	}
	return err
}

// working waits until the service works, and returns how long that took.
func (s *shop) working(ctx context.Context, within time.Duration) (time.Duration, error) {
	return eventually(ctx, within, func() error { return s.works(ctx) })
}

// round makes a duration readable.
func round(d time.Duration) time.Duration {
	if d > time.Second {
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(time.Millisecond)
}
