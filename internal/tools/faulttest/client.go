package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"petstore/internal/follow"
	"petstore/internal/sleep"
	"petstore/internal/tools/must"
)

// requestTimeout is longer than any response may take.
const requestTimeout = 10 * time.Second

// client sends requests to one service with one key. It is safe for concurrent use.
type client struct {
	base, key string
	transport http.RoundTripper // nil: the shared one
}

// transport keeps enough idle connections for the largest row.
var transport = &http.Transport{MaxIdleConns: 1024, MaxIdleConnsPerHost: 1024, DisableCompression: true}

// response is a response whose body was read completely.
type response struct {
	status int
	header http.Header
	body   []byte
	took   time.Duration
}

// do sends a request. An empty body means no body. The header is a list of names and
// values; an empty value removes the header. The error says that there was no response.
func (c *client) do(ctx context.Context, method, target, body string, header ...string) (response, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, c.base+target, strings.NewReader(body))
	if err != nil {
		return response{}, err
	}
	if c.key != "" {
		request.Header.Set("Authorization", "Bearer "+c.key)
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Del(header[i])
		if header[i+1] != "" {
			request.Header.Set(header[i], header[i+1])
		}
	}
	using := c.transport
	if using == nil {
		using = transport
	}
	began := time.Now()
	received, err := using.RoundTrip(request)
	if err != nil {
		return response{took: time.Since(began)}, err
	}
	defer received.Body.Close()
	text, err := io.ReadAll(received.Body)
	return response{received.StatusCode, received.Header, text, time.Since(began)}, err
}

// request is a request, whose header is as for [client.do].
type request struct {
	method, target, body string
	header               []string
}

func newRequest(method, target, body string, header ...string) request {
	return request{method, target, body, header}
}

// send sends a request.
func (c *client) send(ctx context.Context, r request) (response, error) {
	return c.do(ctx, r.method, r.target, r.body, r.header...)
}

// want sends a request, and fails the row unless the response has this status.
func (c *client) want(ctx context.Context, status int, method, target, body string) (resp response) {
	must.Explain(method+" "+target, func() { resp = must.Get(c.do(ctx, method, target, body)).check(status) })
	return resp
}

// check fails the row unless the response has this status.
func (resp response) check(status int) response {
	must.Hold(resp.status == status, "%s, want %d", resp, status)
	return resp
}

// withKey returns the same client with another key.
func (c *client) withKey(key string) *client {
	other := *c
	other.key = key
	return &other
}

// order orders one unit of a pet.
func (c *client) order(ctx context.Context, pet int, header ...string) (response, error) {
	return c.do(ctx, "POST", "/store/orders", fmt.Sprintf(`{"petId": %d}`, pet), header...)
}

// getPet reads a pet.
func (c *client) getPet(ctx context.Context, pet int) (response, error) {
	return c.do(ctx, "GET", fmt.Sprintf("/pets/%d", pet), "")
}

// order is an Order in a response.
type order struct {
	ID    int64 `json:"id"`
	PetID int64 `json:"petId"`
}

// stockItem is an InventoryItem in a response.
type stockItem struct {
	Quantity int    `json:"quantity"`
	Status   string `json:"status"`
}

// listedPet is a Pet in a list.
type listedPet struct {
	ID   int64  `json:"id"`
	Name string `json:"name"`
}

// setStock sets the quantity of a pet in stock.
func (c *client) setStock(ctx context.Context, pet, quantity int) {
	c.want(ctx, http.StatusOK, "PUT", fmt.Sprintf("/store/inventory/%d", pet), fmt.Sprintf(`{"quantity": %d}`, quantity))
}

// decode returns the body of a response, and fails the row if that is of another type.
func decode[T any](resp response) (value T) {
	if err := json.Unmarshal(resp.body, &value); err != nil {
		must.OK(fmt.Errorf("%s: %w", resp, err))
	}
	return value
}

// next returns the target of the next page, or "" after the last page.
func (resp response) next() string {
	if link := follow.NextLink(resp.header); link != nil {
		return link.String()
	}
	return ""
}

// code returns the error code of an Error, or "" for another body.
func (resp response) code() string {
	var problem struct{ Code string }
	_ = json.Unmarshal(resp.body, &problem) // another body has no code
	return problem.Code
}

// String returns the status and body on one line, shortened.
func (resp response) String() string {
	const enough = 300
	body := string(resp.body)
	if len(body) > enough {
		body = body[:enough] + "…"
	}
	return fmt.Sprintf("%d %s", resp.status, strings.TrimSpace(body))
}

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
		sleep.For(l.stopping, after)
		do(l.stopping)
	})
}

// repeat sends requests of a client in turn, after a time and with pauses. It does not record
// responses that come after the end.
func (l *load) repeat(c *client, after, pause time.Duration, requests ...request) {
	l.start(after, func(stopping context.Context) {
		for ; stopping.Err() == nil; sleep.For(stopping, pause) {
			for _, r := range requests {
				if resp, err := c.send(stopping, r); stopping.Err() == nil {
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
					sleep.For(stopping, loadPause)
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
