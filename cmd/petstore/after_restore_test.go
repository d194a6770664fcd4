package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"petstore/internal/event"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// sender sends requests to a server with a key.
type sender struct {
	t         *testing.T
	base, key string
}

// send sends a request with a header, if it has a name and a value.
func (c sender) send(method, target, body string, header ...string) exchanged {
	c.t.Helper()
	request := httpRequest{method: method, url: c.base + target, key: c.key, body: body}
	if len(header) > 0 {
		request.header = http.Header{header[0]: header[1:]}
	}
	return request.send(c.t)
}

func (e exchanged) next(t *testing.T) string {
	t.Helper()
	match := regexp.MustCompile(`<([^>]*)>; rel="next"`).FindStringSubmatch(e.header.Get("Link"))
	if match == nil {
		t.Fatalf("no next page: %+v", e)
	}
	return match[1]
}

// TestAfterRestore: after-restore makes cursors, tokens and places in records invalid, and ids and
// numbers that were lost do not come again. Every page of the feed leads over the skipped
// numbers, and so does a replay. The id of a lost event is no place to continue. A webhook gets
// store.reset.
func TestAfterRestore(t *testing.T) {
	t.Parallel()
	if pgtest.Is(pgtest.PgBouncer) {
		t.Skip("PgBouncer keeps the connections of a process that has ended")
	}
	database := pgtest.New(t)
	owner := []string{"DATABASE_URL=" + database.OwnerURL}
	environ := []string{"DATABASE_URL=" + database.URL, "PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_WEBHOOK_ALLOW=127.0.0.0/8"}
	hasTokens := !pgtest.Is(pgtest.Citus) // it has no replicas
	if hasTokens {
		environ = append(environ, "PETSTORE_REPLICA_URLS="+database.URL)
	}
	key := strings.TrimSpace(must(t, environ, "key", "create", "--account", "acme", "--scope", "admin"))
	sandbox := strings.TrimSpace(must(t, environ, "sandbox", "create", "--account", "acme"))
	must(t, environ, "sandbox", "create", "--account", "acme") // has no record yet
	p := begin(t, emptyDir, environ, "serve")
	base := p.address()
	c := sender{t, base, key}
	for i := range 3 {
		post(t, base+"/categories", key, fmt.Sprintf(`{"name": "Category %d"}`, i))
	}
	var told atomic.Bool
	receiver := need.Server(t, func(_ http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err == nil && strings.Contains(string(body), `"store.reset"`) {
			told.Store(true)
		}
	})
	hook := post(t, base+"/webhooks", key, fmt.Sprintf(`{"url": %q, "types": ["category.created", "store.reset"]}`, receiver.URL))
	made := c.send("POST", "/categories", `{"name": "Last"}`)
	token, lost := made.header.Get("Petstore-Consistency"), made.header.Get("Location")
	cursor := c.send("GET", "/categories?limit=1", "").next(t)
	page := strings.Replace(c.send("GET", "/events?limit=1", "").next(t), "&limit=1", "", 1)
	end := c.send("GET", "/events?after=latest", "").next(t)
	(sender{t, base, sandbox}).send("GET", "/pets", "")
	if hasTokens != (token != "") {
		t.Fatalf("the token %q: %+v", token, made)
	}
	wantRefusal(t, owner, "stop every process", "after-restore")
	p.end(syscall.SIGTERM)
	awaitDisconnected(t, database)
	if out := must(t, owner, "after-restore", "--nothing-lost"); strings.Contains(out, "store.reset") {
		t.Errorf("after-restore --nothing-lost: %q", out)
	}
	wantText(t, owner, "store.reset to 3 feeds", "after-restore")
	records := pgtest.Read[int](t, database.Pool, "SELECT count(*) FROM exchange_logs WHERE last_number >= $1", restoreSkip)
	need.Same(t, 2, records, "records that go on after the skipped numbers")

	p = begin(t, emptyDir, environ, "serve")
	base = p.address()
	c = sender{t, base, key}
	if got := c.send("GET", cursor, ""); got.status != 400 || !strings.Contains(got.body, "invalid_cursor") {
		t.Errorf("a cursor from before: %+v", got)
	}
	if got := c.send("GET", "/pets", "", "Prefer", "consistency="+token); hasTokens && (got.status != 400 || !strings.Contains(got.body, "invalid_consistency")) {
		t.Errorf("a token from before: %+v", got)
	}
	var id, before int64
	created := post(t, base+"/categories", key, `{"name": "New"}`)
	if n, err := fmt.Sscanf(lost+" "+created, "/categories/%d /categories/%d", &before, &id); n != 2 || id <= before+restoreSkip {
		t.Errorf("the category %s after %s: %v", created, lost, err)
	}
	var reset resetEvent
	for _, from := range []string{page, end} {
		for _, limit := range []string{"&limit=1", "&limit=200", "&type=store.reset"} {
			if reset = c.walkToReset(from + limit); reset.Sequence != 4+restoreSkip+1 {
				t.Errorf("from %s: the event %+v", from+limit, reset)
			}
		}
	}
	lostEvent, _ := event.ParseID(reset.ID)
	lostEvent.Sequence = 4 + 1
	if got := c.send("GET", "/events?after="+lostEvent.String(), ""); got.status != http.StatusGone {
		t.Errorf("after an event that was lost: %+v", got)
	}
	need.Within(t, patience, "the webhook gets store.reset", told.Load)
	c.wantReplayOverGap(hook)
	var sandboxes []struct{ ID string }
	if got := c.send("GET", "/sandboxes", ""); json.Unmarshal([]byte(got.body), &sandboxes) != nil || len(sandboxes) != 2 {
		t.Fatalf("the sandboxes: %+v", got)
	}
	if got := c.send("GET", "/sandboxes/"+sandboxes[0].ID+"/requests", ""); got.status != http.StatusOK || got.body != "[]" {
		t.Errorf("the record of a sandbox: %+v", got)
	}
}

