package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/tools/must"
	"petstore/internal/tools/secretscan"
)

// recordedSecrets is row 51: sandboxes send requests of all operations, with API keys and secrets of
// webhooks in every place and form. The record has none of them. While nobody can write the record,
// its buffer is full, but no request fails or becomes slower. While the database is away, requests get
// 503 in time. Each request is recorded or counted as dropped. At 1,000 a second none is
// dropped, and another instance shows a request within 200 ms (median).
func recordedSecrets(ctx context.Context, f *fixture) string {
	const sandboxes, senders, perSecond, visibleWithin = 25, 8, 1000, 200 * time.Millisecond
	s := f.open(ctx, "PETSTORE_ACCOUNT_RATE_LIMIT=0", allowLoopback)
	r := &recorded{deployment: s, operations: s.readOperations(ctx)}
	keys := s.addKeys(ctx, "recorded", 1, sandboxes+1)[1:]
	for _, key := range keys[:sandboxes] {
		r.addSandbox(ctx, key)
	}
	other := s.startSecond(ctx)[1]
	var visible durations
	followed := must.Background(func() { visible = r.follow(ctx, keys[sandboxes], other) })
	began := time.Now()
	must.Parallel(senders, func(sender int) {
		for number := sender; number < f.exchanges; number += senders {
			sleep(ctx, time.Until(began.Add(time.Duration(number)*time.Second/perSecond)))
			r.send(ctx, number)
		}
	})
	rate := float64(f.exchanges) / time.Since(began).Seconds()
	followed()
	stored := r.awaitRecord(ctx)
	must.Hold(int64(stored) == r.sent.Load(), "only %d of %d requests are recorded", stored, r.sent.Load())
	must.Hold(visible.median() <= visibleWithin, "another instance shows a request after %s (median), p99 %s", round(visible.median()), round(visible.p99()))
	r.scan(ctx)
	full := r.fullBuffer(ctx)
	r.databaseAway(ctx)
	r.scan(ctx)
	return fmt.Sprintf("%d requests of %d operations at %.0f/s, 0 dropped, 0 of %d secrets; on another instance after %s, p99 %s; %s",
		f.exchanges, len(r.operations), rate, len(r.secretTexts), round(visible.median()), round(visible.p99()), full)
}

// recorded has sandboxes and their secrets.
type recorded struct {
	*deployment

	operations [][2]string // methods and paths
	sandboxes  []*recordedSandbox
	sent       atomic.Int64 // requests that belong into the record

	mu          sync.Mutex
	secrets     secretscan.Secrets
	secretTexts []string
}

// follow sends requests of a sandbox one by one, and waits for each in its record at another
// instance. It returns the times between both responses.
func (r *recorded) follow(ctx context.Context, key string, other *service) (times durations) {
	const requests = 100
	here, there, target := r.withKey(key), other.withKey(key), "/sandboxes/current/requests?limit=1"
	for range requests {
		var seen time.Time
		wait := must.Background(func() {
			page := decode[[]struct{ ID string }](must.Get(there.do(ctx, "GET", target, "", "Prefer", "wait=5")).check(http.StatusOK))
			if len(page) == 1 { // else the wait has ended before
				seen, target = time.Now(), "/sandboxes/current/requests?limit=1&after="+page[0].ID
			}
		})
		must.Get(here.do(ctx, "GET", "/store/inventory/summary", "")).check(http.StatusOK)
		ended := time.Now()
		r.sent.Add(1)
		if wait(); !seen.IsZero() {
			times = append(times, seen.Sub(ended))
		}
	}
	must.Hold(len(times) > requests/2, "another instance shows only %d of %d requests", len(times), requests)
	return times
}

// recordedSandbox is a sandbox with ids of its resources.
type recordedSandbox struct {
	*client

	webhook string
	apiKey  int64
}

// unrecorded are the paths that look at the record, which has no requests for them.
var unrecorded = []string{"/sandboxes/{sandboxId}/requests", "/sandboxes/{sandboxId}/report"}

