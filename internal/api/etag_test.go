package api_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	stores "petstore/internal/account"
	"petstore/internal/tools/need"
)

var strongTag = regexp.MustCompile(`^"[A-Za-z0-9_-]{22}"$`)

// etag returns the ETag of the response, which must be a strong one.
func (r *response) etag() string {
	r.t.Helper()
	tag := r.header.Get("ETag")
	if !strongTag.MatchString(tag) {
		r.t.Errorf("%s: ETag %q", r.what, tag)
	}
	r.wantHeader("Cache-Control", "private, no-cache")
	return tag
}

// category is the id of the pet's category.
func (s scene) category() int64 {
	s.t.Helper()
	return decode[pet](s.get(s.petPath()).want(200)).CategoryID
}

// tags reads one resource of each kind that writes can change.
func (s scene) tags() map[string]string {
	s.t.Helper()
	all := map[string]string{}
	for kind, target := range map[string]string{
		"pet": s.petPath(), "category": categoryPath(s.category()), "order": s.orderPath(0), "inventory": s.inventoryPath(),
	} {
		resp := s.get(target).want(200)
		all[kind+" body"], all[kind+" tag"] = string(resp.body), resp.etag()
	}
	return all
}

// TestETagChangesWithTheBody: a tag changes exactly when the body does, whichever request changes it.
func TestETagChangesWithTheBody(t *testing.T) {
	t.Parallel()
	s := start(t).stage(on("available", 5, 1, 2))
	describing := func(description any) event {
		return func(s scene) (*response, error) {
			return s.try("PATCH", categoryPath(s.category()), object{"description": description})
		}
	}
	seen := map[string]string{} // body by tag
	before := s.tags()
	for _, step := range []struct {
		name    string
		event   event
		changed []string
	}{
		{"an empty patch", patchingPet(object{}), nil},
		{"a name", patchingPet(object{"name": "Rex"}), []string{"pet"}},
		{"the same name", patchingPet(object{"name": "Rex"}), nil},
		{"a description", describing("dogs"), []string{"category"}},
		{"an empty description", describing(""), []string{"category"}},
		{"no description", describing(nil), []string{"category"}},
		{"a ship date", patchingOrder(0, `{"shipDate": "2026-12-24T09:30:00.000001Z"}`), []string{"order"}},
		{"the same ship date", patchingOrder(0, `{"shipDate": "2026-12-24T10:30:00.000001999+01:00"}`), nil},
		{"another ship date", patchingOrder(0, `{"shipDate": "2026-12-24T09:30:00.000002Z"}`), []string{"order"}},
		{"an order of some units", placing(2), []string{"inventory"}},
		{"a completed order of held units", completing(1), nil},
		{"an order of the other units", placing(3), []string{"inventory", "pet"}},
		{"a status", moving("sold"), []string{"inventory", "pet"}},
		{"stock for a sold pet", stocking(4), []string{"inventory", "pet"}},
		{"the same stock", stocking(4), nil},
		{"a completed order", completing(0), []string{"order"}},
		{"again", completing(0), nil},
	} {
		s.run(step.event).wantSuccess()
		after := s.tags()
		for _, kind := range []string{"category", "inventory", "order", "pet"} {
			body, tag := after[kind+" body"], after[kind+" tag"]
			changed := slices.Contains(step.changed, kind)
			if (before[kind+" body"] != body) != changed || (before[kind+" tag"] != tag) != changed {
				t.Errorf("%s: the %s was %s %s and is %s %s", step.name, kind, before[kind+" tag"], before[kind+" body"], tag, body)
			}
			if known, found := seen[tag]; found && known != body {
				t.Errorf("%s: two bodies share the tag %s: %s and %s", step.name, tag, known, body)
			}
			seen[tag] = body
		}
		before = after
	}
}

