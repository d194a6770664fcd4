// Package follow is a client of the streams of the API: of the feed of events of an account, and
// of the record of requests of a sandbox. It receives every event once and in order, also over
// restarts of the server.
package follow

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"petstore/internal/sleep"
)

const (
	// The pauses between attempts to connect: the first, which the server can change, and
	// the longest.
	firstPause   = time.Second
	longestPause = 10 * time.Second

	maxLine = 1 << 20 // bytes; an event has less than 64 KiB

	// storeReset is the only type of events that may skip numbers, after the restore of a backup.
	storeReset = "store.reset"
)

// Event is an event of the feed.
type Event struct {
	ID        string    `json:"id"`
	Sequence  int64     `json:"sequence"`
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"`
	Subject   string    `json:"subject"`

	JSON []byte `json:"-"` // the event with its data, as the server sent it
}

// StatusError is a response that is not successful.
type StatusError struct {
	Status  int
	Code    string // "": the response is not from Petstore
	Message string // of the first wrong parameter, if any

	Location   string        // where it redirects to; "": it does not
	RetryAfter time.Duration // 0: the response does not say
}

func (e *StatusError) Error() string {
	switch {
	case e.Location != "":
		return fmt.Sprintf("the server returned %d %s and redirects to %s", e.Status, http.StatusText(e.Status), e.Location)
	case e.Code == "":
		return fmt.Sprintf("the server returned %d %s", e.Status, http.StatusText(e.Status))
	default:
		return fmt.Sprintf("the server returned %d %s: %s", e.Status, e.Code, e.Message)
	}
}

// temporary reports whether the same request may succeed later.
func (e *StatusError) temporary() bool {
	return e.Status >= http.StatusInternalServerError || e.Status == http.StatusTooManyRequests || e.Status == http.StatusRequestTimeout
}

// ErrNotFeed means that a response is not one of Petstore.
var ErrNotFeed = errors.New("the response is not a feed of Petstore")

// ErrGap means that events are missing in the stream, which has all types.
var ErrGap = errors.New("events are missing")

// Feed follows the feed of the account of a key.
type Feed struct {
	// Get requests a stream once. The path has a query. The body ends after too long a silence. An
	// error may be a [*StatusError], and is one if the server refuses the request.
	Get   func(ctx context.Context, path string) (*http.Response, error)
	Types []string // nil: all
	// Path is the path of another stream; "": /events. Only events have a number, so Follow finds
	// gaps only in the feed.
	Path   string
	Filter url.Values // more parameters of the stream
	// After is the id of the event before the next. It is "" for the oldest event that the
	// server keeps. Follow changes it after each event.
	After string
	// Lost reports why there is no connection. Follow tries again after the pause.
	Lost func(err error, pause time.Duration)
	// Reached says that the server has responded to other requests, so that Follow also repeats the
	// first attempt to connect.
	Reached bool
	// Connected reports that a stream has begun; nil: nobody needs it.
	Connected func()

	last  int64         // the number of the event After; 0: unknown
	pause time.Duration // before the next attempt to connect
	hint  time.Duration // the first pause
}

// NextLink returns the link rel="next" of a header (RFC 8288), or nil.
func NextLink(header http.Header) *url.URL {
	for _, line := range header.Values("Link") {
		for link := range strings.SplitSeq(line, ",") {
			target, parameters, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(link), "<"), ">")
			if strings.Contains(parameters, `rel="next"`) {
				if next, err := url.Parse(target); err == nil {
					return next
				}
			}
		}
	}
	return nil
}

// Follow calls handle for each event until ctx ends, and returns its error then. It connects
// again when it has lost a connection, and continues after the last handled event. It returns
// an error of handle, [ErrGap], [ErrNotFeed] and each [StatusError] after which another attempt
// would fail as well. Unless f.Reached, it also returns the error of the first attempt to connect,
// but waits if the key has sent too many requests.
func (f *Feed) Follow(ctx context.Context, handle func(context.Context, Event) error) error {
	f.hint = firstPause
	for connected := f.Reached; ; {
		err := f.stream(ctx, func(e Event) error { return handle(ctx, e) }, &connected)
		var failed *handleError
		status, isStatus := errors.AsType[*StatusError](err)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &failed):
			return failed.error
		case errors.Is(err, ErrGap), errors.Is(err, ErrNotFeed), isStatus && !status.temporary():
			return err
		case !connected && !(isStatus && status.Code == "rate_limited"):
			return err
		}
		pause := f.nextPause(status)
		f.Lost(err, pause)
		if !sleep.For(ctx, pause) {
			return ctx.Err()
		}
	}
}