// readOperations returns the operations in the spec that need a key and are recorded.
func (s *deployment) readOperations(ctx context.Context) (all [][2]string) {
	spec := decode[struct {
		Paths map[string]map[string]any
	}](s.want(ctx, http.StatusOK, "GET", "/openapi.json", ""))
	for path, item := range spec.Paths {
		for _, method := range []string{"get", "post", "put", "patch", "delete"} {
			operation, _ := item[method].(map[string]any)
			if security, isSet := operation["security"].([]any); operation == nil || isSet && len(security) == 0 || slices.Contains(unrecorded, strings.TrimSuffix(path, "/{requestId}")) {
				continue
			}
			all = append(all, [2]string{strings.ToUpper(method), path})
		}
	}
	must.Hold(len(all) > 40, "the spec has only the operations %v", all)
	return all
}

// addSandbox adds a sandbox with a webhook and a second key.
func (r *recorded) addSandbox(ctx context.Context, key string) {
	c := r.withKey(key)
	r.learn(key)
	made := c.want(ctx, http.StatusCreated, "POST", "/webhooks", `{"url": "http://127.0.0.1:9/", "types": ["store.reset"]}`)
	r.learn(string(made.body))
	webhook := decode[struct{ ID string }](made).ID
	made = c.want(ctx, http.StatusCreated, "POST", "/account/api-keys", `{"name": "second", "scope": "read"}`)
	r.learn(string(made.body))
	r.sent.Add(2)
	r.sandboxes = append(r.sandboxes, &recordedSandbox{c, webhook, decode[struct{ ID int64 }](made).ID})
}

// secretPattern matches the secrets that a response has only once.
var secretPattern = regexp.MustCompile(`petstore_[0-9A-Za-z]{36}|whsec_[0-9A-Za-z+/=]{24,}`)

// learn adds the secrets in a text.
func (r *recorded) learn(text string) {
	r.secrets.LearnKeys(text)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, secret := range secretPattern.FindAllString(text, -1) {
		if text, isWebhook := strings.CutPrefix(secret, "whsec_"); isWebhook {
			r.secrets.Learn("the secret of a webhook", text)
		}
		r.secretTexts = append(r.secretTexts, secret)
	}
}

// secret returns a secret, maybe in an escaped form.
func (r *recorded) secret() string {
	r.mu.Lock()
	secret := r.secretTexts[rand.N(len(r.secretTexts))]
	r.mu.Unlock()
	switch rand.N(4) {
	case 0:
		return url.QueryEscape(strings.ReplaceAll(secret, "_", "%5F"))
	case 1:
		return "note " + secret + "."
	default:
		return secret
	}
}

// parameters matches a parameter in a path.
var parameters = regexp.MustCompile(`\{(\w+)\}`)

// notInToken matches a character that a method cannot have.
var notInToken = regexp.MustCompile(`[^0-9A-Za-z_%.~-]`)

// send sends a request of an operation with a secret somewhere.
func (r *recorded) send(ctx context.Context, number int) {
	box := r.sandboxes[number%len(r.sandboxes)]
	operation := r.operations[number/len(r.sandboxes)%len(r.operations)]
	place, secret := rand.N(9), r.secret()
	method := operation[0]
	path := parameters.ReplaceAllStringFunc(operation[1], func(name string) string {
		switch {
		case place == 0:
			return url.PathEscape(secret)
		case name == "{webhookId}":
			return box.webhook
		case name == "{apiKeyId}" && operation[0] != "DELETE":
			return fmt.Sprint(box.apiKey)
		default:
			return "sbx_1"
		}
	})
	body := ""
	if operation[0] != "GET" && operation[0] != "DELETE" {
		body = `{"name": "x", "scope": "read", "url": "http://127.0.0.1:9/", "types": ["store.reset"], "message": "m"}`
	}
	var header []string
	switch place {
	case 1:
		path += "?q=" + url.QueryEscape(secret)
	case 2:
		header = []string{"X-Note", secret}
	case 3:
		header = []string{"Idempotency-Key", strings.ReplaceAll(secret, " ", "_")}
	case 4:
		header = []string{"Cookie", "key=" + secret}
	case 5:
		header = []string{"X-Request-Id", strings.ReplaceAll(secret, "/", "_"), "User-Agent", secret}
	case 6:
		body = strings.Replace(body, `"x"`, fmt.Sprintf(`%q, %q: 1`, secret, secret), 1)
		body = strings.ReplaceAll(body, "whsec_", `whsec\u005f`)
	case 7:
		if body != "" {
			body += "\xff" + secret // is no text
		}
	case 8:
		method = notInToken.ReplaceAllString(secret, "_")
	}
	resp := must.Get(box.do(ctx, method, path, body, header...))
	must.Hold(resp.status < http.StatusInternalServerError && resp.status != http.StatusUnauthorized, "%s %s: %s", method, path, resp)
	r.learn(string(resp.body))
	r.sent.Add(1)
}

