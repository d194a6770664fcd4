package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"petstore/db"
	stores "petstore/internal/account"
	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

const sandboxesPath = "/sandboxes"

// sandbox is a sandbox, as a client sees it.
type sandbox struct {
	ID, Name, Sample     string
	CreatedAt, ExpiresAt time.Time

	Key apiKey `json:"apiKey"`
}

func (s sandbox) path() string { return sandboxesPath + "/" + s.ID }

func (p *petstore) newSandbox(name, sample string) sandbox {
	p.t.Helper()
	return decode[sandbox](p.post(sandboxesPath, object{"name": name, "sample": sample}).want(201))
}

func accountOf(s sandbox) string { return strings.TrimPrefix(s.ID, "sbx_") }

func (p *petstore) exec(sql string, args ...any) {
	p.t.Helper()
	pgtest.Exec(p.t, p.db, sql, args...)
}

func TestCreateSandbox(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, test := range []struct {
		what         string
		body         object
		name, sample string
		expiry       time.Duration // after now if the body has expiresAt, else of the default
		categories   int
	}{
		{"defaults", object{}, "sandbox", "shop", 24 * time.Hour, 12},
		{"all fields", object{"name": "ci 🐶", "sample": "empty", "expiresAt": nil}, "ci 🐶", "empty", 62 * time.Second, 0},
		{"the longest", object{"name": strings.Repeat("n", 100), "sample": "shop", "expiresAt": nil}, strings.Repeat("n", 100), "shop", 7*24*time.Hour - time.Second, 12},
	} {
		t.Run(test.what, func(t *testing.T) {
			p := p.in(t)
			expiresAt := time.Now().Add(test.expiry)
			_, given := test.body["expiresAt"]
			if given {
				test.body["expiresAt"] = expiresAt
			}
			resp := p.post(sandboxesPath, test.body).want(201)
			made := decode[sandbox](resp)
			if !given {
				expiresAt = made.CreatedAt.Add(test.expiry)
			}
			want := made
			want.Name, want.Sample, want.ExpiresAt = test.name, test.sample, expiresAt.Truncate(time.Microsecond)
			want.Key = apiKey{
				ID: made.Key.ID, Name: "sandbox", Scope: "admin", Prefix: made.Key.Secret[:17],
				CreatedAt: made.Key.CreatedAt, ExpiresAt: &want.ExpiresAt, Secret: made.Key.Secret,
			}
			need.Same(t, want, made, "the new sandbox")
			resp.wantHeader("Location", made.path())
			if made.ExpiresAt.Location() != time.UTC || time.Since(made.CreatedAt) > time.Hour {
				t.Errorf("created at %s, expires at %s", made.CreatedAt, made.ExpiresAt)
			}
			inside := p.as(made.Key.Secret)
			need.Same(t, test.categories, len(decode[[]category](inside.get("/categories").want(200))), "categories")
			account := decode[struct {
				ID     string
				APIKey apiKey
			}](inside.get("/account").want(200))
			need.Same(t, made.ID, account.ID, "the id of the account of the sandbox")
			want.Key.Secret, want.Key.LastUsedAt = "", account.APIKey.LastUsedAt
			need.Same(t, want.Key, account.APIKey, "the key of the sandbox")
			made.Key = apiKey{}
			for what, client := range map[string]*petstore{"the parent": p, "the sandbox": inside} {
				need.Same(t, made, decode[sandbox](client.get(made.path()).want(200)),
					"read by %s (want: created, got: read)", what)
			}
		})
	}
}

// TestSandboxBodies: TestFields has the other values of each field.
func TestSandboxBodies(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, after := range []time.Duration{59 * time.Second, 7*24*time.Hour + time.Hour} {
		body := object{"sample": "Shop", "expiresAt": time.Now().Add(after)}
		p.post(sandboxesPath, body).wantViolations("validation_failed", "/sample invalid_format", "/expiresAt out_of_range")
	}
	p.do("POST", sandboxesPath, object{}, "Idempotency-Key", "key").wantViolations("invalid_idempotency_key", "Idempotency-Key not_allowed")
	need.Same(t, 1, p.count("accounts"), "accounts")
}

