package main

import (
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"petstore/internal/tools/need"
	"petstore/internal/transfer"
)

// fill creates a store with all states of pets and orders, and with texts that files could spoil.
func (s *store) fill() {
	s.t.Helper()
	api := func(args ...string) map[string]any {
		return fromJSON[map[string]any](s.t, must(s.t, s.environ, append([]string{"api"}, args...)...)+"\n")
	}
	for i, text := range hostileTexts {
		args := []string{"POST", "/categories", fmt.Sprintf("name:=%q", fmt.Sprint("c", i))}
		if i > 0 {
			args = append(args, fmt.Sprintf("description:=%s", quoteJSON(s.t, text)))
		}
		api(args...)
	}
	category := s.rows("categories")[0]["id"]
	stock := func(pet any, quantity int) {
		api("PUT", fmt.Sprint("/store/inventory/", pet), fmt.Sprint("quantity=", quantity))
	}
	order := func(pet any, quantity int, complete bool, more ...string) {
		placed := api(append([]string{"POST", "/store/orders", fmt.Sprint("petId=", pet), fmt.Sprint("quantity=", quantity)}, more...)...)
		if complete {
			api("PATCH", fmt.Sprint("/store/orders/", placed["id"]), "complete=true")
		}
	}
	for i, steps := range []func(any){
		func(any) {},
		func(pet any) { stock(pet, 7) },
		func(pet any) { stock(pet, 7); order(pet, 3, false, "shipDate=2026-12-24T09:30:00Z") },
		func(pet any) { stock(pet, 7); order(pet, 3, true); order(pet, 4, false) }, // pending
		func(pet any) { stock(pet, 7); order(pet, 7, true) },                       // sold
		func(pet any) {
			stock(pet, 7)
			order(pet, 1, true)
			api("PATCH", fmt.Sprint("/pets/", pet), "status=sold")
		},
		func(pet any) {
			stock(pet, 7)
			order(pet, 1, false)
			api("PATCH", fmt.Sprint("/pets/", pet), "status=pending")
		},
		func(pet any) {
			stock(pet, 2)
			order(pet, 2, false)
			api("PATCH", fmt.Sprint("/pets/", pet), "status=available")
		},
		func(pet any) {
			stock(pet, 1)
			order(pet, 1, true)
			api("PATCH", fmt.Sprint("/pets/", pet), "status=available")
		},
		func(pet any) { // sold became pending
			stock(pet, 1)
			order(pet, 1, true)
			api("PATCH", fmt.Sprint("/pets/", pet), "status=available")
			api("PATCH", fmt.Sprint("/pets/", pet), "status=pending")
		},
	} {
		steps(api("POST", "/pets", fmt.Sprintf("name:=%q", fmt.Sprint("=pet ", i)), fmt.Sprint("categoryId=", category))["id"])
	}
}

// hostileTexts are descriptions of categories.
var hostileTexts = []string{
	"absent", "", "=1+1", "+1", "-1", "@a", "\ta", "\ra", "\na", "'", "''", "'=1", "'Tis", "a,b", "a\"b", "a\r\nb", "a\nb\rc\r", " a ", "＝1", "null", "1", `\.`, "a;=1", "a;'=1", `a;"=1`, "a\t+1", "a\n-1\r\n@a\n\n", "a;", "a;'", "a; =1", "\u2028", "ä€😀",
}

func quoteJSON(t *testing.T, text string) string {
	t.Helper()
	quoted := need.Value(json.Marshal(text))(t)
	return string(quoted)
}

// content returns the rows of an archive without ids, each with the row that it refers to.
func content(t *testing.T, rows []map[string]any) []string {
	t.Helper()
	names := map[string]any{} // by kind and id
	for _, row := range rows {
		if row["name"] != nil {
			names[fmt.Sprint(row["kind"], row["id"])] = row["name"]
		}
	}
	var all []string
	for _, row := range rows {
		row = maps.Clone(row)
		delete(row, "id")
		for field, kind := range map[string]string{"categoryId": "category", "petId": "pet"} {
			if id := row[field]; id != nil {
				name := names[kind+fmt.Sprint(id)]
				if name == nil {
					t.Errorf("the row %v refers to no row", row)
				}
				row[field] = name
			}
		}
		all = append(all, fmt.Sprintf("%q", row))
	}
	slices.SortFunc(all, cmp.Compare)
	return all
}

