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

// maxBody is the default limit of a body, in bytes.
const maxBody = 64 << 10

// Row 14. Whatever JSON, or what is none, is sent as a body, as a member of one
// or as a name: it is refused as the client's mistake, or stored and read back
// the same. Each exchange is judged against the description.
func jsonBodies(ctx context.Context, b *bench) (string, error) {
	s, err := b.openJudged(ctx)
	if err != nil {
		return "", err
	}
	cases, err := jsonTestCases(ctx)
	if err != nil {
		return "", err
	}
	var accepted, refused int
	for i, test := range cases {
		invalid := http.StatusBadRequest
		if len(test.Input) > maxBody {
			invalid = http.StatusRequestEntityTooLarge
		}
		member := strings.TrimSuffix(strings.TrimPrefix(test.Input, "["), "]") // mostly a list of one
		for _, target := range []string{"/categories", "/pets", "/store/orders", "/messages"} {
			a, err := s.do(ctx, "POST", target, test.Input)
			if err == nil && strings.HasPrefix(test.Name, "n_") && a.status != invalid {
				err = fmt.Errorf("%s, and must be %d", a, invalid)
			}
			if err := errors.Join(err, clientsMistake(a, &accepted, &refused)); err != nil {
				return "", fmt.Errorf("%s to %s: %w", test.Name, target, err)
			}
		}
		for form, body := range map[string]string{
			"description": fmt.Sprintf(`{"name": "wrapped %d", "description": %s}`, i, member),
			"name":        `{"name": "` + escape(test.Input) + `"}`,
		} {
			want := map[string]any{}
			readable := json.Unmarshal([]byte(body), &want) == nil
			if err := s.storedTheSame(ctx, body, form, want[form], readable && utf8.ValidString(body), &accepted, &refused); err != nil {
				return "", fmt.Errorf("%s as %s: %w", test.Name, form, err)
			}
		}
	}
	return fmt.Sprintf("%d bodies, %d requests: %d refused, %d accepted and read back the same; %d exchanges validated",
		len(cases), accepted+refused, refused, accepted, s.client.judge.judged.Load()), nil
}

// escape writes bytes as the inside of a JSON string, and leaves what is not
// UTF-8 as it is.
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

// clientsMistake is an error unless the answer is a success or a 4xx, which it counts.
func clientsMistake(a answer, accepted, refused *int) error {
	switch {
	case a.status < http.StatusMultipleChoices:
		*accepted++
	case a.status >= http.StatusBadRequest && a.status < http.StatusInternalServerError:
		*refused++
	default:
		return errors.New(a.String())
	}
	return nil
}

// storedTheSame creates a category and, if that succeeds, reads it back: a
// member must be what was sent, and what was sent must be readable at all.
func (s *shop) storedTheSame(ctx context.Context, body, member string, want any, readable bool, accepted, refused *int) error {
	a, err := s.do(ctx, "POST", "/categories", body)
	if err := errors.Join(err, clientsMistake(a, accepted, refused)); err != nil || a.status != http.StatusCreated {
		return err
	}
	if !readable {
		return fmt.Errorf("what is no JSON was accepted: %s", a)
	}
	stored, err := s.want(ctx, http.StatusOK, "GET", a.header.Get("Location"), "")
	if err != nil {
		return err
	}
	got := map[string]any{}
	if err := stored.decode(&got); err != nil {
		return err
	}
	if got[member] != want {
		return fmt.Errorf("sent %q, read back %q", want, got[member])
	}
	return nil
}

// Row 15. Text that has broken other programs is stored and read back the same,
// in a body, a path or a query. Each exchange is judged against the description.
func naughtyStrings(ctx context.Context, b *bench) (string, error) {
	s, err := b.openJudged(ctx)
	if err != nil {
		return "", err
	}
	texts, err := naughtyTexts(ctx)
	if err != nil {
		return "", err
	}
	var accepted, refused int
	for i, text := range texts {
		quoted, err := json.Marshal(text)
		if err != nil {
			return "", err
		}
		if err := errors.Join(
			s.storedTheSame(ctx, fmt.Sprintf(`{"name": %s}`, quoted), "name", text, true, &accepted, &refused),
			s.storedTheSame(ctx, fmt.Sprintf(`{"name": "naughty %d", "description": %s}`, i, quoted), "description", text, true, &accepted, &refused),
			s.queuedTheSame(ctx, text, string(quoted)),
		); err != nil {
			return "", fmt.Errorf("%q in a body: %w", text, err)
		}
		for _, target := range []string{
			"/pets/" + url.PathEscape(text), "/messages/" + url.PathEscape(text), "/store/" + url.PathEscape(text),
			"/pets?name=" + url.QueryEscape(text), "/categories?name=" + url.QueryEscape(text), "/pets?cursor=" + url.QueryEscape(text),
			"/pets?" + url.QueryEscape(text), "/store/orders?shipDateFrom=" + url.QueryEscape(text), "/store/inventory?low=" + url.QueryEscape(text),
		} {
			a, err := s.do(ctx, "GET", target, "")
			if err := errors.Join(err, clientsMistake(a, &accepted, &refused)); err != nil {
				return "", fmt.Errorf("%q in %s: %w", text, target, err)
			}
		}
	}
	return fmt.Sprintf("%d strings, %d requests: no 5xx, read back identical; %d exchanges validated", len(texts), accepted+refused+2*len(texts), s.client.judge.judged.Load()), nil
}

// queuedTheSame queues a message, which may be any text, and reads it back.
func (s *shop) queuedTheSame(ctx context.Context, text, quoted string) error {
	a, err := s.want(ctx, http.StatusAccepted, "POST", "/messages", fmt.Sprintf(`{"message": %s}`, quoted))
	if err != nil {
		return err
	}
	stored, err := s.want(ctx, http.StatusOK, "GET", a.header.Get("Location"), "")
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
