package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/pgtest"
	"petstore/internal/seed"
	"petstore/internal/tools/must"
	"petstore/internal/tools/run"
)

// TestRatiosOfCPU checks that each round has its own ratio of the CPU time of a request. So
// drift of the machine between rounds does not look like a difference between the builds. A
// workload fails only if every round is above the limit.
func TestRatiosOfCPU(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		base, present []float64 // microseconds of a request
		row           string
	}{
		{[]float64{100, 200, 50}, []float64{100, 200, 50}, "1.00, 1.00 to 1.00, reached"},
		{[]float64{100, 200, 50}, []float64{110, 220, 55}, "1.10, 1.10 to 1.10, MISSED"},
		{[]float64{100, 200, 50}, []float64{110, 220, 45}, "1.10, 0.90 to 1.10, reached"},
		{[]float64{100, 100}, []float64{105, 103}, "1.04, 1.03 to 1.05, reached"},
	} {
		r := &report{options: options{base: "main", most: 1.05}, results: []*result{{}}}
		for i := range test.base {
			for side, took := range []float64{test.base[i], test.present[i]} {
				// PostgreSQL has three quarters, and the rate is the same.
				m := measurement{perSecond: 1, cpu: []float64{took, 3 * took}}
				r.results[0].measured[side] = append(r.results[0].measured[side], m)
			}
		}
		row := r.lines()[1]
		if got := fmt.Sprintf("%s, %s, %s", row.ratio, row.rounds, row.verdict); got != test.row || (r.missed() != nil) != strings.HasSuffix(test.row, missed) {
			t.Errorf("base %v, present %v: %s, error %v; want %s", test.base, test.present, got, r.missed(), test.row)
		}
	}
}

// TestSteal checks the share of the CPU time that the host takes.
func TestSteal(t *testing.T) {
	t.Parallel()
	const before, after = "cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 1 2 3\n", "cpu  40 0 20 120 10 0 0 10 0 0\ncpu0 1 2 3\n"
	if got := stealWarning(before, after); len(got) != 1 || !strings.Contains(got[0], " 10 % ") || stealWarning(after, after) != nil {
		t.Errorf("the warnings about a tenth are %q, and about nothing %q", got, stealWarning(after, after))
	}
}

// newStore returns the URL of a database with a store of three pets in the first account, and a
// pet of another account.
func newStore(t *testing.T) string {
	t.Helper()
	pgtest.Not(t, pgtest.Citus, "the benchmark compares with a single server")
	pool := pgtest.New(t).Pool
	owner := must.Get(account.Ensure(t.Context(), db.New(pool), benchAccount))
	must.OK(seed.Load(t.Context(), pool, owner.ID, 3, nil))
	addStores(t.Context(), pool.Config().ConnString(), newAccounts, 1)
	return pool.Config().ConnString()
}

// TestPlainTables checks that the plain handler gets the same pets, with indexes for its keys
// only, and that new pets get new ids.
func TestPlainTables(t *testing.T) {
	t.Parallel()
	url := newStore(t)
	var stock, pets, entries, units, orders, indexes, newPet int
	run.Scan(t.Context(), url, "SELECT sum(quantity) FROM inventory JOIN accounts ON accounts.id = account_id WHERE name = $1", []any{benchAccount}, &stock)
	run.Exec(t.Context(), url, plainSchema)
	run.Scan(t.Context(), url, `
		SELECT (SELECT count(*) FROM pets), (SELECT count(*) FROM inventory), (SELECT sum(quantity) FROM inventory), (SELECT count(*) FROM orders),
		       (SELECT count(*) FROM pg_indexes WHERE schemaname NOT IN ('pg_catalog', 'pg_toast'))`, nil, &pets, &entries, &units, &orders, &indexes)
	run.Scan(t.Context(), url, "INSERT INTO pets (name, category_id) VALUES ('Igor', 1) RETURNING id", nil, &newPet)
	if pets != 3 || entries != 3 || orders != 3 || units != stock || indexes != 4 || newPet <= pets {
		t.Errorf("%d pets, %d entries with %d units, %d orders, %d indexes, new pet %d; want 3, 3 with %d, 3, 4, above 3", pets, entries, units, orders, indexes, newPet, stock)
	}
}

// TestPgbenchOrder checks that the script of pgbench places an order on the tables of
// Petstore.
func TestPgbenchOrder(t *testing.T) {
	t.Parallel()
	url := newStore(t)
	_, statement, _ := strings.Cut(orderScript, "random(1, :pets)\n")
	for pet, want := range map[string]bool{"1": true, "99": false} {
		var order int64
		var known bool
		var shipDate *time.Time
		var status *string
		run.Scan(t.Context(), url, strings.ReplaceAll(statement, ":pet", pet), nil, &order, &shipDate, &known, &status)
		if (order != 0) != want || known != want {
			t.Errorf("pet %s: order %d, pet known: %t", pet, order, known)
		}
	}
	var orders int
	if run.Scan(t.Context(), url, "SELECT count(*) FROM orders", nil, &orders); orders != 4 {
		t.Errorf("%d orders, want 4", orders)
	}
}

