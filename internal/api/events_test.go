package api_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"petstore/internal/api"
	"petstore/internal/auth"
	eventids "petstore/internal/event" // another file declares event
	"petstore/internal/tools/need"
)

// feedEvent is the Event schema.
type feedEvent struct {
	ID        string                     `json:"id"`
	AccountID string                     `json:"accountId"`
	Sandbox   bool                       `json:"sandbox"`
	Sequence  int64                      `json:"sequence"`
	Type      string                     `json:"type"`
	Timestamp time.Time                  `json:"timestamp"`
	Subject   string                     `json:"subject"`
	Data      map[string]json.RawMessage `json:"data"`
}

// text returns the type, the subject and the data of an event.
func (e feedEvent) text() string {
	data, err := json.Marshal(e.Data)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s %s %s", e.Type, e.Subject, data)
}

// wantDescribed checks that an event has the data that its type describes.
func (e feedEvent) wantDescribed(t testing.TB) {
	t.Helper()
	i := slices.IndexFunc(eventids.Types, func(one eventids.Description) bool { return string(one.Type) == e.Type })
	if i < 0 {
		t.Errorf("the type %s has no description", e.Type)
		return
	}
	described := eventids.Types[i]
	for _, name := range described.Data {
		if e.Data[name] == nil {
			t.Errorf("no %s in the event %s", name, e.text())
		}
	}
	for name := range e.Data {
		if !slices.Contains(slices.Concat(described.Data, described.Changed), name) {
			t.Errorf("event.Types has no %[2]s for %[1]s, as the event %[3]s has", e.Type, name, e.text())
		}
	}
}

// feed reads the feed from a target on, until a page is empty.
func (p *petstore) feed(target string) (all []feedEvent, next string) {
	p.t.Helper()
	for next = target; ; {
		page := p.get(next).want(200)
		next = page.link("next")
		events := decode[[]feedEvent](page)
		if len(events) == 0 {
			return all, next
		}
		for _, e := range events {
			e.wantDescribed(p.t)
		}
		all = append(all, events...)
	}
}

// wantNumbered fails the test unless events are numbered from 1 without gaps, at times that
// do not decrease.
func wantNumbered(t testing.TB, events []feedEvent) {
	t.Helper()
	for i, e := range events {
		if id, ok := eventids.ParseID(e.ID); !ok || e.Sequence != int64(i)+1 || id.Sequence != e.Sequence {
			t.Fatalf("event %d is %+v", i+1, e)
		}
		if i > 0 && e.Timestamp.Before(events[i-1].Timestamp) {
			t.Errorf("event %d is of %s, the one before of %s", i+1, e.Timestamp, events[i-1].Timestamp)
		}
	}
}

// copyOfStore is the store of a client that applies all events of an account.
type copyOfStore map[string]map[string]string // representations by list and id

func (s copyOfStore) apply(t testing.TB, e feedEvent) {
	t.Helper()
	if e.Type == "store.reset" {
		t.Fatal("the store was reset")
	}
	_, verb, _ := strings.Cut(e.Type, ".")
	for field, data := range e.Data {
		list := map[string]string{"pet": "/pets", "inventory": "/store/inventory", "order": "/store/orders", "category": "/categories", "message": "/messages"}[field]
		if list == "" {
			t.Fatal(e.text())
		}
		id := itemID(t, list, data)
		if s[list] == nil {
			s[list] = map[string]string{}
		}
		s[list][id] = string(data)
		if deleted := verb == "deleted" || verb == "cancelled" && field == "order"; deleted {
			delete(s[list], id)
		}
	}
}

// itemID returns the id of an item of a list.
func itemID(t testing.TB, list string, item json.RawMessage) string {
	t.Helper()
	var named struct{ ID, PetID any }
	if err := json.Unmarshal(item, &named); err != nil {
		t.Fatalf("%v: %s", err, item)
	}
	if list == "/store/inventory" {
		return fmt.Sprint(named.PetID)
	}
	return fmt.Sprint(named.ID)
}

