package api_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"petstore/db"
	stores "petstore/internal/account"
	"petstore/internal/admission"
	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/gate"
	"petstore/internal/pgtest"
	"petstore/internal/ratelimit"
	"petstore/internal/telemetry"
	"petstore/internal/tools/need"
)

// stoppedClock is a clock that only the test moves.
type stoppedClock struct{ nanoseconds atomic.Int64 }

func (c *stoppedClock) now() time.Time { return time.Unix(0, c.nanoseconds.Load()) }

func (c *stoppedClock) move(by time.Duration) { c.nanoseconds.Add(int64(by)) }

// limited starts a server with these limits and a stopped clock.
func (p *petstore) limited(keys, failures ratelimit.Limit, change ...func(*api.Options)) (*petstore, *stoppedClock) {
	p.t.Helper()
	clock := &stoppedClock{}
	return p.with(func(o *api.Options) {
		o.KeyLimit, o.FailureLimit, o.Now = keys, failures, clock.now
		for _, one := range change {
			one(o)
		}
	}), clock
}

// wantLimit fails the test unless the response has this rate limit policy and state.
func (r *response) wantLimit(policy, state string) {
	r.t.Helper()
	got := [][]string{r.header.Values("RateLimit-Policy"), r.header.Values("RateLimit")}
	need.Same(r.t, [][]string{{policy}, {state}}, got, "%s: RateLimit-Policy and RateLimit", r.what)
}

// wantNoLimit fails the test if the response has a rate limit header.
func (r *response) wantNoLimit() {
	r.t.Helper()
	for _, name := range []string{"RateLimit", "RateLimit-Policy"} {
		r.wantHeader(name, "")
	}
}

// wantLimited fails the test unless the response is 429 with this Retry-After.
func (r *response) wantLimited(seconds string) *response {
	r.t.Helper()
	r.wantError(429, "rate_limited")
	need.Same(r.t, []string{seconds}, r.header.Values("Retry-After"), "%s: Retry-After", r.what)
	r.wantHeader("WWW-Authenticate", "")
	return r
}

// TestKeyLimit: a burst of three, then one request every ten seconds, with rate
// limit headers on every response. Refused requests get one Retry-After after the other.
func TestKeyLimit(t *testing.T) {
	t.Parallel()
	const policy = `"key";q=3;w=30`
	p, clock := start(t).limited(ratelimit.Limit{PerMinute: 6, Burst: 3}, ratelimit.Limit{})
	p.get("/pets").want(200).wantLimit(policy, `"key";r=2;t=10`)
	p.get("/pets/1").want(404).wantLimit(policy, `"key";r=1;t=20`)
	clock.move(100 * time.Millisecond)
	p.do("HEAD", "/pets", nil).want(200).wantLimit(policy, `"key";r=0;t=30`)
	p.get("/pets").wantLimited("10").wantLimit(policy, `"key";r=0;t=30`)
	clock.move(9800 * time.Millisecond)
	p.get("/pets").wantLimited("11").wantLimit(policy, `"key";r=0;t=21`)
	head := p.do("HEAD", "/pets", nil).want(429).wantHeader("Retry-After", "21")
	need.Same(t, "", string(head.body), "the body of HEAD")
	clock.move(100 * time.Millisecond)
	p.get("/pets").want(200).wantLimit(policy, `"key";r=0;t=30`)
	clock.move(time.Hour)
	p.get("/pets").want(200).wantLimit(policy, `"key";r=2;t=10`)
}

// TestAccountLimit checks the limit of an account beside the limits of its keys. Each step is
// a request with one of the keys.
func TestAccountLimit(t *testing.T) {
	t.Parallel()
	type limits struct{ key, account ratelimit.Limit }
	type step struct {
		after time.Duration
		key   string // a, b and c are keys of the account; sandbox and second of its sandboxes; other of another account
		wait  string // Retry-After; "": the request succeeds
		by    string // the limit that the message names
		state string // RateLimit
	}
	both := limits{ratelimit.Limit{PerMinute: 60, Burst: 3}, ratelimit.Limit{PerMinute: 120, Burst: 4}}
	const policies = `"key";q=3;w=3, "account";q=4;w=2`
	for what, test := range map[string]struct {
		limits limits
		policy string
		steps  []step
	}{
		"several keys reach the limit of their account": {both, policies, []step{
			{key: "a", state: `"key";r=2;t=1, "account";r=3;t=1`},
			{key: "a", state: `"key";r=1;t=2, "account";r=2;t=1`},
			{key: "b", state: `"key";r=2;t=1, "account";r=1;t=2`},
			{key: "b", state: `"key";r=1;t=2, "account";r=0;t=2`},
			{key: "c", wait: "1", by: "account", state: `"key";r=3;t=0, "account";r=0;t=2`},
			{key: "a", wait: "1", by: "account", state: `"key";r=1;t=2, "account";r=0;t=2`},
			{key: "other", state: `"key";r=2;t=1, "account";r=3;t=1`},
			{after: 500 * time.Millisecond, key: "c", state: `"key";r=2;t=1, "account";r=0;t=2`},
		}},
		"a sandbox counts as its parent, too": {both, policies, []step{
			{key: "sandbox", state: `"key";r=2;t=1, "account";r=3;t=1, "sandboxes";r=1;t=1`},
			{key: "a", state: `"key";r=2;t=1, "account";r=2;t=1`},
			{key: "a", state: `"key";r=1;t=2, "account";r=1;t=2`},
			{key: "b", state: `"key";r=2;t=1, "account";r=0;t=2`},
			{key: "sandbox", wait: "1", by: "account", state: `"key";r=2;t=1, "account";r=0;t=2, "sandboxes";r=1;t=1`},
			{key: "b", wait: "1", by: "account", state: `"key";r=2;t=1, "account";r=0;t=2`},
			{key: "other", state: `"key";r=2;t=1, "account";r=3;t=1`},
		}},
		"all sandboxes of an account get half of its rate": {both, policies, []step{
			{key: "sandbox", state: `"key";r=2;t=1, "account";r=3;t=1, "sandboxes";r=1;t=1`},
			{key: "second", state: `"key";r=2;t=1, "account";r=2;t=1, "sandboxes";r=0;t=2`},
			{key: "second", wait: "1", by: "sandboxes", state: `"key";r=2;t=1, "account";r=2;t=1, "sandboxes";r=0;t=2`},
			{key: "a", state: `"key";r=2;t=1, "account";r=1;t=2`},
			{after: time.Second, key: "sandbox", state: `"key";r=2;t=1, "account";r=2;t=1, "sandboxes";r=0;t=2`},
			{key: "other", state: `"key";r=2;t=1, "account";r=3;t=1`},
		}},
		"the larger wait counts": {limits{ratelimit.Limit{PerMinute: 60, Burst: 1}, ratelimit.Limit{PerMinute: 12, Burst: 2}}, `"key";q=1;w=1, "account";q=2;w=10`, []step{
			{key: "a", state: `"key";r=0;t=1, "account";r=1;t=5`},
			{key: "a", wait: "1", by: "key", state: `"key";r=0;t=1, "account";r=1;t=5`},
			{key: "b", state: `"key";r=0;t=1, "account";r=0;t=10`},
			{key: "a", wait: "5", by: "account", state: `"key";r=0;t=1, "account";r=0;t=10`},
			{after: time.Second, key: "a", wait: "9", by: "account", state: `"key";r=1;t=0, "account";r=0;t=9`},
		}},
		"no limit of a key": {limits{account: both.account}, `"account";q=4;w=2`, []step{
			{key: "a", state: `"account";r=3;t=1`},
			{key: "b", state: `"account";r=2;t=1`},
			{key: "sandbox", state: `"account";r=1;t=2, "sandboxes";r=1;t=1`},
			{key: "a", state: `"account";r=0;t=2`},
			{key: "b", wait: "1", by: "account", state: `"account";r=0;t=2`},
		}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := start(t)
			keys := map[string]string{"a": p.key, "b": p.newKey("tester", auth.Read), "c": p.newKey("tester", auth.Read), "sandbox": p.inSandbox("empty").key, "second": p.inSandbox("empty").key, "other": p.newKey("other", auth.Read)}
			p, clock := p.limited(test.limits.key, ratelimit.Limit{}, func(o *api.Options) { o.AccountLimit = test.limits.account })
			messages := map[string]string{
				"key":       "This API key has sent too many requests. Wait as long as Retry-After says.",
				"account":   "The API keys of your account have sent too many requests together. Wait as long as Retry-After says.",
				"sandboxes": "The sandboxes of your account have sent too many requests together. Wait as long as Retry-After says.",
			}
			for i, step := range test.steps {
				clock.move(step.after)
				resp := p.as(keys[step.key]).get("/messages")
				if resp.what = fmt.Sprintf("request %d", i+1); step.wait == "" {
					resp.want(200)
				} else if got := decode[struct{ Message string }](resp.wantLimited(step.wait)).Message; got != messages[step.by] {
					t.Errorf("%s: message %q, want the message of the limit %s", resp.what, got, step.by)
				}
				policy := test.policy
				if strings.Contains(step.state, "sandboxes") {
					policy += `, "sandboxes";q=2;w=2`
				}
				resp.wantLimit(policy, step.state)
			}
		})
	}
}

