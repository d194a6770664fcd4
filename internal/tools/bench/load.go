package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"petstore/internal/tools/must"
)

var (
	//go:embed load.lua
	wrkScript []byte
	//go:embed order.pgbench
	orderScript []byte
)

// load is the load of one measurement.
type load struct {
	kind        string // a kind of request in load.lua
	path        string // for the kind "path", with @FILE a random line of the file; or a Prefer header
	connections int
	// callers is whose keys the requests have, a random one each; "" means largeAccount.
	callers string
	// mostPets is the highest id of a pet, if it is not the default of the generator.
	mostPets int
	// mayFail accepts responses that are not a success. Otherwise one is an error.
	mayFail bool
}

const scriptFile = "load.lua"

// The callers of a load.
const (
	largeAccount  = "large"     // one account, with all pets
	smallAccounts = "small"     // 1,000 accounts, with few pets each
	fewAccounts   = "few"       // 100 of them
	sandboxes     = "sandboxes" // 1,000 sandboxes with as many pets as the small accounts
)

// by returns the same load of other callers.
func (l load) by(callers string) load {
	l.callers = callers
	return l
}

// measurement is the result of one run of wrk or pgbench.
type measurement struct {
	requests  int
	perSecond float64
	p50, p99  time.Duration
	failed    float64         // the share of responses that are not a success
	cpu       []time.Duration // of each request, for each process, if it was measured
}

// generator runs wrk and pgbench.
type generator struct {
	dir  string // of the files for wrk and pgbench
	pets int    // ids from 1 to pets, of the large account
}

// writeFile writes a file for wrk or pgbench, and returns its path.
func (g *generator) writeFile(name string, lines ...string) string {
	path := filepath.Join(g.dir, name)
	must.OK(os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	return path
}

// keyFile returns the path of a file with the keys of callers.
func (g *generator) keyFile(callers string) string { return filepath.Join(g.dir, callers+".keys") }

// wrk loads a server.
func (g *generator) wrk(ctx context.Context, baseURL string, l load, during time.Duration) measurement {
	pets, callers := cmp.Or(l.mostPets, g.pets), cmp.Or(l.callers, largeAccount)
	if callers != largeAccount {
		pets = smallPets
	}
	args := []string{
		"--threads", strconv.Itoa(min(2, l.connections)), "--connections", strconv.Itoa(l.connections),
		"--duration", fmt.Sprintf("%.0fs", during.Seconds()), "--timeout", "10s", "--script", filepath.Join(g.dir, scriptFile), baseURL,
		"--", l.kind, strconv.Itoa(pets), l.path, g.keyFile(callers),
	}
	out := runProgram(ctx, nil, "wrk", args...)
	var summary struct{ Requests, Microseconds, Failed, P50Microseconds, P99Microseconds int }
	if err := json.Unmarshal([]byte(out[strings.LastIndexByte(out, '\n')+1:]), &summary); err != nil {
		must.OK(fmt.Errorf("wrk: %w: %s", err, out))
	}
	must.Hold((summary.Failed == 0 || l.mayFail) && summary.Requests > 0, "%s %s: %d of %d requests failed", baseURL, l.kind, summary.Failed, summary.Requests)
	return measurement{
		requests:  summary.Requests,
		perSecond: float64(summary.Requests) / (time.Duration(summary.Microseconds) * time.Microsecond).Seconds(),
		p50:       time.Duration(summary.P50Microseconds) * time.Microsecond,
		p99:       time.Duration(summary.P99Microseconds) * time.Microsecond,
		failed:    float64(summary.Failed) / float64(summary.Requests),
	}
}

var pgbenchRate = regexp.MustCompile(`tps = ([0-9.]+)`)

// pgbench places orders with that many connections.
func (g *generator) pgbench(ctx context.Context, program, databaseURL string, connections int, during time.Duration) measurement {
	out := runProgram(ctx, nil, program, "--no-vacuum", "--protocol=prepared", "--file="+g.writeFile("order.pgbench", string(orderScript)),
		"--client="+strconv.Itoa(connections), "--jobs=2", fmt.Sprintf("--time=%.0f", during.Seconds()), "--define=pets="+strconv.Itoa(g.pets), databaseURL)
	found := pgbenchRate.FindStringSubmatch(out)
	must.Hold(found != nil, "pgbench: %s", out)
	return measurement{perSecond: must.Get(strconv.ParseFloat(found[1], 64))}
}

// runProgram runs a program, with more environment variables, and returns its standard output
// without the space around it.
func runProgram(ctx context.Context, env []string, program string, args ...string) string {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		must.OK(fmt.Errorf("%s: %w: %s%s", filepath.Base(program), err, stdout.Bytes(), stderr.Bytes()))
	}
	return strings.TrimSpace(stdout.String())
}
