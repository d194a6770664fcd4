package api_test

import (
	"encoding/json"
	"fmt"
	"maps"
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
	if schema.Not != nil { // the name of a resource
		r.add("blank", " \u3000")
		r.add("invalid_characters", "a\u009Fb")
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

// malformed has values of parameters in paths that are not in the form of their pattern.
var malformed = map[string][]string{
	"sandboxId": {"1", "sbx_", "sbx_0", "sbx_01", "sbx_-1", "sbx_12345678901234567", "SBX_1", "Current", "currents", "sbx_1x"},
	"name":      {"A", "-", "a_b", "%20", "shop%201", strings.Repeat("a", 51)},
}

// inURL returns encoded values of a parameter that a schema forbids.
func inURL(name string, schema *openapi3.Schema) (all refusals) {
	switch {
	case malformed[name] != nil && schema.Pattern != "" && !strings.HasPrefix(schema.Pattern, "^[^"):
		for _, text := range malformed[name] {
			all.add("invalid_format", text)
		}
	case schema.Type.Is("integer"):
		all.add("out_of_range", "0", "9223372036854775808", "18446744073709551617")
		if *schema.Max < math.MaxInt64 {
			all.add("out_of_range", fmt.Sprint(int64(*schema.Max)+1))
		}
		// The last one is ARABIC-INDIC DIGIT ONE.
		all.add("invalid_format", "-1", "+1", "%2B1", "01", "1.0", "1e1", "0x1", "1%0A", "1%2F2", "1,2", "null", "summar%79", "%D9%A1")
	case schema.Type.Is("boolean"):
		all.add("not_in_enum", "1", "TRUE", "True")
	case schema.Enum != nil:
		all.add("not_in_enum", "x", strings.ToUpper(schema.Enum[0].(string)), fmt.Sprint(schema.Enum[0], ",", schema.Enum[0]))
	case schema.Format == "date-time":
		// In the third one, + is a space.
		all.add("invalid_format", "2026-01-01", "2026-01-01T00:00:00", "2026-01-01T00:00:00+01:00", "10000-01-01T00:00:00Z")
	case strings.Contains(schema.Pattern, "{"): // an id
		all.add("invalid_format", "x")
	case schema.Pattern == "" || strings.HasPrefix(schema.Pattern, "^[^"):
		all.add("too_long", strings.Repeat("n", int(*schema.MaxLength)+1))
	}
	return all
}

// parameters returns the parameters of an operation in one place: path, query or header.
func (o operation) parameters(in string) openapi3.Parameters {
	all := slices.Concat(theContract().document.Paths.Value(o.path).Parameters, o.described.Parameters)
	return selected(all, func(one *openapi3.ParameterRef) bool { return one.Value.In == in })
}

// TestParameters: every operation refuses values of its parameters that the spec forbids, before it looks anything up. It
// refuses a parameter in the query that is empty, not text, there twice or of another operation.
func TestParameters(t *testing.T) {
	t.Parallel()
	p := start(t)
	names := map[string]bool{}
	for _, o := range operations() {
		for _, parameter := range o.parameters("query") {
			names[parameter.Value.Name] = true
		}
	}
	tried := 0
	for _, o := range operations() {
		refused := func(target, name, code string) {
			p.do(o.method, withIDs(t, target, absentIDs), o.body).wantViolations("invalid_parameter", name+" "+code)
			tried++
		}
		for _, parameter := range o.parameters("path") {
			name, schema := parameter.Value.Name, parameter.Value.Schema.Value
			with := func(value string) string { return strings.Replace(o.path, "{"+name+"}", value, 1) }
			if !schema.Type.Is("integer") && malformed[name] == nil {
				continue // any text may be an id
			}
			for _, one := range inURL(name, schema) {
				refused(with(one.value.(string)), name, one.code)
			}
			if schema.Type.Is("integer") {
				p.do(o.method, with("%31"), o.body).want(404)
				p.do(o.method, with("9223372036854775807"), o.body).want(404)
			}
		}
		others := maps.Clone(names)
		for _, parameter := range o.parameters("query") {
			name, schema := parameter.Value.Name, parameter.Value.Schema.Value
			delete(others, name)
			if schema.Type.Is("array") {
				schema = schema.Items.Value
			} else {
				refused(o.path+"?"+name+"=1&"+name+"=1", name, "repeated")
			}
			for _, one := range inURL(name, schema) {
				refused(o.path+"?"+name+"="+one.value.(string), name, one.code)
			}
			refused(o.path+"?"+name, name, "empty")
			refused(o.path+"?"+name+"=", name, "empty")
			refused(o.path+"?"+name+"=%FF", name, "invalid_format")
			refused(o.path+"?"+name+"=a;b", name, "invalid_format")
			refused(o.path+"?"+name+"=%00", name, "invalid_characters")
		}
		if !o.public {
			unknown := slices.Sorted(maps.Keys(others))
			target := withIDs(t, o.path, absentIDs) + "?" + strings.Join(unknown, "=1&") + "=1"
			p.do(o.method, target, o.body).wantViolations("invalid_parameter", mapped(unknown, func(name string) string { return name + " unknown" })...)
		}
	}
	if least := 500; tried < least {
		t.Errorf("%d requests were tried", tried)
	}
	for _, id := range []string{"0", "x", "a%2Fb", "msg_", "MSG_0198C5F27D3A7C419B0E5A1F3C2D4E6F", strings.Repeat("x", 5000)} {
		p.get("/messages/"+id).wantError(404, "message_not_found")
	}
}