// dump returns the store that the key of the client sees, as the API shows it, with a
// line for each item.
func (p *petstore) dump() []byte {
	p.t.Helper()
	var text bytes.Buffer
	for _, target := range []string{"/categories", "/pets", "/store/orders", "/store/inventory", "/messages"} {
		fmt.Fprintln(&text, target)
		for _, item := range walk[json.RawMessage](p, target+"?limit=200") {
			fmt.Fprintf(&text, "%s\n", item)
		}
	}
	return text.Bytes()
}

var update = flag.Bool("update", false, "write the golden files of this package")

// TestSampleShop checks that the sample shop is the same in every version of Petstore. A difference
// breaks the tests of clients. TestSameIDs compares two sandboxes.
func TestSampleShop(t *testing.T) {
	t.Parallel()
	const golden = "testdata/sample_shop.txt"
	p := start(t)
	p.newPet("Igor", 1) // advances the sequences
	made := p.inSandbox(stores.SampleShop).dump()
	if *update {
		need.OK(t, os.WriteFile(golden, made, 0o600))
	}
	want := need.Value(os.ReadFile(golden))(t)
	if diff := cmp.Diff(string(want), string(made)); diff != "" {
		t.Errorf("the sample shop differs from %s (-want +got):\n%.2000s", golden, diff)
	}
}

// TestListSandboxes checks the pages of the list, and that it leaves out other accounts,
// deleted and expired sandboxes.
func TestListSandboxes(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.as(p.newKey("stranger", auth.Admin)).newSandbox("of a stranger", "empty")
	var made []sandbox
	for i := range 7 {
		made = append(made, p.newSandbox(fmt.Sprint(i), "empty"))
	}
	p.del(made[2].path()).want(204)
	p.exec("UPDATE accounts SET expires_at = now() WHERE id = $1", accountOf(made[4]))
	walkAll(p, sandboxesPath, nil, mapped([]int{0, 1, 3, 5, 6}, func(i int) sandbox {
		made[i].Key = apiKey{} // the list has no key
		return made[i]
	}))
	for _, i := range []int{2, 4} {
		p.get(made[i].path()).wantError(404, "sandbox_not_found")
		p.del(made[i].path()).wantError(404, "sandbox_not_found")
		p.post(made[i].path()+"/reset", nil).wantError(404, "sandbox_not_found")
	}
}

// TestSandboxOfTheKey checks what a key of a sandbox may do with sandboxes.
func TestSandboxOfTheKey(t *testing.T) {
	t.Parallel()
	p := start(t)
	one := p.newSandbox("one", "shop")
	inside := p.as(one.Key.Secret)
	need.Same(t, one.ID, decode[sandbox](inside.get("/sandboxes/current").want(200)).ID, "the current sandbox")
	inside.post(sandboxesPath, object{}).wantError(409, "nested_sandbox")
	need.Same(t, "[]", string(inside.get(sandboxesPath).want(200).body), "the sandboxes of a sandbox")
	p.get("/sandboxes/current").wantError(409, "not_a_sandbox")
	p.del("/sandboxes/current").wantError(409, "not_a_sandbox")
	p.post("/sandboxes/current/reset", nil).wantError(409, "not_a_sandbox")

	writer := decode[apiKey](inside.post(keysPath, object{"name": "writer", "scope": "write"}).want(201))
	need.Same(t, &one.ExpiresAt, writer.ExpiresAt, "expiresAt of a key of the sandbox")
	p.as(writer.Secret).post("/sandboxes/current/reset", nil).wantError(403, "insufficient_scope")
	p.as(writer.Secret).get("/pets").want(200)
	inside.del("/sandboxes/current").want(204)
	inside.get("/pets").wantError(401, "invalid_api_key")
	p.as(writer.Secret).get("/pets").wantError(401, "invalid_api_key")
	p.get(one.path()).wantError(404, "sandbox_not_found")
}

