package httpjson_test

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"petstore/internal/httpjson"
	"petstore/internal/tools/need"
)

// TestCheckPreconditions compares If-Match and If-None-Match with the entity tag "a".
func TestCheckPreconditions(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		method, name, value string
		etag                string
		notModified, failed bool
	}{
		{"GET", "If-None-Match", `"a"`, `"a"`, true, false},
		{"HEAD", "If-None-Match", `"b", W/"a"`, `"a"`, true, false},
		{"GET", "If-None-Match", `*`, httpjson.NoTag, true, false},
		{"GET", "If-None-Match", `""`, httpjson.NoTag, false, false},
		{"POST", "If-None-Match", `*`, httpjson.NoTag, false, true},
		{"POST", "If-Match", `"a"`, httpjson.NoTag, false, true},
		{"PATCH", "If-None-Match", `"a"`, `"a"`, false, true},
		{"PATCH", "If-Match", `"a"`, `"a"`, false, false},
		{"PATCH", "If-Match", `W/"a"`, `"a"`, false, true},
		{"GET", "If-None-Match", strings.Repeat(`"b",`, 1023) + `"a"`, `"a"`, true, false},
		{"GET", "If-None-Match", strings.Repeat(`"b",`, 1024) + `"a"`, `"a"`, false, false},
		{"PATCH", "If-Match", strings.Repeat(",", 4<<10-3) + `"a"`, `"a"`, false, false},
		{"PATCH", "If-Match", strings.Repeat(",", 4<<10-3) + `"a"x`, `"a"`, false, true},
		{"PATCH", "If-Match", `*` + strings.Repeat(" ", 4<<10) + `x`, `"a"`, false, true},
		{"PATCH", "If-Modified-Since", "Sun, 06 Nov 1994 08:49:37 GMT", `"a"`, false, false},
	} {
		r := httptest.NewRequestWithContext(t.Context(), test.method, "/", nil)
		r.Header.Set(test.name, test.value)
		notModified, err := httpjson.CheckPreconditions(r, test.etag)
		failed, is := errors.AsType[*httpjson.Error](err)
		if notModified != test.notModified || is != test.failed {
			t.Errorf("%s %s: %s with the tag %s: not modified %t, error %v", test.method, test.name, test.value, test.etag, notModified, err)
		}
		if is && (failed.Code != httpjson.ErrPreconditionFailed.Code || strings.Contains(failed.Message, "no entity tag") != (test.etag == httpjson.NoTag)) {
			t.Errorf("%s %s: %s with the tag %s: %s, %s", test.method, test.name, test.value, test.etag, failed.Code, failed.Message)
		}
	}
}

// TestEncodeMap: the same map has the same JSON each time.
func TestEncodeMap(t *testing.T) {
	t.Parallel()
	checks, want := map[string]string{}, "{"
	for i := range 26 {
		name := string(rune('a' + i))
		checks[name] = "ok"
		want += fmt.Sprintf("%q:%q,", name, "ok")
	}
	want = strings.TrimSuffix(want, ",") + "}"
	need.Same(t, want, string(need.Value(httpjson.Encode(checks))(t)), "the JSON of a map")
}

