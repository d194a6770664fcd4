package api_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/casefold"
	"petstore/internal/httpjson"
	"petstore/internal/tools/need"
)

// catalogue holds the contents of a store as clients see them, sorted by id.
type catalogue struct {
	categories []category
	pets       []pet
	inventory  []inventoryItem
	orders     []order
}

// Ids in a catalogue have gaps of this size, as after deletions.
const idGap = 3

// fill fills the store with this many rows of each kind, many of them similar.
func (p *petstore) fill(size int) catalogue {
	p.t.Helper()
	var s catalogue
	statuses := []string{"available", "pending", "sold"}
	names := []string{"Rex", "rex", "REX", "Rexona", "Misty", "misty mountain", "Zoë", "Zoe\u0308", "zoe", "Äffchen", "Bello", "bella", "100%", "1_0", "漢", "\U0010FFFF"}
	christmas := time.Date(2026, 12, 24, 0, 0, 0, 0, time.UTC)
	for i := range size {
		id := int64(1 + i*idGap)
		s.categories = append(s.categories, category{ID: id, Name: fmt.Sprintf("%s %d", names[i%len(names)], size-i)})
		s.pets = append(s.pets, pet{ID: id, Name: names[i*7%len(names)], CategoryID: s.categories[min(i, i*i%5)].ID, Status: statuses[i*i/2%3]})
		s.inventory = append(s.inventory, inventoryItem{PetID: id, Quantity: int64(8 + i%6), Status: s.pets[i].Status})
		one := order{ID: id, PetID: s.pets[min(i, i*i%7)].ID, Quantity: int64(1 + i), Complete: i%3 == 0}
		if i%4 > 0 {
			at := christmas.Add(time.Duration(i%9) * 24 * time.Hour).Add(time.Duration(i%2) * time.Microsecond)
			one.ShipDate = &at
		}
		s.orders = append(s.orders, one)
	}
	account := p.accountID()
	p.copy("categories", []string{"account_id", "id", "name", "name_key"}, size, func(i int) []any {
		return []any{account, s.categories[i].ID, s.categories[i].Name, casefold.Key(s.categories[i].Name)}
	})
	p.copy("pets", []string{"account_id", "id", "category_id", "name", "name_key", "status"}, size, func(i int) []any {
		return []any{account, s.pets[i].ID, s.pets[i].CategoryID, s.pets[i].Name, casefold.Key(s.pets[i].Name), s.pets[i].Status}
	})
	p.copy("inventory", []string{"account_id", "pet_id", "quantity"}, size, func(i int) []any {
		return []any{account, s.inventory[i].PetID, s.inventory[i].Quantity}
	})
	p.copy("orders", []string{"account_id", "id", "pet_id", "quantity", "ship_date", "complete"}, size, func(i int) []any {
		return []any{account, s.orders[i].ID, s.orders[i].PetID, s.orders[i].Quantity, s.orders[i].ShipDate, s.orders[i].Complete}
	})
	return s
}

func (p *petstore) copy(table string, columns []string, size int, row func(int) []any) {
	p.t.Helper()
	need.Value(p.db.CopyFrom(p.t.Context(), pgx.Identifier{table}, columns, pgx.CopyFromSlice(size, func(i int) ([]any, error) { return row(i), nil })))(p.t)
}

