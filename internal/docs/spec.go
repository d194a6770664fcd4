package docs

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// spec has the parts of openapi.json that the pages and the collection show, without $ref.
type spec struct {
	Info struct {
		Title       string `json:"title"`
		Version     string `json:"version"`
		Description string `json:"description"`
	} `json:"info"`
	Servers []struct {
		URL string `json:"url"`
	} `json:"servers"`
	Tags       []tag                        `json:"tags"`
	Paths      ordered[ordered[*Operation]] `json:"paths"`
	Components struct {
		Schemas    ordered[*Schema]   `json:"schemas"`
		Parameters ordered[Parameter] `json:"parameters"`
		Responses  ordered[*Response] `json:"responses"`
		Headers    ordered[Header]    `json:"headers"`
		Examples   ordered[example]   `json:"examples"`
	} `json:"components"`

	operations []*Operation // in the order of the spec
}

// tag groups operations, or other tags that name it in Parent.
type tag struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Parent      string `json:"x-parent"`
}

// reference is a node that may name another one.
type reference struct {
	Ref string `json:"$ref,omitzero"`
}

// target returns the name of the component, or "".
func (r reference) target() string { return r.Ref[strings.LastIndex(r.Ref, "/")+1:] }

// Operation is an operation of the spec.
type Operation struct {
	ID           string             `json:"operationId"`
	Summary      string             `json:"summary"`
	Description  string             `json:"description"`
	Tags         []string           `json:"tags"`
	Deprecated   bool               `json:"deprecated"`
	Sunset       string             `json:"x-deprecated-sunset"`
	Successor    string             `json:"x-deprecated-successor"`
	Stability    string             `json:"x-stability"`
	WithoutForm  bool               `json:"x-hideTryItPanel"`
	Security     *[]any             `json:"security"`
	Parameters   []Parameter        `json:"parameters"`
	RequestBody  *Body              `json:"requestBody"`
	ResponseList ordered[*Response] `json:"responses"`
	Samples      []Sample           `json:"x-codeSamples"`

	Method, Path string `json:"-"`
	Public       bool   `json:"-"` // needs no API key
}

// Sample is a request in one language.
type Sample struct {
	Lang   string `json:"lang"`
	Source string `json:"source"`
}

// Parameter is a parameter of an operation.
type Parameter struct {
	reference

	Name        string         `json:"name"`
	In          string         `json:"in"`
	Required    bool           `json:"required"`
	Description string         `json:"description"`
	Schema      *Schema        `json:"schema"`
	Example     jsontext.Value `json:"example,omitzero"`
}

// Field returns the parameter as the pages show fields.
func (p Parameter) Field() Field { return Field{p.Name, p.Required, p.Schema, p.Description} }

// Body is the body of a request.
type Body struct {
	Required bool            `json:"required"`
	Content  ordered[*Media] `json:"content"`
}

// Response is a response of an operation.
type Response struct {
	reference

	Description string          `json:"description"`
	Headers     ordered[Header] `json:"headers"`
	Content     ordered[*Media] `json:"content"`
	Links       ordered[link]   `json:"links"`
}

// link has the parameters of other operations that a response gives a value.
type link struct {
	Parameters ordered[any] `json:"parameters"`
}

// Header is a header of a response.
type Header struct {
	reference

	Description string `json:"description"`
}

// Media is a body in one format.
type Media struct {
	Schema   *Schema          `json:"schema"`
	Example  jsontext.Value   `json:"example"`
	Examples ordered[example] `json:"examples"`
}

type example struct {
	reference

	Value jsontext.Value `json:"value"`
}

// code returns the code in the example of an error.
func (e example) code() string {
	var problem struct {
		Code string `json:"code"`
	}
	if err := json.Unmarshal(e.Value, &problem); err != nil {
		panic(err) // only a mistake in the spec can cause it, and tests read every page
	}
	return problem.Code
}

// ordered is an object in the order of the text.
type ordered[T any] []Entry[T]

// Entry is a field of an object, by its name in the text.
type Entry[T any] struct {
	Name  string
	Value T
}

// at returns the value of a name.
func (o ordered[T]) at(name string) (value T, found bool) {
	for _, e := range o {
		if e.Name == name {
			return e.Value, true
		}
	}
	return value, false
}

// UnmarshalJSONFrom reads an object.
func (o *ordered[T]) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			return err
		}
		e := Entry[T]{Name: name.String()}
		if err := json.UnmarshalDecode(dec, &e.Value); err != nil {
			return err
		}
		*o = append(*o, e)
	}
	_, err := dec.ReadToken()
	return err
}

