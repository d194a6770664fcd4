package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"
)

// maxBody is the default limit of a body in bytes.
const maxBody = 64 << 10

// jsonBodies is row 14: any input, valid JSON or not, is either rejected as a client
// error, or stored and read back unchanged. It is sent as a body, as a field or as a
// name. Every exchange is validated against the spec.
func jsonBodies(ctx context.Context, f *fixture) (string, error) {
	s, err := f.openValidated(ctx)
	if err != nil {
		return "", err
	}
	cases, err := jsonTestCases(ctx)
	if err != nil {
		return "", err
	}
	var t tally
	for i, test := range cases {
		invalid := http.StatusBadRequest
		if len(test.Input) > maxBody {
			invalid = http.StatusRequestEntityTooLarge
		}
		element := strings.TrimSuffix(strings.TrimPrefix(test.Input, "["), "]") // most cases are an array with one element
		for _, target := range []string{"/categories", "/pets", "/store/orders", "/messages"} {
			resp, err := s.do(ctx, "POST", target, test.Input)
			if err == nil && strings.HasPrefix(test.Name, "n_") && resp.status != invalid {
				err = fmt.Errorf("%s, want %d", resp, invalid)
			}
			if err := errors.Join(err, t.count(resp)); err != nil {
				return "", fmt.Errorf("%s to %s: %w", test.Name, target, err)
			}
		}
		for field, body := range map[string]string{
			"description": fmt.Sprintf(`{"name": "wrapped %d", "description": %s}`, i, element),
			"name":        `{"name": "` + escape(test.Input) + `"}`,
		} {
			want := map[string]any{}
			valid := json.Unmarshal([]byte(body), &want) == nil
			if err := s.checkStored(ctx, &t, categoryBody{body, field, want[field], valid && utf8.ValidString(body)}); err != nil {
				return "", fmt.Errorf("%s as %s: %w", test.Name, field, err)
			}
		}
	}
	return fmt.Sprintf("%d bodies, %d requests: %d rejected, %d accepted and read back unchanged; %d exchanges validated",
		len(cases), t.accepted+t.rejected, t.rejected, t.accepted, s.client.validator.validated.Load()), nil
}

// escape writes bytes as the inside of a JSON string. Invalid UTF-8 is unchanged.
func escape(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ':
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// tally counts the requests that were accepted or rejected.
type tally struct{ accepted, rejected int }

// count counts a success or a 4xx. Any other status is an error.
func (t *tally) count(resp response) error {
	switch {
	case resp.status < http.StatusMultipleChoices:
		t.accepted++
	case resp.status >= http.StatusBadRequest && resp.status < http.StatusInternalServerError:
		t.rejected++
	default:
		return errors.New(resp.String())
	}
	return nil
}

// categoryBody is the body of a POST /categories. If the server accepts it, it must be
// valid JSON, and the field must have the value want.
type categoryBody struct {
	text  string
	field string
	want  any
	valid bool
}

// checkStored creates a category. If the server accepts it, the category is read back.
func (s *deployment) checkStored(ctx context.Context, t *tally, body categoryBody) error {
	resp, err := s.do(ctx, "POST", "/categories", body.text)
	if err := errors.Join(err, t.count(resp)); err != nil || resp.status != http.StatusCreated {
		return err
	}
	if !body.valid {
		return fmt.Errorf("invalid JSON was accepted: %s", resp)
	}
	stored, err := s.want(ctx, http.StatusOK, "GET", resp.header.Get("Location"), "")
	if err != nil {
		return err
	}
	got := map[string]any{}
	if err := stored.decode(&got); err != nil {
		return err
	}
	if got[body.field] != body.want {
		return fmt.Errorf("sent %q, read back %q", body.want, got[body.field])
	}
	return nil
}

// naughtyStrings is row 15: strings that have broken other programs are stored and read
// back unchanged, in a body, a path or a query. Every exchange is validated against the
// spec.
func naughtyStrings(ctx context.Context, f *fixture) (string, error) {
	s, err := f.openValidated(ctx)
	if err != nil {
		return "", err
	}
	texts, err := naughtyTexts(ctx)
	if err != nil {
		return "", err
	}
	var t tally
	for i, text := range texts {
		quoted, err := json.Marshal(text)
		if err != nil {
			return "", err
		}
		if err := errors.Join(
			s.checkStored(ctx, &t, categoryBody{fmt.Sprintf(`{"name": %s}`, quoted), "name", text, true}),
			s.checkStored(ctx, &t, categoryBody{fmt.Sprintf(`{"name": "naughty %d", "description": %s}`, i, quoted), "description", text, true}),
			s.checkQueued(ctx, text, string(quoted)),
		); err != nil {
			return "", fmt.Errorf("%q in a body: %w", text, err)
		}
		for _, target := range []string{
			"/pets/" + url.PathEscape(text), "/messages/" + url.PathEscape(text), "/store/" + url.PathEscape(text),
			"/pets?name=" + url.QueryEscape(text), "/categories?name=" + url.QueryEscape(text), "/pets?cursor=" + url.QueryEscape(text),
			"/pets?" + url.QueryEscape(text), "/store/orders?shipDateFrom=" + url.QueryEscape(text), "/store/inventory?low=" + url.QueryEscape(text),
		} {
			resp, err := s.do(ctx, "GET", target, "")
			if err := errors.Join(err, t.count(resp)); err != nil {
				return "", fmt.Errorf("%q in %s: %w", text, target, err)
			}
		}
	}
	return fmt.Sprintf("%d strings, %d requests: no 5xx, read back unchanged; %d exchanges validated", len(texts), t.accepted+t.rejected+2*len(texts), s.client.validator.validated.Load()), nil
}

// checkQueued queues a message, which may be any text, and reads it back.
func (s *deployment) checkQueued(ctx context.Context, text, quoted string) error {
	resp, err := s.want(ctx, http.StatusAccepted, "POST", "/messages", fmt.Sprintf(`{"message": %s}`, quoted))
	if err != nil {
		return err
	}
	stored, err := s.want(ctx, http.StatusOK, "GET", resp.header.Get("Location"), "")
	if err != nil {
		return err
	}
	var got struct{ Message string }
	if err := stored.decode(&got); err != nil {
		return err
	}
	if got.Message != text {
		return fmt.Errorf("sent %q, read back %q", text, got.Message)
	}
	return nil
}
