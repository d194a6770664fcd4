package transfer

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"petstore/internal/httpjson"
)

// row is a row of a file.
type row struct {
	fields

	line     int64 // where it begins, from 1
	resource *Resource
	failure  RowErrors // the row cannot be read
	inDoubt  bool      // an earlier import may have sent it
	until    time.Time // when the server may not recognize it any more
}

// fields are the values of a row, by the names of the fields.
type fields map[string]jsontext.Value

// RowError is a mistake in a row.
type RowError struct {
	File    string `json:"file"`
	Line    int64  `json:"line"`
	Field   string `json:"field,omitempty"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

// RowErrors are the mistakes of one row.
type RowErrors []RowError

func (e RowErrors) Error() string { return e[0].Message }

// in returns the mistakes with the place of their row.
func (e RowErrors) in(file *Source, of *row) RowErrors {
	for i := range e {
		e[i].File, e[i].Line = file.Name, of.line
	}
	return e
}

// wrong returns one mistake of a row.
func wrong(field, code, message string, args ...any) RowErrors {
	return RowErrors{{Field: field, Code: code, Message: fmt.Sprintf(message, args...)}}
}

// mistakes returns the mistakes of a row in an error of the API.
func mistakes(code, message string, violations []httpjson.Violation) (all RowErrors) {
	for _, v := range violations {
		one := RowError{Code: v.Code, Message: v.Message}
		if v.Pointer != nil {
			one.Field = strings.TrimPrefix(*v.Pointer, "/")
		} else if v.Parameter != nil {
			one.Field = *v.Parameter
		}
		all = append(all, one)
	}
	if len(all) == 0 {
		all = wrong("", code, "%s", message)
	}
	return all
}

// parseRow reads a JSON object. It keeps the values as they are, because the server checks them.
func parseRow(text []byte) (fields, error) {
	decoder := jsontext.NewDecoder(bytes.NewReader(text))
	object, err := decoder.ReadValue()
	if err != nil {
		return nil, err
	}
	if object.Kind() != '{' {
		return nil, errors.New("it is not an object")
	}
	if rest := bytes.TrimSpace(text[decoder.InputOffset():]); len(rest) > 0 {
		return nil, errors.New("the line continues after the object")
	}
	var f fields
	err = json.Unmarshal(object, &f)
	return f, err
}

// take removes a field, and returns its value or nil.
func (f fields) take(name string) jsontext.Value {
	value := f[name]
	delete(f, name)
	return value
}

// number returns the integer in a field, or 0.
func (f fields) number(name string) int64 {
	number, err := strconv.ParseInt(string(f[name]), 10, 64)
	if err != nil {
		return 0
	}
	return number
}

// body returns the JSON of the fields, sorted by name.
func (f fields) body() []byte {
	text := []byte{'{'}
	for i, name := range slices.Sorted(maps.Keys(f)) {
		if i > 0 {
			text = append(text, ',')
		}
		text, _ = jsontext.AppendQuote(text, name) // valid UTF-8
		text = append(append(text, ':'), f[name]...)
	}
	return append(text, '}')
}

// hash identifies a row by its content. It does not depend on the order of the fields or on escapes in texts.
func (r *row) hash() uint64 {
	content := jsontext.Value(r.body())
	_ = content.Format() // valid JSON
	sum := sha256.Sum256(append([]byte(r.resource.Kind), content...))
	return binary.BigEndian.Uint64(sum[:])
}

// validate returns the mistakes of a row that the server would find without looking at the store.
func (r *row) validate() error {
	if r.failure != nil {
		return r.failure
	}
	o := httpjson.ParseObject(r.body())
	o.Require(r.resource.required...)
	r.resource.check(o)
	if failed, ok := errors.AsType[*httpjson.Error](o.Err()); ok {
		return mistakes(failed.Code, failed.Message, failed.Violations)
	}
	return nil
}
