package api_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/pgtest"
	"petstore/internal/telemetry"
	"petstore/internal/tools/need"
)

// turnstile is a server that holds statements of some queries until the test lets
// them pass, or until their context ends.
type turnstile struct {
	*petstore
	queries *regexp.Regexp
	metrics *telemetry.Metrics
	arrived chan struct{} // receives a value for each statement
	open    chan struct{} // closed by pass
	pass    func()
	first   bool // hold only the first statement
	setUp   atomic.Bool

	mu            sync.Mutex
	all, now, max int // statements: in total, running, and the most that ran at the same time
	ended         []error
}

// newTurnstile starts a server with changed options that holds the statements of queries with
// these names.
func newTurnstile(t *testing.T, names string, changes ...func(*api.Options)) *turnstile {
	t.Helper()
	return start(t).turnstile(names, changes...)
}

// turnstile is [newTurnstile] for another server on the same database.
func (p *petstore) turnstile(names string, changes ...func(*api.Options)) *turnstile {
	p.t.Helper()
	const maxConns, maxStatements = 16, 1000
	s := &turnstile{
		petstore: p,
		queries:  regexp.MustCompile(`^-- name: (` + names + `) `),
		metrics:  telemetry.NewMetrics(),
		arrived:  make(chan struct{}, maxStatements),
		open:     make(chan struct{}),
	}
	s.pass = sync.OnceFunc(func() { close(s.open) })
	pool := pgtest.Open(p.t, s.dbURL, maxConns, pgtest.Around(s.hold))
	p.t.Cleanup(s.pass)
	s.petstore = s.with(func(o *api.Options) {
		o.DB, o.Metrics = pool, s.metrics
		for _, change := range changes {
			change(o)
		}
	})
	return s
}

// hold holds statements that begin if one of them belongs to the queries. A batch counts as one statement.
func (s *turnstile) hold(ctx context.Context, all []pgtest.Statement) (ended func()) {
	ours := func(one pgtest.Statement) bool { return s.queries.MatchString(one.SQL) }
	if s.setUp.Load() || !slices.ContainsFunc(all, ours) {
		return nil
	}
	s.mu.Lock()
	s.all++
	s.now++
	s.max = max(s.max, s.now)
	held := s.all == 1 || !s.first
	s.mu.Unlock()
	s.arrived <- struct{}{}
	if held {
		select {
		case <-s.open:
		case <-ctx.Done():
		}
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.now--
		s.ended = append(s.ended, ctx.Err())
	}
}

// wantAtMost fails the test unless at most this many statements ran at the same time.
func (s *turnstile) wantAtMost(statements int) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.max == 0 || s.max > statements {
		s.t.Errorf("%d statements had a connection at the same time, want 1 to %d", s.max, statements)
	}
}

// prepare runs requests whose statements pass.
func (s *turnstile) prepare(requests func()) {
	s.setUp.Store(true)
	defer s.setUp.Store(false)
	requests()
}

// await waits until the server handles this many requests. It gives up when all requests have ended.
func (s *turnstile) await(requests int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	want := fmt.Sprintf("\npetstore_http_requests_in_flight %d\n", requests)
	for handled := ""; !strings.Contains(handled, want); {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			s.t.Errorf("the server never handled %d requests at the same time", requests)
			return
		}
		recorder := httptest.NewRecorder()
		s.metrics.Handler().ServeHTTP(recorder, httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil))
		handled = recorder.Body.String()
	}
}

// together sends requests at the same time, and lets their statements pass when the server handles all
// of them.
func (s *turnstile) together(requests int, send func(i int) error) {
	s.t.Helper()
	atOnce(s.t, requests+1, func(i int) error {
		if i < requests {
			return send(i)
		}
		s.await(requests)
		s.pass()
		return nil
	})
}

// ordersWritten are the statements that write orders, in a common group or in a group of their account.
const ordersWritten = "StoresWrite|OrdersInsert"