// walkAll walks a list with pages of several sizes. It fails the test unless the pages return these
// items in this order, and X-Total-Count their number where the client prefers a count.
func walkAll[T any](p *petstore, path string, filter url.Values, want []T) {
	p.t.Helper()
	const counted = 3
	limits := []int{1, counted, 50}
	if len(want) > 5 {
		limits = limits[1:]
	}
	for _, limit := range limits {
		requested := url.Values{"limit": {fmt.Sprint(limit)}}
		maps.Copy(requested, filter)
		rest := want
		for target := path + "?" + requested.Encode(); target != ""; {
			prefer, total, applied := "", "", ""
			if limit == counted {
				prefer, total, applied = "count=exact", fmt.Sprint(len(want)), "count=exact"
			}
			page := p.do("GET", target, nil, "Prefer", prefer).want(200)
			if page.header.Get("X-Total-Count") != total || page.header.Get("Preference-Applied") != applied {
				p.t.Fatalf("GET %s, Prefer: %s: X-Total-Count %q, Preference-Applied %q; want %q, %q",
					target, prefer, page.header.Get("X-Total-Count"), page.header.Get("Preference-Applied"), total, applied)
			}
			got := decode[[]T](page)
			expected := rest[:min(limit, len(rest))]
			if diff := gocmp.Diff(expected, got); diff != "" && len(expected)+len(got) > 0 {
				p.t.Fatalf("GET %s: page (-want +got):\n%s", target, diff)
			}
			rest = rest[len(expected):]
			target = page.link("next")
			if hasNext := target != ""; hasNext != (len(rest) > 0) {
				p.t.Fatalf("%s: %d items are missing, and the next page is %q", page.what, len(rest), target)
			}
			for _, rel := range []string{"first", "next"} {
				linked := page.link(rel)
				if linked == "" && rel == "next" {
					continue
				}
				parsed := need.Value(url.Parse(linked))(p.t)
				query := parsed.Query()
				if query.Has("cursor") != (rel == "next") {
					p.t.Fatalf("%s: rel=%s is %s", page.what, rel, linked)
				}
				query.Del("cursor")
				if diff := gocmp.Diff(requested, query); diff != "" || parsed.Path != path || parsed.IsAbs() || parsed.Host != "" {
					p.t.Fatalf("%s: rel=%s is %s (-want +got):\n%s", page.what, rel, linked, diff)
				}
			}
		}
	}
}

// inOrder compares two items of a list, as for slices.SortFunc.
type inOrder[T any] = func(a, b T) int

// listing is a list as clients expect it.
type listing[T any] struct {
	path    string
	accepts func(filter url.Values, item T) bool
	sorts   func(filter url.Values) map[string]inOrder[T] // that the filter allows; "" is the default
}

var petList = listing[pet]{
	"/pets",
	func(filter url.Values, p pet) bool {
		return oneOf(filter["id"], p.ID) && oneOf(filter["status"], p.Status) && oneOf(filter["categoryId"], p.CategoryID) && hasPrefix(filter["name"], p.Name)
	},
	func(filter url.Values) map[string]inOrder[pet] {
		return sortsWithNames(filter, func(p pet) string { return p.Name }, func(p pet) int64 { return p.ID })
	},
}

var categoryList = listing[category]{
	"/categories",
	func(filter url.Values, c category) bool { return hasPrefix(filter["name"], c.Name) },
	func(filter url.Values) map[string]inOrder[category] {
		return sortsWithNames(filter, func(c category) string { return c.Name }, func(c category) int64 { return c.ID })
	},
}

var orderList = listing[order]{
	"/store/orders",
	func(filter url.Values, o order) bool {
		from, to := filter.Get("shipDateFrom"), filter.Get("shipDateTo")
		return oneOf(filter["petId"], o.PetID) && oneOf(filter["complete"], o.Complete) &&
			(from == "" || (o.ShipDate != nil && !o.ShipDate.Before(timeOf(from)))) &&
			(to == "" || (o.ShipDate != nil && o.ShipDate.Before(timeOf(to))))
	},
	func(filter url.Values) map[string]inOrder[order] {
		byID := func(a, b order) int { return cmp.Compare(a.ID, b.ID) }
		if !filter.Has("shipDateFrom") && !filter.Has("shipDateTo") {
			return directions("id", byID)
		}
		return directions("shipDate", func(a, b order) int { return cmp.Or(a.ShipDate.Compare(*b.ShipDate), byID(a, b)) })
	},
}

