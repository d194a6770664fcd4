package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
)

// judge holds exchanges to the description that the service itself serves: an
// answer must be one that it describes, without a member that it does not name,
// and a request that it forbids must not succeed.
type judge struct {
	document *openapi3.T
	judged   atomic.Int64
}

// newJudge asks a service for its description.
func newJudge(ctx context.Context, c *client) (*judge, error) {
	a, err := c.want(ctx, http.StatusOK, "GET", "/openapi.json", "")
	if err != nil {
		return nil, err
	}
	document, err := openapi3.NewLoader().LoadFromData(a.body)
	if err != nil {
		return nil, err
	}
	for name, schema := range document.Components.Schemas {
		additional := &schema.Value.AdditionalProperties
		// Clients accept further fields, but this version of the server sends none.
		if schema.Value.Type.Is("object") && additional.Schema == nil && name != "OpenAPIDescription" {
			additional.Has = new(bool)
		}
	}
	return &judge{document: document}, document.Validate(ctx)
}

// openJudged opens a shop whose client has every exchange judged.
func (b *bench) openJudged(ctx context.Context) (*shop, error) {
	s, err := b.open(ctx)
	if err != nil {
		return nil, err
	}
	s.client.judge, err = newJudge(ctx, s.client)
	return s, err
}

// exchange judges a request and its answer.
func (j *judge) exchange(request *http.Request, body string, a answer) error {
	route, parameters := j.find(request)
	if route == nil {
		return nil // not an operation
	}
	j.judged.Add(1)
	ctx := context.Background() // nothing here waits
	options := &openapi3filter.Options{
		IncludeResponseStatus: true,
		MultiError:            true,
		SkipSettingDefaults:   true,
		AuthenticationFunc:    openapi3filter.NoopAuthenticationFunc,
	}
	again := request.Clone(ctx)
	again.Body = io.NopCloser(strings.NewReader(body))
	input := &openapi3filter.RequestValidationInput{Request: again, PathParams: parameters, Route: route, Options: options}
	if a.status < http.StatusMultipleChoices {
		if err := openapi3filter.ValidateRequest(ctx, input); err != nil {
			return fmt.Errorf("%s %s: %d for a request that the description forbids: %w", request.Method, request.URL, a.status, err)
		}
	}
	output := &openapi3filter.ResponseValidationInput{RequestValidationInput: input, Status: a.status, Header: a.header, Options: options}
	output.SetBodyBytes(a.body)
	if err := openapi3filter.ValidateResponse(ctx, output); err != nil {
		return fmt.Errorf("%s %s: %s is not described: %w", request.Method, request.URL, a, err)
	}
	return nil
}

// find gives the operation that a request is for; nil for none. The path with
// the fewest parameters wins.
func (j *judge) find(request *http.Request) (*routers.Route, map[string]string) {
	segments := strings.Split(request.URL.EscapedPath(), "/")
	var found *routers.Route
	var parameters map[string]string
	for path, item := range j.document.Paths.Map() {
		values := map[string]string{}
		matched := slices.EqualFunc(strings.Split(path, "/"), segments, func(part, segment string) bool {
			name, isParameter := strings.CutPrefix(part, "{")
			if isParameter && segment != "" {
				values[strings.TrimSuffix(name, "}")] = segment
				return true
			}
			return part == segment
		})
		if operation := item.GetOperation(request.Method); matched && operation != nil && (found == nil || len(values) < len(parameters)) {
			found = &routers.Route{Spec: j.document, Path: path, PathItem: item, Method: request.Method, Operation: operation}
			parameters = values
		}
	}
	return found, parameters
}

// operations lists every operation of the description that needs a key, its
// parameters filled in.
func (j *judge) operations() (all []operation) {
	for path, item := range j.document.Paths.Map() {
		for method, described := range item.Operations() {
			if described.Security != nil && len(*described.Security) == 0 {
				continue
			}
			target := path
			for _, parameter := range append(item.Parameters, described.Parameters...) {
				if parameter.Value.In == openapi3.ParameterInPath {
					target = strings.ReplaceAll(target, "{"+parameter.Value.Name+"}", "1")
				}
			}
			all = append(all, operation{method, target})
		}
	}
	slices.SortFunc(all, func(a, b operation) int { return strings.Compare(a.target+a.method, b.target+b.method) })
	return all
}

// operation is one that needs a key.
type operation struct{ method, target string }
