package api_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// replayed is the result of a replay, as a client sees it.
type replayed struct {
	Deliveries int
	Next       string
}

// dispatchAll marks all events so far as dispatched, as the worker does.
func (p *petstore) dispatchAll() {
	p.t.Helper()
	_, err := p.db.Exec(p.t.Context(), "UPDATE webhooks SET after_sequence = last_sequence FROM account_state WHERE account_state.account_id = webhooks.account_id")
	if err != nil {
		p.t.Fatal(err)
	}
}

// deliveredEvents returns the events of all deliveries of a webhook, oldest delivery first.
func (p *petstore) deliveredEvents(hook apiWebhook) []string {
	p.t.Helper()
	var ids []string
	for _, one := range walk[delivery](p, hook.path()+"/deliveries?limit=200") {
		ids = append([]string{one.EventID + " " + one.Type + " " + one.Status}, ids...)
	}
	return ids
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
	const beginning = "evt_0_00000000"
	for _, test := range []struct {
		what  string
		body  object
		after int
		types []string
	}{
		{"from the beginning", object{"after": beginning}, 0, []string{"pet.created", "category.created"}},
		{"one of its types", object{"after": beginning, "types": []string{"pet.created", "message.queued"}}, 0, []string{"pet.created"}},
		{"another type", object{"after": beginning, "types": []string{"message.queued"}}, 0, nil},
		{"after an event of its types", object{"after": events[1].ID}, 2, []string{"pet.created", "category.created"}},
		{"after the last that is dispatched", object{"after": events[len(events)-2].ID}, len(events) - 1, nil},
		{"after the last", object{"after": events[len(events)-1].ID}, len(events) - 1, nil},
	} {
		before := len(p.deliveredEvents(hook))
		want := wanted(test.after, test.types...)
		got := decode[replayed](p.post(hook.path()+"/replay", test.body).want(202))
		if diff := cmp.Diff(replayed{Deliveries: len(want)}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.what, diff)
		}
		if diff := cmp.Diff(append([]string{}, want...), p.deliveredEvents(hook)[before:]); diff != "" {
			t.Errorf("%s: deliveries (-want +got):\n%s", test.what, diff)
		}
	}
	if len(wanted(0, "pet.created")) != 2 {
		t.Errorf("events %v", events)
	}
	for _, cursor := range []string{"evt_0_00000001", "evt_1_00000000", "evt_4711_5f0c9a1e"} {
		p.post(hook.path()+"/replay", object{"after": cursor}).wantError(410, "cursor_expired")
	}
	if _, err := p.db.Exec(t.Context(), "DELETE FROM events WHERE sequence <= 2"); err != nil {
		t.Fatal(err)
	}
	p.post(hook.path()+"/replay", object{"after": beginning}).wantError(410, "cursor_expired")
	p.post(hook.path()+"/replay", object{"after": events[1].ID}).wantError(410, "cursor_expired")
}

// TestReplayOfALongFeed: a client that sends next as after replays all of the feed.
func TestReplayOfALongFeed(t *testing.T) {
	t.Parallel()
	p := start(t)
	hook := p.newWebhook("pet.created")
	const events = 25_001
	if _, err := p.db.Exec(t.Context(), `
		INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data)
		SELECT account_id, n, now(), n * 7, CASE WHEN n % 2 = 0 THEN 'pet.created' ELSE 'pet.deleted' END, '/pets/1', '{}'
		FROM account_state, generate_series(1, $1::int) AS n
		WHERE account_id = $2`, events, p.accountID()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.db.Exec(t.Context(), "UPDATE account_state SET last_sequence = $1::bigint, last_nonce = $1::bigint * 7 WHERE account_id = $2", events, p.accountID()); err != nil {
		t.Fatal(err)
	}
	p.dispatchAll()
	total, requests := 0, 0
	for after := "evt_0_00000000"; after != ""; requests++ {
		got := decode[replayed](p.post(hook.path()+"/replay", object{"after": after}).want(202))
		total += got.Deliveries
		after = got.Next
	}
	var distinct int
	if err := p.db.QueryRow(t.Context(), "SELECT count(DISTINCT event_id) FROM webhook_deliveries WHERE type = 'pet.created'").Scan(&distinct); err != nil {
		t.Fatal(err)
	}
	if want := events / 2; total != want || distinct != want || requests != 3 {
		t.Errorf("%d requests made %d deliveries of %d events, want 3 requests and %d events", requests, total, distinct, want)
	}
	var wrong int
	err := p.db.QueryRow(t.Context(), "SELECT count(*) FROM webhook_deliveries WHERE event_id <> 'evt_' || sequence || '_' || lpad(to_hex(sequence * 7), 8, '0')").Scan(&wrong)
	if err != nil || wrong > 0 {
		t.Errorf("%d deliveries with a wrong event id: %v", wrong, err)
	}
}