// MarshalJSONTo writes an object in order.
func (o ordered[T]) MarshalJSONTo(enc *jsontext.Encoder) error {
	if err := enc.WriteToken(jsontext.BeginObject); err != nil {
		return err
	}
	for _, e := range o {
		if err := enc.WriteToken(jsontext.String(e.Name)); err != nil {
			return err
		}
		if err := json.MarshalEncode(enc, e.Value); err != nil {
			return err
		}
	}
	return enc.WriteToken(jsontext.EndObject)
}

var methods = []string{"get", "post", "put", "patch", "delete"}

// UnmarshalJSONFrom reads an operation, or the parameters that all operations of a path share.
func (o *Operation) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if dec.PeekKind() == '[' {
		return json.UnmarshalDecode(dec, &o.Parameters)
	}
	type plain Operation
	return json.UnmarshalDecode(dec, (*plain)(o))
}

// parseSpec reads openapi.json.
func parseSpec(text []byte) (*spec, error) {
	var s spec
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("openapi.json: %w", err)
	}
	for _, named := range s.Components.Schemas {
		named.Value.Model = named.Name
	}
	for _, named := range s.Components.Schemas {
		s.resolveSchema(named.Value)
	}
	for _, path := range s.Paths {
		shared, _ := path.Value.at("parameters")
		for _, method := range path.Value {
			if o := method.Value; slices.Contains(methods, method.Name) {
				o.Method, o.Path = strings.ToUpper(method.Name), path.Name
				if shared != nil {
					o.Parameters = slices.Concat(shared.Parameters, o.Parameters)
				}
				s.resolve(o)
				s.operations = append(s.operations, o)
			}
		}
	}
	return &s, nil
}

func (s *spec) resolve(o *Operation) {
	o.Public = o.Security != nil && len(*o.Security) == 0
	for i, p := range o.Parameters {
		if known, found := s.Components.Parameters.at(p.target()); found {
			o.Parameters[i] = known
		}
		s.resolveSchema(o.Parameters[i].Schema)
	}
	if o.RequestBody != nil {
		s.resolveContent(o.RequestBody.Content)
	}
	for i, r := range o.ResponseList {
		if known, found := s.Components.Responses.at(r.Value.target()); found {
			o.ResponseList[i].Value = known
		}
		s.resolveResponse(o.ResponseList[i].Value)
	}
}

func (s *spec) resolveResponse(r *Response) {
	for i, h := range r.Headers {
		if known, found := s.Components.Headers.at(h.Value.target()); found {
			r.Headers[i].Value = known
		}
	}
	s.resolveContent(r.Content)
}

func (s *spec) resolveContent(content ordered[*Media]) {
	for _, media := range content {
		s.resolveSchema(media.Value.Schema)
		for i, e := range media.Value.Examples {
			if known, found := s.Components.Examples.at(e.Value.target()); found {
				media.Value.Examples[i].Value = known
			}
		}
		if len(media.Value.Examples) > 0 {
			media.Value.Example = media.Value.Examples[0].Value.Value
		}
	}
}

// resolveSchema replaces $ref and allOf by what they name. Fields of the schema itself win.
func (s *spec) resolveSchema(schema *Schema) {
	if schema == nil || schema.resolved {
		return
	}
	schema.resolved = true
	model, parts := schema.Model, schema.AllOf
	if schema.Ref != "" {
		parts = append(parts, &Schema{reference: schema.reference})
	}
	for _, part := range parts {
		base := part
		if known, found := s.Components.Schemas.at(part.target()); found {
			base = known
		}
		s.resolveSchema(base)
		schema.inherit(base)
	}
	if model != "" || len(parts) > 1 {
		schema.Model = model
	}
	schema.AllOf, schema.Ref = nil, ""
	s.resolveSchema(schema.Items)
	for _, field := range schema.Properties {
		s.resolveSchema(field.Value)
	}
}

var scopePattern = regexp.MustCompile("(?s)\\s*Needs the scope `(\\w+)`\\.")

// Scope returns the scope that the operation needs, or "".
func (o *Operation) Scope() string {
	if match := scopePattern.FindStringSubmatch(o.Description); match != nil {
		return match[1]
	}
	return ""
}

// text indents a JSON value. It returns a string without quotes, such as a stream of events.
func text(value jsontext.Value) string {
	if value.Kind() == '"' {
		var plain string
		if json.Unmarshal(value, &plain) == nil {
			return plain
		}
	}
	value = value.Clone()
	if err := value.Indent(jsontext.WithIndent("  ")); err != nil {
		return string(value)
	}
	return string(value)
}
