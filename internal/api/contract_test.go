package api_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/google/go-cmp/cmp"

	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/gate"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// contract checks every exchange of every test in this package against
// openapi.yaml:
//
//   - A response must have a status, headers and a body that the spec describes,
//     and no other field.
//   - A request that the spec forbids must not succeed.
//   - When all tests have run, each status of each operation must have been seen.
//     The error codes and violation codes seen must be those in the tables.
//   - An error must have an example with its code, and the server must have sent the
//     messages of all examples.
type contract struct {
	document  *openapi3.T         // with strict schemas
	templates map[string][]string // the segments of paths

	mu    sync.Mutex
	seen  map[string]bool // "GET /pets 200"
	long  map[string]bool // "GET /openapi.json 200 " and a long body that was checked
	codes map[string]bool // "429 rate_limited", "body required"
	texts map[string]bool // "pet_not_found The pet does not exist. Check its id."
}

// theContract is loaded once.
var theContract = sync.OnceValue(func() *contract {
	openapi3filter.RegisterBodyDecoder("text/markdown", openapi3filter.PlainBodyDecoder)
	spec, err := api.SpecFor("")
	if err != nil {
		panic(err)
	}
	// RFC 3339, section 5.6, allows lower-case t and z. This library does not.
	openapi3.DefineStringFormatValidator("date-time", openapi3.NewRegexpFormatValidator("(?i)"+openapi3.FormatOfStringDateTime))
	document, err := openapi3.NewLoader().LoadFromData(spec.YAML)
	if err != nil {
		panic(err)
	}
	if err := document.Validate(context.Background(), openapi3.EnableExamplesValidation()); err != nil {
		panic(err)
	}
	makeStrict(document)
	templates := map[string][]string{}
	for _, path := range document.Paths.Keys() {
		templates[path] = strings.Split(path, "/")
	}
	return &contract{document: document, templates: templates, seen: map[string]bool{}, long: map[string]bool{}, codes: map[string]bool{}, texts: map[string]bool{}}
})

// makeStrict narrows the spec to what this version of the server sends: no unknown
// fields, and times in UTC to the microsecond.
func makeStrict(document *openapi3.T) {
	for name, schema := range document.Components.Schemas {
		additional := &schema.Value.AdditionalProperties
		if schema.Value.Type.Is("object") && additional.Schema == nil && name != "OpenAPIDescription" {
			no := false
			additional.Has = &no
		}
	}
	document.Components.Schemas["Time"].Value.Pattern = `^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?Z$`
}

// TestResponseSchemas: clients accept a field that a later version adds to a
// response, and the strict schemas of these tests do not.
func TestResponseSchemas(t *testing.T) {
	t.Parallel()
	spec := need.Value(api.SpecFor(""))(t)
	document := need.Value(openapi3.NewLoader().LoadFromData(spec.YAML))(t)
	examples := 0
	for _, o := range operationsOf(document) {
		for status, response := range o.described.Responses.Map() {
			for mediaType, media := range response.Value.Content {
				if strings.HasPrefix(mediaType, "text/") {
					continue // Markdown, or a stream, whose data is an Event, which the pages use
				}
				schema := media.Schema
				if schema.Value.Type.Is("array") {
					schema = schema.Value.Items
				}
				name := strings.TrimPrefix(schema.Ref, "#/components/schemas/")
				if name == "OpenAPIDescription" {
					continue
				}
				all := slices.Collect(maps.Values(media.Examples))
				if media.Example != nil {
					all = append(all, &openapi3.ExampleRef{Value: &openapi3.Example{Value: media.Example}})
				}
				for _, example := range all {
					value := example.Value.Value
					if list, ok := value.([]any); ok {
						value = list[0]
					}
					fields := maps.Clone(value.(map[string]any))
					fields["fromALaterVersion"] = true
					if err := schema.Value.VisitJSON(fields); err != nil {
						t.Errorf("%s %s %s: a client rejects an additional field: %v", o.method, o.path, status, err)
					}
					if theContract().document.Components.Schemas[name].Value.VisitJSON(fields) == nil {
						t.Errorf("%s %s %s: the strict schema accepts an additional field", o.method, o.path, status)
					}
					examples++
				}
			}
		}
	}
	if examples < 100 {
		t.Errorf("%d examples were tried", examples)
	}
}