// TestETagOfWrites: a write returns the same body and tag as a read after it.
func TestETagOfWrites(t *testing.T) {
	t.Parallel()
	p := start(t)
	s := p.stage(on("available", 100, 1))
	const ship = "2026-12-24T09:30:00.120+02:00"
	created := func(target string, body object) string {
		t.Helper()
		write := p.post(target, body).want(201)
		location := write.header.Get("Location")
		write.wantSame(p.get(location))
		return location
	}
	changed := func(method, target string, body any) {
		t.Helper()
		p.do(method, target, body).want(200).wantSame(p.get(target))
	}
	category := created("/categories", object{"name": "dogs <&>\u2028", "description": "é"})
	changed("PATCH", category, object{"description": nil})
	created("/pets", object{"name": "Rex", "categoryId": s.category(), "status": "sold"})
	changed("PATCH", s.petPath(), object{"name": "Max"})
	changed("PUT", s.inventoryPath(), object{"quantity": 7})
	created("/store/orders", object{"petId": s.pet})
	created("/store/orders", object{"petId": s.pet, "quantity": 6, "shipDate": ship})
	changed("PATCH", s.orderPath(0), object{"shipDate": ship, "complete": true})
	changed("PATCH", s.orderPath(0), object{"shipDate": nil})

	queued := p.post("/messages", object{"message": "hello"}).want(202)
	queued.wantHeader("ETag", "") // its representation may change later
	p.get(queued.header.Get("Location")).want(200).etag()
}

// wantSame fails the test unless both responses are the same representation.
func (r *response) wantSame(other *response) {
	r.t.Helper()
	if r.etag() != other.etag() || !bytes.Equal(r.body, other.body) {
		r.t.Errorf("%s: %s %s, but %s: %s %s", r.what, r.etag(), r.body, other.what, other.etag(), other.body)
	}
}

const otherTag = `"AAAAAAAAAAAAAAAAAAAAAA"`

// TestIfNoneMatch: a read with the tag of its resource is 304. Package httpjson tests lists of tags.
func TestIfNoneMatch(t *testing.T) {
	t.Parallel()
	p := start(t)
	s := p.stage(on("available", 5, 1))
	message := p.post("/messages", object{"message": "hello"}).want(202).header.Get("Location")
	common := func(resp *response) http.Header { // of 200 and 304
		for _, name := range []string{"Date", "X-Request-Id", "Content-Type", "Content-Length"} {
			resp.header.Del(name)
		}
		return resp.header
	}
	for _, target := range []string{s.petPath(), categoryPath(s.category()), s.orderPath(0), s.inventoryPath(), message} {
		whole := p.get(target).want(200)
		tag, header := whole.etag(), common(whole)
		for _, method := range []string{"GET", "HEAD"} {
			for _, fields := range [][]string{{tag}, {otherTag + ", W/" + tag}, {otherTag, tag}, {"*"}} {
				resp := p.withHeader("If-None-Match", fields, method, target, nil).want(304)
				need.Same(t, "", string(resp.body), "%s with %q: the body of 304", resp.what, fields)
				need.Same(t, header, common(resp), "%s with %q: header (want: 200, got: 304)", resp.what, fields)
			}
			for _, fields := range [][]string{{otherTag}, {""}, {otherTag, "*"}} {
				resp := p.withHeader("If-None-Match", fields, method, target, nil).want(200)
				need.Same(t, tag, resp.etag(), "%s with %q: the tag", resp.what, fields)
			}
		}
	}
}

// conditionalRequest is a request that succeeds without preconditions.
type conditionalRequest struct {
	route, target string
	body          any
	success       int
}

func (o conditionalRequest) method() string {
	method, _, _ := strings.Cut(o.route, " ")
	return method
}

