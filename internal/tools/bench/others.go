package main

import (
	"context"
	_ "embed"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"petstore/internal/tools/must"
	"petstore/internal/tools/run"
)

const (
	plainConns = 8 // of the plain server, which is slower with more; Petstore uses its default
	deepPage   = 2000
	firstPath  = "/pets?limit=50&sort=name&status=available"
)

// compareWithOthers compares the program with its limits and with a plain handler.
func compareWithOthers(ctx context.Context, r *report, b *build) {
	s := &others{build: b}
	s.addDatabases(ctx)
	var times []time.Duration
	for range 5 {
		b.server.stop(ctx)
		times = append(times, b.serve(ctx))
	}
	program, addr := b.file("plain"), run.FreeAddr(ctx)
	run.Program(ctx, "go", "build", "-o", program, "./internal/tools/bench/plain")
	s.plain = start(ctx, nil, program, addr, b.cluster.URL("plain"), strconv.Itoa(plainConns))
	s.plain.awaitReady(ctx, addr, "/pets/1")
	b.cleanups = append(b.cleanups, func() { s.plain.stop(ctx) })
	r.measureRounds(ctx, s.workloads(ctx, r.swagger))
	megabytes := b.server.Memory("VmRSS") >> 20
	memory := line{name: "memory after all rounds", ours: fmt.Sprintf("%d MB", megabytes)}.judged("under 80 MB", megabytes < 80)
	r.others = append(r.others, s.hotLine(ctx), memory, startLine(times))
}

// others are the servers that Petstore is compared with, and Petstore.
type others struct {
	*build
	plain *process
}

// workloads returns the rows of the table.
func (s *others) workloads(ctx context.Context, swagger string) []workload {
	s.drawPages(ctx)
	paths, sizes := s.pages(ctx, firstPath, min(deepPage, s.pets/pageSize))
	deep := nearest(sizes)
	deepLoad, firstLoad := loadOf(onePage), loadOf(onePage)
	deepLoad.path, firstLoad.path = paths[deep], paths[0]
	withPlain := func(name string, w workload) workload {
		w.name, w.ours, w.other = name, s.ours(name), s.onPlain(name)
		return w
	}
	few, many := smallBesideLarge()
	one := load{kind: "petById", connections: 1}
	all := []workload{
		withPlain(randomOrders, workload{atLeast: 2.5, p99AtMost: 0.6}),
		{name: randomOrders, ours: s.ours(randomOrders), other: s.onPgbench(64), atLeast: 1.3},
		{name: keyedOrders, ours: s.ours(keyedOrders), other: s.side("without keys", loadOf(randomOrders)), atLeast: 0.8},
		withPlain(flashSale, workload{atLeast: 8}),
		withPlain(createPets, workload{atLeast: 2.4}),
		withPlain(readPets, workload{atLeast: 1.4, p99AtMost: 1}),
		withPlain(readPets+", 16 connections", workload{atLeast: 1.1}),
		{name: readPets, ours: s.ours(readPets), other: s.on("HTTP limit", s.serveHTTP(ctx, http.HandlerFunc(constant)), loadOf(readPets)), atLeast: 0.45},
		withPlain(differentPages, workload{atLeast: 1.2}),
		withPlain(onePage, workload{}),
		{
			name: fmt.Sprintf("GET /pets, page %s by name, %s bytes", thousands(float64(deep+1)), thousands(float64(sizes[deep]))),
			ours: s.side(petstoreName, deepLoad), other: s.side(fmt.Sprintf("first page, %s bytes", thousands(float64(sizes[0]))), firstLoad), atLeast: 0.9,
		},
		withPlain(readPets+", 1,000 accounts", workload{atLeast: 1}),
		withPlain(accountOrders, workload{atLeast: 1.2}),
		withPlain(sandboxOrders, workload{}),
		s.recorded("GET", "/pets/1", ""),
		s.recorded("POST", "/store/orders", `{"petId":1,"quantity":1}`),
		{name: few.name, ours: s.beside(petstoreName, few, many), other: s.side("alone", few)},
		{name: readPets + " while 64 connections order", ours: s.beside(petstoreName, one, loadOf(randomOrders)), other: s.side("idle", one), p99AtMost: 3},
	}
	if swagger != "" {
		all = append(all,
			workload{name: readPets, ours: s.ours(readPets), other: s.onSwagger(swagger, "swaggerPet")},
			workload{name: randomOrders, ours: s.ours(randomOrders), other: s.onSwagger(swagger, "swaggerOrder")})
	}
	return all
}

