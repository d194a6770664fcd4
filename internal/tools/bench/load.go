package main

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"petstore/internal/tools/must"
	"petstore/internal/tools/run"
)

var (
	//go:embed load.lua
	wrkScript string
	//go:embed order.pgbench
	orderScript string
)

// The files of a generator, apart from the keys.
const (
	wrkFile, orderFile    = "load.lua", "order.pgbench"
	pagesFile, plainPages = "pages", "plain-pages" // paths of different pages of pets
)

// load is the load of one measurement.
type load struct {
	name        string
	kind        string // a kind of request in load.lua
	path        string // for the kind "path", with @FILE a random line of the file; or a Prefer header
	connections int
	// callers is whose keys the requests have, a random one each; "" means largeAccount.
	callers string
	// mostPets is the highest id of a pet, if it is not that of the callers.
	mostPets int
	// mayFail accepts responses that are not a success. Otherwise one is an error.
	mayFail bool
}

// The callers of a load, by the files with their keys.
const (
	largeAccount  = "large.keys"     // one account, with all pets and 16 keys
	smallAccounts = "small.keys"     // 1,000 accounts, with few pets each
	fewAccounts   = "few.keys"       // 100 of them
	sandboxes     = "sandboxes.keys" // 1,000 sandboxes of ten of them
)

// The names of loads.
const (
	readPets       = "GET /pets?id={petId}"
	onePage        = "GET /pets?limit=50, one page"
	differentPages = "GET /pets?limit=50, different pages"
	randomOrders   = "POST /store/orders, random pets"
	keyedOrders    = "POST /store/orders, an Idempotency-Key each"
	flashSale      = "POST /store/orders, one pet (flash sale)"
	createPets     = "POST /pets"
	accountOrders  = "POST /store/orders, 1,000 accounts"
	sandboxOrders  = "POST /store/orders, 1,000 sandboxes"
)

// loads are the loads that are compared with another commit.
var loads = []load{
	{name: readPets, kind: "petById", connections: 64},
	{name: readPets + ", 16 connections", kind: "petById", connections: 16},
	{name: readPets + ", 1,000 accounts", kind: "petById", connections: 64, callers: smallAccounts},
	{name: "GET /pets/{petId}", kind: "pet", connections: 64},
	{name: "GET /pets/{petId}, 16 connections", kind: "pet", connections: 16},
	{name: onePage, kind: "path", path: "/pets?limit=50", connections: 64},
	{name: differentPages, kind: "path", path: "@" + pagesFile, connections: 64},
	{name: randomOrders, kind: "order", connections: 64},
	{name: keyedOrders, kind: "keyed", connections: 64},
	{name: flashSale, kind: "sale", connections: 64},
	{name: createPets, kind: "create", connections: 64},
	{name: accountOrders, kind: "order", connections: 64, callers: smallAccounts},
	{name: accountOrders + ", 16 connections", kind: "order", connections: 16, callers: smallAccounts},
	{name: accountOrders + ", an Idempotency-Key each", kind: "keyed", connections: 64, callers: smallAccounts},
	{name: "POST /store/orders, 100 accounts", kind: "order", connections: 64, callers: fewAccounts},
	{name: sandboxOrders, kind: "order", connections: 64, callers: sandboxes},
}

// loadOf returns the load with a name.
func loadOf(name string) load {
	return loads[slices.IndexFunc(loads, func(l load) bool { return l.name == name })]
}

// smallBesideLarge returns the load of small accounts and the one of a large account, which
// together show whether the large one slows the others down.
func smallBesideLarge() (few, many load) {
	few, many = loadOf(accountOrders), loadOf(randomOrders)
	few.name += ", 8 connections beside 256 of one account"
	few.connections, many.connections = 8, 256
	return few, many
}

// measurement is the result of one run of wrk or pgbench.
type measurement struct {
	requests  int
	perSecond float64
	p50, p99  float64   // milliseconds
	failed    float64   // the share of responses that are not a success
	cpu       []float64 // microseconds of each request, for each process, if it was measured
}

// wrk loads a server.
func (b *build) wrk(ctx context.Context, baseURL string, l load, during time.Duration) measurement {
	pets, callers, path := b.pets, cmp.Or(l.callers, largeAccount), l.path
	if callers != largeAccount {
		pets = smallPets
	}
	if name, isFile := strings.CutPrefix(path, "@"); isFile {
		path = "@" + b.file(name)
	}
	out := run.Program(ctx, "wrk", "--threads", strconv.Itoa(min(2, l.connections)), "--connections", strconv.Itoa(l.connections),
		"--duration", fmt.Sprintf("%.0fs", during.Seconds()), "--timeout", "10s", "--script", b.file(wrkFile), baseURL,
		"--", l.kind, strconv.Itoa(cmp.Or(l.mostPets, pets)), path, b.file(callers))
	var summary struct{ Requests, Microseconds, Failed, P50Microseconds, P99Microseconds float64 }
	if err := json.Unmarshal([]byte(out[strings.LastIndexByte(out, '\n')+1:]), &summary); err != nil {
		must.OK(fmt.Errorf("wrk: %w: %s", err, out))
	}
	must.Hold((summary.Failed == 0 || l.mayFail) && summary.Requests > 0, "%s %s: %.0f of %.0f requests failed", baseURL, l.kind, summary.Failed, summary.Requests)
	return measurement{
		requests: int(summary.Requests), perSecond: summary.Requests / summary.Microseconds * 1e6,
		p50: summary.P50Microseconds / 1000, p99: summary.P99Microseconds / 1000, failed: summary.Failed / summary.Requests,
	}
}
