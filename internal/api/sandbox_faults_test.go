package api_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"petstore/db"
	stores "petstore/internal/account"
	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/pgtest"
	"petstore/internal/telemetry"
	"petstore/internal/tools/need"
)

const ownFaults = "/sandboxes/current/faults"

// faultRule is the FaultRule schema.
type faultRule struct {
	Operation, Effect string
	Status, DelayMs   *int
	When              *string
	First             *int64
	Probability       *float64
	Seed              *int64
	Matched           int64
}

// setFaults replaces the rules of the client's sandbox.
func (p *petstore) setFaults(rules ...object) {
	p.t.Helper()
	if rules == nil {
		rules = []object{}
	}
	p.put(ownFaults, object{"rules": rules}).want(200)
}

// rules returns the rules of the client's sandbox, as a response has them.
func (r *response) rules() []faultRule {
	r.t.Helper()
	return decode[struct{ Rules []faultRule }](r.want(200)).Rules
}

// matched returns the counts of the rules of the client's sandbox. Counting is no write of the
// client, so a standby may not have it yet.
func (p *petstore) matched() (counts []int64) {
	p.t.Helper()
	for _, rule := range p.readingPrimary().get(ownFaults).rules() {
		counts = append(counts, rule.Matched)
	}
	return counts
}

// wantInjected fails the test unless the response is an injected error with this status,
// of the rule with this index.
func (r *response) wantInjected(status int, rule string) {
	r.t.Helper()
	r.wantError(status, "injected_fault")
	after := ""
	if status == 429 || status == 503 {
		after = "1"
	}
	r.wantHeader("Petstore-Fault", rule).wantHeader("Retry-After", after)
}

// wantClosed sends a request on a new connection, which the server must close without a response.
func (p *petstore) wantClosed(method, target, body string, header ...string) {
	p.t.Helper()
	request := p.request(p.t.Context(), method, target, strings.NewReader(body), header...)
	conn := need.Value(p.dial(net.Dialer{}))(p.t)
	defer conn.Close()
	need.OK(p.t, request.Write(conn))
	if got, _ := io.ReadAll(conn); len(got) > 0 { // the error may be a reset
		p.t.Errorf("%s %s: the server sent %q, want a closed connection", method, target, got)
	}
}

// exposed returns metrics as Prometheus reads them.
func exposed(t testing.TB, metrics *telemetry.Metrics) string {
	t.Helper()
	recorder := httptest.NewRecorder()
	metrics.Handler().ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	return recorder.Body.String()
}

// TestFaultRules sets, reads and deletes rules, with a key of the sandbox and with one of its parent.
func TestFaultRules(t *testing.T) {
	t.Parallel()
	parent := start(t)
	p := parent.inSandbox(stores.SampleEmpty)
	byID := fmt.Sprintf("/sandboxes/sbx_%d/faults", p.sandboxID)
	rules := []object{
		{"operation": "placeOrder", "effect": "status", "status": 503, "first": 2},
		{"operation": "*", "effect": "delay", "delayMs": 1, "probability": 0.1},
		{"operation": "placeOrder", "effect": "close", "when": "after", "first": 1, "probability": 1, "seed": 0},
	}
	stored := p.put(ownFaults, object{"rules": rules}).want(200)
	seed := stored.rules()[1].Seed
	if seed == nil {
		t.Fatalf("the server chose no seed: %s", stored.body)
	}
	rules[1]["seed"] = *seed
	for _, rule := range rules {
		rule["matched"] = 0
	}
	want := fmt.Sprintf(`{"rules":[{"operation":"placeOrder","effect":"status","status":503,"first":2,"matched":0},`+
		`{"operation":"*","effect":"delay","delayMs":1,"probability":0.1,"seed":%d,"matched":0},`+
		`{"operation":"placeOrder","effect":"close","when":"after","first":1,"probability":1,"seed":0,"matched":0}]}`, *seed)
	for _, resp := range []*response{stored, p.get(ownFaults), p.get(byID), parent.get(byID)} {
		need.Same(t, want, string(resp.want(200).body), "%s: the rules", resp.what)
	}
	p.do("GET", ownFaults, nil, "If-None-Match", "*").want(304)
	for _, method := range []string{"PUT", "DELETE"} {
		p.do(method, ownFaults, map[string]any{"PUT": object{"rules": []object{}}}[method], "If-Match", otherTag).wantError(412, "precondition_failed")
	}
	for _, remove := range []func(){
		func() { parent.del(byID).want(204) },
		func() { p.setFaults() },
	} {
		remove()
		need.Same(t, `{"rules":[]}`, string(p.get(ownFaults).want(200).body), "the deleted rules")
		p.del(ownFaults).want(204)
		parent.put(byID, object{"rules": []object{{"operation": "*", "effect": "delay", "delayMs": 1}}}).want(200)
	}
}