var inventoryList = listing[inventoryItem]{
	"/store/inventory",
	func(filter url.Values, i inventoryItem) bool {
		return oneOf(filter["status"], i.Status) && oneOf(filter["low"], i.Quantity <= 10)
	},
	func(url.Values) map[string]inOrder[inventoryItem] {
		return map[string]inOrder[inventoryItem]{"": func(a, b inventoryItem) int { return cmp.Compare(a.PetID, b.PetID) }}
	},
}

var messageList = listing[message]{
	"/messages",
	func(url.Values, message) bool { return true },
	func(url.Values) map[string]inOrder[message] {
		return map[string]inOrder[message]{"": func(a, b message) int { return cmp.Compare(b.ID, a.ID) }}
	},
}

// walk walks a list with each sort, as walkAll does. The pages must have the items that the filter accepts.
func (l listing[T]) walk(p *petstore, filter url.Values, items []T) {
	p.t.Helper()
	items = selected(items, func(item T) bool { return l.accepts(filter, item) })
	for sort, order := range l.sorts(filter) {
		slices.SortFunc(items, order)
		walkAll(p, l.path, sortedBy(sort, filter), items)
	}
}

// sortedBy returns the parameters for a filter and a sort.
func sortedBy(sort string, filter url.Values) url.Values {
	sorted := maps.Clone(filter)
	if sort != "" {
		sorted.Set("sort", sort)
	}
	return sorted
}

// selected returns the items that a filter accepts.
func selected[T any](items []T, accepts func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(items), func(item T) bool { return !accepts(item) })
}

// sortsWithNames returns the sorts of a list of items with names.
func sortsWithNames[T any](filter url.Values, name func(T) string, id func(T) int64) map[string]inOrder[T] {
	byID := func(a, b T) int { return cmp.Compare(id(a), id(b)) }
	all := directions("name", func(a, b T) int {
		return cmp.Or(cmp.Compare(casefold.Key(name(a)), casefold.Key(name(b))), byID(a, b))
	})
	if !filter.Has("name") {
		maps.Copy(all, directions("id", byID))
	}
	return all
}

// directions returns the ascending and descending order of a column, and the default.
func directions[T any](column string, up inOrder[T]) map[string]inOrder[T] {
	return map[string]inOrder[T]{"": up, column: up, "-" + column: func(a, b T) int { return up(b, a) }}
}

// oneOf reports whether a repeatable filter accepts a value.
func oneOf(filter []string, value any) bool {
	return len(filter) == 0 || slices.Contains(filter, fmt.Sprint(value))
}

// hasPrefix reports whether a filter by name accepts a name.
func hasPrefix(filter []string, name string) bool {
	return len(filter) == 0 || strings.HasPrefix(casefold.Key(name), casefold.Key(filter[0]))
}

// timeOf reads a time of a filter.
func timeOf(text string) time.Time {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		panic(err)
	}
	return at
}

func TestListPets(t *testing.T) {
	t.Parallel()
	p := start(t)
	s := p.fill(31)
	dogs, cats := fmt.Sprint(s.categories[0].ID), fmt.Sprint(s.categories[1].ID)
	batch := []string{"1", "4", "5", "40", "37", "43", "46", "61", "100", "103", "9999", "9223372036854775807", "4"}
	for _, filter := range []url.Values{
		{},
		{"status": {"available"}},
		{"status": {"sold", "pending"}},
		{"status": {"sold", "sold"}},
		{"status": {"available", "pending", "sold"}},
		{"categoryId": {dogs}},
		{"categoryId": {cats}},
		{"categoryId": {"9999"}},
		{"categoryId": {cats}, "status": {"available"}},
		{"categoryId": {dogs}, "status": {"available", "sold"}},
		{"name": {"re"}},
		{"name": {"REX"}},
		{"name": {"zoë"}},
		{"name": {"Zoe\u0308"}},
		{"name": {"zo"}},
		{"name": {"1"}},
		{"name": {"1_"}},
		{"name": {"\U0010FFFF"}},
		{"name": {"nobody"}},
		{"name": {"m"}, "status": {"available"}},
		{"name": {"r"}, "categoryId": {dogs}},
		{"name": {"r"}, "categoryId": {cats}, "status": {"pending", "available"}},
		{"id": batch},
		{"id": {"9999"}},
		{"id": batch, "status": {"sold", "available"}},
		{"id": batch, "categoryId": {dogs}},
		{"id": batch, "name": {"r"}},
		{"id": batch, "name": {"m"}, "categoryId": {dogs}, "status": {"available", "pending"}},
	} {
		petList.walk(p, filter, s.pets)
	}
}

