package docs

import (
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Tag is a page of the reference.
type Tag struct {
	Name, Title, Description string
	Group                    string
	Operations               []*Operation
	Models                   []Model
}

// Stability returns the stability of all operations, or "" if they differ.
func (t *Tag) Stability() string {
	first := t.Operations[0].Stability
	if slices.ContainsFunc(t.Operations, func(o *Operation) bool { return o.Stability != first }) {
		return ""
	}
	return first
}

// Path returns the path of the page, relative to the server.
func (t *Tag) Path() string { return "docs/reference/" + slug(t.Name) }

// slug returns a name for a path or an id.
func slug(text string) string { return strings.ReplaceAll(strings.ToLower(text), " ", "-") }

// title returns a text with a capital at its beginning.
func title(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// Model is a schema with a name, and an example from the first operation that has one.
type Model struct {
	Name    string
	Schema  *Schema
	Example string
}

// Reference is the spec, arranged for readers.
type Reference struct {
	Title, Version, Description string
	Tags                        []*Tag // with operations
	Operations                  []*Operation
	Models                      []Model

	tagOf map[*Operation]*Tag
}

func newReference(specJSON []byte) (*Reference, error) {
	s, err := parseSpec(specJSON)
	if err != nil {
		return nil, err
	}
	r := &Reference{
		Title: s.Info.Title, Version: s.Info.Version, Description: s.Info.Description,
		Operations: s.operations, tagOf: map[*Operation]*Tag{},
	}
	for _, t := range s.Tags {
		page := &Tag{Name: t.Name, Title: title(t.Name), Description: t.Description, Group: t.Parent}
		for _, o := range r.Operations {
			if o.Tags[0] == t.Name {
				page.Operations = append(page.Operations, o)
				r.tagOf[o] = page
			}
		}
		if len(page.Operations) > 0 {
			r.Tags = append(r.Tags, page)
		}
	}
	r.findModels(s)
	return r, nil
}

// findModels lists the models, and gives each tag those that its operations return.
func (r *Reference) findModels(s *spec) {
	examples := map[string]jsontext.Value{}
	for _, o := range r.Operations {
		for _, content := range o.contents() {
			for _, media := range content {
				collect(media.Value.Schema, media.Value.Example, examples) // the only one, or the first
				for _, e := range media.Value.Examples {
					collect(media.Value.Schema, e.Value.Value, examples)
				}
			}
		}
	}
	for _, named := range s.Components.Schemas {
		if schema := named.Value; schema.IsModel() {
			r.Models = append(r.Models, Model{named.Name, schema, text(examples[named.Name])})
		}
	}
	for _, tag := range r.Tags {
		for _, o := range tag.Operations {
			returned := o.Returns()
			if returned == nil {
				continue
			}
			for _, m := range r.Models {
				if m.Name == returned.Schema.Element().Model && !slices.ContainsFunc(tag.Models, func(known Model) bool { return known.Name == m.Name }) {
					tag.Models = append(tag.Models, m)
				}
			}
		}
	}
}

// contents returns the bodies of a request and its responses, the successful ones first.
func (o *Operation) contents() []ordered[*Media] {
	var all []ordered[*Media]
	for _, response := range o.ResponseList {
		all = append(all, response.Value.Content)
	}
	if o.RequestBody != nil {
		all = append(all, o.RequestBody.Content)
	}
	return all
}

// collect finds an example of each model within a value.
func collect(schema *Schema, value jsontext.Value, examples map[string]jsontext.Value) {
	if schema == nil || value == nil {
		return
	}
	if schema.Items != nil {
		var items []jsontext.Value
		if json.Unmarshal(value, &items) == nil {
			for _, item := range items {
				collect(schema.Items, item, examples)
			}
		}
		return
	}
	if _, known := examples[schema.Model]; schema.Model != "" && !known {
		examples[schema.Model] = value
	}
	var fields ordered[jsontext.Value]
	if value.Kind() == '{' && json.Unmarshal(value, &fields) == nil {
		for _, p := range schema.Properties {
			if field, found := fields.at(p.Name); found {
				collect(p.Value, field, examples)
			}
		}
	}
}

// EventType is a type of event, and an example of it.
type EventType struct{ Name, Text, Example string }

// EventTypes lists the types of the events that an operation of the tag returns.
func (t *Tag) EventTypes() []EventType {
	var all []EventType
	for _, o := range t.Operations {
		if o.ID != "getEvent" {
			continue
		}
		ok, _ := o.ResponseList.at("200")
		media, _ := ok.Content.at("application/json")
		for _, v := range t.Operations[0].typeParameter().Element().Values() {
			e, _ := media.Examples.at(v.Value)
			all = append(all, EventType{v.Value, v.Meaning, text(e.Value)})
		}
	}
	return all
}

// typeParameter returns the schema of the parameter that selects types.
func (o *Operation) typeParameter() *Schema {
	i := slices.IndexFunc(o.Parameters, func(p Parameter) bool { return p.Name == "type" })
	return o.Parameters[i].Schema
}

// Sample returns the source of the sample in a language.
func (o *Operation) Sample(language string) string {
	for _, s := range o.Samples {
		if s.Lang == language {
			return s.Source
		}
	}
	return ""
}

// Body returns the body of a request, or nil.
func (o *Operation) Body() *Media {
	if o.RequestBody == nil {
		return nil
	}
	return o.RequestBody.Content[0].Value
}

// Success returns the first successful response by its status.
func (o *Operation) Success() Entry[*Response] {
	return o.ResponseList[slices.IndexFunc(o.ResponseList, func(r Entry[*Response]) bool { return strings.HasPrefix(r.Name, "2") })]
}

// Returns returns the body of the first successful response, or nil.
func (o *Operation) Returns() *Media {
	if content := o.Success().Value.Content; len(content) > 0 {
		return content[0].Value
	}
	return nil
}

// Text returns the example as people read it.
func (m *Media) Text() string { return text(m.Example) }

// Outcome is a response of an operation.
type Outcome struct {
	Status, Description string
	Schema              *Schema
	Codes               []string // of errors
}

// Outcomes lists the responses. The examples of an error have its codes.
func (o *Operation) Outcomes() []Outcome {
	var all []Outcome
	for _, r := range o.ResponseList {
		outcome := Outcome{Status: r.Name, Description: r.Value.Description}
		for _, media := range r.Value.Content {
			outcome.Schema = media.Value.Schema
			if r.Name < "400" {
				continue
			}
			for _, e := range media.Value.Examples {
				if code := e.Value.code(); !slices.Contains(outcome.Codes, code) {
					outcome.Codes = append(outcome.Codes, code)
				}
			}
		}
		all = append(all, outcome)
	}
	return all
}

// data returns reference.json, from which the pages make forms and samples.
func (r *Reference) data() []byte {
	type body struct {
		Type     string         `json:"type"`
		Required bool           `json:"required"`
		Schema   *Schema        `json:"schema"`
		Example  jsontext.Value `json:"example,omitzero"`
	}
	type operation struct {
		Method     string      `json:"method"`
		Path       string      `json:"path"`
		Page       string      `json:"page"`
		Scope      *string     `json:"scope"`
		Public     bool        `json:"public"`
		Parameters []Parameter `json:"parameters"`
		Body       *body       `json:"body"`
		Returns    []string    `json:"returns"` // media types; "": no body
	}
	all := ordered[operation]{}
	for _, o := range r.Operations {
		one := operation{
			Method: o.Method, Path: o.Path, Page: r.tagOf[o].Path(),
			Public: o.Public, Parameters: o.Parameters, Returns: o.returnTypes(),
		}
		if scope := o.Scope(); scope != "" {
			one.Scope = &scope
		}
		if o.RequestBody != nil {
			first := o.RequestBody.Content[0]
			one.Body = &body{first.Name, o.RequestBody.Required, first.Value.Schema, first.Value.Example}
		}
		all = append(all, Entry[operation]{o.ID, one})
	}
	return must(json.Marshal(map[string]any{"operations": all}, json.Deterministic(true)))
}

// Place is where parameters of a request are.
type Place struct {
	Title      string
	Parameters []Parameter
}

// Places groups the parameters by where they are.
func (o *Operation) Places() []Place {
	all := []Place{{Title: "Path"}, {Title: "Query"}, {Title: "Headers"}}
	for i, in := range []string{"path", "query", "header"} {
		for _, p := range o.Parameters {
			if p.In == in {
				all[i].Parameters = append(all[i].Parameters, p)
			}
		}
	}
	return slices.DeleteFunc(all, func(p Place) bool { return len(p.Parameters) == 0 })
}

// returnTypes lists the media types of the successful responses; "": no body.
func (o *Operation) returnTypes() []string {
	var all []string
	for _, r := range o.ResponseList {
		switch {
		case !strings.HasPrefix(r.Name, "2"):
		case len(r.Value.Content) == 0:
			all = append(all, "")
		default:
			for _, media := range r.Value.Content {
				all = append(all, media.Name)
			}
		}
	}
	return all
}