// TestRateLimitOnEveryResponse: responses to a known key have rate limit headers, and others do not.
func TestRateLimitOnEveryResponse(t *testing.T) {
	t.Parallel()
	p := startAlone(t)
	p.oneOfEach()
	tag := p.get("/categories/1001").etag()
	reader := p.newKey("tester", auth.Read)
	known, clock := p.limited(ratelimit.Limit{PerMinute: 60, Burst: 5}, ratelimit.Limit{})
	for _, resp := range []func() *response{
		func() *response { return known.get("/categories").want(200) },
		func() *response { return known.post("/categories", object{"name": "new"}).want(201) },
		func() *response { return known.post("/messages", object{"message": "new"}).want(202) },
		func() *response { return known.del("/categories/1002").want(204) },
		func() *response { return known.do("GET", "/categories/1001", nil, "If-None-Match", tag).want(304) },
		func() *response { return known.do("HEAD", "/categories/1001", nil).want(200) },
		func() *response { return known.post("/categories", "{").want(400) },
		func() *response { return known.do("POST", "/categories", "{}", "Content-Type", "text/plain").want(400) },
		func() *response { return known.as(reader).post("/categories", object{}).want(403) },
		func() *response { return known.get("/categories/999").want(404) },
		func() *response { return known.do("GET", "/categories", nil, "Accept", "text/html").want(406) },
		func() *response { return known.del("/categories/1001").want(409) },
		func() *response { return known.do("DELETE", "/categories/1001", nil, "If-Match", otherTag).want(412) },
		func() *response { return known.post("/categories", padded("large", maxBodyBytes+1)).want(413) },
		func() *response { return known.post("/store/orders", object{"petId": 999}).want(422) },
		func() *response { return known.under("x", "/messages", object{"message": "x"}).want(202) },
		func() *response { return known.under("x", "/messages", object{"message": "x"}).want(202) },
	} {
		resp().wantLimit(`"key";q=5;w=5`, `"key";r=4;t=1`)
		clock.move(time.Second)
	}
	p.pool.Close()
	p.verifier.Trust()
	known.readingPrimary().get("/categories").want(503).wantLimit(`"key";q=5;w=5`, `"key";r=4;t=1`)

	known.as("").get("/pets").want(401).wantNoLimit()
	known.as("x").get("/pets").want(401).wantNoLimit()
	known.get("/nothing").want(404).wantNoLimit()
	known.put("/pets", nil).want(405).wantNoLimit()
	known.get("/livez").want(200).wantNoLimit()
	known.get("/openapi.json").want(200).wantNoLimit()
	known.do("OPTIONS", "/pets", nil).want(204).wantNoLimit()
	p.readingPrimary().get("/pets").want(503).wantNoLimit() // a server without a limit
}

// TestEveryOperationIsLimited: a limited request has no effect.
func TestEveryOperationIsLimited(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.oneOfEach()
	before := p.rows()
	p, _ = p.limited(ratelimit.Limit{PerMinute: 1, Burst: 1}, ratelimit.Limit{PerMinute: 2, Burst: 1})
	p.get("/pets").want(200)
	p.as("").get("/pets").want(401)
	eachOperation(t, func(t *testing.T, o operation) {
		t.Helper()
		p := p.in(t)
		p.ask(o, "Idempotency-Key", "x").wantLimited("60").wantLimit(`"key";q=1;w=60`, `"key";r=0;t=60`)
		p.as("").ask(o).wantLimited("30").wantNoLimit()
		p.as("x").ask(o).wantLimited("30").wantNoLimit()
	})
	p.wantRows(before)
	for _, target := range []string{"/livez", "/readyz", "/openapi.json", "/openapi.yaml"} {
		p.get(target).want(200)
		p.as("").get(target).want(200)
	}
	p.do("OPTIONS", "/pets", nil).want(204)
}

