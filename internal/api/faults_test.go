package api_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// operation is an operation of the spec with a valid request.
type operation struct {
	method, path string
	target       string // the path with ids in it
	body         any    // the example of the spec, or nil
	public       bool   // needs no key
	described    *openapi3.Operation
}

// operations lists every operation of the spec.
func operations() []operation { return operationsOf(theContract().document) }

func operationsOf(document *openapi3.T) (all []operation) {
	for path, item := range document.Paths.Map() {
		for method, described := range item.Operations() {
			one := operation{method: method, path: path, described: described}
			// 1001 is an id of oneOfEach, and also the first account of a database
			ids := strings.NewReplacer("{messageId}", "msg_0198c5f27d3a7c419b0e5a1f3c2d4e6f", "{apiKeyId}", "4711", "{eventId}", "evt_0000000003e900000000000100000000", "{webhookId}", absentIDs["webhookId"], "{deliveryId}", absentIDs["deliveryId"], "{sandboxId}", "sbx_4711")
			one.target = filled(ids.Replace(path), "1001")
			one.public = described.Security != nil && len(*described.Security) == 0
			if described.RequestBody != nil {
				one.body = described.RequestBody.Value.Content["application/json"].Example
			}
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b operation) int { return strings.Compare(a.path+a.method, b.path+b.method) })
	return all
}

// eachOperation runs a subtest for every operation that takes a key.
func eachOperation(t *testing.T, test func(t *testing.T, o operation)) {
	t.Helper()
	for _, o := range operations() {
		if !o.public {
			t.Run(o.method+o.path, func(t *testing.T) { test(t, o) })
		}
	}
}

// scope is the scope that the operation needs.
func (o operation) scope() auth.Scope { return routeOf(o.method, o.path, o.described).Scope }

// ask sends the operation's request.
func (p *petstore) ask(o operation, header ...string) *response {
	p.t.Helper()
	return p.do(o.method, o.target, o.body, header...)
}

// oneOfEach creates the resources that the operations refer to: a pet with id 1001 and so on.
func (p *petstore) oneOfEach() {
	p.t.Helper()
	p.newOrder(p.newPet("one", 100), 1)
	p.post("/messages", object{"message": "hello"}).want(202)
}

// TestEveryOperationRejects checks the errors that every operation can return, as
// listed under Errors in the API reference.
func TestEveryOperationRejects(t *testing.T) {
	t.Parallel()
	p := start(t)
	small := p.with(func(o *api.Options) { o.MaxBodyBytes = 10 })
	lesser := map[auth.Scope]string{auth.Read: p.newKey("tester", auth.Read), auth.Write: p.newKey("tester", auth.Write)}
	eachOperation(t, func(t *testing.T, o operation) {
		t.Helper()
		p := p.in(t)
		p.as("").ask(o).wantChallenge(401, "missing_api_key", challenge)
		p.as("x").ask(o).wantChallenge(401, "invalid_api_key", challengeInvalid)
		p.ask(o, "Accept", "text/html").wantError(406, "not_acceptable")
		p.do(o.method, o.target+"?unheard=of", o.body).wantViolations("invalid_parameter", "unheard unknown")
		for scope, key := range lesser {
			resp := p.as(key).ask(o)
			if !scope.Includes(o.scope()) {
				resp.wantChallenge(403, "insufficient_scope", challengeScope)
				need.Contains(t, "the message", resp.error().Message, o.scope().String(), scope.String())
			} else if resp.status == 401 || resp.status == 403 || (o.method == "GET" && resp.status != 200 && resp.status != 404) {
				t.Errorf("with a key of scope %s: %d", scope, resp.status)
			}
		}
		if o.body != nil {
			small.in(t).ask(o).wantError(413, "body_too_large")
			p.ask(o, "Content-Type", "text/plain").wantError(400, "unsupported_content_type")
			p.do(o.method, o.target, "{").wantError(400, "invalid_json")
			other := "[]" // not of the type of the body
			if _, isArray := o.body.([]any); isArray {
				other = "{}"
			}
			p.do(o.method, o.target, other).wantViolations("validation_failed", " wrong_type")
		}
	})
}