// TestWaitingRequestsShareStatements: requests that arrive while a statement runs
// share the next one, and each gets its own response. The test fails when each has a
// statement of its own, or when too many run at once.
func TestWaitingRequestsShareStatements(t *testing.T) {
	t.Parallel()
	const requests, pets, absentPet = 40, 10, 999_999
	for _, test := range []struct {
		name, queries string
		parallel      int // limit of concurrent statements
		ask           func(p *petstore, i int, pets []int64) (*response, error)
		want          func(i int) string // in the response
	}{
		{"single pets", "PetGetMany", 3, func(p *petstore, i int, pets []int64) (*response, error) {
			return p.try("GET", fmt.Sprintf("/pets/%d", pets[i%len(pets)]), nil)
		}, func(i int) string {
			if i %= pets + 1; i == pets {
				return "pet_not_found"
			}
			return fmt.Sprintf(`"Pet %d"`, i)
		}},
		{"a page", "PetList", 3, func(p *petstore, _ int, _ []int64) (*response, error) {
			return p.try("GET", "/pets?limit=2", nil)
		}, func(int) string { return `"Pet 0"` }},
		{"different pages", "PetList", 3, func(p *petstore, i int, _ []int64) (*response, error) {
			sort := []string{"id", "-id", "name", "-name"}[i%4]
			return p.try("GET", fmt.Sprintf("/pets?limit=%d&sort=%s", 1+i, sort), nil)
		}, func(i int) string { return fmt.Sprintf(`"Pet %d"`, i%2*9) }},
		{"the count of pages", "PetCount", 1, func(p *petstore, i int, _ []int64) (*response, error) {
			return p.try("GET", fmt.Sprintf("/pets?limit=%d&sort=%s", 1+i, []string{"id", "-name"}[i%2]), nil, "Prefer", "count=exact")
		}, func(int) string { return `"Pet ` }},
		{"orders of a pet", ordersWritten, 2, func(p *petstore, i int, pets []int64) (*response, error) {
			key := []string{"", fmt.Sprint("key-", i)}[i%2]
			return p.try("POST", "/store/orders", object{"petId": pets[0], "quantity": 1 + i}, "Idempotency-Key", key)
		}, func(i int) string { return fmt.Sprintf(`"quantity":%d,`, 1+i) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newTurnstile(t, test.queries)
			var ids []int64
			s.prepare(func() {
				for i := range pets {
					ids = append(ids, s.newPet(fmt.Sprint("Pet ", i), requests*requests))
				}
			})
			ids = append(ids, absentPet)
			s.together(requests, func(i int) error {
				resp, err := test.ask(s.petstore, i, ids)
				if err == nil && (resp.status >= 300 && resp.status != 404 || !strings.Contains(string(resp.body), test.want(i))) {
					err = fmt.Errorf("%s: %d %s, want %s", resp.what, resp.status, resp.body, test.want(i))
				}
				return err
			})
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.all == 0 || s.all > requests/2 || s.max > test.parallel {
				t.Errorf("%d requests took %d statements, %d of them at the same time; want 1 to %d, at most %d", requests, s.all, s.max, requests/2, test.parallel)
			}
		})
	}
}