// TestBucketOfSecrets: the secrets of a key share its bucket. TestAccountLimit has several keys.
func TestBucketOfSecrets(t *testing.T) {
	t.Parallel()
	p := start(t)
	rotating := p.makeKey("rotating", "read")
	limited, _ := p.limited(ratelimit.Limit{PerMinute: 1, Burst: 2}, ratelimit.Limit{})
	limited.as(rotating.Secret).get("/pets").want(200)
	limited.as(rotating.Secret).get("/messages").want(200)
	limited.as(p.post(rotatePath(rotating.ID), nil).wantSecret().Secret).get("/categories").wantLimited("60")
}

// TestFailureLimit: over the failure limit, an address gets 429 without the reason
// of the failure. A valid key is never rejected for it.
func TestFailureLimit(t *testing.T) {
	t.Parallel()
	p, clock := start(t).limited(ratelimit.Limit{}, ratelimit.Limit{PerMinute: 3, Burst: 3})
	for range 10 {
		p.get("/pets").want(200) // not a failure
	}
	p.as("").get("/pets").wantChallenge(401, "missing_api_key", challenge)
	p.as("x").get("/pets").wantChallenge(401, "invalid_api_key", challengeInvalid)
	p.as(auth.NewSecret().Reveal()).get("/pets").wantChallenge(401, "invalid_api_key", challengeInvalid)
	for _, key := range []string{"", "x", auth.NewSecret().Reveal()} {
		p.as(key).get("/pets").wantLimited("20")
	}
	p.as("").get("/nothing").wantError(404, "route_not_found")
	p.as("").get("/livez").want(200)
	p.get("/pets").want(200)
	p.as(p.newKey("tester", auth.Read)).post("/pets", object{}).wantError(403, "insufficient_scope") // a valid key with another error
	clock.move(19 * time.Second)
	p.as("").get("/pets").wantLimited("1")
	clock.move(time.Second)
	p.as("").get("/pets").want(401)
	p.as("").get("/pets").wantLimited("20")
}

// TestGuessesAreSlow checks that the server looks up unknown keys from an address
// over its failure limit one after the other, with a pause. A valid key that this
// process has not cached still works from there.
func TestGuessesAreSlow(t *testing.T) {
	t.Parallel()
	const guesses, pace = 5, 20 * time.Millisecond // at most 50 a second
	p, _ := start(t).limited(ratelimit.Limit{}, ratelimit.Limit{PerMinute: 1, Burst: 1})
	p.as("").get("/pets").want(401)
	began := time.Now()
	for range guesses {
		p.as(auth.NewSecret().Reveal()).get("/pets").want(429)
	}
	if took := time.Since(began); took < guesses*pace {
		t.Errorf("%d guesses took %s, want at least %s each", guesses, took, pace)
	}
	p.as(p.newKey("tester", auth.Read)).get("/pets").want(200)
}

// TestAddressOfAClient: which peer and X-Forwarded-For headers count as the same address.
func TestAddressOfAClient(t *testing.T) {
	t.Parallel()
	p := start(t).as("")
	none, local := []string{}, []string{"127.0.0.0/8", "::1"}
	nested := []string{"127.0.0.1", "10.0.0.0/8", "2001:db8:ffff::/48"}
	type fields map[string][]string
	via := func(values ...string) fields { return fields{"X-Forwarded-For": values} }
	for what, test := range map[string]struct {
		trusted       []string
		first, second fields
		same          bool
	}{
		"without a header":                                   {local, nil, nil, true},
		"no trusted proxies":                                 {none, via("192.0.2.1"), via("192.0.2.2"), true},
		"untrusted peer":                                     {[]string{"10.0.0.0/8", "::1"}, via("192.0.2.1"), via("192.0.2.2"), true},
		"two clients of one proxy":                           {local, via("192.0.2.1"), via("192.0.2.2"), false},
		"one client of one proxy":                            {local, via("192.0.2.1"), via("192.0.2.1"), true},
		"a client and the proxy itself":                      {local, via("192.0.2.1"), nil, false},
		"a client with forged addresses":                     {local, via("192.0.2.7, 192.0.2.1"), via("192.0.2.8, 192.0.2.1"), true},
		"a client that names the server":                     {local, via("127.0.0.1, 192.0.2.1"), via("192.0.2.1"), true},
		"through two proxies":                                {nested, via("192.0.2.1, 10.1.2.3"), via("192.0.2.2, 10.1.2.3"), false},
		"different second proxies":                           {nested, via("192.0.2.1, 10.1.2.3"), via("192.0.2.1, 2001:db8:ffff::1"), true},
		"two headers":                                        {nested, via("192.0.2.1", "10.1.2.3"), via("192.0.2.2", "10.1.2.3"), false},
		"two headers are one list":                           {nested, via("192.0.2.7", "192.0.2.1, 10.1.2.3"), via("192.0.2.1, 10.1.2.3"), true},
		"two headers of a client":                            {local, via("192.0.2.7", "192.0.2.1"), via("192.0.2.8", "192.0.2.1"), true},
		"two clients in one IPv6 network":                    {local, via("2001:db8::1"), via("2001:db8::ffff:ffff:ffff:ffff"), true},
		"an invalid address counts as the proxy":             {local, via("unknown"), via("192.0.2.1, x"), true},
		"an empty header counts as the proxy":                {local, via(""), nil, true},
		"X-Real-IP is ignored":                               {local, fields{"X-Real-Ip": {"192.0.2.1"}}, fields{"X-Real-Ip": {"192.0.2.2"}}, true},
		"Forwarded is ignored":                               {local, fields{"Forwarded": {"for=192.0.2.1"}}, fields{"Forwarded": {"for=192.0.2.2"}}, true},
		"headers of single platforms are ignored":            {local, fields{"Cf-Connecting-Ip": {"192.0.2.1"}, "X-Appengine-Remote-Addr": {"192.0.2.1"}}, nil, true},
		"a long list is read from its end":                   {local, via(strings.Repeat("192.0.2.7, ", 4000) + "192.0.2.1"), via("192.0.2.1"), true},
		"of 200 proxies, the last ones count":                {nested, via("192.0.2.1" + strings.Repeat(", 10.0.0.1", 200)), via("192.0.2.2" + strings.Repeat(", 10.0.0.1", 200)), true},
		"all addresses are proxies: the first is the client": {nested, via("10.0.0.1, 10.0.0.2"), via("10.0.0.3, 10.0.0.2"), false},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p, _ := p.in(t).limited(ratelimit.Limit{}, ratelimit.Limit{PerMinute: 1, Burst: 1}, func(o *api.Options) { o.TrustedProxies = test.trusted })
			statuses := make([]int, 0, 2)
			for _, header := range []fields{test.first, test.second} {
				request := p.request(t.Context(), "GET", "/pets", nil)
				request.Header = http.Header(header)
				if header == nil {
					request.Header = http.Header{}
				}
				statuses = append(statuses, p.sent(request, nil).status)
			}
			want := []int{401, 401}
			if test.same {
				want = []int{401, 429}
			}
			need.Same(t, want, statuses, "statuses")
		})
	}
	if _, err := api.New(api.Options{Options: gate.Options{DB: p.pool, TrustedProxies: []string{"proxy"}}}); err == nil {
		t.Error("a trusted proxy without an address was accepted")
	}
}

