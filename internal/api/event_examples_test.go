package api_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	feedevent "petstore/internal/event"
	"petstore/internal/tools/need"
)

// brief returns the type of an event and the names of its data.
func (e feedEvent) brief() string {
	return strings.Join(append([]string{e.Type}, slices.Sorted(maps.Keys(e.Data))...), " ")
}

// TestEventExamples makes one change after the other in the sample shop, and compares the event of each type with
// the example in the spec. The worker, which other tests run, makes the last three types.
func TestEventExamples(t *testing.T) {
	t.Parallel()
	p := startAlone(t)
	_, next := p.feed("/events")
	need.Same(t, "/events?after="+p.eventID(0, 0), next, "the link of an empty feed")
	p.fillShop()
	_, next = p.feed(next)
	for _, step := range []struct {
		method, target string
		body           any
		want           string // brief of the event, or "" for none
	}{
		{"POST", "/store/orders", object{"petId": 1, "quantity": 2}, "order.placed inventory order"},
		{"PATCH", "/store/orders/1001", object{"shipDate": "2026-12-24T09:30:00Z"}, "order.updated order"},
		{"PATCH", "/store/orders/1001", object{"shipDate": "2026-12-24T09:30:00Z"}, ""},
		{"PATCH", "/store/orders/1001", object{"complete": true}, "order.completed order"},
		{"PATCH", "/store/orders/1001", object{"complete": true}, ""},
		{"POST", "/store/orders", object{"petId": 1, "quantity": 1}, "order.placed inventory order"},
		{"DELETE", "/store/orders/1002", nil, "order.cancelled inventory order"},
		{"PUT", "/store/inventory/1", object{"quantity": 50}, "inventory.updated inventory"},
		{"PUT", "/store/inventory/1", object{"quantity": 50}, ""},
		{"PATCH", "/pets/1", object{"name": "Rex"}, ""},
		{"PATCH", "/pets/1", object{"status": "pending"}, "pet.updated inventory pet"},
		{"POST", "/categories", object{"name": "Reptiles"}, "category.created category"},
		{"PATCH", "/categories/1001", object{"name": "Reptiles"}, ""},
		{"PATCH", "/categories/1001", object{"description": "Turtles, geckos and snakes"}, "category.updated category"},
		{"POST", "/pets", object{"name": "Shelly", "categoryId": 1001}, "pet.created inventory pet"},
		{"DELETE", "/pets/1001", nil, "pet.deleted inventory pet"},
		{"DELETE", "/categories/1001", nil, "category.deleted category"},
		{"POST", "/messages", object{"message": "Call me when Rex is back in stock."}, "message.queued message"},

		{"PATCH", "/pets/1", object{"name": "Max"}, "pet.updated pet"},
		{"PUT", "/store/inventory/1", object{"quantity": 1}, "inventory.updated inventory pet"},
		{"POST", "/store/orders", object{"petId": 1}, "order.placed inventory order pet"},
		{"DELETE", "/store/orders/1003", nil, "order.cancelled inventory order pet"},
	} {
		p.do(step.method, step.target, step.body).wantSuccess()
		var events []feedEvent
		events, next = p.feed(next)
		need.Same(t, step.want, strings.Join(mapped(events, feedEvent.brief), ", "), "%s %s %v", step.method, step.target, step.body)
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
	p.post("/store/orders", object{"petId": 1, "quantity": 2}).wantError(409, "insufficient_stock")
	p.under("one", "/messages", object{"message": "Again"}).want(202)
	p.under("one", "/messages", object{"message": "Again"}).want(202)
	numbered, _ := p.feed("/events?limit=7")
	need.Same(t, 1, len(numbered)-len(all), "events of a refused order, a message and its replay")
	wantNumbered(t, numbered)
}
