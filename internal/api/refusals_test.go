package api_test

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"petstore/internal/tools/need"
)

// refusal is a value that the spec forbids, and the code of its violation.
type refusal struct {
	value any
	code  string
}

// refusals are values that a schema forbids.
type refusals []refusal

func (r *refusals) add(code string, values ...any) {
	for _, value := range values {
		*r = append(*r, refusal{value, code})
	}
}

// inBody returns values of a field of a body that a schema forbids: values of other types, and values just beyond
// its bounds.
func inBody(schema *openapi3.Schema) (all refusals) {
	if !schema.Nullable {
		all.add("null_not_allowed", nil)
	}
	switch {
	case schema.Type.Is("string"):
		all.add("wrong_type", 1, true, object{}, []string{"x"})
		all.add("invalid_characters", "a\x00")
		all.addTexts(schema)
	case schema.Type.Is("integer"):
		all.add("wrong_type", "1", true, []int{1}, json.Number("1.0"), json.Number("1e3"), json.Number("1E0"), json.Number("1e400"))
		all.add("out_of_range", json.Number("9223372036854775808"), json.Number("18446744073709551617"), json.Number(strings.Repeat("9", 1000)))
		beyond := "out_of_range"
		if schema.Enum != nil {
			beyond = "not_in_enum"
			all.add(beyond, int64(*schema.Min)+1)
		}
		all.add(beyond, int64(*schema.Min)-1)
		if *schema.Min > 0 {
			all.add(beyond, json.Number("-0"))
		}
		if *schema.Max < math.MaxInt64 {
			all.add(beyond, int64(*schema.Max)+1)
		}
	case schema.Type.Is("number"):
		all.add("wrong_type", "1", true)
		all.add("out_of_range", *schema.Min, *schema.Max+0.5, -1)
	case schema.Type.Is("boolean"):
		all.add("wrong_type", "true", 1)
	case schema.Type.Is("array"):
		all.add("wrong_type", "x", object{}, 1)
		if schema.MinItems > 0 {
			all.add("too_few", []any{})
		}
		item := any(object{})
		if known := schema.Items.Value.Enum; known != nil {
			item = known[0]
		}
		all.add("too_many", slices.Repeat([]any{item}, int(*schema.MaxItems)+1))
	}
	return all
}

// addTexts adds texts that a schema forbids.
func (r *refusals) addTexts(schema *openapi3.Schema) {
	short, long := "too_short", "too_long"
	switch {
	case schema.Enum != nil || strings.HasPrefix(schema.Pattern, `^(\*|`): // the name of an operation
		short, long = "not_in_enum", "not_in_enum"
	case schema.Format != "" || strings.Contains(schema.Pattern, "{") && !strings.HasPrefix(schema.Pattern, "^evt_"): // a form with a length
		short, long = "invalid_format", "invalid_format"
	}
	if schema.MinLength > 0 || short != "too_short" {
		r.add(short, "")
	}
	r.add(long, strings.Repeat("n", int(*schema.MaxLength)+1), strings.Repeat("🐶", int(*schema.MaxLength)+1))
	for _, known := range schema.Enum {
		r.add(short, strings.ToUpper(known.(string)))
	}
}

// allowed returns values that a schema just allows.
func allowed(schema *openapi3.Schema) (values []any) {
	if schema.Nullable {
		values = append(values, nil)
	}
	switch {
	case strings.HasPrefix(schema.Pattern, "^[^"): // a text
		values = append(values, strings.Repeat("n", max(1, int(schema.MinLength))), strings.Repeat("n", int(*schema.MaxLength)), strings.Repeat("🐶", int(*schema.MaxLength)))
	case schema.Type.Is("integer") && schema.Enum == nil:
		values = append(values, int64(*schema.Min), int64(min(*schema.Max, math.Nextafter(math.MaxInt64, 0))))
	}
	return values
}

// bodyField is a field of the body of an operation, or of the objects in an array of the body.
type bodyField struct {
	operation
	pointer string
	schema  *openapi3.Schema
	body    func(value any) object // has this value of the field
}

