package api_test

import (
	"encoding/json"
	"testing"

	feedevent "petstore/internal/event"
	"petstore/internal/tools/need"
)

// TestEventExamples records an event of each type in the sample shop and compares it with the
// example in the spec. The worker, which other tests run, makes the last three.
func TestEventExamples(t *testing.T) {
	t.Parallel()
	p := startAlone(t)
	p.fillShop()
	for _, step := range []struct {
		method, target string
		body           any
	}{
		{"POST", "/store/orders", object{"petId": 1, "quantity": 2}},
		{"PATCH", "/store/orders/1001", object{"shipDate": "2026-12-24T09:30:00Z"}},
		{"PATCH", "/store/orders/1001", object{"complete": true}},
		{"POST", "/store/orders", object{"petId": 1, "quantity": 1}},
		{"DELETE", "/store/orders/1002", nil},
		{"PUT", "/store/inventory/1", object{"quantity": 50}},
		{"PATCH", "/pets/1", object{"status": "pending"}},
		{"POST", "/categories", object{"name": "Reptiles"}},
		{"PATCH", "/categories/1001", object{"description": "Turtles, geckos and snakes"}},
		{"POST", "/pets", object{"name": "Shelly", "categoryId": 1001}},
		{"DELETE", "/pets/1001", nil},
		{"DELETE", "/categories/1001", nil},
		{"POST", "/messages", object{"message": "Call me when Rex is back in stock."}},
	} {
		p.do(step.method, step.target, step.body).wantSuccess()
	}
	hook := decode[apiWebhook](p.post(webhooksPath, object{"url": hookURL, "types": []string{"order.placed", "order.cancelled"}}).want(201))

	recorded := map[string]map[string]any{}
	var all []map[string]any
	need.OK(t, json.Unmarshal(p.get("/events?limit=200").want(200).body, &all))
	for _, e := range all {
		if kind := e["type"].(string); recorded[kind] == nil {
			recorded[kind] = e
		}
	}
	made := func(kind, subject string, data any) {
		e := map[string]any{"type": kind, "subject": subject, "data": plain(t, data), "sequence": float64(len(recorded) + 1)}
		for _, field := range []string{"id", "accountId", "sandbox", "timestamp"} {
			e[field] = all[0][field]
		}
		recorded[kind] = e
	}
	queued := recorded["message.queued"]["data"].(map[string]any)["message"].(map[string]any)
	for _, status := range []string{"delivered", "failed"} {
		made("message."+status, recorded["message.queued"]["subject"].(string),
			object{"message": object{"id": queued["id"], "message": queued["message"], "status": status, "createdAt": queued["createdAt"]}})
	}
	made("webhook.disabled", "/webhooks/"+hook.ID, object{"webhook": feedevent.DisabledWebhook{
		ID: hook.ID, Types: hook.Types, Status: "disabled", DisabledReason: new("failing"), CreatedAt: hook.CreatedAt,
	}})

	components := theContract().document.Components
	meanings := map[string]any{}
	for _, one := range feedevent.Types {
		meanings[string(one.Type)] = one.Text
	}
	need.Same[any](t, meanings, components.Schemas["EventType"].Value.Extensions["x-enumDescriptions"],
		"texts of the types (want: source, got: spec)")
	examples := components.Examples
	for _, kind := range feedevent.TypeNames() {
		got, described := recorded[kind], examples[kind]
		if got == nil {
			t.Errorf("no event of the type %s was recorded", kind)
			continue
		}
		var want any
		if described != nil {
			want = plain(t, described.Value.Value)
		}
		need.Same(t, constant("", want), constant("", any(got)),
			"components.examples has another %s than %v (want: example, got: recorded)", kind, got)
	}
}