// TestListsShareNothing: similar lists share no count and no page.
func TestListsShareNothing(t *testing.T) {
	t.Parallel()
	for name, prefer := range map[string]string{"counts": "count=exact", "pages": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTurnstile(t, "(Pet|Message|Order)(Count|List).*")
			for i := range 3 {
				s.newPet(fmt.Sprint("Pet ", i), 1)
			}
			s.post("/messages", object{"message": "hello"}).want(202)
			other := s.as(s.newKey("other", auth.Write))
			lists := []struct {
				p      *petstore
				target string
				alone  *response
			}{
				{p: s.petstore, target: "/pets?name=Pet&sort=name"},
				{p: s.petstore, target: "/pets?name=Pet%202&sort=name"},
				{p: s.petstore, target: "/pets?status=sold"},
				{p: s.petstore, target: "/pets?limit=2"},
				{p: s.petstore, target: "/pets?limit=2&sort=-id"},
				{p: s.petstore, target: "/store/orders"},
				{p: s.petstore, target: "/messages"},
				{p: other, target: "/messages"},
			}
			s.prepare(func() {
				for i, list := range lists {
					lists[i].alone = list.p.do("GET", list.target, nil, "Prefer", prefer).want(200)
				}
			})
			const each = 4 // one runs alone; the waiting ones could share a wrong statement
			s.together(each*len(lists), func(i int) error {
				list := lists[i%len(lists)]
				resp, err := list.p.try("GET", list.target, nil, "Prefer", prefer)
				for err == nil && prefer != "" && resp.status == 429 { // a count waits a second for the one before
					resp, err = list.p.try("GET", list.target, nil, "Prefer", prefer)
				}
				if err == nil && (!bytes.Equal(resp.body, list.alone.body) || resp.header.Get("Link") != list.alone.header.Get("Link") ||
					resp.header.Get("X-Total-Count") != list.alone.header.Get("X-Total-Count")) {
					err = fmt.Errorf("%s: %v %s, want %v %s", list.target, resp.header, resp.body, list.alone.header, list.alone.body)
				}
				return err
			})
		})
	}
}

// TestHangingReadBlocksNoOther: a hanging statement does not block later requests
// that share the next one.
func TestHangingReadBlocksNoOther(t *testing.T) {
	t.Parallel()
	for target, query := range map[string]string{"/pets/{petId}": "PetGetMany", "/pets?limit=1": "PetList"} {
		t.Run(query, func(t *testing.T) {
			t.Parallel()
			s := newTurnstile(t, query)
			s.first = true
			target := filled(target, fmt.Sprint(s.newPet("one", 1)))
			atOnce(t, 2, func(i int) error {
				if i == 0 { // hangs until the others have their responses
					s.get(target).want(200)
					return nil
				}
				defer s.pass()
				<-s.arrived
				for range 3 {
					s.get(target).want(200)
				}
				return nil
			})
		})
	}
}

// TestSharedReadsEndWithTheirClients: the statement of a shared read is canceled
// when the last of its clients hangs up, long before the deadline of the requests.
func TestSharedReadsEndWithTheirClients(t *testing.T) {
	t.Parallel()
	const clients = 5
	for target, query := range map[string]string{"/pets/1": "PetGetMany", "/pets?limit=1": "PetList"} {
		t.Run(query, func(t *testing.T) {
			t.Parallel()
			s := newTurnstile(t, query)
			s.newPet("one", 1)
			leaveFirst := s.leaving(1, "GET", target, "")
			<-s.arrived
			leaveTogether := s.leaving(clients, "GET", target, "")
			s.await(1 + clients)
			leaveFirst() // its statement ends, and the one of the others begins
			<-s.arrived
			leaveTogether()
			s.await(0)
			need.Within(t, 30*time.Second, "the statements have ended", func() bool { // a client does not wait for the end of its statement
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.now == 0
			})
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, err := range s.ended {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("a statement ended with %v, want a cancellation", err)
				}
			}
		})
	}
}

// TestSharedOrdersOutliveTheirClients: orders that share a statement are placed
// even if all their clients hang up.
func TestSharedOrdersOutliveTheirClients(t *testing.T) {
	t.Parallel()
	const clients = 5
	s := newTurnstile(t, ordersWritten)
	var pet int64
	s.prepare(func() { pet = s.newPet("one", 100) })
	leave := s.leaving(clients, "POST", "/store/orders", fmt.Sprintf(`{"petId": %d}`, pet))
	s.await(clients)
	leave()
	s.pass()
	s.await(0)
	need.Same(t, 100-clients, s.inventory(pet).Quantity, "units of 100 that are left after %d orders", clients)
}
