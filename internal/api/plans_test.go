//go:build plans

package api_test

import (
	"errors"
	"flag"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/httpjson"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// scale is the number of pets, orders and messages of TestListPlans.
var scale = flag.Int("scale", 100_000, "pets, orders and messages of TestListPlans")

// The accounts beside the large one, and the rows of each table that each of them has. For
// a generic plan, Postgres estimates the rows of an account from the average of all.
const (
	smallAccounts, smallRows = 1000, 20
	// A page of a small account reads at most all its rows of two tables, and a page of a join.
	mostOfSmall = 3 * smallRows
)

// TestListPlans checks the promises of docs/decisions/0005-lists.md for every list, with
// each kind of filter and each sort. It does so for a large account and a small one among
// a thousand. It explains the statements that the server sends: they scan and sort no
// table, and every index scan is bound by the account. A page in the middle reads no more
// than the first one. Postgres plans the lists of the large account once per connection.
func TestListPlans(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "it cannot make generic plans of joins, and its workers plan each run")
	p, recorder, planner, secret := startRecorded(t)
	seed(t, p.db, *scale)
	small := p.as(p.newKey("small 1", auth.Read))

	for _, list := range plannedLists(*scale) {
		target := func(parameters string) string { return list.path + "?" + strings.TrimPrefix(parameters, "&") }
		for _, sort := range list.sorts {
			filter := list.filter
			if len(list.sorts) > 1 {
				filter += "&sort=" + sort
			}
			query := need.Value(url.ParseQuery(filter))(t)
			listed := api.List{Account: p.accountID(), Path: list.path, Sort: sort, Query: query}
			cursor := api.SealCursor(secret, listed, middle(t, p.db, listed))
			first := recorder.during(func() { p.get(target(filter)).want(200) })
			deep := recorder.during(func() { p.get(target(filter + "&cursor=" + cursor)).want(200) })
			for _, mode := range planModes(first) {
				what := fmt.Sprintf("GET %s, %s", target(filter), mode)
				first := planner.cost(what, mode, first)
				deep := planner.cost(what+", deep", mode, deep)
				if deep.pages > mostTimes*first.pages+100 {
					t.Errorf("%s: a deep page reads %d pages, the first one %d", what, deep.pages, first.pages)
				}
			}
			// A category may have so few pets that Postgres rather plans with its id.
			if !strings.Contains(list.filter, "categoryId") && planner.genericRuns(first) == 0 {
				t.Errorf("GET %s: PostgreSQL plans each of ten runs again", target(filter))
			}
			ofSmall := recorder.during(func() { small.get(target(filter)).want(200) })
			for _, mode := range planModes(ofSmall) {
				what := fmt.Sprintf("GET %s of a small account, %s", target(filter), mode)
				if read := planner.cost(what, mode, ofSmall).rows; read > mostOfSmall {
					t.Errorf("%s: reads %d rows, want at most %d", what, read, mostOfSmall)
				}
			}
			counted := recorder.during(func() { p.do("GET", target(filter), nil, "Prefer", "count=exact").want(200) })
			if !strings.Contains(list.filter, "&id=") && len(counted) != 2 {
				t.Errorf("GET %s: %d statements with a preferred count, want 2", target(filter), len(counted))
			}
		}
	}
}

// plannedList is a list with one kind of filter.
type plannedList struct {
	path   string
	filter string // &name=value…
	sorts  []string
}

