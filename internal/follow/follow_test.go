package follow_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"petstore/internal/follow"
	"petstore/internal/tools/need"
)

// event is an event on a stream.
func event(sequence int) string { return eventOf("pet.created", sequence) }

// eventOf is an event of a type on a stream.
func eventOf(kind string, sequence int) string {
	return fmt.Sprintf("id: evt_%d_00000000\nevent: %s\ndata: {\"id\":\"evt_%[1]d_00000000\",\"sequence\":%[1]d,\"type\":%[2]q}\n\n", sequence, kind)
}

// script is a server that sends one of its responses after the other, and then leaves the
// connection open.
type script struct {
	url      string
	requests chan string // queries
}

func newScript(t *testing.T, responses ...http.HandlerFunc) *script {
	t.Helper()
	s := &script{requests: make(chan string, 100)}
	next := make(chan http.HandlerFunc, len(responses))
	for _, response := range responses {
		next <- response
	}
	server := need.Server(t, func(w http.ResponseWriter, r *http.Request) {
		s.requests <- r.URL.RawQuery
		select {
		case response := <-next:
			response(w, r)
		default:
			stream("")(w, r)
			<-r.Context().Done()
		}
	})
	s.url = server.URL
	return s
}

// get is the Get of a [follow.Feed].
func (s *script) get(ctx context.Context, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil || response.StatusCode == http.StatusOK {
		return response, err
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body) // the status says enough
	return nil, follow.ReadError(response, text)
}

// stream sends text as a stream, and ends it.
func stream(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, text)
		_ = http.NewResponseController(w).Flush() // the client may be gone
	}
}