// everyOperation creates resources and returns one valid request for each operation
// except the health checks.
func (p *petstore) everyOperation() (all []conditionalRequest) {
	p.t.Helper()
	s, unordered := p.stage(on("available", 5, 1, 2)), p.stage(on("available", 0))
	newKey := func() string { return keyPath(p.makeKey("x", "read").ID) }
	category := categoryPath(s.category())
	sandbox := fmt.Sprint("sbx_", p.inSandbox(stores.SampleEmpty).sandboxID)
	faults := "/sandboxes/" + sandbox + "/faults"
	p.deleteWebhooks()
	webhook, deleted := p.newWebhook("*"), p.newWebhook("*").path()
	hook := webhook.path()
	test := decode[delivery](p.do("POST", hook+"/test", nil).want(202))
	ids := map[string]string{
		"petId": fmt.Sprint(s.pet), "categoryId": fmt.Sprint(s.category()), "orderId": fmt.Sprint(s.orders[0]),
		"messageId": decode[message](p.post("/messages", object{"message": "hello"}).want(202)).ID,
		"apiKeyId":  fmt.Sprint(p.keyID()), "eventId": decode[[]feedEvent](p.get("/events?limit=1").want(200))[0].ID,
		"webhookId": webhook.ID, "deliveryId": test.ID, "sandboxId": sandbox, "requestId": p.recordRequest(sandbox), "name": "shop",
	}
	for _, o := range operations() {
		if o.method == "GET" && o.path != "/livez" && o.path != "/readyz" {
			all = append(all, conditionalRequest{"GET " + o.path, withIDs(p.t, o.path, ids), nil, 200})
		}
	}
	return append(all, []conditionalRequest{
		{"POST /pets", "/pets", object{"name": "Rex", "categoryId": s.category()}, 201},
		{"PATCH /pets/{petId}", s.petPath(), object{"name": rand.Text()}, 200},
		{"DELETE /pets/{petId}", unordered.petPath(), nil, 204},
		{"POST /categories", "/categories", object{"name": rand.Text()}, 201},
		{"PATCH /categories/{categoryId}", category, object{"description": rand.Text()}, 200},
		{"DELETE /categories/{categoryId}", categoryPath(p.newCategory(rand.Text())), nil, 204},
		{"POST /store/orders", "/store/orders", object{"petId": s.pet}, 201},
		{"PATCH /store/orders/{orderId}", s.orderPath(0), object{"complete": true}, 200},
		{"DELETE /store/orders/{orderId}", s.orderPath(1), nil, 204},
		{"PUT /store/inventory/{petId}", s.inventoryPath(), object{"quantity": 50}, 200},
		{"POST /messages", "/messages", object{"message": "hello"}, 202},
		{"POST /webhooks", webhooksPath, object{"url": hookURL, "types": []string{"*"}}, 201},
		{"PATCH /webhooks/{webhookId}", hook, object{"description": rand.Text()}, 200},
		{"DELETE /webhooks/{webhookId}", deleted, nil, 204},
		{"POST /webhooks/{webhookId}/rotate", hook + "/rotate", object{"graceSeconds": 0}, 201},
		{"POST /webhooks/{webhookId}/test", hook + "/test", nil, 202},
		{"POST /webhooks/{webhookId}/probe", hook + "/probe", nil, 202},
		{"POST /webhooks/{webhookId}/replay", hook + "/replay", object{}, 202},
		{"POST /webhooks/{webhookId}/deliveries/{deliveryId}/retry", hook + "/deliveries/" + test.ID + "/retry", nil, 202},
		{"POST /account/api-keys", keysPath, object{"name": "x", "scope": "read"}, 201},
		{"DELETE /account/api-keys/{apiKeyId}", newKey(), nil, 204},
		{"POST /account/api-keys/{apiKeyId}/rotate", newKey() + "/rotate", object{"graceSeconds": 0}, 201},
		{"POST /sandboxes", "/sandboxes", object{"sample": "empty"}, 201},
		{"DELETE /sandboxes/{sandboxId}", p.newSandbox("delete", "empty").path(), nil, 204},
		{"POST /sandboxes/{sandboxId}/reset", p.newSandbox("reset", "empty").path() + "/reset", nil, 204},
		{"PUT /sandboxes/{sandboxId}/faults", faults, object{"rules": []object{{"operation": "*", "effect": "delay", "delayMs": 1}}}, 200},
		{"DELETE /sandboxes/{sandboxId}/faults", faults, nil, 204},
		{"DELETE /sandboxes/{sandboxId}/requests", p.newSandbox("record", "empty").path() + "/requests", nil, 204},
		{"POST /samples", samplesPath, object{"name": strings.ToLower(rand.Text()), "from": sandbox}, 201},
		{"DELETE /samples/{name}", samplesPath + "/" + p.saveSample(strings.ToLower(rand.Text()), sandbox), nil, 204},
	}...)
}