// TestLimitsInTheOrderOfChecks: limits apply after 404, 405 and 410, and before all other errors.
func TestLimitsInTheOrderOfChecks(t *testing.T) {
	t.Parallel()
	p := start(t)
	reader := p.newKey("tester", auth.Read)
	p, clock := p.limited(ratelimit.Limit{PerMinute: 1, Burst: 1}, ratelimit.Limit{PerMinute: 1, Burst: 1}, func(o *api.Options) { o.EnforceSunset = true })
	const large = maxBodyBytes + 1
	wrong := func(p *petstore) *response {
		return p.do("PATCH", "/pets/0?x", padded("x", large), "Accept", "text/html", "Content-Type", "text/plain")
	}
	wrong(p.as("")).wantError(401, "missing_api_key")
	wrong(p.as("")).wantLimited("60")
	wrong(p.as("petstore_")).wantLimited("60")
	wrong(p.as(reader)).wantError(403, "insufficient_scope") // although the address is over its failure limit
	wrong(p.as(reader)).wantLimited("60")
	wrong(p).wantError(406, "not_acceptable")
	wrong(p).wantLimited("60")
	for _, key := range []string{"", "x", reader, p.key} {
		p.as(key).get("/nothing").wantError(404, "route_not_found")
		p.as(key).put("/pets", "{").wantError(405, "method_not_allowed")
	}
	clock.move(time.Duration(time.Date(2028, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()))
	p.get("/pets").want(200)
	p.as("").get("/pets").want(401)
	for _, key := range []string{"", "x", p.key} {
		p.as(key).get("/pets").wantLimited("60")
		p.as(key).get("/pets/1").wantError(410, "operation_sunset").wantNoLimit()
	}
}

// slowly starts to send a message. Once the server waits for the rest of the body,
// it returns a function that sends the rest and returns the response.
func (p *petstore) slowly() (finish func() *response) {
	p.t.Helper()
	const text = `{"message":"hello"}`
	read, write := io.Pipe()
	reading, received := make(chan struct{}), make(chan *response, 1)
	ctx := httptrace.WithClientTrace(p.t.Context(), &httptrace.ClientTrace{Got100Continue: func() { close(reading) }})
	request := p.request(ctx, "POST", "/messages", read, "Expect", "100-continue") // the server confirms it when it starts to read
	go func() {
		defer close(received)
		if resp, err := p.send(request, []byte(text)); err == nil {
			received <- resp
		}
	}()
	select {
	case <-reading:
	case rejected := <-received:
		p.t.Fatalf("%+v before the body was sent", rejected)
	}
	_, _ = io.WriteString(write, text[:10])
	return func() *response {
		_, _ = io.WriteString(write, text[10:])
		write.Close()
		if resp := <-received; resp != nil {
			return resp
		}
		return &response{t: p.t, what: "POST /messages, whose connection broke"}
	}
}

// wantRejected fails the test unless the response is this error with Retry-After.
func (r *response) wantRejected(status int, code string) {
	r.t.Helper()
	retryAfter, err := strconv.Atoi(r.wantError(status, code).header.Get("Retry-After"))
	if longest := int(admission.MaxRetryAfter.Seconds()); err != nil || retryAfter < 1 || retryAfter > longest {
		r.t.Errorf("%s: Retry-After %q, want 1 to %d", r.what, r.header.Get("Retry-After"), longest)
	}
}

// TestPlacesInProgress checks that an account gets a quarter of the places, that
// other accounts share the rest, and that requests without a key need none. A metric
// counts the requests of an account beyond its share.
func TestPlacesInProgress(t *testing.T) {
	t.Parallel()
	const places = 4
	p := startAlone(t)
	p.oneOfEach()
	keys := make([]string, places+1)
	for i := range keys {
		keys[i] = p.newKey(fmt.Sprint("account ", i), auth.Admin)
	}
	metrics := telemetry.NewMetrics()
	p = p.patient(func(o *api.Options) { o.MaxInFlight, o.Metrics = places, metrics })
	taken := func(check func()) {
		received := make([]func() *response, places)
		release := p.lockTable("orders", 1, func() { received[0] = p.as(keys[0]).begin("GET", "/store/orders/1", nil) })
		defer release()
		p.as(keys[0]).get("/pets").wantRejected(429, "too_many_concurrent_requests")
		p.as(keys[0]).post("/pets", object{}).wantRejected(429, "too_many_concurrent_requests")
		p.as(keys[1]).get("/pets").want(200)
		for i := 1; i < places; i++ {
			received[i] = p.as(keys[i]).begin("GET", "/store/orders/1", nil)
		}
		need.Within(t, 30*time.Second, "the statements of all places wait", func() bool { return p.waiting() == places })
		check()
		release()
		for _, receive := range received {
			receive().want(404)
		}
	}
	taken(func() {
		eachOperation(t, func(t *testing.T, o operation) {
			t.Helper()
			p.in(t).as(keys[places]).ask(o).wantRejected(503, "unavailable")
			p.in(t).as("").ask(o).want(401)
			p.in(t).as("x").ask(o).want(401)
		})
		p.as(keys[0]).get("/pets").wantRejected(429, "too_many_concurrent_requests")
		if got := p.as(keys[places]).get("/pets/1001").want(503).header.Get("Deprecation"); got == "" {
			t.Error("the response of a deprecated operation has no Deprecation header")
		}
		for _, target := range []string{"/livez", "/readyz", "/openapi.json", "/openapi.yaml"} {
			p.get(target).want(200)
		}
		p.do("OPTIONS", "/pets", nil).want(204)
		p.get("/nothing").want(404)
		p.put("/pets", object{}).want(405)
	})
	taken(func() {}) // all places are free again
	need.Contains(t, "the page of metrics", exposed(t, metrics), `petstore_http_rate_limited_total{limit="concurrency"} 5`+"\n")
}

// TestLimitsAreCounted checks that the metric of rejected requests names the limit. TestPlacesInProgress
// counts the requests beyond the share of an account.
func TestLimitsAreCounted(t *testing.T) {
	t.Parallel()
	p := start(t)
	keys := []string{p.newKey("tester", auth.Read), p.newKey("tester", auth.Read)}
	metrics := telemetry.NewMetrics()
	limited, _ := p.limited(ratelimit.Limit{PerMinute: 1, Burst: 1}, ratelimit.Limit{PerMinute: 1, Burst: 1}, func(o *api.Options) {
		o.AccountLimit, o.Metrics = ratelimit.Limit{PerMinute: 1, Burst: 2}, metrics
	})
	limited.get("/pets").want(200)
	limited.get("/pets").want(429) // the key
	limited.as(keys[0]).get("/pets").want(200)
	for range 2 {
		limited.as(keys[1]).get("/pets").want(429) // the account
	}
	limited.as("").get("/pets").want(401)
	limited.as("").get("/pets").want(429) // the address

	text := exposed(t, metrics)
	for limit, count := range map[string]int{"key": 1, "account": 2, "address": 1, "concurrency": 0} {
		need.Contains(t, "the page of metrics", text, fmt.Sprintf("petstore_http_rate_limited_total{limit=%q} %d\n", limit, count))
	}
}

// family starts a server and returns it as the clients of a payer, with keys of its account and
// its sandboxes. Another is a key of another account.
func family(t *testing.T) (all []*petstore, another string) {
	t.Helper()
	p := startAlone(t)
	return p.payer("family"), p.newKey("another", auth.Admin)
}

// TestSandboxesShareLimits checks that an account and its sandboxes together get the share of one
// account, and that another account still gets its own. Requests with an incomplete body hold no place
// in progress. TestAccountLimit checks the rate, TestExpensiveRequests the counts, and TestSlowReaders the pages being sent.
func TestSandboxesShareLimits(t *testing.T) {
	t.Parallel()
	tooMany := func(resp *response) { resp.wantRejected(429, "too_many_concurrent_requests") }

	t.Run("requests in progress", func(t *testing.T) {
		t.Parallel()
		all, another := family(t)
		p := all[0].patient(func(o *api.Options) { o.MaxInFlight = 4 * len(all) })
		var received []func() *response
		release := p.lockTable("orders", len(all), func() {
			for _, one := range all {
				received = append(received, p.as(one.key).begin("GET", "/store/orders/1", nil))
			}
		})
		defer release()
		for _, one := range all {
			tooMany(p.as(one.key).get("/pets"))
		}
		p.as(another).get("/pets").want(200)
		release()
		for _, receive := range received {
			receive().want(404)
		}
	})

	const bodies, size, sizeShare = 512 / 4, 1 << 20, 8 << 20 // a chunked body counts as the largest size
	for what, test := range map[string]struct {
		maxBytes int64
		most     int
	}{"arriving bodies": {maxBodyBytes, bodies}, "body bytes": {size, sizeShare / size}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			all, another := family(t)
			p := all[0].with(func(o *api.Options) { o.MaxInFlight, o.MaxBodyBytes = 4, test.maxBytes }) // one place in progress
			finish := make([]func() *response, test.most)
			for i := range finish {
				finish[i] = p.as(all[i%len(all)].key).slowly()
			}
			p.get("/pets").want(200)
			for _, one := range all {
				tooMany(p.as(one.key).post("/messages", object{"message": "one more"}))
			}
			// The server waits at most a second for the body of a request that it rejects.
			need.OK(t, p.checkClosing("POST /messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+p.key+"\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n", 429))
			p.as(another).post("/messages", object{"message": "from another account"}).want(202)
			for _, one := range finish {
				one().want(202)
			}
			p.post("/messages", object{"message": "again"}).want(202)
		})
	}

	t.Run("arrived bodies", func(t *testing.T) {
		t.Parallel()
		p := startAlone(t).patient(func(o *api.Options) { o.MaxBodyBytes = sizeShare/2 + 1 }) // a chunked body reserves as much
		finish := p.slowly()
		var first func() *response
		release := p.lockTable("messages", 1, func() { first = background(finish) })
		defer release()
		second := p.slowly()
		release()
		first().want(202)
		second().want(202)
	})
}

// TestPlacesAreReleased by requests that fail, with a 4xx or a 5xx.
func TestPlacesAreReleased(t *testing.T) {
	t.Parallel()
	p := start(t)
	one := func(o *api.Options) { o.MaxInFlight = 1 }
	broken := p.with(func(o *api.Options) { one(o); o.Verifier = nil })
	narrow := p.with(one)
	for range 3 {
		broken.get("/pets").wantError(500, "internal_error")
		narrow.post("/pets", "{").wantError(400, "invalid_json")
		narrow.as("").get("/pets").want(401)
		narrow.get("/pets").want(200)
	}
}

// dial opens a connection to the server.
func (p *petstore) dial(dialer net.Dialer) (net.Conn, error) {
	return dialer.DialContext(p.t.Context(), "tcp", strings.TrimPrefix(p.url, "http://"))
}

// checkClosing sends the beginning of a request. The error says that the response has another
// status, or that the server does not close the connection.
func (p *petstore) checkClosing(text string, status int) error {
	conn, err := p.dial(net.Dialer{})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, text); err != nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != status || !response.Close {
		return fmt.Errorf("status %d, want %d; Connection: close is %t", response.StatusCode, status, response.Close)
	}
	return nil
}

