package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	stores "petstore/internal/account"
	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/exchange"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// ownRecord is the path of the record of the client's sandbox.
const ownRecord = "/sandboxes/current/requests"

// recorded is an exchange in the record of a sandbox.
type recorded struct {
	ID, Method, Path, Query, Operation, Code, IdempotencyKey string
	Status                                                   int
	APIKeyID                                                 int64 `json:"apiKeyId"`
	RequestID                                                string
	StartedAt                                                time.Time
	Fault                                                    *struct {
		Rule   int
		Effect string
	}
	Request, Response exchange.Message
	Redacted          []string
}

func (r recorded) line() string {
	line := fmt.Sprintf("%s %s", r.Method, r.Path)
	if r.Query != "" {
		line += "?" + r.Query
	}
	return strings.TrimSpace(fmt.Sprintf("%s %d %s", line, r.Status, r.Code))
}

// inSandbox returns a client with a new sandbox of the account of the test.
func (p *petstore) inSandbox(sample string) *petstore {
	p.t.Helper()
	return p.sandbox(p.accountID(), sample)
}

// record returns the record of the sandbox, newest first, when it has this number of exchanges.
func (p *petstore) record(number int) (all []recorded) {
	p.t.Helper()
	need.Within(p.t, 20*time.Second, "the record has all exchanges", func() bool {
		all = decode[[]recorded](p.get(ownRecord).want(200))
		return len(all) >= number
	})
	if len(all) != number {
		p.t.Fatalf("the record has %d exchanges, want %d: %v", len(all), number, all)
	}
	return all
}

// exchange returns the newest exchange with its messages.
func (p *petstore) newestExchange(number int) recorded {
	p.t.Helper()
	return decode[recorded](p.get(ownRecord + "/" + p.record(number)[0].ID).want(200))
}

// recordRequest adds an exchange to the record of a sandbox, and returns its id.
func (p *petstore) recordRequest(sandbox string) string {
	p.t.Helper()
	account, ok := stores.ParseSandboxID(sandbox)
	if !ok {
		p.t.Fatalf("%s is not a sandbox", sandbox)
	}
	p.recordRequests(account, 1, 1)
	return fmt.Sprintf("req_%d_1", account)
}

// recordRequests adds the exchanges with some numbers to the record of a sandbox, in one
// transaction, unless it has them.
func (p *petstore) recordRequests(sandbox int64, from, to int) {
	p.t.Helper()
	p.exec(`WITH log AS (
			INSERT INTO exchange_logs (account_id, last_number) VALUES ($1, $3)
			ON CONFLICT (account_id) DO UPDATE SET last_number = greatest(exchange_logs.last_number, $3)
			RETURNING account_id)
		INSERT INTO exchanges (account_id, number, start_byte, started_at, microseconds, request_id, api_key_id, method, path, query, operation, status, code, idempotency_key, fault, messages)
		SELECT $1, n, 0, now(), 1, 'id', 1, 'GET', '/pets', '', 'listPets', 200, '', '', '', '{"request":{"headers":[],"body":"","bodySize":0},"redacted":[]}'
		FROM log, generate_series($2::int, $3::int) AS n
		ON CONFLICT DO NOTHING`, sandbox, from, to)
}

// trusting returns the same server for a client whose key it always remembers. A request that fails
// before a lookup of its key is in the record only then.
func (p *petstore) trusting() *petstore {
	p.t.Helper()
	return p.listening(func(s *httptest.Server) {
		s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p.verifier.Trust()
			p.server.ServeHTTP(w, r)
		})
	})
}