// TestPreconditionsOfEveryOperation checks RFC 9110, section 13.2.2: If-Match comes
// first, on reads too, and only "*" matches a resource without a tag.
func TestPreconditionsOfEveryOperation(t *testing.T) {
	t.Parallel()
	p := start(t)
	var covered, routed []string
	operations := p.everyOperation()
	for _, operation := range operations {
		covered = append(covered, operation.route)
	}
	for _, route := range p.server.Routes() {
		if route.Path != "/livez" && route.Path != "/readyz" {
			routed = append(routed, route.Method+" "+route.Path)
		}
	}
	slices.Sort(covered)
	slices.Sort(routed)
	need.Same(t, routed, covered, "operations (want: routed, got: tested)")
	const unmodified, failed, holds = 304, 412, 0
	for _, test := range []struct {
		match, noneMatch string
		read, write      int
	}{
		{otherTag, "", failed, failed},
		{"W/" + otherTag + `, ""`, "", failed, failed},
		{"*", "", holds, holds},
		{"", otherTag, holds, holds},
		{"", "*", unmodified, failed},
		{otherTag, "*", failed, failed},
		{"*", "*", unmodified, failed},
		{"*", otherTag, holds, holds},
	} {
		before := p.rows()
		for _, o := range operations {
			want, methods := test.write, []string{o.method()}
			if o.method() == "GET" {
				want, methods = test.read, []string{"GET", "HEAD"}
			}
			for _, method := range methods {
				resp := p.do(method, o.target, o.body, "If-Match", test.match, "If-None-Match", test.noneMatch)
				switch {
				case want == holds:
					resp.want(o.success)
				case want == failed && method != "HEAD":
					resp.wantError(412, "precondition_failed")
				default:
					need.Same(t, "", string(resp.want(want).body), "%s: the body of %d", resp.what, want)
				}
			}
		}
		if test.write == failed {
			p.wantRows(before)
		}
		if test.write == holds { // it has deleted what they name
			operations = p.everyOperation()
		}
	}
	for _, target := range []string{"/livez", "/readyz"} {
		p.do("GET", target, nil, "If-Match", otherTag, "If-None-Match", "*").want(200)
	}
	inside := p.inSandbox(stores.SampleEmpty)
	for _, target := range []string{"/events", ownRecord} { // as streams
		inside.do("GET", target, nil, "Accept", "text/event-stream", "If-Match", otherTag).wantError(412, "precondition_failed")
		inside.do("GET", target, nil, "Accept", "text/event-stream", "If-None-Match", "*").want(304)
	}
}

// TestErrorsComeBeforePreconditions: preconditions do not change the response to an invalid request.
func TestErrorsComeBeforePreconditions(t *testing.T) {
	t.Parallel()
	p := start(t)
	for field, value := range map[string]string{"If-Match": otherTag, "If-None-Match": "*"} {
		p.do("GET", "/pets/9999", nil, field, value).wantError(404, "pet_not_found")
		p.do("PATCH", "/pets/9999", object{}, field, value).wantError(404, "pet_not_found")
		p.do("PATCH", "/pets/1", object{"id": 1}, field, value).wantError(400, "validation_failed")
		p.do("POST", "/pets", object{}, field, value).wantError(400, "validation_failed")
		p.do("POST", "/nowhere", object{}, field, value).wantError(404, "route_not_found")
		p.do("GET", "/pets?cursor=x", nil, field, value).wantError(400, "invalid_cursor")
	}
}

// withHeader sends a request with one header line per value, unchanged, even an empty one.
func (p *petstore) withHeader(name string, values []string, method, target string, body []byte) *response {
	p.t.Helper()
	request := p.request(p.t.Context(), method, target, bytes.NewReader(body))
	request.Header[name] = values
	return p.sent(request, body)
}

// takesIfMatch reports whether an operation changes a resource that has an entity tag.
func takesIfMatch(operation *openapi3.Operation) bool {
	return operation.Parameters.GetByInAndName("header", "If-Match") != nil
}

// TestIfMatch: a write happens only if its resource has a tag of If-Match.
func TestIfMatch(t *testing.T) {
	t.Parallel()
	p := start(t)
	writes := selected(p.everyOperation(), func(one conditionalRequest) bool {
		method, path, _ := strings.Cut(one.route, " ")
		return takesIfMatch(theContract().document.Paths.Value(path).GetOperation(method))
	})
	before := p.rows()
	for _, write := range writes {
		for _, field := range []string{otherTag, "W/" + p.get(write.target).want(200).etag()} {
			p.do(write.method(), write.target, write.body, "If-Match", field).wantError(412, "precondition_failed")
		}
	}
	p.wantRows(before)
	for _, write := range writes {
		tag := p.get(write.target).want(200).etag()
		resp := p.do(write.method(), write.target, write.body, "If-Match", otherTag+", "+tag).want(write.success)
		if write.success == 204 {
			p.get(write.target).want(404) // it was deleted
			continue
		}
		resp.wantSame(p.get(write.target))
		if resp.etag() == tag {
			t.Errorf("%s changed nothing: %s", resp.what, resp.body)
		}
		p.do(write.method(), write.target, write.body, "If-Match", tag).wantError(412, "precondition_failed")
	}
}