// TestMalformedRequests checks that the server rejects malformed HTTP (RFC 9112) and closes the
// connection. A second response would mean that client and server disagree about the end of
// the request (request smuggling).
func TestMalformedRequests(t *testing.T) {
	t.Parallel()
	p := start(t)
	const host, body = "Host: petstore\r\n", "15\r\n{\"name\": \"malformed\"}\r\n0\r\n\r\n"
	post := "POST /categories HTTP/1.1\r\n" + host + "Authorization: Bearer " + p.key + "\r\nContent-Type: application/json\r\n"
	tests := []string{
		"GET /pets\r\n" + host + "\r\n",
		"GET /pe ts HTTP/1.1\r\n" + host + "\r\n",
		"G(T /pets HTTP/1.1\r\n" + host + "\r\n",
		"PRI * HTTP/2.0\r\n" + host + "\r\n",
		"GET /pets HTTP/9.9\r\n" + host + "\r\n",
		"GET /livez HTTP/1.1\r\nX-Host: petstore\r\n\r\n",
		"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"GET /livez HTTP/1.1\r\n" + host + "Space : before the colon\r\n\r\n",
		"GET /livez HTTP/1.1\r\n" + host + "X-Name: val\x00ue\r\n\r\n",
		post + "Content-Length: +21\r\n\r\n{\"name\": \"malformed\"}",
		post + "Content-Length: 21\r\nContent-Length: 20\r\n\r\n{\"name\": \"malformed\"}",
		post + "Transfer-Encoding: xchunked\r\n\r\n" + body,
		post + "Transfer-Encoding: chunked, identity\r\n\r\n" + body,
		post + "Transfer-Encoding: chunked\r\n\r\n0x15" + strings.TrimPrefix(body, "15"),
		post + "Transfer-Encoding: chunked\r\n\r\n14" + strings.TrimPrefix(body, "15"),
	}
	atOnce(t, len(tests), func(i int) error {
		conn, err := p.dial(net.Dialer{})
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, tests[i]+"GET /livez HTTP/1.1\r\nHost: petstore\r\n\r\n"); err != nil {
			return err
		}
		responses, err := io.ReadAll(conn) // the connection may be reset, because the rest was not read
		status, _, _ := strings.Cut(strings.TrimPrefix(string(responses), "HTTP/1.1 "), " ")
		rejected := strings.HasPrefix(status, "4") || status == "501" || status == "505"
		if strings.Count(string(responses), "HTTP/1.1 ") != 1 || !rejected {
			return fmt.Errorf("%q: %q, %w", tests[i], responses, err)
		}
		return nil
	})
	need.OK(t, p.checkClosing("PRI * HTTP/2.0\r\nHost: x\r\n\r\n", 404))
}