// bodyFields lists the fields of all bodies in the spec.
func bodyFields() (all []bodyField) {
	schemaOf := func(property *openapi3.SchemaRef) *openapi3.Schema {
		if len(property.Value.AllOf) > 0 {
			return property.Value.AllOf[0].Value
		}
		return property.Value
	}
	for _, o := range operations() {
		for name, property := range o.bodySchema().Properties {
			all = append(all, bodyField{o, "/" + name, schemaOf(property), func(value any) object { return object{name: value} }})
			if property.Value.Items == nil {
				continue
			}
			for inner, property := range property.Value.Items.Value.Properties {
				all = append(all, bodyField{o, "/" + name + "/0/" + inner, schemaOf(property), func(value any) object {
					item := object{"probability": 1} // without which there must be no seed
					item[inner] = value
					return object{name: []object{item}}
				}})
			}
		}
	}
	return all
}

// bodySchema returns the schema of the body, which has no properties if there is no body.
func (o operation) bodySchema() *openapi3.Schema {
	if o.described.RequestBody == nil {
		return &openapi3.Schema{}
	}
	return o.described.RequestBody.Value.Content["application/json"].Schema.Value
}

// foreign returns the codes of fields that the body must not have: the other fields of the resource that it is about,
// and unknown ones.
func (o operation) foreign() map[string]string {
	body, all, others := o.bodySchema().Properties, map[string]string{"": "unknown_field"}, "unknown_field"
	for _, status := range []int{200, 201, 202} {
		response := o.described.Responses.Status(status)
		if response == nil {
			continue
		}
		fields := response.Value.Content["application/json"].Schema.Value.Properties
		for name := range fields {
			if body[name] != nil {
				others = "read_only"
			}
		}
		for name := range fields {
			if body[name] == nil {
				all[name] = others
			}
		}
	}
	for name := range body {
		all[strings.ToUpper(name)] = "unknown_field"
	}
	return all
}

// TestFields: the server accepts values just within the bounds that the spec sets for a field of a body, and refuses those
// just beyond. It also refuses values of other types, missing fields and fields that the operation does not have. No
// refused body changes anything.
func TestFields(t *testing.T) {
	t.Parallel()
	p := start(t).tenant("owner")
	tried := 0
	for _, f := range bodyFields() {
		for _, value := range allowed(f.schema) {
			resp := p.do(f.method, withIDs(t, f.path, absentIDs), f.body(value))
			if resp.status != 400 {
				continue
			}
			if slices.ContainsFunc(resp.violations(), func(one string) bool { return strings.HasPrefix(one, f.pointer+" ") }) {
				t.Errorf("%s refuses %v, which the spec allows: %s", resp.what, f.body(value), resp.body)
			}
		}
	}
	before := p.rows()
	refused := func(o operation, body object, want string) {
		t.Helper()
		resp := p.do(o.method, withIDs(t, o.path, p.ids), body).wantError(400, "validation_failed")
		others := selected(resp.violations(), func(one string) bool { return !strings.HasSuffix(one, " required") })
		need.Same(t, []string{want}, others, "%s with %.300s: violations beside missing fields", resp.what, fmt.Sprint(body))
		tried++
	}
	for _, f := range bodyFields() {
		for _, one := range inBody(f.schema) {
			refused(f.operation, f.body(one.value), f.pointer+" "+one.code)
		}
		if f.schema.Nullable && f.method != "PATCH" {
			t.Errorf("%s %s: null for %s can clear nothing", f.method, f.path, f.pointer)
		}
	}
	for _, o := range operations() {
		if o.described.RequestBody == nil {
			continue
		}
		for name, code := range o.foreign() {
			refused(o, object{name: 1}, "/"+name+" "+code)
		}
		if required := mapped(o.bodySchema().Required, func(name string) string { return "/" + name + " required" }); required != nil {
			p.do(o.method, withIDs(t, o.path, p.ids), object{}).wantViolations("validation_failed", required...)
		}
	}
	p.wantRows(before)
	if least := 500; tried < least {
		t.Errorf("%d bodies were tried", tried)
	}
}