// TestEntityTags compares lists with the entity tag "Tag", as If-Match and as If-None-Match do.
func TestEntityTags(t *testing.T) {
	t.Parallel()
	const tag = `"Tag"`
	for field, want := range map[string]struct{ strong, weak bool }{
		`"Tag"`:                    {true, true},
		`*`:                        {true, true},
		` * `:                      {true, true},
		`"Tag", "b"`:               {true, true},
		`"b",W/"x","Tag"`:          {true, true},
		", ,\t\"b\"\t, ,\"Tag\" ,": {true, true},
		`"a, b", "Tag"`:            {true, true},
		`"","Tag"`:                 {true, true},
		`"Tag", x`:                 {true, true}, // the list ends there

		`W/"Tag"`:      {false, true},
		`"b", W/"Tag"`: {false, true},

		`"b"`:      {},
		`W/"b"`:    {},
		`"Ta"`:     {},
		`"Tagx"`:   {},
		`"tAG"`:    {},
		`Tag`:      {},
		`"Tag`:     {},
		`'Tag'`:    {},
		`"Tag"x`:   {},
		`"Tag""b"`: {},
		`x"Tag"`:   {},
		`x, "Tag"`: {},
		`w/"Tag"`:  {},
		`"b", *`:   {},
		`"*"`:      {},
		`""`:       {},
		`,,`:       {},
		`W/`:       {},
		``:         {},
	} {
		check := func(name string) (notModified bool, err error) {
			return httpjson.CheckPreconditions(&http.Request{Method: http.MethodGet, Header: http.Header{name: {field}}}, tag)
		}
		_, err := check("If-Match")
		need.Same(t, want.strong, err == nil, "whether If-Match: %s holds", field)
		notModified, _ := check("If-None-Match")
		need.Same(t, want.weak, notModified, "whether If-None-Match: %s holds a tag", field)
	}
}