// TestFaultsOfOtherAccounts: accounts have no rules, and the rules of a sandbox hold for itself alone and end with
// it. TestOtherAccounts has the requests of strangers.
func TestFaultsOfOtherAccounts(t *testing.T) {
	t.Parallel()
	parent := start(t)
	p := parent.inSandbox(stores.SampleEmpty)
	sibling := parent.inSandbox(stores.SampleEmpty)
	p.setFaults(object{"operation": "listPets", "effect": "status", "status": 500})
	path := func(id int64) string { return fmt.Sprintf("/sandboxes/sbx_%d/faults", id) }
	ask := func(client *petstore, path string, status int, code string) {
		t.Helper()
		client.get(path).wantError(status, code)
		client.put(path, object{"rules": []object{}}).wantError(status, code)
		client.del(path).wantError(status, code)
	}
	ask(parent, ownFaults, 409, "not_a_sandbox")
	ask(parent, path(parent.accountID()), 404, "sandbox_not_found")
	ask(p, path(parent.accountID()), 404, "sandbox_not_found")
	p.get("/pets").wantInjected(500, "0")
	parent.get("/pets").want(200)
	sibling.get("/pets").want(200)

	need.OK(t, pgx.BeginFunc(t.Context(), p.db, func(tx pgx.Tx) error {
		_, err := stores.Delete(t.Context(), db.New(tx), p.sandboxID)
		return err
	}))
	ask(parent, path(p.sandboxID), 404, "sandbox_not_found")
}

// TestInvalidFaultRules: the server rejects invalid rules with all their errors, and keeps the rules. TestFields has what
// the schema of a field says.
func TestInvalidFaultRules(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleEmpty)
	p.setFaults(object{"operation": "listPets", "effect": "status", "status": 429})
	for _, test := range []struct {
		rules any
		want  []string
	}{
		{[]any{1, nil}, []string{"/rules/0 wrong_type", "/rules/1 wrong_type"}},
		{[]object{{}}, []string{"/rules/0/operation required", "/rules/0/effect required"}},
		{[]object{{"operation": "noSuchOperation", "effect": "explode"}}, []string{"/rules/0/operation not_in_enum", "/rules/0/effect not_in_enum"}},
		{[]object{{"operation": "getLiveness", "effect": "close", "when": "before"}}, []string{"/rules/0/operation not_in_enum"}},
		{[]object{{"operation": "setSandboxFaults", "effect": "close", "when": "before"}}, []string{"/rules/0/operation not_in_enum"}},
		{[]object{{"operation": "*", "effect": "status"}, {"operation": "*", "effect": "delay"}, {"operation": "*", "effect": "close"}}, []string{"/rules/0/status required", "/rules/1/delayMs required", "/rules/2/when required"}},
		{[]object{{"operation": "*", "effect": "delay", "delayMs": 1, "status": 503, "when": "after"}}, []string{"/rules/0/status not_allowed", "/rules/0/when not_allowed"}},
		{[]object{{"operation": "*", "effect": "close", "when": "after", "seed": 1}}, []string{"/rules/0/seed not_allowed"}},
		{[]object{{"operation": "*", "effect": "close", "when": "after", "matched": 0, "After": 1}}, []string{"/rules/0/matched read_only", "/rules/0/After unknown_field"}},
	} {
		p.put(ownFaults, object{"rules": test.rules}).wantViolations("validation_failed", test.want...)
	}
	p.put(ownFaults, object{"Rules": []object{}}).wantViolations("validation_failed", "/rules required", "/Rules unknown_field")
	need.Same(t, "`rules` or `exercise` is required.", p.put(ownFaults, object{}).want(400).error().Errors[0].Message, "the message of an empty body")
	p.get("/pets").wantInjected(429, "0")
}

