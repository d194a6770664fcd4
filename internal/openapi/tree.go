// Package openapi upgrades the OpenAPI 3.0.3 spec to OpenAPI 3.1 with webhooks.
package openapi

import (
	"slices"

	"github.com/goccy/go-yaml"
)

// object is a JSON object that keeps the order of its fields.
type object = yaml.MapSlice

// parse reads YAML or JSON.
func parse(text []byte) (object, error) {
	var tree object
	err := yaml.UnmarshalWithOptions(text, &tree, yaml.UseOrderedMap())
	return tree, err
}

// encode returns the JSON of a tree.
func encode(tree object) ([]byte, error) { return yaml.MarshalWithOptions(tree, yaml.JSON()) }

// field makes a field of an object.
func field(name string, value any) yaml.MapItem { return yaml.MapItem{Key: name, Value: value} }

// get returns the value at a path of field names, or nil if there is none.
func get(tree any, path ...string) any {
	for _, name := range path {
		fields, _ := tree.(object)
		i := indexOf(fields, name)
		if i < 0 {
			return nil
		}
		tree = fields[i].Value
	}
	return tree
}

// getObject returns the object at a path, or nil if there is none.
func getObject(tree any, path ...string) object {
	found, _ := get(tree, path...).(object)
	return found
}

// getString returns the string at a path, or "" if there is none.
func getString(tree any, path ...string) string {
	found, _ := get(tree, path...).(string)
	return found
}

func indexOf(fields object, name string) int {
	return slices.IndexFunc(fields, func(one yaml.MapItem) bool { return one.Key == name })
}

// set returns the object with a field of this value, in the place of an earlier one.
func set(fields object, name string, value any) object {
	if i := indexOf(fields, name); i >= 0 {
		fields[i].Value = value
		return fields
	}
	return append(fields, field(name, value))
}

// without returns the object without a field.
func without(fields object, name string) object {
	return slices.DeleteFunc(fields, func(one yaml.MapItem) bool { return one.Key == name })
}

// ref returns a reference to a component.
func ref(kind, name string) object { return object{field("$ref", "#/components/"+kind+"/"+name)} }
