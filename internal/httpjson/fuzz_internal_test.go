package httpjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
)

// FuzzParseObject compares the body parser with encoding/json, and compensates for
// that package's leniency.
func FuzzParseObject(f *testing.F) {
	for _, seed := range []string{
		``, ` `, `{}`, ` { "name" : "Rex" } `, `{"name": "Rex", "categoryId": 1}`, `[]`, `null`, `"text"`, `1`, `-0`, `true`,
		`{"a": {"b": [1, 2.5e-3, "\u00e9\n\"\\", null, false]}}`, `{"": 1}`, `{"a/b~c": "\u2028"}`,
		"\xef\xbb\xbf{}", `{"a": 1}{}`, `{"a": 1} x`, `{"a": 1,}`, `{"a": 01}`, `{"a": +1}`, `{"a": .5}`, `{"a": 1.}`, `{'a': 1}`, `{a: 1}`,
		`{"a": NaN}`, `{"a": 1 /* no */}`, `{"a": 1`, `{"a"}`, `{"a": "`, `{"a": "\x"}`, "{\"a\": \"\n\"}", "{\"a\": \"\x00\"}",
		`{"a": 1, "a": 2}`, `{"a": 1, "\u0061": 2}`, `{"a": {"b": 1, "b": 1}}`, `{"a": [{"b": 1, "b": 1}]}`, `{"a": 1, "A": 2}`,
		"{\"a\": \"\xff\"}", "{\"\xc0\x80\": 1}", "{\"a\": \"\xed\xa0\x80\"}", `{"a": "\ud800"}`, `{"a": "\udc00\ud800"}`, `{"a": "\ud83d\ude00"}`, `{"\ud800": 1}`,
		strings.Repeat("[", 32) + strings.Repeat("]", 32), strings.Repeat("[", 33) + strings.Repeat("]", 33),
		strings.Repeat(`{"a":`, 32) + "1" + strings.Repeat("}", 32), strings.Repeat(`{"a":`, 32) + "[]" + strings.Repeat("}", 32),
		`{"a": "` + strings.Repeat(`[{\"`, 40) + `"}`, `{"a": 1e999999}`, `{"a": ` + strings.Repeat("9", 400) + `}`,
		`{"a": 1}}`, "{\"a\": 1}\x00", "\xff\xfe{\x00}\x00", "a=1", strings.Repeat("[", 10_001), strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000),
		`{"` + strings.Repeat("a", 5000) + `": 1, "` + strings.Repeat("a", 5000) + `": 1}`, strings.Repeat(`{"a":`, 32) + "{}" + strings.Repeat("}", 32),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		parsed := ParseObject(text)
		violations, err := parsed.violations, parsed.failure
		if want, sure := acceptable(text); sure && want != (err == nil) {
			t.Fatalf("acceptable: %t, but the error is %v", want, err)
		}
		if p := (*Error)(nil); err != nil && (!errors.As(err, &p) || p.Code != "invalid_json") {
			t.Fatalf("the error is %v", err)
		}
		if err != nil || len(violations) > 0 {
			if parsed.fields != nil {
				t.Fatal("returned fields together with an error")
			}
			return
		}
		fields := byName(parsed)

		var theirs map[string]json.RawMessage
		if err := json.Unmarshal(text, &theirs); err != nil {
			t.Fatalf("encoding/json: %v", err)
		}
		if diff := cmp.Diff(slices.Sorted(maps.Keys(theirs)), slices.Sorted(maps.Keys(fields))); diff != "" {
			t.Fatalf("field names (-encoding/json +ours):\n%s", diff)
		}
		for name, value := range fields {
			if want, have := decoded(t, theirs[name]), decoded(t, []byte(value)); !reflect.DeepEqual(want, have) {
				t.Fatalf("%q is %v, for encoding/json %v", name, have, want)
			}
		}

		again, err := Encode(fields)
		if err != nil {
			t.Fatalf("encoding again: %v", err)
		}
		reread := ParseObject(again)
		if reread.failure != nil || len(reread.violations) > 0 || len(byName(reread)) != len(fields) {
			t.Fatalf("reading %s again: %v, %v", again, reread.violations, reread.failure)
		}
	})
}

