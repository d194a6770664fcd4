package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"petstore/internal/tools/must"
)

const (
	plainConns = 8 // of the plain server, which is slower with more; Petstore uses its default
	starts     = 5
	deepPage   = 2000
	firstPath  = "/pets?limit=50&sort=name&status=available"
)

// The names of sides that README.md compares with.
const plainName, swaggerName = "plain", "swagger-petstore"

// compareWithOthers compares the program with its limits and with a plain handler, and
// prints the ratios.
func compareWithOthers(ctx context.Context, o options, dir string, out io.Writer) {
	r := newReport(ctx, o)
	b := newBuild(ctx, o, dir, "present", ".")
	defer b.stop()
	b.addOtherDatabases(ctx)
	r.machine += ", PostgreSQL " + b.binaries.Version
	fmt.Fprintf(out, "%s\n%s\n", r.machine, r.setting)
	s := &comparedServers{build: b, swagger: o.swagger}
	startTimes := s.start(ctx)
	defer func() { s.plain.stop(); s.stopConstant() }()
	r.measureRounds(ctx, s.workloads(ctx), o)
	r.add(b.hotLine(ctx))
	r.add(memoryLine(b.server.memory() >> 20))
	r.add(startLine(startTimes))
	r.print(out)
	if o.report != "" {
		r.write(o.report)
	}
}

// comparedServers are the running servers.
type comparedServers struct {
	*build
	plain        *process
	swagger      string // a URL or ""
	constantURL  string
	stopConstant func()
}

// start starts the servers. It starts Petstore several times, and returns how long that took.
func (s *comparedServers) start(ctx context.Context) (times []time.Duration) {
	for range starts {
		s.server.stop()
		times = append(times, s.build.serve(ctx))
	}
	program, addr := filepath.Join(s.dir, "plain"), freeAddress(ctx)
	runProgram(ctx, nil, "go", "build", "-o", program, "./internal/tools/bench/plain")
	s.plain = start(ctx, program+".log", nil, program, addr, s.cluster.URL("plain"), strconv.Itoa(plainConns))
	s.plain.awaitReady(ctx, addr, "/pets/1")
	s.constantURL, s.stopConstant = serve(ctx, http.HandlerFunc(constant))
	return times
}

// workloads returns the rows of the table.
func (s *comparedServers) workloads(ctx context.Context) []workload {
	const many, few = 64, 16
	pet, order := load{kind: "pet", connections: many}, load{kind: "order", connections: many}
	keyed, sale, create := load{kind: "keyed", connections: many}, load{kind: "sale", connections: many}, load{kind: "create", connections: many}
	fewPets := load{kind: "pet", connections: few}
	page := func(path string) load { return load{kind: "path", path: path, connections: many} }
	paths := s.pagePaths(ctx, firstPath, min(deepPage, s.pets/pageSize))
	deepPath := paths[len(paths)-1]
	var plainPages []string
	for i := range min(pagesDrawn, s.pets/pageSize) { // the ids have no gaps
		plainPages = append(plainPages, fmt.Sprintf("/pets?limit=%d&after=%d", pageSize, i*pageSize))
	}
	all := []workload{
		{name: randomOrders, ours: s.ours(order), other: s.onPlain(order), atLeast: 2.5, p99AtMost: 0.6, chart: true},
		{name: randomOrders, ours: s.ours(order), other: s.onPgbench(many), atLeast: 1.3},
		{name: "POST /store/orders, an Idempotency-Key each", ours: s.ours(keyed), other: s.on("without keys", order), atLeast: 0.8},
		{name: flashSale, ours: s.ours(sale), other: s.onPlain(sale), atLeast: 8, chart: true},
		{name: "POST /pets", ours: s.ours(create), other: s.onPlain(create), atLeast: 2.4, chart: true},
		{name: readPets, ours: s.ours(pet), other: s.onPlain(pet), atLeast: 1.4, p99AtMost: 1, chart: true},
		{name: readPets + ", 16 connections", ours: s.ours(fewPets), other: s.onPlain(fewPets), atLeast: 1.1},
		{name: readPets, ours: s.ours(pet), other: s.side("HTTP limit", s.constantURL, pet), atLeast: 0.45},
		{name: "GET /pets?limit=50, different pages", ours: s.ours(page(s.drawnPages(ctx))), other: s.onPlain(page("@" + s.writeFile("plain-pages", plainPages...))), atLeast: 1.2, chart: true},
		{name: "GET /pets?limit=50, one page", ours: s.ours(page("/pets?limit=50")), other: s.onPlain(page("/pets?limit=50"))},
		{name: "GET /pets, page 2,000 by name", ours: s.ours(page(deepPath)), other: s.on("first page", page(firstPath)), atLeast: 0.9},
		{name: readPets + ", 1,000 accounts", ours: s.ours(pet.by(smallAccounts)), other: s.onPlain(pet), atLeast: 1},
		{name: "POST /store/orders, 1,000 accounts", ours: s.ours(order.by(smallAccounts)), other: s.onPlain(order), atLeast: 1.2},
	}
	if s.swagger != "" {
		all = append(all,
			workload{name: readPets, ours: s.ours(pet), other: s.onSwagger("swaggerPet", many)},
			workload{name: randomOrders, ours: s.ours(order), other: s.onSwagger("swaggerOrder", many)})
	}
	alone := load{kind: "pet", connections: 1}
	return append(all, workload{name: "GET /pets/{petId} while 64 connections order", ours: s.beside("Petstore", alone, order), other: s.on("idle", alone), p99AtMost: 3, latencyOnly: true})
}

