package report_test

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"petstore/internal/report"
	"petstore/internal/tools/need"
)

// The names of the package that all tables use.
type (
	Record   = report.Record
	Exchange = report.Exchange
	Event    = report.Event
	Delivery = report.Delivery
	Attempt  = report.Attempt
	Status   = report.Status
)

const (
	Failed  = report.Failed
	Warning = report.Warning
	Passed  = report.Passed
	NotSeen = report.NotSeen
)

var start = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// change changes an exchange.
type change func(*Exchange)

// operations are the operations of the requests in these tests.
var operations = map[string]string{
	"GET /pets": "listPets", "POST /pets": "createPet", "GET /pets/1": "getPet", "PATCH /pets/1": "updatePet", "DELETE /pets/1": "deletePet",
	"POST /store/orders": "placeOrder", "GET /events": "listEvents", "GET /messages/1": "getMessage", "PUT /store/inventory/1": "setInventory",
	"GET /store/inventory/1": "getInventoryItem", "GET /categories": "listCategories",
}

// x makes an exchange without a body that starts after some seconds and takes 10 ms. The line has the
// method, the URL and the status, and may have the code of an error.
func x(after float64, line string, changes ...change) Exchange {
	part := strings.Fields(line)
	e := Exchange{Began: at(after), Ended: at(after + 0.01), APIKeyID: 1, Agent: "client/1", Method: part[0], Body: report.Body{Hash: 1}}
	e.Path, e.RawQuery, _ = strings.Cut(part[1], "?")
	e.Operation = operations[e.Method+" "+e.Path]
	e.Status, _ = strconv.Atoi(part[2])
	if len(part) > 3 {
		e.Code = part[3]
	}
	for _, change := range changes {
		change(&e)
	}
	return e
}

func at(after float64) time.Time { return start.Add(time.Duration(after * float64(time.Second))) }

func key(key string) change    { return func(e *Exchange) { e.Key = key } }
func agent(name string) change { return func(e *Exchange) { e.Agent = name } }
func apiKey(id int64) change   { return func(e *Exchange) { e.APIKeyID = id } }
func fault(name string) change { return func(e *Exchange) { e.Fault = name } }
func etag(tag string) change   { return func(e *Exchange) { e.ETag = tag } }
func prefer(p string) change   { return func(e *Exchange) { e.Prefer = p } }
func accept(a string) change   { return func(e *Exchange) { e.Accept = a } }
func content(c string) change  { return func(e *Exchange) { e.ContentType = c } }
func ifMatch(t string) change  { return func(e *Exchange) { e.IfMatch = t } }
func link(next string) change {
	return func(e *Exchange) { e.Link = fmt.Sprintf(`</pets>; rel="first", <%s>; rel="next"`, next) }
}
func empty(e *Exchange)        { e.IsEmpty = true }
func deprecated(e *Exchange)   { e.Deprecated = true }
func location(l string) change { return func(e *Exchange) { e.Location = l } }
func redacted(p string) change { return func(e *Exchange) { e.Redacted = []string{p} } }

func took(seconds float64) change {
	return func(e *Exchange) { e.Ended = e.Began.Add(time.Duration(seconds * float64(time.Second))) }
}

func retryAfter(seconds int) change {
	return func(e *Exchange) { e.RetryAfter = time.Duration(seconds) * time.Second }
}

func body(text string) change {
	return func(e *Exchange) {
		hash := fnv.New64()
		hash.Write([]byte(text))
		e.Body = report.Body{Size: int64(len(text)), Hash: hash.Sum64()}
	}
}

// unread is a body that the server refused to read.
func unread(size int64) change { return func(e *Exchange) { e.Body = report.Body{Size: size} } }

func violates(parameter, code string) change {
	return func(e *Exchange) { e.Violations = []report.Violation{{Parameter: parameter, Code: code}} }
}

// TestBodies: a body is known if somebody has read it or there is certainly none.
func TestBodies(t *testing.T) {
	t.Parallel()
	const length = `{"name":"Content-Length","value":"0"}`
	for _, test := range []struct {
		name, method, headers, body string
		want                        bool
	}{
		{"read", "POST", "", `"body":"{}","bodySize":2`, true},
		{"none of a read", "GET", "", `"body":"","bodySize":0`, true},
		{"none of a deletion", "DELETE", "", `"body":"","bodySize":0`, true},
		{"none, as the client says", "POST", length, `"body":"","bodySize":0`, true},
		{"unread", "POST", "", `"body":"","bodySize":2`, false},
		{"unread without a length", "POST", "", `"body":"","bodySize":0`, false},
		{"unread update without a length", "PUT", "", `"body":"","bodySize":0`, false},
		{"cut", "POST", "", `"body":"{","bodySize":16385`, false},
	} {
		e := Exchange{Method: test.method}
		need.OK(t, e.SetMessages(`{"request":{"headers":[`+test.headers+`],`+test.body+`},"redacted":[]}`))
		if known := e.Body.Hash != 0; known != test.want {
			t.Errorf("%s: known is %t, want %t", test.name, known, test.want)
		}
	}
}

// test is a record and the verdict of a rule about it.
type test struct {
	rule, name string
	want       Status
	record     Record
}