// TestErrorsOfNoOperation: the guide to errors has an example of each error that belongs
// to no operation, and the server sends exactly that.
func TestErrorsOfNoOperation(t *testing.T) {
	t.Parallel()
	p := start(t)
	page := string(p.get("/docs/retries.md").want(200).body)
	for _, resp := range []*response{p.get("/nowhere").want(404), p.put("/pets", object{}).want(405)} {
		got := resp.error()
		want := fmt.Sprintf("`{\"code\": %q, \"message\": %q, \"status\": %d, \"requestId\": \"7f3c9d52a1e84b06\"}`", got.Code, got.Message, got.Status)
		need.Contains(t, "the page on retries", page, want)
	}
}

// TestLinks: each create operation links to every operation on the created
// resource, and each link has all parameters that its operation requires.
func TestLinks(t *testing.T) {
	t.Parallel()
	paths := theContract().document.Paths
	required := map[string][]string{} // by operation
	for _, o := range operations() {
		for _, parameter := range slices.Concat(paths.Value(o.path).Parameters, o.described.Parameters) {
			if id := o.described.OperationID; parameter.Value.Required {
				required[id] = append(required[id], parameter.Value.Name)
			}
		}
	}
	for _, names := range required {
		slices.Sort(names)
	}
	var linked, want []string
	for path, item := range paths.Map() {
		for _, operation := range item.Operations() {
			for _, response := range operation.Responses.Map() {
				for _, link := range response.Value.Links {
					to := link.Value.OperationID
					got := slices.Sorted(maps.Keys(link.Value.Parameters))
					need.Same(t, required[to], got,
						"%s: parameters of the link of %s to %s", path, operation.OperationID, to)
				}
			}
		}
		if item.Post == nil || strings.Contains(path, "{") {
			continue
		}
		for _, response := range item.Post.Responses.Map() {
			for _, link := range response.Value.Links {
				linked = append(linked, path+" "+link.Value.OperationID)
			}
		}
		for other, item := range paths.Map() {
			if rest, below := strings.CutPrefix(other, path+"/{"); below && strings.Count(rest, "{") == 0 {
				for _, operation := range item.Operations() {
					want = append(want, path+" "+operation.OperationID)
				}
			}
		}
	}
	want = append(want, "/pets getInventoryItem", "/pets setInventory")
	slices.Sort(linked)
	slices.Sort(want)
	need.Same(t, want, linked, "links")
}

// TestExamplesOfParameters: a client that sends all examples of an operation gets its response at once.
func TestExamplesOfParameters(t *testing.T) {
	t.Parallel()
	p := start(t)
	shop := p.as(p.newSandbox("examples", "shop").Key.Secret)
	for _, o := range operations() {
		if o.method != "GET" || o.public {
			continue
		}
		values, headers := url.Values{}, []string{}
		for _, parameter := range o.described.Parameters {
			example := parameter.Value.Example
			switch {
			case example == nil:
			case parameter.Value.In == "header":
				headers = append(headers, parameter.Value.Name, fmt.Sprint(example))
			default:
				all, list := example.([]any)
				if !list {
					all = []any{example}
				}
				for _, one := range all {
					values.Add(parameter.Value.Name, fmt.Sprint(one))
				}
			}
		}
		target := o.target
		if len(values) > 0 {
			target += "?" + values.Encode()
		}
		resp := shop.do("GET", target, nil, headers...)
		if resp.status != 200 && resp.status != 404 {
			t.Errorf("%s %q: %d %s", target, headers, resp.status, resp.body)
		}
		if used := resp.header.Get("Preference-Applied"); strings.Contains(used, "wait") {
			t.Errorf("%s waits: %s", target, used)
		}
	}
}

func TestMain(m *testing.M) {
	code := pgtest.Run(func() int {
		defer closeShared()
		return m.Run()
	})
	// A partial run sees only some of the responses.
	if whole := flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.fuzz").Value.String() == ""; whole && code == 0 {
		c := theContract()
		for what, missing := range map[string]string{
			"openapi.yaml describes responses that no test has seen":                          strings.Join(c.unseen(), "\n"),
			"codes in the tables of openapi.yaml (-) differ from the codes seen by tests (+)": cmp.Diff(c.describedCodes(), c.codes),
			"openapi.yaml has examples with messages that no test has seen":                   strings.Join(c.unsent(), "\n"),
		} {
			if missing != "" {
				fmt.Fprintf(os.Stderr, "%s:\n%s\n", what, missing)
				code = 1
			}
		}
	}
	if code == 0 && !checkShare() {
		fmt.Fprintf(os.Stderr, "the standby served too few reads, want %.0f%%\n", 100*leastShare)
		code = 1
	}
	os.Exit(code)
}