// failure sends an error.
func failure(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

var errEnough = errors.New("enough")

// run follows a feed until it has a number of events, and returns their ids.
func run(t *testing.T, feed *follow.Feed, enough int) (ids []string, lost []error, err error) {
	t.Helper()
	feed.Lost = func(err error, pause time.Duration) {
		if pause > 10*time.Second {
			t.Errorf("a pause of %s", pause)
		}
		lost = append(lost, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = feed.Follow(ctx, func(_ context.Context, e follow.Event) error {
		if ids = append(ids, e.ID); len(ids) == enough {
			return errEnough
		}
		return nil
	})
	return ids, lost, err
}

// TestFollowContinues: after each kind of loss, Follow continues after the last event.
func TestFollowContinues(t *testing.T) {
	t.Parallel()
	half := event(4)[:40]
	s := newScript(
		t,
		stream("retry: 1\n\n"+event(1)),
		failure(http.StatusBadGateway, "<html>"),
		failure(http.StatusTooManyRequests, `{"code":"too_many","message":"Wait."}`),
		stream(":\n\n"+strings.ReplaceAll(event(2), "\n", "\r\n")+event(3)+half),
		func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		stream(event(4)),
	)
	feed := &follow.Feed{Get: s.get}
	ids, lost, err := run(t, feed, 4)
	if diff := cmp.Diff([]string{"evt_1_00000000", "evt_2_00000000", "evt_3_00000000", "evt_4_00000000"}, ids); diff != "" || !errors.Is(err, errEnough) {
		t.Errorf("events (-want +got):\n%s%v", diff, err)
	}
	if len(lost) < 4 || len(lost) > 5 { // the HTTP client repeats a request by itself if its connection was used before
		t.Errorf("connections lost: %v", lost)
	}
	for i, want := range []string{"", "after=evt_1_00000000", "after=evt_1_00000000", "after=evt_1_00000000", "after=evt_3_00000000", "after=evt_3_00000000"} {
		if got := <-s.requests; got != want {
			t.Errorf("request %d: %q, want %q", i+1, got, want)
		}
	}
	if feed.After != "evt_3_00000000" { // the handler has not accepted event 4
		t.Errorf("it would continue after %s", feed.After)
	}
}

// TestFollowEnds: Follow returns when another attempt would not help.
func TestFollowEnds(t *testing.T) {
	t.Parallel()
	accepted := stream("retry: 1\n\n" + event(1))
	for name, test := range map[string]struct {
		responses []http.HandlerFunc
		types     []string
		want      string // "": the two events
	}{
		"first attempt":  {[]http.HandlerFunc{failure(503, `{"code":"away","message":"Later."}`)}, nil, "503 away: Later."},
		"revoked key":    {[]http.HandlerFunc{accepted, failure(401, `{"code":"invalid_api_key","message":"No."}`)}, nil, "401 invalid_api_key: No."},
		"expired cursor": {[]http.HandlerFunc{accepted, failure(410, "")}, nil, "410 Gone"},
		"redirect":       {[]http.HandlerFunc{failure(302, "")}, nil, "302 Found"},
		"no stream":      {[]http.HandlerFunc{failure(200, "[]")}, nil, "content type"},
		"no event":       {[]http.HandlerFunc{stream("data: 1\n\n")}, nil, "data that is not an event"},
		"gap":            {[]http.HandlerFunc{stream("retry: 1\n\n" + event(1) + event(3))}, nil, "evt_3_00000000 after evt_1_00000000"},
		"gap of a type":  {[]http.HandlerFunc{stream(event(1) + event(3))}, []string{"pet.created"}, ""},
		"gap after loss": {[]http.HandlerFunc{accepted, stream(event(3))}, nil, "events are missing"},
		"restore":        {[]http.HandlerFunc{stream(event(1) + eventOf("store.reset", 1_000_000_002))}, nil, ""},
		"restore later":  {[]http.HandlerFunc{accepted, stream(eventOf("store.reset", 1_000_000_002))}, nil, ""},
		"earlier reset":  {[]http.HandlerFunc{stream(event(2) + eventOf("store.reset", 1))}, nil, "events are missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := run(t, &follow.Feed{Get: newScript(t, test.responses...).get, Types: test.types}, 2)
			if test.want == "" && !errors.Is(err, errEnough) || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("Follow returned %v, want %q", err, test.want)
			}
		})
	}
}

// TestRateLimited: a feed waits as long as the rate limit says, also before its first connection.
func TestRateLimited(t *testing.T) {
	t.Parallel()
	limited := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "1")
		failure(http.StatusTooManyRequests, `{"code":"rate_limited","message":"Wait."}`)(w, r)
	}
	ids, lost, err := run(t, &follow.Feed{Get: newScript(t, limited, stream(event(1))).get}, 1)
	if !errors.Is(err, errEnough) || len(ids) != 1 || len(lost) != 1 {
		t.Errorf("Follow returned %v, events %v, after %v", err, ids, lost)
	}
	day := &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"86400"}}}
	if got := follow.ReadError(day, nil).RetryAfter; got != 24*time.Hour {
		t.Errorf("a response that asks for a day makes a pause of %s", got)
	}
}

// TestFollowKeepsPositions: an id without data says that there are no events of the wanted
// types up to it. Follow continues after it, and calls no handler.
func TestFollowKeepsPositions(t *testing.T) {
	t.Parallel()
	s := newScript(t, stream("retry: 1\n"+event(1)+"id: evt_7_00000000\n\nid: evt_8_00000000\n"), stream(event(9)))
	ids, _, err := run(t, &follow.Feed{Get: s.get, Types: []string{"pet.created"}}, 2)
	if diff := cmp.Diff([]string{"evt_1_00000000", "evt_9_00000000"}, ids); diff != "" || !errors.Is(err, errEnough) {
		t.Errorf("events (-want +got):\n%s%v", diff, err)
	}
	for _, want := range []string{"type=pet.created", "after=evt_7_00000000&type=pet.created"} {
		if got := <-s.requests; got != want {
			t.Errorf("the request %q, want %q", got, want)
		}
	}
}
