package api_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	stores "petstore/internal/account"
	"petstore/internal/api"
	"petstore/internal/auth"
	feedevent "petstore/internal/event"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// TestLockedPetsOfOtherAccounts: another program keeps a pet of each of several accounts
// locked, and more orders wait for these pets than the server has connections. Orders of
// another account succeed meanwhile.
func TestLockedPetsOfOtherAccounts(t *testing.T) {
	t.Parallel()
	const locked, orders = 9, 50
	p := startAlone(t).patient() // with 8 connections
	tenants := p.sampleTenants(locked + 1)
	free := tenants[locked]
	lock := pgtest.Begin(t, p.db)
	for _, tenant := range tenants[:locked] {
		pgtest.Exec(t, lock, "SELECT pet_id FROM inventory WHERE account_id = $1 AND pet_id = 1 FOR UPDATE", tenant.account)
	}
	atOnce(t, locked+1, func(i int) error {
		if i < locked {
			_, err := tenants[i].try("POST", "/store/orders", object{"petId": 1})
			return err
		}
		if err := p.awaitWaiting(3); err != nil {
			return err
		}
		for range orders {
			free.post("/store/orders", object{"petId": 1}).want(201)
		}
		return lock.Rollback(t.Context())
	})
}

// TestLockedRecord: another program keeps the record of a sandbox locked, and more requests of its payer
// to empty it wait than the server has connections. Orders of another account succeed meanwhile.
func TestLockedRecord(t *testing.T) {
	t.Parallel()
	const deletions, orders = 16, 20
	p := startAlone(t).patient()
	free := p.sampleTenants(1)[0]
	clients := p.payer("waiting")
	sandbox := clients[2].sandboxID
	id := fmt.Sprint("sbx_", sandbox)
	clients[0].recordRequest(id)
	lock := pgtest.Begin(t, p.db)
	pgtest.Exec(t, lock, "SELECT FROM exchange_logs WHERE account_id = $1 FOR UPDATE", sandbox)
	atOnce(t, deletions+1, func(i int) error {
		if i < deletions {
			_, err := clients[0].try("DELETE", "/sandboxes/"+id+"/requests", nil)
			return err
		}
		if err := p.awaitWaiting(2); err != nil {
			return err
		}
		for range orders {
			free.post("/store/orders", object{"petId": 1}).want(201)
		}
		return lock.Rollback(t.Context())
	})
}

// watchers are streams that read when something changes.
type watchers struct {
	*turnstile // holds their reads

	change  func()
	waiting func() int // the streams that wait for a change
}

// watch opens streams of the record of a sandbox, or of the feed of an account, and waits until they
// wait. They have different filters, or the same.
func watch(t *testing.T, query string, streams int, same bool) *watchers {
	t.Helper()
	w := &watchers{turnstile: newTurnstile(t, query, func(o *api.Options) { o.RequestTimeout = time.Second })}
	client := w.inSandbox(stores.SampleEmpty)
	id, target := client.sandboxID, func(i int) string { return fmt.Sprint(ownRecord, "?apiKeyId=", 1+i) }
	w.change, w.waiting = func() { w.recordRequests(id, 1, 1) }, w.server.WaitingForRecords
	if query == "EventList" {
		client, target = w.petstore, func(i int) string { return "/events?after=latest&type=" + feedevent.TypeNames()[i] }
		w.change, w.waiting = func() { w.addEvents(w.accountID(), 1, "store.reset", 0) }, w.server.WaitingForEvents
	}
	w.prepare(func() {
		for i := range streams {
			if same {
				i = 0
			}
			client.stream(target(i))
		}
		need.Within(w.t, 30*time.Second, "the streams wait", func() bool { return w.waiting() == streams })
	})
	return w
}

// reads returns the number of reads that have begun.
func (w *watchers) reads() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all
}

// TestReadsOfStreams: something changes that many streams of an account watch, and their reads hang. At most
// two of them have a connection. All streams go on, although most get none within the time of a request.
// Streams with the same filter share a read.
func TestReadsOfStreams(t *testing.T) {
	t.Parallel()
	const streams, most = 12, 2
	for what, test := range map[string]struct {
		query   string
		same    bool
		hanging int // reads, until one has taken too long
	}{
		"requests":             {"ExchangesAfter", false, most},
		"requests, one filter": {"ExchangesAfter", true, 1},
		"events":               {"EventList", false, most},
		"events, one filter":   {"EventList", true, 1},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := watch(t, test.query, streams, test.same)
			w.change()
			need.Within(w.t, 30*time.Second, "a read that took too long is repeated", func() bool { return w.reads() > test.hanging })
			w.pass()
			need.Within(w.t, 30*time.Second, "all streams wait again", func() bool { return w.waiting() == streams })
			w.wantAtMost(most)
			if got := w.reads(); test.same && got > streams/2 {
				t.Errorf("%d streams took %d statements", streams, got)
			}
		})
	}
}