// TestRoutesAsDescribed compares the routes of the server, with their attributes, with the
// operations of the spec.
func TestRoutesAsDescribed(t *testing.T) {
	t.Parallel()
	described := map[string]gate.Route{}
	for _, o := range operations() {
		described[o.method+" "+o.path] = routeOf(o.method, o.path, o.described)
	}
	routed := map[string]gate.Route{}
	for _, route := range start(t).server.Routes() {
		route.Handle = nil
		route.Attributes &^= gate.AllNodes // about the database
		routed[route.Method+" "+route.Path] = route
	}
	need.Same(t, described, routed, "routes (want: openapi.yaml, got: server)")
}

// TestErrorOfConsistency: only reads use the preference consistency, so only they have its error.
func TestErrorOfConsistency(t *testing.T) {
	t.Parallel()
	for _, o := range operations() {
		has := hasExample(o.described.Responses.Status(http.StatusBadRequest), "invalid_consistency")
		if want := o.method == http.MethodGet; !o.public && has != want {
			t.Errorf("%s %s: the spec has invalid_consistency: %t, want %t", o.method, o.path, has, want)
		}
	}
}

var (
	scopeInText = regexp.MustCompile("(?i)needs\\s+the\\s+scope\\s+`([a-z]+)`")
	costInText  = regexp.MustCompile(`ten\s+requests\s+of\s+the\s+rate\s+limits`)
)

// routeOf returns the route of an operation, without a handler.
func routeOf(method, path string, operation *openapi3.Operation) gate.Route {
	route := gate.Route{Method: method, Path: path, Operation: operation.OperationID}
	if operation.Security == nil { // otherwise it needs no key
		route.Scope, _ = auth.ParseScope(scopeInText.FindStringSubmatch(operation.Description)[1])
	}
	prefer := ""
	if parameter := operation.Parameters.GetByInAndName("header", "Prefer"); parameter != nil {
		prefer = parameter.Description
	}
	body := operation.RequestBody
	returns := func(mediaType string) bool {
		ok := operation.Responses.Status(http.StatusOK)
		return ok != nil && ok.Value.Content.Get(mediaType) != nil
	}
	for attribute, has := range map[gate.Attributes]bool{
		gate.Body:         body != nil,
		gate.OptionalBody: body != nil && !body.Value.Required,
		gate.Counted:      strings.Contains(prefer, "count=exact"),
		gate.Expensive:    costInText.MatchString(operation.Description),
		gate.Waits:        strings.Contains(prefer, "`wait`"),
		gate.Streams:      returns("text/event-stream"),
		gate.Archives:     returns("application/har+json"),
		gate.Markdown:     returns("text/markdown"),
		gate.NoFaults:     strings.HasPrefix(path, sandboxesPath) || strings.HasPrefix(path, samplesPath), // as FaultRuleInput says
		gate.Probe:        path == "/livez" || path == "/readyz",
		gate.NoRecord:     strings.HasPrefix(path, recordPath) || path == reportPath,
	} {
		if has {
			route.Attributes |= attribute
		}
	}
	if operation.Deprecated {
		text := func(name string) string { return operation.Extensions["x-deprecated-"+name].(string) }
		route.Deprecated = &gate.Deprecation{
			Since: text("since"), Sunset: text("sunset"), Docs: "/docs/reference/" + operation.Tags[0] + "#" + operation.OperationID, Successor: text("successor"),
		}
	}
	return route
}

// recordPath is the path of the record of a sandbox.
const recordPath = sandboxesPath + "/{sandboxId}/requests"

const reportPath = sandboxesPath + "/{sandboxId}/report"

// unseen lists the operations and statuses that no exchange had.
func (c *contract) unseen() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var missing []string
	for _, o := range operationsOf(c.document) {
		for status := range o.described.Responses.Map() {
			if exchange := o.method + " " + o.path + " " + status; !c.seen[exchange] {
				missing = append(missing, exchange)
			}
		}
	}
	slices.Sort(missing)
	return missing
}