func TestListCategories(t *testing.T) {
	t.Parallel()
	p := start(t)
	s := p.fill(31)
	for _, filter := range []url.Values{{}, {"name": {"rex"}}, {"name": {"REX "}}, {"name": {"z"}}, {"name": {"zoë 2"}}, {"name": {"1_"}}, {"name": {"1%"}}, {"name": {"nobody"}}} {
		categoryList.walk(p, filter, s.categories)
	}
}

func TestListOrders(t *testing.T) {
	t.Parallel()
	p := start(t)
	s := p.fill(31)
	const christmas, microsecondLater, newYear = "2026-12-24T00:00:00Z", "2026-12-24T00:00:00.000001Z", "2026-12-31T00:00:00Z"
	for _, filter := range []url.Values{
		{},
		{"petId": {"1"}},
		{"petId": {"13"}},
		{"petId": {"9999"}},
		{"complete": {"true"}},
		{"complete": {"false"}},
		{"petId": {"1"}, "complete": {"true"}},
		{"petId": {"4"}, "complete": {"false"}},
		{"shipDateFrom": {christmas}},
		{"shipDateFrom": {microsecondLater}},
		{"shipDateTo": {christmas}},
		{"shipDateTo": {microsecondLater}},
		{"shipDateTo": {newYear}},
		{"shipDateFrom": {"2026-12-25T00:00:00Z"}, "shipDateTo": {"2026-12-26T00:00:00Z"}},
		{"shipDateFrom": {"2026-12-25T01:00:00+01:00"}, "shipDateTo": {"2026-12-28T19:00:00-05:00"}},
		{"shipDateFrom": {"2026-12-25T00:00:00.000001Z"}, "shipDateTo": {"2026-12-25T00:00:00.000002Z"}},
		{"shipDateFrom": {newYear}, "shipDateTo": {christmas}},
		{"shipDateFrom": {christmas}, "shipDateTo": {christmas}},
		{"shipDateFrom": {"0001-01-01T00:00:00Z"}, "shipDateTo": {"9999-12-31T23:59:59.999999Z"}},
		{"shipDateFrom": {christmas}, "petId": {"1"}},
		{"shipDateTo": {newYear}, "complete": {"false"}},
		{"shipDateFrom": {christmas}, "shipDateTo": {newYear}, "petId": {"13"}, "complete": {"true"}},
	} {
		orderList.walk(p, filter, s.orders)
	}
}

func TestListInventory(t *testing.T) {
	t.Parallel()
	p := start(t)
	s := p.fill(31)
	for _, filter := range []url.Values{
		{},
		{"status": {"sold"}},
		{"status": {"available", "pending"}},
		{"status": {"available", "pending", "sold"}},
		{"low": {"true"}},
		{"low": {"false"}},
		{"low": {"true"}, "status": {"available"}},
		{"low": {"true"}, "status": {"pending", "sold"}},
		{"low": {"false"}, "status": {"pending", "sold"}},
	} {
		inventoryList.walk(p, filter, s.inventory)
	}
}

func TestListMessages(t *testing.T) {
	t.Parallel()
	p := start(t)
	var want []message
	for i := range 12 {
		want = append(want, decode[message](p.post("/messages", object{"message": fmt.Sprint(i)}).want(202)))
	}
	slices.Reverse(want)
	other := p.as(p.newKey("another", auth.Write))
	other.post("/messages", object{"message": "of another"}).want(202)
	other.post("/messages", object{"message": "of another"}).want(202)
	walkAll(p, "/messages", nil, want)
}

