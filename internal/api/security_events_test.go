package api_test

import (
	"fmt"
	"strconv"
	"testing"

	"petstore/internal/auth"
	"petstore/internal/pgtest"
	"petstore/internal/ratelimit"
	"petstore/internal/tools/need"
)

// eventLine is the part of a log line about a security event.
type eventLine struct {
	Event, Client, Key string
	AccountID          string `json:"account_id"`
	KeyID              int64  `json:"key_id"`
	TargetKeyID        int64  `json:"target_key_id"`
	TargetAccountID    string `json:"target_account_id"`
	TargetWebhookID    string `json:"target_webhook_id"`
	TargetSample       string `json:"target_sample"`
	RequestID          string `json:"request_id"`
}

// event returns the security event of the only log line of a request.
func (p *petstore) event(requestID string) eventLine {
	p.t.Helper()
	found := logLines(p, func(line eventLine) bool { return line.RequestID == requestID })
	if len(found) != 1 {
		p.t.Fatalf("request %s has %d log lines, want 1", requestID, len(found))
	}
	return found[0]
}

// TestSecurityEvents checks that the log names every security event, who caused it,
// from where and which key it is about.
func TestSecurityEvents(t *testing.T) {
	t.Parallel()
	p := startAlone(t)
	const client = "127.0.0.1"
	prefix := func(key string) string { return key[:len("petstore_")+8] }
	admin := p.keyID()
	account := pgtest.Read[string](t, p.db, "SELECT 'acc_' || account_id FROM api_keys WHERE id = $1", admin)
	reader := p.makeKey("reader", "read")
	target := p.makeKey("target", "write")
	limited, _ := p.limited(ratelimit.Limit{PerMinute: 1, Burst: 1}, ratelimit.Limit{PerMinute: 1, Burst: 1})
	limited.get("/pets").want(200)
	limited.as("").get("/pets").want(401)
	box := p.newSandbox("box", "empty")
	boxAccount := need.Value(strconv.ParseInt(accountOf(box), 10, 64))(t)
	hook := p.newWebhook("*")
	by := func(event string, target eventLine) eventLine {
		target.Event, target.Client, target.Key, target.AccountID, target.KeyID = event, client, prefix(p.key), account, admin
		return target
	}
	ofSandbox := func(event, id string) eventLine { return by(event, eventLine{TargetAccountID: id}) }
	ofSample := func(event, name string) eventLine { return by(event, eventLine{TargetSample: name}) }
	ofWebhook := func(event string) eventLine { return by(event, eventLine{TargetWebhookID: hook.ID}) }
	byAdmin := func(event string, id int64) eventLine { return by(event, eventLine{TargetKeyID: id}) }
	for _, test := range []struct {
		name         string
		as           *petstore
		method, path string
		body         any
		status       int
		want         eventLine
	}{
		{"no-key", p.as(""), "GET", "/pets", nil, 401, eventLine{Event: "authentication_failed", Client: client}},
		{"malformed", p.as("x"), "GET", "/pets", nil, 401, eventLine{Event: "authentication_failed", Client: client}},
		{"unknown", p.as(auth.NewSecret().Reveal()), "GET", "/pets", nil, 401, eventLine{Event: "authentication_failed", Client: client}},
		{"scope", p.as(reader.Secret), "POST", "/pets", object{}, 403, eventLine{Event: "access_denied", Client: client, Key: reader.Prefix, AccountID: account, KeyID: reader.ID}},
		{"limit-of-a-key", limited, "GET", "/pets", nil, 429, byAdmin("rate_limited", 0)},
		{"limit-of-an-address", limited.as(""), "GET", "/pets", nil, 429, eventLine{Event: "rate_limited", Client: client}},
		{"created", p, "POST", keysPath, object{"name": "new", "scope": "read"}, 201, byAdmin("api_key_created", target.ID+2)},
		{"rotated", p, "POST", rotatePath(target.ID), nil, 201, byAdmin("api_key_rotated", target.ID)},
		{"revoked", p, "DELETE", keyPath(target.ID), nil, 204, byAdmin("api_key_revoked", target.ID)},
		{"revoked-again", p, "DELETE", keyPath(target.ID), nil, 204, eventLine{Key: prefix(p.key)}},
		{"sandbox-created", p, "POST", sandboxesPath, object{"sample": "empty"}, 201, ofSandbox("sandbox_created", fmt.Sprint("sbx_", boxAccount+1))},
		{"sandbox-reset", p, "POST", box.path() + "/reset", nil, 204, ofSandbox("sandbox_reset", box.ID)},
		{"sample-saved", p, "POST", samplesPath, object{"name": "saved", "from": box.ID}, 201, ofSample("sample_saved", "saved")},
		{"sample-deleted", p, "DELETE", samplesPath + "/saved", nil, 204, ofSample("sample_deleted", "saved")},
		{"sample-deleted-again", p, "DELETE", samplesPath + "/saved", nil, 404, eventLine{Key: prefix(p.key)}},
		{"sandbox-deleted", p, "DELETE", box.path(), nil, 204, ofSandbox("sandbox_deleted", box.ID)},
		{"sandbox-deleted-again", p, "DELETE", box.path(), nil, 404, eventLine{Key: prefix(p.key)}},
		{"webhook-updated", p, "PATCH", hook.path(), object{"status": "disabled"}, 200, ofWebhook("webhook_updated")},
		{"webhook-not-updated", p, "PATCH", hook.path(), object{"status": "disabled"}, 200, eventLine{Key: prefix(p.key)}},
		{"webhook-rotated", p, "POST", hook.path() + "/rotate", nil, 201, ofWebhook("webhook_rotated")},
		{"webhook-deleted", p, "DELETE", hook.path(), nil, 204, ofWebhook("webhook_deleted")},
		{"not-created", p, "POST", keysPath, object{}, 400, eventLine{Key: prefix(p.key)}},
		{"last-admin", p, "DELETE", keyPath(admin), nil, 409, eventLine{Key: prefix(p.key)}},
		{"an-ordinary-request", p, "GET", "/pets", nil, 200, eventLine{Key: prefix(p.key)}},
	} {
		test.as.do(test.method, test.path, test.body, "X-Request-Id", test.name).want(test.status)
		test.want.RequestID = test.name
		need.Same(t, test.want, p.event(test.name), "%s", test.name)
	}
}