// TestRecord: the record of a sandbox has each request that its keys have sent, as the client
// sent it, with the response that it got.
func TestRecord(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleShop).trusting()
	began := time.Now().Truncate(time.Microsecond)
	p.do("POST", "/store/orders", object{"petId": 1, "quantity": 2}, "Idempotency-Key", "order-1", "X-Request-Id", "mine").want(201)
	ended := time.Now()
	p.post("/store/orders", object{"petId": 1, "quantity": 0}).want(400)
	p.get("/pets?limit=1&status=sold").want(200)
	p.get("/pets/4711").want(404)
	unknown := p.do("GET", "/petz", nil, "Accept", "text/html, */*; q=0.2").wantError(404, "route_not_found") // as some Java clients send it
	unsupported := p.do("PUT", "/pets", nil).want(405)
	p.do("HEAD", "/pets/1", nil).want(200)
	malformed := p.get("/pets/%FF").want(404)

	all := p.record(8)
	need.Same(t, []string{
		"GET /pets/%FF 404 route_not_found", "HEAD /pets/1 200", "PUT /pets 405 method_not_allowed",
		"GET /petz 404 route_not_found", "GET /pets/4711 404 pet_not_found", "GET /pets?limit=1&status=sold 200",
		"POST /store/orders 400 validation_failed", "POST /store/orders 201",
	}, mapped(all, recorded.line), "the record")
	need.Same(t, "", all[0].Operation, "the operation of a path that does not exist")
	for i, want := range map[int]*response{0: malformed, 2: unsupported, 3: unknown} {
		p.wantRecorded(all[i], want)
	}
	first := decode[recorded](p.get(ownRecord + "/" + all[7].ID).want(200))
	if first.Operation != "placeOrder" || first.IdempotencyKey != "order-1" || first.RequestID != "mine" ||
		first.Request.Body != `{"petId":1,"quantity":2}` || first.Request.Size != 24 || len(first.Redacted) != 0 {
		t.Errorf("the first exchange is %+v", first)
	}
	if first.StartedAt.Before(began) || first.StartedAt.After(ended) {
		t.Errorf("the first exchange began at %s, want a time from %s to %s", first.StartedAt, began, ended)
	}
	if got := decode[order](&response{t: t, body: []byte(first.Response.Body)}); got.Quantity != 2 {
		t.Errorf("the body of the response is %q", first.Response.Body)
	}
	headers := map[string]string{}
	for _, h := range first.Request.Headers {
		headers[h.Name] = h.Value
	}
	if key := headers["Authorization"]; !regexp.MustCompile(`^Bearer petstore_\w{8}…$`).MatchString(key) || headers["Host"] == "" {
		t.Errorf("the headers of the request are %v", headers)
	}
}

// wantRecorded fails the test unless the record has the body of a response, which an entry of the list is about.
func (p *petstore) wantRecorded(entry recorded, resp *response) {
	p.t.Helper()
	if got := decode[recorded](p.get(ownRecord + "/" + entry.ID).want(200)).Response; got.Body != string(resp.body) || got.Size != int64(len(resp.body)) {
		p.t.Errorf("%s: the record has %d bytes: %q, want %q", resp.what, got.Size, got.Body, resp.body)
	}
}

// TestRecordOfLargeBodies: the record says that a body of unknown length was too large.
func TestRecordOfLargeBodies(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleShop)
	chunked := io.MultiReader(strings.NewReader(strings.Repeat(" ", maxBodyBytes+1)))
	p.sent(p.request(t.Context(), "POST", "/messages", chunked), nil).want(413)
	if got := p.newestExchange(1).Request; got.Size != maxBodyBytes+1 || got.Body != "" {
		t.Errorf("the record has a body of %d bytes: %q", got.Size, got.Body)
	}
}

// TestRecordOfEndedOperations: the record has the requests that operations refuse after their sunset.
func TestRecordOfEndedOperations(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleShop).with(func(o *api.Options) {
		o.Now, o.EnforceSunset = func() time.Time { return time.Date(2028, 1, 1, 0, 0, 0, 0, time.UTC) }, true
	}).trusting()
	p.get("/pets").want(200)
	ended := p.get("/pets/1").wantError(410, "operation_sunset")
	got := p.record(2)[0]
	p.wantRecorded(got, ended)
	need.Same(t, "GET /pets/1 410 operation_sunset", got.line(), "the newest exchange")
	need.Same(t, "getPet", got.Operation, "its operation")
}