// store reads all lists of an account.
func (p *petstore) store() copyOfStore {
	p.t.Helper()
	all := copyOfStore{}
	for _, list := range []string{"/pets", "/store/inventory", "/store/orders", "/categories", "/messages"} {
		all[list] = map[string]string{}
		for _, item := range walk[json.RawMessage](p, list+"?limit=200") {
			all[list][itemID(p.t, list, item)] = string(item)
		}
	}
	return all
}

// TestFeedIsTheStore lets clients change a store in every way at the same time. A client
// that applies all events, read in pages meanwhile, then has what the lists return.
func TestFeedIsTheStore(t *testing.T) {
	t.Parallel()
	const clients, changes, names = 8, 25, 6
	p := start(t)
	category := p.newCategory("Other")
	var pets []int64
	for i := range names {
		pets = append(pets, p.newPet(fmt.Sprint("Rex ", i), 20))
	}
	foreign := p.as(p.newKey("other", auth.Write))
	foreign.newCategory("Foreign")

	var followed []feedEvent
	next := "/events?limit=20"
	var done atomic.Int64
	atOnce(t, clients+1, func(client int) (err error) {
		if client == clients {
			for done.Load() < clients {
				var events []feedEvent
				events, next = p.feed(next)
				followed = append(followed, events...)
			}
			return nil
		}
		defer done.Add(1)
		random := rand.New(rand.NewPCG(1, uint64(client)))
		for i := 0; i < changes && err == nil; i++ {
			err = p.change(random, category, pets, fmt.Sprintf("%d-%d", client, i))
		}
		return err
	})
	events, _ := p.feed(next)
	followed = append(followed, events...)
	wantNumbered(t, followed)
	if least := clients * changes / 2; len(followed) < least {
		t.Errorf("%d changes made only %d events, want %d", clients*changes, len(followed), least)
	}
	got := copyOfStore{"/pets": {}, "/store/inventory": {}, "/store/orders": {}, "/categories": {}, "/messages": {}}
	for _, e := range followed {
		got.apply(t, e)
	}
	need.Same(t, p.store(), got, "the store and the copy made of %d events (want: store, got: copy)", len(followed))
}

// change makes one change to a store, which may be refused.
func (p *petstore) change(random *rand.Rand, category int64, pets []int64, name string) error {
	pet := pets[random.IntN(len(pets))]
	var err error
	switch random.IntN(10) {
	case 0:
		_, err = p.try("POST", "/categories", object{"name": name})
	case 1:
		var made *response
		if made, err = p.try("POST", "/pets", object{"name": name, "categoryId": category}); err == nil {
			_, err = p.try("DELETE", made.header.Get("Location"), nil)
		}
	case 2:
		_, err = p.try("PATCH", fmt.Sprintf("/pets/%d", pet), object{"name": name})
	case 3:
		_, err = p.try("PATCH", fmt.Sprintf("/pets/%d", pet), object{"status": []string{"available", "pending", "sold"}[random.IntN(3)]})
	case 4:
		_, err = p.try("PUT", fmt.Sprintf("/store/inventory/%d", pet), object{"quantity": random.IntN(5)})
	case 5:
		_, err = p.try("POST", "/messages", object{"message": name})
	case 6:
		_, err = p.try("PATCH", fmt.Sprintf("/categories/%d", category), object{"description": name})
	default:
		var placed *response
		if placed, err = p.try("POST", "/store/orders", object{"petId": pet}, "Idempotency-Key", name); err != nil || placed.status != 201 {
			return err
		}
		switch path := placed.header.Get("Location"); random.IntN(3) {
		case 0:
			_, err = p.try("DELETE", path, nil)
		case 1:
			_, err = p.try("PATCH", path, object{"complete": true})
		}
	}
	return err
}