// TestArchive: export, import into an empty store, and export give the same, apart from the ids.
func TestArchive(t *testing.T) {
	t.Parallel()
	from, to := newStore(t), newStore(t)
	from.fill()
	text := must(t, from.environ, "export")
	path := to.file("store.ndjson.gz", packedWhole(text))
	if got := to.load(path, "--connections", "1"); got.Imported != int64(strings.Count(text, "\n")) || got.Failed != 0 {
		t.Errorf("the import: %+v", got)
	}
	if got := to.load(path); got.Imported != 0 || got.Before != got.Rows {
		t.Errorf("the import again: %+v", got)
	}
	want := content(t, from.rows())
	if diff := gocmp.Diff(want, content(t, to.rows())); diff != "" || len(want) < 50 {
		t.Errorf("the archives (-exported +imported):\n%s", diff)
	}
	piped := newStore(t)
	stdout, stderr, err := executeIn(t, piped.dir, piped.environ, text, "import", "-")
	if err != nil || !strings.HasPrefix(stdout, fmt.Sprintf("stdin: imported %d of %[1]d rows in ", len(want))) {
		t.Errorf("import of stdin prints %s%s%v", stdout, stderr, err)
	}
	need.Same(t, want, content(t, piped.rows()), "the archives (want: exported, got: imported from stdin)")
	if journals, _ := filepath.Glob(filepath.Join(piped.dir, "stdin.*.journal")); len(journals) != 1 {
		t.Errorf("stdin has the journals %q", journals)
	}
	one := newStore(t)
	stdout, _, err = executeIn(t, one.dir, one.environ, `{"kind":"category","id":1,"name":"Dogs"}`, "import", "-")
	if err != nil || !strings.HasPrefix(stdout, "stdin: imported 1 of 1 rows in ") {
		t.Errorf("import of an archive of one row without a line end: %s%v", stdout, err)
	}
	lines := strings.SplitAfter(text, "\n")
	slices.Reverse(lines)
	newStore(t).fails([]string{to.file("reversed.ndjson", strings.Join(lines, ""))}, "must come before orders in an archive")
	lone := newStore(t)
	lone.fails([]string{lone.file("some.ndjson", `{"kind":"pet","id":1,"name":"a","categoryId":5}`+"\n"+`{"kind":"dog"}`+"\n")},
		"some.ndjson:1: The archive has no category 5 before this line, or it was not imported.", "some.ndjson:2: `kind` must be category, pet, inventory or order.")
	stock := `{"kind":"category","id":1,"name":"a"}
		{"kind":"pet","id":1,"name":"a","categoryId":1}
		{"kind":"inventory","petId":1,"quantity":1,"color":"red"}
		{"kind":"order","petId":1}`
	lone.fails([]string{lone.file("stock.ndjson", stock)}, "stock.ndjson:3: `color` ", "rows that were not imported: 2") // and the order
	final := `{"kind":"category","id":1,"name":"final"}`
	for _, kind := range []string{`"pet","id":%d,"name":"a","categoryId":1`, `"inventory","petId":%d,"quantity":1,"status":"lost"`, `"order","petId":%d`} {
		for id := range 20 {
			final += fmt.Sprintf("\n{\"kind\":"+kind+"}", id+1)
		}
	}
	lone.fails([]string{lone.file("final.ndjson", final), "--connections", "4"}, "final.ndjson:22: `status` ", "rows that were not imported: 20")
}