// wantUnavailable fails the test unless the response is a 503 that tells the client to retry.
func (r *response) wantUnavailable() {
	r.t.Helper()
	want := errorBody{Code: "unavailable", Message: "The service is unavailable at the moment. Retry after the time in Retry-After.", Status: 503, RequestID: r.header.Get("X-Request-Id")}
	need.Same(r.t, want, r.wantError(503, "unavailable").error(), "%s: the Error", r.what)
	r.wantHeader("Retry-After", "1")
}

// TestDatabaseUnavailable: every operation returns 503, for cached and for unknown keys.
func TestDatabaseUnavailable(t *testing.T) {
	t.Parallel()
	p := startAlone(t).readingPrimary()
	p.oneOfEach()
	p.get("/pets").want(200)
	p.pool.Close()
	eachOperation(t, func(t *testing.T, o operation) {
		t.Helper()
		p := p.in(t)
		p.verifier.Trust() // so that the operation itself finds the database unavailable
		p.ask(o).wantUnavailable()
		p.as(auth.NewSecret().Reveal()).ask(o).wantUnavailable()
		p.as("x").ask(o).wantError(401, "invalid_api_key")
	})
	p.as("").get("/livez").want(200)
	p.as("").get("/openapi.json").want(200)
}

// TestDatabaseSlow: every operation returns 503 within 8 seconds when it cannot get
// a lock or a connection. Afterwards the data is unchanged and the operations work.
func TestDatabaseSlow(t *testing.T) {
	t.Parallel()
	p := startAlone(t).readingPrimary()
	p.pool.WaitAtMost(time.Second) // as in production
	impatient := *p.client
	impatient.Timeout = 8 * time.Second // without the checks of a response
	p.client = &impatient
	p.oneOfEach()
	tables := []string{"categories", "pets", "inventory", "orders", "messages", "accounts", "account_state", "api_keys", "events", "webhooks", "webhook_deliveries"}
	saving := p.as(p.newKey("saving", auth.Admin)) // an account has one place for a new sandbox or sample
	before := p.rows()
	lock := pgtest.Begin(t, p.db)
	pgtest.Exec(t, lock, "LOCK "+strings.Join(tables, ", "))
	all := selected(operations(), func(o operation) bool { return !o.public })
	p.verifier.Trust() // so that the operations wait, and not the verifier
	atOnce(t, len(all), func(i int) error {
		from := p
		if all[i].method == http.MethodPost && all[i].target == samplesPath {
			from = saving
		}
		resp, err := from.try(all[i].method, all[i].target, all[i].body)
		if err != nil {
			return err
		}
		if resp.status != 503 {
			return fmt.Errorf("%s: %d: %s", resp.what, resp.status, resp.body)
		}
		return nil
	})
	// A write whose request has timed out is canceled shortly after its response.
	need.Within(t, 30*time.Second, "no statement waits", func() bool { return p.waiting() == 0 })
	pgtest.Rollback(t, lock)
	p.wantRows(before)
	// The pool may still be opening a connection for a lost one. The next requests find it.
	need.Within(t, 30*time.Second, "the server has a connection", func() bool { return p.get("/categories").status == 200 })
	for _, o := range all {
		if status := p.ask(o).status; status >= 500 {
			t.Errorf("%s %s: %d after the fault", o.method, o.path, status)
		}
	}
}

