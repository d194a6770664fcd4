// Bench measures Petstore against what limits it and against what people would
// write instead, all on one machine in one run, and prints the ratios. See
// docs/performance.md for how to read them.
//
//	go run ./internal/tools/bench [-pets 200000] [-rounds 3] [-seconds 3]
//	go run ./internal/tools/bench -base COMMIT [-pets 200000] [-rounds 5] [-seconds 3]
//
// With -base it compares the program of the working directory with the one of
// another commit instead.
//
// It runs from the project's root and needs wrk, and pgbench beside the
// PostgreSQL server's programs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

const (
	maxConns = 8 // of the plain server, which is slower with more; petstore has its default
	hotPet   = 1
	starts   = 5
)

// options are the flags.
type options struct {
	pets, rounds int
	duration     time.Duration
	only, base   string
}

func parseOptions() options {
	var o options
	flag.IntVar(&o.pets, "pets", 200_000, "how many pets and orders there are")
	flag.IntVar(&o.rounds, "rounds", 0, "how often each thing is measured; the medians count (default 3, with -base 5)")
	seconds := flag.Int("seconds", 3, "for how long")
	flag.StringVar(&o.only, "only", "", "measure only the work whose name contains this")
	flag.StringVar(&o.base, "base", "", "compare the working directory with this commit")
	flag.Parse()
	o.duration = time.Duration(*seconds) * time.Second
	if o.rounds == 0 {
		o.rounds = 3
		if o.base != "" {
			o.rounds = 5
		}
	}
	return o
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, parseOptions())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	began := time.Now()
	if o.pets < 1 || o.rounds < 1 || o.duration < time.Second {
		return errors.New("-pets, -rounds and -seconds must be at least 1")
	}
	if _, err := exec.LookPath("wrk"); err != nil {
		return errors.New("wrk is missing; install it with `apt-get install wrk` (Debian, Ubuntu) or `brew install wrk` (macOS)")
	}
	compare := compareWithOthers
	if o.base != "" {
		compare = compareBuilds
	}
	if err := compare(ctx, o, os.Stdout); err != nil {
		return err
	}
	fmt.Printf("%.0f s in all\n", time.Since(began).Seconds())
	return nil
}

// makeDir makes a temporary directory that PostgreSQL can enter, which runs as
// another user when we are root.
func makeDir() (dir string, remove func() error, err error) {
	dir, err = os.MkdirTemp("", "petstore-bench-")
	if err != nil {
		return "", nil, err
	}
	remove = func() error { return os.RemoveAll(dir) }
	if err := os.Chmod(dir, 0o711); err != nil {
		return "", nil, errors.Join(err, remove())
	}
	return dir, remove, nil
}

// compareWithOthers measures the program against what limits it and against a
// plain handler, and prints the ratios.
func compareWithOthers(ctx context.Context, o options, out io.Writer) (err error) {
	dir, removeDir, err := makeDir()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeDir()) }()
	cluster, binaries, err := startPostgres(ctx, filepath.Join(dir, "postgres"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop(context.WithoutCancel(ctx))) }()
	if err := cluster.EnsureDatabase(ctx, "petstore"); err != nil {
		return err
	}
	b := &bench{dir: dir, database: cluster.URL("petstore"), pgbench: filepath.Join(binaries.Dir, "pgbench")}
	fmt.Fprintf(out, "%s, %s, %d CPUs, %d pets, %d orders, %d rounds of %s\n", binaries, runtime.Version(), runtime.NumCPU(), o.pets, o.pets, o.rounds, o.duration)
	keys, err := fill(ctx, b.database, o.pets)
	if err != nil {
		return err
	}
	if b.generator, err = newGenerator(dir, keys, o.pets, hotPet, o.duration); err != nil {
		return err
	}
	defer b.stop()
	if err := forgetUpdates(ctx, b.database); err != nil {
		return err
	}
	if err := b.start(ctx); err != nil {
		return err
	}
	return b.compare(ctx, out, o.rounds, o.only)
}

// bench is all that runs.
type bench struct {
	dir, database, pgbench string
	*generator
	petstore, plain *process
	constantURL     string
	stopConstant    func()
	startTimes      []time.Duration
	deepPath        string // page 2,000 of the available pets by name
	orderScript     string
}

func (b *bench) start(ctx context.Context) error {
	if err := buildPrograms(ctx, b.dir); err != nil {
		return err
	}
	for i := range starts {
		p, took, err := startPetstore(ctx, filepath.Join(b.dir, "petstore"), filepath.Join(b.dir, "petstore.log"), b.database)
		if err != nil {
			return err
		}
		b.petstore, b.startTimes = p, append(b.startTimes, took)
		if i < starts-1 {
			p.stop()
		}
	}
	var err error
	if b.plain, err = startPlain(ctx, b.dir, b.database, maxConns); err != nil {
		return err
	}
	if b.constantURL, b.stopConstant, err = startConstant(ctx); err != nil {
		return err
	}
	if b.deepPath, err = b.walk(ctx, firstPath, min(2000, b.pets/50)); err != nil {
		return err
	}
	queries, err := os.ReadFile("queries/orders.sql")
	if err != nil {
		return err
	}
	statement, err := orderStatement(queries)
	if err != nil {
		return err
	}
	b.orderScript = filepath.Join(b.dir, "order.pgbench")
	return os.WriteFile(b.orderScript, []byte(statement), 0o600)
}

func (b *bench) stop() {
	if b.petstore != nil {
		b.petstore.stop()
	}
	if b.plain != nil {
		b.plain.stop()
	}
	if b.stopConstant != nil {
		b.stopConstant()
	}
}

// walk follows the links of a list to its given page and returns that one's path.
func (b *bench) walk(ctx context.Context, path string, page int) (string, error) {
	for number := 1; number < page; number++ {
		var pets []json.RawMessage
		next, err := getPage(ctx, b.petstore.url, path, b.keys[0], &pets)
		if err != nil {
			return "", err
		}
		if next == "" {
			return "", fmt.Errorf("%s ends at page %d", path, number)
		}
		path = next
	}
	return path, nil
}
