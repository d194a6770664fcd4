package api_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	stores "petstore/internal/account"
	"petstore/internal/api"
	"petstore/internal/exchange"
	"petstore/internal/faults"
	"petstore/internal/pgtest"
	"petstore/internal/report"
	"petstore/internal/tools/need"
)

const ownReport = "/sandboxes/current/report"

// report returns the report on the sandbox of the client, when it is about a number of requests. Other
// tests of the account also ask for reports, of which one runs at a time.
func (p *petstore) report(requests int) (r report.Report) {
	p.t.Helper()
	need.Within(p.t, 20*time.Second, "the report has all requests", func() bool {
		got := p.get(ownReport)
		if got.status == http.StatusTooManyRequests {
			return false
		}
		r = decode[report.Report](got.want(200))
		return r.Requests >= requests
	})
	return r
}

func verdict(r report.Report, rule string) report.Result {
	i := slices.IndexFunc(r.Results, func(one report.Result) bool { return one.Rule == rule })
	return r.Results[i]
}

// TestReport: the report judges what the keys of a sandbox have sent, as JSON and as Markdown. The
// parent account gets the same report.
func TestReport(t *testing.T) {
	t.Parallel()
	parent := start(t)
	p := parent.inSandbox(stores.SampleShop)
	p.get("/pets/1").want(200)
	p.get("/pets").want(200)

	got := p.report(2)
	if got.Status != report.Warning || got.Counts.Warnings != 1 || got.Counts.Failed != 0 || got.Incomplete {
		t.Errorf("the report is %+v", got)
	}
	if one := verdict(got, "not_deprecated"); one.Status != report.Warning || one.Evidence[0] != fmt.Sprintf("req_%d_1", p.sandboxID) || one.Guide != "/docs/requests#deprecation" {
		t.Errorf("the verdict is %+v", one)
	}
	of := decode[report.Report](parent.get(fmt.Sprintf("/sandboxes/sbx_%d/report", p.sandboxID)).want(200))
	need.Same(t, 2, of.Requests, "requests that the parent sees")
	page := p.do("GET", ownReport, nil, "Accept", "text/markdown").want(200)
	page.wantHeader("Content-Type", "text/markdown; charset=utf-8")
	need.Contains(t, "the page", string(page.body), "| [Use no deprecated operation](/docs/requests#deprecation) | Once, the client")
	unmodified := p.do("GET", ownReport, nil, "If-None-Match", "*", "Accept", "text/markdown").want(304)
	unmodified.wantHeader("Vary", page.header.Get("Vary"))
	parent.get(ownReport).wantError(409, "not_a_sandbox")
	parent.get("/sandboxes/sbx_9007199254740991/report").wantError(404, "sandbox_not_found")
	p.get(ownReport + "?x=1").want(400)
}

// unread is a response that its client does not read until it has ended.
type unread struct {
	http.ResponseWriter

	begin func()
	ended <-chan struct{}
}

func (u unread) Write(text []byte) (int, error) {
	u.begin()
	<-u.ended
	return u.ResponseWriter.Write(text)
}

// TestReportThatNobodyReads: a client that reads its report slowly does not hold up the exact counts
// of others.
func TestReportThatNobodyReads(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleShop)
	begun, ended, got := make(chan struct{}), make(chan struct{}), httptest.NewRecorder()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, ownReport, nil)
	request.Header.Set("Authorization", "Bearer "+p.key)
	done := background(func() *httptest.ResponseRecorder {
		p.server.ServeHTTP(unread{got, sync.OnceFunc(func() { close(begun) }), ended}, request)
		return got
	})
	<-begun
	p.get("/store/inventory/summary").want(200)
	close(ended)
	need.Same(t, http.StatusOK, done().Code, "the status of the report %s", got.Body)
}

// TestReportHoldsItsPlace: while a report is judged, the account gets no exact count.
func TestReportHoldsItsPlace(t *testing.T) {
	t.Parallel()
	const base = "https://judged.example"
	p := start(t).inSandbox(stores.SampleEmpty).with(func(o *api.Options) { o.BaseURL = base })
	begun, ended := make(chan struct{}), make(chan struct{})
	api.Judging.Store(base+"/docs/", func() {
		close(begun)
		<-ended
	})
	judged := p.begin("GET", ownReport, nil)
	<-begun
	summary := p.get("/store/inventory/summary")
	close(ended)
	summary.wantRejected(429, "too_many_concurrent_requests")
	judged().want(200)
}

// TestIncompleteReport: the report says that requests are missing, until a client empties the record.
func TestIncompleteReport(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleEmpty)
	wantIncomplete := func(want bool) {
		t.Helper()
		need.Same(t, want, decode[report.Report](p.get(ownReport).want(200)).Incomplete,
			"whether the report is incomplete")
	}
	p.get("/pets").want(200)
	p.get("/pets").want(200)
	p.report(2)
	wantIncomplete(false)
	ours := "account_id = (SELECT account_id FROM api_keys WHERE id = " + fmt.Sprint(p.record(2)[0].APIKeyID) + ")"
	p.exec("DELETE FROM exchanges WHERE number = 1 AND " + ours)
	wantIncomplete(true) // the first request is missing
	p.del(ownRecord).want(204)
	wantIncomplete(false)
	p.exec("UPDATE exchange_logs SET dropped = 1 WHERE " + ours)
	wantIncomplete(true) // a request was dropped
	p.del(ownRecord).want(204)
	p.get("/pets").want(200)
	p.report(1)
	wantIncomplete(false)
}