// TestConnectionsCut: when the connections of the server are terminated, requests
// succeed or return 503, and soon all succeed again.
func TestConnectionsCut(t *testing.T) {
	t.Parallel()
	p := startAlone(t)
	p.oneOfEach()
	for range 5 {
		p.get("/pets").want(200)
		p.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'petstore'`)
		need.Within(t, 30*time.Second, "the request is in progress", func() bool {
			resp := p.post("/messages", object{"message": "x"})
			if resp.status != 202 {
				resp.wantUnavailable()
			}
			return resp.status == 202
		})
	}
}

// lockTable locks a table, runs begin and returns once this many statements of the
// server wait for the lock. Calling release unlocks the table. From now on, the client
// allows no standby, because the lock may not be there yet.
func (p *petstore) lockTable(table string, waiting int, begin func()) (release func()) {
	p.t.Helper()
	p.mustBeAlone()
	if p.replica != nil {
		p.replica = nil
	}
	lock := pgtest.Begin(p.t, p.db)
	pgtest.Exec(p.t, lock, "LOCK "+table)
	begin()
	need.Within(p.t, 30*time.Second, "all statements wait for the table", func() bool { return p.waiting() == waiting })
	return func() { _ = lock.Rollback(context.WithoutCancel(p.t.Context())) } // a second rollback has no effect
}

// waiting counts the statements of the server that wait for a lock.
func (p *petstore) waiting() (count int) {
	p.t.Helper()
	p.mustBeAlone()
	return pgtest.Read[int](p.t, p.db, `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'petstore' AND wait_event_type = 'Lock'`)
}

// TestConnectionLost: the server repeats a read whose connection is lost. It does
// not repeat a write, because the write may have taken effect.
func TestConnectionLost(t *testing.T) {
	t.Parallel()
	p := startAlone(t)
	p.oneOfEach()
	lost := func(method, path string, body any) *response { // each alone, because lock_timeout soon ends a statement
		t.Helper()
		var received func() *response
		release := p.lockTable("orders", 1, func() { received = p.begin(method, path, body) })
		defer release()
		p.exec(`SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'petstore' AND wait_event_type = 'Lock'`)
		release()
		return received()
	}
	lost("GET", "/store/orders/1001", nil).want(200)
	lost("POST", "/store/orders", object{"petId": 1001}).wantUnavailable()
}

// TestClientLeaves: a read ends when its client hangs up, and is not logged as an error.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	p := startAlone(t).readingPrimary()
	p.oneOfEach()
	var leave func()
	defer p.lockTable("orders", 1, func() {
		leave = p.leaving(1, "GET", "/store/orders/1", "", "X-Request-Id", "left-alone")
	})()
	leave()
	need.Within(t, 30*time.Second, "no statement waits", func() bool { return p.waiting() == 0 })
	p.wantLogged("left-alone", logLine{Level: "INFO", Status: 499})
}

// TestDatabaseErrorsAreHidden: the text of a database error goes to the log, not to the client.
func TestDatabaseErrorsAreHidden(t *testing.T) {
	t.Parallel()
	p := startAlone(t)
	p.oneOfEach()
	p.exec("DROP TABLE categories, pets, inventory, orders, messages, signing_keys, accounts, api_keys, events, webhooks, webhook_deliveries CASCADE")
	eachOperation(t, func(t *testing.T, o operation) {
		t.Helper()
		p := p.in(t)
		p.verifier.Trust() // so that the key stays cached
		id := "fault-" + o.described.OperationID
		resp := p.ask(o, "X-Request-Id", id)
		want := errorBody{Code: "internal_error", Message: "The server failed. Quote the request id when you report it.", Status: 500, RequestID: id}
		need.Same(t, want, resp.wantError(500, "internal_error").error(), "the Error")
		need.Same(t, false, bytes.Contains(resp.body, []byte("relation")),
			"whether %s contains the text of the database", resp.body)
		lines := p.logged(id)
		if len(lines) != 1 || lines[0].Level != "ERROR" || !strings.Contains(lines[0].Error, "does not exist") {
			t.Errorf("the log lines do not contain the error: %+v", lines)
		}
	})
}