// awaitRecord waits until each request is recorded or counted as dropped. It returns the number of
// recorded requests.
func (r *recorded) awaitRecord(ctx context.Context) (stored int) {
	must.Await(ctx, 20*time.Second, func() {
		var dropped int
		r.db.read(ctx, "SELECT coalesce(sum(last_number), 0), coalesce(sum(dropped), 0) FROM exchange_logs", nil, &stored, &dropped)
		must.Hold(int64(stored) <= r.sent.Load() && int64(stored+dropped) >= r.sent.Load(), "%d requests are recorded and %d dropped of %d", stored, dropped, r.sent.Load())
	})
	return stored
}

// scan fails the row if the record has a part of a secret.
func (r *recorded) scan(ctx context.Context) {
	conn := must.Get(pgx.Connect(ctx, r.db.url()))
	defer conn.Close(ctx)
	rows := must.Get(conn.Query(ctx, "SELECT exchanges::text, messages FROM exchanges"))
	var row, messages string
	_, err := pgx.ForEachRow(rows, []any{&row, &messages}, func() error {
		for _, part := range encodedBody.FindAllStringSubmatch(messages, -1) {
			if body, err := base64.StdEncoding.DecodeString(part[1]); err == nil {
				row += string(body)
			}
		}
		if names := r.secrets.In(row); len(names) > 0 {
			return fmt.Errorf("the record has %v: %.3000s", names, row)
		}
		return nil
	})
	must.OK(err)
}

// encodedBody matches a body that is not text.
var encodedBody = regexp.MustCompile(`"body":"([^"]*)","bodyEncoding":"base64"`)

// readers measures requests of sandboxes with large headers, which fill the buffer. It returns the p99.
func (r *recorded) readers(ctx context.Context) time.Duration {
	const clients, each = 4, 300
	pad := strings.Repeat("x", 10<<10)
	var mu sync.Mutex
	var times durations
	must.Parallel(clients, func(number int) {
		for range each {
			resp := must.Get(r.sandboxes[number].do(ctx, "GET", "/pets?limit=50", "", "X-Pad", pad)).check(http.StatusOK)
			r.sent.Add(1)
			mu.Lock()
			times = append(times, resp.took)
			mu.Unlock()
		}
	})
	return times.p99()
}

// fullBuffer fills the buffer while nobody can write the record.
func (r *recorded) fullBuffer(ctx context.Context) string {
	before, during := r.readers(ctx), time.Duration(0)
	dropped := "SELECT coalesce(sum(dropped), 0) FROM exchange_logs"
	r.awaitRecord(ctx)
	earlier := r.db.count(ctx, dropped)
	release := r.db.holdLock(ctx, "LOCK TABLE exchange_logs, exchanges IN ACCESS EXCLUSIVE MODE")
	defer release()
	must.Explain("with a full buffer", func() { during = wantFair(ctx, before, func() time.Duration { return r.readers(ctx) }) })
	release()
	r.awaitRecord(ctx)
	lost := r.db.count(ctx, dropped) - earlier
	must.Hold(lost > 0, "the buffer was not full")
	return fmt.Sprintf("with a full buffer %d dropped, p99 %s (%s before)", lost, round(during), round(before))
}

// databaseAway sends requests while the database refuses connections, and afterwards.
func (r *recorded) databaseAway(ctx context.Context) {
	r.db.allowConnections(ctx, false)
	r.db.terminateBackends(ctx)
	for range 20 {
		resp := must.Get(r.sandboxes[0].do(ctx, "GET", "/pets", ""))
		must.Hold(resp.status == http.StatusServiceUnavailable && resp.took < responseLimit, "without a database: %s after %s", resp, resp.took)
		r.sent.Add(1)
	}
	r.db.allowConnections(ctx, true)
	must.Await(ctx, 5*time.Second, func() {
		resp := must.Get(r.sandboxes[0].do(ctx, "GET", "/pets", ""))
		r.sent.Add(1)
		resp.check(http.StatusOK)
	})
	r.awaitRecord(ctx)
}
