package api_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"petstore/db"
	"petstore/internal/auth"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// under sends a POST with an Idempotency-Key.
func (p *petstore) under(key, target string, body any) *response {
	p.t.Helper()
	return p.do("POST", target, body, "Idempotency-Key", key)
}

// wantReplay fails the test unless the response is a replay of first.
func (r *response) wantReplay(first *response) {
	r.t.Helper()
	r.wantHeader("Idempotent-Replayed", "true")
	first.wantHeader("Idempotent-Replayed", "")
	need.Same(r.t, first.status, r.status, "%s: the status of a replay", r.what)
	need.Same(r.t, string(first.body), string(r.body), "%s: the body (want: first, got: replay)", r.what)
	for _, name := range []string{"Location", "ETag", "Content-Type", "Cache-Control"} {
		need.Same(r.t, first.header.Values(name), r.header.Values(name), "%s: %s (want: first, got: replay)", r.what, name)
	}
}

// wantFresh fails the test unless the response has this status and is not a replay.
func (r *response) wantFresh(status int) *response {
	r.t.Helper()
	return r.want(status).wantHeader("Idempotent-Replayed", "")
}

// count counts the rows of a table that belong to the test and satisfy all conditions.
func (p *petstore) count(table string, conditions ...string) (rows int) {
	p.t.Helper()
	column := "account_id"
	if table == "accounts" {
		column = "id"
	}
	conditions = append(conditions, p.owned(column))
	return pgtest.Read[int](p.t, p.db, "SELECT count(*) FROM "+table+" WHERE "+strings.Join(conditions, " AND "))
}

// creation is a valid request of one POST operation.
type creation struct {
	target, table string
	status        int
	body, other   string
}

// creations returns a creation for each POST operation.
func (p *petstore) creations() []creation {
	p.t.Helper()
	pet := p.newPet(rand.Text(), 1_000)
	category := p.newCategory(rand.Text())
	return []creation{
		{"/pets", "pets", 201, fmt.Sprintf(`{"name": "Rex", "categoryId": %d}`, category), fmt.Sprintf(`{"name": "Max", "categoryId": %d}`, category)},
		{"/categories", "categories", 201, `{"name": "dogs <&>\u2028", "description": "é"}`, `{"name": "cats"}`},
		{"/store/orders", "orders", 201, fmt.Sprintf(`{"petId": %d, "shipDate": "2026-12-24T09:30:00.12+02:00"}`, pet), fmt.Sprintf(`{"petId": %d}`, pet)},
		{"/messages", "messages", 202, `{"message": "hello"}`, `{"message": "hello "}`},
	}
}

func TestReplay(t *testing.T) {
	t.Parallel()
	p := start(t)
	another := start(t).as(p.key) // another process
	for i, one := range p.creations() {
		before, key := p.count(one.table), fmt.Sprint("key-", i)
		first := p.under(key, one.target, one.body).wantFresh(one.status)
		for _, server := range []*petstore{p, another} {
			server.under(key, one.target, one.body).wantReplay(first)
		}
		need.Same(t, before+1, p.count(one.table), "rows after POST %s", one.target)

		// other bytes are another request, even with the same meaning
		for _, body := range []string{one.other, one.body + " "} {
			p.under(key, one.target, body).wantError(422, "idempotency_key_reused")
		}
		for _, elsewhere := range p.creations() {
			if elsewhere.target != one.target {
				p.under(key, elsewhere.target, elsewhere.body).wantError(422, "idempotency_key_reused")
			}
		}
		p.under(strings.ToUpper(key), one.target, one.other).wantFresh(one.status)
		p.post(one.target, strings.Replace(one.body, "dogs", "birds", 1)).wantFresh(one.status)
		p.under(key, one.target, one.body).wantReplay(first)
	}
}