// nextPause returns the pause before the next attempt. It doubles with each attempt up to
// the longest, and half of it is random, so that clients do not return all at once.
func (f *Feed) nextPause(failed *StatusError) time.Duration {
	f.pause = min(max(2*f.pause, f.hint), longestPause)
	pause := f.pause/2 + rand.N(f.pause/2+1) //nolint:gosec // not a secret
	if failed != nil {
		pause = max(pause, failed.RetryAfter)
	}
	return pause
}

// handleError is an error of the caller.
type handleError struct{ error }

// stream receives events over one connection until it ends. It sets connected when the
// server has accepted the request.
func (f *Feed) stream(ctx context.Context, handle func(Event) error, connected *bool) error {
	query := url.Values{"type": f.Types}
	maps.Copy(query, f.Filter)
	if f.After != "" {
		query.Set("after", f.After)
	}
	response, err := f.Get(ctx, cmp.Or(f.Path, "/events")+"?"+query.Encode())
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if got := response.Header.Get("Content-Type"); !strings.HasPrefix(got, "text/event-stream") {
		return fmt.Errorf("%w: its content type is %q", ErrNotFeed, got)
	}
	*connected = true
	if f.Connected != nil {
		f.Connected()
	}
	f.pause = 0
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, maxLine)
	var data []byte
	var id string
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case lines.Text() == "" && data != nil:
			if err := f.receive(data, handle); err != nil {
				return err
			}
			data, id = nil, ""
		case lines.Text() == "" && id != "": // there are no events of these types up to it
			f.After, f.last, id = id, 0, ""
		case field == "id":
			id = value
		case field == "data":
			data = append(data, value...)
		case field == "retry":
			if ms, err := strconv.ParseUint(value, 10, 16); err == nil {
				f.hint = max(time.Duration(ms)*time.Millisecond, time.Millisecond)
			}
		}
	}
	return cmp.Or(lines.Err(), errors.New("the server ended the stream"))
}

// receive handles an event. The numbers of all events have no gaps, except before a [storeReset].
func (f *Feed) receive(data []byte, handle func(Event) error) error {
	event := Event{JSON: data}
	if err := json.Unmarshal(data, &event); err != nil || event.ID == "" {
		return fmt.Errorf("%w: it has data that is not an event", ErrNotFeed)
	}
	follows := event.Sequence == f.last+1 || event.Sequence > f.last && event.Type == storeReset
	if f.last > 0 && len(f.Types) == 0 && !follows {
		return fmt.Errorf("%w: the stream has %s after %s", ErrGap, event.ID, f.After)
	}
	if err := handle(event); err != nil {
		return &handleError{err}
	}
	f.After, f.last = event.ID, event.Sequence
	return nil
}

// NewStatusError returns the error of a response of which only the status and the text are known.
func NewStatusError(status int, text []byte) *StatusError {
	failed := &StatusError{Status: status}
	var body struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Errors  []struct {
			Message string `json:"message"`
		} `json:"errors"`
	}
	if json.Unmarshal(text, &body) == nil { // otherwise it is not from Petstore
		failed.Code, failed.Message = body.Code, body.Message
		if len(body.Errors) > 0 {
			failed.Message = body.Errors[0].Message
		}
	}
	return failed
}

// ReadError returns the error of a response with a text.
func ReadError(response *http.Response, text []byte) *StatusError {
	failed := NewStatusError(response.StatusCode, text)
	if response.StatusCode/100 == 3 {
		failed.Location = response.Header.Get("Location")
	}
	if seconds, err := strconv.ParseUint(response.Header.Get("Retry-After"), 10, 32); err == nil {
		failed.RetryAfter = time.Duration(seconds) * time.Second
	}
	return failed
}
