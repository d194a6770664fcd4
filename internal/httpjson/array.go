package httpjson

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Array is a JSON array of objects. Read the fields of all Objects before calling Err.
type Array struct {
	Objects []*Object

	violations []Violation
	failure    error
}

// ParseArray parses a body with at most most objects. The result of Err includes its
// errors.
func ParseArray(body []byte, most int) *Array {
	value, err := parse(body)
	switch {
	case err != nil:
		return &Array{failure: err}
	case value.Kind() != '[':
		return &Array{violations: []Violation{at("", "wrong_type", "The body must be a JSON array.")}}
	}
	a := &Array{}
	decoder := jsontext.NewDecoder(bytes.NewBuffer(value))
	if _, err := decoder.ReadToken(); err != nil { // the bracket
		return &Array{failure: invalidJSON(err)}
	}
	for i := 0; decoder.PeekKind() != ']'; i++ {
		item, err := decoder.ReadValue()
		if err != nil {
			return &Array{failure: invalidJSON(err)}
		}
		if i == most {
			return &Array{violations: []Violation{at("", "too_many", fmt.Sprintf("The array must have at most %d items.", most))}}
		}
		pointer := jsontext.Pointer("").AppendToken(strconv.Itoa(i))
		a.Objects = append(a.Objects, objectAt(pointer, item.Clone(), fmt.Sprintf("Item %d", i)))
	}
	return a
}

// Err returns everything that is wrong with the body, as [Object.Err] does.
func (a *Array) Err() error {
	if a.failure != nil {
		return a.failure
	}
	violations := slices.Clip(a.violations)
	for _, o := range a.Objects {
		if len(violations) < maxViolations {
			violations = append(violations, o.check()...)
		}
	}
	if len(violations) == 0 {
		return nil
	}
	return ErrValidationFailed.WithViolations(violations[:min(len(violations), maxViolations)])
}