// recorded compares requests of sandboxes, at a fixed rate, with the same requests of an observer, which
// are not in the record.
func (s *others) recorded(method, path, body string) workload {
	const perSecond, senders = 1000, 8
	keys := strings.Fields(string(must.Get(os.ReadFile(s.file(sandboxes)))))
	on := func(name, observer string) side {
		return side{name, func(ctx context.Context, during time.Duration) measurement {
			return withCPU(s.pids(), func() measurement {
				began, number := time.Now(), int(perSecond*during.Seconds())
				must.Parallel(senders, func(sender int) {
					for i := sender; i < number; i += senders {
						time.Sleep(time.Until(began.Add(time.Duration(i) * time.Second / perSecond)))
						send(ctx, method, s.server.url+path, body, "Authorization", "Bearer "+keys[rand.N(len(keys))], "Petstore-Observer", observer)
					}
				})
				return measurement{requests: number, perSecond: float64(number) / time.Since(began).Seconds()}
			})
		}}
	}
	return workload{
		name: fmt.Sprintf("%s %s, 1,000 a second of 1,000 sandboxes", method, path),
		ours: on(petstoreName, "false"), other: on("without the record", "true"), cpuAtMost: 1.03,
	}
}

// nearest returns the index of a page among the last hundred, whose size is nearest to the
// first page. A response above 4 KiB takes a second system call, however deep its page is.
func nearest(sizes []int) (index int) {
	const candidates = 100
	best := -1
	for i := max(len(sizes)/2, len(sizes)-candidates); i < len(sizes); i++ {
		if difference := max(sizes[i]-sizes[0], sizes[0]-sizes[i]); best < 0 || difference <= best {
			best, index = difference, i
		}
	}
	return index
}

// ours is the side of Petstore.
func (s *others) ours(name string) side { return s.side(petstoreName, loadOf(name)) }

// onPlain is the same load of the plain handler, which has only one store, and other paths.
func (s *others) onPlain(name string) side {
	l := loadOf(name)
	l.callers = largeAccount
	if l.kind == "petById" {
		l.kind = "pet"
	}
	if l.path == "@"+pagesFile {
		l.path = "@" + plainPages
		var paths []string
		for i := range min(pagesDrawn, s.pets/pageSize) { // the ids have no gaps
			paths = append(paths, fmt.Sprintf("/pets?limit=%d&after=%d", pageSize, i*pageSize))
		}
		s.writeFile(plainPages, paths...)
	}
	return s.on("plain", s.plain.url, l)
}

func (s *others) onSwagger(url, kind string) side {
	const samplePets = 10 // the pets of a new swagger-petstore have the ids 1 to 10
	return s.on("swagger-petstore", url, load{kind: kind, connections: 64, mostPets: samplePets, mayFail: true})
}

var pgbenchRate = regexp.MustCompile(`tps = ([0-9.]+)`)

func (s *others) onPgbench(connections int) side {
	return side{"pgbench", func(ctx context.Context, during time.Duration) measurement {
		out := run.Program(ctx, filepath.Join(s.binaries.Dir, "pgbench"), "--no-vacuum", "--protocol=prepared", "--file="+s.file(orderFile),
			"--client="+strconv.Itoa(connections), "--jobs=2", fmt.Sprintf("--time=%.0f", during.Seconds()), "--define=pets="+strconv.Itoa(s.pets), s.cluster.URL("pgbench"))
		found := pgbenchRate.FindStringSubmatch(out)
		must.Hold(found != nil, "pgbench: %s", out)
		return measurement{perSecond: must.Get(strconv.ParseFloat(found[1], 64))}
	}}
}

// on measures a load of a server.
func (s *others) on(name, url string, l load) side {
	return side{name, func(ctx context.Context, during time.Duration) (m measurement) {
		must.Explain(name, func() { m = s.wrk(ctx, url, l, during) })
		return m
	}}
}

// plainSchema replaces the tables of Petstore by the tables of the plain handler.
//
//go:embed plain/schema.sql
var plainSchema string

// addDatabases creates the databases of the other sides from the database of Petstore, and
// resets the number of updates of inventory. They contain the same pets, and no side pays for
// rows or indexes of another.
func (s *others) addDatabases(ctx context.Context) {
	for _, name := range []string{"pgbench", "plain"} {
		run.Exec(ctx, s.cluster.URL("postgres"), "CREATE DATABASE "+name+" TEMPLATE petstore STRATEGY file_copy")
	}
	run.Exec(ctx, s.cluster.URL("plain"), plainSchema)
	vacuum(ctx, s.cluster.URL("plain"))
	run.Exec(ctx, s.database, "SELECT pg_stat_reset_single_table_counters('inventory'::regclass)")
}

// hotLine returns the share of updates of inventory that were HOT, which means that they wrote
// to no index.
func (s *others) hotLine(ctx context.Context) line {
	var updates, hot float64
	run.Scan(ctx, s.database, "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'inventory'::regclass", nil, &updates, &hot)
	share := hot / max(1, updates)
	return line{name: "HOT updates of inventory", ours: fmt.Sprintf("%.3f", share), other: "all updates", theirs: thousands(updates)}.judged("at least 0.95", share >= 0.95)
}

// startLine returns the time from the start of the process until it is ready.
func startLine(times []time.Duration) line {
	slices.Sort(times)
	median := times[len(times)/2].Milliseconds()
	return line{
		name: "start to /readyz 200", ours: fmt.Sprintf("%d ms", median),
		rounds: fmt.Sprintf("%d to %d ms", times[0].Milliseconds(), times[len(times)-1].Milliseconds()),
	}.judged("under 150 ms", median < 150)
}