// byName returns the fields of an object by name.
func byName(o *Object) map[string]jsontext.Value {
	all := make(map[string]jsontext.Value, len(o.fields))
	for _, f := range o.fields {
		all[string(f.name)] = f.value
	}
	return all
}

// acceptable reports whether encoding/json reads a text as one JSON value without
// invalid UTF-8, duplicate names or excessive depth. It is unsure about lone
// surrogates, which that package replaces.
func acceptable(text []byte) (yes, sure bool) {
	if !utf8.Valid(text) || !json.Valid(text) {
		return false, true
	}
	return wellNested(bytes.TrimSpace(text), 1), !bytes.Contains(bytes.ToLower(text), []byte(`\ud`))
}

// wellNested reports whether no object has a duplicate name, and the depth is at
// most maxDepth.
func wellNested(value json.RawMessage, depth int) bool {
	if value[0] != '{' && value[0] != '[' {
		return true
	}
	if depth > maxDepth {
		return false
	}
	decoder := json.NewDecoder(bytes.NewReader(value))
	opening, _ := decoder.Token()
	for seen := map[json.Token]bool{}; decoder.More(); {
		if opening == json.Delim('{') {
			name, _ := decoder.Token()
			if seen[name] {
				return false
			}
			seen[name] = true
		}
		var inner json.RawMessage
		if decoder.Decode(&inner) != nil || !wellNested(inner, depth+1) {
			return false
		}
	}
	return true
}

// decoded is a value whose numbers keep their spelling.
func decoded(t *testing.T, text []byte) (value any) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return value
}

var statuses = []string{"available", "pending", "sold"}

// FuzzFields reads one field as every type. Each read returns either the value that
// encoding/json reads, within the bounds, or a violation.
func FuzzFields(f *testing.F) {
	for _, seed := range []string{
		`"Rex"`, `""`, `" "`, `"\u00a0\u2003"`, `"a\u0085b"`, `"\u0000"`, `"\t"`, `"` + strings.Repeat("ä", 10) + `"`, `"` + strings.Repeat("ä", 11) + `"`,
		`0`, `-0`, `1`, `10`, `11`, `-1`, `1.0`, `1e1`, `9223372036854775807`, `9223372036854775808`, `-9223372036854775808`, strings.Repeat("1", 100),
		`true`, `false`, `null`, `[]`, `{}`, `"true"`, `"sold"`, `"Sold"`, `"\u0073old"`,
		`"2026-12-24T09:30:00Z"`, `"0001-01-01T00:00:00Z"`, `"\u0032026-12-24T09:30:00Z"`, `"2026-12-24"`,
	} {
		f.Add([]byte(seed))
	}
	for r := range rune(0x3001) {
		if unicode.IsSpace(r) || unicode.IsControl(r) {
			f.Add(fmt.Appendf(nil, `"\u%04x"`, r))
			f.Add(fmt.Appendf(nil, `"a\u%04xb"`, r))
		}
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		text := slices.Concat([]byte(`{"name":`), value, []byte(`}`))
		object := ParseObject(text)
		if object.failure != nil {
			return
		}
		value = object.value("name")
		const least, most = 1, 10
		checkRead(t, text, func(b *Object) *string { return b.Text("name", least, most) }, func(read string) bool {
			length := utf8.RuneCountInString(read)
			return read == decoded(t, value) && length >= least && length <= most && !strings.Contains(read, "\x00")
		})
		checkRead(t, text, func(b *Object) *string { return b.Name(200) }, func(read string) bool {
			return read == decoded(t, value) && strings.TrimSpace(read) != "" && !strings.ContainsFunc(read, unicode.IsControl)
		})
		checkRead(t, text, func(b *Object) *string { return b.Enum("name", statuses...) }, func(read string) bool {
			return read == decoded(t, value) && slices.Contains(statuses, read)
		})
		checkRead(t, text, func(b *Object) *int64 { return b.Integer("name", least, most) }, func(read int64) bool {
			var number int64
			return json.Unmarshal(value, &number) == nil && read == number && read >= least && read <= most
		})
		checkRead(t, text, func(b *Object) *int64 { return b.ID("name") }, func(read int64) bool {
			var number int64
			return json.Unmarshal(value, &number) == nil && read == number && read > 0
		})
		checkRead(t, text, func(b *Object) *bool { return b.Bool("name") }, func(read bool) bool {
			return read == decoded(t, value)
		})
		checkRead(t, text, func(b *Object) *time.Time { return b.Time("name") }, func(read time.Time) bool {
			var text string
			if json.Unmarshal(value, &text) != nil {
				return false
			}
			at, err := parseTime(text)
			return err == nil && read.Equal(at)
		})

		isNull := jsontext.Value(value).Kind() == 'n'
		b := ParseObject(text)
		read, cleared := b.NullableText("name", most)
		if read == nil && !cleared && len(b.violations) == 0 || cleared != isNull {
			t.Fatalf("%s as a text or null: %v, cleared %t, %v", value, text, cleared, b.violations)
		}
		b = ParseObject(text)
		at, cleared := b.NullableTime("name")
		if at == nil && !cleared && len(b.violations) == 0 || cleared != isNull {
			t.Fatalf("%s as a time or null: %v, cleared %t, %v", value, at, cleared, b.violations)
		}
	})
}