// TestCountIsPreferred checks Prefer: count=exact (RFC 7240) on GET and HEAD. Package httpjson tests more
// values of Prefer.
func TestCountIsPreferred(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.fill(5)
	for _, method := range []string{"GET", "HEAD"} {
		counted := p.withHeader("Prefer", []string{"respond-async", "count=exact"}, method, "/pets?limit=2", nil).want(200)
		counted.wantHeader("X-Total-Count", "5").wantHeader("Preference-Applied", "count=exact")
		other := p.do(method, "/pets?limit=2", nil, "Prefer", "count=planned").want(200)
		other.wantHeader("X-Total-Count", "").wantHeader("Preference-Applied", "")
	}
	// the server counts only if the request is valid
	rejected := p.do("GET", "/pets?cursor=x", nil, "Prefer", "count=exact").wantError(400, "invalid_cursor")
	rejected.wantHeader("Preference-Applied", "").wantHeader("X-Total-Count", "")
}

// TestListLimits: the default limit is 50, or 100 with a batch of ids. The maximum is 200.
func TestListLimits(t *testing.T) {
	t.Parallel()
	p := start(t)
	const size = 201
	s := p.fill(size)
	messageID := func(i int) string { return fmt.Sprintf("msg_%032x", i) }
	account := p.accountID()
	p.copy("messages", []string{"account_id", "id", "message"}, size, func(i int) []any { return []any{account, messageID(i), "x"} })
	count := func(target string) int { return len(decode[[]json.RawMessage](p.get(target).want(200))) }
	for _, path := range []string{"/pets", "/categories", "/store/orders", "/store/inventory", "/messages"} {
		for target, want := range map[string]int{path: 50, path + "?limit=1": 1, path + "?limit=199": 199, path + "?limit=200": 200} {
			need.Same(t, want, count(target), "items of GET %s", target)
		}
		p.get(path+"?limit=201").wantViolations("invalid_parameter", "limit out_of_range")
	}
	batch := url.Values{}
	for _, one := range s.pets[:100] {
		batch.Add("id", fmt.Sprint(one.ID))
	}
	whole := p.get("/pets?" + batch.Encode()).want(200)
	need.Same(t, s.pets[:100], decode[[]pet](whole), "a batch of 100")
	need.Same(t, "", whole.link("next"), "the next page of a batch of 100")
	need.Same(t, 7, count("/pets?limit=7&"+batch.Encode()), "pets of a batch with a limit of 7")
	empty := start(t)
	for _, path := range []string{"/pets", "/categories", "/store/orders", "/store/inventory", "/messages"} {
		if page := empty.get(path).want(200); string(page.body) != "[]" || page.link("next") != "" || page.link("first") == "" {
			t.Errorf("an empty list: %s, Link %q", page.body, page.header.Get("Link"))
		}
	}
}

// cursorOf returns the cursor of the page after another one.
func (p *petstore) cursorOf(target string) string {
	p.t.Helper()
	next, err := url.Parse(p.get(target).want(200).link("next"))
	if err != nil || !next.Query().Has("cursor") {
		p.t.Fatalf("GET %s has no next page", target)
	}
	return next.Query().Get("cursor")
}

