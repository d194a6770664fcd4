package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// field is an argument of api after the path.
type field struct {
	name, text string
	json       json.RawMessage // the value in a body
}

// parseField parses key=value or key:=json. A value that is a JSON number, true, false or
// null is that, and any other value is a string. Errors say what the argument is.
func parseField(what, argument string) (field, error) {
	if !utf8.ValidString(argument) { // json.Marshal would replace a part of it
		return field{}, fmt.Errorf("a %s must be UTF-8, but is %q", what, argument)
	}
	name, text, found := strings.Cut(argument, "=")
	name, isJSON := strings.CutSuffix(name, ":")
	if !found || name == "" {
		return field{}, fmt.Errorf("a %s must be key=value or key:=json, such as petId=1, but is %q", what, argument)
	}
	if isJSON && !json.Valid([]byte(text)) {
		return field{}, fmt.Errorf("the value of %s:= must be JSON, but is %q", name, text)
	}
	if isJSON || isScalar(text) {
		return field{name, text, json.RawMessage(text)}, nil
	}
	quoted, err := json.Marshal(text)
	return field{name, text, quoted}, err
}

// isScalar reports whether text is a JSON number, true, false or null.
func isScalar(text string) bool {
	return json.Valid([]byte(text)) && text == strings.TrimSpace(text) && !strings.ContainsAny(text[:1], `"{[`)
}

// addFields adds the fields to a call: to the query of a method without a body, and else to
// a JSON object.
func (one *call) addFields(fields []field) error {
	if len(fields) == 0 {
		return nil
	}
	if !hasBody(one.method) {
		for _, f := range fields {
			text := f.text
			if err := json.Unmarshal(f.json, &text); err != nil { // not a string
				text = f.text
			}
			separator := "?"
			if strings.Contains(one.path, "?") {
				separator = "&"
			}
			one.path += separator + url.QueryEscape(f.name) + "=" + url.QueryEscape(text)
		}
		return nil
	}
	object := map[string]json.RawMessage{}
	for _, f := range fields {
		if _, isTwice := object[f.name]; isTwice {
			return fmt.Errorf("the field %s is there twice; write an array as %s:=[1,2]", f.name, f.name)
		}
		object[f.name] = f.json
	}
	body, err := json.Marshal(object)
	one.body = body
	return err
}

// hasBody reports whether requests with a method have a body.
func hasBody(method string) bool {
	return slices.Contains([]string{http.MethodPost, http.MethodPut, http.MethodPatch}, method)
}