// TestResetWakes: a reset wakes the requests and the worker that wait for events. The sample has no
// events, so the first reset has the event 1.
func TestResetWakes(t *testing.T) {
	t.Parallel()
	announced := make(chan int64, 1)
	p := start(t).with(func(o *api.Options) { o.Announce = func(accountID int64) { announced <- accountID } })
	inside := p.inSandbox("shop")
	stream := inside.stream("/events?after=latest")
	inside.do("POST", "/sandboxes/current/reset", nil).want(204)
	select {
	case got := <-announced:
		if got != inside.sandboxID {
			t.Errorf("the account %d has new events, want %d", got, inside.sandboxID)
		}
	default:
		t.Error("the worker learns of no new event")
	}
	stream.wantNext("event", "store.reset")
	if events, _ := inside.feed("/events"); len(events) != 1 || events[0].Sequence != 1 {
		t.Errorf("after a reset, the sandbox has the events %+v", events)
	}
}

// TestResetSandbox checks that a reset restores the sample, removes messages, ends the
// replay of stored responses and keeps the keys.
func TestResetSandbox(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, sample := range []string{"shop", "empty"} {
		one := p.newSandbox(sample, sample)
		inside := p.as(one.Key.Secret)
		reader := inside.makeKey("reader", "read")
		hook := inside.newWebhook("*")
		inside.do("POST", hook.path()+"/test", nil).want(202)
		before := inside.dump()
		order := object{"petId": inside.newPet("Igor", 9)}
		first := inside.under("key", "/store/orders", order).want(201)
		inside.under("key", "/store/orders", order).wantReplay(first)
		hello := inside.under("hello", "/messages", object{"message": "hello"}).want(202)
		if sample == "shop" {
			inside.patch("/pets/1", object{"name": "Fido"}).want(200)
			inside.del("/store/orders/1").want(204)
			inside.put("/store/inventory/3", object{"quantity": 77}).want(200)
		}
		p.do("POST", one.path()+"/reset", nil, "Idempotency-Key", "ignored\t", "Content-Type", "text/plain").want(204)
		need.Same(t, string(before), string(inside.dump()), "%s, after a reset (want: before, got: after)", sample)
		again := inside.under("hello", "/messages", object{"message": "hello"}).want(202)
		if again.header.Get("Idempotent-Replayed") != "" || bytes.Equal(again.body, hello.body) {
			t.Errorf("%s, after a reset, the server replayed %s", sample, again.body)
		}
		inside.under("hello", "/messages", object{"message": "hello"}).wantReplay(again)
		p.as(reader.Secret).get("/pets").want(200)
		need.Same(t, 1, len(walk[delivery](inside, hook.path()+"/deliveries")), "%s: deliveries after a reset", sample)
		inside.under("key", "/store/orders", object{"petId": inside.newPet("Igor", 1)}).want(201)
		inside.post("/sandboxes/current/reset", nil).want(204)
	}
}

// TestDeleteSandbox checks that a deleted sandbox is gone at once for this process, and
// within a second for another.
func TestDeleteSandbox(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	p, other := startOn(t, database), startOn(t, database)
	other.listen()
	one := p.newSandbox("one", "shop")
	inside := p.as(one.Key.Secret)
	second := inside.makeKey("second", "write")
	for _, key := range []string{one.Key.Secret, second.Secret} {
		other.as(key).get("/pets").want(200)
	}
	p.del(one.path()).want(204)
	deleted := time.Now()
	inside.get("/pets").wantError(401, "invalid_api_key")
	for _, key := range []string{one.Key.Secret, second.Secret} {
		if err := other.as(key).stops(deleted); err != nil {
			t.Error(err)
		}
	}
	p.del(one.path()).wantError(404, "sandbox_not_found")
}

func (p *petstore) sweepAccounts() {
	p.t.Helper()
	if err := stores.Sweep(p.t.Context(), p.pool); err != nil {
		p.t.Error(err)
	}
}