// awaitDisconnected waits until PostgreSQL has noticed that all processes have ended.
func awaitDisconnected(t *testing.T, database *pgtest.Database) {
	t.Helper()
	need.Within(t, patience, "the connections of processes that have ended are closed", func() bool {
		open := pgtest.Read[int](t, database.Pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'petstore%'")
		return open == 0
	})
}

// resetEvent is an event.
type resetEvent struct {
	ID, Type string
	Sequence int64
}

// walkToReset follows the pages of the feed to the event store.reset.
func (c sender) walkToReset(target string) resetEvent {
	c.t.Helper()
	t := c.t
	for range 20 {
		page := c.send("GET", target, "")
		var events []resetEvent
		need.OK(t, json.Unmarshal([]byte(page.body), &events))
		for _, one := range events {
			if one.Type == "store.reset" {
				return one
			}
		}
		target = page.next(t)
	}
	t.Fatal("no page has the event store.reset")
	return resetEvent{}
}

// wantReplayOverGap waits until a replay ends before the skipped numbers, and requires that the
// next ones continue after them to the end.
func (c sender) wantReplayOverGap(hook string) {
	c.t.Helper()
	t := c.t
	replay := func(body string) (next string) {
		var replayed struct{ Next string }
		got := c.send("POST", hook+"/replay", body)
		if err := json.Unmarshal([]byte(got.body), &replayed); err != nil || got.status != http.StatusAccepted {
			t.Fatalf("a replay: %+v", got)
		}
		return replayed.Next
	}
	next := ""
	need.Within(t, patience, "a replay names an event to continue after", func() bool { next = replay(`{}`); return next != "" })
	for range 3 {
		if next = replay(fmt.Sprintf(`{"after": %q}`, next)); next == "" {
			return
		}
	}
	t.Errorf("replays do not end: the last one ends before %s", next)
}