// TestCorrectedArchive: pets get their final stock and status when they and their orders are imported by a
// later import. It sets stock that was edited, also to 0, and leaves the stock of other pets alone.
func TestCorrectedArchive(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	must(t, s.environ, "api", "POST", "/categories", "name=Dogs")
	rows := map[string]*strings.Builder{"pet": {}, "inventory": {}, "order": {}}
	add := func(name string, category, quantity int, status string, orders ...string) {
		id := 1 + strings.Count(rows["pet"].String(), "\n")
		fmt.Fprintf(rows["pet"], `{"kind":"pet","id":%d,"name":%q,"categoryId":%d,"status":%q}`+"\n", id, name, category, status)
		fmt.Fprintf(rows["inventory"], `{"kind":"inventory","petId":%d,"quantity":%d,"status":%q}`+"\n", id, quantity, status)
		for _, date := range orders {
			fmt.Fprintf(rows["order"], `{"kind":"order","id":1,"petId":%d,"quantity":2,"shipDate":%q,"complete":true}`+"\n", id, date)
		}
	}
	const date, mistake = "2026-12-24T09:30:00Z", "soon"
	add("late", 1, 3, "sold", date)
	for _, status := range []string{"available", "pending", "sold"} {
		add(status+" 0", 2, 0, status, date, mistake)
		add(status+" 3", 2, 3, status, date, mistake)
	}
	add("used", 2, 77, "available", date)
	add("old", 2, 5, "sold")
	add("emptied", 2, 6, "available")
	text := `{"kind":"category","id":1,"name":"Dogs"}` + "\n" + `{"kind":"category","id":2,"name":"Cats"}` + "\n" + fmt.Sprint(rows["pet"], rows["inventory"], rows["order"])
	path := s.file("store.ndjson", text)
	s.fails([]string{path}, "store.ndjson:1: Another category has this name", "rows that were not imported: 10")
	must(t, s.environ, "api", "DELETE", "/categories/1001")
	s.fails([]string{path}, "rows that were not imported: 6")
	if got := s.rows("pets", "name=late"); len(got) != 1 || got[0]["status"] != "sold" {
		t.Errorf("the pet that is imported later is %v", got)
	}
	must(t, s.environ, "api", "PUT", fmt.Sprint("/store/inventory/", s.rows("pets", "name=used")[0]["id"]), "quantity=9")
	imported := strings.NewReplacer(mistake, date, `"old"`, `"new"`, `"quantity":6`, `"quantity":0`).Replace(text)
	s.file("store.ndjson", imported)
	s.load(path)
	var want []map[string]any
	text = strings.Replace(imported, `"quantity":77`, `"quantity":9`, 1) + `{"kind":"pet","id":99,"name":"old","categoryId":2,"status":"sold"}` + "\n" + `{"kind":"inventory","petId":99,"quantity":5,"status":"sold"}`
	for line := range strings.Lines(text) {
		want = append(want, fromJSON[map[string]any](t, strings.TrimSuffix(line, "\n")+"\n"))
	}
	need.Same(t, content(t, want), content(t, s.rows()), "the archives (want: corrected, got: imported)")
	journal, notes := s.journal(path)
	lastOrder := len(want) - 2
	notes = regexp.MustCompile(fmt.Sprintf(`(?m)^(\d+ settled|%d .*)\n`, lastOrder)).ReplaceAllString(notes, "")
	interrupt := func() {
		writeFile(t, journal, notes)
	}
	interrupt()
	if got := s.load(path); got.Imported != 1 {
		t.Errorf("after an interruption before the last order: %+v", got)
	}
	interrupt()
	s.file("store.ndjson", strings.Replace(imported, `"petId":8,"quantity":2,`, `"petId":8,"quantity":90,`, 1))
	if got := s.load(path); got.Imported != 2 { // with the stock that it needs
		t.Errorf("after an interruption, the larger order: %+v", got)
	}
}

// TestArchiveOfNothing: import reads what export writes of an empty store.
func TestArchiveOfNothing(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for name, args := range map[string][]string{"orders.ndjson": {"orders"}, "pets.csv": {"pets", "--csv"}, "store.ndjson": nil, "store.ndjson.gz": nil} {
		text := must(t, s.environ, append([]string{"export"}, args...)...)
		if strings.HasSuffix(name, ".gz") {
			text = packedWhole(text)
		}
		for _, flags := range [][]string{nil, {"--dry-run"}} {
			if got := s.load(s.file(name, text), flags...); got.Rows != 0 || got.Imported != 0 || got.Failed != 0 {
				t.Errorf("import of %s %q: %+v", name, flags, got)
			}
		}
	}
	for _, args := range [][]string{{"--resource", "orders"}, nil} {
		stdout, _, err := executeIn(t, s.dir, s.environ, "", append([]string{"import", "-"}, args...)...)
		if err != nil || !strings.HasPrefix(stdout, "stdin: imported 0 of 0 rows in ") {
			t.Errorf("import of an empty stdin %q: %s%v", args, stdout, err)
		}
	}
}

func packedWhole(text string) string {
	var out strings.Builder
	w := gzip.NewWriter(&out)
	_, _ = w.Write([]byte(text)) // to memory
	_ = w.Close()
	return out.String()
}