// TestManySandboxesAtOnce checks that an account can create 100 sandboxes at the same
// time, and no more. Its client sends a request again that has waited too long.
func TestManySandboxesAtOnce(t *testing.T) {
	t.Parallel()
	p := startAlone(t).with(func(o *api.Options) { o.RequestTimeout = time.Minute })
	const requests = stores.MaxSandboxes + 10
	var shops atomic.Int64
	ends := outcomes(allAtOnce(t, requests, func(i int) (resp *response, err error) {
		sample := []string{"shop", "empty", "empty", "empty"}[i%4]
		resp, err = p.try("POST", sandboxesPath, object{"sample": sample})
		for err == nil && resp.status == 429 {
			resp, err = p.try("POST", sandboxesPath, object{"sample": sample})
		}
		if err == nil && resp.status == 201 && sample == "shop" {
			shops.Add(1)
		}
		return resp, err
	}))
	want := map[string]int{"201": stores.MaxSandboxes, "409 too_many_sandboxes": requests - stores.MaxSandboxes}
	need.Same(t, want, ends, "new sandboxes")
	need.Same(t, int(shops.Load()+1)*200, p.count("pets"), "pets of %d shops and the sample", shops.Load())
	p.del(walk[sandbox](p, sandboxesPath)[0].path()).want(204)
	p.newSandbox("after a deletion", "empty")
	p.post(sandboxesPath, object{}).wantError(409, "too_many_sandboxes")
	p.post(sandboxesPath, object{"sample": "typo"}).wantError(422, "unknown_sample")
	p.as(p.newKey("another", auth.Admin)).newSandbox("of another account", "empty")
}

// TestLockedAccountLeavesConnections checks that requests that wait for a lock of one
// account leave connections to the writes of others.
func TestLockedAccountLeavesConnections(t *testing.T) {
	t.Parallel()
	const share = 2 // of the five connections that may wait for locks
	p := startAlone(t)
	one := p.newSandbox("one", "shop")
	inside, other := p.as(one.Key.Secret), p.as(p.newKey("other", auth.Admin))
	id, _ := stores.ParseSandboxID(one.ID)
	rotated := rotatePath(inside.makeKey("rotated", "read").ID)
	counted := []string{"/pets", "/categories", "/store/orders", "/store/inventory", "/messages", "/events", "/webhooks", keysPath, "/account", "/pets/1", "/categories/1", "/store/inventory/1"}
	var rules []object
	for _, operation := range []string{"listPets", "listCategories", "listOrders", "listInventory", "listMessages", "listEvents", "listWebhooks", "listAPIKeys", "getAccount", "getPet", "getCategory", "getInventoryItem"} {
		rules = append(rules, object{"operation": operation, "effect": "delay", "delayMs": 1})
	}
	inside.setFaults(rules...)
	store := func() (release func()) { return p.locked(id, (*db.Queries).StoreLock) }
	faults := func() (release func()) { return p.locked(id, (*db.Queries).FaultRestart) }
	keys := func() (release func()) { return p.locked(p.accountID(), (*db.Queries).KeysLock) }
	named := func(i int) object { return object{"name": fmt.Sprint("new ", i)} }
	type pending = func() *response
	for _, test := range []struct {
		what    string
		waiting int
		lock    func() (release func())
		send    func(i int) pending
	}{
		{"updates", 1, store, func(i int) pending { return inside.begin("PATCH", "/pets/1", named(i)) }},
		{"categories", share, store, func(i int) pending { return inside.begin("POST", "/categories", named(i)) }},
		{"messages", 1, store, func(int) pending { return inside.begin("POST", "/messages", object{"message": "hello"}) }},
		{"rotations", share, store, func(int) pending { return inside.begin("POST", rotated, object{}) }},
		{"counts of faults", share, faults, func(i int) pending { return inside.begin("GET", counted[i%len(counted)], nil) }},
		{"fault rules", 1, store, func(int) pending {
			return p.begin("PUT", one.path()+"/faults", object{"rules": []object{}})
		}},
		{"keys", share, keys, func(i int) pending {
			return p.begin("POST", keysPath, object{"name": fmt.Sprint(i), "scope": "read"})
		}},
	} {
		release := test.lock()
		var received []pending
		for i := range 20 {
			received = append(received, test.send(i))
		}
		need.OK(t, p.awaitWaiting(test.waiting))
		for i := range 10 {
			other.post("/categories", object{"name": fmt.Sprint(test.what, i)}).want(201)
		}
		release()
		for _, receive := range received {
			if resp := receive(); resp.status >= 400 {
				resp.wantError(503, "unavailable")
			}
		}
	}
}

