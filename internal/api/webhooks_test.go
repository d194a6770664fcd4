package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	stores "petstore/internal/account"
	"petstore/internal/api"
	"petstore/internal/egress"
	"petstore/internal/pgtest"
	"petstore/internal/standardwebhooks"
	"petstore/internal/tools/need"
	"petstore/internal/webhook"
)

const (
	webhooksPath = "/webhooks"

	// hookURL has an address, so that the server looks up no name.
	hookURL = "https://93.184.216.34/hook"
)

// apiWebhook is a webhook, as a client sees it.
type apiWebhook struct {
	ID, URL        string
	Types          []string
	Description    *string
	Status         string
	DisabledReason *string
	CreatedAt      time.Time
	Secret         string
}

func (w apiWebhook) path() string { return webhooksPath + "/" + w.ID }

// delivery is a delivery, as a client sees it.
type delivery struct {
	ID, EventID, Type, Status string
	Attempts                  []any
	NextAttemptAt             *time.Time
	CreatedAt                 time.Time
}

func (p *petstore) newWebhook(types ...string) apiWebhook {
	p.t.Helper()
	return decode[apiWebhook](p.post(webhooksPath, object{"url": hookURL, "types": types}).want(201))
}

func (p *petstore) deleteWebhooks() {
	p.t.Helper()
	for _, one := range walk[apiWebhook](p, webhooksPath) {
		p.del(one.path()).want(204)
	}
}

// learnWebhookSecret makes the other tests search for the secret in a response.
func learnWebhookSecret(t testing.TB, text []byte) {
	t.Helper()
	var made apiWebhook
	if err := json.Unmarshal(text, &made); err != nil || made.Secret == "" {
		t.Errorf("%v: %s has no secret", err, text)
	}
	secret := strings.TrimPrefix(made.Secret, "whsec_")
	theSecrets().Learn("the secret of "+made.ID, secret)
}

func TestWebhooks(t *testing.T) {
	t.Parallel()
	p := start(t)
	began := time.Now().Add(-time.Minute)
	resp := p.post(webhooksPath, object{"url": hookURL, "types": []string{"order.placed", "pet.created", "order.placed"}, "description": "The warehouse"}).want(201)
	made := decode[apiWebhook](resp)
	if _, err := standardwebhooks.ParseSecret(made.Secret); err != nil || resp.header.Get("Cache-Control") != "no-store" || resp.header.Get("ETag") != "" {
		t.Errorf("secret %q: %v; headers %v", made.Secret, err, resp.header)
	}
	if location := resp.header.Get("Location"); location != made.path() || !webhook.IsID(made.ID) || made.CreatedAt.Before(began) {
		t.Errorf("Location %q of %+v", location, made)
	}
	made.Secret = ""
	description := "The warehouse"
	want := apiWebhook{ID: made.ID, URL: hookURL, Types: []string{"order.placed", "pet.created"}, Description: &description, Status: "enabled", CreatedAt: made.CreatedAt}
	need.Same(t, want, made, "created webhook")
	got := p.get(made.path()).want(200)
	need.Same(t, want, decode[apiWebhook](got), "read webhook")
	all := p.newWebhook("*")
	all.Secret = ""
	need.Same(t, []apiWebhook{want, all}, walk[apiWebhook](p, webhooksPath+"?limit=1"), "webhooks")
	p.do("GET", webhooksPath, nil, "Prefer", "count=exact").want(200).wantHeader("X-Total-Count", "2")
	tag := got.etag()
	patched := p.do("PATCH", made.path(), object{"url": hookURL + "2", "types": []string{"*"}, "description": nil, "status": "disabled"}, "If-Match", tag).want(200)
	manual := "manual"
	want.URL, want.Types, want.Description, want.Status, want.DisabledReason = hookURL+"2", []string{"*"}, nil, "disabled", &manual
	need.Same(t, want, decode[apiWebhook](patched), "changed webhook")
	p.do("PATCH", made.path(), object{"status": "enabled"}, "If-Match", tag).wantError(412, "precondition_failed")
	p.do("DELETE", made.path(), nil, "If-Match", tag).wantError(412, "precondition_failed")
	need.Same(t, patched.etag(), p.patch(made.path(), object{}).want(200).etag(), "the tag after an empty change")
	created := p.post(webhooksPath, object{"url": hookURL, "types": []string{"*"}, "description": ""}).want(201)
	empty := decode[apiWebhook](created)
	patched = p.patch(empty.path(), object{"description": ""}).want(200)
	for _, resp := range []*response{created, patched, p.get(empty.path()).want(200), p.get(webhooksPath).want(200)} {
		need.Contains(t, resp.what, string(resp.body), `"description":""`)
	}
	p.del(made.path()).want(204)
	for _, gone := range []*response{p.get(made.path()), p.patch(made.path(), object{}), p.del(made.path()), p.post(made.path()+"/rotate", nil), p.do("POST", made.path()+"/test", nil), p.get(made.path() + "/deliveries")} {
		gone.wantError(404, "webhook_not_found")
	}
	left := walk[apiWebhook](p, webhooksPath)
	need.Same(t, []string{all.ID, empty.ID}, mapped(left, func(one apiWebhook) string { return one.ID }), "webhooks after the deletion")
}