// TestNegotiation lists values of headers that mean yes and no.
func TestNegotiation(t *testing.T) {
	t.Parallel()
	const most = 1 << 10 // bytes of a list that count
	prefersStream := func(header http.Header) bool { return httpjson.Prefers(header, "text/event-stream") }
	prefersArchive := func(header http.Header) bool { return httpjson.Prefers(header, "application/har+json") }
	waits := func(header http.Header) bool { return httpjson.PreferredWait(header) > 0 }
	isJSON := func(header http.Header) bool { return httpjson.IsJSON(&http.Request{Header: header}) }
	isPatch := func(header http.Header) bool {
		return httpjson.IsJSON(&http.Request{Method: http.MethodPatch, Header: header})
	}
	for _, test := range []struct {
		name    string
		reads   func(http.Header) bool
		yes, no []string // each line is a field
	}{
		{
			"Accept", httpjson.AcceptsJSON,
			[]string{
				"text/html, application/json", "application/json;q=0.1, */*;q=0", "/", "*", "json", "APPLICATION/JSON", "application/json; charset=utf8",
				"text/html, */*;q=0.1", "text/html;q=1, application/*",
			},
			[]string{
				"application/*;q=0, */*", "text/html", "text/*", "application/problem+json", "*/*;q=0", "application/json;q=0", "application/json;q=NaN, text/html", `text/html;a=", application/json"`,
				"text/event-stream;q=0", "text/event-stream;q=0, text/*", "text/html" + strings.Repeat(",a", most/2) + ",application/json",
			},
		},
		{
			"Accept", prefersStream,
			[]string{
				"text/event-stream", "text/event-stream, application/json", "application/json;q=0.5, text/event-stream", "text/event-stream;q=0.5, */*;q=0.1",
				"text/event-stream, */*", "text/*", "TEXT/*;Q=0.2, */*;q=0.1", "text/*, application/*", "application/json;q=0, */*",
			},
			[]string{
				"application/json, text/event-stream;q=0.1", "application/json, text/event-stream;q=0", "text/*, application/json", "text/*;q=0.5, application/json",
				"text/*, text/event-stream;q=0, */*", "text/event-stream;q=0, */*;q=0.1", `text/html;a="x, y;q=0", */*;q=0.8`, "*/*", "text/event-stream;q=nonsense, */*",
				"text/event-stream;q=0", "text/event-stream;q=0, text/*", "application/json;q=0", "*/*;q=0",
			},
		},
		{
			"Accept", prefersArchive,
			[]string{"application/har+json", "application/har+json, application/*", "application/json;q=0.5, application/*"},
			[]string{"application/*", "application/*, */*;q=0.1", "application/har+json;q=0.5, application/*", "*/*"},
		},
		{
			"Accept-Encoding", httpjson.PrefersGzip,
			[]string{
				"gzip", "GZip", "x-gzip", "br, gzip", "gzip, deflate, br, zstd", "br;q=1.0, gzip;q=0.8, *;q=0.1", "gzip;q=0.001", "gzip ; q=0.5", "gzip;Q=1",
				"*", "*;q=0.5", "identity;q=0, *", "identity;q=0.5, gzip;q=0.5", "identity, gzip", "identity;q=0, gzip;q=0.1", "*;q=0, gzip",
			},
			[]string{
				"", "br", "identity", "gzip;q=0", "*;q=0", "gzip;q=0, *", "gzip;q=0.5, identity", "identity, gzip;q=0.9",
				"gzip;q=0, identity;q=0", // nothing is acceptable: an unencoded response is better than none
				"gzipped", "gzip;q=x", "gzip;q=", "gzip;q", "gzip;q=-1", "gzip;q=2", "gzip;q=NaN", "gzip;level=9", ",;q=1,,",
				strings.Repeat("x;q=0.1,", 5_000), strings.Repeat("a,", most/2) + "gzip",
			},
		},
		{
			"Prefer", httpjson.PrefersCount,
			[]string{
				"count=exact", `count="exact"`, "Count=exact", " COUNT = exact ", "count=exact; foo=bar", `wait=5; a="count=exact,", COUNT = "exact"; x`,
				"respond-async, count=exact, wait=10", "respond-async\ncount=exact", ",, count=exact ,", `foo="a\", b", count=exact`, "count=exact, count=planned",
				strings.Repeat(",", most-len("count=exact")) + "count=exact", strings.Repeat(",", most-len("count=exact")) + "count=exact,a",
			},
			[]string{
				"count=planned, count=exact", "count=planned\ncount=exact", // the first one counts
				"", "count", "count=", "count=exactly", "count=EXACT", "account=exact", "exact", "exact=count", "count=exact x",
				"foo; count=exact", `foo="count=exact"`, `foo="a, count=exact"`, // of another preference
				`foo="a\", count=exact`, // unterminated
				strings.Repeat(",", most-len("count=exact")) + "count=exactly", strings.Repeat(",", most) + "count=exact", "count=exact" + strings.Repeat(" ", most),
			},
		},
		{"Prefer", waits, []string{"wait=99999999999"}, []string{"wait=99999999999x"}},
		{
			"Content-Type", isJSON,
			[]string{
				"application/json", "application/json; charset=utf-8", `Application/JSON;charset="UTF-8"`, "application/json;v=1",
				"application/json;a=" + strings.Repeat("b", most-len("application/json;a=")),
			},
			[]string{
				"", "text/plain", "application/x-www-form-urlencoded", "application/json, text/plain", "application/json\napplication/json", "application/json; charset",
				"application/merge-patch+json", "application/json;a=" + strings.Repeat("b", most),
			},
		},
		{
			"Content-Type", isPatch,
			[]string{"application/json", "application/merge-patch+json", "application/merge-patch+json; charset=utf-8"},
			[]string{"application/json-patch+json"},
		},
	} {
		check := func(value string, want bool) {
			need.Same(t, want, test.reads(http.Header{test.name: strings.Split(value, "\n")}), "%s: %s", test.name, value)
		}
		for _, value := range test.yes {
			check(value, true)
		}
		for _, value := range test.no {
			check(value, false)
		}
	}
}

// TestParams reads valid and invalid parameters and compares all violations.
func TestParams(t *testing.T) {
	t.Parallel()
	path := map[string]string{"petId": "7", "orderId": "07"}
	params := httpjson.ParseParams("limit=201&status=sold&status=available&low=yes&from=2026-12-24T10:30:00%2B01:00&a=%zz&b=1", func(name string) string { return path[name] })
	if id := params.PathID("petId"); id != 7 {
		t.Errorf("petId is %d, want 7", id)
	}
	if from, want := params.Time("from"), time.Date(2026, 12, 24, 9, 30, 0, 0, time.UTC); from == nil || !from.Equal(want) {
		t.Errorf("from is %v, want %v", from, want)
	}
	if diff := cmp.Diff([]string{"available", "sold"}, params.Enums("status", "available", "sold")); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if id := params.ID("none"); id != nil {
		t.Errorf("an absent id is %d", *id)
	}
	params.PathID("orderId")
	params.Integer("limit", 1, 200)
	params.Bool("low")
	checkViolations(t, params.Err(), httpjson.ErrInvalidParameter, []string{"a invalid_format", "orderId invalid_format", "limit out_of_range", "low not_in_enum", "b unknown"})
}