// TestRecordOfFaults: the record says which fault a rule has injected, and that the client got no
// response.
func TestRecordOfFaults(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleShop)
	p.setFaults(
		object{"operation": "getPet", "effect": "status", "status": 503},
		object{"operation": "listPets", "effect": "close", "when": "before"},
		object{"operation": "listOrders", "effect": "close", "when": "after"},
		object{"operation": "listEvents", "effect": "close", "when": "after"})
	p.get("/pets/1").want(503)
	p.wantClosed("GET", "/pets", "")
	p.wantClosed("GET", "/store/orders", "")
	p.wantClosed("HEAD", "/events", "", "Accept", "text/event-stream")
	for operation, want := range map[string]string{
		"getPet": "GET /pets/1 503 injected_fault 0/status", "listPets": "GET /pets 0 1/close", "listOrders": "GET /store/orders 0 2/close",
		"listEvents": "HEAD /events 0 3/close",
	} {
		one := decode[[]recorded](p.do("GET", ownRecord+"?operation="+operation, nil, "Prefer", "wait=10").want(200))[0]
		response := decode[map[string]json.RawMessage](p.get(ownRecord + "/" + one.ID).want(200))["response"]
		if got := fmt.Sprintf("%s %d/%s", one.line(), one.Fault.Rule, one.Fault.Effect); got != want || (response != nil) != (one.Status == 503) {
			t.Errorf("the record has %s with the response %s, want %s", got, response, want)
		}
	}
}

// TestRecordOfLeavingClients: a write takes effect although its client hangs up. The record says that
// the client got no response, also if that has no body.
func TestRecordOfLeavingClients(t *testing.T) {
	t.Parallel()
	p := startAlone(t).patient().inSandbox(stores.SampleShop)
	gone := make(chan struct{}, 1)
	noticing := p.listening(func(s *httptest.Server) {
		s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer context.AfterFunc(r.Context(), func() { gone <- struct{}{} })()
			p.server.ServeHTTP(w, r)
		})
	})
	const placed = "/store/orders/1001"
	for i, write := range []struct {
		method, path, body string
		status             int // of the order afterwards
	}{{"POST", "/store/orders", `{"petId":1}`, 200}, {"DELETE", placed, "", 404}} {
		var leave func()
		release := p.lockTable("orders", 1, func() { leave = noticing.leaving(1, write.method, write.path, write.body) })
		leave()
		<-gone
		release()
		got := p.newestExchange(i + 1)
		p.do("GET", placed, nil, "Petstore-Observer", "true").want(write.status)
		whole := decode[map[string]json.RawMessage](p.get(ownRecord + "/" + got.ID).want(200))
		if status, response := whole["status"], whole["response"]; got.Method != write.method || status != nil || response != nil {
			t.Errorf("the record of the %s has %s: the status %s and the response %s", write.method, got.line(), status, response)
		}
	}
}

// TestObserver: a request of an observer is not in the record, and no fault rule counts it.
func TestObserver(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleEmpty)
	p.setFaults(object{"operation": "*", "effect": "status", "status": 503, "first": 1})
	p.do("GET", "/pets", nil, "Petstore-Observer", "true").want(200)
	p.do("POST", "/categories", object{"name": "Seen"}, "Petstore-Observer", "true").want(201)
	p.do("GET", "/pets", nil, "Petstore-Observer", "1").want(503)
	want := []string{"GET /pets 503 injected_fault", "PUT /sandboxes/current/faults 200"}
	need.Same(t, want, mapped(p.record(2), recorded.line), "the record")
}