// TestUnreadBody checks the response to a request whose body the server does not read to its end.
// It waits neither for the rest nor for ReadTimeout, and closes the connection.
func TestUnreadBody(t *testing.T) {
	t.Parallel()
	p := start(t)
	const length, chunked = "Content-Length: 20\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"
	tooLarge := fmt.Sprintf("Content-Length: %d\r\n", maxBodyBytes+1)
	tests := []struct {
		request, key, rest string
		status             int
	}{
		{"POST /pets", "", length, 401},
		{"POST /pets", "", chunked, 401},
		{"POST /nothing", "", length, 404},
		{"POST /nothing", "", chunked, 404},
		{"GET /livez", "", length, 200},
		{"GET /livez", "", chunked, 200},
		{"PATCH /pets/0", p.key, length, 400},
		{"PATCH /pets/0", p.key, chunked, 400},
		{"GET /pets", p.key, length, 200},
		{"GET /pets", p.key, chunked, 200},
		{"POST /messages", p.key, tooLarge + "\r\n", 413},
		{"POST /messages", p.key, tooLarge + "Expect: 100-continue\r\n\r\n", 413},
		{"POST /messages", p.key, chunked + fmt.Sprintf("%x\r\n%s", maxBodyBytes+1, strings.Repeat(" ", maxBodyBytes+1)), 413},
		{"POST /messages", p.key, chunked + "x\r\n", 400}, // a malformed chunk
	}
	// Together, because each response takes a second: the server waits for more of the body.
	atOnce(t, len(tests), func(i int) error {
		test := tests[i]
		err := p.checkClosing(test.request+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+test.key+"\r\nContent-Type: application/json\r\n"+test.rest, test.status)
		if err != nil {
			err = fmt.Errorf("%s, %.40q: %w", test.request, test.rest, err)
		}
		return err
	})
}