// TestInjectedStatuses: every operation with an API key, except those on sandboxes, can
// return every injected error, and then does nothing.
func TestInjectedStatuses(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleEmpty)
	p.oneOfEach()
	rows := func() map[string][]string {
		all := p.rows()
		delete(all, "sandbox_faults") // the rules, which count
		return all
	}
	before := rows()
	for _, status := range []int{429, 500, 502, 503, 504} {
		p.setFaults(object{"operation": "*", "effect": "status", "status": status})
		eachOperation(t, func(t *testing.T, o operation) {
			t.Helper()
			if !strings.HasPrefix(o.path, "/sandboxes") && !strings.HasPrefix(o.path, "/samples") {
				p.in(t).ask(o).wantInjected(status, "0")
			}
		})
		p.do("HEAD", "/pets", nil).want(status)
		p.get("/sandboxes/current/faults").want(200)
		p.as("").get("/livez").want(200)
		p.get("/nowhere").wantError(404, "route_not_found")
	}
	need.Same(t, before, rows(), "data (want: before requests with injected errors, got: after them)")
}

// TestFaultsComeAfterChecks: a request that fails an earlier check gets its error, and no
// rule counts it.
func TestFaultsComeAfterChecks(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleEmpty)
	_, reader, err := auth.Issue(t.Context(), db.New(p.db), auth.NewKey{AccountID: p.sandboxID, Name: "reader", Scope: auth.Read})
	need.OK(t, err)
	p.setFaults(object{"operation": "*", "effect": "status", "status": 503})
	p.as("").post("/store/orders", object{}).wantError(401, "missing_api_key")
	p.as(reader.Reveal()).post("/store/orders", object{}).wantError(403, "insufficient_scope")
	p.do("GET", "/pets", nil, "Accept", "text/html").wantError(406, "not_acceptable")
	p.do("POST", "/store/orders", "{}", "Content-Type", "text/plain").wantError(400, "unsupported_content_type")
	need.Same(t, []int64{0}, p.matched(), "counted requests")
	p.post("/store/orders", "{").wantInjected(503, "0")
	p.get("/pets?unheard=of").wantInjected(503, "0")
}

// TestFaultSelection tries rules in order. Each rule counts the requests that reach it,
// and the first that selects a request applies.
func TestFaultSelection(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleEmpty)
	p.setFaults(
		object{"operation": "listPets", "effect": "status", "status": 500, "first": 2},
		object{"operation": "listOrders", "effect": "status", "status": 502},
		object{"operation": "*", "effect": "status", "status": 503, "first": 3},
		object{"operation": "listPets", "effect": "delay", "delayMs": 1, "first": 1},
	)
	p.get("/pets").wantInjected(500, "0")
	p.do("HEAD", "/pets", nil).want(500).wantHeader("Petstore-Fault", "0")
	p.get("/pets").wantInjected(503, "2")
	p.get("/store/orders").wantInjected(502, "1")
	p.get("/categories").wantInjected(503, "2")
	p.get("/messages").wantInjected(503, "2")
	for _, want := range []string{"3", ""} {
		p.get("/pets").want(200).wantHeader("Petstore-Fault", want)
	}
	need.Same(t, []int64{5, 1, 5, 2}, p.matched(), "counted requests")

	need.OK(t, pgx.BeginFunc(t.Context(), p.db, func(tx pgx.Tx) error {
		_, err := stores.Reset(t.Context(), db.New(tx), p.sandboxID)
		return err
	}))
	need.Same(t, []int64{0, 0, 0, 0}, p.matched(), "counted requests after a reset")
	p.get("/pets").wantInjected(500, "0")
}