// plannedLists returns every list with every kind of filter: with many matches and
// with few, near the beginning and far from it.
func plannedLists(size int) []plannedList {
	ship := func(percent int) string { return shipDate(percent * size / 100).Format(time.RFC3339) }
	var lists []plannedList
	add := func(path string, sorts []string, filters ...string) {
		for _, filter := range filters {
			lists = append(lists, plannedList{path, filter, sorts})
		}
	}
	var batch strings.Builder
	for i := range 100 {
		fmt.Fprintf(&batch, "&id=%d", 1+i*size/100)
	}
	byIDOrName, byName := []string{"id", "-id", "name", "-name"}, []string{"name", "-name"}
	byID, byShipDate := []string{"id", "-id"}, []string{"shipDate", "-shipDate"}
	add("/pets", byIDOrName,
		"", "&status=sold", "&status=sold&status=available", "&status=available&status=pending&status=sold",
		"&categoryId=7", "&categoryId=7&status=sold", "&categoryId=7&status=sold&status=pending",
		batch.String(), batch.String()+"&status=sold")
	add("/pets", byName,
		"&name=a", "&name=ab", "&name=late", "&name=nobody",
		"&name=a&status=sold", "&name=a&status=sold&status=pending", "&name=late&status=sold",
		"&name=a&categoryId=7", "&name=a&categoryId=7&status=sold",
		batch.String()+"&status=sold&name=a")
	add("/categories", byIDOrName, "")
	add("/categories", byName, "&name=a", "&name=ab", "&name=nobody")
	add("/store/orders", byID, "", "&complete=true", "&complete=false", "&petId=1", "&petId=7", "&petId=1&complete=true")
	add("/store/orders", byShipDate,
		"&shipDateFrom="+ship(0), "&shipDateFrom="+ship(97), "&shipDateTo="+ship(3), "&shipDateFrom="+ship(50)+"&shipDateTo="+ship(51),
		"&shipDateFrom=2100-01-01T00:00:00Z", "&shipDateFrom="+ship(97)+"&complete=true", "&shipDateTo="+ship(3)+"&complete=false",
		"&shipDateFrom="+ship(0)+"&petId=1", "&shipDateFrom="+ship(0)+"&petId=7", "&shipDateFrom="+ship(97)+"&petId=7&complete=true")
	add("/store/inventory", []string{"petId"},
		"", "&status=sold", "&status=sold&status=pending", "&low=true", "&low=true&status=sold", "&low=true&status=sold&status=available",
		"&low=false", "&low=false&status=sold")
	add("/messages", []string{"-id"}, "")
	return lists
}

// seed fills the store of the account "tester" with this many pets, entries, orders and messages, and
// the small stores beside it. The names of the last three percent of the pets begin with "late", and
// ship dates follow the ids. So both lie far from one end of the lists.
func seed(t *testing.T, pool *pgxpool.Pool, size int) {
	t.Helper()
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	list := func(sql string) []string {
		t.Helper()
		return pgtest.List[string](t, pool, sql)
	}
	// Creating indexes and foreign keys after the rows is faster.
	const bare = ` FROM pg_index WHERE indrelid IN ('pets'::regclass, 'inventory'::regclass, 'orders'::regclass) AND NOT indisunique`
	const keys = ` FROM pg_constraint WHERE contype = 'f' AND conrelid IN ('pets'::regclass, 'inventory'::regclass, 'orders'::regclass)`
	again := append(list("SELECT pg_get_indexdef(indexrelid)"+bare),
		list("SELECT format('ALTER TABLE %s ADD CONSTRAINT %I %s', conrelid::regclass, conname, pg_get_constraintdef(oid))"+keys)...)
	for _, drop := range append(list("SELECT format('DROP INDEX %s', indexrelid::regclass)"+bare),
		list("SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname)"+keys)...) {
		exec(drop)
	}
	exec(`INSERT INTO accounts (name) SELECT 'small ' || i FROM generate_series(1, $1::int) AS i`, smallAccounts)
	// As ids come from one sequence, the ids of the other accounts differ.
	exec(`CREATE TABLE seeded AS
		SELECT id AS account_id, CASE WHEN name = 'tester' THEN $1::int ELSE $2::int END AS size, CASE WHEN name = 'tester' THEN 0 ELSE id * 1000000 END AS start
		FROM accounts`, size, smallRows)
	exec(`INSERT INTO categories (account_id, id, name, name_key)
		SELECT account_id, start + i, key, key
		FROM seeded, generate_series(1, greatest(size / 100, 5)) AS i, LATERAL (SELECT chr(97 + i % 26) || chr(97 + i / 26 % 26) || i) AS made (key)`)
	exec(`INSERT INTO pets (account_id, id, category_id, name, name_key, status)
		SELECT account_id, start + i, start + 1 + i % least(100, size / 4), key, key, (ARRAY['available', 'pending', 'sold'])[1 + i / 7 % 3]
		FROM seeded, generate_series(1, size) AS i, LATERAL (
			SELECT CASE WHEN i > size / 100 * 97 THEN 'late' ELSE chr(97 + i % 26) || chr(97 + i / 26 % 26) END || i % 5000) AS made (key)`)
	exec(`INSERT INTO inventory (account_id, pet_id, quantity) SELECT account_id, start + i, i::bigint * 37 % 101 FROM seeded, generate_series(1, size) AS i`)
	exec(`INSERT INTO orders (account_id, id, pet_id, quantity, ship_date, complete)
		SELECT account_id, start + i, start + CASE WHEN i % 10 = 0 THEN 1 ELSE 1 + i::bigint * 7 % size END, 1, $1::timestamptz + i * interval '1 hour', i / 3 % 2 = 0
		FROM seeded, generate_series(1, size) AS i`, shipDate(0))
	exec(`INSERT INTO messages (account_id, id, message) SELECT account_id, 'msg_' || lpad(to_hex(start + i), 32, '0'), 'x' FROM seeded, generate_series(1, size) AS i`)
	for _, create := range again {
		exec(create)
	}
	exec("DROP TABLE seeded")
	exec("VACUUM (ANALYZE) categories, pets, inventory, orders, messages")
}