// TestResetWhileOthersWrite checks that a reset during writes leaves the sample and what
// the server acknowledged after the reset, and nothing else.
func TestResetWhileOthersWrite(t *testing.T) {
	t.Parallel()
	p := start(t)
	one := p.newSandbox("one", "shop")
	inside := p.as(one.Key.Secret)
	before := decode[[]object](inside.get("/messages").want(200))
	need.Same(t, 0, len(before), "messages of the sample")
	const writers = 16
	type write struct {
		text       string // ids begin again after a reset
		sent, done time.Time
	}
	var mu sync.Mutex
	var written []write
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for i := range writers {
		group.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				sent := time.Now()
				resp, err := inside.try("POST", "/messages", object{"message": fmt.Sprintf("%d %d", i, n)})
				if err != nil {
					t.Error(err)
					return
				}
				if resp.status == 202 {
					mu.Lock()
					written = append(written, write{decode[message](resp).Message, sent, time.Now()})
					mu.Unlock()
				}
				if n%4 == 0 {
					inside.patch([]string{"/pets/1", "/pets/2"}[i%2], object{"name": "changed"})
				}
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(written)
	}
	need.Within(t, 20*time.Second, "clients write", func() bool { return count() > 10*writers })
	var began, ended time.Time
	for range 3 {
		began = time.Now()
		p.post(one.path()+"/reset", nil).want(204)
		ended = time.Now()
		seen := count()
		need.Within(t, 20*time.Second, "clients write after the reset", func() bool { return count() > seen+writers })
	}
	stop()
	group.Wait()

	left := map[string]bool{}
	for _, one := range walk[message](inside, "/messages?limit=200") {
		left[one.Message] = true
	}
	after := 0
	for _, one := range written {
		switch {
		case one.done.Before(began) && left[one.text]:
			t.Errorf("message %s was acknowledged before the reset, and is still there", one.text)
		case one.sent.After(ended) && !left[one.text]:
			t.Errorf("message %s was sent after the reset, and is not there", one.text)
		}
		if one.sent.After(ended) {
			after++
		}
		delete(left, one.text)
	}
	need.Same(t, 0, len(left), "messages that the server never acknowledged")
	if after == 0 {
		t.Error("no message was sent after the reset, so this test proves nothing")
	}
	inside.post("/sandboxes/current/reset", nil).want(204)
	need.Same(t, string(p.as(p.newSandbox("fresh", "shop").Key.Secret).dump()), string(inside.dump()),
		"after the last reset (want: fresh, got: reset)")
}

// TestDeletionWhileRequestsRun checks that requests to a sandbox that is deleted finish
// or get 401. None of them sees a part of the store, also while the sweep runs.
func TestDeletionWhileRequestsRun(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	p, other := startOn(t, database), startOn(t, database)
	other.listen()
	one := p.newSandbox("one", "shop")
	other.as(one.Key.Secret).get("/pets").want(200)
	stop := need.Background(p.t, func(ctx context.Context) {
		for ctx.Err() == nil {
			p.sweepAccounts()
		}
	})
	var clients sync.WaitGroup
	var succeeded atomic.Int64
	for i, send := range []func(*petstore) (*response, error){
		func(p *petstore) (*response, error) { return p.try("GET", "/pets?limit=200", nil) },
		func(p *petstore) (*response, error) { return p.try("POST", "/messages", object{"message": "hello"}) },
		func(p *petstore) (*response, error) { return p.try("GET", "/store/orders?limit=200", nil) },
		func(p *petstore) (*response, error) { return p.try("PATCH", "/pets/1", object{"name": "Fido"}) },
	} {
		for _, server := range []*petstore{p, other} {
			clients.Go(func() {
				for ended := false; !ended; {
					resp, err := send(server.as(one.Key.Secret))
					switch {
					case err != nil:
						t.Error(err)
						ended = true
					case resp.status == 401:
						ended = true
					case resp.status > 202:
						t.Errorf("%s: %d %s", resp.what, resp.status, resp.body)
						ended = true
					case i%2 == 0 && len(decode[[]object](resp)) != 200:
						t.Errorf("%s: %d items, want 200", resp.what, len(decode[[]object](resp)))
					default:
						succeeded.Add(1)
					}
				}
			})
		}
	}
	need.Within(t, 20*time.Second, "requests succeed", func() bool { return succeeded.Load() > 50 })
	p.del(one.path()).want(204)
	clients.Wait()
	stop()
}

