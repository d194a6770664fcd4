package api_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	stores "petstore/internal/account"
	"petstore/internal/api"
	"petstore/internal/auth"
	eventids "petstore/internal/event" // another file declares event
	"petstore/internal/tools/need"
)

// waitFor sends a request that waits for what its target has next. The function that it returns
// waits for the response.
func (p *petstore) waitFor(target string) (received func() *response) {
	return p.begin("GET", target, nil, "Prefer", "wait=30")
}

// TestWaitsOutliveTimeouts: a stream, a waiting request and one with an injected delay outlive the
// timeouts of the HTTP server and the one of a request.
func TestWaitsOutliveTimeouts(t *testing.T) {
	t.Parallel()
	for version, listen := range map[string]func(*httptest.Server){
		"HTTP/1.1": (*httptest.Server).Start,
		"HTTP/2": func(s *httptest.Server) {
			s.EnableHTTP2 = true
			s.StartTLS()
		},
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			testWaitsOutliveTimeouts(t, listen)
		})
	}
}

func testWaitsOutliveTimeouts(t *testing.T, listen func(*httptest.Server)) {
	t.Helper()
	const timeout, requestTimeout = 2 * time.Second, 3 * time.Second
	p := start(t).inSandbox(stores.SampleEmpty)
	p = p.with(func(o *api.Options) { o.RequestTimeout, o.StreamPause = requestTimeout, timeout })
	pet := p.newPet("Rex", 10)
	p.setFaults(object{"operation": "listPets", "effect": "delay", "delayMs": requestTimeout.Milliseconds() + 200})
	_, next := p.feed("/events")
	listening := httptest.NewUnstartedServer(p.server)
	listening.Config.ReadTimeout, listening.Config.WriteTimeout, listening.Config.ReadHeaderTimeout = timeout, timeout, timeout
	listen(listening)
	t.Cleanup(listening.Close)
	limited := *p
	limited.url, limited.client = listening.URL, listening.Client()
	limited.client.Transport.(*http.Transport).DisableCompression = true
	limited.get("/pets").want(200)
	stream, waiting := limited.stream("/events?after=latest"), limited.waitFor(next)
	need.Within(p.t, 30*time.Second, "a stream and a request wait", func() bool { return p.server.WaitingForEvents() == 2 })
	// This takes longer than the timeouts, and reads the page after them.
	need.Same(t, "[]", string(limited.do("GET", next, nil, "Prefer", "wait=4").want(200).body),
		"the page after the wait")
	p.newOrder(pet, 1)
	events, _ := p.feed(next)
	stream.wantEvent(events[0])
	need.Same(t, 1, len(decode[[]feedEvent](waiting().want(200))), "events that the waiting request gets")
}

// TestStreamAfterLatest: a stream tells at once where it begins, so that its client misses nothing
// when it connects again.
func TestStreamAfterLatest(t *testing.T) {
	t.Parallel()
	p := start(t).inSandbox(stores.SampleShop)
	for i, target := range []string{ownRecord + "?after=latest", "/events?after=latest", ownRecord + "?after=latest"} { // the record is empty at first
		first := p.stream(target)
		first.wantLine("retry: 1000")
		if !first.lines.Scan() || !strings.HasPrefix(first.lines.Text(), "id: ") {
			t.Fatalf("the stream has the line %q: %v", first.lines.Text(), first.lines.Err())
		}
		last := strings.TrimPrefix(first.lines.Text(), "id: ")
		first.wantLine("")
		p.newPet(fmt.Sprint("Coco ", i), 1)
		again := p.stream(target, "Last-Event-ID", last)
		if fields, ok := again.next(); !ok || fields["id"] == last {
			t.Errorf("after %s, %s goes on with %d %v", last, target, again.status, fields)
		}
	}
}

// TestSilentStreams: a stream does not keep the events that it has sent.
func TestSilentStreams(t *testing.T) { //nolint:paralleltest // it measures the memory of all tests
	const streams, events, most = 24, 50, 8 << 20
	p := start(t)
	account := p.accountID()
	p.addEvents(account, events, "store.reset", 8000)
	heap := func() int64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	p.get("/pets").want(200)
	before := heap()
	for range streams {
		stream := p.stream("/events")
		for n := 1; n <= events; n++ {
			stream.wantNext("id", eventids.IDOf(account, int64(n), int64(n)).String())
		}
	}
	need.Within(p.t, 30*time.Second, "the streams wait", func() bool { return p.server.WaitingForEvents() == streams })
	if grown := heap() - before; grown > most {
		t.Errorf("%d silent streams need %d bytes", streams, grown)
	}
}

