package main

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/pgtest"
	"petstore/internal/seed"
	"petstore/internal/tools/must"
)

// TestRatiosOfCPU checks that each round has its own ratio of the CPU time of a request. So
// drift of the machine between rounds does not look like a difference between the builds. A
// workload fails only if every round is above the limit.
func TestRatiosOfCPU(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		base, present           []int // microseconds of a request
		median, least, greatest float64
		verdict                 string
	}{
		{[]int{100, 200, 50}, []int{100, 200, 50}, 1, 1, 1, "ok"},
		{[]int{100, 200, 50}, []int{110, 220, 55}, 1.1, 1.1, 1.1, "MORE"},
		{[]int{100, 200, 50}, []int{110, 220, 45}, 1.1, 0.9, 1.1, "more?"},
		{[]int{100, 200, 50}, []int{90, 220, 45}, 0.9, 0.9, 1.1, "ok?"},
		{[]int{100, 100}, []int{105, 103}, 1.04, 1.03, 1.05, "ok"},
	} {
		l := &result{workload: workload{name: "GET /pets"}}
		for i := range test.base {
			for side, took := range []int{test.base[i], test.present[i]} {
				// PostgreSQL has three quarters, and the rate is the same.
				m := measurement{perSecond: 1, cpu: []time.Duration{time.Duration(took) * time.Microsecond, time.Duration(3*took) * time.Microsecond}}
				l.measured[side] = append(l.measured[side], m)
			}
		}
		median, least, greatest := l.measured.ratios(cpuMicroseconds)
		near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
		if got := cpuVerdict(l.measured, 1.05); !near(median, test.median) || !near(least, test.least) || !near(greatest, test.greatest) || got != test.verdict {
			t.Errorf("base %v, present %v: %.2f, %.2f to %.2f, %s; want %.2f, %.2f to %.2f, %s", test.base, test.present,
				median, least, greatest, got, test.median, test.least, test.greatest, test.verdict)
		}
		var out strings.Builder
		err := judgeCPU(&out, []*result{l}, 1.05)
		if fails := test.verdict == "MORE"; (err != nil) != fails || fails && !strings.HasSuffix(err.Error(), ": GET /pets") {
			t.Errorf("%s: the error is %v", test.verdict, err)
		}
	}
}

func TestNextPage(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		"": "",
		`<http://127.0.0.1:1/pets?after=x&limit=50>; rel="next"`: "/pets?after=x&limit=50",
		`</pets?after=x>; rel="next"`:                            "/pets?after=x",
		`</docs>; rel="deprecation", </pets?a=b>; rel="next"`:    "/pets?a=b",
		`</pets>; rel="first"`:                                   "",
	} {
		if got := nextPage(header); got != want {
			t.Errorf("nextPage(%q) = %q, want %q", header, got, want)
		}
	}
}

// TestSteal checks the share of the CPU time that the host takes.
func TestSteal(t *testing.T) {
	t.Parallel()
	before, after := parseCPUTimes("cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 1 2 3\n"), parseCPUTimes("cpu  40 0 20 120 10 0 0 10 0 0\ncpu0 1 2 3\n")
	if stolen := after.stolenSince(before); stolen != 0.1 {
		t.Errorf("stolen %.2f, want 0.1", stolen)
	}
	if stealWarning(after.stolenSince(before)) == "" || stealWarning(after.stolenSince(after)) != "" {
		t.Error("there is no warning about a tenth, or one about nothing")
	}
}

// newStore returns a database with a store of three pets in the first account, and a pet of
// another account.
func newStore(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.New(t).Pool
	owner, err := account.Ensure(t.Context(), db.New(pool), benchAccount)
	if err != nil {
		t.Fatal(err)
	}
	if err := seed.Load(t.Context(), pool, owner.ID, 3, nil); err != nil {
		t.Fatal(err)
	}
	addStores(t.Context(), pool.Config().ConnString(), newAccounts, 1)
	return pool
}

// scanRow runs a query that returns one row.
func scanRow(t *testing.T, pool *pgxpool.Pool, query string, into ...any) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), query).Scan(into...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// TestPlainTables checks that the plain handler gets the same pets, with indexes for
// its keys only.
func TestPlainTables(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "the benchmark compares with a single server")
	pool := newStore(t)
	var stock, units int
	scanRow(t, pool, "SELECT sum(quantity) FROM inventory JOIN accounts ON accounts.id = account_id WHERE name = '"+benchAccount+"'", &stock)
	if _, err := pool.Exec(t.Context(), replaceSchema); err != nil {
		t.Fatal(err)
	}
	var pets, entries, orders, indexes, newPet int
	scanRow(t, pool, "SELECT (SELECT count(*) FROM pets), (SELECT count(*) FROM inventory), (SELECT sum(quantity) FROM inventory), (SELECT count(*) FROM orders)",
		&pets, &entries, &units, &orders)
	if pets != 3 || entries != 3 || orders != 3 || units != stock {
		t.Errorf("%d pets, %d entries with %d units, %d orders; want 3, 3 with %d, 3", pets, entries, units, orders, stock)
	}
	scanRow(t, pool, "SELECT count(*) FROM pg_indexes WHERE schemaname NOT IN ('pg_catalog', 'pg_toast')", &indexes)
	if indexes != 4 {
		t.Errorf("%d indexes, want the primary keys of four tables", indexes)
	}
	scanRow(t, pool, "INSERT INTO pets (name, category_id) VALUES ('Igor', 1) RETURNING id", &newPet)
	if newPet <= pets {
		t.Errorf("a new pet has the id %d of another pet", newPet)
	}
}

