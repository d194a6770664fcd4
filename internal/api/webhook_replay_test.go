package api_test

import (
	"fmt"
	"slices"
	"testing"

	stores "petstore/internal/account"
	"petstore/internal/auth"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// replayed is the result of a replay, as a client sees it.
type replayed struct {
	Deliveries int
	Next       string
}

// dispatchAll marks all events of the test so far as dispatched, as the worker does.
func (p *petstore) dispatchAll() {
	p.t.Helper()
	p.exec("UPDATE webhooks SET after_sequence = last_sequence FROM account_state WHERE account_state.account_id = webhooks.account_id AND " + p.owned("webhooks.account_id"))
}

// deliverAll marks all deliveries of the test as delivered, as the worker does.
func (p *petstore) deliverAll() {
	p.t.Helper()
	p.exec("UPDATE webhook_deliveries SET status = 'delivered', next_attempt_at = NULL WHERE " + p.owned("account_id"))
}

// deliveredEvents returns the events of all deliveries of a webhook, oldest delivery first.
func (p *petstore) deliveredEvents(hook apiWebhook) []string {
	p.t.Helper()
	all := walk[delivery](p, hook.path()+"/deliveries?limit=200")
	slices.Reverse(all)
	return mapped(all, func(one delivery) string { return one.EventID + " " + one.Type + " " + one.Status })
}

func TestReplayWebhook(t *testing.T) {
	t.Parallel()
	p := start(t)
	hook := p.newWebhook("pet.created", "category.created")
	p.newPet("Rex", 1) // category.created, pet.created, inventory.updated
	p.newPet("Bello", 1)
	p.post("/messages", object{"message": "hello"}).want(202)
	p.dispatchAll()
	p.post("/categories", object{"name": "of an event that is not dispatched yet"}).want(201)
	events := decode[[]struct{ ID, Type string }](p.get("/events?limit=200").want(200))
	wanted := func(after int, types ...string) (want []string) {
		for _, one := range events[after : len(events)-1] {
			for _, name := range types {
				if one.Type == name {
					want = append(want, one.ID+" "+one.Type+" pending")
				}
			}
		}
		return want
	}
	beginning := p.eventID(0, 0)
	for _, test := range []struct {
		what  string
		body  object
		after int
		types []string
	}{
		{"without a cursor", object{}, 0, []string{"pet.created", "category.created"}},
		{"from the beginning", object{"after": beginning}, 0, []string{"pet.created", "category.created"}},
		{"one of its types", object{"after": beginning, "types": []string{"pet.created", "message.queued"}}, 0, []string{"pet.created"}},
		{"another type", object{"after": beginning, "types": []string{"message.queued"}}, 0, nil},
		{"after an event of its types", object{"after": events[1].ID}, 2, []string{"pet.created", "category.created"}},
		{"after the last that is dispatched", object{"after": events[len(events)-2].ID}, len(events) - 1, nil},
		{"after the last", object{"after": events[len(events)-1].ID}, len(events) - 1, nil},
	} {
		before := len(p.deliveredEvents(hook)) // of the replays before, which are delivered
		want := wanted(test.after, test.types...)
		got := decode[replayed](p.post(hook.path()+"/replay", test.body).want(202))
		need.Same(t, replayed{Deliveries: len(want)}, got, "%s", test.what)
		need.Same(t, append([]string{}, want...), append([]string{}, p.deliveredEvents(hook)[before:]...),
			"%s: deliveries", test.what)
		again := decode[replayed](p.do("POST", hook.path()+"/replay", test.body, "Idempotency-Key", "not valid").want(202))
		need.Same(t, 0, again.Deliveries,
			"%s: deliveries that a second replay adds to those that are pending", test.what)
		p.deliverAll()
	}
	need.Same(t, 2, len(wanted(0, "pet.created")), "events of pets")
	other := p.as(p.newKey("other", auth.Admin))
	other.newPet("Tom", 1)
	foreign := decode[[]feedEvent](other.get("/events?limit=1").want(200))[0]
	for _, cursor := range []string{p.eventID(0, 1), p.eventID(1, 0), p.eventID(4711, 1), foreign.ID, foreign.ID[:16] + events[0].ID[16:], foreign.ID[:16] + beginning[16:], "evt_0198c5f27d3a7c419b0e5a1f3c2d4e71"} {
		p.post(hook.path()+"/replay", object{"after": cursor}).wantError(410, "cursor_expired")
	}
	p.exec("DELETE FROM events WHERE sequence <= 2 AND account_id = $1", p.accountID())
	p.post(hook.path()+"/replay", object{"after": beginning}).wantError(410, "cursor_expired")
	expired := p.post(hook.path()+"/replay", object{"after": events[0].ID}).wantError(410, "cursor_expired")
	need.Contains(t, "the message", expired.error().Message, "Omit `after`")
	want := len(wanted(2, "pet.created", "category.created"))
	for _, body := range []object{{}, {"after": events[1].ID}} {
		if got := decode[replayed](p.post(hook.path()+"/replay", body).want(202)); got.Deliveries != want || want == 0 {
			t.Errorf("a replay %v of all events that are kept makes %d deliveries, want %d", body, got.Deliveries, want)
		}
		p.deliverAll()
	}
	p.exec("DELETE FROM events WHERE account_id = $1", p.accountID())
	for cursor, wants := range map[string][2]int{beginning: {410, 410}, events[2].ID: {410, 410}, events[len(events)-1].ID: {202, 200}} {
		p.post(hook.path()+"/replay", object{"after": cursor}).want(wants[0])
		p.get("/events?after=" + cursor).want(wants[1])
	}
}

// TestReplayOfPendingEvents: a replay leaves out the events whose delivery to this webhook is
// pending, and no others.
func TestReplayOfPendingEvents(t *testing.T) {
	t.Parallel()
	p := start(t)
	hook, other := p.newWebhook("category.created"), p.newWebhook("category.created")
	for i := range 4 {
		p.post("/categories", object{"name": fmt.Sprint("category ", i)}).want(201)
	}
	p.dispatchAll()
	replay := func(to apiWebhook, want int) {
		t.Helper()
		need.Same(t, want, decode[replayed](p.post(to.path()+"/replay", object{}).want(202)).Deliveries, "deliveries")
	}
	replay(hook, 4)
	replay(other, 4)
	for i, status := range []string{"delivered", "failed"} {
		p.exec("UPDATE webhook_deliveries SET status = $1, next_attempt_at = NULL WHERE webhook_id = $2 AND sequence = $3", status, hook.ID, i+1)
	}
	replay(hook, 2)
	replay(hook, 0)
	replay(other, 0)
}

// TestReplayToABacklog: an account with too many pending deliveries gets no more by a
// replay, whatever the webhook, and neither does a sandbox with fewer. Deliveries of a disabled webhook
// do not count, unless it is deleted.
func TestReplayToABacklog(t *testing.T) {
	t.Parallel()
	p := startAlone(t)
	// Rows without these need less than half of the CPU time.
	p.exec("ALTER TABLE webhook_deliveries DROP CONSTRAINT webhook_deliveries_webhook_id_fkey, DROP CONSTRAINT webhook_deliveries_id_check")
	p.exec("DROP INDEX webhook_deliveries_status_idx") // Citus drops one at a time
	p.exec("DROP INDEX webhook_deliveries_due_idx")
	inside := p.inSandbox(stores.SampleEmpty)
	for what, test := range map[string]struct {
		client  *petstore
		account int64
		most    int
	}{"an account": {p, p.accountID(), 100_000}, "a sandbox": {inside, inside.sandboxID, 1_000}} {
		t.Run(what, func(t *testing.T) {
			p := test.client.in(t)
			hook, other := p.newWebhook("category.created"), p.newWebhook("category.created")
			p.post("/categories", object{"name": "cats"}).want(201)
			p.dispatchAll()
			p.exec(`
				INSERT INTO webhook_deliveries (account_id, id, webhook_id, event_id, sequence, type, next_attempt_at)
				SELECT $2, 'dlv_' || lpad(to_hex(n), 32, '0'), $3, 'evt_00000000000000000000000000000000', 2, 'pet.created', now()
				FROM generate_series(1, $1::int) AS n`, test.most+1, test.account, hook.ID)
			for _, one := range []apiWebhook{hook, other} {
				p.post(one.path()+"/replay", object{}).wantError(409, "too_many_deliveries")
			}
			p.exec("DELETE FROM webhook_deliveries WHERE account_id = $1 AND id = 'dlv_' || lpad('1', 32, '0')", test.account)
			need.Same(t, 1, decode[replayed](p.post(hook.path()+"/replay", object{}).want(202)).Deliveries,
				"deliveries")
			p.patch(hook.path(), object{"status": "disabled"}).want(200)
			need.Same(t, 1, decode[replayed](p.post(other.path()+"/replay", object{}).want(202)).Deliveries,
				"deliveries beside a disabled webhook")
			p.del(hook.path()).want(204)
			p.post(other.path()+"/replay", object{}).wantError(409, "too_many_deliveries")
		})
	}
}

// TestReplayOfALongFeed: a client that sends next as after replays all of the feed.
func TestReplayOfALongFeed(t *testing.T) {
	t.Parallel()
	p := startAlone(t)
	hook := p.newWebhook("pet.created")
	const events = 20_002 // two full pages and a bit
	p.exec(`
		INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data)
		SELECT account_id, n, now(), n * 7, CASE WHEN n % 2 = 0 THEN 'pet.created' ELSE 'pet.deleted' END, '/pets/1', '{}'
		FROM account_state, generate_series(1, $1::int) AS n
		WHERE account_id = $2`, events, p.accountID())
	p.exec("UPDATE account_state SET last_sequence = $1::bigint, last_nonce = $1::bigint * 7 WHERE account_id = $2", events, p.accountID())
	p.dispatchAll()
	total, requests := 0, 0
	for after := p.eventID(0, 0); after != ""; requests++ {
		got := decode[replayed](p.post(hook.path()+"/replay", object{"after": after}).want(202))
		total += got.Deliveries
		after = got.Next
	}
	distinct := pgtest.Read[int](t, p.db, "SELECT count(DISTINCT event_id) FROM webhook_deliveries WHERE type = 'pet.created'")
	if want := events / 2; total != want || distinct != want || requests != 3 {
		t.Errorf("%d requests made %d deliveries of %d events, want 3 requests and %d events", requests, total, distinct, want)
	}
	var wrong int
	err := p.db.QueryRow(t.Context(), "SELECT count(*) FROM webhook_deliveries WHERE event_id <> 'evt_' || lpad(to_hex(account_id), 12, '0') || lpad(to_hex(sequence), 12, '0') || lpad(to_hex(sequence * 7), 8, '0')").Scan(&wrong)
	if err != nil || wrong > 0 {
		t.Errorf("%d deliveries with a wrong event id: %v", wrong, err)
	}
}