// TestEventFilter checks the filter by type and its cursors.
func TestEventFilter(t *testing.T) {
	t.Parallel()
	p := start(t)
	pet := p.newPet("Rex", 10)
	for range 3 {
		p.newOrder(pet, 1)
	}
	for target, want := range map[string][]string{
		"/events?type=order.placed":                              {"order.placed", "order.placed", "order.placed"},
		"/events?type=order.placed&limit=1":                      {"order.placed", "order.placed", "order.placed"},
		"/events?type=order.placed&type=pet.created":             {"pet.created", "order.placed", "order.placed", "order.placed"},
		"/events?type=store.reset":                               nil,
		"/events?after=latest":                                   nil,
		"/events?type=category.created&after=" + p.eventID(0, 0): {"category.created"},
	} {
		events, _ := p.feed(target)
		need.Same(t, want, mapped(events, func(e feedEvent) string { return e.Type }), "%s", target)
	}
	_, next := p.feed("/events?type=store.reset")
	for _, wait := range []string{"wait=0", "wait=1"} { // the link goes on after the events of other types
		p.newOrder(pet, 1)
		page := p.do("GET", next, nil, "Prefer", wait).want(200)
		events, _ := p.feed("/events")
		need.Same(t, "[]", string(page.body), "%s: a page of another type", wait)
		need.Same(t, "/events?after="+events[len(events)-1].ID+"&type=store.reset", page.link("next"),
			"%s: its link", wait)
	}
}

// TestLaterTypes: while a program of a later version runs too, events can have a type that this one
// does not know. A stream without a filter has them, and a webhook for all types gets them again.
func TestLaterTypes(t *testing.T) {
	t.Parallel()
	p := start(t)
	hook := p.newWebhook("*")
	p.addEvents(p.accountID(), 1, "pet.groomed", 0)
	p.addEvents(p.accountID(), 1, "store.reset", 0)
	p.dispatchAll()
	p.stream("/events").wantNext("event", "pet.groomed")
	p.stream("/events?type=store.reset").wantNext("event", "store.reset")
	for what, want := range map[string]int{`{}`: 2, `{"types": ["store.reset"]}`: 1} {
		got := decode[replayed](p.post(hook.path()+"/replay", json.RawMessage(what)).want(202))
		need.Same(t, want, got.Deliveries, "deliveries of a replay of %s", what)
		p.deliverAll()
	}
}

// TestExpiredCursor checks cursors that are not in the feed.
func TestExpiredCursor(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.newPet("Rex", 10)
	events, _ := p.feed("/events")
	first, _ := eventids.ParseID(events[0].ID)
	other := p.as(p.newKey("other", auth.Write))
	other.newPet("Tom", 10)
	foreign, _ := other.feed("/events")
	for after, want := range map[string]int{
		events[0].ID:                              200,
		events[len(events)-1].ID:                  200,
		foreign[0].ID:                             410,
		foreign[len(foreign)-1].ID:                410,
		p.eventID(99, 0):                          410,
		p.eventID(0, 1):                           410,
		p.eventID(2, int(first.Nonce)):            410,
		foreign[0].ID[:16] + events[0].ID[16:]:    410, // the number and the random part of an event of this account
		foreign[0].ID[:16] + p.eventID(0, 0)[16:]: 410,
		"evt_" + strings.Repeat("f", 32):          410,
		"evt_1":                                   400,
		"1":                                       400,
		strings.ToUpper(events[0].ID):             400,
		"evt_" + strings.ToUpper(strings.Repeat("f", 32)): 400,
		"evt_" + strings.Repeat("g", 32):                  400,
		events[0].ID + "00":                               400,
		events[0].ID[:34]:                                 400,
		"%00":                                             400,
	} {
		got := p.get("/events?after=" + after).want(want)
		if want == 410 {
			need.Contains(t, "the message", got.wantError(410, "cursor_expired").error().Message, events[0].ID) // the oldest event
		}
	}
	p.exec("DELETE FROM events WHERE sequence <= 2 AND account_id = $1", p.accountID())
	for _, after := range []string{p.eventID(0, 0), events[0].ID} {
		p.get("/events?after=" + after).want(410)
	}
	for _, target := range []string{"/events", "/events?after=" + events[1].ID} { // nothing is missing after the last deleted event
		kept, _ := p.feed(target)
		need.Same(t, events[2:], kept, "%s", target)
	}
	p.get("/events?type=store.reset&after=" + events[1].ID).want(200)
}