// TestCursorIsBound: a cursor is bound to its list, filters and sort, but not to the limit. FuzzCursor changes
// cursors.
func TestCursorIsBound(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.fill(10)
	cursor := "&cursor=" + p.cursorOf("/pets?status=available&status=sold&sort=name&limit=2")
	for _, target := range []string{
		"/pets?status=available&status=sold&sort=name&limit=2",
		"/pets?limit=200&sort=name&status=available&status=sold",
		"/pets?sort=name&status=sold&status=available",
		"/pets?sort=name&status=sold&status=available&status=sold",
		"/pets?%73ort=n%61me&status=%73old&status=a%76ailable",
	} {
		p.get(target + cursor).want(200)
	}
	for _, target := range []string{
		"/pets?status=available&status=sold&sort=-name",
		"/pets?status=available&status=sold&sort=id",
		"/pets?status=available&status=sold",
		"/pets?status=available&sort=name",
		"/pets?status=available&status=pending&sort=name",
		"/pets?status=available&status=sold&status=pending&sort=name",
		"/pets?status=available&status=sold&sort=name&name=r",
		"/pets?status=available&status=sold&sort=name&categoryId=1",
		"/pets?status=available&status=sold&sort=name&id=1",
		"/pets?sort=name",
		"/categories?sort=name",
		"/store/orders?sort=id",
		"/store/inventory?status=available&status=sold",
		"/messages?limit=1",
	} {
		p.get(target+cursor).wantError(400, "invalid_cursor")
	}
	for _, forged := range []string{"&cursor=x", "&cursor=%20", cursor + "=", cursor[:len(cursor)-1], "&cursor=" + strings.Repeat("A", 4000)} {
		p.get("/pets?status=available&status=sold&sort=name"+forged).wantError(400, "invalid_cursor")
	}

	// lists with the same parameters reject each other's cursors
	byID := "&cursor=" + p.cursorOf("/pets?limit=1")
	for _, path := range []string{"/categories", "/store/orders", "/store/inventory", "/messages"} {
		p.get(path+"?limit=1"+byID).wantError(400, "invalid_cursor")
	}
	p.get("/pets?sort=id" + byID).want(200) // the default
	byText := "&cursor=" + p.cursorOf("/pets?name=%7A&limit=1")
	p.get("/pets?name=z" + byText).want(200)
	p.get("/pets?name=zo"+byText).wantError(400, "invalid_cursor")
	p.get("/pets?sort=name&name=z" + byText).want(200) // the default with a name
	p.get("/pets?sort=-name&name=z"+byText).wantError(400, "invalid_cursor")
	since := "&cursor=" + p.cursorOf("/store/orders?shipDateFrom=2026-12-24T00:00:00Z&limit=1")
	p.get("/store/orders?shipDateFrom=2026-12-24T00%3A00%3A00Z" + since).want(200)
	p.get("/store/orders?shipDateFrom=2026-12-25T00:00:00Z"+since).wantError(400, "invalid_cursor")
	p.get("/store/orders?shipDateTo=2026-12-24T00:00:00Z"+since).wantError(400, "invalid_cursor")
	// another process on the same database accepts the cursors, and so does another key of the account
	p.with(func(*api.Options) {}).get("/pets?limit=1" + byID).want(200)
	p.as(p.newKey("tester", auth.Read)).get("/pets?limit=1" + byID).want(200)

	// the key of the database signs them
	signed := func(key []byte) *response {
		list := api.List{Account: p.accountID(), Path: "/pets", Sort: "id"}
		return p.get("/pets?cursor=" + api.SealCursor(key, list, httpjson.Position{ID: 1}))
	}
	key := need.Value(db.New(p.db).SigningKeyGet(t.Context(), "cursor"))(t)
	signed(key).want(200)
	signed(make([]byte, len(key))).wantError(400, "invalid_cursor")
}