// TestWebhookBodies: TestFields has what the schema of a field says.
func TestWebhookBodies(t *testing.T) {
	t.Parallel()
	p := start(t)
	hook := p.newWebhook("*")
	before := p.rows()
	for _, test := range []struct {
		what, method, target string
		body                 any
		want                 []string
	}{
		{"* and others", "POST", webhooksPath, object{"url": hookURL, "types": []string{"*", "pet.created"}}, []string{"/types not_allowed"}},
		{"unknown types", "POST", webhooksPath, object{"url": hookURL, "types": []any{"pet.created", "pet.eaten", 3, "webhook.test", nil}}, []string{"/types/1 not_in_enum", "/types/2 wrong_type", "/types/3 not_in_enum", "/types/4 wrong_type"}},
		{"a new secret", "PATCH", hook.path(), object{"secret": "whsec_x"}, []string{"/secret read_only"}},
		{"a malformed cursor", "POST", hook.path() + "/replay", object{"after": "evt_5f0c9a1e"}, []string{"/after invalid_format"}},
		{"all types", "POST", hook.path() + "/replay", object{"types": []string{"*"}}, []string{"/types/0 not_in_enum"}},
	} {
		t.Run(test.what, func(t *testing.T) {
			p.in(t).do(test.method, test.target, test.body).wantViolations("validation_failed", test.want...)
		})
	}
	p.do("POST", webhooksPath, object{"url": hookURL, "types": []string{"*"}}, "Idempotency-Key", "x").wantError(400, "invalid_idempotency_key")
	p.get(hook.path()+"/deliveries?status=lost").wantViolations("invalid_parameter", "status not_in_enum")
	p.wantRows(before)
}

// TestWebhookURLs: egress has the table of forbidden URLs. Here, each operation that takes one uses it.
func TestWebhookURLs(t *testing.T) {
	t.Parallel()
	p := start(t)
	hook := p.newWebhook("*")
	before := p.rows()
	for _, forbidden := range []string{
		"http://93.184.216.34/", "https://127.0.0.1/", "https://[::1]/", "https://10.0.0.1/", "https://169.254.169.254/latest/meta-data/", "https://localhost/",
		"https://93.184.216.34:5432/", "https://user@93.184.216.34/", "ftp://93.184.216.34/",
	} {
		for _, resp := range []*response{p.post(webhooksPath, object{"url": forbidden, "types": []string{"*"}}), p.patch(hook.path(), object{"url": forbidden})} {
			if message := resp.wantError(422, "url_not_allowed").error().Message; !strings.HasPrefix(message, "`url` must") {
				t.Errorf("%s: %s", forbidden, message)
			}
			need.Same(t, []string{"/url not_allowed"}, resp.violations(), "%s: violations", forbidden)
		}
		p.post(webhooksPath, object{"url": forbidden}).wantViolations("validation_failed", "/url not_allowed", "/types required")
	}
	for _, malformed := range []string{"/hook", "x", "example.com/hook", "https://", "https://exa mple.com/", "https://ex\u00e4mple.com/", "https://127.1/"} {
		p.patch(hook.path(), object{"url": malformed}).wantViolations("validation_failed", "/url invalid_format")
		p.post(webhooksPath, object{"url": malformed, "types": []string{}}).wantViolations("validation_failed", "/url invalid_format", "/types too_few")
	}
	p.wantRows(before)
	p.patch(hook.path(), object{"url": "https://missing.example.com/"}).want(200) // no name is looked up
	local := p.with(func(options *api.Options) { options.Egress = egress.New(egress.Options{Allow: egress.Loopback}) })
	local.post(webhooksPath, object{"url": "http://127.0.0.1:3000/hook", "types": []string{"*"}}).want(201)
}