// TestRecordFilters: the filters of the list select exchanges, and pages of it have all of them, for a day.
func TestRecordFilters(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleShop)
	p.get("/pets").want(200)
	p.get("/pets/1").want(200)
	p.get("/pets/4711").want(404)
	p.do("POST", "/store/orders", object{"petId": 1}, "Idempotency-Key", "a").want(201)
	p.do("POST", "/store/orders", object{"petId": 1}, "Idempotency-Key", "a").want(201)
	all := p.record(5)
	for query, want := range map[string]int{
		"operation=getPet": 2, "status=4xx": 1, "status=404": 1, "status=2xx": 4, "status=201": 2, "status=5xx": 0, "idempotencyKey=a": 2,
		"idempotencyKey=" + strings.Repeat("k", 255):              0,
		"operation=getPet&status=2xx":                             1,
		"after=" + all[3].ID:                                      3,
		"before=" + all[3].ID:                                     1,
		"after=" + all[4].ID + "&before=" + all[0].ID:             3,
		"after=latest":                                            0,
		fmt.Sprintf("apiKeyId=%d", all[0].APIKeyID):               5,
		fmt.Sprintf("apiKeyId=%d", all[0].APIKeyID+1_000_000_000): 0,
	} {
		resp := p.do("GET", ownRecord+"?"+query, nil, "Prefer", "count=exact").want(200)
		resp.wantHeader("X-Total-Count", fmt.Sprint(want))
		need.Same(t, want, len(decode[[]recorded](resp)), "exchanges with %s", query)
	}
	need.Same(t, all, walk[recorded](p, ownRecord+"?limit=2"), "the pages (want: list, got: pages)")
	for _, query := range []string{"status=2x", "status=600", "status=4XX", "operation=nothing", "operation=listRequests", "after=1", "after=req_1_1", "before=latest", "apiKeyId=0", "limit=0", "sort=id"} {
		p.get(ownRecord + "?" + query).want(400)
	}
	for _, id := range []string{"7", "req_1_1"} {
		p.do("GET", ownRecord, nil, "Accept", "text/event-stream", "Last-Event-ID", id).wantViolations("invalid_parameter", "Last-Event-ID invalid_format")
	}
	const setStart = "UPDATE exchanges SET started_at = $2 WHERE account_id = $1 AND number BETWEEN $3 AND $4"
	p.exec(setStart, p.sandboxID, time.Now().Add(-24*time.Hour-time.Minute), 1, 2)
	p.exec(setStart, p.sandboxID, time.Now().Add(-24*time.Hour+time.Minute), 3, 3)
	p.do("GET", ownRecord, nil, "Prefer", "count=exact").want(200).wantHeader("X-Total-Count", "3")
	need.Same(t, mapped(all[:3], recorded.line), mapped(p.record(3), recorded.line), "the exchanges of 24 hours")
}

// TestRecordOfSandboxesOnly: accounts have no record, and only the parent reads the record of a
// sandbox beside the sandbox itself. TestOtherAccounts has the other requests of strangers.
func TestRecordOfSandboxesOnly(t *testing.T) {
	t.Parallel()
	parent := start(t)
	p := parent.inSandbox(stores.SampleShop)
	path := fmt.Sprintf("/sandboxes/sbx_%d/requests", p.sandboxID)
	p.get("/pets/1").want(200)
	one := p.record(1)[0]
	if got := decode[[]recorded](parent.get(path).want(200)); len(got) != 1 || got[0].ID != one.ID {
		t.Errorf("the parent reads %v", got)
	}
	parent.get(path + "/" + one.ID).want(200)
	p.get("/sandboxes/current/requests").want(200)

	parent.get(ownRecord).want(409)
	parent.get(ownRecord + "/" + one.ID).want(409)
	parent.do("DELETE", ownRecord, nil).want(409)
	stranger := parent.as(parent.newKey("stranger", auth.Admin))
	stranger.get(path + "/" + one.ID).want(404)
	sibling := parent.inSandbox(stores.SampleEmpty)
	sibling.get(ownRecord + "/" + one.ID).want(404)
	sibling.get(ownRecord + "?after=" + one.ID).want(400)
	for _, id := range []string{"req_1", "req_01_1", "req_1_0", "1"} {
		p.get(ownRecord + "/" + id).want(404)
	}
	p.get("/sandboxes/nobody/requests").want(400)
}