// TestParseCPU: the name of a process may contain spaces and parentheses.
func TestParseCPU(t *testing.T) {
	t.Parallel()
	const stat = "42 (postgres: (a) b) S 1 42 42 0 -1 4194560 1 2 3 4 100 20 3 4 20 0 1 0 99 1 2"
	if got := parseCPU(stat); got != 1270*time.Millisecond {
		t.Errorf("%s, want 1.27s", got)
	}
}

// testReport returns a report of three rounds.
func testReport() *report {
	rounds := func(p99 float64, rates ...float64) (all []measurement) {
		for _, r := range rates {
			all = append(all, measurement{perSecond: r, p50: p99 / 4, p99: p99})
		}
		return all
	}
	add := func(w workload, other string, ours, theirs []measurement) *result {
		w.other.name = other
		return &result{w, pair{theirs, ours}}
	}
	return &report{
		machine: "2 CPUs", setting: "2026-11-22",
		results: []*result{
			add(workload{name: randomOrders, atLeast: 2.5, p99AtMost: 0.6}, "plain",
				rounds(12, 9000, 10_000, 11_000), rounds(24, 3000, 4000, 5500)),
			add(workload{name: readPets, atLeast: 1.4}, "plain", rounds(3, 20_000), rounds(3, 16_000)),
			add(workload{name: flashSale}, "plain", rounds(4, 12_345.6), rounds(1000, 900)),
			add(workload{name: randomOrders}, "swagger-petstore", rounds(0, 10), []measurement{{perSecond: 5, failed: 0.5}}),
			add(workload{name: "deliveries", perSecond: 2000}, "base", rounds(0, 1999), rounds(0, 1000)),
			add(workload{name: "GET <a> & b", p99AtMost: 3}, "idle", rounds(8, 1), rounds(2, 1)),
		},
		others:   []line{startLine([]time.Duration{3e6, 200e6, 160e6})},
		warnings: []string{"The machine is not quiet."},
	}
}

// TestWriteReport writes a report into a copy of docs/performance.md, twice.
func TestWriteReport(t *testing.T) {
	t.Parallel()
	root, name := t.TempDir(), "docs/performance.md"
	must.OK(os.Mkdir(filepath.Join(root, "docs"), 0o700))
	must.OK(os.WriteFile(filepath.Join(root, name), must.Get(os.ReadFile("../../../"+name)), 0o600))
	r := testReport()
	r.write(root)
	r.write(root)
	text := string(must.Get(os.ReadFile(filepath.Join(root, name))))
	for _, part := range []string{
		"| POST /store/orders, random pets | 10,000/s, p50 3.0, p99 12.0 ms | plain | 4,000/s, p50 6.0, p99 24.0 ms | 2.50 | 2.00 to 3.00 | at least 2.50 | reached |\n",
		"| POST /store/orders, random pets: p99 | 12.0 ms | plain | 24.0 ms | 0.50 | 0.50 to 0.50 | at most 0.60 | reached |\n",
		"| GET /pets?id={petId} | 20,000/s, p50 0.8, p99 3.0 ms | plain | 16,000/s, p50 0.8, p99 3.0 ms | 1.25 | 1.25 to 1.25 | at least 1.40 | MISSED |\n",
		"| POST /store/orders, one pet (flash sale) | 12,346/s, p50 1.0, p99 4.0 ms | plain | 900/s, p50 250.0, p99 1000.0 ms | 13.7 | 13.7 to 13.7 | | |\n",
		"| 5/s, 50 % errors | 2.00 |",
		"| deliveries | 1,999/s | base | 1,000/s | 2.00 | 2.00 to 2.00 | at least 2,000/s | MISSED |\n| GET <a> & b | 1/s, p50 2.0, p99 8.0 ms |",
		"| start to /readyz 200 | 160 ms | | | | 3 to 200 ms | under 150 ms | MISSED |\n",
		"\n**Warning:** The machine is not quiet.\n\n" + reportEnds + "\n## ",
	} {
		if strings.Count(text, part) != 1 {
			t.Errorf("%s has %q %d times, want once:\n%s", name, part, strings.Count(text, part), text)
		}
	}
	if must.Attempt(func() { r.replacePart("no comments") }) == nil {
		t.Error("no error about a document without a place for the result")
	}
}

// TestReadmeFigures checks that README.md repeats the figures of docs/performance.md.
func TestReadmeFigures(t *testing.T) {
	t.Parallel()
	readme, page := string(must.Get(os.ReadFile("../../../README.md"))), string(must.Get(os.ReadFile("../../../docs/performance.md")))
	for workload, phrase := range map[string]string{
		readPets:  "reads of single pets per second, ([0-9.]+) times a plain Gin handler",
		flashSale: `orders of one pet per second \(a flash sale\), ([0-9.]+) times a plain handler`,
	} {
		found := regexp.MustCompile("([0-9,]+) " + phrase).FindStringSubmatch(readme)
		if found == nil {
			t.Errorf("README.md lacks %q", phrase)
			continue
		}
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(workload) + ` \| [^|]* \| plain \|.*`).FindString(page)
		if !strings.Contains(row, "| "+found[1]+"/s") || !strings.Contains(row, "| "+found[2]+" |") {
			t.Errorf("docs/performance.md has %q, and README.md %q", row, found[1:])
		}
	}
}