// TestParamsEndAtTheLastViolation: the server reads no parameters after those that fill its response.
func TestParamsEndAtTheLastViolation(t *testing.T) {
	t.Parallel()
	for invalid, want := range map[int]bool{99: true, 100: false} {
		if got := httpjson.ParseParams(strings.Repeat("a=%&", invalid)+"b=1", nil).Has("b"); got != want {
			t.Errorf("after %d invalid parameters: got %t, want %t", invalid, got, want)
		}
	}
}

// TestFieldsAreReadOnce: a method that looks for a field does not read the object again.
func TestFieldsAreReadOnce(t *testing.T) { //nolint:paralleltest // AllocsPerRun counts for the whole process
	in := httpjson.ParseObject([]byte("{" + manyFields(1000) + "}"))
	if got := testing.AllocsPerRun(10, func() { in.Has("none") }); got > 0 {
		t.Errorf("%.0f allocations, want none", got)
	}
}

// TestObject reads valid and invalid fields and compares all violations.
func TestObject(t *testing.T) {
	t.Parallel()
	in := httpjson.ParseObject([]byte(`{"id": 1, "name": " ", "quantity": 1.0, "text": "abc", "clear": null, "other": []}`))
	in.Require("name", "petId")
	in.ReadOnly("id")
	if text := in.Text("text", 1, 3); text == nil || *text != "abc" {
		t.Errorf("text is %v, want abc", text)
	}
	if text, cleared := in.NullableText("clear", 3); text != nil || !cleared {
		t.Errorf("clear is %v, cleared %t", text, cleared)
	}
	in.Name(10)
	in.Integer("quantity", 1, 10)
	in.ID("petId")
	checkViolations(t, in.Err(), httpjson.ErrValidationFailed, []string{"/name blank", "/quantity wrong_type", "/petId required", "/id read_only", "/other unknown_field"})

	if err := httpjson.ParseObject([]byte(`{"a": 1, "a": 1}`)).Err(); httpCode(err) != "invalid_json" {
		t.Errorf("duplicate names: the error is %v, want invalid_json", err)
	}
	if err := httpjson.Failed(errors.ErrUnsupported).Err(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a failed object: the error is %v", err)
	}
	if err := (&httpjson.Object{}).Err(); err != nil {
		t.Errorf("the zero object: the error is %v", err)
	}
}