// TestErrorsFreeTheKey: only successful responses are stored. After an error the key is free.
func TestErrorsFreeTheKey(t *testing.T) {
	t.Parallel()
	s := start(t).stage(on("available", 1))
	order := func(units int) string { return fmt.Sprintf(`{"petId": %d, "quantity": %d}`, s.pet, units) }
	for range 2 {
		s.under("x", "/store/orders", order(3)).wantError(409, "insufficient_stock")
		s.under("x", "/store/orders", `{"petId": 9999}`).wantError(422, "unknown_pet")
		s.under("x", "/pets", `{"name": "Rex", "categoryId": 9999}`).wantError(422, "unknown_category")
		s.under("x", "/store/orders", `{"petId": 0}`).wantError(400, "validation_failed")
	}
	s.newCategory("taken")
	s.under("x", "/categories", `{"name": "taken"}`).wantError(409, "category_exists")
	s.run(stocking(5)).want(200)
	first := s.under("x", "/store/orders", order(3)).wantFresh(201)
	s.under("x", "/store/orders", order(3)).wantReplay(first)
	s.wantShelf(on("available", 2, 3))
}

// TestUnavailabilityFreesTheKey: the key is also free after a 503, whose write was rolled back.
func TestUnavailabilityFreesTheKey(t *testing.T) {
	t.Parallel()
	s := startAlone(t).stage(on("available", 5))
	tx := pgtest.Begin(t, s.db)
	pgtest.Exec(t, tx, "LOCK TABLE idempotency_keys IN SHARE MODE") // the server cannot store a response
	s.under("x", "/store/orders", object{"petId": s.pet}).wantUnavailable()
	s.wantShelf(on("available", 5))
	pgtest.Rollback(t, tx)
	first := s.under("x", "/store/orders", object{"petId": s.pet}).wantFresh(201)
	s.under("x", "/store/orders", object{"petId": s.pet}).wantReplay(first)
	s.wantShelf(on("available", 4, 1))
}

// TestReplayInTheOrderOfChecks: a replay ignores the current state of the
// resources, but an invalid request is rejected.
func TestReplayInTheOrderOfChecks(t *testing.T) {
	t.Parallel()
	s := start(t).stage(on("available", 1))
	order := object{"petId": s.pet}
	first := s.under("x", "/store/orders", order).wantFresh(201)
	s.post("/store/orders", order).wantError(409, "pet_not_available")
	s.under("x", "/store/orders", order).wantReplay(first)
	s.del(first.header.Get("Location")).want(204)
	s.run(deleting).want(204)
	s.post("/store/orders", order).wantError(422, "unknown_pet")
	s.under("x", "/store/orders", order).wantReplay(first)

	category := s.under("y", "/categories", object{"name": "dogs"}).wantFresh(201)
	s.under("y", "/categories", object{"name": "dogs"}).wantReplay(category)

	key := []string{"Idempotency-Key", "x"}
	s.do("POST", "/store/nothing", order, key...).wantError(404, "route_not_found")
	s.as("x").under("x", "/store/orders", order).wantError(401, "invalid_api_key")
	s.do("POST", "/store/orders", order, append(key, "Accept", "text/html")...).wantError(406, "not_acceptable")
	s.do("POST", "/store/orders", order, append(key, "Content-Type", "text/plain")...).wantError(400, "unsupported_content_type")
	s.under("x", "/store/orders?x", order).wantError(400, "invalid_parameter")
	s.under("x", "/store/orders", strings.Repeat(" ", maxBodyBytes+1)).wantError(413, "body_too_large")
	s.under("x", "/store/orders", "{").wantError(400, "invalid_json")
	s.under("x", "/store/orders", object{"petId": 0}).wantError(400, "validation_failed")
	s.under("x", "/store/orders", order).wantReplay(first)
}

