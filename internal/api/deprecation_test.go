package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/tools/need"
)

func deprecationOf(resp *response) map[string]string {
	said := map[string]string{}
	for _, name := range []string{"Deprecation", "Sunset"} {
		if value := resp.header.Get(name); value != "" {
			said[name] = value
		}
	}
	for _, rel := range []string{"deprecation", "successor-version"} {
		if target := resp.link(rel); target != "" {
			said[rel] = target
		}
	}
	return said
}

// TestDeprecation: every response of GET /pets/{petId} announces its deprecation
// and sunset, and no other response does.
func TestDeprecation(t *testing.T) {
	t.Parallel()
	p := start(t)
	id := p.newPet("one", 0)
	onePet := fmt.Sprintf("/pets/%d", id)
	etag := p.get(onePet).want(200).header.Get("ETag")
	broken := p.with(func(o *api.Options) { o.Verifier = nil })
	behindProxy := p.with(func(o *api.Options) { o.BaseURL = "https://petstore.example" })
	said := func(base, successor string) map[string]string {
		return map[string]string{
			"Deprecation":       "@1782864000",
			"Sunset":            "Fri, 31 Dec 2027 23:59:59 GMT",
			"deprecation":       base + "/docs/reference/pets#getPet",
			"successor-version": base + successor,
		}
	}
	itself := fmt.Sprintf("/pets?id=%d", id)
	for _, method := range []string{"GET", "HEAD"} {
		for _, test := range []struct {
			resp   *response
			status int
			want   map[string]string
		}{
			{p.do(method, onePet, nil), 200, said("", itself)},
			{behindProxy.do(method, onePet, nil), 200, said("https://petstore.example", itself)},
			{p.do(method, onePet, nil, "If-None-Match", etag), 304, said("", itself)},
			{p.do(method, onePet+"?x", nil), 400, said("", itself)},
			{p.as("").do(method, onePet, nil), 401, said("", itself)},
			{p.as("x").do(method, onePet, nil), 401, said("", itself)},
			{p.do(method, onePet, nil, "Accept", "text/html"), 406, said("", itself)},
			{p.do(method, "/pets/4711", nil), 404, said("", "/pets?id=4711")},
			{p.do(method, "/pets/%34711", nil), 404, said("", "/pets?id=4711")},
			{broken.do(method, onePet, nil), 500, said("", itself)},
			// an invalid id is not repeated in the link
			{p.do(method, "/pets/0", nil), 400, said("", "/pets")},
			{p.do(method, "/pets/01", nil), 400, said("", "/pets")},
			{p.do(method, "/pets/-1", nil), 400, said("", "/pets")},
			{p.do(method, "/pets/9223372036854775808", nil), 400, said("", "/pets")},
			{p.do(method, "/pets/1%3E%3B%20rel=next", nil), 400, said("", "/pets")},
			{p.do(method, "/pets/1%0D%0ASet-Cookie:x", nil), 400, said("", "/pets")},
		} {
			need.Same(t, test.want, deprecationOf(test.resp.want(test.status)),
				"%s: %d: deprecation headers", test.resp.what, test.status)
		}
	}
	for _, resp := range []*response{
		p.patch(onePet, object{"name": "two"}).want(200), p.patch(onePet, "{").want(400), p.as("").patch(onePet, object{}).want(401),
		p.put(onePet, object{}).want(405), p.do("OPTIONS", onePet, nil).want(204), p.get("/pets").want(200), p.get(itself).want(200),
		p.get("/pets/").want(404), p.get(fmt.Sprintf("/store/inventory/%d", id)).want(200), p.del("/pets/4711").want(404), p.del(onePet).want(204),
	} {
		need.Same(t, map[string]string{}, deprecationOf(resp), "%s: %d: deprecation headers", resp.what, resp.status)
	}
}

// TestDeprecatedRoutes checks the form of what routes say about deprecations. TestRoutesAsDescribed compares it with the spec.
func TestDeprecatedRoutes(t *testing.T) {
	t.Parallel()
	for _, r := range start(t).server.Routes() {
		if r.Deprecated == nil {
			continue
		}
		since, err := time.Parse(time.DateOnly, r.Deprecated.Since)
		sunset, err2 := time.Parse(time.DateOnly, r.Deprecated.Sunset)
		if err != nil || err2 != nil || sunset.Before(since) {
			t.Errorf("%s: %+v needs two days in order", r.Operation, r.Deprecated)
		}
		target, parameter, named := strings.Cut(r.Deprecated.Successor, "{")
		if !strings.HasPrefix(target, "/") || named && (!strings.HasSuffix(parameter, "}") || !strings.Contains(r.Path, "{"+parameter)) {
			t.Errorf("%s: the successor %s must be a path that ends with a parameter of this path, or has none", r.Operation, r.Deprecated.Successor)
		}
	}
}

// TestSunset: with enforced sunsets, the operation is gone after its sunset.
func TestSunset(t *testing.T) {
	t.Parallel()
	p := start(t)
	onePet := fmt.Sprintf("/pets/%d", p.newPet("one", 0))
	at := func(now time.Time, enforced bool) *petstore {
		return p.with(func(o *api.Options) {
			o.Now, o.EnforceSunset = func() time.Time { return now }, enforced
		})
	}
	end := time.Date(2028, 1, 1, 0, 0, 0, 0, time.UTC)
	at(end.Add(-time.Nanosecond), true).get(onePet).want(200)
	at(end.AddDate(10, 0, 0), false).get(onePet).want(200)
	for _, now := range []time.Time{end, end.In(time.FixedZone("", -12*60*60)), end.AddDate(10, 0, 0)} {
		at(now, true).get(onePet).wantError(410, "operation_sunset")
	}

	// order of checks: after 404 and 405, before all others
	ended := at(end, true)
	ended.as("").do("GET", "/pets/0?x", nil, "Accept", "text/html").wantError(410, "operation_sunset")
	ended.do("HEAD", onePet, nil).want(410)
	need.Same(t, 4, len(deprecationOf(ended.get(onePet))), "deprecation headers of a 410")
	ended.get("/pets/%FF").wantError(404, "route_not_found")
	ended.get(onePet+"/").wantError(404, "route_not_found")
	ended.put(onePet, object{}).wantError(405, "method_not_allowed")
	ended.do("OPTIONS", onePet, nil).want(http.StatusNoContent)

	// the other operations of the path and the successor still work
	ended.patch(onePet, object{"name": "two"}).want(200)
	ended.get("/pets?id=1").want(200)
	ended.as(p.newKey("reader", auth.Read)).del(onePet).wantError(403, "insufficient_scope")
	ended.del(onePet).want(204)
}
