package openapi

import "slices"

// version31 is the OpenAPI version of [Upgrade].
const version31 = "3.1.1"

// Upgrade returns a spec in OpenAPI 3.0.3 as OpenAPI 3.1, in JSON. It adds the webhooks and a
// schema for the events of each type.
func Upgrade(spec []byte) ([]byte, error) {
	tree, err := parse(spec)
	if err != nil {
		return nil, err
	}
	for i, one := range getObject(tree, "components", "schemas") {
		getObject(tree, "components", "schemas")[i].Value = upgradeSchema(one.Value)
	}
	upgradeSchemasIn(tree)
	tree = set(tree, "openapi", version31)
	components := getObject(tree, "components")
	schemas, webhooks := eventSchemas(tree), webhooksOf(tree)
	set(components, "schemas", append(getObject(components, "schemas"), schemas...))
	set(components, "parameters", append(getObject(components, "parameters"), webhookHeaders()...))
	addCallback(tree)
	at := indexOf(tree, "paths") + 1
	return encode(slices.Insert(tree, at, field("webhooks", webhooks)))
}

// notSpec are fields whose values are no part of the spec, but data of clients.
var notSpec = []string{"example", "examples", "default", "enum", "x-codeSamples"}

// upgradeSchemasIn upgrades the schemas in a part of the spec outside of schemas.
func upgradeSchemasIn(part any) {
	switch part := part.(type) {
	case object:
		for i, one := range part {
			name, _ := one.Key.(string)
			switch {
			case name == "schema":
				part[i].Value = upgradeSchema(one.Value)
			case name != "schemas" && !slices.Contains(notSpec, name):
				upgradeSchemasIn(one.Value)
			}
		}
	case []any:
		for _, one := range part {
			upgradeSchemasIn(one)
		}
	}
}

// upgradeSchema returns a schema of OpenAPI 3.0 as JSON Schema 2020-12. It knows the forms that
// the spec has: nullable beside a type without enum, an exclusive minimum, and an example.
func upgradeSchema(value any) any {
	schema, ok := value.(object)
	if !ok {
		return value // additionalProperties: false
	}
	for i, one := range schema {
		switch one.Key {
		case "items", "not", "additionalProperties":
			schema[i].Value = upgradeSchema(one.Value)
		case "properties":
			properties, _ := one.Value.(object)
			for j, property := range properties {
				properties[j].Value = upgradeSchema(property.Value)
			}
		case "allOf", "anyOf", "oneOf":
			alternatives, _ := one.Value.([]any)
			for j, alternative := range alternatives {
				alternatives[j] = upgradeSchema(alternative)
			}
		}
	}
	schema = upgradeNull(schema)
	if get(schema, "exclusiveMinimum") == true {
		limit := get(schema, "minimum") // without changes the schema
		schema = set(without(schema, "minimum"), "exclusiveMinimum", limit)
	}
	if i := indexOf(schema, "example"); i >= 0 {
		schema[i] = field("examples", []any{schema[i].Value})
	}
	return schema
}

// upgradeNull turns nullable into a type.
func upgradeNull(schema object) object {
	if get(schema, "nullable") != true {
		return schema
	}
	kind := getString(schema, "type")
	return set(without(schema, "nullable"), "type", []any{kind, "null"})
}