// TestRevokedWhileWaiting: a key that was revoked during a wait gets no response of the wait.
func TestRevokedWhileWaiting(t *testing.T) {
	t.Parallel()
	p := start(t)
	id, key := p.issue(auth.Read, nil)
	received := p.as(key).begin("GET", "/events?after=latest", nil, "Prefer", "wait=5")
	need.Within(p.t, 30*time.Second, "the request waits", func() bool { return p.server.WaitingForEvents() == 1 })
	p.revoke(id)
	received().wantError(401, "invalid_api_key")
}

// TestRevokedDuringARead: a read sends nothing to a key that was revoked while it waited for the database.
func TestRevokedDuringARead(t *testing.T) {
	t.Parallel()
	refused := func(target string, header ...string) func(*petstore) func() {
		return func(p *petstore) func() {
			received := p.begin("GET", target, nil, header...)
			return func() { received().wantError(401, "invalid_api_key") }
		}
	}
	for what, read := range map[string]func(*petstore) (wantNothing func()){
		"a list":                       refused("/pets"),
		"a page of the feed":           refused("/events"),
		"the first events of a stream": refused("/events", "Accept", "text/event-stream"),
		"a wait":                       refused("/events?after=latest", "Prefer", "wait=60"),
		"a stream": func(p *petstore) func() {
			s := p.stream("/events?after=latest")
			return func() {
				if event, ok := s.next(); ok {
					p.t.Errorf("the stream sends %v", event)
				}
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := newTurnstile(t, "PetList|EventList", func(o *api.Options) { o.RequestTimeout = time.Minute })
			p.setUp.Store(true)
			p.newPet("Rex", 1)
			waits := what == "a wait" || what == "a stream"
			p.setUp.Store(waits) // their first read finds nothing
			id, key := p.issue(auth.Read, nil)
			wantNothing := read(p.as(key))
			if waits {
				need.Within(p.t, 30*time.Second, "the request waits", func() bool { return p.server.WaitingForEvents() == 1 })
				p.setUp.Store(false)
				p.newPet("Lassie", 1)
			}
			<-p.arrived
			p.del(keyPath(id)).want(204)
			p.pass()
			wantNothing()
		})
	}
}

// TestSlowStream: a client that does not read its stream is disconnected, and other streams of the
// account go on meanwhile. The client loses nothing: it gets the rest with Last-Event-ID.
func TestSlowStream(t *testing.T) {
	t.Parallel()
	const events = 1500 // 12 MB, more than the kernel buffers
	p := start(t)
	p.addEvents(p.accountID(), events, "store.reset", 8000)
	_, key := p.issue(auth.Read, nil)
	slow := p.as(key).slowReader("/events", "Accept", "text/event-stream")
	other := p.stream("/events?after=" + p.eventID(events-1, events-1))
	other.wantNext("id", p.eventID(events, events))
	need.Within(p.t, 30*time.Second, "the stream has ended", func() bool { return strings.Count(p.log.String(), `"route":"/events"`) == 1 })
	last, received := readSlowly(p, slow)
	if received == 0 || received == events {
		t.Fatalf("the client has received %d events of %d before the end", received, events)
	}
	account := p.accountID() // once, so that this client does not read slowly itself
	rest := p.as(key).stream("/events", "Last-Event-ID", last)
	for n := received + 1; n <= events; n++ {
		rest.wantNext("id", eventids.IDOf(account, int64(n), int64(n)).String())
	}
	p.newPet("Rex", 1)
	other.wantNext("event", "category.created")
}

// readSlowly reads the rest of a stream that the server has ended. It returns the id of the
// last complete event and the number of events.
func readSlowly(p *petstore, conn net.Conn) (last string, received int) {
	t := p.t
	t.Helper()
	need.OK(t, conn.(*net.TCPConn).SetReadBuffer(1<<20))
	opened, err := http.ReadResponse(bufio.NewReader(conn), nil)
	need.OK(t, err)
	defer opened.Body.Close()
	lines := bufio.NewScanner(opened.Body)
	lines.Buffer(nil, 1<<20)
	account := p.accountID()
	s := &stream{t, opened.StatusCode, opened.Header, opened.Body, lines}
	for {
		fields, ok := s.next()
		if !ok {
			return last, received
		}
		var e feedEvent
		if received++; fields["id"] != eventids.IDOf(account, int64(received), int64(received)).String() || json.Unmarshal([]byte(fields["data"]), &e) != nil {
			t.Fatalf("event %d is %v", received, fields["id"])
		}
		last = fields["id"]
	}
}

