package docs

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Schema says which values a parameter, header or field may have.
type Schema struct {
	reference

	Model       string            `json:"model,omitzero"` // its name among the models
	Type        string            `json:"type,omitzero"`
	Format      string            `json:"format,omitzero"`
	Description string            `json:"description,omitzero"`
	Enum        []any             `json:"enum,omitzero"`
	Meanings    map[string]string `json:"x-enumDescriptions,omitzero"`
	Nullable    bool              `json:"nullable,omitzero"`
	Minimum     *float64          `json:"minimum,omitzero"`
	Maximum     *float64          `json:"maximum,omitzero"`
	Above       bool              `json:"exclusiveMinimum,omitzero"` // whether the minimum itself is excluded
	MinLength   *int              `json:"minLength,omitzero"`
	MaxLength   *int              `json:"maxLength,omitzero"`
	MinItems    *int              `json:"minItems,omitzero"`
	MaxItems    *int              `json:"maxItems,omitzero"`
	Pattern     string            `json:"pattern,omitzero"`
	Default     jsontext.Value    `json:"default,omitzero"`
	ReadOnly    bool              `json:"readOnly,omitzero"`
	Deprecated  bool              `json:"deprecated,omitzero"`
	Stability   string            `json:"x-stability,omitzero"`
	Items       *Schema           `json:"items,omitzero"`
	Properties  ordered[*Schema]  `json:"properties,omitzero"`
	Required    []string          `json:"required,omitzero"`
	OneOf       []*Schema         `json:"oneOf,omitzero"`
	AllOf       []*Schema         `json:"allOf,omitzero"`

	resolved bool
}

// inherit takes each value that the schema lacks from another one.
func (s *Schema) inherit(base *Schema) {
	own, from := reflect.ValueOf(s).Elem(), reflect.ValueOf(base).Elem()
	for i := range own.NumField() {
		if field := own.Field(i); field.CanSet() && field.IsZero() {
			field.Set(from.Field(i))
		}
	}
}

// IsModel reports whether the schema has a part of its own on the page of models. The others
// are simple values.
func (s *Schema) IsModel() bool {
	return s.Model != "" && (len(s.Properties) > 0 || len(s.Meanings) > 0)
}

// Element returns the schema of the elements of a list, or the schema itself.
func (s *Schema) Element() *Schema {
	if s.Items != nil {
		return s.Items
	}
	return s
}

// Words says what kind of value the schema allows, such as "positive integer".
func (s *Schema) Words() string {
	words := s.Type
	switch {
	case s.Type == "array":
		return "list of " + plural(s.Items.Words())
	case s.Type == "integer" && s.Minimum != nil && *s.Minimum == 1 && s.unbounded():
		words = "positive integer"
	case s.Format == "date-time":
		words = "time"
	case s.Format == "uri" || s.Format == "uri-reference":
		words = "URL"
	case words == "":
		words = "any value"
	}
	if s.Nullable {
		words += " or null"
	}
	return words
}

func plural(words string) string {
	if strings.HasSuffix(words, "s") {
		return words
	}
	return words + "s"
}

// unbounded reports whether the maximum is only the limit of the format.
func (s *Schema) unbounded() bool { return s.Maximum == nil || *s.Maximum >= maxSafe }

const maxSafe = 1<<53 - 1 // the largest integer that JavaScript reads exactly

// Bounds says in words what else limits a value.
func (s *Schema) Bounds() string {
	var all []string
	switch {
	case s.Minimum == nil || len(s.Enum) > 0:
	case s.Above:
		all = append(all, "above "+number(*s.Minimum))
		if !s.unbounded() {
			all = append(all, "at most "+number(*s.Maximum))
		}
	case !s.unbounded():
		all = append(all, number(*s.Minimum)+" to "+number(*s.Maximum))
	case *s.Minimum != 1:
		all = append(all, number(*s.Minimum)+" or more")
	}
	if len(s.Enum) == 0 && s.Format == "" {
		all = append(all, count(s.MinLength, s.MaxLength, "character")...)
	}
	all = append(all, count(s.MinItems, s.MaxItems, "item")...)
	if s.Default != nil {
		all = append(all, "default `"+strings.Trim(string(s.Default), `"`)+"`")
	}
	return strings.Join(all, ", ")
}

// count says how many of something a value may have.
func count(low, high *int, what string) []string {
	if high == nil {
		return nil
	}
	bound := number(float64(*high)) + " " + what + "s"
	if low != nil && *low == *high {
		return []string{bound}
	}
	if low != nil && *low > 0 {
		return []string{number(float64(*low)) + " to " + bound}
	}
	return []string{"at most " + bound}
}

// number formats an integer with commas.
func number(value float64) string {
	digits := strconv.FormatFloat(value, 'f', -1, 64)
	whole, fraction, _ := strings.Cut(digits, ".")
	for at := len(whole) - 3; at > 0; at -= 3 {
		whole = whole[:at] + "," + whole[at:]
	}
	if fraction != "" {
		whole += "." + fraction
	}
	return whole
}

// Value is an allowed value and its meaning.
type Value struct{ Value, Meaning string }

// Values lists the allowed values, if the schema names them.
func (s *Schema) Values() []Value {
	var all []Value
	for _, value := range s.Enum {
		v := fmt.Sprint(value)
		all = append(all, Value{v, s.Meanings[v]})
	}
	return all
}

// Explained reports whether the allowed values have meanings.
func (s *Schema) Explained() bool { return len(s.Meanings) > 0 }

// Field is a field of an object.
type Field struct {
	Name     string
	Required bool
	Schema   *Schema
	Text     string
}

// Fields lists the fields of an object.
func (s *Schema) Fields() []Field {
	var all []Field
	for _, p := range s.Properties {
		all = append(all, Field{p.Name, slices.Contains(s.Required, p.Name), p.Value, p.Value.Description})
	}
	return all
}
