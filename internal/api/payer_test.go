package api_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	stores "petstore/internal/account"
	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/pgtest"
	"petstore/internal/ratelimit"
	"petstore/internal/tools/need"
)

// payer returns clients of one account, with two of its keys and the keys of two sandboxes.
func (p *petstore) payer(name string) []*petstore {
	p.t.Helper()
	one, other := p.as(p.newKey(name, auth.Admin)), p.as(p.newKey(name, auth.Admin))
	id := pgtest.Read[int64](p.t, p.db, "SELECT id FROM accounts WHERE name = $1", p.named(name))
	return []*petstore{one, other, p.sandbox(id, stores.SampleEmpty), p.sandbox(id, stores.SampleEmpty)}
}

// TestSharesOfStreamsAndLongPolls checks that the keys and sandboxes of a payer together have at most a
// quarter of all streams and of all requests that wait. Another payer still gets its own.
func TestSharesOfStreamsAndLongPolls(t *testing.T) {
	t.Parallel()
	const share = 200
	p := start(t)
	other := p.as(p.newKey("other", auth.Admin))
	for name, accept := range map[string]string{"streams of events": "text/event-stream", "requests that wait for a change": "application/json"} {
		t.Run(name, func(t *testing.T) {
			clients := p.in(t).payer(name)
			ctx, cancel := context.WithCancel(t.Context())
			var waiting sync.WaitGroup
			defer waiting.Wait()
			defer cancel()
			open := func(client *petstore) {
				request := client.request(ctx, "GET", "/events?after=latest", nil, "Accept", accept, "Prefer", "wait=30")
				waiting.Go(func() {
					received, err := http.DefaultTransport.RoundTrip(request)
					if err != nil {
						if ctx.Err() == nil {
							t.Error(err)
						}
						return
					}
					defer received.Body.Close()
					need.Same(t, http.StatusOK, received.StatusCode, "the status")
					<-ctx.Done()
				})
			}
			for i := range share {
				open(clients[i%len(clients)])
			}
			need.Within(t, 20*time.Second, "all places of the payer are in use", func() bool { return p.server.WaitingForEvents() == share })
			for _, client := range clients {
				refused := client.do("GET", "/events?after=latest", nil, "Accept", accept, "Prefer", "wait=30")
				refused.wantRejected(429, "too_many_concurrent_requests")
				need.Same(t, "Your account has too many "+name+". Wait until it has fewer.", refused.error().Message, "the message")
			}
			if name == "requests that wait for a change" { // a request with an invalid cursor does not wait
				clients[2].do("GET", ownRecord+"?operation=listPets&cursor=x", nil, "Prefer", "wait=30").wantError(400, "invalid_cursor")
			}
			open(other)
			need.Within(t, 30*time.Second, "the request of the other payer waits", func() bool { return p.server.WaitingForEvents() == share+1 })
			cancel()
			need.Within(t, 20*time.Second, "no request waits", func() bool { return p.server.WaitingForEvents() == 0 })
		})
	}
}

// TestOneResetAtATime checks that the resets of a payer run one after the other, and that
// requests of another payer do not wait for them.
func TestOneResetAtATime(t *testing.T) {
	t.Parallel()
	p := startAlone(t).patient()
	one, other := p.payer("one"), p.payer("other")
	reset := func(client *petstore) (done chan int) {
		done = make(chan int, 1)
		go func() {
			resp, err := client.try("POST", "/sandboxes/current/reset", nil)
			if err != nil {
				t.Error(err)
				resp = &response{}
			}
			done <- resp.status
		}()
		return done
	}
	release := p.locked(one[2].sandboxID, (*db.Queries).StoreLock)
	first := reset(one[2])
	need.OK(t, p.awaitWaiting(1))
	second := reset(one[3])
	for range 3 { // enough for a reset that does not wait
		need.Same(t, 204, <-reset(other[2]), "the status of a reset of another account")
	}
	isEarly := len(second) > 0
	release()
	need.Same(t, 204, <-first, "the status of the first reset of an account")
	status := <-second
	switch {
	case status == 429: // on a slow machine, the other resets take longer than the second one waits
		status = <-reset(one[3])
	case isEarly:
		t.Fatalf("the second reset of an account did not wait for the first: status %d", status)
	}
	need.Same(t, 204, status, "the status of the second reset of an account")
}

