package api_test

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"petstore/internal/auth"
	"petstore/internal/tools/need"
)

// wantViolations fails the test unless the response lists exactly these violations,
// such as "/name required" or "limit out_of_range", in any order.
func (r *response) wantViolations(code string, want ...string) {
	r.t.Helper()
	r.wantError(400, code)
	got := r.violations()
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		r.t.Errorf("%s: violations (-want +got):\n%s%s", r.what, diff, r.body)
	}
}

// nested returns a JSON object of this depth; the outermost object has depth 1.
func nested(depth int) string {
	return `{"x":` + strings.Repeat("[", depth-1) + strings.Repeat("]", depth-1) + `}`
}

// padded returns a body of this many bytes that creates a category.
func padded(name string, size int) []byte {
	body := fmt.Appendf(nil, `{"name":%q}`, name)
	return append(body, bytes.Repeat([]byte(" "), size-len(body))...)
}

// TestInvalidJSON: no operation takes a body that is not valid JSON, and none has an effect. FuzzParseObject has more bodies.
func TestInvalidJSON(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, o := range operations() {
		if o.described.RequestBody == nil {
			continue
		}
		for what, body := range map[string]string{
			"white space only":            " \n",
			"unterminated object":         `{"name":"x"`,
			"two values":                  `{} {}`,
			"trailing NUL":                "{}\x00",
			"duplicate fields":            `{"name":"x","name":"x"}`,
			"duplicate by escape":         `{"name":"x","n\u0061me":"y"}`,
			"byte order mark":             "\xEF\xBB\xBF{}",
			"invalid UTF-8":               "{\"name\":\"\xFF\"}",
			"lone surrogate":              `{"name":"\uD800"}`,
			"surrogates swapped":          `{"name":"\ude00\ud83d"}`,
			"lone surrogate in an object": `{"name":"x","description":["\udc00"]}`,
			"depth 33":                    nested(33),
			"unbounded depth":             strings.Repeat("[", maxBodyBytes),
		} {
			t.Run(o.method+" "+o.path+" "+what, func(t *testing.T) {
				p.in(t).do(o.method, filled(o.path, "1"), body).wantError(400, "invalid_json")
			})
		}
		p.do(o.method, filled(o.path, "1"), "null").wantViolations("validation_failed", " wrong_type")
	}
	need.Same(t, "The body is empty. Send a JSON object.", p.post("/categories", "").wantError(400, "invalid_json").error().Message,
		"the message for an empty body")
	need.Same(t, "The body is not valid JSON: at byte 12, a field that the object already has. Correct the body.",
		p.post("/categories", `{"name":"x","name":"x"}`).wantError(400, "invalid_json").error().Message, "the message for a duplicate field")
	need.Same(t, "[]", string(p.get("/categories").want(200).body), "categories that were created all the same")
}

