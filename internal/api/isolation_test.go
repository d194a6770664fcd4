package api_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"petstore/db"
	stores "petstore/internal/account"
	"petstore/internal/auth"
	"petstore/internal/pgtest"
	samples "petstore/internal/seed"
	"petstore/internal/tools/need"
)

// absentIDs has an id that no account has, by path parameter.
var absentIDs = map[string]string{
	"petId":      "9007199254740991",
	"categoryId": "9007199254740991",
	"orderId":    "9007199254740991",
	"messageId":  "msg_00000000000000000000000000000000",
	"apiKeyId":   "9007199254740991",
	"sandboxId":  "sbx_9007199254740991",
	"eventId":    "evt_00000000000000000000000000000000",
	"webhookId":  "wh_00000000000000000000000000000000",
	"deliveryId": "dlv_00000000000000000000000000000000",
	"requestId":  "req_9007199254740991_1",
	"name":       "absent",
}

// tenant is a client with an admin key of an account of its own.
type tenant struct {
	*petstore
	account int64
	ids     map[string]string // an id of the account for each path parameter
	tag     string            // the entity tag of its pet
}

// tenant creates an account with two rows of each kind.
func (p *petstore) tenant(name string) tenant {
	p.t.Helper()
	key := p.newKey(name, auth.Admin)
	owner := need.Value(db.New(p.db).AccountGetByName(p.t.Context(), p.named(name)))(p.t)
	made := tenant{petstore: p.as(key), account: owner.ID}
	made.ids, made.tag = made.twoOfEach(owner.ID, name)
	for range 2 {
		made.ids["sandboxId"] = fmt.Sprint("sbx_", p.sandbox(owner.ID, stores.SampleEmpty).sandboxID)
		made.ids["name"] = made.saveSample(fmt.Sprint(name, "-", made.ids["sandboxId"][4:]), made.ids["sandboxId"])
	}
	return made
}

// sandboxTenant creates a sandbox of an account with two rows of each kind. A sandbox
// has no sandboxes and samples, so it has the ids of a foreign account.
func (p *petstore) sandboxTenant(parent tenant, name string, foreign tenant) tenant {
	p.t.Helper()
	inside := p.sandbox(parent.account, stores.SampleEmpty)
	made, id := tenant{petstore: inside, account: inside.sandboxID}, inside.sandboxID
	// Every sandbox counts its ids, so those of two would be the same.
	p.exec("UPDATE account_state SET last_category_id = 1000 * $1, last_pet_id = 1000 * $1, last_order_id = 1000 * $1, last_message_id = 1000 * $1 WHERE account_id = $1", id)
	made.ids, made.tag = made.twoOfEach(id, name)
	made.ids["sandboxId"], made.ids["name"] = foreign.ids["sandboxId"], foreign.ids["name"]
	return made
}

// sandbox creates a sandbox of an account, and returns a client with its key.
func (p *petstore) sandbox(parent int64, sample string) (inside *petstore) {
	p.t.Helper()
	need.OK(p.t, pgx.BeginFunc(p.t.Context(), p.db, func(tx pgx.Tx) error {
		made, err := stores.CreateSandbox(p.t.Context(), db.New(tx), stores.NewSandbox{
			ParentID: parent, Name: "test", Sample: sample, Expiry: stores.DefaultExpiry,
		})
		inside = p.as(made.Secret.Reveal())
		inside.sandboxID = made.Sandbox.ID
		return err
	}))
	return inside
}