// about makes a test with some exchanges.
func about(rule, name string, want Status, exchanges ...Exchange) test {
	return test{rule, name, want, Record{Exchanges: exchanges}}
}

// run runs tests. Each rule must have one test for each verdict that it can have.
func run(t *testing.T, tests []test) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.rule+"/"+test.name, func(t *testing.T) {
			t.Parallel()
			record := test.record
			record.Exchanges = slices.Clone(record.Exchanges) // Judge changes them, and tests share them
			for i := range record.Exchanges {
				record.Exchanges[i].ID = fmt.Sprintf("req_1_%d", i+1)
			}
			results := report.Judge(&record, "/docs/").Results
			i := slices.IndexFunc(results, func(r report.Result) bool { return r.Rule == test.rule })
			if i < 0 {
				t.Fatalf("there is no rule %s", test.rule)
			}
			got := results[i]
			if got.Status != test.want {
				t.Errorf("%s, want %s: %s %v", got.Status, test.want, got.Summary, got.Evidence)
			}
			if isBad := got.Status == Failed || got.Status == Warning; isBad != (len(got.Evidence) > 0) {
				t.Errorf("%s has the evidence %v", got.Status, got.Evidence)
			}
		})
	}
}

// TestEmpty: without a request, no rule has seen anything.
func TestEmpty(t *testing.T) {
	t.Parallel()
	got := report.Judge(&Record{}, "/docs/")
	if got.Status != NotSeen || got.Counts.NotSeen != len(report.Rules) {
		t.Errorf("the report on nothing is %s: %v", got.Status, got.Counts)
	}
}

// TestSandboxOperations: the operations on a sandbox are of a test, not of its client.
func TestSandboxOperations(t *testing.T) {
	t.Parallel()
	run(t, []test{
		about("known_paths", "of the sandbox", NotSeen, x(0, "POST /sandboxes/current/reset 204"), x(1, "PUT /sandboxes/current/faultz 404 route_not_found")),
	})
}

// TestReset: rules do not compare requests before and after a reset.
func TestReset(t *testing.T) {
	t.Parallel()
	order := body("1")
	record := Record{
		Exchanges: []Exchange{x(0, "POST /store/orders 0", key("a"), order, fault("close")), x(2, "POST /store/orders 201", key("b"), order)},
		Events:    []Event{{At: at(1), Type: report.StoreReset}},
	}
	again := record
	again.Exchanges = []Exchange{record.Exchanges[0], x(2, "POST /store/orders 201", key("a"), order)}
	run(t, []test{{"retry_same_key", "across a reset", NotSeen, record}, {"retry_same_key", "same key across a reset", NotSeen, again}})
}

// TestEvidence: the evidence is the first mistakes, in the order in which they began.
func TestEvidence(t *testing.T) {
	t.Parallel()
	var record Record
	for i := range 12 {
		order := body(strconv.Itoa(i))
		record.Exchanges = append(record.Exchanges,
			x(float64(10*i), "POST /store/orders 0", key(fmt.Sprintf("a-%d", i)), order, fault("close")),
			x(float64(10*i+1), "POST /store/orders 201", key(fmt.Sprintf("b-%d", i)), order))
	}
	var want []string
	for i := range record.Exchanges {
		record.Exchanges[i].ID = fmt.Sprintf("req_1_%d", i+1)
		if i%2 == 1 && len(want) < 10 {
			want = append(want, record.Exchanges[i].ID)
		}
	}
	results := report.Judge(&record, "/docs/").Results
	i := slices.IndexFunc(results, func(r report.Result) bool { return r.Rule == "retry_same_key" })
	need.Same(t, want, results[i].Evidence, "the evidence")
}

// TestWork: the work for a record grows with its requests and not with the pairs of them.
func TestWork(t *testing.T) { //nolint:paralleltest // AllocsPerRun counts for the whole process
	var long strings.Builder
	for i := range 30 {
		fmt.Fprintf(&long, "&p%d", i)
	}
	stream := func(e *Exchange) { e.Accept, e.HasEvents = "text/event-stream", e.Status == 200 }
	cursor := "/pets?cursor=a" + long.String()
	const requests, factor = 120, 4
	for name, nth := range map[string]func(i int) Exchange{
		"streams": func(i int) Exchange {
			if i < requests/6 {
				return x(0, "GET /events?after=latest"+long.String()+" 200", stream, fault("close"))
			}
			return x(1, "GET /events?after=latest"+long.String()+" 429 rate_limited", stream)
		},
		"pages": func(i int) Exchange {
			if i%2 == 0 {
				return x(float64(i), "GET /pets?limit=2 200", link(cursor))
			}
			return x(float64(i), "GET "+cursor+"&more 200")
		},
	} {
		judge := func(times int) float64 {
			exchanges := make([]Exchange, 0, requests*times)
			for i := range cap(exchanges) {
				exchanges = append(exchanges, nth(i/times))
			}
			return testing.AllocsPerRun(1, func() { report.Judge(&Record{Exchanges: slices.Clone(exchanges)}, "/docs/") })
		}
		if few, many := judge(1), judge(factor); many > 1.5*factor*few {
			t.Errorf("%s: %.0f allocations for %d requests, and %.0f for %d times as many", name, few, requests, many, factor)
		}
	}
}