// TestTooManyWebhooks: requests at the same time to several servers do not exceed the limit either.
func TestTooManyWebhooks(t *testing.T) {
	t.Parallel()
	p := start(t)
	const requests, most = 60, 20
	servers := make([]*petstore, 6)
	for i := range servers {
		servers[i] = p.patient() // with its own pool
	}
	ends := outcomes(allAtOnce(t, requests, func(i int) (*response, error) {
		return servers[i%len(servers)].try("POST", webhooksPath, object{"url": hookURL, "types": []string{"*"}})
	}))
	need.Same(t, map[string]int{"201": most, "409 too_many_webhooks": requests - most}, ends, "new webhooks")
	left := walk[apiWebhook](p, webhooksPath)
	need.Same(t, most, len(left), "listed webhooks")
	p.post(webhooksPath, object{"url": hookURL, "types": []string{"*"}}).wantError(409, "too_many_webhooks")
	p.del(left[0].path()).want(204)
	hook := p.newWebhook("*")
	p.exec(`
		INSERT INTO webhooks (account_id, id, url, types, secret, after_sequence, status, disabled_reason, deleted_at)
		SELECT account_id, 'wh_' || md5(n::text), url, types, secret, 0, 'disabled', 'manual', now() FROM webhooks, generate_series(1, 79) AS n WHERE id = $1`, hook.ID)
	p.del(hook.path()).want(204)
	p.post(webhooksPath, object{"url": hookURL, "types": []string{"*"}}).wantError(409, "too_many_webhooks") // the deleted ones count
	p.exec("DELETE FROM webhooks WHERE account_id = $1 AND deleted_at IS NOT NULL", p.accountID())
	p.newWebhook("*")
}

func (p *petstore) storedSecrets(id string) (account int64, current, previous []byte, until *time.Time) {
	p.t.Helper()
	need.OK(p.t, p.db.QueryRow(p.t.Context(), "SELECT account_id, secret, previous_secret, previous_until FROM webhooks WHERE id = $1", id).Scan(&account, &current, &previous, &until))
	return account, current, previous, until
}

// TestWebhookSecrets: with a key, the database has no secret that works. The worker opens
// the secrets of a rotation.
func TestWebhookSecrets(t *testing.T) {
	t.Parallel()
	vault := need.Value(webhook.NewVault(webhook.VaultKey{7}))(t)
	for what, test := range map[string]struct {
		vault  *webhook.Vault
		sealed bool
	}{"without a key": {nil, false}, "with a key": {vault, true}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := start(t).with(func(options *api.Options) { options.Vault = test.vault })
			first := p.newWebhook("*")
			rotated := decode[apiWebhook](p.post(first.path()+"/rotate", object{"graceSeconds": 600}).want(201))
			account, current, previous, until := p.storedSecrets(first.ID)
			if first.Secret == rotated.Secret || until == nil || time.Until(*until) > 601*time.Second || time.Until(*until) < 500*time.Second {
				t.Errorf("after the rotation, the old secret signs until %v, and the secrets are equal: %t", until, first.Secret == rotated.Secret)
			}
			for text, stored := range map[string][]byte{first.Secret: previous, rotated.Secret: current} {
				opened, err := vault.Open(webhook.Endpoint{AccountID: account, ID: first.ID}, stored)
				if err != nil || opened.Reveal() != text {
					t.Errorf("the stored secret does not open: %v", err)
				}
				need.Same(t, !test.sealed, bytes.Contains(stored, opened.Key()), "whether the stored secret is plain")
			}
			last := decode[apiWebhook](p.post(first.path()+"/rotate", nil).want(201))
			if _, _, previous, until = p.storedSecrets(first.ID); previous != nil || until != nil || last.Secret == rotated.Secret {
				t.Error("without a grace, an old secret signs")
			}
		})
	}
}