// TestInvalidIdempotencyKey: an invalid Idempotency-Key is reported after the
// parameters and before the body.
func TestInvalidIdempotencyKey(t *testing.T) {
	t.Parallel()
	p := start(t)
	all := p.creations()
	before := p.rows()
	for _, one := range all {
		body := []byte(one.body)
		for _, values := range [][]string{
			{""}, {strings.Repeat("x", 256)}, {"a b"}, {"a\tb"}, {"é"}, {"\xE9"}, {"x", "x"}, {"x", ""}, {"a, b"},
		} {
			p.withHeader("Idempotency-Key", values, "POST", one.target, body).
				wantViolations("invalid_idempotency_key", "Idempotency-Key invalid_format")
		}
		p.under("a b", one.target+"?x", one.body).wantError(400, "invalid_parameter")
		p.do("POST", one.target, one.body, "Idempotency-Key", "a b", "Content-Type", "text/plain").wantError(400, "unsupported_content_type")
		p.under("a b", one.target, strings.Repeat(" ", maxBodyBytes+1)).wantError(400, "invalid_idempotency_key")
		p.under("a b", one.target, "{").wantError(400, "invalid_idempotency_key")
	}
	p.wantRows(before)
	for _, key := range []string{"x", "X", "0", strings.Repeat("x", 255), `!"#$%&'()*+,-./:;<=>?@[\]^_{|}~` + "`", `"quoted"`, "%00", "';--"} {
		first := p.under(key, "/messages", object{"message": key}).wantFresh(202)
		p.under(key, "/messages", object{"message": key}).wantReplay(first)
	}
}

// TestIdempotencyKeyIsForPOST: other methods ignore the header.
func TestIdempotencyKeyIsForPOST(t *testing.T) {
	t.Parallel()
	s := start(t).stage(on("available", 5, 1, 2))
	for _, values := range [][]string{{"x"}, {""}, {"a b"}, {"x", "y"}} {
		s.withHeader("Idempotency-Key", values, "GET", s.petPath(), nil).wantFresh(200)
		for _, request := range []struct{ method, target, body string }{
			{"PATCH", s.petPath(), `{"name": "Rex"}`},
			{"PATCH", s.petPath(), `{"name": "Max"}`},
			{"PATCH", fmt.Sprintf("/categories/%d", s.category()), `{}`},
			{"PATCH", s.orderPath(0), `{}`},
			{"PUT", s.inventoryPath(), `{"quantity": 7}`},
		} {
			s.withHeader("Idempotency-Key", values, request.method, request.target, []byte(request.body)).wantFresh(200)
		}
	}
	s.withHeader("Idempotency-Key", []string{"x"}, "DELETE", s.orderPath(0), nil).wantFresh(204)
	s.withHeader("Idempotency-Key", []string{"x"}, "DELETE", s.orderPath(0), nil).wantError(404, "order_not_found")
	need.Same(t, 0, s.count("idempotency_keys"), "stored responses")
	s.under("x", "/store/orders", object{"petId": s.pet}).wantFresh(201)
}

// holding holds an Idempotency-Key of the client, like a running request, while happen runs.
func (p *petstore) holding(key string, happen func()) {
	p.t.Helper()
	ctx := p.t.Context()
	tx := pgtest.Begin(p.t, p.db)
	db.New(tx).IdempotencyKeysLock(ctx, []db.IdempotencyKeysLockParams{{AccountID: p.accountID(), Keys: []string{key}, ApiKeyIds: []int64{p.keyID()}}}).Query(func(_ int, rows []db.IdempotencyKeysLockRow, err error) {
		if err != nil || len(rows) != 1 {
			p.t.Fatalf("the lock of the key: %v, %v", rows, err)
		}
	})
	happen()
	pgtest.Rollback(p.t, tx)
}

// keyID returns the id of the first API key.
func (p *petstore) keyID() (id int64) {
	p.t.Helper()
	return pgtest.Read[int64](p.t, p.db, "SELECT min(id) FROM api_keys WHERE account_id = $1", p.accountID())
}

// TestIdempotencyKeyInUse: a second request with the key of a running request does not wait for it. Each API key
// has idempotency keys of its own, also within an account.
func TestIdempotencyKeyInUse(t *testing.T) {
	t.Parallel()
	p := start(t)
	another := p.as(p.newKey("tester", auth.Write))
	for _, one := range p.creations() {
		before := p.count(one.table)
		p.holding("x", func() {
			for _, body := range []string{one.body, one.other} {
				resp := p.under("x", one.target, body).wantError(409, "idempotency_in_progress")
				resp.wantHeader("Retry-After", "1")
			}
			p.under("x", one.target, "{}").wantError(400, "validation_failed")
		})
		need.Same(t, before, p.count(one.table), "rows after POST %s", one.target)
	}
	p.holding("x", func() {
		p.under("X", "/messages", object{"message": "another key"}).wantFresh(202)
		another.under("x", "/messages", object{"message": "another API key"}).wantFresh(202)
		p.post("/messages", object{"message": "no key"}).wantFresh(202)
	})
	p.under("x", "/messages", object{"message": "free again"}).wantFresh(202)
}