// TestWaitForEvents checks that an empty page waits for an event, and only as long as
// the client prefers.
func TestWaitForEvents(t *testing.T) {
	t.Parallel()
	p := start(t)
	pet := p.newPet("Rex", 10)
	_, next := p.feed("/events")
	waiting := p.waitFor(next + "&type=order.placed")
	need.Within(p.t, 30*time.Second, "a request waits", func() bool { return p.server.WaitingForEvents() == 1 })
	p.put(fmt.Sprintf("/store/inventory/%d", pet), object{"quantity": 5}).want(200) // of another type
	id := p.newOrder(pet, 1)
	got := waiting()
	events := decode[[]feedEvent](got.want(200))
	if len(events) != 1 || events[0].Subject != fmt.Sprintf("/store/orders/%d", id) || got.header.Get("Preference-Applied") != "wait=30" {
		t.Errorf("after the wait: %s %v", got.body, got.header)
	}
	empty := p.do("GET", got.link("next"), nil, "Prefer", "wait=1").want(200)
	need.Same(t, "[]", string(empty.body), "the page after the time")
	need.Same(t, got.link("next"), empty.link("next"), "the link after the time")
	need.Same(t, 0, p.server.WaitingForEvents(), "waiting requests")
}

// stream is an open stream of events.
type stream struct {
	t      testing.TB
	status int
	header http.Header
	body   io.ReadCloser
	lines  *bufio.Scanner
}

func (p *petstore) stream(target string, header ...string) *stream {
	p.t.Helper()
	header = append([]string{"Accept", "text/event-stream"}, header...)
	following := *p.client
	following.Timeout = 5 * time.Minute // of the whole stream
	opened, err := following.Do(p.request(p.t.Context(), "GET", target, nil, header...))
	need.OK(p.t, err)
	p.t.Cleanup(func() { opened.Body.Close() })
	if opened.StatusCode == http.StatusOK {
		theContract().check(p.t, opened.Request, nil, opened, nil)
	}
	return &stream{p.t, opened.StatusCode, opened.Header, opened.Body, bufio.NewScanner(opened.Body)}
}

// next returns the fields of the next event, and reports false at the end of the stream.
func (s *stream) next() (fields map[string]string, ok bool) {
	fields = map[string]string{}
	for s.lines.Scan() {
		name, value, _ := strings.Cut(s.lines.Text(), ": ")
		switch {
		case name != "":
			fields[name] = value
		case fields["data"] != "":
			return fields, true
		}
	}
	return nil, false
}

// wantEvent fails the test unless the next event of the stream is this one.
func (s *stream) wantEvent(want feedEvent) {
	s.t.Helper()
	fields, ok := s.next()
	var got feedEvent
	if err := json.Unmarshal([]byte(fields["data"]), &got); !ok || err != nil || fields["id"] != want.ID || fields["event"] != want.Type || got.text() != want.text() {
		s.t.Errorf("the stream has %v, want %+v", fields, want)
	}
}

// wantNext fails the test unless the next event of the stream has this value of a field.
func (s *stream) wantNext(field, value string) {
	s.t.Helper()
	if fields, ok := s.next(); !ok || fields[field] != value {
		s.t.Fatalf("the stream goes on with %v, want the %s %s (it ends: %t)", fields, field, value, !ok)
	}
}

// wantEnd fails the test unless the stream ends.
func (s *stream) wantEnd() {
	s.t.Helper()
	if fields, ok := s.next(); ok {
		s.t.Errorf("the stream goes on with %v, want its end", fields)
	}
}

// TestStream follows a stream from its beginning, from a cursor and after a new connection. An empty line
// ends an event only: some clients, such as the Python library httpx-sse, otherwise return an event without data.
func TestStream(t *testing.T) {
	t.Parallel()
	p := start(t)
	pet := p.newPet("Rex", 10)
	first, _ := p.feed("/events")
	raw := p.stream("/events")
	for _, want := range append([]string{"retry"}, slices.Repeat([]string{"id", "event", "data", ""}, len(first))...) {
		need.Same(t, true, raw.lines.Scan(), "whether the stream goes on")
		field, _, _ := strings.Cut(raw.lines.Text(), ":")
		need.Same(t, want, field, "the next field of the stream")
	}
	all := p.stream("/events")
	if all.status != 200 || all.header.Get("Content-Type") != "text/event-stream" || all.header.Get("Cache-Control") != "private, no-store" {
		t.Fatalf("%d %v", all.status, all.header)
	}
	for _, e := range first {
		all.wantEvent(e)
	}
	latest, orders := p.stream("/events?after=latest"), p.stream("/events?after=latest&type=order.placed")
	again := p.stream("/events?after=latest", "Last-Event-ID", first[1].ID)
	for _, e := range first[2:] {
		again.wantEvent(e)
	}
	p.put(fmt.Sprintf("/store/inventory/%d", pet), object{"quantity": 5}).want(200)
	p.newOrder(pet, 1)
	events, _ := p.feed("/events?after=" + first[len(first)-1].ID)
	for _, e := range events {
		all.wantEvent(e)
		latest.wantEvent(e)
		again.wantEvent(e)
	}
	orders.wantEvent(events[1])

	for _, bad := range []string{"evt_1", "latest"} {
		need.Same(t, 400, p.stream("/events", "Last-Event-ID", bad).status, "the status with Last-Event-ID: %s", bad)
	}
	need.Same(t, 410, p.stream("/events", "Last-Event-ID", p.eventID(99, 0)).status, "the status with an expired event")
}