// unsent lists the messages in examples of errors that no response had.
func (c *contract) unsent() (missing []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, described := range c.document.Components.Responses {
		media := described.Value.Content.Get("application/json")
		if media == nil || media.Schema.Ref != "#/components/schemas/Error" {
			continue
		}
		for _, example := range media.Examples {
			for _, text := range textsOf(example.Value.Value) {
				if !c.texts[text] {
					missing = append(missing, text)
				}
			}
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}

// textsOf lists the messages of an example of an Error, each after its code.
func textsOf(example any) (texts []string) {
	fields, _ := example.(map[string]any)
	violations, _ := fields["errors"].([]any)
	for _, violation := range violations {
		texts = append(texts, textsOf(violation)...)
	}
	return append(texts, textOf(fields["code"], fields["message"]))
}

// eventInText is the id of an event that a message is about.
var eventInText = regexp.MustCompile(` evt_\w+`)

// textOf returns a message after its code, without the ids of events.
func textOf(code, message any) string {
	return eventInText.ReplaceAllString(fmt.Sprintf("%v %v", code, message), " evt_")
}

// tableCell is a cell of a Markdown table, with the end of the cell before.
var tableCell = regexp.MustCompile(`\| ([^|]+) `)

// describedCodes reads the tables of codes in the form of contract.codes.
func (c *contract) describedCodes() map[string]bool {
	described := c.describedErrors()
	for _, row := range c.codeTable("Violation") {
		for place := range strings.SplitSeq(row[1], ", ") {
			described[place+" "+row[0]] = true
		}
	}
	return described
}

// describedErrors reads the table of errors, such as "404 pet_not_found".
func (c *contract) describedErrors() map[string]bool {
	described := map[string]bool{}
	for _, row := range c.codeTable("Error") {
		for code := range strings.FieldsSeq(row[1]) {
			described[row[0]+" "+code] = true
		}
	}
	return described
}

// codeTable returns the cells of the table of the codes of a schema.
func (c *contract) codeTable(schema string) (rows [][]string) {
	for line := range strings.Lines(c.document.Components.Schemas[schema].Value.Properties["code"].Value.Description) {
		if strings.Contains(line, "`") && strings.HasPrefix(line, "|") {
			var row []string
			for _, cell := range tableCell.FindAllStringSubmatch(line, -1) {
				row = append(row, strings.ReplaceAll(cell[1], "`", ""))
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// recordCodes records the codes and messages of an Error, and returns its code.
func (c *contract) recordCodes(t testing.TB, text []byte) string {
	t.Helper()
	var body errorBody
	if err := json.Unmarshal(text, &body); err != nil {
		t.Errorf("%v: %s", err, text)
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.codes[fmt.Sprintf("%d %s", body.Status, body.Code)] = true
	c.texts[textOf(body.Code, body.Message)] = true
	for _, v := range body.Errors {
		c.texts[textOf(v.Code, v.Message)] = true
		switch {
		case v.Pointer != nil:
			c.codes["body "+v.Code] = true
		case v.Parameter != nil:
			c.codes["parameter "+v.Code] = true
		default:
			c.codes["header "+v.Code] = true
		}
	}
	return body.Code
}

// ofHTTP lists response header fields that the spec does not declare per operation:
// the headers of HTTP and CORS, and the headers that its text describes.
var ofHTTP = []string{"Date", "Content-Length", "Content-Type", "Access-Control-Allow-Origin", "Access-Control-Expose-Headers", "X-Content-Type-Options"}

// undescribed lists the header fields of a response that the spec does not declare.
func undescribed(operation *openapi3.Operation, response *http.Response) []string {
	described := operation.Responses.Status(response.StatusCode)
	if described == nil {
		return nil // reported as an undescribed response
	}
	var names []string
	for name := range described.Value.Headers {
		names = append(names, http.CanonicalHeaderKey(name))
	}
	var fields []string
	for name, values := range response.Header {
		// Vary: Origin is on every response.
		if !slices.Contains(names, name) && !slices.Contains(ofHTTP, name) && !(name == "Vary" && slices.Equal(values, []string{"Origin"})) {
			fields = append(fields, name)
		}
	}
	return fields
}

// hasExample reports whether a response has an example of an Error with this code.
func hasExample(described *openapi3.ResponseRef, code string) bool {
	if described == nil {
		return true // reported as an undescribed response
	}
	if code == "route_not_found" || code == "injected_fault" {
		return true // of no operation: the guides describe them
	}
	for _, example := range described.Value.Content.Get("application/json").Examples {
		if fields, _ := example.Value.Value.(map[string]any); fields["code"] == code {
			return true
		}
	}
	return false
}

// check compares one exchange with the spec. The bodies are those sent and
// received. The second is nil if it is a stream.
func (c *contract) check(t testing.TB, request *http.Request, requestBody []byte, response *http.Response, responseBody []byte) {
	t.Helper()
	code := ""
	if response.StatusCode >= 400 && request.Method != http.MethodHead {
		code = c.recordCodes(t, responseBody)
	}
	route, pathParams := c.find(request)
	if route == nil {
		return // not an operation: 404, 405, HEAD or OPTIONS
	}
	exchange := fmt.Sprintf("%s %s %d", route.Method, route.Path, response.StatusCode)
	c.mu.Lock()
	c.seen[exchange] = true
	c.mu.Unlock()

	options := &openapi3filter.Options{
		IncludeResponseStatus: true,
		MultiError:            true,
		SkipSettingDefaults:   true,
		AuthenticationFunc:    openapi3filter.NoopAuthenticationFunc,
	}
	again := request.Clone(t.Context())
	again.Body = io.NopCloser(bytes.NewReader(requestBody))
	input := &openapi3filter.RequestValidationInput{Request: again, PathParams: pathParams, Route: route, Options: options}
	if response.StatusCode < 300 {
		if err := openapi3filter.ValidateRequest(t.Context(), input); err != nil {
			t.Errorf("%s %s: %d for a request that openapi.yaml forbids: %v", request.Method, request.URL, response.StatusCode, err)
		}
	}
	for _, name := range undescribed(route.Operation, response) {
		t.Errorf("%s %s: %d with the header %s, which openapi.yaml does not describe", request.Method, request.URL, response.StatusCode, name)
	}
	if code != "" && !hasExample(route.Operation.Responses.Status(response.StatusCode), code) {
		t.Errorf("%s %s: %d %s, of which openapi.yaml has no example", request.Method, request.URL, response.StatusCode, code)
	}
	output := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input,
		Status:                 response.StatusCode,
		Header:                 response.Header,
		Options:                options,
	}
	if response.StatusCode == http.StatusNotModified { // ValidateResponse ignores this status
		operation, as := *route.Operation, *route
		operation.Responses = openapi3.NewResponses(openapi3.WithStatus(http.StatusOK, operation.Responses.Status(response.StatusCode)))
		as.Operation, input.Route, output.Status = &operation, &as, http.StatusOK
	}
	output.SetBodyBytes(responseBody)
	options.ExcludeResponseBody = responseBody == nil || c.knows(exchange, responseBody)
	if err := openapi3filter.ValidateResponse(t.Context(), output); err != nil {
		t.Errorf("%s %s: openapi.yaml does not describe the response: %v\n%d %s", request.Method, request.URL, err, response.StatusCode, responseBody)
	}
}

// knows reports whether the body is a long one that this exchange had before: a document, which
// takes longer to check than all other responses of most tests.
func (c *contract) knows(exchange string, body []byte) bool {
	const length = 100 << 10
	if len(body) < length {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := fmt.Sprintf("%s %x", exchange, sha256.Sum256(body))
	known := c.long[key]
	c.long[key] = true
	return known
}

// find returns the operation of a request, or nil.
func (c *contract) find(request *http.Request) (*routers.Route, map[string]string) {
	segments := strings.Split(request.URL.EscapedPath(), "/")
	var found *routers.Route
	var params map[string]string
	for path, template := range c.templates {
		if len(template) != len(segments) {
			continue
		}
		matched, values := true, map[string]string{}
		for i, part := range template {
			if name, isParam := strings.CutPrefix(part, "{"); isParam && segments[i] != "" {
				values[strings.TrimSuffix(name, "}")] = segments[i]
			} else if part != segments[i] {
				matched = false
			}
		}
		if matched && (found == nil || len(values) < len(params)) { // the literal path wins
			item := c.document.Paths.Value(path)
			found, params = &routers.Route{Spec: c.document, Path: path, PathItem: item, Method: request.Method, Operation: item.GetOperation(request.Method)}, values
		}
	}
	if found == nil || found.Operation == nil {
		return nil, nil
	}
	return found, params
}