// TestSandboxIsFull checks the maximum of each kind of resource, also when many requests
// create at the same time. The rows of a full sandbox do not count for another.
func TestSandboxIsFull(t *testing.T) {
	t.Parallel()
	p := startAlone(t)
	one := p.newSandbox("one", "shop")
	inside, other := p.as(one.Key.Secret), p.as(p.newSandbox("other", "shop").Key.Secret)
	const free, requests = 3, 12
	id := accountOf(one)
	p.exec("UPDATE account_state SET last_category_id = 100000, last_pet_id = 100000, last_order_id = 100000, last_message_id = 100000") // after the ids below
	// Rows without these need less CPU time.
	for _, index := range []string{"pets_category_status_name_idx", "pets_name_idx", "pets_status_idx", "pets_status_name_idx"} { // Citus drops one at a time
		p.exec("DROP INDEX " + index)
	}
	p.exec("ALTER TABLE orders DROP CONSTRAINT orders_pet_id_fkey")
	always := func(body object) func(int) object { return func(int) object { return body } }
	for _, test := range []struct {
		target, columns, values string // of row n
		body                    func(i int) object
		status                  int
	}{
		{"/categories", "name, name_key", "'c' || n, 'c' || n", func(i int) object { return object{"name": fmt.Sprint(i)} }, 201},
		{"/pets", "category_id, name, name_key", "1, 'p', 'p'", always(object{"name": "new", "categoryId": 1}), 201},
		{"/store/orders", "pet_id, quantity", "1, 1", always(object{"petId": 1}), 201},
		{"/messages", "id, message", "'msg_' || lpad(to_hex(n), 32, '0'), 'm'", always(object{"message": "new"}), 202},
	} {
		table := test.target[strings.LastIndex(test.target, "/")+1:]
		rows := func() int { return p.count(table, "account_id = "+id) }
		p.exec(fmt.Sprintf("INSERT INTO %s (account_id, %s) SELECT %s, %s FROM generate_series(1, %d) AS n",
			table, test.columns, id, test.values, stores.MaxRows-free-rows()))
		ends := outcomes(allAtOnce(t, requests, func(i int) (*response, error) {
			key := []string{fmt.Sprintf("%s-%d", table, i), ""}[i%2]
			return inside.try("POST", test.target, test.body(i), "Idempotency-Key", key)
		}))
		want := map[string]int{fmt.Sprint(test.status): free, "409 sandbox_full": requests - free}
		need.Same(t, want, ends, "POST %s", test.target)
		need.Same(t, stores.MaxRows, rows(), "rows of %s", table)
		other.post(test.target, test.body(requests)).want(test.status)
	}
	inside.del(fmt.Sprintf("/store/orders/%d", decode[[]order](inside.get("/store/orders?complete=false&limit=1").want(200))[0].ID)).want(204)
	inside.newOrder(1, 1)
	inside.post("/store/orders", object{"petId": 1}).wantError(409, "sandbox_full")
	inside.post("/store/orders", object{"petId": 999}).wantError(422, "unknown_pet")
	inside.post("/pets", object{"name": "new", "categoryId": 999}).wantError(422, "unknown_category")
	inside.post("/sandboxes/current/reset", nil).want(204)
	inside.newOrder(inside.newPet("after the reset", 1), 1)
}