// TestWalkAmongWriters: while writers insert, delete and update rows, a walk returns each row that stays
// exactly once and in order. The test covers every list, sort and kind of filter.
func TestWalkAmongWriters(t *testing.T) {
	t.Parallel()
	p := start(t)
	const stays, writers, atATime = 15, 3, 5
	name := func(i int, what string) string { return string(rune('a'+i*11%3)) + " " + what }
	shipping := func(i int) time.Time { return time.Date(2027, 1, 1+i%7, 0, 0, 0, 0, time.UTC) }
	home := p.newCategory("home")

	// Rows that stay: pets and categories, and an order and a message for each.
	var rows catalogue
	var messages []message
	for i := range stays {
		one := decode[pet](p.post("/pets", object{"name": name(i, "stays"), "categoryId": home}).want(201))
		entry := decode[inventoryItem](p.put(fmt.Sprintf("/store/inventory/%d", one.ID), object{"quantity": 1000}).want(200))
		kind := decode[category](p.post("/categories", object{"name": name(i, fmt.Sprint("stays ", i))}).want(201))
		placed := decode[order](p.post("/store/orders", object{"petId": one.ID, "quantity": 1 + i%5, "shipDate": shipping(i)}).want(201))
		rows.pets, rows.inventory = append(rows.pets, one), append(rows.inventory, entry)
		rows.categories, rows.orders = append(rows.categories, kind), append(rows.orders, placed)
		messages = append(messages, decode[message](p.post("/messages", object{"message": fmt.Sprint(i)}).want(202)))
	}

	for writer := range writers {
		need.Background(p.t, func(ctx context.Context) {
			do := func(method, target string, body any, status int) string {
				resp, err := p.try(method, target, body)
				if err != nil {
					return "" // the test is over
				}
				return resp.want(status).header.Get("Location")
			}
			var mine []string // the paths of the rows it created; the older half is deleted
			for i := writer; ctx.Err() == nil; i++ {
				host := rows.pets[i%stays]
				mine = append(mine,
					do("POST", "/pets", object{"name": name(i, "comes and goes"), "categoryId": home}, 201),
					do("POST", "/categories", object{"name": name(i, fmt.Sprint("comes and goes ", writer, " ", i))}, 201),
					do("POST", "/store/orders", object{"petId": host.ID, "quantity": 1, "shipDate": shipping(i)}, 201))
				do("POST", "/messages", object{"message": "of a writer"}, 202)
				do("PATCH", petPath(host.ID), object{"name": host.Name}, 200)
				do("PUT", fmt.Sprintf("/store/inventory/%d", host.ID), object{"quantity": 1000 + i%7}, 200)
				for len(mine) > atATime && ctx.Err() == nil {
					do("DELETE", mine[0], nil, 204)
					mine = mine[1:]
				}
			}
		})
	}

	ofHome, ofFirst := fmt.Sprint("categoryId=", home), fmt.Sprint("petId=", rows.pets[0].ID)
	petList.seenOnce(p, rows.pets, "", "status=available", "status=available&status=pending", ofHome, ofHome+"&status=available", "name=a", "name=b&status=available", "name=c&"+ofHome)
	categoryList.seenOnce(p, rows.categories, "", "name=a")
	orderList.seenOnce(p, rows.orders, "", "complete=false", ofFirst, ofFirst+"&complete=false",
		"shipDateFrom=2027-01-03T00:00:00Z", "shipDateTo=2027-01-06T00:00:00Z&complete=false", "shipDateFrom=2027-01-01T00:00:00Z&"+ofFirst)
	inventoryList.seenOnce(p, rows.inventory, "", "status=available", "status=available&status=sold", "low=false", "low=false&status=available")
	messageList.seenOnce(p, messages, "")
}

// seenOnce walks a list with each filter and sort. It fails the test unless the rows are in order and
// unique, and include all staying rows that the filter accepts.
func (l listing[T]) seenOnce(p *petstore, staying []T, filters ...string) {
	p.t.Helper()
	for _, text := range filters {
		filter := need.Value(url.ParseQuery(text))(p.t)
		matching := selected(staying, func(one T) bool { return l.accepts(filter, one) })
		if len(matching) == 0 {
			p.t.Errorf("%s?%s: no staying row matches", l.path, text)
		}
		filter.Set("limit", "7")
		for sort, order := range l.sorts(filter) {
			target := l.path + "?" + sortedBy(sort, filter).Encode()
			seen := walk[T](p, target)
			for i := 1; i < len(seen); i++ {
				if order(seen[i-1], seen[i]) >= 0 {
					p.t.Errorf("GET %s: %+v before %+v", target, seen[i-1], seen[i])
				}
			}
			missing := selected(matching, func(one T) bool {
				return !slices.ContainsFunc(seen, func(other T) bool { return order(one, other) == 0 })
			})
			if len(missing) > 0 {
				p.t.Errorf("GET %s: missing %+v", target, missing)
			}
		}
	}
}