// wantRequest fails the test unless the next event of the stream is a request with this status.
func (s *stream) wantRequest(status int) {
	s.t.Helper()
	fields, ok := s.next()
	var got recorded
	if err := json.Unmarshal([]byte(fields["data"]), &got); !ok || err != nil || fields["id"] != got.ID || fields["event"] != "request" || got.Status != status {
		s.t.Errorf("the stream has %v, want a request with status %d", fields, status)
	}
}

// TestRecordWaits: a request for the record waits for the next exchange, and a stream sends each.
func TestRecordWaits(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleShop)
	waiting := []func() *response{p.waitFor(ownRecord + "?status=404&after=latest"), p.waitFor(ownRecord + "?status=404&after=latest")}
	need.Within(t, 30*time.Second, "both requests wait", func() bool { return p.server.WaitingForRecords() == 2 })
	p.get("/pets/1").want(200)
	p.get("/pets/4711").want(404)
	for _, received := range waiting {
		resp := received().want(200)
		if got := decode[[]recorded](resp); len(got) != 1 || got[0].Status != 404 || resp.header.Get("Preference-Applied") != "wait=30" {
			t.Errorf("after the wait: %v, %s", got, resp.header.Get("Preference-Applied"))
		}
	}
	silent := p.do("GET", ownRecord+"?after=latest", nil, "Prefer", "wait=1").want(200)
	need.Same(t, "[]", string(silent.body), "the page after a wait without a request")

	for _, preference := range []string{"wait=1, count=exact", "consistency=eventual, wait=1, count=exact"} {
		if got := p.do("GET", ownRecord, nil, "Prefer", preference).want(200).header.Get("Preference-Applied"); !strings.HasSuffix(got, "wait=1, count=exact") {
			t.Errorf("the preference %q is applied as %q", preference, got)
		}
	}

	stream := p.stream(ownRecord + "?operation=getPet")
	for _, status := range []int{200, 404} { // those from before
		stream.wantRequest(status)
	}
	p.get("/pets").want(200)
	p.get("/pets/2").want(200)
	stream.wantRequest(200)
}

// TestWaitReadsOnce: a request that waits for a match does not read the requests again that do not
// match, each time another one ends.
func TestWaitReadsOnce(t *testing.T) {
	t.Parallel()
	sandbox := start(t).inSandbox(stores.SampleEmpty)
	var last atomic.Int64 // the number after which the server looked last for exchanges
	pool := pgtest.Open(t, sandbox.dbURL, 4, pgtest.Statements(func(sql string, args []any) {
		if strings.HasPrefix(sql, "-- name: ExchangesAfter ") {
			number, _ := args[1].(int64)
			last.Store(number)
		}
	}))
	p := sandbox.with(func(o *api.Options) { o.DB = pool })
	p.recordRequests(p.sandboxID, 1, 5)
	received := p.waitFor(ownRecord + "?status=404")
	need.Within(p.t, 30*time.Second, "the request waits", func() bool { return p.server.WaitingForRecords() == 1 })
	p.get("/pets/4711").want(404)
	received().want(200)
	need.Same(t, 5, last.Load(), "the number after which the last look reads")
}