// TestBodyTooSlow checks that a body that does not arrive within ReadTimeout is
// 408, that the request has no effect, and that the connection is closed. The metrics do not have the
// time of the body.
func TestBodyTooSlow(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.oneOfEach()
	before := p.rows()
	metrics := telemetry.NewMetrics()
	slow := p.with(func(o *api.Options) { o.Metrics = metrics }).listening(func(s *httptest.Server) {
		s.Config.ReadTimeout, s.Config.ReadHeaderTimeout = 100*time.Millisecond, time.Minute
	})
	tooSlow := func(t *testing.T, o operation) {
		t.Helper()
		body, writer := io.Pipe()
		defer writer.Close()
		go func() { _, _ = io.WriteString(writer, "{") }()
		p, id := slow.in(t), "slow-"+o.described.OperationID
		p.sent(p.request(t.Context(), o.method, o.target, body, "X-Request-Id", id), []byte("{")).wantError(408, "request_timeout")
		p.wantLogged(id, logLine{Level: "INFO", Status: 408})
		p.wantLessCounted(metrics, o.method, o.path, id)
	}
	for _, o := range operations() {
		if o.described.RequestBody != nil {
			t.Run(o.method+o.path, func(t *testing.T) { tooSlow(t, o) })
		}
	}
	for what, text := range map[string]string{"with a length": "Content-Length: 20\r\n\r\n{", "chunked": "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"} {
		t.Run(what, func(t *testing.T) {
			need.OK(t, slow.checkClosing("POST /messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+p.key+"\r\nContent-Type: application/json\r\n"+text, 408))
		})
	}
	p.wantRows(before)
}

// listsInVain are lists that may read all rows of a filter and find none that match another.
var listsInVain = []string{
	"/store/orders?petId=1&complete=false", "/store/orders?petId=1&complete=true", "/store/orders?petId=1&shipDateTo=2026-01-01T00:00:00Z",
	"/store/inventory?low=true&status=sold", "/store/inventory?low=false&status=sold", "/store/inventory?low=false",
}

// TestExpensiveRequests checks that exact counts, the summary, the creation and reset
// of a sandbox and a new sample cost ten requests each. An account and its sandboxes together can run one count
// or summary at a time.
func TestExpensiveRequests(t *testing.T) {
	t.Parallel()
	p := startAlone(t)
	p.oneOfEach()
	limited, clock := p.limited(ratelimit.Limit{PerMinute: 60, Burst: 12}, ratelimit.Limit{})
	const policy = `"key";q=12;w=12`
	ten := func(resp *response) *response { // costs ten requests
		t.Helper()
		resp.wantLimit(policy, `"key";r=2;t=10`)
		clock.move(time.Minute)
		return resp
	}
	hook := p.newWebhook("*")
	for _, target := range []string{"/categories", "/pets", "/store/orders", "/store/inventory", "/messages", "/account/api-keys", "/sandboxes", samplesPath, webhooksPath, webhooksPath + "/" + hook.ID + "/deliveries"} {
		limited.do("GET", target+"?limit=1", nil, "Prefer", "count=exact").want(200).wantLimit(policy, `"key";r=2;t=10`)
		limited.do("GET", target, nil, "Prefer", "count=exact").wantLimited("8").wantLimit(policy, `"key";r=2;t=10`)
		limited.get(target).want(200).wantLimit(policy, `"key";r=1;t=11`)
		clock.move(time.Minute)
	}
	ten(limited.do("HEAD", "/pets", nil, "Prefer", "count=exact").want(200))
	for _, target := range listsInVain {
		for _, prefer := range []string{"", "count=exact"} {
			limited.do("GET", target, nil, "Prefer", prefer).want(200)
			limited.get("/pets").want(200).wantLimit(policy, `"key";r=1;t=11`)
			clock.move(time.Minute)
		}
	}
	var leave func()
	unlock := p.lockTable("orders", 1, func() {
		leave = limited.leaving(1, "GET", "/store/orders?petId=1&complete=true", "", "X-Request-Id", "left")
	})
	leave()
	limited.wantLogged("left", logLine{Level: "INFO", Status: 499})
	unlock()
	limited.get("/pets").want(200).wantLimit(policy, `"key";r=1;t=11`)
	clock.move(time.Minute)
	ten(limited.get("/store/inventory/summary").want(200))
	limited.do("GET", "/pets/1001", nil, "Prefer", "count=exact").want(200).wantLimit(policy, `"key";r=11;t=1`)
	clock.move(time.Minute)
	one := decode[sandbox](ten(limited.post(sandboxesPath, object{"sample": "empty"}).want(201)))
	ten(limited.post(one.path()+"/reset", nil).want(204))
	ten(limited.post(samplesPath, object{"name": "expensive", "from": one.ID}).want(201))
	limited.del(one.path()).want(204).wantLimit(policy, `"key";r=11;t=1`)

	p = p.patient()
	inside, second := p.inSandbox(stores.SampleEmpty).key, p.inSandbox(stores.SampleEmpty).key
	another := p.newKey("another", auth.Read)
	third := p.newKey("third", auth.Read)
	var summaries []func() *response
	summary := func(key string) {
		summaries = append(summaries, p.as(key).begin("GET", "/store/inventory/summary", nil))
	}
	release := p.lockTable("pets", 2, func() {
		summary(inside)
		summary(another)
	})
	defer release()
	for _, key := range []string{inside, second, p.key} {
		p.as(key).do("GET", "/messages", nil, "Prefer", "count=exact").wantRejected(429, "too_many_concurrent_requests")
	}
	for _, target := range listsInVain {
		p.get(target).wantRejected(429, "too_many_concurrent_requests")
	}
	for _, target := range []string{"/store/orders?petId=1", "/store/orders?complete=true", "/store/orders?shipDateFrom=2026-01-01T00:00:00Z&complete=true"} {
		p.get(target).want(200)
	}
	p.as(third).do("GET", "/messages", nil, "Prefer", "count=exact").wantRejected(503, "unavailable")
	p.as(third).get("/messages").want(200)
	summary(third)
	need.Within(t, 30*time.Second, "a count waits", p.server.IsCountWaiting)
	release()
	for _, receive := range summaries {
		receive().want(200)
	}
	p.do("GET", "/messages", nil, "Prefer", "count=exact").want(200)
}

// TestLongQuery: the size of the response does not grow with the number of parameters.
func TestLongQuery(t *testing.T) {
	t.Parallel()
	p := start(t)
	const parameters = 20_000
	var many strings.Builder
	for i := range 8000 {
		fmt.Fprintf(&many, "x%d&", i)
	}
	p.get("/pets?" + strings.Repeat("id=1&", 99) + "id=1").want(200)
	p.get("/pets?"+strings.Repeat("id=1&", 100)+"id=1").wantViolations("invalid_parameter", "id too_many")
	for what, query := range map[string]string{
		"one parameter repeated": strings.Repeat("x&", parameters),
		"many":                   many.String(),
		"malformed":              strings.Repeat("%&", parameters),
		"ids":                    strings.Repeat("id=1&", 10_000),
	} {
		t.Run(what, func(t *testing.T) {
			resp := p.in(t).get("/pets?"+query).wantError(400, "invalid_parameter")
			if len(resp.body) > 20_000 {
				t.Errorf("the response has %d bytes", len(resp.body))
			}
		})
	}
	violations := p.get("/pets?" + strings.Repeat("id=1&", 1000) + "name=x").violations()
	need.Same(t, []string{"name too_many", "id too_many"}, violations, "violations of 1001 parameters")
	need.Same(t, []string{"id too_many"}, p.get("/pets?"+strings.Repeat("id=1&", 999)+"name=x").violations(),
		"violations of 1000 parameters")
}

// patient starts another server with changed options for a test that holds a lock. Its requests
// and statements wait longer for the lock than the test holds it.
func (p *petstore) patient(changes ...func(*api.Options)) *petstore {
	p.t.Helper()
	return p.withSession("lock_timeout", "30s", "statement_timeout", "30s").with(func(o *api.Options) {
		o.RequestTimeout = 30 * time.Second
		for _, change := range changes {
			change(o)
		}
	})
}

// withSession starts another server with other settings on its connections, which do
// not lead through a pooler. The settings are names, each with a value.
func (p *petstore) withSession(settings ...string) *petstore {
	p.t.Helper()
	target := need.Value(url.Parse(p.direct))(p.t)
	parameters := target.Query()
	for setting := range slices.Chunk(settings, 2) {
		parameters.Set(setting[0], setting[1])
	}
	target.RawQuery = parameters.Encode()
	pool := pgtest.Open(p.t, target.String(), 8)
	return p.with(func(o *api.Options) { o.DB, o.Verifier = pool, auth.NewVerifier(db.New(pool), db.New(pool.Writing())) })
}

// TestSlowBody: a body may take longer than the request timeout to arrive. The server still handles the
// request and writes the response, even after its WriteTimeout.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	const timeout, writeTimeout = 2 * time.Second, 4 * time.Second
	for name, late := range map[string]time.Duration{"handled": writeTimeout, "unavailable": timeout} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startAlone(t).patient(func(o *api.Options) { o.RequestTimeout = timeout })
			p = p.listening(func(s *httptest.Server) { s.Config.WriteTimeout = writeTimeout })
			if name == "unavailable" {
				p.lockTable("messages", 0, func() {})
			}
			finish := p.slowly() // the server asks for the body when the time of the request has started
			<-time.After(late)
			resp := finish()
			if name == "unavailable" {
				resp.wantUnavailable()
			} else {
				resp.want(202)
			}
		})
	}
}