// twoOfEach creates two rows of each kind. It returns the ids of the last ones by path
// parameter, and the entity tag of the pet.
func (p *petstore) twoOfEach(account int64, name string) (ids map[string]string, tag string) {
	p.t.Helper()
	for i := range 2 {
		petID := p.newPet(fmt.Sprint(name, " ", i), 10)
		own := p.get(fmt.Sprintf("/pets/%d", petID)).want(200)
		placed := decode[order](p.post("/store/orders", object{"petId": petID, "shipDate": "2028-01-01T00:00:00Z"}).want(201))
		sent := decode[message](p.post("/messages", object{"message": "hello"}).want(202))
		hook := p.newWebhook("*")
		p.do("POST", hook.path()+"/test", nil).want(202)
		test := decode[delivery](p.do("POST", hook.path()+"/test", nil).want(202))
		key, _, err := auth.Issue(p.t.Context(), db.New(p.db), auth.NewKey{AccountID: account, Name: "another", Scope: auth.Admin})
		need.OK(p.t, err)
		ids = map[string]string{
			"petId": strconv.FormatInt(petID, 10), "categoryId": strconv.FormatInt(decode[pet](own).CategoryID, 10),
			"orderId": strconv.FormatInt(placed.ID, 10), "messageId": sent.ID, "apiKeyId": strconv.FormatInt(key.ID, 10),
			"webhookId": hook.ID, "deliveryId": test.ID, "requestId": fmt.Sprintf("req_%d_1", account), "eventId": decode[[]feedEvent](p.get("/events?limit=1").want(200))[0].ID,
		}
		tag = own.etag()
	}
	return ids, tag
}

// number returns one of the ids as a number for a body.
func number(ids map[string]string, parameter string) json.Number { return json.Number(ids[parameter]) }

// withIDs fills in the parameters of a path.
func withIDs(t testing.TB, path string, ids map[string]string) string {
	t.Helper()
	return pathParameter.ReplaceAllStringFunc(path, func(parameter string) string {
		id, known := ids[strings.Trim(parameter, "{}")]
		if !known {
			t.Fatalf("%s: this test has no ids for %s; add them to absentIDs and to tenant", path, parameter)
		}
		return id
	})
}

// rows returns all rows of the test as text, by table.
func (p *petstore) rows() map[string][]string {
	p.t.Helper()
	if p.suffix == "" {
		return p.rowsWhere("", "TRUE")
	}
	all := p.rowsWhere("account_id", p.owned("account_id"))
	maps.Copy(all, p.rowsWhere("parent_id", p.owned("id"))) // accounts
	return all
}

// rowsOf returns the rows of the store of an account as text, by table.
func (p *petstore) rowsOf(account int64) map[string][]string {
	p.t.Helper()
	return p.rowsWhere("account_id", fmt.Sprintf("account_id = %d", account))
}

// rowsWhere returns the rows that satisfy a condition, of all tables with a column.
func (p *petstore) rowsWhere(column, condition string) map[string][]string {
	p.t.Helper()
	all := map[string][]string{}
	for _, table := range pgtest.List[string](p.t, p.db, `
		SELECT DISTINCT table_name::text
		FROM information_schema.columns
		JOIN pg_tables ON schemaname = table_schema AND tablename = table_name
		WHERE table_schema = 'public' AND ($1 = '' OR column_name = $1)
		AND table_name NOT IN ('exchanges', 'exchange_logs') -- the requests of the test itself`, column) {
		all[table] = pgtest.List[string](p.t, p.db, fmt.Sprintf("SELECT t::text FROM %s AS t WHERE %s ORDER BY 1", pgx.Identifier{table}.Sanitize(), condition))
	}
	return all
}

// echoedID is the id of the request in the Link to the successor of GET /pets/{petId}.
var echoedID = regexp.MustCompile(`/pets\?id=\d+`)

// comparable returns what a client sees of a response, except what differs between any
// two requests, and the id that the client sent.
func (r *response) comparable() string {
	r.t.Helper()
	header := r.header.Clone()
	for _, name := range []string{"Date", "X-Request-Id", "Ratelimit"} {
		header.Del(name)
	}
	body := string(r.body)
	if id := r.header.Get("X-Request-Id"); id != "" {
		body = strings.ReplaceAll(body, id, "")
	}
	var text strings.Builder
	fmt.Fprintln(&text, r.status)
	for _, name := range slices.Sorted(maps.Keys(header)) {
		fmt.Fprintln(&text, name, echoedID.ReplaceAllString(strings.Join(header[name], ", "), "/pets?id="))
	}
	return text.String() + body
}

// wantAsAbsent fails the test unless two responses differ in nothing that tells a client
// whether another account has an id.
func (r *response) wantAsAbsent(absent *response) {
	r.t.Helper()
	need.Same(r.t, absent.comparable(), r.comparable(),
		"%s: response (want: an id that no account has, got: an id of another account)", r.what)
}