// TestRecordAfterALoss: a crash of the database can lose the newest requests. A stream that has sent
// them goes on with those that get their numbers. A list after one of them has the whole record.
func TestRecordAfterALoss(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleEmpty)
	p.recordRequests(p.sandboxID, 1, 2)
	lost := fmt.Sprintf("req_%d_5", p.sandboxID)
	stream := p.stream(ownRecord, "Last-Event-ID", lost)
	need.Within(p.t, 30*time.Second, "the stream waits", func() bool { return p.server.WaitingForRecords() == 1 })
	p.recordRequests(p.sandboxID, 3, 3)
	stream.wantNext("id", fmt.Sprintf("req_%d_3", p.sandboxID))

	page := p.get(ownRecord + "?limit=2&after=" + lost).want(200)
	p.recordRequests(p.sandboxID, 4, 6)
	got := decode[[]recorded](page)
	got = append(got, decode[[]recorded](p.get(page.link("next")).want(200))...)
	for i, one := range got {
		need.Same(t, fmt.Sprintf("req_%d_%d", p.sandboxID, 3-i), one.ID, "a request of the list")
	}
	need.Same(t, 3, len(got), "requests of the list")
}

// TestPagesAfterLatest: the pages after `latest` have all requests that have ended since, also
// those that do not fit into the first page.
func TestPagesAfterLatest(t *testing.T) {
	t.Parallel()
	parent := start(t)
	for _, before := range []int{0, 1} {
		p := parent.inSandbox(stores.SampleEmpty)
		p.recordRequests(p.sandboxID, 1, before)
		waiting := p.waitFor(ownRecord + "?after=latest&limit=1")
		need.Within(t, 30*time.Second, "the request waits", func() bool { return p.server.WaitingForRecords() == 1 })
		p.recordRequests(p.sandboxID, before+1, before+3)
		var want, got []string
		for n := before + 3; n > before; n-- {
			want = append(want, fmt.Sprintf("req_%d_%d", p.sandboxID, n))
		}
		for page := waiting(); ; page = p.get(page.link("next")) {
			for _, one := range decode[[]recorded](page.want(200)) {
				got = append(got, one.ID)
			}
			if page.link("next") == "" {
				break
			}
		}
		need.Same(t, want, got, "after %d requests", before)
	}
}

// TestStreamOfAGoneSandboxEnds: the parent account learns that there is nothing more to come.
func TestStreamOfAGoneSandboxEnds(t *testing.T) {
	t.Parallel()
	var passed atomic.Int64
	p := start(t).with(func(o *api.Options) {
		o.Now = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
	})
	sandbox := p.newSandbox("short", stores.SampleEmpty)
	stream := p.stream(sandbox.path() + "/requests")
	stream.wantLine("retry: 1000")
	need.Within(p.t, 30*time.Second, "the stream waits", func() bool { return p.server.WaitingForRecords() == 1 })
	passed.Add(int64(10 * time.Second))
	stream.wantLine(":")
	p.del(sandbox.path()).want(204)
	passed.Add(int64(10 * time.Second))
	if stream.lines.Scan() && stream.lines.Text() != ":" { // or the look after the first comment saw the deletion
		t.Errorf("the stream has the line %q", stream.lines.Text())
	}
	if stream.lines.Scan() || stream.lines.Err() != nil {
		t.Errorf("the stream does not end, but has %q, %v", stream.lines.Text(), stream.lines.Err())
	}
}

// TestWaitForAGoneSandbox: the parent account does not take the end of the sandbox for silence.
func TestWaitForAGoneSandbox(t *testing.T) {
	t.Parallel()
	p := start(t).with(func(*api.Options) {})
	sandbox := p.newSandbox("short", stores.SampleEmpty)
	received := p.waitFor(sandbox.path() + "/requests?after=latest")
	need.Within(p.t, 30*time.Second, "the request waits", func() bool { return p.server.WaitingForRecords() == 1 })
	p.del(sandbox.path()).want(204)
	p.server.ShutDown() // ends the wait
	received().wantError(404, "sandbox_not_found")
}