// TestReportOnLongRequest: the report reads the newest events, also of a request that began before the first
// one in the record had begun, and ended after it.
func TestReportOnLongRequest(t *testing.T) {
	t.Parallel()
	p := programIn(start(t))
	p.call("GET", "/pets", "")
	p.addEvents(p.sandboxID, 5000, "order.placed", 0)
	p.loses("placeOrder")
	for range 2 {
		p.call("POST", orderPath, anOrder, "Idempotency-Key", "a")
	}
	got := verdict(p.report(3), "order_once")
	need.Same(t, report.Passed, got.Status, "the verdict after many events: %s", got.Summary)
	ours := "account_id = (SELECT account_id FROM api_keys WHERE id = " + fmt.Sprint(p.record(4)[0].APIKeyID) + ")"
	// Citus rejects timestamptz + interval here, which depends on the time zone of the session.
	const later = "(started_at AT TIME ZONE 'UTC' + interval '1 minute') AT TIME ZONE 'UTC'"
	p.exec("UPDATE exchanges SET started_at = " + later + " WHERE number = 1 AND " + ours)
	got = verdict(p.report(3), "order_once")
	need.Same(t, report.Passed, got.Status, "the verdict: %s", got.Summary)
}

// TestReportOnClocks: the report relates requests to events, although the clock of the database is
// another one.
func TestReportOnClocks(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "its workers do not have the function")
	for _, skew := range []string{"1 minute", "-1 minute"} {
		t.Run(skew, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			pgtest.Exec(t, database.Pool, `
				CREATE FUNCTION statement_timestamp() RETURNS timestamptz STABLE LANGUAGE sql AS
					$$ SELECT pg_catalog.statement_timestamp() + interval '`+skew+`' $$;
				DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$`)
			parent := startOn(t, database)
			p := programIn(parent)
			order := func(key string) { p.call("POST", orderPath, anOrder, "Idempotency-Key", key) }
			p.loses("placeOrder")
			order("a")
			order("a")
			p.loses("placeOrder")
			order("b")
			parent.post(fmt.Sprintf("/sandboxes/sbx_%d/reset", p.sandboxID), nil).want(204) // not in the record
			order("c")
			need.Within(t, 20*time.Second, "the report has the verdict", func() bool { // a busy machine compares the clocks less exactly
				judged := p.report(4)
				return verdict(judged, "order_once").Status == report.Passed && verdict(judged, "retry_same_key").Status == report.Passed
			})
		})
	}
}

// TestExercises: an exercise loads rules, which GET and the response show.
func TestExercises(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleEmpty)
	for _, one := range faults.Exercises {
		got := p.put(ownFaults, object{"exercise": one.Name}).rules()
		if len(got) != len(one.Rules) || len(p.get(ownFaults).rules()) != len(one.Rules) {
			t.Errorf("%s has the rules %v", one.Name, got)
		}
		for _, rule := range got { // so a client can send them
			body := object{"operation": rule.Operation, "effect": rule.Effect}
			for name, value := range map[string]any{"status": rule.Status, "delayMs": rule.DelayMs, "when": rule.When, "first": rule.First, "probability": rule.Probability, "seed": rule.Seed} {
				if text := fmt.Sprint(value); text != "<nil>" {
					body[name] = value
				}
			}
			p.put(ownFaults, object{"rules": []object{body}}).want(200)
		}
	}
	for _, body := range []object{
		{},
		{"exercise": "none"},
		{"exercise": "slow", "rules": []object{}},
		{"rules": []object{{"operation": "deliverWebhook", "effect": "delay", "delayMs": 1}}},
	} {
		p.put(ownFaults, body).wantError(400, "validation_failed")
	}
}

// BenchmarkReport measures a report on a full record of requests with bodies.
func BenchmarkReport(b *testing.B) {
	p := startAlone(b).inSandbox(stores.SampleEmpty)
	p.get("/pets").want(200)
	p.report(1)
	p.exec(`INSERT INTO exchanges
		SELECT e.account_id, n, e.start_byte, e.started_at + n * interval '10 ms', e.microseconds, e.request_id, e.api_key_id,
			CASE n % 2 WHEN 0 THEN 'GET' ELSE 'POST' END, CASE n % 2 WHEN 0 THEN '/pets' ELSE '/store/orders' END, '',
			CASE n % 2 WHEN 0 THEN 'listPets' ELSE 'placeOrder' END, CASE n % 10 WHEN 0 THEN 503 WHEN 1 THEN 0 ELSE 200 END,
			'', CASE n % 2 WHEN 0 THEN '' ELSE 'key-' || n END, '', replace(e.messages, '"body":""', '"body":"' || repeat('x', 1000) || '"')
		FROM exchanges AS e, generate_series(2, $1) AS n`, exchange.MaxExchanges)
	p.exec("UPDATE exchange_logs SET last_number = $1", exchange.MaxExchanges)
	for b.Loop() {
		if got := decode[report.Report](p.get(ownReport).want(200)); got.Requests != exchange.MaxExchanges {
			b.Fatalf("the report is about %d requests", got.Requests)
		}
	}
}