// TestFaultProbability: a seed selects the same requests each time, in every version.
func TestFaultProbability(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleEmpty)
	for _, test := range []struct {
		seed  int64
		first int
		want  string
	}{
		{42, 100, ".xx.x.x...x....xx.x..x..xx...."},
		{43, 100, "....xx...x.x....xxx.x..x..x..."},
		{42, 10, ".xx.x.x......................."},
	} {
		for range 2 {
			p.setFaults(object{"operation": "listPets", "effect": "status", "status": 503, "probability": 0.3, "seed": test.seed, "first": test.first})
			var got strings.Builder
			for range len(test.want) {
				if p.get("/pets").status == 503 {
					got.WriteString("x")
				} else {
					got.WriteString(".")
				}
			}
			need.Same(t, test.want, got.String(), "the faults of seed %d", test.seed)
		}
	}
}

// TestFaultsAcrossServers: servers on one database count together, and rules that one
// sets take effect on the other.
func TestFaultsAcrossServers(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	p := startOn(t, database).inSandbox(stores.SampleEmpty)
	other := startOn(t, database).as(p.key)
	other.listen()
	other.get("/pets").want(200) // caches that there are no rules, until an announcement
	const first, requests = 5, 32
	p.setFaults(
		object{"operation": "listCategories", "effect": "status", "status": 500},
		object{"operation": "listPets", "effect": "status", "status": 503, "first": first},
	)
	p.get("/categories").wantInjected(500, "0")
	need.Within(t, 8*time.Second, "the rule applies", func() bool { return other.get("/categories").status == 500 })
	var failed atomic.Int64
	atOnce(t, requests, func(i int) error {
		resp, err := []*petstore{p, other}[i%2].try("GET", "/pets", nil)
		if err == nil && resp.status == 503 {
			failed.Add(1)
		}
		return err
	})
	if failed.Load() != first || p.matched()[1] != requests {
		t.Errorf("%d of %d requests failed, want %d of %d", failed.Load(), p.matched()[1], first, requests)
	}

	other.del(ownFaults).want(204)
	other.get("/pets").want(200)
	need.Within(t, 8*time.Second, "the rule does not apply", func() bool { return p.get("/categories").status == 200 })
}

// TestReplacedRulesStopCounting: a server that has cached rules finds out that a counted
// rule has been replaced, and applies the new ones.
func TestReplacedRulesStopCounting(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleEmpty)
	other := p.with(func(*api.Options) {})
	for i := range 10 {
		status := []int{500, 503}[i%2]
		other.setFaults(object{"operation": "listPets", "effect": "status", "status": status})
		p.get("/pets").wantInjected(status, "0")
	}
}

// TestResetCountsOnce: a server that has cached a rule as used up finds out that a reset has started it again, before
// another rule counts the request.
func TestResetCountsOnce(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleEmpty)
	other := p.with(func(*api.Options) {})
	never := object{"operation": "*", "effect": "status", "status": 500, "probability": 1e-9, "seed": 1}
	p.setFaults(never, object{"operation": "listPets", "effect": "status", "status": 503, "first": 1}, never)
	p.get("/pets").wantInjected(503, "1")
	other.get("/pets").want(200)
	p.do("POST", "/sandboxes/current/reset", nil).want(204)
	other.get("/pets").wantInjected(503, "1")
	need.Same(t, []int64{1, 1, 0}, p.matched(), "requests that the rules have counted since the reset")
}