// TestRecordIsDeleted: a client can empty the record, which goes on with later numbers.
func TestRecordIsDeleted(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleShop)
	p.get("/pets/1").want(200)
	first := p.record(1)[0]
	p.do("DELETE", ownRecord, nil).want(204)
	p.get(ownRecord + "/" + first.ID).want(404)
	p.record(0)
	p.get("/pets/1").want(200)
	if next := p.record(1)[0]; next.ID == first.ID {
		t.Errorf("the next exchange has the id %s again", next.ID)
	}
	p.do("DELETE", ownRecord, nil, "If-Match", `"a"`).want(412)
}

// har is an HTTP Archive.
type har struct {
	Log struct {
		Version string
		Entries []harEntry
	}
}

type harEntry struct {
	StartedDateTime time.Time
	Request         struct {
		Method, URL string
		QueryString []exchange.Header
		PostData    map[string]string
	}
	Response struct {
		Status, BodySize int
		Content          struct {
			MimeType, Text string
			Size           int
		}
	}
}

// TestArchive: the record as an HTTP Archive has each exchange with its messages.
func TestArchive(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleShop)
	p.post("/store/orders", object{"petId": 1, "quantity": 2}).want(201)
	p.get("/pets?limit=1").want(200)
	p.get("/pets?status=%FF&limit=%zz&&b&a=%20+").want(400) // the archive is JSON, so its text is UTF-8
	zipped := p.do("GET", "/pets", nil, "Accept-Encoding", "gzip").wantCoding("gzip")
	p.do("HEAD", "/pets", nil, "Accept-Encoding", "gzip").wantCoding("gzip")
	p.post("/messages", "\xFF").want(400)
	p.record(6)
	resp := p.do("GET", ownRecord, nil, "Accept", "application/har+json").want(200)
	resp.wantHeader("Content-Type", "application/har+json")
	archive := decode[har](resp)
	entries := archive.Log.Entries
	if archive.Log.Version != "1.2" || len(entries) != 6 {
		t.Fatalf("the archive is %s", resp.body)
	}
	binary := map[string]string{"mimeType": "application/json", "text": "/w==", "_encoding": "base64"}
	need.Same(t, binary, entries[0].Request.PostData, "a body that is not text")
	if got := entries[1].Response; got.BodySize != 0 || got.Content.Size != 0 {
		t.Errorf("the response to HEAD has %d bytes", got.BodySize)
	}
	if got := entries[2].Response; fmt.Sprint(got.BodySize) != zipped.header.Get("Content-Length") || got.Content.Size != len(zipped.body) {
		t.Errorf("a compressed response has %d and %d bytes, want %s and %d", got.BodySize, got.Content.Size, zipped.header.Get("Content-Length"), len(zipped.body))
	}
	query := []exchange.Header{{Name: "status", Value: "\uFFFD"}, {Name: "limit", Value: "%zz"}, {Name: "b"}, {Name: "a", Value: "  "}}
	need.Same(t, query, entries[3].Request.QueryString, "the query")
	entries = entries[4:]
	if read := entries[0]; read.Request.URL != p.url+"/pets?limit=1" || len(read.Request.QueryString) != 1 || read.Response.Content.Size != len(read.Response.Content.Text) || !strings.HasPrefix(read.Response.Content.Text, "[{") {
		t.Errorf("the read is %+v", read)
	}
	posted := map[string]string{"mimeType": "application/json", "text": `{"petId":1,"quantity":2}`}
	if write := entries[1]; !maps.Equal(write.Request.PostData, posted) || write.Response.Status != http.StatusCreated || write.Response.Content.MimeType != "application/json" {
		t.Errorf("the write is %+v", write)
	}
	secure := httptest.NewTLSServer(p.server)
	t.Cleanup(secure.Close)
	p.client = secure.Client()
	resp = p.do("GET", secure.URL+ownRecord, nil, "Accept", "application/har+json").want(200)
	need.Contains(t, "the page", string(resp.body), `"https://`+p.url[len("http://"):]+`/pets?limit=1"`)
}