// TestWebhookBegins: a webhook receives the events after its creation, and after it was enabled again.
func TestWebhookBegins(t *testing.T) {
	t.Parallel()
	p := start(t)
	position := func(hook apiWebhook) (after, last int64, isSettled bool) {
		t.Helper()
		need.OK(t, p.db.QueryRow(t.Context(), `
			SELECT after_sequence, last_sequence, unsettled_after IS NULL
			FROM webhooks JOIN account_state USING (account_id)
			WHERE id = $1`, hook.ID).Scan(&after, &last, &isSettled))
		return after, last, isSettled
	}
	p.newPet("Rex", 1)
	hook := p.newWebhook("*")
	if after, last, _ := position(hook); after != last || last == 0 {
		t.Errorf("a new webhook receives the events after %d, and the last is %d", after, last)
	}
	p.exec("UPDATE webhooks SET unsettled_after = NULL, failing_since = now() WHERE id = $1", hook.ID)
	p.newPet("Bello", 1)
	begin, _, _ := position(hook)
	p.patch(hook.path(), object{"description": "x", "status": "enabled"}).want(200)
	if after, last, isSettled := position(hook); after != begin || after == last || !isSettled {
		t.Errorf("another change moved the webhook from %d to %d of %d, or unsettled it", begin, after, last)
	}
	p.patch(hook.path(), object{"status": "disabled"}).want(200)
	if after, _, isSettled := position(hook); after != begin || isSettled {
		t.Errorf("disabling moved the webhook to %d; settled: %t", after, isSettled)
	}
	p.patch(hook.path(), object{"status": "enabled"}).want(200)
	need.Same(t, 0, p.count("webhooks", "failing_since IS NOT NULL"), "failing webhooks")
	after, _, _ := position(hook)
	need.Same(t, begin, after, "the begin of a webhook that has not got the events before it was disabled")
	p.dispatchAll()
	p.patch(hook.path(), object{"status": "disabled"}).want(200)
	p.newPet("Luna", 1)
	p.patch(hook.path(), object{"status": "enabled"}).want(200)
	if after, last, _ := position(hook); after != last {
		t.Errorf("an enabled webhook receives the events after %d, and the last is %d", after, last)
	}
}

func TestTestWebhook(t *testing.T) {
	t.Parallel()
	p := start(t)
	hook := p.newWebhook("order.placed")
	made := decode[delivery](p.do("POST", hook.path()+"/test", nil).want(202))
	if made.Type != "webhook.test" || made.Status != "pending" || made.NextAttemptAt == nil || len(made.Attempts) > 0 || !webhook.IsDeliveryID(made.ID) {
		t.Errorf("delivery %+v", made)
	}
	need.Same(t, []delivery{made}, walk[delivery](p, hook.path()+"/deliveries"), "deliveries")
	text := pgtest.Read[[]byte](t, p.db, "SELECT body FROM webhook_deliveries WHERE id = $1", made.ID)
	var body feedEvent
	if err := json.Unmarshal(text, &body); err != nil || time.Since(body.Timestamp) > time.Minute {
		t.Errorf("event %s: %v", text, err)
	}
	want := feedEvent{ID: made.EventID, AccountID: stores.PublicID(p.accountID(), false), Type: "webhook.test", Timestamp: body.Timestamp, Subject: hook.path(), Data: map[string]json.RawMessage{}}
	need.Same(t, want, body, "event")
	wantEvent(t, text)
	p.get("/events/"+made.EventID).wantError(404, "event_not_found")
	p.patch(hook.path(), object{"status": "disabled"}).want(200)
	p.do("POST", hook.path()+"/test", nil).wantError(409, "webhook_disabled")
	p.do("POST", hook.path()+"/deliveries/"+made.ID+"/retry", nil).wantError(409, "webhook_disabled")
	p.post(hook.path()+"/replay", object{}).wantError(409, "webhook_disabled")
}

// TestWorkerIsCalled: after the commit of each request that makes deliveries due, the worker
// gets to know the webhook.
func TestWorkerIsCalled(t *testing.T) {
	t.Parallel()
	p := start(t)
	var called []string
	var account int64
	asked := p.with(func(options *api.Options) {
		options.Deliver = func(accountID int64, webhookID string) {
			account = accountID
			var pending int
			if err := p.db.QueryRow(t.Context(), "SELECT count(*) FROM webhook_deliveries WHERE webhook_id = $1 AND next_attempt_at <= now()", webhookID).Scan(&pending); err != nil {
				t.Error(err)
			}
			called = append(called, fmt.Sprintf("%s %d", webhookID, pending))
		}
	})
	hook := asked.newWebhook("category.created")
	asked.post("/categories", object{"name": "cats"}).want(201)
	asked.dispatchAll()
	made := decode[delivery](asked.do("POST", hook.path()+"/test", nil).want(202))
	asked.do("POST", hook.path()+"/deliveries/"+made.ID+"/retry", nil).want(202)
	asked.post(hook.path()+"/replay", object{}).want(202)
	asked.patch(hook.path(), object{"status": "disabled"}).want(200)
	asked.do("POST", hook.path()+"/test", nil).want(409)
	asked.patch(hook.path(), object{"status": "enabled"}).want(200)
	want := []string{hook.ID + " 1", hook.ID + " 1", hook.ID + " 2", hook.ID + " 2", hook.ID + " 2"}
	need.Same(t, want, called, "webhooks with their deliveries that are due")
	need.Same(t, asked.accountID(), account, "their account")
}