// TestExportCSV: import reads back each text of a CSV file, in which no cell is a formula.
func TestExportCSV(t *testing.T) {
	t.Parallel()
	from, to := newStore(t), newStore(t)
	from.fill()
	text := must(t, from.environ, "export", "categories", "--csv")
	if !strings.HasPrefix(text, "id,name,description\n") || regexp.MustCompile(`[,;\t\n]"*[=+@\t＝-]`).MatchString(text) {
		t.Errorf("the file\n%s", text)
	}
	to.load(to.file("categories.csv", text))
	texts := func(s *store) (all []string) {
		for _, row := range s.rows("categories") {
			all = append(all, fmt.Sprintf("%q %q", row["name"], row["description"]))
		}
		slices.Sort(all)
		return all
	}
	need.Same(t, texts(from), texts(to), "the categories (want: exported, got: imported)")
	category := to.rows("categories")[0]["id"]
	pets := strings.ReplaceAll(must(t, from.environ, "export", "pets", "--csv"), fmt.Sprintf(",%v,", from.rows("categories")[0]["id"]), fmt.Sprintf(",%v,", category))
	need.Contains(t, "the file of pets", pets, ",'=pet 0,")
	to.load(to.file("pets.csv", pets))
	for _, resource := range []string{"inventory", "orders"} {
		want := map[string]string{"inventory": "petId,quantity,status\n", "orders": "id,petId,quantity,shipDate,complete\n"}[resource]
		if got := must(t, from.environ, "export", resource, "--csv"); !strings.HasPrefix(got, want) || strings.Count(got, "\n") < 5 {
			t.Errorf("the %s\n%s", resource, got)
		}
	}
	ids := to.rows("pets")
	to.load(to.file("inventory.csv", fmt.Sprintf("petId,quantity,status\n%v,5,sold\n%v,0,\n", ids[0]["id"], ids[1]["id"])))
	to.load(to.file("orders.csv", fmt.Sprintf("id,petId,quantity,shipDate,complete\n1,%v,2,2026-12-24T09:30:00Z,TRUE\n2,%[1]v,,,false\n", ids[0]["id"])))
	if got := to.rows("orders", "complete=true"); len(got) != 1 || fmt.Sprintf("%v %v", got[0]["quantity"], got[0]["shipDate"]) != "2 2026-12-24T09:30:00Z" {
		t.Errorf("the complete orders: %v", got)
	}
	if got := to.rows("inventory", "low=true", "status=available"); fmt.Sprint(got[0]["quantity"]) != "2" {
		t.Errorf("the inventory: %v", got)
	}
}

// TestExportFollows: export writes the list, and then each change and deletion. The stream may be away
// at first.
func TestExportFollows(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	api := func(args ...string) { must(t, s.environ, append([]string{"api"}, args...)...) }
	api("POST", "/categories", "name=first")
	var streams atomic.Int64
	proxied := s.behind(func(server http.Handler, w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") == "text/event-stream" && streams.Add(1) == 1 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		server.ServeHTTP(w, r)
	})
	p := begin(t, s.dir, proxied.environ, "export", "categories", "--follow")
	p.expect("no connection: the server returned 502 Bad Gateway; connecting again in")
	p.expect("listening")
	api("POST", "/categories", "name=second")
	id := regexp.MustCompile(`\d+`).FindString(p.expect(`"name":"second"}`))
	api("PATCH", "/categories/"+id, "name=changed")
	p.expect(`{"id":` + id + `,"name":"changed"}`)
	api("DELETE", "/categories/"+id)
	p.expect(`{"id":` + id + `,"name":"changed","deleted":true}`)
	all := begin(t, s.dir, s.environ, "export", "-f")
	all.expect("listening")
	api("POST", "/messages", "message=not in the archive")
	api("POST", "/categories", "name=third")
	if line := all.expect(`"name":"third"`); !strings.HasPrefix(line, `{"kind":"category","id":`) {
		t.Errorf("the row %s", line)
	}
	if slices.ContainsFunc(all.output, func(line string) bool { return strings.Contains(line, "message") }) {
		t.Errorf("the archive has messages:\n%s", strings.Join(all.output, "\n"))
	}
	api("POST", "/sandboxes/current/reset")
	all.expect("petstore: the store was reset; export it again")
	p.expect("petstore: the store was reset; export it again")
	if !slices.ContainsFunc(p.output, func(line string) bool { return strings.HasSuffix(line, `"name":"first"}`) }) {
		t.Errorf("the list is missing in\n%s", strings.Join(p.output, "\n"))
	}
	p.exits(exitFailure)
}