// TestHeartbeats: a silent stream sends its position, and then comments. That holds for a
// stream of one type while events of other types happen all the time.
func TestHeartbeats(t *testing.T) {
	t.Parallel()
	const silence = 10 * time.Second
	var passed atomic.Int64
	p := start(t)
	busy := p.with(func(o *api.Options) {
		o.Now = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
	})
	pet := p.newPet("Rex", 1000)
	before, next := p.feed("/events")
	stream := busy.stream(next + "&type=message.queued")
	stream.wantLine("retry: 1000")
	need.Within(p.t, 30*time.Second, "the stream waits", func() bool { return busy.server.WaitingForEvents() == 1 })

	heartbeats := make(chan string, 1)
	go func() {
		defer close(heartbeats)
		for stream.lines.Scan() {
			if text := stream.lines.Text(); text != ":" { // before the first order, or between two
				heartbeats <- text
				return
			}
		}
	}()
	heartbeat, ok := "", true
	for ok && heartbeat == "" { // one order every few milliseconds
		p.newOrder(pet, 1)
		passed.Add(int64(silence))
		select {
		case heartbeat, ok = <-heartbeats:
		default:
		}
	}
	p.newOrder(pet, 1)
	all, _ := p.feed("/events")
	id, ok := eventids.ParseID(strings.TrimPrefix(heartbeat, "id: "))
	if number := int(id.Sequence); !ok || number < len(before) || number >= len(all) || heartbeat != "id: "+all[number-1].ID {
		t.Fatalf("the stream has %q while the events %d to %d happen", heartbeat, len(before)+1, len(all))
	}
	stream.wantLine("")

	passed.Add(int64(silence))
	newest := "id: " + all[len(all)-1].ID
	for stream.lines.Scan() && stream.lines.Text() != newest {
		if line := stream.lines.Text(); line != "" && line != ":" && !strings.HasPrefix(line, "id: ") {
			t.Fatalf("the stream has the line %q, want %q", line, newest)
		}
		passed.Add(int64(silence))
	}
	stream.wantLine("")
	for range 2 {
		passed.Add(int64(silence))
		stream.wantLine(":")
	}
	p.post("/messages", object{"message": "Hello"}).want(202)
	events, _ := p.feed("/events?type=message.queued")
	stream.wantEvent(events[0])
	again := busy.stream("/events?type=message.queued", "Last-Event-ID", strings.TrimPrefix(heartbeat, "id: "))
	again.wantEvent(events[0])
}

// wantLine fails the test unless the next line of the stream is this one.
func (s *stream) wantLine(want string) {
	s.t.Helper()
	if !s.lines.Scan() || s.lines.Text() != want {
		s.t.Fatalf("the stream has the line %q, want %q: %v", s.lines.Text(), want, s.lines.Err())
	}
}

// TestStreamAfterALostConnection: a stream whose read loses its connection reads again, and goes on.
func TestStreamAfterALostConnection(t *testing.T) {
	t.Parallel()
	p := startAlone(t).patient()
	pet := p.newPet("Rex", 10)
	_, next := p.feed("/events?after=latest")
	stream := p.stream(next)
	stream.wantLine("retry: 1000")
	release := p.lockTable("account_state", 0, func() {})
	account := p.accountID()
	need.Within(p.t, 30*time.Second, "the stream reads", func() bool {
		p.server.Announce(account)
		return p.terminate("query LIKE '%FeedEnd :one%' AND wait_event_type = 'Lock'") > 0
	})
	release()
	p.newOrder(pet, 1)
	stream.wantNext("event", "order.placed")
}

// terminate ends the connections of servers that fulfil a condition, and returns their number.
func (p *petstore) terminate(condition string) int {
	p.mustBeAlone()
	return p.count("(SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'petstore' AND " + condition + ") AS ended")
}

// TestCleanEndOfStream: the response of a stream that has been silent for longer than a
// client may take to read is complete at the shutdown.
func TestCleanEndOfStream(t *testing.T) {
	t.Parallel()
	const pause = 200 * time.Millisecond
	p := start(t).with(func(o *api.Options) { o.StreamPause = pause })
	_, next := p.feed("/events")
	stream := p.stream(next)
	stream.wantLine("retry: 1000")
	sent := time.Now()
	need.Within(p.t, 30*time.Second, "the time to read has passed", func() bool { return time.Since(sent) > 2*pause })
	need.Within(p.t, 30*time.Second, "the stream waits", func() bool { return p.server.WaitingForEvents() == 1 })
	p.server.ShutDown()
	if rest, err := io.ReadAll(stream.body); err != nil {
		t.Errorf("the stream ends with %q: %v", rest, err)
	}
}