// TestArchiveOfLargeExchanges: the pages of an archive have all exchanges, also if they are large. The
// server does not read the exchanges that a page has no space for, so one that nobody can read stops
// only the last page.
func TestArchiveOfLargeExchanges(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleEmpty)
	p.get("/pets").want(200)
	p.record(1)
	const number = 70
	p.exec(`INSERT INTO exchanges
		SELECT e.account_id, n, e.start_byte, e.started_at, e.microseconds, e.request_id, e.api_key_id, e.method, '/' || n, '', e.operation, e.status, '', '', '',
			replace(e.messages, '"body":""', '"body":"' || repeat('x', 16384) || '"')
		FROM exchanges AS e, generate_series(2, $2::int) AS n
		WHERE account_id = $1`, p.sandboxID, number)
	p.exec("UPDATE exchange_logs SET last_number = $2 WHERE account_id = $1", p.sandboxID, number)
	read := func(path string) (paths []string, next string) {
		resp := p.do("GET", path, nil, "Accept", "application/har+json").want(200)
		paths = mapped(decode[har](resp).Log.Entries, func(entry harEntry) string {
			return strings.TrimPrefix(entry.Request.URL, p.url)
		})
		if len(paths) == 0 || len(resp.body) > 512<<10 {
			t.Fatalf("%s has %d entries in %d bytes", path, len(paths), len(resp.body))
		}
		return paths, resp.link("next")
	}
	want := []string{"/pets"}
	for n := 2; n <= number; n++ {
		want = append([]string{fmt.Sprint("/", n)}, want...)
	}
	for _, limit := range []int{1, 16, 17, 50, 200} {
		var got []string
		for next := fmt.Sprintf("%s?limit=%d", ownRecord, limit); next != ""; {
			var page []string
			page, next = read(next)
			if len(page) > limit {
				t.Errorf("limit=%d: a page has %d entries", limit, len(page))
			}
			got = append(got, page...)
		}
		need.Same(t, want, got, "limit=%d", limit)
	}
	p.exec("UPDATE exchanges SET started_at = 'infinity' WHERE account_id = $1 AND number = 1", p.sandboxID)
	read(ownRecord + "?limit=200")
	p.do("GET", ownRecord+"?limit=200&before="+fmt.Sprintf("req_%d_3", p.sandboxID), nil, "Accept", "application/har+json").want(500)
}

// TestRecordHasNoSecrets: wherever a client puts a key or the secret of a webhook, and whenever
// the server sends one, the record has neither. It says where a secret stood.
func TestRecordHasNoSecrets(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleShop).trusting()
	other := auth.NewSecret().Reveal()
	escaped := strings.NewReplacer("_", `\u005f`).Replace(other)
	for place, send := range map[string]func() *response{
		"request.method":  func() *response { return p.do(other, "/pets", nil).want(405) },
		"request.query":   func() *response { return p.get("/pets?status=" + other) },
		"request.path":    func() *response { return p.get("/pets/" + other) },
		"request.headers": func() *response { return p.do("GET", "/pets/1", nil, "X-Api-Key", other) },
		"request.body":    func() *response { return p.do("POST", "/messages", []byte(`{"message":"`+escaped+`"}`)) },
		"response.body":   func() *response { return p.post("/account/api-keys", object{"name": "new", "scope": "read"}) },
	} {
		p.do("DELETE", ownRecord, nil).want(204)
		send()
		one := p.newestExchange(1)
		if place != "request.body" || len(one.Redacted) == 0 {
			need.Same(t, []string{place}, one.Redacted, "%s: redacted", place)
		}
		if text := fmt.Sprintf("%+v", one); strings.Contains(text, other[len("petstore_"):]) || strings.Contains(text, escaped) {
			t.Errorf("%s: the record has the secret: %s", place, text)
		}
	}
}