// TestOneDecodingAtATime: the large bodies of a payer are decoded one after the other, and redacted for the
// record of a sandbox. A request that waits for the database holds up none. Small bodies and other payers
// do not wait.
func TestOneDecodingAtATime(t *testing.T) {
	t.Parallel()
	const largeFrom = 4 << 10
	p := startAlone(t).patient()
	one, other := p.payer("one"), p.payer("other")
	payer := pgtest.Read[int64](t, p.db, "SELECT parent_id FROM accounts WHERE id = $1", one[2].sandboxID)
	for _, redacted := range []bool{false, true} {
		var created func() *response
		proceed := func() {
			created = one[2].begin("POST", "/categories", padded(fmt.Sprint("Redacted ", redacted), largeFrom))
		}
		if redacted {
			proceed = p.lockTable("categories", 1, proceed)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if err := p.server.Decodings().Take(ctx, payer, 1); err != nil {
			t.Fatal(err)
		}
		cancel()
		proceed()
		need.Within(t, 30*time.Second, "a decoding waits", p.server.Decodings().IsContended)
		one[1].do("POST", "/categories", padded("", largeFrom-1)).want(400)
		other[0].do("POST", "/categories", padded("", largeFrom)).want(400)
		p.server.Decodings().Give(payer, 1)
		created().want(201)
	}
}

// addEvents adds events of a type, with data of a size, to the feed of an account.
func (p *petstore) addEvents(account, count int64, kind string, bytes int) {
	p.t.Helper()
	need.OK(p.t, pgx.BeginFunc(p.t.Context(), p.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(p.t.Context(), `
			INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data)
			SELECT account_id, last_sequence + n, now(), n, $3, '/pets/1', json_strip_nulls(json_build_object('name', nullif(repeat('x', $4), '')))
			FROM account_state, generate_series(1, $2::bigint) AS n
			WHERE account_id = $1`, account, count, kind, bytes); err != nil {
			return err
		}
		_, err := tx.Exec(p.t.Context(), "UPDATE account_state SET last_sequence = last_sequence + $2::bigint, last_nonce = $2::bigint WHERE account_id = $1", account, count)
		return err
	}))
}

// TestWorkIsCharged checks that requests cost tokens for the rows that they read or write
// beyond the tokens of a usual request.
func TestWorkIsCharged(t *testing.T) {
	t.Parallel()
	p := startAlone(t)
	account := p.accountID()
	hook := p.newWebhook("pet.deleted")
	p.addEvents(account, 2_500, "pet.deleted", 0)
	p.dispatchAll()
	p.addEvents(account, 47_500, "pet.created", 0)
	const policy = `"key";q=40;w=40`
	limit := ratelimit.Limit{PerMinute: 60, Burst: 40}
	limited, clock := p.limited(limit, ratelimit.Limit{})

	limited.get("/events").want(200).wantLimit(policy, `"key";r=39;t=1`)
	limited.get("/pets").want(200).wantLimit(policy, `"key";r=38;t=2`) // a page of all types costs nothing more
	clock.move(time.Minute)
	page := limited.get("/events?type=order.placed").want(200)
	limited.get("/pets").want(200).wantLimit(policy, `"key";r=28;t=12`) // 1 for the page, 10 for its events, 1 for this request
	next := page.link("next")
	clock.move(time.Minute)

	// A request that waits looks on while the key has tokens, and then returns its position.
	waited := limited.do("GET", next, nil, "Prefer", "wait=20").want(200)
	need.Same(t, 0, len(decode[[]feedEvent](waited)), "events of a type that the feed does not have")
	if waited.link("next") == next {
		t.Error("the link of the page does not go on")
	}
	limited.get("/pets").want(200).wantLimit(policy, `"key";r=8;t=32`) // 1 for the request, and 10 for each of three pages

	p.exec(`INSERT INTO messages (account_id, id, message)
		SELECT $1, 'msg_' || lpad(n::text, 32, '0'), repeat('🐕', 2500) FROM generate_series(1, 20) AS n`, account)
	clock.move(time.Minute)
	limited.get("/messages?limit=5").want(200)
	limited.get("/messages?limit=20").want(200)
	limited.get("/pets").want(200).wantLimit(policy, `"key";r=34;t=6`) // 1 for each request, and 3 for 203 KB

	limited, clock = p.limited(ratelimit.Limit{PerMinute: 60, Burst: 160}, ratelimit.Limit{})
	need.Same(t, 2_500, decode[replayed](limited.post(hook.path()+"/replay", object{}).want(202)).Deliveries,
		"deliveries")
	limited.get("/pets").want(200).wantLimit(`"key";q=160;w=160`, `"key";r=33;t=127`) // 125 for the deliveries
	clock.move(3 * time.Minute)
	limited.post(hook.path()+"/replay", object{}).want(202)
	limited.get("/pets").want(200).wantLimit(`"key";q=160;w=160`, `"key";r=156;t=4`) // 2 for the events, which are pending
}