// ours is the side of Petstore.
func (s *comparedServers) ours(l load) side { return s.on("Petstore", l) }

// on measures another load of Petstore.
func (s *comparedServers) on(name string, l load) side { return s.side(name, s.server.url, l) }

func (s *comparedServers) onPlain(l load) side { return s.side(plainName, s.plain.url, l) }

func (s *comparedServers) onSwagger(kind string, connections int) side {
	const samplePets = 10 // the pets of a new swagger-petstore have the ids 1 to 10
	return s.side(swaggerName, s.swagger, load{kind: kind, connections: connections, mostPets: samplePets, mayFail: true})
}

func (s *comparedServers) onPgbench(connections int) side {
	return side{"pgbench", func(ctx context.Context, during time.Duration) measurement {
		return s.pgbench(ctx, filepath.Join(s.binaries.Dir, "pgbench"), s.cluster.URL("pgbench"), connections, during)
	}}
}

func (s *comparedServers) side(name, url string, l load) side {
	return side{name, func(ctx context.Context, during time.Duration) (m measurement) {
		must.Explain(name, func() { m = s.wrk(ctx, url, l, during) })
		return m
	}}
}

//go:embed plain/schema.sql
var plainSchema string

// addOtherDatabases creates the databases of the other sides from the database of Petstore, and
// resets the number of updates of inventory. They contain the same pets, and no side pays for
// rows or indexes of another.
func (b *build) addOtherDatabases(ctx context.Context) {
	for _, name := range []string{"pgbench", "plain"} {
		execute(ctx, b.cluster.URL("postgres"), "CREATE DATABASE "+name+" TEMPLATE petstore STRATEGY file_copy")
	}
	execute(ctx, b.cluster.URL("plain"), replaceSchema)
	vacuum(ctx, b.cluster.URL("plain"))
	execute(ctx, b.database, "SELECT pg_stat_reset_single_table_counters('inventory'::regclass)")
}

// replaceSchema replaces the tables of Petstore by the tables of plainSchema, with the store of
// the large account, which is the first one.
var replaceSchema = `
	ALTER SCHEMA public RENAME TO petstore;
	CREATE SCHEMA public;
	SET search_path = public;
	` + plainSchema + `
	CREATE TEMPORARY VIEW large AS SELECT min(id) AS id FROM petstore.accounts;
	INSERT INTO categories (id, name)
	SELECT categories.id, categories.name FROM petstore.categories JOIN large ON large.id = account_id ORDER BY categories.id;
	INSERT INTO pets (id, name, category_id, status)
	SELECT pets.id, pets.name, category_id, status FROM petstore.pets JOIN large ON large.id = account_id ORDER BY pets.id;
	INSERT INTO inventory (pet_id, quantity)
	SELECT pet_id, quantity FROM petstore.inventory JOIN large ON large.id = account_id ORDER BY pet_id;
	INSERT INTO orders (id, pet_id, quantity, ship_date, complete)
	SELECT orders.id, pet_id, quantity, ship_date, complete FROM petstore.orders JOIN large ON large.id = account_id ORDER BY orders.id;
	SELECT setval(pg_get_serial_sequence('pets', 'id'), max(id)) FROM pets;
	SELECT setval(pg_get_serial_sequence('orders', 'id'), max(id)) FROM orders;
	DROP SCHEMA petstore CASCADE`

// hotLine returns the share of updates of inventory that were HOT, which means that they wrote
// to no index.
func (b *build) hotLine(ctx context.Context) line {
	const least = 0.95
	var updates, hot float64
	scan(ctx, b.database, "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'inventory'::regclass", nil, &updates, &hot)
	share := hot / max(1, updates)
	return line{
		name: "HOT updates of inventory", ours: fmt.Sprintf("%.3f", share), other: "all updates", theirs: thousands(updates),
		target: fmt.Sprintf("at least %.2f", least), verdict: verdict(share >= least),
	}
}

func memoryLine(megabytes int64) line {
	const most = 80
	return line{
		name: "memory after all rounds", ours: fmt.Sprintf("%d MB", megabytes),
		target: fmt.Sprintf("under %d MB", most), verdict: verdict(megabytes < most),
	}
}

// startLine returns the time from the start of the process until it is ready.
func startLine(times []time.Duration) line {
	const most = 150
	slices.Sort(times)
	median := times[len(times)/2].Milliseconds()
	return line{
		name: "start to /readyz 200", ours: fmt.Sprintf("%d ms", median),
		rounds: fmt.Sprintf("%d to %d ms", times[0].Milliseconds(), times[len(times)-1].Milliseconds()),
		target: fmt.Sprintf("under %d ms", most), verdict: verdict(median < most),
	}
}