// TestReadsOfMessages: many sandboxes of an account wait for a message each, and their reads hang. At most
// two of them have a connection.
func TestReadsOfMessages(t *testing.T) {
	t.Parallel()
	const sandboxes, most = 8, 2
	w := &watchers{turnstile: newTurnstile(t, "MessageGetMany", func(o *api.Options) { o.RequestTimeout = time.Second })}
	clients, paths := make([]*petstore, sandboxes), make([]string, sandboxes)
	for i := range sandboxes {
		clients[i] = w.inSandbox(stores.SampleEmpty)
		paths[i] = clients[i].post("/messages", object{"message": "hi"}).want(202).header.Get("Location")
	}
	atOnce(t, sandboxes+1, func(i int) error {
		if i < sandboxes {
			for range 2 { // the first one gets 503 if it has no place in time
				if _, err := clients[i].try("GET", paths[i], nil, "Prefer", "wait=2"); err != nil {
					return err
				}
			}
			return nil
		}
		need.Within(w.t, 30*time.Second, "others read after them", func() bool { return w.reads() > most })
		w.pass()
		return nil
	})
	w.wantAtMost(most)
}

// TestReadsOfPages: an account and its sandboxes ask for many pages, and their reads hang. At most two of
// them have a connection, so that another account gets a page at once. Pages of pets without a filter have
// a third beside those that hang.
func TestReadsOfPages(t *testing.T) {
	t.Parallel()
	const pages = 20
	limit := func(path string) func(int) string {
		return func(i int) string { return fmt.Sprintf("%slimit=%d", path, 1+i) }
	}
	typed := func(i int) string { return "/events?type=" + feedevent.TypeNames()[i/3] }
	for what, test := range map[string]struct {
		query  string
		target func(int) string
		most   int
		header []string
	}{
		"messages": {"MessageList", limit("/messages?"), 2, nil},
		"all pets": {"PetList", func(i int) string {
			return fmt.Sprintf("/pets?limit=%d&sort=%s", 1+i, []string{"id", "-id", "name", "-name"}[i%4])
		}, 3, nil},
		"pets":         {"PetListOfStatus", limit("/pets?status=sold&"), 2, nil},
		"events":       {"FeedEnd", typed, 2, nil},
		"streams":      {"FeedEnd", typed, 2, []string{"Accept", "text/event-stream"}},
		"a record":     {"ExchangeList", limit(ownRecord + "?"), 2, nil},
		"record waits": {"ExchangesAfter", func(i int) string { return fmt.Sprint(ownRecord, "?apiKeyId=", 1+i) }, 2, []string{"Prefer", "wait=1"}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := &watchers{turnstile: newTurnstile(t, test.query, func(o *api.Options) { o.RequestTimeout = time.Minute })}
			clients := w.payer("busy")
			other := w.as(w.newKey("other", auth.Read))
			atOnce(t, pages+1, func(i int) error {
				switch {
				case i == pages:
					w.await(pages)
					other.get("/categories").want(200)
					w.pass()
				case what == "streams":
					clients[1+i%3].stream(test.target(i), test.header...)
				default: // the second key and the sandboxes, or only these
					own := clients[1:]
					if strings.HasPrefix(test.target(i), ownRecord) {
						own = clients[2:]
					}
					own[i%len(own)].do("GET", test.target(i), nil, test.header...).want(200)
				}
				return nil
			})
			w.wantAtMost(test.most)
		})
	}
}

// TestHangingReadsOfTwoPayers: reads of an account hang, and more of its requests wait. When a read of
// another account hangs too, its next request for the same page gets a read beside it.
func TestHangingReadsOfTwoPayers(t *testing.T) {
	t.Parallel()
	const requests, pages = 12, 6
	w := &watchers{turnstile: newTurnstile(t, "MessageList", func(o *api.Options) { o.RequestTimeout = time.Minute })}
	other := w.as(w.newKey("other", auth.Read))
	atOnce(t, requests+1, func(i int) error {
		if i < requests {
			w.get(fmt.Sprint("/messages?limit=", 1+i%pages)).want(200)
			return nil
		}
		w.await(requests)
		atOnce(t, 3, func(i int) error {
			if i < 2 {
				other.get("/messages").want(200)
				return nil
			}
			need.Within(w.t, 30*time.Second, "both accounts have two reads", func() bool { return w.reads() == 4 })
			w.pass()
			return nil
		})
		return nil
	})
}