// TestStreamsEnd checks that a stream ends when its key is revoked and when the server
// shuts down. A waiting request then ends too.
func TestStreamsEnd(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.listen()
	p.newPet("Rex", 10)
	_, next := p.feed("/events")
	id, key := p.issue(auth.Read, nil)
	revoked, kept := p.as(key).stream("/events?after=latest"), p.stream("/events?after=latest")
	p.revoke(id)
	revoked.wantEnd()
	waiting := p.waitFor(next)
	need.Within(p.t, 30*time.Second, "a stream and a request wait", func() bool { return p.server.WaitingForEvents() == 2 })
	p.server.ShutDown()
	kept.wantEnd()
	need.Same(t, "[]", string(waiting().want(200).body), "the response to the waiting request")
}

// TestStreamOfALostEvent: a stream ends after a failover that has lost the event up to which its client
// has all. The log has no error.
func TestStreamOfALostEvent(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.newPet("Rex", 10)
	stream := p.stream("/events?after=latest", "X-Request-Id", "lost")
	p.exec("UPDATE events SET nonce = 0 WHERE account_id = $1", p.accountID())
	p.newPet("Mia", 10)
	stream.wantEnd()
	p.wantLogged("lost", logLine{Level: "INFO", Status: 200})
}

// TestAcceptOfEvents checks which requests get a stream. Package httpjson tests more values of Accept.
func TestAcceptOfEvents(t *testing.T) {
	t.Parallel()
	p := start(t)
	for accept, want := range map[string]struct{ contentType, vary string }{
		"application/json;q=0.5, text/event-stream": {"text/event-stream", "Origin, Accept"},
		"text/event-stream;q=0.5, application/json": {"application/json", "Origin, Accept, Accept-Encoding"},
	} {
		got := p.stream("/events?after=latest", "Accept", accept)
		for name, value := range map[string]string{"Content-Type": want.contentType, "Vary": want.vary, "Cache-Control": "private, no-store"} {
			need.Same(t, value, got.header.Get(name), "Accept: %s: %s", accept, name)
		}
		got.body.Close()
	}
	for accept, status := range map[string]int{"application/json;q=0": 406, "application/json;q=0, */*": 200} {
		need.Same(t, status, p.stream("/events?after=latest", "Accept", accept).status, "Accept: %s: the status", accept)
	}
}

// TestStreamHoldsNoPlace checks that waiting requests leave all places to others.
func TestStreamHoldsNoPlace(t *testing.T) {
	t.Parallel()
	p := start(t).with(func(o *api.Options) { o.MaxInFlight = 4 }) // one for each account
	for range 3 {
		p.stream("/events?after=latest")
	}
	need.Within(p.t, 30*time.Second, "the streams wait", func() bool { return p.server.WaitingForEvents() == 3 })
	p.get("/pets").want(200)
}

// wantEvent fails the test unless text is a valid Event of the spec.
func wantEvent(t testing.TB, text []byte) {
	t.Helper()
	var value any
	need.OK(t, json.Unmarshal(text, &value))
	if err := theContract().document.Components.Schemas["Event"].Value.VisitJSON(value); err != nil {
		t.Errorf("%s is not an Event: %v", text, err)
	}
}