// TestImportCategories: rows may name categories, which import finds or creates once. In an archive, the ids of others
// may be equal.
func TestImportCategories(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	must(t, s.environ, "api", "POST", "/categories", "name=Dogs")
	must(t, s.environ, "api", "POST", "/categories", "name=Dogs and cats")
	path := s.file("pets.csv", "name,category\na,DOGS\nb,Cats\nc,cats\nd,Dogs a\n"+strings.Repeat("e,new\n", 50))
	s.fails([]string{path, "--connections", "1"}, `pets.csv:3: There is no category "Cats". Add --create-categories to create it.`, "rows that were not imported: 53, of which the first 10 are above; --errors FILE has all")
	if got := s.load(path, "--create-categories"); got.Imported != 53 || got.Before != 1 {
		t.Errorf("%+v", got)
	}
	if got := s.rows("categories"); len(got) != 5 {
		t.Errorf("the categories %v", got)
	}
	s.load(s.file("store.ndjson", `{"kind":"category","id":1001,"name":"Birds"}`+"\n"+`{"kind":"pet","name":"Tom","category":"Dogs"}`))
	if got := s.rows("pets", "name=Tom"); got[0]["categoryId"] != 1001.0 {
		t.Errorf("the pet of an archive with the name of a category is %v", got)
	}
	s.fails([]string{s.file("pets.ndjson", `{"name":"a","category":"Dogs","categoryId":1}`)}, "pets.ndjson:1: `categoryId` is not allowed beside `category`.")
}

// TestImportWaits: import waits for 429, 503 and lost connections, imports each row once, and says how far it is.
func TestImportWaits(t *testing.T) {
	t.Parallel()
	s := newStore(t).underTest()
	s.fault(`{"operation":"createCategory","effect":"status","status":503,"first":3},{"operation":"createCategory","effect":"close","when":"after","first":5}`)
	path := s.file("categories.csv", "name\n"+strings.Join(strings.Split("abcdefghijklmnop", ""), "\n"))
	if got := s.load(path); got.Imported != 16 || len(s.rows("categories")) != 16 {
		t.Errorf("with faults: %+v", got)
	}
	s.fault(`{"operation":"createPet","effect":"status","status":429,"first":3}`)
	path = s.file("store.ndjson", `{"kind":"category","id":1,"name":"x"}`+"\n"+`{"kind":"pet","name":"x","categoryId":1}`)
	stdout, stderr, err := executeIn(t, s.dir, s.environ, "", "import", path, "--connections", "1")
	if err != nil || !strings.Contains(stdout, "imported 2 of 2 rows") || !strings.HasPrefix(stderr, "waiting: the server returned 429 ") || !strings.HasSuffix(stderr, "; 1 of 2 rows are imported\n") {
		t.Errorf("with 429: it printed %q and %q, %v", stdout, stderr, err)
	}
	s.fault(`{"operation":"createCategory","effect":"delay","delayMs":2000}`)
	path = s.file("late.csv", "name\n"+strings.Repeat("y\n", 3)+"z\n")
	p := begin(t, s.dir, s.environ, "import", path, "--connections", "1", "--resource", "categories")
	need.Within(t, patience, "there is a journal", func() bool { found, _ := filepath.Glob(path + ".*.journal"); return len(found) == 1 })
	p.exits(exitFailure, syscall.SIGINT)
	p.expect("run the same command again to continue")
	s.fault("")
	s.fails([]string{path, "--resource", "categories"}, "rows that were not imported: 2") // the names are equal
	if got := len(s.rows("categories")); got != 19 {
		t.Errorf("%d categories, want 19", got)
	}
}

// TestImportWaitsForStock: after all rows, import says that it waits for their final stock.
func TestImportWaitsForStock(t *testing.T) {
	t.Parallel()
	var stderr strings.Builder
	report := &importReport{p: &program{stderr: &stderr}}
	report.latest.Store(&transfer.Summary{Rows: 3, Imported: 1, Before: 1, Failed: 1})
	fmt.Fprint(report, "the server returned 429")
	if got := stderr.String(); got != "waiting: the server returned 429; 2 of 3 rows are imported, but the stock of the archive is not final\n" {
		t.Errorf("it printed %q", got)
	}
}