// TestTimeLimits checks the limits of a request, of a statement and of a lock, each far shorter than the others.
func TestTimeLimits(t *testing.T) {
	t.Parallel()
	const short, long = 100 * time.Millisecond, 30 * time.Second
	p := startAlone(t).readingPrimary()
	limited := func(request, statement, lock time.Duration) *petstore {
		p := p.withSession("statement_timeout", statement.String(), "lock_timeout", lock.String())
		return p.with(func(o *api.Options) { o.RequestTimeout = request })
	}
	servers := map[string]*petstore{
		"request": limited(short, long, long), "statement": limited(long, short, long), "lock": limited(long, long, short),
	}
	for _, p := range servers {
		p.get("/pets") // opens a connection
	}
	defer p.lockTable("pets", 0, func() {})()
	for what, p := range servers {
		t.Run(what, func(t *testing.T) {
			began := time.Now()
			p.in(t).get("/pets").wantUnavailable()
			if took := time.Since(began); took < short || took >= long {
				t.Errorf("it took %s", took)
			}
		})
	}
}

// TestPageBytes checks that a page of large items ends early, and that its next link leads to the rest.
func TestPageBytes(t *testing.T) {
	t.Parallel()
	const messages = 60
	p := start(t)
	p.insertMessages(messages)
	resp := p.get("/messages?limit=200").want(200)
	if got := len(resp.body); got < 480<<10 || got > 512<<10 {
		t.Errorf("a page has %d bytes", got)
	}
	need.Same(t, messages, len(walk[message](p, "/messages?limit=200")), "messages of all pages")
}

// insertMessages inserts messages of the maximum size, 16 KB, into each store of the test.
func (p *petstore) insertMessages(count int) {
	p.t.Helper()
	p.exec(`
		INSERT INTO messages (account_id, id, message)
		SELECT accounts.id, 'msg_' || lpad(to_hex(number), 32, '0'), repeat('🐕', 4000)
		FROM accounts, generate_series(1, $1) AS number
		WHERE `+p.owned("accounts.id"), count)
}

// withSmallBuffers starts the same server on a listener with minimal send buffers in the kernel.
func (p *petstore) withSmallBuffers(change func(*http.Server)) *petstore {
	p.t.Helper()
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return setBuffer(raw, syscall.SO_SNDBUF)
	}}
	listener := need.Value(config.Listen(p.t.Context(), "tcp", "127.0.0.1:0"))(p.t)
	return p.listening(func(s *httptest.Server) {
		s.Listener.Close()
		s.Listener = listener
		change(s.Config)
	})
}

func setBuffer(raw syscall.RawConn, option int) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, option, 4096)
	})
	return errors.Join(err, failed)
}

// slowReader sends a GET request and does not read the response. Its receive buffer
// is small from the start, so that the TCP window never opens.
func (p *petstore) slowReader(target string, header ...string) net.Conn {
	p.t.Helper()
	conn := need.Value(p.dial(net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		return setBuffer(raw, syscall.SO_RCVBUF)
	}}))(p.t)
	p.t.Cleanup(func() { conn.Close() })
	need.OK(p.t, p.request(p.t.Context(), "GET", target, nil, header...).Write(conn))
	return conn
}

// TestSlowReaders checks that clients that do not read their large pages use up the
// share of their own account only. A large recorded request needs a part of it too. The share
// is free again when they are gone.
func TestSlowReaders(t *testing.T) {
	t.Parallel()
	const most = 50 // more than the share allows
	p := start(t).withSmallBuffers(func(*http.Server) {})
	another := p.newKey("another", auth.Read)
	keys := []string{p.key} // they share one share
	for range 3 {
		keys = append(keys, p.inSandbox(stores.SampleEmpty).key)
	}
	p.insertMessages(50)
	sandbox := p.inSandbox(stores.SampleEmpty).sandboxID
	recorded := fmt.Sprintf("/sandboxes/sbx_%d/requests/%s", sandbox, p.recordRequest(fmt.Sprint("sbx_", sandbox)))
	p.exec(`UPDATE exchanges SET messages = format('{"request":%s,"response":%1$s,"redacted":[]}', '{"headers":[],"body":"' || repeat('🐕', 65000) || '","bodySize":0}') WHERE account_id = $1`, sandbox)
	const page = "/messages?limit=200"
	var slow []net.Conn
	leave := func() {
		for _, conn := range slow {
			conn.Close()
		}
	}
	defer leave()
	rejected := func() bool {
		resp := p.get(page)
		if resp.status == 200 {
			return false
		}
		resp.wantRejected(429, "too_many_concurrent_requests")
		resp.wantHeader("Link", "")
		return true
	}
	for !rejected() && len(slow) < most {
		slow = append(slow, p.as(keys[len(slow)%len(keys)]).slowReader(page))
	}
	if len(slow) == most {
		t.Fatalf("%d pages of 512 KiB are being sent", most)
	}
	for _, key := range keys[1:] {
		p.as(key).get(page).wantRejected(429, "too_many_concurrent_requests")
	}
	need.Same(t, 429, p.get(recorded).status, "the status of a recorded request of 520 KB")
	p.get("/messages/" + decode[[]message](p.as(another).get(page).want(200))[0].ID).want(200)
	p.as(another).get(page).want(200)
	leave()
	need.Within(t, 30*time.Second, "requests are not rejected", func() bool { return !rejected() })
	p.get(recorded).want(200)
}

// TestSlowReadersAreClosed checks that the server closes the connection of a client
// that reads more slowly than the minimum rate, also without a key.
func TestSlowReadersAreClosed(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.insertMessages(50)
	const readers = 4
	var open atomic.Int64
	p = p.withSmallBuffers(func(server *http.Server) {
		server.WriteTimeout = time.Hour
		server.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateActive {
				open.Add(1)
			} else if state == http.StateClosed {
				open.Add(-1)
			}
		}
	})
	for range readers - 1 {
		p.slowReader("/messages?limit=6") // 100 KB, so 3.5 s
	}
	p.as("").slowReader("/openapi.json") // 9 s
	need.Within(t, 30*time.Second, "all readers have a connection", func() bool { return open.Load() == readers })
	need.Within(t, time.Minute, "no reader has a connection", func() bool { return open.Load() == 0 })
}
