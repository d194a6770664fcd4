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

// validator checks exchanges against the spec that the service itself serves. Each response
// must match the spec without unknown fields. An invalid request must not succeed.
type validator struct {
	document  *openapi3.T
	validated atomic.Int64
}

// newValidator reads the spec from a service.
func newValidator(ctx context.Context, c *client) (*validator, error) {
	resp, err := c.want(ctx, http.StatusOK, "GET", "/openapi.json", "")
	if err != nil {
		return nil, err
	}
	document, err := openapi3.NewLoader().LoadFromData(resp.body)
	if err != nil {
		return nil, err
	}
	for name, schema := range document.Components.Schemas {
		additional := &schema.Value.AdditionalProperties
		// Clients must ignore unknown fields, but this version of the server sends none.
		if schema.Value.Type.Is("object") && additional.Schema == nil && name != "OpenAPIDescription" {
			additional.Has = new(bool)
		}
	}
	return &validator{document: document}, document.Validate(ctx)
}

// openValidated opens a deployment whose client validates every exchange.
func (f *fixture) openValidated(ctx context.Context) (*deployment, error) {
	s, err := f.open(ctx)
	if err != nil {
		return nil, err
	}
	s.client.validator, err = newValidator(ctx, s.client)
	return s, err
}

// validate checks a request and its response.
func (v *validator) validate(request *http.Request, body string, resp response) error {
	route, parameters := v.find(request)
	if route == nil {
		return nil // not an operation
	}
	v.validated.Add(1)
	ctx := context.Background() // nothing here blocks
	options := &openapi3filter.Options{
		IncludeResponseStatus: true,
		MultiError:            true,
		SkipSettingDefaults:   true,
		AuthenticationFunc:    openapi3filter.NoopAuthenticationFunc,
	}
	copied := request.Clone(ctx)
	copied.Body = io.NopCloser(strings.NewReader(body))
	input := &openapi3filter.RequestValidationInput{Request: copied, PathParams: parameters, Route: route, Options: options}
	if resp.status < http.StatusMultipleChoices {
		if err := openapi3filter.ValidateRequest(ctx, input); err != nil {
			return fmt.Errorf("%d for a request that the spec forbids: %w", resp.status, err)
		}
	}
	output := &openapi3filter.ResponseValidationInput{RequestValidationInput: input, Status: resp.status, Header: resp.header, Options: options}
	output.SetBodyBytes(resp.body)
	if err := openapi3filter.ValidateResponse(ctx, output); err != nil {
		return fmt.Errorf("%s does not match the spec: %w", resp, err)
	}
	return nil
}

// find returns the operation of a request, or nil. The path with the fewest parameters
// wins.
func (v *validator) find(request *http.Request) (*routers.Route, map[string]string) {
	segments := strings.Split(request.URL.EscapedPath(), "/")
	var found *routers.Route
	var parameters map[string]string
	for path, item := range v.document.Paths.Map() {
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
			found = &routers.Route{Spec: v.document, Path: path, PathItem: item, Method: request.Method, Operation: operation}
			parameters = values
		}
	}
	return found, parameters
}

// operations lists every operation of the spec that needs a key, with its path parameters
// set to 1.
func (v *validator) operations() (all []operation) {
	for path, item := range v.document.Paths.Map() {
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

// operation is an operation that needs a key.
type operation struct{ method, target string }
