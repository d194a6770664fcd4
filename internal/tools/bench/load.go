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

//go:embed load.lua
var wrkScript []byte

// load is what one measurement sends.
type load struct {
	kind        string // of load.lua
	path        string // of the kind "path"; @FILE for a random line of a file
	connections int
}

// measured is what came of it.
type measured struct {
	perSecond float64
	p99       time.Duration
}

// generator runs wrk and pgbench for the same time each.
type generator struct {
	script   string // load.lua
	keys     []string
	pets     int    // clients ask for pets 1 to pets
	ids      string // a file with an id in each line; empty: see pets
	hotPet   int64
	category int64 // of new pets
	duration time.Duration
}

func newGenerator(dir string, keys []string, pets int, hotPet int64, duration time.Duration) (*generator, error) {
	script := filepath.Join(dir, "load.lua")
	return &generator{script: script, keys: keys, pets: pets, hotPet: hotPet, category: 1, duration: duration}, os.WriteFile(script, wrkScript, 0o600)
}

// wrk loads a server. An answer that is not a success is an error.
func (g *generator) wrk(ctx context.Context, baseURL string, l load) (measured, error) {
	threads := min(2, l.connections)
	pets := strconv.Itoa(g.pets)
	if g.ids != "" {
		pets = "@" + g.ids
	}
	args := []string{
		"--threads", strconv.Itoa(threads), "--connections", strconv.Itoa(l.connections),
		"--duration", fmt.Sprintf("%ds", int(g.duration.Seconds())), "--timeout", "10s", "--script", g.script, baseURL,
		"--", l.kind, pets, strconv.FormatInt(g.hotPet, 10), strconv.FormatInt(g.category, 10), l.path,
	}
	out, err := output(ctx, "wrk", append(args, g.keys...)...)
	if err != nil {
		return measured{}, err
	}
	var summary struct{ Requests, Microseconds, Failed, P99Microseconds int64 }
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &summary); err != nil {
		return measured{}, fmt.Errorf("wrk: %w: %s", err, out)
	}
	if summary.Failed > 0 || summary.Requests == 0 {
		return measured{}, fmt.Errorf("%s %s: %d of %d requests failed", baseURL, l.kind, summary.Failed, summary.Requests)
	}
	return measured{
		perSecond: float64(summary.Requests) / (time.Duration(summary.Microseconds) * time.Microsecond).Seconds(),
		p99:       time.Duration(summary.P99Microseconds) * time.Microsecond,
	}, nil
}

var pgbenchRate = regexp.MustCompile(`tps = ([0-9.]+)`)

// pgbench runs a script on as many connections as the servers have.
func (g *generator) pgbench(ctx context.Context, program, databaseURL, script string, connections int) (measured, error) {
	out, err := output(ctx, program, "--no-vacuum", "--protocol=prepared", "--file="+script,
		"--client="+strconv.Itoa(connections), "--jobs=2", "--time="+strconv.Itoa(int(g.duration.Seconds())),
		"--define=pets="+strconv.Itoa(g.pets), databaseURL)
	if err != nil {
		return measured{}, err
	}
	found := pgbenchRate.FindSubmatch(out)
	if found == nil {
		return measured{}, fmt.Errorf("pgbench: %s", out)
	}
	rate, err := strconv.ParseFloat(string(found[1]), 64)
	return measured{perSecond: rate}, err
}

// orderStatement makes a script for pgbench of the statement that places an
// order, as it stands in queries/.
func orderStatement(queries []byte) (string, error) {
	_, rest, found := strings.Cut(string(queries), "-- name: OrderPlace :one\n")
	statement, _, ended := strings.Cut(rest, "-- name: ")
	if !found || !ended {
		return "", fmt.Errorf("queries/orders.sql has no OrderPlace")
	}
	comment := regexp.MustCompile(`(?m)^\s*--.*\n`)
	return "\\set pet random(1, :pets)\n" + strings.NewReplacer(
		"@pet_id", ":pet", "@quantity", "1", "sqlc.narg(ship_date)", "NULL::timestamptz", "\n", " ",
	).Replace(comment.ReplaceAllString(strings.TrimSpace(statement), "")) + "\n", nil
}

// output runs a program and returns what it printed; the error holds what it
// printed when it failed.
func output(ctx context.Context, program string, args ...string) ([]byte, error) {
	return outputEnv(ctx, nil, program, args...)
}

// outputEnv is output with an environment, by default our own.
func outputEnv(ctx context.Context, env []string, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s%s", filepath.Base(program), err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.Bytes(), nil
}