// TestLoadsAreCharged: a copy of a store costs ten requests, or more by its rows and messages. A reset also
// pays for what it deletes.
func TestLoadsAreCharged(t *testing.T) {
	t.Parallel()
	p := start(t)
	inside := p.sandbox(p.accountID(), stores.SampleEmpty)
	p.exec(`INSERT INTO categories (account_id, id, name, name_key)
		SELECT $1, n, n::text, n::text FROM generate_series(1, 2000) AS n`, inside.sandboxID)
	p.exec(`INSERT INTO messages (account_id, id, message)
		SELECT $1, 'msg_' || lpad(n::text, 32, '0'), repeat('🐕', 2500) FROM generate_series(1, 100) AS n`, inside.sandboxID)
	limited, clock := p.limited(ratelimit.Limit{PerMinute: 60, Burst: 100}, ratelimit.Limit{})
	costs := func(want int, what string, resp *response) (body []byte) {
		t.Helper()
		if resp.status >= 300 {
			t.Fatalf("%s: status %d: %s", what, resp.status, resp.body)
		}
		state := func(left int) string { return fmt.Sprintf(`"key";r=%d;t=%d`, left, 100-left) }
		resp.wantLimit(`"key";q=100;w=100`, state(100-want))
		left := 100 - want - 1 // the request that asks
		limited.get("/pets").want(200).wantLimit(`"key";q=100;w=100`, state(left))
		clock.move(time.Hour)
		return resp.body
	}
	sandboxID := func(body []byte) string { return decode[sandbox](&response{t: t, body: body}).ID }

	shop := sandboxID(costs(10, "a new shop", limited.post("/sandboxes", object{})))
	costs(10, "the reset of a shop", limited.post("/sandboxes/"+shop+"/reset", nil))
	costs(15, "a large sample", limited.post(samplesPath, object{"name": "large", "from": fmt.Sprint("sbx_", inside.sandboxID)}))
	large := sandboxID(costs(15, "a copy of it", limited.post("/sandboxes", object{"sample": "large"})))
	costs(45, "its reset", limited.post("/sandboxes/"+large+"/reset", nil))
}