// wantRows fails the test unless all rows are as before.
func (p *petstore) wantRows(before map[string][]string) {
	p.t.Helper()
	need.Same(p.t, before, p.rows(), "rows (want: before, got: after)")
}

// TestOtherAccounts checks that a client of one store cannot tell whether another one has an id, and neither
// reads nor changes it.
func TestOtherAccounts(t *testing.T) {
	t.Parallel()
	for name, pair := range map[string]func(p *petstore) (owner, other tenant){
		"two accounts": func(p *petstore) (owner, other tenant) {
			return p.tenant("owner"), p.tenant("other")
		},
		"a sandbox and its account": func(p *petstore) (owner, other tenant) {
			other = p.tenant("other")
			return p.sandboxTenant(other, "owner", p.tenant("third")), other
		},
		"an account and its sandbox": func(p *petstore) (owner, other tenant) {
			owner = p.tenant("owner")
			return owner, p.sandboxTenant(owner, "other", tenant{})
		},
		"two sandboxes of an account": func(p *petstore) (owner, other tenant) {
			parent := p.tenant("parent")
			return p.sandboxTenant(parent, "owner", parent), p.sandboxTenant(parent, "other", tenant{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			owner, other := pair(start(t))
			checkLists(t, owner, other) // of twoOfEach, before the others create more
			checkIDs(t, owner, other)
			checkReferences(t, owner, other)
			checkIdempotencyKeys(t, owner, other)
		})
	}
}

// checkIDs checks that every operation treats an id of another account as
// an id that no account has, and changes nothing.
func checkIDs(t *testing.T, owner, other tenant) {
	t.Helper()
	before := other.rows()
	for _, o := range operations() {
		if o.public || !strings.Contains(o.path, "{") {
			continue
		}
		foreign, absent := withIDs(t, o.path, owner.ids), withIDs(t, o.path, absentIDs)
		other.do(o.method, foreign, o.body).want(404).wantAsAbsent(other.do(o.method, absent, o.body))
		for _, header := range [][]string{{"If-Match", owner.tag}, {"If-Match", other.tag}, {"If-None-Match", "*"}, {"Idempotency-Key", "one"}} {
			other.do(o.method, foreign, o.body, header...).wantAsAbsent(other.do(o.method, absent, o.body, header...))
		}
		if o.method == "GET" {
			other.do("HEAD", foreign, nil).wantAsAbsent(other.do("HEAD", absent, nil))
		}
	}
	other.wantRows(before)
}

// checkReferences checks that a body cannot refer to a row of another
// account, and that the names of categories are unique within an account only.
func checkReferences(t *testing.T, owner, other tenant) {
	t.Helper()
	before := other.rows()
	for _, test := range []struct {
		method, target, code string
		body                 func(ids map[string]string) object
	}{
		{"POST", "/pets", "unknown_category", func(ids map[string]string) object {
			return object{"name": "Rex", "categoryId": number(ids, "categoryId")}
		}},
		{"PATCH", "/pets/" + other.ids["petId"], "unknown_category", func(ids map[string]string) object {
			return object{"categoryId": number(ids, "categoryId")}
		}},
		{"POST", "/store/orders", "unknown_pet", func(ids map[string]string) object {
			return object{"petId": number(ids, "petId")}
		}},
	} {
		for _, header := range [][]string{nil, {"Idempotency-Key", "one"}} {
			resp := other.do(test.method, test.target, test.body(owner.ids), header...)
			resp.wantError(422, test.code)
			resp.wantAsAbsent(other.do(test.method, test.target, test.body(absentIDs), header...))
		}
	}
	path := "/pets/" + other.ids["petId"]
	other.do("PATCH", path, object{"name": "Rex"}, "If-Match", owner.tag).wantError(412, "precondition_failed")
	other.do("GET", path, nil, "If-None-Match", owner.tag).want(200)
	other.wantRows(before)
	for _, p := range []tenant{owner, other} {
		p.post("/categories", object{"name": "Dogs"}).want(201)
		p.post("/categories", object{"name": "DOGS"}).wantError(409, "category_exists")
	}
}

// listTargets returns every list of the spec, without filters and with filters that the
// rows of twoOfEach match.
func listTargets() []string {
	targets := []string{
		"/pets?sort=-id", "/pets?sort=-name", "/pets?name=o", "/pets?status=available", "/pets?status=available&sort=name",
		"/categories?sort=-name", "/categories?name=category",
		"/store/orders?sort=-id", "/store/orders?complete=false", "/store/orders?shipDateFrom=2026-01-01T00:00:00Z",
		"/store/orders?complete=false&shipDateTo=2029-01-01T00:00:00Z&sort=-shipDate",
		"/store/inventory?status=available", "/store/inventory?low=true",
	}
	for path, item := range theContract().document.Paths.Map() {
		if item.Get != nil && item.Get.Parameters.GetByInAndName("query", "limit") != nil && path != recordPath { // which has a test of its own
			targets = append(targets, path)
		}
	}
	return targets
}

// items returns the items of a list as JSON. It fails the test if the count differs.
func (a tenant) items(target string) []string {
	a.t.Helper()
	target = withIDs(a.t, target, a.ids)
	page := a.do("GET", target, nil, "Prefer", "count=exact").want(200)
	found := mapped(decode[[]json.RawMessage](page), func(one json.RawMessage) string { return string(one) })
	if target != "/events" { // the feed has no count
		page.wantHeader("X-Total-Count", strconv.Itoa(len(found)))
	}
	return found
}

// wantCursorRejected fails the test unless a cursor of the account is invalid for
// another one, like a malformed cursor.
func (a tenant) wantCursorRejected(target string, other tenant) {
	a.t.Helper()
	firstPage := target + "?limit=1"
	if strings.Contains(target, "?") {
		firstPage = target + "&limit=1"
	}
	next := need.Value(url.Parse(a.get(withIDs(a.t, firstPage, a.ids)).want(200).link("next")))(a.t)
	a.get(next.RequestURI()).want(200)
	malformed := other.get(withIDs(a.t, firstPage, other.ids)+"&cursor=none").wantError(400, "invalid_cursor")
	other.get(strings.ReplaceAll(next.RequestURI(), a.ids["webhookId"], other.ids["webhookId"])).wantError(400, "invalid_cursor").wantAsAbsent(malformed)
}

// checkLists checks that lists, their filters, their counts and their
// cursors have only the rows of the account.
func checkLists(t *testing.T, owner, other tenant) {
	t.Helper()
	for _, target := range listTargets() {
		theirs, own := owner.items(target), other.items(target)
		for _, one := range own {
			if slices.Contains(theirs, one) && !strings.Contains(one, `"builtIn":true`) {
				t.Errorf("GET %s: two accounts list %s", target, one)
			}
		}
		switch {
		case target == "/events": // TestExpiredCursor has the cursors
		case len(theirs) >= 2:
			owner.wantCursorRejected(target, other)
		case !strings.HasPrefix(target, "/sandboxes"): // a sandbox has none
			t.Errorf("GET %s: the owner has %d items, want at least 2", target, len(theirs))
		}
	}
	for _, target := range []string{"/pets?id=%[1]s", "/pets?id=%[1]s&id=%[1]s0", "/pets?categoryId=%[2]s", "/pets?categoryId=%[2]s&sort=name", "/store/orders?petId=%[1]s"} {
		target = fmt.Sprintf(target, owner.ids["petId"], owner.ids["categoryId"])
		page := other.do("GET", target, nil, "Prefer", "count=exact").want(200)
		need.Same(t, "[]", string(page.wantHeader("X-Total-Count", "0").body),
			"GET %s with ids of another account", target)
	}
	both := decode[[]pet](other.get("/pets?id=" + owner.ids["petId"] + "&id=" + other.ids["petId"]).want(200))
	need.Same(t, 1, len(both), "pets of a batch with a pet of another account")
	need.Same(t, other.ids["petId"], strconv.FormatInt(both[0].ID, 10), "the pet of the batch")
	summary := string(other.get("/store/inventory/summary").want(200).body)
	need.Same(t, `{"available":2,"pending":0,"sold":0}`, summary, "the summary of an account with two pets")
}

// checkIdempotencyKeys checks that the same Idempotency-Key of two
// accounts names two requests.
func checkIdempotencyKeys(t *testing.T, owner, other tenant) {
	t.Helper()
	for _, test := range []struct {
		target    string
		one, same object
	}{
		{"/categories", object{"name": "Reptiles"}, object{"name": "Amphibians"}},
		{"/messages", object{"message": "one"}, object{"message": "one"}},
		{"/store/orders", object{"petId": number(owner.ids, "petId")}, object{"petId": number(other.ids, "petId")}},
	} {
		first := owner.do("POST", test.target, test.one, "Idempotency-Key", "same"+test.target)
		second := other.do("POST", test.target, test.same, "Idempotency-Key", "same"+test.target)
		if first.status >= 300 || second.status != first.status || second.header.Get("Location") == first.header.Get("Location") {
			t.Errorf("POST %s of two accounts with the same Idempotency-Key: %d %s, %d %s", test.target, first.status, first.body, second.status, second.body)
		}
		for _, replay := range []struct{ made, again *response }{
			{first, owner.do("POST", test.target, test.one, "Idempotency-Key", "same"+test.target)},
			{second, other.do("POST", test.target, test.same, "Idempotency-Key", "same"+test.target)},
		} {
			need.Same(t, string(replay.made.body), string(replay.again.body),
				"a retry of %s (want: first, got: retry)", replay.made.what)
		}
	}
}

// sampleTenants creates accounts whose stores have the same ids: the sample data with
// ids from 1. Pet 1, its stock, category 1 and order 1 are different in each.
func (p *petstore) sampleTenants(number int) []tenant {
	p.t.Helper()
	const pets = 20
	all := make([]tenant, number)
	for i := range all {
		name := fmt.Sprint("account ", i)
		key := p.newKey(name, auth.Admin)
		owner := need.Value(db.New(p.db).AccountGetByName(p.t.Context(), p.named(name)))(p.t)
		need.OK(p.t, pgx.BeginFunc(p.t.Context(), p.db, func(tx pgx.Tx) error {
			return samples.Fill(p.t.Context(), db.New(tx), owner.ID, pets, nil)
		}))
		all[i] = tenant{petstore: p.as(key), account: owner.ID}
		all[i].patch("/pets/1", object{"name": "Rex of " + name}).want(200)
		all[i].patch("/categories/1", object{"name": "Dogs of " + name}).want(200)
		all[i].put("/store/inventory/1", object{"quantity": 1000 * (i + 1)}).want(200)
		all[i].patch("/store/orders/1", object{"shipDate": fmt.Sprintf("%d-01-01T00:00:00Z", 2030+i)}).want(200)
		for range i {
			all[i].post("/messages", object{"message": name}).want(202)
		}
	}
	return all
}

// TestSameIDsInTwoAccounts checks that no operation on an id changes the row of another
// account that has the same id.
func TestSameIDsInTwoAccounts(t *testing.T) {
	t.Parallel()
	const ids = 12
	tenants := startAlone(t).sampleTenants(2)
	one, other := tenants[0], tenants[1]
	before, changed := one.rowsOf(one.account), other.rowsOf(other.account)
	for target, body := range map[string]object{
		"/pets/1": {"name": "Max"}, "/categories/1": {"name": "Hounds"}, "/store/orders/1": {"shipDate": nil}, "/store/inventory/1": {"quantity": 5},
	} {
		method := "PATCH"
		if strings.HasPrefix(target, "/store/inventory") {
			method = "PUT"
		}
		other.do(method, target, body, "If-Match", other.get(target).want(200).etag()).want(200)
	}
	for _, o := range operations() {
		kind := regexp.MustCompile(`{(petId|categoryId|orderId)}`).FindString(o.path)
		if kind == "" {
			continue
		}
		for id := range ids {
			other.do(o.method, strings.Replace(o.path, kind, strconv.Itoa(id+1), 1), o.body)
		}
		if diff := cmp.Diff(before, one.rowsOf(one.account)); diff != "" {
			t.Fatalf("%s %s changed rows of another account (-before +after):\n%s", o.method, o.path, diff)
		}
	}
	after := other.rowsOf(other.account)
	for _, table := range []string{"pets", "categories", "orders", "inventory"} {
		if cmp.Equal(changed[table], after[table]) {
			t.Errorf("the operations changed no row of %s, so this test shows nothing", table)
		}
	}
}

// TestOperationsOnOneSandbox checks that the operations on a sandbox change nothing in
// its account and in other sandboxes, whose rows have the same ids.
func TestOperationsOnOneSandbox(t *testing.T) {
	t.Parallel()
	p := startAlone(t)
	account := p.sampleTenants(1)[0]
	var sandboxes []*petstore
	for range 2 {
		one := p.sandbox(account.account, stores.SampleShop)
		one.post("/messages", object{"message": "hello"}).want(202)
		one.put("/sandboxes/current/faults", object{"rules": []object{{"operation": "listMessages", "effect": "status", "status": 503}}}).want(200)
		one.get("/messages").wantError(503, "injected_fault") // counts
		sandboxes = append(sandboxes, one)
	}
	others := func() []map[string][]string {
		return []map[string][]string{p.rowsOf(account.account), p.rowsOf(sandboxes[1].sandboxID)}
	}
	before, target := others(), fmt.Sprint("/sandboxes/sbx_", sandboxes[0].sandboxID) // set up before the other one
	for _, request := range []struct {
		method, path string
		body         any
	}{
		{"GET", target + "/faults", nil},
		{"POST", target + "/reset", nil},
		{"PUT", target + "/faults", object{"rules": []object{{"operation": "*", "effect": "delay", "delayMs": 1}}}},
		{"DELETE", target + "/faults", nil},
		{"DELETE", target, nil},
	} {
		account.do(request.method, request.path, request.body).wantSuccess()
		if diff := cmp.Diff(before, others()); diff != "" {
			t.Fatalf("%s %s changed rows of other accounts (-before +after):\n%s", request.method, request.path, diff)
		}
	}
	sandboxes[1].get("/sandboxes/current").want(200)
	account.get("/pets/1").want(200)
}

// TestConcurrentRequestsOfAccounts checks that requests of several accounts for the same
// id, page or count at the same time share no result: each client gets the data of its
// own account. Statements are held until all requests are in progress.
func TestConcurrentRequestsOfAccounts(t *testing.T) {
	t.Parallel()
	const each = 4 // one runs alone; the waiting ones could share a wrong statement
	get := func(target string) func(p tenant) (*response, error) {
		return func(p tenant) (*response, error) { return p.try("GET", target, nil) }
	}
	rex := func(i int) string { return fmt.Sprintf(`"Rex of account %d"`, i) }
	for _, test := range []struct {
		name, queries string
		accounts      int
		ask           func(p tenant) (*response, error)
		want          func(i int) string // in the response to the client of account i
	}{
		{"a pet", "PetGetMany", 3, get("/pets/1"), rex},
		{"a batch of one pet", "PetGetMany", 3, get("/pets?id=1"), rex},
		{"a page of pets", "PetList", 3, get("/pets?limit=2"), rex},
		{"an order", ordersWritten, 3, func(p tenant) (*response, error) {
			return p.try("POST", "/store/orders", object{"petId": 1})
		}, func(int) string { return `"petId":1` }},
		{"a count", "MessageCount", 2, func(p tenant) (*response, error) {
			resp, err := p.try("GET", "/messages", nil, "Prefer", "count=exact")
			if err == nil {
				resp.body = append(resp.body, "\ncount "+resp.header.Get("X-Total-Count")...)
			}
			return resp, err
		}, func(i int) string { return fmt.Sprint("count ", i) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newTurnstile(t, test.queries)
			var tenants []tenant
			s.prepare(func() { tenants = s.sampleTenants(test.accounts) })
			s.together(each*len(tenants), func(i int) error {
				account := i % len(tenants)
				resp, err := test.ask(tenants[account])
				if err == nil && (resp.status >= 300 || !strings.Contains(string(resp.body), test.want(account))) {
					err = fmt.Errorf("account %d, %s: %d %s; want %s", account, resp.what, resp.status, resp.body, test.want(account))
				}
				return err
			})
			if test.queries != ordersWritten {
				return
			}
			for i, p := range tenants {
				need.Same(t, int64(1000*(i+1)-each), p.inventory(1).Quantity,
					"units of account %d that are left after %d orders", i, each)
			}
		})
	}
}