// checkRead reads one field, which must return either a good value or violations
// with different codes: a name can be blank and contain a control character.
func checkRead[T any](t *testing.T, object []byte, read func(*Object) *T, good func(T) bool) {
	t.Helper()
	b := ParseObject(object)
	value := read(b)
	switch {
	case (value == nil) != (len(b.violations) == 1 || len(b.violations) == 2 && b.violations[0].Code == "blank" && b.violations[1].Code == "invalid_characters"):
		t.Fatalf("%s: both the value %v and the violations %v", object, value, b.violations)
	case value != nil && !good(*value):
		t.Fatalf("%s was read as %v", object, *value)
	case value == nil && b.Err() == nil:
		t.Fatalf("%s: the violation %v has an unknown code", object, b.violations)
	}
}

// FuzzParseTime compares the time parser with the RFC 3339 grammar and with
// time.Parse.
func FuzzParseTime(f *testing.F) {
	for _, seed := range []string{
		"2026-12-24T09:30:00Z", "2026-12-24T09:30:00.123456789+02:00", "2026-12-24T09:30:00.999999999-23:59", "2028-02-29T00:00:00Z",
		"0001-01-01T00:00:00Z", "0000-12-31T23:59:59-00:01", "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59-00:01",
		"2016-12-31T23:59:60Z", "2026-02-30T00:00:00Z", "2026-12-24t09:30:00z", "2026-12-24 09:30:00Z", "2026-12-24T9:30:00Z", "2026-12-24T09:30:00,5Z",
		"2026-12-24T09:30:00.Z", "2026-12-24T09:30:00.1234567890Z", "2026-12-24T09:30:00+24:00", "2026-12-24T09:30:00+00:60", "2026-12-24", "",
		"2017-01-01t00:59:60.5+01:00", "2026-12-24T09:30:00", " 2026-12-24T09:30:00Z", "２０２６-12-24T09:30:00Z", "2026-12-24T09:30:00Z\x00",
		"2026-12-24T09:30:00." + strings.Repeat("0", 10_000) + "Z",
	} {
		f.Add(seed)
	}
	form := regexp.MustCompile(`\A[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?([Zz]|[-+]([01][0-9]|2[0-3]):[0-5][0-9])\z`)
	f.Fuzz(func(t *testing.T, text string) {
		at, err := parseTime(text)
		theirs, theirErr := time.Parse(time.RFC3339Nano, strings.ToUpper(text))
		if err != nil {
			if year := theirs.UTC().Year(); theirErr == nil && form.MatchString(text) && year >= 1 && year <= 9999 {
				t.Fatalf("rejected: %v", err)
			}
			return
		}
		switch {
		case theirErr != nil || !form.MatchString(text):
			t.Fatalf("read as %v, for time.Parse %v", at, theirErr)
		case !at.Equal(theirs.Truncate(time.Microsecond)):
			t.Fatalf("read as %v, by time.Parse as %v", at, theirs)
		case at.Location() != time.UTC || at.Year() < 1 || at.Year() > 9999:
			t.Fatalf("read as %v", at)
		}
		if again, err := parseTime(at.Format(time.RFC3339Nano)); err != nil || !again.Equal(at) {
			t.Fatalf("%v was formatted, and parsed again as %v, %v", at, again, err)
		}
	})
}

