package api_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	stores "petstore/internal/account"
	"petstore/internal/api"
	"petstore/internal/egress"
	"petstore/internal/ratelimit"
	"petstore/internal/report"
	"petstore/internal/tools/need"
	"petstore/internal/webhook"
)

// program is a small client of a sandbox, as somebody may write it. Its requests are not checked.
type program struct {
	*petstore

	agent string
	http  *http.Client
	// streams is whether it sends bodies without their length.
	streams bool
}

// programIn returns a program with a new sandbox.
func programIn(p *petstore) *program {
	transport := &http.Transport{DisableKeepAlives: true} // which would repeat requests by itself
	p.t.Cleanup(transport.CloseIdleConnections)
	return &program{petstore: p.inSandbox(stores.SampleShop), agent: "program/1", http: &http.Client{Transport: transport}}
}

// reply is the response to a program; status 0: there was none.
type reply struct {
	status int
	header http.Header
	text   string
}

func (p *program) call(method, target, body string, header ...string) (got reply) {
	p.t.Helper()
	response, err := p.open(p.t.Context(), method, target, body, header...)
	if err != nil {
		return got
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return reply{response.StatusCode, response.Header, string(text)}
}

// repeat sends the same request several times, one after the other.
func (p *program) repeat(times int, method, target, body string, header ...string) {
	p.t.Helper()
	for range times {
		p.call(method, target, body, header...)
	}
}

// open is call until the response begins.
func (p *program) open(ctx context.Context, method, target, body string, header ...string) (*http.Response, error) {
	p.t.Helper()
	request := p.request(ctx, method, target, strings.NewReader(body), append([]string{"User-Agent", p.agent}, header...)...)
	if p.streams {
		request.ContentLength = -1
	}
	return p.http.Do(request)
}

// rest waits for a pause.
func (p *program) rest(d time.Duration) {
	select {
	case <-time.After(d):
	case <-p.t.Context().Done():
	}
}

// fails makes the next requests for an operation fail.
func (p *program) fails(operation string, status, number int) {
	p.setFaults(object{"operation": operation, "effect": "status", "status": status, "first": number})
}

// paced makes requests begin with an interval. It waits for them, and changes their times in the
// record, so a busy machine does not change the pauses.
func (p *program) paced(requests int, interval time.Duration) {
	p.t.Helper()
	p.report(requests)
	p.exec("UPDATE exchanges SET microseconds = 1, started_at = to_timestamp($2::float8 + number * $3::float8) WHERE account_id = $1",
		p.sandboxID, time.Now().Unix(), interval.Seconds())
}

// loses loses the response to the next request for an operation.
func (p *program) loses(operation string) {
	p.setFaults(object{"operation": operation, "effect": "close", "when": "after", "first": 1})
}

// next returns the path of the next page and its cursor.
func (a reply) next() (path, cursor string) {
	link := regexp.MustCompile(`<([^>]*)>; rel="next"`).FindStringSubmatch(a.header.Get("Link"))
	if link == nil {
		return "", ""
	}
	parsed, _ := url.Parse(link[1])
	return link[1], parsed.Query().Get("cursor")
}

const (
	orderPath = "/store/orders"
	anOrder   = `{"petId": 1, "quantity": 2}`
	stockPath = "/store/inventory/1"
)

// mistakes are programs that each make a mistake, and the rule that must find it.
var mistakes = []struct {
	rule string
	want report.Status
	run  func(p *program)
}{
	{"retry_same_key", report.Failed, func(p *program) {
		p.loses("placeOrder")
		p.call("POST", orderPath, anOrder, "Idempotency-Key", "first")
		p.call("POST", orderPath, anOrder, "Idempotency-Key", "second")
	}},
	{"retry_with_key", report.Failed, func(p *program) {
		p.loses("createPet")
		p.repeat(2, "POST", "/pets", `{"name": "Rex", "categoryId": 1}`)
	}},
	{"retry_new_key", report.Failed, func(p *program) {
		for i := range 3 {
			p.call("POST", "/categories", `{"name": "`+strconv.Itoa(i)+`"}`, "Idempotency-Key", "always")
		}
	}},
	{"retry_temporary", report.Warning, func(p *program) {
		p.fails("createCategory", 429, 3)
		for i := range 3 {
			name := strconv.Itoa(i)
			p.call("POST", "/categories", `{"name": "`+name+`"}`, "Idempotency-Key", name)
		}
	}},
	{"retry_only_temporary", report.Failed, func(p *program) {
		p.repeat(3, "POST", orderPath, `{"petId": 4711}`)
	}},
	{"retry_only_temporary", report.Failed, func(p *program) { // without a body
		p.repeat(3, "POST", webhooksPath+"/none/test", "")
	}},
	{"retry_after", report.Failed, func(p *program) {
		p.fails("listPets", 503, 1)
		p.repeat(2, "GET", "/pets", "")
		p.paced(2, 800*time.Millisecond)
	}},
	{"retry_backoff", report.Failed, func(p *program) { // no pauses
		p.fails("listPets", 502, 6)
		p.repeat(7, "GET", "/pets", "")
		p.paced(7, time.Millisecond)
	}},
	{"retry_jitter", report.Warning, func(p *program) {
		p.fails("listPets", 502, 8)
		p.repeat(5, "GET", "/pets", "")
		p.paced(5, 200*time.Millisecond)
	}},
	{"retry_ends", report.Failed, func(p *program) {
		p.fails("createCategory", 504, 20)
		p.repeat(14, "POST", "/categories", `{"name": "Axolotls"}`, "Idempotency-Key", "always")
	}},
	{"retry_patience", report.Warning, func(p *program) {
		p.setFaults(object{"operation": "listPets", "effect": "delay", "delayMs": 9000, "first": 1})
		ctx, leave := context.WithCancel(p.t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			if response, err := p.open(ctx, "GET", "/pets", ""); err == nil {
				response.Body.Close()
			}
		}()
		need.Within(p.t, 30*time.Second, "the request is delayed", func() bool { return p.matched()[0] == 1 })
		leave()
		<-left
	}},
	{"limit_no_burst", report.Failed, func(p *program) {
		p.fails("*", 429, 6)
		for i := range 6 {
			p.call("GET", "/pets/"+strconv.Itoa(i+1), "")
		}
		p.paced(6, time.Millisecond)
	}},
	{"limit_count_once", report.Warning, func(p *program) {
		for next := "/pets?limit=5"; next != ""; {
			next, _ = p.call("GET", next, "", "Prefer", "count=exact").next()
		}
	}},
	{"page_link", report.Warning, func(p *program) {
		_, cursor := p.call("GET", "/pets?limit=2&sort=name", "").next()
		p.call("GET", "/pets?sort=name&cursor="+url.QueryEscape(cursor), "")
	}},
	{"page_filters", report.Failed, func(p *program) {
		_, cursor := p.call("GET", "/pets?limit=1&status=available", "").next()
		for _, status := range []string{"pending", "sold"} {
			p.call("GET", "/pets?limit=1&status="+status+"&cursor="+url.QueryEscape(cursor), "")
		}
	}},
	{"page_end", report.Failed, func(p *program) {
		path := "/pets?limit=50"
		for last := 0; last < 3; {
			next, _ := p.call("GET", path, "").next()
			if next == "" {
				last++
				continue
			}
			path = next
		}
	}},
	{"page_size", report.Failed, func(p *program) {
		for _, path := range []string{"/pets?limit=1000", "/pets?limit=1000&status=sold", "/pets?limit=1000&status=pending"} {
			p.call("GET", path, "")
		}
	}},
	{"condition_reads", report.Warning, func(p *program) {
		p.repeat(10, "GET", stockPath, "")
	}},
	{"condition_updates", report.Warning, func(p *program) {
		p.call("GET", stockPath, "")
		p.call("PUT", stockPath, `{"quantity": 99}`)
	}},
	{"condition_412", report.Failed, func(p *program) {
		p.repeat(3, "PUT", stockPath, `{"quantity": 99}`, "If-Match", `"old"`)
	}},
	{"known_fields", report.Failed, func(p *program) {
		for i := range 3 {
			p.call("POST", "/pets", `{"name": "`+strconv.Itoa(i)+`", "categoryId": 1, "photoUrls": []}`)
		}
	}},
	{"known_parameters", report.Failed, func(p *program) {
		for i := range 3 {
			p.call("GET", "/pets?page="+strconv.Itoa(i), "")
		}
	}},
	{"content_type", report.Failed, func(p *program) {
		for i := range 3 {
			p.call("POST", "/pets", `{"name": "`+strconv.Itoa(i)+`", "categoryId": 1}`, "Content-Type", "text/plain")
		}
	}},
	{"order_once", report.Failed, func(p *program) {
		p.loses("placeOrder")
		p.repeat(2, "POST", orderPath, anOrder)
	}},
	{"order_once", report.Failed, func(p *program) { // with an error in between
		p.setFaults(
			object{"operation": "placeOrder", "effect": "close", "when": "after", "first": 1},
			object{"operation": "placeOrder", "effect": "status", "status": 503, "first": 1})
		p.repeat(3, "POST", orderPath, anOrder)
	}},
	{"no_polling", report.Warning, func(p *program) {
		p.repeat(5, "GET", "/events", "")
	}},
	{"no_polling", report.Warning, func(p *program) {
		path := p.call("POST", "/messages", `{"message": "Hi"}`).header.Get("Location")
		p.repeat(5, "GET", path, "")
	}},
	{"not_deprecated", report.Warning, func(p *program) { p.call("GET", "/pets/1", "") }},
	{"known_paths", report.Failed, func(p *program) {
		p.petstore = p.trusting()
		p.call("GET", "/pets", "")
		p.repeat(3, "GET", "/v2/pet/findByStatus", "")
	}},
	{"secret_url", report.Failed, func(p *program) { p.call("GET", "/pets?api_key="+p.key, "") }},
	{"secret_elsewhere", report.Failed, func(p *program) { p.call("GET", "/pets", "", "X-Api-Key", p.key) }},
	{"secret_shared", report.Warning, func(p *program) {
		for _, p.agent = range []string{"web/1", "app/2", "batch/1", "curl/8"} {
			p.call("GET", "/pets", "")
		}
	}},
	{"stream_resumes", report.Failed, func(p *program) {
		p.call("POST", "/categories", `{"name": "Axolotls"}`)
		p.loses("listEvents")
		p.call("GET", "/events", "", "Accept", "text/event-stream")
		p.report(2) // the stream has ended
		if opened, err := p.open(p.t.Context(), "GET", "/events?after=latest", "", "Accept", "text/event-stream"); err == nil {
			opened.Body.Close()
		}
	}},
	{"stream_waits", report.Failed, func(p *program) {
		p.fails("listEvents", 503, 10)
		p.repeat(4, "GET", "/events", "", "Accept", "text/event-stream")
		p.paced(4, time.Millisecond)
	}},
}

// TestMistakes: the report finds each mistake, by the right rule. Each rule has a mistake.
func TestMistakes(t *testing.T) {
	t.Parallel()
	made := map[string]bool{"limit_slows": true} // TestMistakeWithLimits
	for _, mistake := range mistakes {
		made[mistake.rule] = true
	}
	for _, receiver := range receivers {
		made[receiver.rule] = true
	}
	for _, rule := range report.Rules {
		if !made[rule.ID] {
			t.Errorf("%s has no row in mistakes or receivers, or is twice in report.Rules", rule.ID)
		}
		delete(made, rule.ID)
	}
	shared := start(t)
	for _, mistake := range mistakes {
		t.Run(mistake.rule, func(t *testing.T) {
			t.Parallel()
			p := programIn(shared.in(t))
			mistake.run(p)
			p.find(mistake.rule, mistake.want)
		})
	}
}

// TestUnreadBodies: the report does not take two requests for one whose bodies the server has not read. Its
// package has more programs that only seem to make a mistake.
func TestUnreadBodies(t *testing.T) {
	t.Parallel()
	p := programIn(start(t))
	p.streams = true
	p.fails("placeOrder", 502, 2)
	p.call("POST", orderPath, anOrder, "Idempotency-Key", "first")
	p.call("POST", orderPath, `{"petId": 2, "quantity": 1}`, "Idempotency-Key", "second")
	need.Same(t, report.NotSeen, verdict(p.report(2), "retry_same_key").Status, "the verdict")
}

// find waits until the report has a verdict.
func (p *program) find(rule string, want report.Status) {
	p.t.Helper()
	var got report.Result
	deadline := time.Now().Add(20 * time.Second)
	for pause := 25 * time.Millisecond; got.Status != want; pause = min(2*pause, 400*time.Millisecond) {
		if got = verdict(p.report(0), rule); time.Now().After(deadline) {
			p.t.Fatalf("%s is %s, want %s: %s", rule, got.Status, want, got.Summary)
		}
		p.rest(pause)
	}
	if len(got.Evidence) == 0 {
		p.t.Errorf("%s has no evidence: %s", rule, got.Summary)
	}
}

// TestMistakeWithLimits: a client goes on although RateLimit says that nothing is left.
func TestMistakeWithLimits(t *testing.T) {
	t.Parallel()
	p := programIn(start(t).with(func(o *api.Options) { o.KeyLimit = ratelimit.Limit{PerMinute: 600, Burst: 60} }))
	for p.call("GET", "/pets?limit=1", "").status == 200 {
	}
	other := *p.petstore
	other.key = decode[apiKey](p.retried("POST", keysPath, object{"name": "judge", "scope": "admin"})).Secret
	p.petstore = &other
	p.find("limit_slows", report.Warning)
}

// retried sends a request until it is not refused any more.
func (p *program) retried(method, path string, body any) (got *response) {
	p.t.Helper()
	need.Within(p.t, 30*time.Second, "the report has the verdict", func() bool {
		got = p.do(method, path, body)
		return got.status != 429
	})
	return got.want(201)
}

// receivers are receivers of webhooks that each make a mistake, and the rules that must find it.
// They get the secret of the webhook.
var receivers = []struct {
	rule string
	want report.Status
	// takes is how long it takes to respond.
	takes time.Duration
	// respond returns a status. isValid says whether the signature and the timestamp are right.
	respond func(seen map[string]bool, id string, isSigned, isNew bool) int
}{
	{"webhook_signature", report.Failed, 0, func(map[string]bool, string, bool, bool) int { return 204 }},
	{"webhook_body", report.Failed, 0, func(_ map[string]bool, _ string, _, isNew bool) int { return statusIf(isNew, 204, 400) }},
	{"webhook_timestamp", report.Failed, 0, func(_ map[string]bool, _ string, isSigned, _ bool) int { return statusIf(isSigned, 204, 400) }},
	{"webhook_signature", report.Warning, 0, func(_ map[string]bool, _ string, isSigned, isNew bool) int {
		return statusIf(isSigned && isNew, 204, 500)
	}},
	{"webhook_duplicates", report.Failed, 0, func(seen map[string]bool, id string, isSigned, isNew bool) int {
		if !isSigned || !isNew {
			return 400
		}
		seenBefore := seen[id]
		seen[id] = true
		return statusIf(seenBefore, 409, 204)
	}},
	{"webhook_accepts", report.Warning, 0, func(seen map[string]bool, _ string, _, _ bool) int {
		first := !seen["first"]
		seen["first"] = true
		return statusIf(first, 500, 204)
	}},
	{"webhook_accepts", report.Failed, 0, func(map[string]bool, string, bool, bool) int { return 410 }},
	{"webhook_fast", report.Warning, 5100 * time.Millisecond, func(map[string]bool, string, bool, bool) int { return 204 }},
}

func statusIf(condition bool, status, otherwise int) int {
	if condition {
		return status
	}
	return otherwise
}

// TestReceiversWithMistakes: probes and ordinary events show the mistakes of receivers. The console
// sends the probes, so the record has no request before the report. Emptying it ends the verdict all the same.
func TestReceiversWithMistakes(t *testing.T) {
	t.Parallel()
	observer := []string{"Petstore-Observer", "true"}
	shared := startAlone(t).with(func(o *api.Options) { o.Egress = egress.New(egress.Options{Allow: egress.Loopback}) })
	shared.deliver()
	for _, r := range receivers {
		t.Run(r.rule, func(t *testing.T) {
			t.Parallel()
			p := programIn(shared.in(t))
			var mu sync.Mutex
			secret, seen := "", map[string]bool{}
			server := need.Server(t, func(w http.ResponseWriter, request *http.Request) {
				select {
				case <-time.After(r.takes):
				case <-p.t.Context().Done():
				}
				mu.Lock()
				defer mu.Unlock()
				isSigned, isNew := checkWebhook(request, secret)
				w.WriteHeader(r.respond(seen, request.Header.Get("Webhook-Id"), isSigned, isNew))
			})
			mu.Lock()
			hook := decode[apiWebhook](p.do("POST", webhooksPath, object{"url": server.URL, "types": []string{"category.created"}}, observer...).want(201))
			secret = hook.Secret
			mu.Unlock()
			if strings.HasPrefix(r.rule, "webhook_accepts") {
				p.newCategory("Axolotls")
				p.find(r.rule, r.want)
				return
			}
			p.do("POST", hook.path()+"/probe", nil, observer...).want(202)
			p.find(r.rule, r.want)
			p.del(ownRecord).want(204)
			need.Same(t, report.NotSeen, verdict(p.report(0), r.rule).Status, "the verdict when the record is emptied")
		})
	}
}

// checkWebhook verifies a request to a receiver.
func checkWebhook(request *http.Request, secret string) (isSigned, isNew bool) {
	body, _ := io.ReadAll(request.Body)
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(request.Header.Get("Webhook-Id") + "." + request.Header.Get("Webhook-Timestamp") + "."))
	mac.Write(body)
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	at, _ := strconv.ParseInt(request.Header.Get("Webhook-Timestamp"), 10, 64)
	return request.Header.Get("Webhook-Signature") == want, time.Since(time.Unix(at, 0)) < 5*time.Minute
}

// TestProbe: the response has the deliveries of the probes.
func TestProbe(t *testing.T) {
	t.Parallel()
	p := start(t)
	hook := p.newWebhook("pet.created")
	made := decode[struct{ Deliveries []delivery }](p.do("POST", hook.path()+"/probe", nil).want(202))
	need.Same(t, webhook.Probes, mapped(made.Deliveries, func(d delivery) string { return d.Type }), "the probes")
	p.get(hook.path() + "/deliveries/" + made.Deliveries[0].ID).want(200)
	p.patch(hook.path(), object{"status": "disabled"}).want(200)
	p.do("POST", hook.path()+"/probe", nil).wantError(409, "webhook_disabled")
	p.do("POST", webhooksPath+"/none/probe", nil).wantError(404, "webhook_not_found")
}