// TestCloseBefore: the server closes the connection and does nothing.
func TestCloseBefore(t *testing.T) {
	t.Parallel()
	metrics := telemetry.NewMetrics()
	p := start(t).with(func(o *api.Options) { o.Metrics = metrics }).inSandbox(stores.SampleEmpty)
	petID := p.newPet("one", 10)
	p.setFaults(object{"operation": "*", "effect": "close", "when": "before", "first": 4})
	p.wantClosed("POST", "/store/orders", fmt.Sprintf(`{"petId": %d, "quantity": 1}`, petID), "Idempotency-Key", "a", "X-Request-Id", "closed-before")
	p.wantClosed("GET", "/pets", "")
	p.wantClosed("HEAD", "/pets", "")
	p.wantClosed("DELETE", fmt.Sprintf("/pets/%d", petID), "")
	need.Same(t, 10, p.inventory(petID).Quantity, "the stock")
	p.do("POST", "/store/orders", object{"petId": petID, "quantity": 1}, "Idempotency-Key", "a").want(201)
	p.wantLogged("closed-before", logLine{Level: "INFO", Status: 444, Fault: "0/close"})
	if text := exposed(t, metrics); !strings.Contains(text, `petstore_injected_faults_total{effect="close"} 4`) || strings.Contains(text, `status="444"`) {
		t.Errorf("the metrics are\n%s", text)
	}
}

// TestCloseAfter: the server does the work and closes the connection. A client that sends
// the request again with its Idempotency-Key gets the response, and has one order.
func TestCloseAfter(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleEmpty)
	petID := p.newPet("one", 10)
	for i := range 10 {
		p.post("/categories", object{"name": fmt.Sprint(i), "description": strings.Repeat("x", 2000)}).want(201)
	}
	p.setFaults(object{"operation": "placeOrder", "effect": "close", "when": "after", "first": 1}, object{"operation": "*", "effect": "close", "when": "after", "first": 4})
	body := fmt.Sprintf(`{"petId": %d, "quantity": 3}`, petID)
	p.wantClosed("POST", "/store/orders", body, "Idempotency-Key", "a", "X-Request-Id", "closed-after")
	p.wantLogged("closed-after", logLine{Level: "INFO", Status: 201, Fault: "0/close"})
	p.wantClosed("POST", "/store/orders", body, "Idempotency-Key", "a") // a replay
	p.wantClosed("GET", "/categories", "")                              // a response of several packets
	p.wantClosed("PUT", fmt.Sprintf("/store/inventory/%d", petID), `{"quantity": 100}`)
	p.wantClosed("POST", "/store/orders", `{"petId": 0}`) // an error
	replayed := p.do("POST", "/store/orders", body, "Idempotency-Key", "a").want(201)
	replayed.wantHeader("Idempotent-Replayed", "true")
	orders := walk[order](p, "/store/orders")
	if len(orders) != 1 || orders[0].ID != decode[order](replayed).ID || orders[0].Quantity != 3 {
		t.Errorf("the orders are %+v, want the order of %s", orders, replayed.body)
	}
	need.Same(t, 100, p.inventory(petID).Quantity, "the stock")
}

