package api_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"petstore/internal/api"
)

// The contract is openapi.yaml, to which every exchange of every test in this
// package is held:
//
//   - an answer must have a status, headers and a body that the document describes,
//     and no member that it does not;
//   - a request that the document forbids must not succeed;
//   - when all tests have run, each status of each operation must have been seen.
type contract struct {
	document *openapi3.T // its schemas closed

	mu   sync.Mutex
	seen map[string]bool // "GET /pets 200"
}

// theContract is read once.
var theContract = sync.OnceValue(func() *contract {
	yaml, _, err := api.Description("")
	if err != nil {
		panic(err)
	}
	document, err := openapi3.NewLoader().LoadFromData(yaml)
	if err != nil {
		panic(err)
	}
	if err := document.Validate(context.Background(), openapi3.EnableExamplesValidation()); err != nil {
		panic(err)
	}
	for _, schema := range document.Components.Schemas {
		closeSchema(schema.Value)
	}
	return &contract{document: document, seen: map[string]bool{}}
})

// closeSchema forbids members that an object's schema does not name.
func closeSchema(schema *openapi3.Schema) {
	additional := &schema.AdditionalProperties
	if schema.Type.Is("object") && additional.Has == nil && additional.Schema == nil {
		no := false
		additional.Has = &no
	}
}

func TestMain(m *testing.M) {
	code := m.Run()
	// A run of some tests sees some answers only.
	if whole := flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.fuzz").Value.String() == ""; whole && code == 0 {
		if missing := theContract().unseen(); len(missing) > 0 {
			fmt.Fprintf(os.Stderr, "openapi.yaml describes what no test has seen:\n\t%s\n", strings.Join(missing, "\n\t"))
			code = 1
		}
	}
	os.Exit(code)
}

// TestRoutes holds the routes of the server to the paths of the document, both ways.
func TestRoutes(t *testing.T) {
	t.Parallel()
	var documented, routed []string
	for path, item := range theContract().document.Paths.Map() {
		for method := range item.Operations() {
			documented = append(documented, method+" "+path)
		}
	}
	for _, route := range start(t).server.Routes() {
		routed = append(routed, route.Method+" "+route.Path)
	}
	for _, route := range routed {
		if !slices.Contains(documented, route) {
			t.Errorf("%s is not in openapi.yaml", route)
		}
	}
	for _, operation := range documented {
		if !slices.Contains(routed, operation) {
			t.Errorf("%s is in openapi.yaml, but not in routes.go", operation)
		}
	}
}

// unseen lists the operations and statuses that no exchange had.
func (c *contract) unseen() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var missing []string
	for path, item := range c.document.Paths.Map() {
		for method, operation := range item.Operations() {
			for status := range operation.Responses.Map() {
				if exchange := method + " " + path + " " + status; !c.seen[exchange] {
					missing = append(missing, exchange)
				}
			}
		}
	}
	slices.Sort(missing)
	return missing
}

// hold checks one exchange against the document; requestBody and responseBody
// are what was sent and received.
func (c *contract) hold(t testing.TB, request *http.Request, requestBody []byte, response *http.Response, responseBody []byte) {
	t.Helper()
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
	output := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input,
		Status:                 response.StatusCode,
		Header:                 response.Header,
		Options:                options,
	}
	output.SetBodyBytes(responseBody)
	if err := openapi3filter.ValidateResponse(t.Context(), output); err != nil {
		t.Errorf("%s %s: an answer that openapi.yaml does not describe: %v\n%d %s", request.Method, request.URL, err, response.StatusCode, responseBody)
	}
}

// find gives the operation that a request is for; nil for none.
func (c *contract) find(request *http.Request) (*routers.Route, map[string]string) {
	segments := strings.Split(request.URL.EscapedPath(), "/")
	var found *routers.Route
	var params map[string]string
	for path, item := range c.document.Paths.Map() {
		template := strings.Split(path, "/")
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
			found, params = &routers.Route{Spec: c.document, Path: path, PathItem: item, Method: request.Method, Operation: item.GetOperation(request.Method)}, values
		}
	}
	if found == nil || found.Operation == nil {
		return nil, nil
	}
	return found, params
}
