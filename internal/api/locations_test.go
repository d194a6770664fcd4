package api_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	stores "petstore/internal/account"

	"petstore/internal/tools/need"
)

// TestLocations: each 201 and 202 has a Location, and a GET of it succeeds. Unless it is a
// list, it is what the request has made.
func TestLocations(t *testing.T) {
	t.Parallel()
	p := start(t)
	var promised, followed []string
	for _, o := range operations() {
		for status, response := range o.described.Responses.Map() {
			if status == "201" || status == "202" || response.Value.Headers["Location"] != nil {
				promised = append(promised, o.method+" "+o.path)
			}
		}
	}
	for _, one := range p.everyOperation() {
		if !slices.Contains(promised, one.route) {
			continue
		}
		followed = append(followed, one.route)
		made := p.do(one.method(), one.target, one.body).want(one.success)
		location := made.header.Get("Location")
		found := p.get(location).want(200)
		type resource struct{ ID any }
		if one.route == "POST /webhooks/{webhookId}/replay" || one.route == "POST /webhooks/{webhookId}/probe" {
			decode[[]resource](found)
		} else if diff := cmp.Diff(decode[resource](made), decode[resource](found)); diff != "" {
			t.Errorf("%s: GET %s (-made +found):\n%s", one.route, location, diff)
		}
	}
	slices.Sort(promised)
	slices.Sort(followed)
	need.Same(t, promised, followed, "operations with Location (want: spec, got: followed)")
}

// TestGetOne: a resource that is an item of a list has a path of its own with the same
// representation.
func TestGetOne(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.newPet("Rex", 1)
	hook, another := p.newWebhook("*"), p.newWebhook("*")
	p.do("POST", hook.path()+"/test", nil).want(202)
	for _, test := range []struct{ list, code string }{
		{"/events", "event_not_found"},
		{hook.path() + "/deliveries", "delivery_not_found"},
		{webhooksPath, "webhook_not_found"},
		{keysPath, "api_key_not_found"},
	} {
		for _, item := range decode[[]map[string]json.RawMessage](p.get(test.list).want(200)) {
			path := test.list + "/" + strings.Trim(string(item["id"]), `"`)
			found := p.get(path).want(200)
			delete(item, "lastUsedAt") // this test uses the key
			one := decode[map[string]json.RawMessage](found)
			delete(one, "lastUsedAt")
			need.Same(t, item, one, "GET %s (want: listed, got: found)", path)
			if tag := found.header.Get("ETag"); tag != "" {
				p.do("GET", path, nil, "If-None-Match", tag).want(304)
			} else {
				p.do("GET", path, nil, "If-None-Match", "*").want(304)
			}
		}
		if test.list != keysPath {
			p.get(test.list+"/none").wantError(404, test.code)
		}
	}
	test := decode[[]delivery](p.get(hook.path() + "/deliveries").want(200))[0]
	p.get(another.path()+"/deliveries/"+test.ID).wantError(404, "delivery_not_found")
	p.get("/events/"+p.eventID(1, 0)).wantError(404, "event_not_found") // after a failover, another event has the number
	p.get(keyPath(9007199254740991)).wantError(404, "api_key_not_found")
	p.get(keysPath + "/none").want(400)
}

// TestSourceOfEvents: an event names its account as GET /account does, and says whether it
// is a sandbox. The page, the stream and GET of one event have the same.
func TestSourceOfEvents(t *testing.T) {
	t.Parallel()
	p := start(t)
	inside := p.inSandbox(stores.SampleShop)
	seen := map[string]bool{}
	for _, test := range []struct {
		client  *petstore
		account string
		sandbox bool
	}{{p, stores.PublicID(p.accountID(), false), false}, {inside, stores.PublicID(inside.sandboxID, true), true}} {
		stream := test.client.stream("/events?after=latest")
		test.client.newPet("Rex", 1)
		events, _ := test.client.feed("/events")
		for _, e := range events {
			if e.AccountID != test.account || e.Sandbox != test.sandbox || seen[e.ID] {
				t.Errorf("event %+v, want the account %s, sandbox %t", e, test.account, test.sandbox)
			}
			seen[e.ID] = true
			one := test.client.get("/events/" + e.ID).want(200)
			if fields, ok := stream.next(); !ok || fields["data"] != string(one.body) || fields["id"] != e.ID {
				t.Errorf("the stream has %v, want %s", fields, one.body)
			}
			wantEvent(t, one.body)
		}
		if len(events) == 0 {
			t.Error("no events")
		}
	}
}