// TestDelayReadsNoUnusedBody: a delay rejects no body that the operation ignores. After one that came
// meanwhile, the connection stays open, although the delay is longer than the server waits for a body.
func TestDelayReadsNoUnusedBody(t *testing.T) {
	t.Parallel()
	metrics := telemetry.NewMetrics()
	p := start(t).with(func(o *api.Options) { o.Metrics = metrics }).inSandbox(stores.SampleEmpty)
	target := p.newWebhook("*").path() + "/test"
	p.setFaults(
		object{"operation": "testWebhook", "effect": "delay", "delayMs": 10, "first": 1},
		object{"operation": "testWebhook", "effect": "delay", "delayMs": 1100},
	)
	p.do("POST", target, strings.Repeat(" ", maxBodyBytes+1)).want(202)
	conn := need.Value(p.dial(net.Dialer{}))(t)
	defer conn.Close()
	responses := bufio.NewReader(conn)
	send := func(text string) { need.Value(io.WriteString(conn, text))(t) }
	receive := func(status int) {
		t.Helper()
		response, err := http.ReadResponse(responses, nil)
		need.OK(t, err)
		defer response.Body.Close()
		body := need.Value(io.ReadAll(response.Body))(t)
		if response.StatusCode != status || response.Close {
			t.Errorf("status %d, want %d; Connection: close is %t: %s", response.StatusCode, status, response.Close, body)
		}
	}
	send("POST " + target + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + p.key + "\r\nContent-Length: 2\r\n\r\n")
	need.Within(t, 30*time.Second, "the request is delayed", func() bool {
		return strings.Contains(exposed(t, metrics), `petstore_injected_faults_total{effect="delay"} 2`)
	})
	send("{}")
	receive(202)
	send("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
	receive(200)
}

// TestDelayHoldsNothing: delayed requests hold neither a place in progress nor a database
// connection, and end when the server shuts down.
func TestDelayHoldsNothing(t *testing.T) {
	t.Parallel()
	p := startAlone(t).inSandbox(stores.SampleEmpty)
	p = p.with(func(o *api.Options) { o.MaxInFlight = 4 }) // one place per account
	petID := p.newPet("one", 10)
	p.setFaults(
		object{"operation": "placeOrder", "effect": "delay", "delayMs": 10_000},
		object{"operation": "listPets", "effect": "delay", "delayMs": 10_000},
	)
	const delayed = 12 // more than the database connections of the server
	var received []func() *response
	sent := time.Now()
	for range delayed / 2 {
		received = append(received, p.begin("GET", "/pets", nil),
			p.begin("POST", "/store/orders", object{"petId": petID, "quantity": 1}))
	}
	need.Within(t, 30*time.Second, "all delayed requests are counted", func() bool { return cmp.Equal(p.matched(), []int64{delayed / 2, delayed / 2}) })
	// Long before the end of the delays. A poll of the positions takes one for a moment.
	need.Within(t, 2*time.Second, "the delays hold no connection", func() bool { return p.pool.Pool().Stat().AcquiredConns() == 0 })
	need.Same(t, 10, p.inventory(petID).Quantity, "the stock during the delays")
	p.server.ShutDown()
	for _, receive := range received { // the account has one place, and all requests need it at once
		if resp := receive(); resp.status >= 300 && resp.status != 429 {
			t.Errorf("%s: %d: %s", resp.what, resp.status, resp.body)
		}
	}
	if took := time.Since(sent); took >= 10*time.Second {
		t.Errorf("the shutdown did not end the delays: the responses took %s", took)
	}
	p.server.ShutDown() // has no further effect
}

// TestDelaysHaveAShare: the sandboxes of an account share its delayed requests, which
// stop neither other requests nor requests of other accounts.
func TestDelaysHaveAShare(t *testing.T) {
	t.Parallel()
	metrics := telemetry.NewMetrics()
	parent := start(t).with(func(o *api.Options) { o.MaxConnections, o.Metrics = 16, metrics }) // one delay per account
	p, sibling := parent.inSandbox(stores.SampleEmpty), parent.inSandbox(stores.SampleEmpty)
	bob := parent.as(parent.newKey("bob", auth.Admin))
	other := parent.as(bob.newSandbox("other", "shop").Key.Secret)
	slow := object{"operation": "listPets", "effect": "delay", "delayMs": 10_000}
	p.setFaults(slow)
	sibling.setFaults(slow)
	other.setFaults(object{"operation": "listPets", "effect": "delay", "delayMs": 1})
	received := p.begin("GET", "/pets", nil)
	need.Within(t, 30*time.Second, "the request is delayed", func() bool {
		return strings.Contains(exposed(t, metrics), `petstore_injected_faults_total{effect="delay"} 1`)
	})
	for _, client := range []*petstore{p, sibling} {
		refused := client.get("/pets").wantError(429, "too_many_concurrent_requests")
		refused.wantHeader("Petstore-Fault", "") // it is not delayed
		client.get("/categories").want(200)
	}
	other.get("/pets").want(200).wantHeader("Petstore-Fault", "0")
	p.server.ShutDown() // ends the delay
	received().want(200)
	p.get("/pets").want(200)
}

// TestRevokedDuringDelay: a delayed request does nothing when its key was revoked during the delay.
func TestRevokedDuringDelay(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleEmpty)
	petID := p.newPet("one", 10)
	key := p.makeKey("writer", "write")
	writer := p.as(key.Secret)
	p.setFaults(object{"operation": "*", "effect": "delay", "delayMs": 10_000, "first": 4})
	received := []func() *response{
		writer.begin("GET", "/pets", nil),
		writer.begin("HEAD", "/pets", nil),
		writer.begin("DELETE", petPath(petID), nil),
		writer.begin("POST", "/store/orders", object{"petId": petID, "quantity": 1}),
	}
	need.Within(t, 30*time.Second, "all requests are counted", func() bool { return cmp.Equal(p.matched(), []int64{4}) })
	p.del(keyPath(key.ID)).want(204)
	p.server.ShutDown() // ends the delays
	for _, receive := range received {
		resp := receive().want(401)
		need.Same(t, true, resp.closes, "%s: whether the connection closes", resp.what)
	}
	need.Same(t, 10, p.inventory(petID).Quantity, "the stock")
}