func shipDate(id int) time.Time {
	return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(id) * time.Hour)
}

// middle returns a position in the middle of a list, or the zero one for an empty list.
func middle(t *testing.T, pool *pgxpool.Pool, list api.List) httpjson.Position {
	t.Helper()
	if list.Path == "/messages" {
		return httpjson.Position{Key: pgtest.Read[string](t, pool, `
			WITH own AS (SELECT id FROM messages WHERE account_id = $1)
			SELECT id FROM own ORDER BY id OFFSET (SELECT count(*) / 2 FROM own) LIMIT 1`, list.Account)}
	}
	key, by, nowhere := "''::text", "id", httpjson.Position{}
	switch strings.TrimPrefix(list.Sort, "-") {
	case "name":
		key, by = "name_key", "name_key"
	case "shipDate":
		key, by = "(extract(epoch FROM ship_date) * 1000000)::bigint::text", "ship_date"
		nowhere.Key = "0"
		if from, err := time.Parse(time.RFC3339, list.Query.Get("shipDateFrom")); err == nil {
			nowhere.Key = strconv.FormatInt(from.UnixMicro(), 10)
		}
	}
	matching, args := "SELECT name_key, id FROM pets WHERE account_id = $1 AND starts_with(name_key, $2)", []any{list.Account, list.Query.Get("name")}
	switch list.Path {
	case "/categories":
		matching = strings.ReplaceAll(matching, "pets", "categories")
	case "/store/orders":
		matching = "SELECT ship_date, id FROM orders WHERE account_id = $1 AND ship_date >= coalesce(nullif($2, ''), '-infinity')::timestamptz AND ship_date < coalesce(nullif($3, ''), 'infinity')::timestamptz"
		args = []any{list.Account, list.Query.Get("shipDateFrom"), list.Query.Get("shipDateTo")}
	}
	sql := fmt.Sprintf("WITH matching AS (%s) SELECT %s, id FROM matching ORDER BY %s, id OFFSET (SELECT count(*) / 2 FROM matching) LIMIT 1", matching, key, by)
	var at httpjson.Position
	err := pool.QueryRow(t.Context(), sql, args...).Scan(&at.Key, &at.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		return nowhere
	}
	need.OK(t, err)
	return at
}
