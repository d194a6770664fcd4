package main

import (
	"bytes"
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
	// accounts draws an account for each request from the small ones. Otherwise all
	// requests are of one account, with its keys.
	accounts bool
	// mostPets is the highest id of a pet, if it is not the default of the generator.
	mostPets int
	// mayFail accepts responses that are not a success. Otherwise one is an error.
	mayFail bool
}

// ofManyAccounts returns the same load with an account for each request.
func (l load) ofManyAccounts() load {
	l.accounts = true
	return l
}

// measurement is the result of one run of wrk or pgbench.
type measurement struct {
	requests  int64
	perSecond float64
	p50, p99  time.Duration
	failed    float64          // the share of responses that are not a success
	cpu       [2]time.Duration // of each request, on the server and on PostgreSQL, if it was measured
}

// generator runs wrk and pgbench, each for the same duration.
type generator struct {
	script   string // load.lua
	keys     []string
	pets     int    // ids from 1 to pets
	ids      string // a file with an id in each line, instead of pets
	small    string // a file with a key of each small account
	hotPet   int64
	category int64 // of new pets
	duration time.Duration
}

func newGenerator(dir string, keys []string, pets int, hotPet int64, duration time.Duration) (*generator, error) {
	script := filepath.Join(dir, "load.lua")
	return &generator{script: script, keys: keys, pets: pets, hotPet: hotPet, category: 1, duration: duration}, os.WriteFile(script, wrkScript, 0o600)
}

// petsAndKeys returns the arguments of load.lua for the ids of pets and the API keys.
func (g *generator) petsAndKeys(l load) (pets string, keys []string) {
	switch {
	case l.accounts:
		return strconv.Itoa(smallPets), []string{"@" + g.small}
	case l.mostPets > 0:
		return strconv.Itoa(l.mostPets), g.keys
	case g.ids != "":
		return "@" + g.ids, g.keys
	default:
		return strconv.Itoa(g.pets), g.keys
	}
}

// wrk loads a server.
func (g *generator) wrk(ctx context.Context, baseURL string, l load) (measurement, error) {
	threads := min(2, l.connections)
	pets, keys := g.petsAndKeys(l)
	args := []string{
		"--threads", strconv.Itoa(threads), "--connections", strconv.Itoa(l.connections),
		"--duration", fmt.Sprintf("%ds", int(g.duration.Seconds())), "--timeout", "10s", "--script", g.script, baseURL,
		"--", l.kind, pets, strconv.FormatInt(g.hotPet, 10), strconv.FormatInt(g.category, 10), l.path,
	}
	out, err := runProgram(ctx, "wrk", append(args, keys...)...)
	if err != nil {
		return measurement{}, err
	}
	var summary struct{ Requests, Microseconds, Failed, P50Microseconds, P99Microseconds int64 }
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &summary); err != nil {
		return measurement{}, fmt.Errorf("wrk: %w: %s", err, out)
	}
	if summary.Failed > 0 && !l.mayFail || summary.Requests == 0 {
		return measurement{}, fmt.Errorf("%s %s: %d of %d requests failed", baseURL, l.kind, summary.Failed, summary.Requests)
	}
	return measurement{
		requests:  summary.Requests,
		perSecond: float64(summary.Requests) / (time.Duration(summary.Microseconds) * time.Microsecond).Seconds(),
		p50:       time.Duration(summary.P50Microseconds) * time.Microsecond,
		p99:       time.Duration(summary.P99Microseconds) * time.Microsecond,
		failed:    float64(summary.Failed) / float64(summary.Requests),
	}, nil
}

var pgbenchRate = regexp.MustCompile(`tps = ([0-9.]+)`)

// pgbench runs a script with that many connections.
func (g *generator) pgbench(ctx context.Context, program, databaseURL, script string, connections int) (measurement, error) {
	out, err := runProgram(ctx, program, "--no-vacuum", "--protocol=prepared", "--file="+script,
		"--client="+strconv.Itoa(connections), "--jobs=2", "--time="+strconv.Itoa(int(g.duration.Seconds())),
		"--define=pets="+strconv.Itoa(g.pets), databaseURL)
	if err != nil {
		return measurement{}, err
	}
	found := pgbenchRate.FindSubmatch(out)
	if found == nil {
		return measurement{}, fmt.Errorf("pgbench: %s", out)
	}
	rate, err := strconv.ParseFloat(string(found[1]), 64)
	return measurement{perSecond: rate}, err
}

// runProgram runs a program and returns its standard output. The error contains all output.
func runProgram(ctx context.Context, program string, args ...string) ([]byte, error) {
	return runProgramEnv(ctx, nil, program, args...)
}

// runProgramEnv is runProgram with an environment. nil means the environment of this process.
func runProgramEnv(ctx context.Context, env []string, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s%s", filepath.Base(program), err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.Bytes(), nil
}