// setDelivery gives a delivery a status that the worker would.
func (p *petstore) setDelivery(id, status string) {
	p.t.Helper()
	attempt := `{"at": "2026-11-21T10:15:30.2Z", "durationMs": 84, "httpStatus": 503}`
	p.exec(`
		UPDATE webhook_deliveries
		SET status = $2, attempts = attempts || $3::jsonb, next_attempt_at = CASE WHEN $2 = 'pending' THEN $4::timestamptz END
		WHERE id = $1`, id, status, attempt, time.Now().Add(time.Hour))
}

func TestRetryDelivery(t *testing.T) {
	t.Parallel()
	p := start(t)
	hook, other := p.newWebhook("*"), p.newWebhook("*")
	for _, status := range []string{"pending", "delivered", "failed"} {
		made := decode[delivery](p.do("POST", hook.path()+"/test", nil).want(202))
		p.setDelivery(made.ID, status)
		retried := decode[delivery](p.do("POST", hook.path()+"/deliveries/"+made.ID+"/retry", nil).want(202))
		if retried.Status != "pending" || len(retried.Attempts) != 1 || retried.NextAttemptAt == nil || time.Until(*retried.NextAttemptAt) > time.Minute {
			t.Errorf("after the retry of a %s delivery: %+v", status, retried)
		}
		p.do("POST", other.path()+"/deliveries/"+made.ID+"/retry", nil).wantError(404, "delivery_not_found")
	}
	many := decode[delivery](p.do("POST", hook.path()+"/test", nil).want(202))
	for range 60 {
		p.setDelivery(many.ID, "failed")
	}
	p.exec(`UPDATE webhook_deliveries SET attempts = jsonb_set(attempts, '{-1,durationMs}', '4711') WHERE id = $1`, many.ID)
	left := decode[delivery](p.do("POST", hook.path()+"/deliveries/"+many.ID+"/retry", nil).want(202)).Attempts
	if last, _ := left[len(left)-1].(map[string]any); len(left) != 49 || last["durationMs"] != 4711.0 {
		t.Errorf("%d attempts are left of 60, and the last one is %v", len(left), last)
	}
	p.do("PATCH", hook.path(), object{"status": "disabled"}).want(200)
	p.do("POST", hook.path()+"/deliveries/"+many.ID+"/retry", nil).wantError(409, "webhook_disabled")
	p.do("POST", hook.path()+"/deliveries/x/retry", nil).wantError(404, "delivery_not_found")
	p.do("POST", hook.path()+"/deliveries/dlv_"+strings.Repeat("0", 32)+"/retry", nil).wantError(404, "delivery_not_found")
}

func TestListDeliveries(t *testing.T) {
	t.Parallel()
	p := start(t)
	hook, other := p.newWebhook("*"), p.newWebhook("*")
	p.do("POST", other.path()+"/test", nil).want(202)
	type made struct{ ID string }
	byStatus := map[string][]made{}
	for i := range 12 {
		one := decode[made](p.do("POST", hook.path()+"/test", nil).want(202))
		status := []string{"pending", "delivered", "failed", "delivered"}[i%4]
		p.setDelivery(one.ID, status)
		byStatus[""] = slices.Insert(byStatus[""], 0, one)
		byStatus[status] = slices.Insert(byStatus[status], 0, one)
	}
	for status, want := range byStatus {
		filter := url.Values{}
		if status != "" {
			filter.Set("status", status)
		}
		walkAll(p, hook.path()+"/deliveries", filter, want)
	}
	next := p.get(hook.path() + "/deliveries?limit=1").want(200).link("next")
	p.get(strings.Replace(next, hook.ID, other.ID, 1)).wantError(400, "invalid_cursor")
	p.get(strings.Replace(next, hook.ID, "wh_unknown", 1)).wantError(400, "invalid_cursor")
}