// TestIfMatchInTheOrderOfChecks: errors 400 come first, then 404, then 412, then
// 422 and 409. That the key is not one of a sandbox comes with 404.
func TestIfMatchInTheOrderOfChecks(t *testing.T) {
	t.Parallel()
	p := start(t)
	s := p.stage(on("sold", 5, 1, 2))
	s.run(completing(1)).want(200)
	p.newCategory("taken")
	category := categoryPath(s.category())

	for _, test := range []struct {
		method, target string
		body           any
		status         int
		code           string
	}{
		{"PATCH", s.petPath(), object{"categoryId": 9999}, 422, "unknown_category"},
		{"PATCH", s.petPath(), object{"status": "pending"}, 409, "invalid_transition"},
		{"DELETE", s.petPath(), nil, 409, "pet_in_use"},
		{"PATCH", category, object{"name": "TAKEN"}, 409, "category_exists"},
		{"DELETE", category, nil, 409, "category_in_use"},
		{"PATCH", s.orderPath(1), object{"complete": false}, 409, "invalid_transition"},
		{"DELETE", s.orderPath(1), nil, 409, "order_complete"},
	} {
		before := p.rows()
		p.do(test.method, test.target, test.body, "If-Match", otherTag).wantError(412, "precondition_failed")
		for _, field := range []string{"*", p.get(test.target).want(200).etag()} {
			p.do(test.method, test.target, test.body, "If-Match", field).wantError(test.status, test.code)
		}
		p.do(test.method, test.target+"?x", test.body, "If-Match", otherTag).wantError(400, "invalid_parameter")
		if test.body != nil {
			p.do(test.method, test.target, object{"x": 1}, "If-Match", otherTag).wantError(400, "validation_failed")
		}
		p.wantRows(before)
	}
	for _, o := range operations() {
		if !takesIfMatch(o.described) {
			continue
		}
		absent := withIDs(t, o.path, absentIDs)
		code := p.get(absent).error().Code
		for _, field := range []string{"*", otherTag, "x"} {
			p.do(o.method, absent, o.body, "If-Match", field).wantError(404, code)
		}
	}
	p.do("GET", ownFaults, nil, "If-Match", "x").wantError(409, "not_a_sandbox")
	p.do("DELETE", ownFaults, nil, "If-Match", "x").wantError(412, "precondition_failed") // a write to a path without a tag
}

// TestRaceForOneTag: of many concurrent updates with the same If-Match, one succeeds.
func TestRaceForOneTag(t *testing.T) {
	t.Parallel()
	const clients, heldUp, rounds = 20, 6, 4
	p := startAlone(t) // heldUp waits for any statement that waits
	for _, race := range []struct {
		name   string
		method string
		target func(scene) string
		body   func(i int) any
	}{
		{"pet", "PATCH", scene.petPath, func(i int) any { return object{"name": fmt.Sprint("pet ", i)} }},
		{"category", "PATCH", func(s scene) string { return categoryPath(s.category()) }, func(i int) any { return object{"description": fmt.Sprint(i)} }},
		{"order", "PATCH", func(s scene) string { return s.orderPath(0) }, func(i int) any { return object{"shipDate": fmt.Sprintf("2026-12-%02dT00:00:00Z", i+1)} }},
		{"inventory", "PUT", scene.inventoryPath, func(i int) any { return object{"quantity": 100 + i} }},
	} {
		t.Run(race.name, func(t *testing.T) {
			for round := range rounds {
				s := p.in(t).stage(on("available", 5, 1))
				target := race.target(s)
				tag := s.get(target).want(200).etag()
				update := func(i int) (*response, error) {
					return s.try(race.method, target, race.body(i), "If-Match", tag)
				}
				var responses []*response
				if round%2 == 1 && race.name != "category" { // heldUp does not lock the row of the category
					responses = s.heldUp(heldUp, 1, update)
				} else {
					responses = allAtOnce(t, clients, update)
				}
				var won []*response
				for _, resp := range responses {
					if resp.status == 200 {
						won = append(won, resp)
					} else {
						resp.wantError(412, "precondition_failed")
					}
				}
				if len(won) != 1 {
					t.Fatalf("%d of %d updates with the same If-Match succeeded", len(won), len(responses))
				}
				won[0].wantSame(s.get(target))
			}
		})
	}
}