func TestDepth32IsRead(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.post("/categories", nested(32)).wantViolations("validation_failed", "/name required", "/x unknown_field")
	// brackets in a string do not nest
	p.post("/categories", object{"name": strings.Repeat(`["{\`, 50)}).want(201)
}

// TestBodySize: a body of exactly the limit is accepted and one byte more is
// rejected, with and without Content-Length.
func TestBodySize(t *testing.T) {
	t.Parallel()
	p := start(t)
	chunked := func(body []byte) *response {
		t.Helper()
		return p.sent(p.request(t.Context(), "POST", "/categories", io.MultiReader(bytes.NewReader(body))), body)
	}
	p.post("/categories", padded("with length", maxBodyBytes)).want(201)
	chunked(padded("no length", maxBodyBytes)).want(201)
	p.post("/categories", padded("length, too large", maxBodyBytes+1)).wantError(413, "body_too_large")
	chunked(padded("no length, too large", maxBodyBytes+1)).wantError(413, "body_too_large")
	need.Same(t, 2, len(decode[[]category](p.get("/categories").want(200))), "categories")
}

// TestViolations: the response lists every violation of a body, with its place. TestFields has each field alone.
func TestViolations(t *testing.T) {
	t.Parallel()
	p := start(t)
	home := p.newCategory("home")
	onePet := fmt.Sprintf("/pets/%d", p.newPet("one", 0))
	for _, test := range []struct {
		what, method, target string
		body                 any
		want                 []string
	}{
		{"unknown field with null", "POST", "/categories", `{"name":"x","colour":null}`, []string{"/colour unknown_field"}},
		{"wrong case", "POST", "/pets", object{"Name": "x", "categoryid": home}, []string{"/Name unknown_field", "/categoryid unknown_field", "/name required", "/categoryId required"}},
		{"wrong case next to the right one", "POST", "/categories", `{"name":"x","NAME":"y"}`, []string{"/NAME unknown_field"}},
		{"escaped pointers", "POST", "/categories", `{"name":"x","a/b":1,"m~n":1,"~1":1,"a b\"":1,"é":1}`, []string{"/a~1b unknown_field", "/m~0n unknown_field", "/~01 unknown_field", `/a b" unknown_field`, "/é unknown_field"}},
		{"a prototype", "POST", "/categories", `{"name":"x","__proto__":{"admin":true},"constructor":1}`, []string{"/__proto__ unknown_field", "/constructor unknown_field"}},
		{"name of 201 code points in fewer characters", "PATCH", onePet, object{"name": strings.Repeat("e\u0301", 100) + "x"}, []string{"/name too_long"}},
		{"white space that is a control character", "PATCH", onePet, object{"name": "\t"}, []string{"/name blank", "/name invalid_characters"}},
		{"U+0000 in a field name", "PATCH", onePet, `{"\u0000":1}`, []string{"/\x00 unknown_field"}},
		{
			"all at once", "POST", "/pets", `{"id":1,"name":" ","categoryId":1.0,"status":"lost","colour":"red","Name":"x"}`,
			[]string{"/id read_only", "/name blank", "/categoryId wrong_type", "/status not_in_enum", "/colour unknown_field", "/Name unknown_field"},
		},
	} {
		t.Run(test.what, func(t *testing.T) {
			p.in(t).do(test.method, test.target, test.body).wantViolations("validation_failed", test.want...)
		})
	}
	resp := p.post("/store/orders", object{"petId": 1, "complete": true})
	resp.wantViolations("validation_failed", "/complete read_only") // a client sets it with PATCH
	need.Same(t, "`complete` is read-only in this operation. Remove it.", resp.error().Errors[0].Message, "the message for a read-only field")
	need.Same(t, 2, len(decode[[]category](p.get("/categories").want(200))), "categories, as before")
}

// TestManyViolations: the response stays small, however many violations there are.
func TestManyViolations(t *testing.T) {
	t.Parallel()
	p := start(t)
	var body strings.Builder
	body.WriteString(`{"name":"x"`)
	for i := range 2000 {
		fmt.Fprintf(&body, `,"unknown field %d":1`, i)
	}
	resp := p.post("/categories", body.String()+"}").wantError(400, "validation_failed")
	need.Same(t, 100, len(resp.violations()), "listed violations")
	p.post("/categories", `{"name":"x","`+strings.Repeat("long ", 10_000)+`":1}`).wantViolations("validation_failed", " unknown_field")
}

// TestLongestValues: limits count code points and are inclusive.
func TestLongestValues(t *testing.T) {
	t.Parallel()
	p := start(t)
	home := p.newCategory("home")
	for _, one := range []string{"n", "é", "漢", "🐶"} {
		name := strings.Repeat(one, 200)
		p.post("/categories", object{"name": name, "description": strings.Repeat(one, 2000)}).want(201)
		created := decode[pet](p.post("/pets", object{"name": name, "categoryId": home}).want(201))
		need.Same(t, name, created.Name, "the returned name")
		need.Same(t, 1, len(walk[pet](p, "/pets"+query("name", name, "sort", "-name"))),
			"pets that their own name finds")
		text := strings.Repeat(one, 4000)
		sent := decode[message](p.post("/messages", object{"message": text}).want(202))
		need.Same(t, text, sent.Message, "the returned message")
	}
	p.post("/categories", object{"name": "a", "description": ""}).want(201)
	p.post("/pets", object{"name": "a", "categoryId": int64(math.MaxInt64)}).wantError(422, "unknown_category")
	p.patch(fmt.Sprintf("/pets/%d", p.newPet("b", 0)), object{"categoryId": int64(math.MaxInt64)}).wantError(422, "unknown_category")
}

// TestContentType: TestNegotiation has more values, and TestEveryOperationRejects sends one to each operation.
func TestContentType(t *testing.T) {
	t.Parallel()
	p := start(t)
	onePet := fmt.Sprintf("/pets/%d", p.newPet("one", 0))
	mergePatch := []string{"Content-Type", "application/merge-patch+json"}
	p.do("PATCH", onePet, `{}`, mergePatch...).want(200)
	for _, header := range [][]string{mergePatch, {"Content-Type", ""}, {"Content-Encoding", "identity"}} {
		p.do("POST", "/categories", `{"name":"x"}`, header...).wantError(400, "unsupported_content_type")
	}
	// without a body to read, the server ignores its type
	p.do("DELETE", onePet, nil, "Content-Type", "text/plain", "Content-Encoding", "gzip").want(204)
}

// TestAccept: TestNegotiation has the values that exclude JSON, and TestEveryOperationRejects sends one to each operation.
func TestAccept(t *testing.T) {
	t.Parallel()
	p := start(t)
	// errors are JSON regardless, and health and the spec ignore Accept
	p.as("").do("GET", "/pets", nil, "Accept", "text/html").wantError(401, "missing_api_key")
	for _, target := range []string{"/livez", "/readyz", "/openapi.json", "/openapi-3.1.json", "/openapi.yaml"} {
		p.do("GET", target, nil, "Accept", "image/png").want(200)
	}
}

// TestQueryParameters: the response lists every violation of a query. TestParameters has each parameter alone.
func TestQueryParameters(t *testing.T) {
	t.Parallel()
	p := start(t)
	long := strings.Repeat("x", 300)
	for _, test := range []struct {
		target string
		want   []string
	}{
		{"/pets?colour", []string{"colour unknown"}},
		{"/pets?=1", []string{" unknown"}}, // a parameter with an empty name
		{"/pets?Limit=1", []string{"Limit unknown"}},
		{"/pets?limit[]=1", []string{"limit[] unknown"}},
		{"/pets?" + long + "=1", []string{long[:200] + " unknown"}},
		{"/pets?a=1&b=2&limit=0", []string{"a unknown", "b unknown", "limit out_of_range"}},
		{"/categories/1?x=%FF", []string{"x invalid_format"}},

		{"/pets?sort=&name=&status=&categoryId=&id=", []string{"sort empty", "name empty", "status empty", "categoryId empty", "id empty"}},
		{"/pets?status=sold&status=", []string{"status empty"}},

		{"/pets?status=sold&status=lost", []string{"status not_in_enum"}},

		{"/pets?name=a&sort=id", []string{"sort not_in_enum"}},
		{"/pets?name=a&sort=-id&status=sold&categoryId=1", []string{"sort not_in_enum"}},
		{"/pets?name=a&sort=-id&id=1&id=2", []string{"sort not_in_enum"}},
		{"/categories?name=a&sort=-id", []string{"sort not_in_enum"}},
		{"/store/orders?shipDateFrom=2026-01-01T00:00:00Z&sort=id", []string{"sort not_in_enum"}},
		{"/store/orders?shipDateTo=2026-01-01T00:00:00Z&sort=-id", []string{"sort not_in_enum"}},
		{"/store/orders?sort=shipDate", []string{"sort not_in_enum"}},
		{"/store/orders?petId=1&complete=true&sort=-shipDate", []string{"sort not_in_enum"}},
		{"/store/orders?shipDateTo=tomorrow&sort=shipDate", []string{"shipDateTo invalid_format"}},

		{"/pets?name=%", []string{"name invalid_format"}},
		{"/pets?%GG=1", []string{"%GG invalid_format"}},
		{"/pets?name=%C0%80", []string{"name invalid_format"}},
		{"/pets?%FF=1", []string{"%FF invalid_format"}},
		{"/pets?limit=1;sort=id", []string{"limit invalid_format"}},
		{"/pets?%00=1", []string{"%00 invalid_characters"}},
		{"/pets?a;b=1", []string{"a;b invalid_format"}},
		{"/pets?colour=%FF", []string{"colour invalid_format"}},
		{"/pets?limit=1&", []string{" empty"}},
		{"/pets?&limit=1", []string{" empty"}},
		{"/pets?&&limit=1&&name=a&x=1&", []string{" empty", "x unknown"}},
		{"/pets?&", []string{" empty"}},
		{"/pets?=", []string{" unknown"}},
		{"/pets?=%FF", []string{" invalid_format"}},
	} {
		t.Run(test.target, func(t *testing.T) {
			p.in(t).get(test.target).wantViolations("invalid_parameter", test.want...)
		})
	}
	for target, want := range map[string]string{
		"/pets?name=%FF":               "`name` must be percent-encoded UTF-8.",
		"/pets?name=%00":               "`name` must not contain U+0000.",
		"/pets?name=a;b":               "`name` must not contain a semicolon. Write it as %3B.",
		"/pets?a;b=1":                  "The name of the parameter must not contain a semicolon. Write it as %3B.",
		"/pets?limit=1&":               "The query has an empty parameter. Remove the & at its start or end, or one of two in a row.",
		"/pets?name=a&sort=id":         "`sort` must be one of `name`, `-name` in a list with the filter `name`.",
		"/pets?sort=colour":            "`sort` must be one of `id`, `-id`, `name`, `-name` in a list without the filter `name`.",
		"/store/orders?sort=-shipDate": "`sort` must be one of `id`, `-id` in a list without the filter `shipDateFrom` or `shipDateTo`.",
		"/store/orders?shipDateTo=2026-01-01T00:00:00Z&sort=id": "`sort` must be one of `shipDate`, `-shipDate` in a list with the filter `shipDateFrom` or `shipDateTo`.",
		"/store/orders?shipDateTo=2026-01-01T00:00:00+02:00":    "`shipDateTo` must have `%2B` instead of `+`, which means a space in a query.",
		"/store/orders?shipDateFrom=2016-12-31T23:59:60Z":       "`shipDateFrom` must not have the second 60, because leap seconds are not supported.",
	} {
		need.Same(t, want, p.get(target).want(400).error().Errors[0].Message, "the message of GET %s", target)
	}
	for _, target := range []string{"/pets?", "/pets?limit=200", "/pets?%6Cimit=1", "/pets?name=%3B", "/pets?name=a+b", "/livez?x=%FF", "/readyz?x", "/openapi.json?limit=0", "/openapi-3.1.json?a", "/openapi.yaml?a&a"} {
		p.get(target).want(200)
	}
	// violations of the path and the query are listed together, for writes too
	p.get("/pets/0?x=1").wantViolations("invalid_parameter", "petId out_of_range", "x unknown")
	p.post("/pets?expand=1", `{}`).wantViolations("invalid_parameter", "expand unknown")
	p.patch("/categories/x?dry-run", `{}`).wantViolations("invalid_parameter", "categoryId invalid_format", "dry-run unknown")
	p.del("/store/orders/-?force=true").wantViolations("invalid_parameter", "orderId invalid_format", "force unknown")
}

// TestOrderOfChecks: a request with every error gets the first one in the order of the API reference.
// Each step fixes that one and leaves the rest. Checks that need another server or header have tests of
// their own: 410 in TestSunset, 429 in TestLimitsInTheOrderOfChecks, 412 in
// TestIfMatchInTheOrderOfChecks, and Idempotency-Key in TestReplayInTheOrderOfChecks.
func TestOrderOfChecks(t *testing.T) {
	t.Parallel()
	p := start(t)
	const absent = int64(1) << 40
	home := p.newCategory("home")
	sold := decode[pet](p.post("/pets", object{"name": "sold", "categoryId": home, "status": "sold"}).want(201)).ID
	soldPath := fmt.Sprintf("/pets/%d", sold)
	absentPath := fmt.Sprintf("/pets/%d", absent)
	reader := p.newKey("tester", auth.Read)

	tooLarge := `{"name":"` + strings.Repeat("x", maxBodyBytes)
	notJSON := `{"colour":1,`
	invalid := object{"colour": 1, "categoryId": absent, "status": "pending"}
	unknown := object{"categoryId": absent, "status": "pending"}
	conflicting := object{"status": "pending"}

	for _, step := range []struct {
		method, target           string
		key, accept, contentType string
		body                     any
		status                   int
		code                     string
	}{
		{"PATCH", "/pets/0/x?x", "", "text/html", "text/plain", tooLarge, 404, "route_not_found"},
		{"PUT", "/pets/0?x", "", "text/html", "text/plain", tooLarge, 405, "method_not_allowed"},
		{"PATCH", "/pets/0?x", "", "text/html", "text/plain", tooLarge, 401, "missing_api_key"},
		{"PATCH", "/pets/0?x", "petstore_", "text/html", "text/plain", tooLarge, 401, "invalid_api_key"},
		{"PATCH", "/pets/0?x", reader, "text/html", "text/plain", tooLarge, 403, "insufficient_scope"},
		{"PATCH", "/pets/0?x", p.key, "text/html", "text/plain", tooLarge, 406, "not_acceptable"},
		{"PATCH", "/pets/0?x", p.key, "*/*", "text/plain", tooLarge, 400, "unsupported_content_type"},
		{"PATCH", "/pets/0?x", p.key, "*/*", "application/json", tooLarge, 400, "invalid_parameter"},
		{"PATCH", absentPath + "?x", p.key, "*/*", "application/json", tooLarge, 400, "invalid_parameter"},
		{"PATCH", "/pets/0", p.key, "*/*", "application/json", tooLarge, 400, "invalid_parameter"},
		{"PATCH", absentPath, p.key, "*/*", "application/json", tooLarge, 413, "body_too_large"},
		{"PATCH", absentPath, p.key, "*/*", "application/json", notJSON, 400, "invalid_json"},
		{"PATCH", absentPath, p.key, "*/*", "application/json", invalid, 400, "validation_failed"},
		{"PATCH", absentPath, p.key, "*/*", "application/json", unknown, 404, "pet_not_found"},
		{"PATCH", soldPath, p.key, "*/*", "application/json", unknown, 422, "unknown_category"},
		{"PATCH", soldPath, p.key, "*/*", "application/json", conflicting, 409, "invalid_transition"},
		{"PATCH", soldPath, p.key, "*/*", "application/json", object{}, 200, ""},

		{"GET", "/pets?limit=0&cursor=x", p.key, "text/html", "", nil, 406, "not_acceptable"},
		{"GET", "/pets?limit=0&cursor=x", p.key, "", "", nil, 400, "invalid_parameter"},
		{"GET", "/pets?limit=1&cursor=x", p.key, "", "", nil, 400, "invalid_cursor"},

		{"POST", "/store/orders", p.key, "", "", object{"petId": absent, "quantity": 0}, 400, "validation_failed"},
		{"POST", "/store/orders", p.key, "", "", object{"petId": absent, "quantity": 5}, 422, "unknown_pet"},
		{"POST", "/store/orders", p.key, "", "", object{"petId": sold, "quantity": 5}, 409, "pet_not_available"},
	} {
		header := []string{"Accept", step.accept}
		if step.contentType != "" {
			header = append(header, "Content-Type", step.contentType)
		}
		resp := p.as(step.key).do(step.method, step.target, step.body, header...)
		if step.code == "" {
			resp.want(step.status)
		} else {
			resp.wantError(step.status, step.code)
		}
	}
}

// TestMalformedPaths: a path whose parameter is not UTF-8, or has U+0000, names nothing,
// whatever the operation and before its API key is checked.
func TestMalformedPaths(t *testing.T) {
	t.Parallel()
	p := start(t)
	tried := 0
	for _, o := range operations() {
		for _, parameter := range pathParameter.FindAllString(o.path, -1) {
			for _, value := range []string{"%ff", "%00", "1%00", "%C0%AF", "%ED%A0%80"} {
				target := strings.Replace(o.path, parameter, value, 1)
				p.as("").do(o.method, withIDs(t, target, absentIDs), nil).wantError(404, "route_not_found")
				tried++
			}
		}
	}
	p.do("PUT", "/pets/%ff", object{}).wantError(404, "route_not_found") // not 405
	if tried < 100 {
		t.Errorf("%d requests were tried", tried)
	}
}