// TestLoadsThatDoNothing: a copy or reset of a store that does nothing costs as much as another request. If it
// fails later, it costs what it has done.
func TestLoadsThatDoNothing(t *testing.T) {
	t.Parallel()
	const policy, cheap, expensive = `"key";q=100;w=100`, `"key";r=99;t=1`, `"key";r=90;t=10`
	p := start(t)
	inside := p.sandbox(p.accountID(), stores.SampleShop)
	limited, clock := p.limited(ratelimit.Limit{PerMinute: 60, Burst: 100}, ratelimit.Limit{}, func(o *api.Options) { o.RequestTimeout = 2 * time.Second })
	reset := fmt.Sprintf("/sandboxes/sbx_%d/reset", inside.sandboxID)

	limited.post("/sandboxes/sbx_1/reset", nil).want(404).wantLimit(policy, cheap)
	clock.move(time.Hour)
	limited.do("POST", reset, nil, "If-Match", otherTag).want(412).wantLimit(policy, cheap)
	clock.move(time.Hour)
	limited.post("/sandboxes", object{"sample": "absent"}).want(422).wantLimit(policy, cheap)
	clock.move(time.Hour)
	limited.post(samplesPath, object{"name": stores.SampleShop, "from": fmt.Sprint("sbx_", inside.sandboxID)}).want(409).wantLimit(policy, cheap)
	clock.move(time.Hour)
	release := p.locked(inside.sandboxID, (*db.Queries).StoreLock)
	limited.post(reset, nil).want(503).wantLimit(policy, cheap)
	release()
	clock.move(time.Hour)
	pgtest.Exec(t, pgtest.Begin(t, p.db), "SELECT FROM orders WHERE account_id = $1 FOR UPDATE", inside.sandboxID) // which the reset has counted before
	limited.post(reset, nil).want(503).wantLimit(policy, expensive)
}

// TestCatchingUpIsCharged: a stream that catches up costs a token for each 64 KiB, and pauses while its key
// owes one. After that, it follows live events for nothing.
func TestCatchingUpIsCharged(t *testing.T) {
	t.Parallel()
	const events, burst, page, live = 500, 5, 50, 30
	const policy = `"key";q=5;w=300`
	p := start(t)
	account := p.accountID()
	p.addEvents(account, events, "pet.created", 1150) // a page has a little more than 64 KiB
	limited, clock := p.limited(ratelimit.Limit{PerMinute: 1, Burst: burst}, ratelimit.Limit{})
	stream := limited.stream("/events")
	read := func(number int) {
		for range number {
			stream.wantNext("event", "pet.created")
		}
	}
	read(burst * page) // one token is for the request, so that it owes one now
	clock.move(10 * time.Second)
	stream.wantLine(":")
	for left := events - burst*page; left > 0; left -= page {
		clock.move(time.Minute)
		read(page)
	}
	limited.get("/pets").wantLimited("110") // it owes the last one
	clock.move(10 * time.Minute)
	for range live {
		limited.waits(1)
		p.addEvents(account, page, "pet.created", 0)
		limited.server.Announce(account)
		read(page)
	}
	limited.get("/pets").want(200).wantLimit(policy, `"key";r=4;t=60`)
}

// TestLargeEventsAreCharged: in a stream that catches up, a large event costs by its bytes.
func TestLargeEventsAreCharged(t *testing.T) {
	t.Parallel()
	const events = 100
	p := start(t)
	account := p.accountID()
	p.addEvents(account, events, "pet.created", 30_000)
	limited, _ := p.limited(ratelimit.Limit{PerMinute: 60, Burst: 60}, ratelimit.Limit{})
	stream := limited.stream("/events")
	for range events {
		stream.wantNext("event", "pet.created")
	}
	limited.waits(1)
	limited.get("/pets").want(200).wantLimit(`"key";q=60;w=60`, `"key";r=12;t=48`) // 46 for 2,953 KiB, and 1 for each request
}

// TestUsedUpFaults checks that one statement counts a request for all rules that are used up.
func TestUsedUpFaults(t *testing.T) {
	t.Parallel()
	const rules, matched = 20, 5
	p := start(t)
	pool, statements := openCounting(t, p.dbURL, "-- name: FaultCount ")
	p = p.inSandbox(stores.SampleEmpty)
	var all []object
	var want []int64
	for range rules {
		all = append(all, object{"operation": "listPets", "effect": "status", "status": 503, "first": 1})
		want = append(want, matched+1)
	}
	p.setFaults(all...)
	p.exec("UPDATE sandbox_faults SET matched = $1 WHERE account_id = $2", matched, p.sandboxID)
	p.with(func(o *api.Options) { o.DB = pool }).get("/pets").want(200)
	need.Same(t, 1, statements.Load(), "statements")
	need.Same(t, want, p.matched(), "counts of the rules")
}