// FuzzCursor seals positions, and opens them and arbitrary text.
func FuzzCursor(f *testing.F) {
	key := []byte("0123456789abcdef0123456789abcdef")
	const name = "/pets?sort=name"
	f.Add("", int64(0), "", "")
	f.Add("rex", int64(1), "token", "AAAA")
	f.Add("\xff\x00", int64(-1), "\x00", "====")
	f.Add("\U0010FFFF", int64(1<<53-1), "", strings.Repeat("A", 24))
	f.Add("", int64(1<<63-1), "", SealCursor(key, "/pets?sort=id", Position{}))
	f.Add("", int64(1), "", SealCursor(key, name, Position{})+"\n")
	f.Add("", int64(1), "", "\r"+SealCursor(key, name, Position{}))
	f.Add("", int64(-1<<63), "", SealCursor(key[1:], name, Position{Key: "rex", ID: 1}))
	f.Fuzz(func(t *testing.T, sortKey string, id int64, token, other string) {
		at := Position{sortKey, id, token}
		cursor := SealCursor(key, name, at)
		if opened, ok := OpenCursor(key, name, cursor); !ok || opened != at {
			t.Fatalf("%q was sealed and opened as %v, %t", cursor, opened, ok)
		}
		const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
		if strings.Trim(cursor, alphabet) != "" {
			t.Fatalf("%q needs quoting in a URL", cursor)
		}
		for i := range cursor {
			other := alphabet[strings.IndexByte(alphabet, cursor[i])^1]
			changed := cursor[:i] + string(other) + cursor[i+1:]
			if opened, ok := OpenCursor(key, name, changed); ok {
				t.Fatalf("%q was changed to %q and opened as %v", cursor, changed, opened)
			}
		}
		if opened, ok := OpenCursor(key, name, other); ok && other != SealCursor(key, name, opened) {
			t.Fatalf("%q was opened as %v", other, opened)
		}
		for what, opens := range map[string]func() (Position, bool){
			"with another key":          func() (Position, bool) { return OpenCursor(key[1:], name, cursor) },
			"for another list":          func() (Position, bool) { return OpenCursor(key, name+"&status=sold", cursor) },
			"with a byte after it":      func() (Position, bool) { return OpenCursor(key, name, cursor+"A") },
			"without its last byte":     func() (Position, bool) { return OpenCursor(key, name, cursor[:len(cursor)-1]) },
			"with a line feed in it":    func() (Position, bool) { return OpenCursor(key, name, cursor[:8]+"\n"+cursor[8:]) },
			"with its first byte twice": func() (Position, bool) { return OpenCursor(key, name, cursor[:1]+cursor) },
		} {
			if opened, ok := opens(); ok {
				t.Fatalf("%q was opened %s as %v", cursor, what, opened)
			}
		}
	})
}