// TestPgbenchOrder checks that the script of pgbench places an order on the tables of
// Petstore.
func TestPgbenchOrder(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "the benchmark compares with a single server")
	pool := newStore(t)
	_, statement, found := strings.Cut(string(orderScript), "random(1, :pets)\n")
	if !found {
		t.Fatal("the script draws no pet")
	}
	var order int64
	var known bool
	var shipDate *time.Time
	var status *string
	for _, pet := range []string{"1", "99"} {
		scanRow(t, pool, strings.ReplaceAll(statement, ":pet", pet), &order, &shipDate, &known, &status)
		if placed := pet == "1"; (order != 0) != placed || known != placed {
			t.Errorf("pet %s: order %d, pet known: %t", pet, order, known)
		}
	}
	var orders int
	scanRow(t, pool, "SELECT count(*) FROM orders", &orders)
	if orders != 4 {
		t.Errorf("%d orders, want 4", orders)
	}
}

// TestParseCPU: the name of a process may contain spaces and parentheses.
func TestParseCPU(t *testing.T) {
	t.Parallel()
	const stat = "42 (postgres: (a) b) S 1 42 42 0 -1 4194560 1 2 3 4 100 20 3 4 20 0 1 0 99 1 2"
	for ended, want := range map[bool]time.Duration{false: 1200 * time.Millisecond, true: 1270 * time.Millisecond} {
		if got := parseCPU([]byte(stat), ended); got != want {
			t.Errorf("with ended children %t: %s, want %s", ended, got, want)
		}
	}
	if must.Attempt(func() { parseCPU([]byte("42 (x) S 1"), false) }) == nil {
		t.Error("a short line has a CPU time")
	}
}

func TestOfLinear(t *testing.T) {
	t.Parallel()
	read := func(primary, replica time.Duration) []measurement {
		return []measurement{{cpu: []time.Duration{0, primary, replica}}}
	}
	for _, test := range []struct {
		what     string
		reads    []measurement
		replicas float64
		want     float64
	}{
		{"equal costs", read(0, 100), 4, 1},
		{"twice the costs on a replica", read(0, 200), 1, 0.75},
		{"a tenth on the primary too", read(10, 100), 2, (1 - 0.2 + 2) / 3},
	} {
		if got := ofLinear(read(100, 0), test.reads, test.replicas); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s: %g, want %g", test.what, got, test.want)
		}
	}
}