// TestEnums reads arrays of strings and compares all violations.
func TestEnums(t *testing.T) {
	t.Parallel()
	for body, test := range map[string]struct{ want, violations []string }{
		`{}`:                          {nil, nil},
		`{"x": ["b", "a", "b"]}`:      {[]string{"b", "a"}, nil},
		`{"x": null}`:                 {nil, []string{"/x null_not_allowed"}},
		`{"x": "a"}`:                  {nil, []string{"/x wrong_type"}},
		`{"x": {"0": "a"}}`:           {nil, []string{"/x wrong_type"}},
		`{"x": []}`:                   {nil, []string{"/x too_few"}},
		`{"x": ["a", 1, "c", ["a"]]}`: {nil, []string{"/x/1 wrong_type", "/x/2 not_in_enum", "/x/3 wrong_type"}},
		`{"x": ["\u0061", "\u0000"]}`: {nil, []string{"/x/1 not_in_enum"}},
		`{"x": [` + strings.Repeat(`"a", `, httpjson.MaxValues) + `"a"]}`: {nil, []string{"/x too_many"}},
	} {
		in := httpjson.ParseObject([]byte(body))
		got := in.Enums("x", "a", "b")
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", body, diff)
		}
		if len(test.violations) > 0 {
			checkViolations(t, in.Err(), httpjson.ErrValidationFailed, test.violations)
		} else if err := in.Err(); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// TestObjects reads arrays of objects and compares all violations.
func TestObjects(t *testing.T) {
	t.Parallel()
	read := func(body string) (statuses []int64, err error) {
		in := httpjson.ParseObject([]byte(body))
		for _, item := range in.Objects("x", 3) {
			item.Require("kind")
			kind := item.Enum("kind", "a", "b")
			if kind != nil && *kind == "b" {
				item.Exclude("is only for `a`.", "status")
				continue
			}
			if status := item.IntegerEnum("status", 500, 503); status != nil {
				statuses = append(statuses, *status)
			}
			item.Share("share")
		}
		return statuses, in.Err()
	}
	for _, test := range []struct {
		body string
		want []string
	}{
		{`{"x": {}}`, []string{"/x wrong_type"}},
		{`{"y": []}`, []string{"/y unknown_field"}},
		{`{"x": null}`, []string{"/x null_not_allowed"}},
		{`{"x": [{"kind": "a"}, 1, null]}`, []string{"/x/1 wrong_type", "/x/2 wrong_type"}},
		{`{"x": [{"kind": "a"}, {"kind": "a"}, {"kind": "a"}, 4]}`, []string{"/x too_many"}},
		{`{"x": [{}, {"kind": "c", "a/b": 1}]}`, []string{"/x/0/kind required", "/x/1/kind not_in_enum", "/x/1/a~1b unknown_field"}},
		{`{"x": [{"kind": "a", "status": 501}, {"kind": "a", "status": 504}, {"kind": "a", "status": "500"}]}`, []string{"/x/0/status not_in_enum", "/x/1/status not_in_enum", "/x/2/status wrong_type"}},
		{`{"x": [{"kind": "a", "share": 0}, {"kind": "a", "share": 1.01}, {"kind": "a", "share": "1"}]}`, []string{"/x/0/share out_of_range", "/x/1/share out_of_range", "/x/2/share wrong_type"}},
		{`{"x": [{"kind": "b", "status": 503}, {"kind": "b", "status": null}]}`, []string{"/x/0/status not_allowed", "/x/1/status not_allowed"}},
	} {
		_, err := read(test.body)
		checkViolations(t, err, httpjson.ErrValidationFailed, test.want)
	}
	for _, body := range []string{`{"x": [`, `{"x": [{"kind": "a", "kind": "a"}]}`, `{"x": [{"kind": "a"},]}`} {
		if _, err := read(body); httpCode(err) != "invalid_json" {
			t.Errorf("%s: the error is %v, want invalid_json", body, err)
		}
	}
	for _, body := range []string{`{"x": []}`, `{"x": [{"kind": "a", "share": 1}, {"kind": "a", "share": 1e-9}, {"kind": "b"}]}`} {
		if _, err := read(body); err != nil {
			t.Errorf("%s: the error is %v", body, err)
		}
	}
	statuses, err := read(`{"x": [{"kind": "a", "status": 503}, {"kind": "a", "status": 500}]}`)
	if diff := cmp.Diff([]int64{503, 500}, statuses); diff != "" || err != nil {
		t.Errorf("the statuses (-want +got):\n%s; the error is %v", diff, err)
	}
	if _, err := read(`{"x": [{"kind": "a", ` + manyFields(99) + `}, {"kind": "a", ` + manyFields(99) + `}]}`); violationCount(err) != 100 {
		t.Errorf("%d violations, want 100", violationCount(err))
	}
}

// manyFields returns the text of n different fields.
func manyFields(n int) string {
	fields := make([]string, n)
	for i := range fields {
		fields[i] = fmt.Sprintf(`"x%d": 1`, i)
	}
	return strings.Join(fields, ", ")
}

// violationCount returns the number of violations of an error.
func violationCount(err error) int {
	failure, _ := errors.AsType[*httpjson.Error](err)
	return len(failure.Violations)
}

// checkViolations compares the kind of an error and its violations.
func checkViolations(t *testing.T, err error, kind *httpjson.Error, want []string) {
	t.Helper()
	failure, ok := errors.AsType[*httpjson.Error](err)
	if !ok || failure.Code != kind.Code || failure.Status != kind.Status {
		t.Fatalf("the error is %v, want %v", err, kind)
	}
	var got []string
	for _, one := range failure.Violations {
		where := one.Pointer
		if where == nil {
			where = one.Parameter
		}
		got = append(got, *where+" "+one.Code)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("violations (-want +got):\n%s", diff)
	}
}

// httpCode returns the code of an error, or "" if it is not an [httpjson.Error].
func httpCode(err error) string {
	if failure, ok := errors.AsType[*httpjson.Error](err); ok {
		return failure.Code
	}
	return ""
}

func TestReadBody(t *testing.T) {
	t.Parallel()
	const chunked = "Transfer-Encoding: chunked\r\n\r\n"
	for _, test := range []struct {
		sent, body, code, message string
	}{
		{"Content-Length: 5\r\n\r\n12345", "12345", "", ""},
		{"Content-Length: 6\r\n\r\n123456", "", "body_too_large", "larger than 5 bytes"},
		{"Content-Length: 5\r\n\r\n1234", "", "invalid_json", "ended early"},
		{chunked + "5\r\n1234", "", "invalid_json", "ended early"},
		{chunked + "x\r\n", "", "invalid_json", "chunk"},
	} {
		r := need.Value(http.ReadRequest(bufio.NewReader(strings.NewReader("POST / HTTP/1.1\r\nHost: x\r\n" + test.sent))))(t)
		body, err := httpjson.ReadBody(httptest.NewRecorder(), r, 5)
		failed, _ := errors.AsType[*httpjson.Error](err)
		if string(body) != test.body || httpCode(err) != test.code || failed != nil && !strings.Contains(failed.Message, test.message) {
			t.Errorf("%q: got %q and the error %#v, want %q", test.sent, body, failed, test.code)
		}
	}
}

// TestErrTwice checks that Err returns the same violations each time.
func TestErrTwice(t *testing.T) {
	t.Parallel()
	body := httpjson.ParseObject([]byte(`{"unknown":1,"id":2,"name":3}`))
	body.Require("status")
	body.ReadOnly("id")
	body.Name(10)
	array := httpjson.ParseObject([]byte(`{"x":[{"unknown":1},{}]}`))
	for _, object := range array.Objects("x", 2) {
		object.Require("name")
		object.Name(10)
	}
	params := httpjson.ParseParams("unknown=1&limit=x", nil)
	params.Integer("limit", 1, 10)
	for name, err := range map[string]func() error{"object": body.Err, "array": array.Err, "parameters": params.Err} {
		first, _ := errors.AsType[*httpjson.Error](err())
		second, _ := errors.AsType[*httpjson.Error](err())
		if diff := cmp.Diff(first.Violations, second.Violations); diff != "" || len(first.Violations) < 2 {
			t.Errorf("the violations of the %s (-first +second):\n%s", name, diff)
		}
	}
}

func TestWriteError(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	busy := &httpjson.Error{Status: 429, Code: "busy", Message: "Busy."}
	busy.WithMessage("Wait.").WithRetryAfter(1500*time.Millisecond).Write(w, "r1")
	want := `{"code":"busy","message":"Wait.","status":429,"requestId":"r1"}`
	if w.Code != 429 || w.Body.String() != want || w.Header().Get("Retry-After") != "2" || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("got %d %s with %v, want %s", w.Code, w.Body, w.Header(), want)
	}
	if busy.Message != "Busy." || busy.Header[0] != "" {
		t.Errorf("the original changed: %+v", busy)
	}
}