// TestIdempotencyKeyIsNoOtherLock gives an account the id of the API key. No
// Idempotency-Key takes the lock of its store, its sandboxes, its keys or its sweep.
func TestIdempotencyKeyIsNoOtherLock(t *testing.T) {
	t.Parallel()
	p := startAlone(t)
	id := decode[struct{ APIKey apiKey }](p.get("/account").want(200)).APIKey.ID
	p.exec("INSERT INTO accounts (id, name) VALUES ($1, 'with the id of the key') ON CONFLICT DO NOTHING", id)
	p.exec("INSERT INTO account_state (account_id) VALUES ($1) ON CONFLICT DO NOTHING", id)
	for _, lock := range []func(*db.Queries, context.Context, int64) error{
		(*db.Queries).StoreLock, (*db.Queries).SandboxesLock, (*db.Queries).KeysLock,
	} {
		p.locked(id, lock)
	}
	locked := need.Value(db.New(pgtest.Begin(t, p.db)).StoreTryLockSweep(t.Context(), id))(t)
	need.Same(t, true, locked, "whether the sweep is locked")
	for _, key := range []string{"store", "sandboxes", "keys", "sweep"} {
		p.under(key, "/categories", object{"name": key}).want(201)
	}
}

// TestRaceForOneIdempotencyKey: forty concurrent requests with the same key have one effect.
func TestRaceForOneIdempotencyKey(t *testing.T) {
	t.Parallel()
	const twins, rounds = 40, 3
	p := start(t)
	servers := []*petstore{p, start(t).as(p.key)}
	for range rounds {
		s := p.stage(on("available", 100))
		key := rand.Text()
		ends := map[string]int{}
		for _, resp := range allAtOnce(t, twins, func(i int) (*response, error) {
			return servers[i%2].try("POST", "/store/orders", object{"petId": s.pet, "quantity": 3}, "Idempotency-Key", key)
		}) {
			ends[fmt.Sprintf("%s %s", resp.brief(), resp.header.Get("Idempotent-Replayed"))]++
			if resp.status == 201 {
				resp.wantHeader("Location", fmt.Sprintf("/store/orders/%d", decode[order](resp).ID))
				resp.wantSame(p.get(resp.header.Get("Location")))
			} else {
				resp.wantError(409, "idempotency_in_progress").wantHeader("Retry-After", "1")
			}
		}
		need.Same(t, 1, ends["201 "], "requests that were not replays")
		t.Log(ends)
		s.wantShelf(on("available", 97, 3))
		p.under(key, "/store/orders", object{"petId": s.pet, "quantity": 3}).want(201)
	}
}

// age makes all stored responses of the test older.
func (p *petstore) age(by time.Duration) {
	p.t.Helper()
	// Citus rejects "created_at - interval", which depends on the time zone.
	p.exec("UPDATE idempotency_keys SET created_at = to_timestamp(extract(epoch FROM created_at - to_timestamp(0))::float8 - $1) WHERE "+p.owned("account_id"), by.Seconds())
}

func TestIdempotencyKeyExpires(t *testing.T) {
	t.Parallel()
	p := start(t)
	hello, bye := object{"message": "hello"}, object{"message": "good bye"}
	first := p.under("x", "/messages", hello).wantFresh(202)
	p.age(24*time.Hour - time.Minute)
	p.under("x", "/messages", hello).wantReplay(first)
	p.under("x", "/messages", bye).wantError(422, "idempotency_key_reused")
	p.age(time.Minute)

	second := p.under("x", "/messages", bye).wantFresh(202)
	p.under("x", "/messages", bye).wantReplay(second)
	p.age(24 * time.Hour)
	third := p.under("x", "/messages", bye).wantFresh(202)
	p.under("x", "/messages", bye).wantReplay(third)
	need.Same(t, 3, p.count("messages"), "messages")
	need.Same(t, 1, p.count("idempotency_keys"), "stored responses")
}