// testReport returns a report of three rounds.
func testReport() *report {
	rounds := func(p99 time.Duration, rates ...float64) (all []measurement) {
		for _, r := range rates {
			all = append(all, measurement{perSecond: r, p50: p99 / 4, p99: p99})
		}
		return all
	}
	add := func(w workload, ours, other []measurement) *result {
		return &result{workload: w, measured: pair{other, ours}}
	}
	plain := side{name: "plain"}
	return &report{
		machine: "2 CPUs", setting: "2026-11-22",
		results: []*result{
			add(workload{name: randomOrders, other: plain, atLeast: 2.5, p99AtMost: 0.6, chart: true},
				rounds(12*time.Millisecond, 9000, 10_000, 11_000), rounds(24*time.Millisecond, 3000, 4000, 5500)),
			add(workload{name: readPets, other: plain, atLeast: 1.4, chart: true},
				rounds(3*time.Millisecond, 20_000, 20_000, 20_000), rounds(3*time.Millisecond, 16_000, 16_000, 16_000)),
			add(workload{name: flashSale, other: plain, chart: true},
				rounds(4*time.Millisecond, 12_345.6, 12_345.6, 12_345.6), rounds(time.Second, 900, 900, 900)),
			add(workload{name: randomOrders, other: side{name: swaggerName}},
				rounds(time.Millisecond, 10, 10, 10), []measurement{{perSecond: 5, failed: 0.25}, {perSecond: 5, failed: 0.5}, {perSecond: 5, failed: 0.5}}),
			add(workload{name: "GET during orders", other: side{name: "idle"}, p99AtMost: 3, latencyOnly: true},
				rounds(8*time.Millisecond, 1, 1, 1), rounds(2*time.Millisecond, 1, 1, 1)),
		},
		others:   []line{memoryLine(71), startLine([]time.Duration{3e6, 200e6, 160e6})},
		warnings: []string{"The machine is not quiet."},
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	text := testReport().markdown()
	for _, want := range []string{
		"| POST /store/orders, random pets | 10,000/s, p50 3.0, p99 12.0 ms | plain | 4,000/s, p50 6.0, p99 24.0 ms | 2.50 | 2.00 to 3.00 | at least 2.50 | reached |\n",
		"| POST /store/orders, random pets: p99 | 12.0 ms | plain | 24.0 ms | 0.50 | 0.50 to 0.50 | at most 0.60 | reached |\n",
		"| GET /pets/{petId} | 20,000/s, p50 0.8, p99 3.0 ms | plain | 16,000/s, p50 0.8, p99 3.0 ms | 1.25 | 1.25 to 1.25 | at least 1.40 | MISSED |\n",
		"| POST /store/orders, one pet (flash sale) | 12,346/s, p50 1.0, p99 4.0 ms | plain | 900/s, p50 250.0, p99 1000.0 ms | 13.7 | 13.7 to 13.7 | | |\n",
		"| 5/s, 50 % errors | 2.00 |",
		"| GET during orders: p99 | 8.0 ms | idle | 2.0 ms | 4.00 | 4.00 to 4.00 | at most 3.00 | MISSED |\n",
		"| memory after all rounds | 71 MB | | | | | under 80 MB | reached |\n",
		"| start to /readyz 200 | 160 ms | | | | 3 to 200 ms | under 150 ms | MISSED |\n",
		"\n**Warning:** The machine is not quiet.\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the Markdown lacks %q", want)
		}
	}
	if strings.Contains(text, "| GET during orders | ") {
		t.Error("the table has a rate of a workload that measures only latency")
	}
	for row := range strings.Lines(text) {
		if cells := strings.Count(row, "|") - 1; strings.HasPrefix(row, "|") && cells != len(columns.cells()) {
			t.Errorf("%d cells instead of %d: %s", cells, len(columns.cells()), row)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

func TestThousands(t *testing.T) {
	t.Parallel()
	for n, want := range map[float64]string{0: "0", 999.4: "999", 999.5: "1,000", 12_345: "12,345", 1_234_567: "1,234,567"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%v) = %q, want %q", n, got, want)
		}
	}
}

func TestChart(t *testing.T) {
	t.Parallel()
	r := testReport()
	r.results[1].name = "GET <a> & b"
	chart := string(r.chart())
	for _, want := range []string{
		`aria-labelledby="title desc"`, "10,000/s", "900/s", "2.50 times plain", "GET &lt;a&gt; &amp; b", chartTitle,
		`width="280"`, `width="112"`, `width="560"`, `width="448"`, `width="345"`, `width="25"`, // of 560 for 20,000 a second
	} {
		if !strings.Contains(chart, want) {
			t.Errorf("the chart lacks %q:\n%s", want, chart)
		}
	}
}

// TestWriteReport writes a report into copies of the documents.
func TestWriteReport(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "docs"), 0o700); err != nil {
		t.Fatal(err)
	}
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, name := range []string{"README.md", "docs/performance.md"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(read("../../../"+name)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := testReport()
	for range 2 { // the second one replaces the first
		r.write(root)
	}
	page, readme := read(filepath.Join(root, "docs/performance.md")), read(filepath.Join(root, "README.md"))
	if strings.Count(page, r.markdown()) != 1 || !strings.Contains(page, reportEnds+"\n## ") {
		t.Error("docs/performance.md does not contain the result once, before its next heading")
	}
	for _, want := range []string{
		"| 20,000 reads of single pets per second, 1.25 times a plain Gin handler |", "| 12,346 orders of one pet per second (a flash sale), 13.7 times",
		"| `POST` of an order, 64 connections, same machine | 10 per second | 5 per second, 50 % errors |\n",
	} {
		if !strings.Contains(readme, want) {
			t.Errorf("README.md lacks %q", want)
		}
	}
	if must.Attempt(func() { r.replacePart("no comments") }) == nil {
		t.Error("no error without the comments around the replaced part")
	}
	if must.Attempt(func() { r.replaceFigures("no phrases") }) == nil {
		t.Error("no error without the phrases of the figures")
	}
}

// TestReadmeFigures checks that README.md repeats the figures of docs/performance.md.
func TestReadmeFigures(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(string(page), reportEnds)
	for _, f := range readmeFigures {
		found := f.pattern().FindStringSubmatch(string(readme))
		if found == nil {
			t.Errorf("README.md lacks %q", f.phrase)
			continue
		}
		if f.other == swaggerName && !strings.Contains(table, "| "+swaggerName+" | ") {
			continue // its figures are older
		}
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(f.workload+" | "+found[1]) + `/s, [^|]* \| ` + f.other + ` \|.*`).FindString(table)
		if figure := found[2]; !strings.Contains(row, "| "+figure+" |") && !strings.Contains(row, "| "+figure+"/s") {
			t.Errorf("docs/performance.md has no row of %q with %v", f.workload, found[1:])
		}
	}
}