// TestClientLeavesDuringDelay: the delay of a request ends when its client disconnects,
// and the server does nothing. The metrics do not have the time of the delay.
func TestClientLeavesDuringDelay(t *testing.T) {
	t.Parallel()
	metrics := telemetry.NewMetrics()
	p := start(t).with(func(o *api.Options) { o.Metrics = metrics }).inSandbox(stores.SampleEmpty)
	petID := p.newPet("one", 10)
	p.setFaults(object{"operation": "*", "effect": "delay", "delayMs": 10_000, "first": 2})
	for i, request := range []struct{ method, target, body string }{
		{"GET", "/pets", ""},
		{"POST", "/store/orders", fmt.Sprintf(`{"petId": %d, "quantity": 1}`, petID)},
	} {
		id := "left-" + request.method
		leave := p.leaving(1, request.method, request.target, request.body, "X-Request-Id", id)
		delayed := fmt.Sprintf(`petstore_injected_faults_total{effect="delay"} %d`, i+1)
		need.Within(t, 30*time.Second, "the request is counted", func() bool { // the rule counts a request before it delays it
			return strings.Contains(exposed(t, metrics), delayed)
		})
		leave()
		p.wantLogged(id, logLine{Level: "INFO", Status: 499, Fault: "0/delay"})
		p.wantLessCounted(metrics, request.method, request.target, id)
	}
	need.Same(t, 10, p.inventory(petID).Quantity, "the stock")
}

// wantLessCounted fails the test unless the metrics have less time of the only request of an operation
// than its log line.
func (p *petstore) wantLessCounted(metrics *telemetry.Metrics, method, route, id string) {
	p.t.Helper()
	sum := fmt.Sprintf(`petstore_http_request_duration_seconds_sum{method=%q,route=%q} `, method, route)
	_, text, _ := strings.Cut(exposed(p.t, metrics), sum)
	text, _, _ = strings.Cut(text, "\n")
	counted, err := strconv.ParseFloat(text, 64)
	if took := *p.logged(id)[0].DurationUS; err != nil || counted*1e6 >= float64(took) {
		p.t.Errorf("%s %s: the metrics have %q s (%v), and the log %d µs", method, route, text, err, took)
	}
}

// TestInjectedFaultsAreNoSecurityEvents: an injected 429 is neither a security event nor
// an error of the server in the log.
func TestInjectedFaultsAreNoSecurityEvents(t *testing.T) {
	t.Parallel()
	metrics := telemetry.NewMetrics()
	p := start(t).with(func(o *api.Options) { o.Metrics = metrics }).inSandbox(stores.SampleEmpty)
	for _, status := range []int{429, 500} {
		p.setFaults(object{"operation": "listPets", "effect": "status", "status": status})
		id := fmt.Sprint("injected-", status)
		p.do("GET", "/pets", nil, "X-Request-Id", id).wantInjected(status, "0")
		p.wantLogged(id, logLine{Level: "INFO", Status: status, Fault: "0/status"})
	}
	if strings.Contains(p.log.String(), `"event":"rate_limited"`) {
		t.Errorf("the log has a security event:\n%s", p.log)
	}
	text := exposed(t, metrics)
	if !strings.Contains(text, `petstore_injected_faults_total{effect="status"} 2`) || strings.Contains(text, `route="/pets"`) {
		t.Errorf("the metrics count injected errors as responses:\n%s", text)
	}
}
