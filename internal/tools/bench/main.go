// Bench compares Petstore with its limits and with a plain handler, on one machine in
// one run, and prints the ratios. docs/performance.md explains how to read them.
//
//	go run ./internal/tools/bench [-pets 200000] [-rounds 3] [-seconds 3]
//	go run ./internal/tools/bench -base COMMIT [-pets 200000] [-rounds 5] [-seconds 3]
//
// With -base it compares the program of the working directory with that of another
// commit instead. Run it from the root of the repository. It needs wrk, and pgbench
// in the folder of the PostgreSQL server.
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
	"strings"
	"syscall"
	"time"
)

const (
	maxConns = 8 // of the plain server, which is slower with more; Petstore uses its default
	hotPet   = 1
	starts   = 5
)

// options are the values of the flags.
type options struct {
	pets, rounds int
	duration     time.Duration
	only, base   string
}

// help precedes the flags in the output of -h.
const help = `Compares Petstore with its limits and with a plain handler, or with another commit.
The requests use 16 API keys of one account. Without -base, two kinds also run with 1,000
accounts, each with a small store: every request uses a random account.
Run it from the root of the repository. See docs/performance.md.

Usage:
  go run ./internal/tools/bench [flags]

Flags:
`

func parseOptions(args []string) (o options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), help)
		flags.PrintDefaults()
	}
	flags.IntVar(&o.pets, "pets", 200_000, "`number` of pets and of orders in the sample data")
	flags.IntVar(&o.rounds, "rounds", 0, "`number` of rounds; the table shows the median (default 3, or 5 with -base)")
	seconds := flags.Int("seconds", 3, "duration of each measurement in `seconds`")
	flags.StringVar(&o.only, "only", "", "measure only requests whose name contains this `text`")
	flags.StringVar(&o.base, "base", "", "compare the working directory with this `commit`")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.duration = time.Duration(*seconds) * time.Second
	if o.rounds == 0 {
		o.rounds = 3
		if o.base != "" {
			o.rounds = 5
		}
	}
	return o, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	o, err := parseOptions(os.Args[1:])
	if err == nil {
		err = run(ctx, o)
	}
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
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
	fmt.Printf("%.0f s in total\n", time.Since(began).Seconds())
	return nil
}

// makeDir creates a temporary directory that PostgreSQL can enter, which runs as another
// user if this process is root.
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

// compareWithOthers compares the program with its limits and with a plain handler, and
// prints the ratios.
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
	s := &comparedServers{dir: dir, database: cluster.URL("petstore"), pgbench: filepath.Join(binaries.Dir, "pgbench")}
	fmt.Fprintf(out, "%s, %s, %d CPUs, %d pets, %d orders, %d rounds of %s\n", binaries, runtime.Version(), runtime.NumCPU(), o.pets, o.pets, o.rounds, o.duration)
	fmt.Fprintf(out, "%d keys of one account, unless the request names %d accounts, which have %d pets each\n", apiKeys, smallAccounts, smallPets)
	keys, small, err := prepareDatabase(ctx, s.database, o.pets)
	if err != nil {
		return err
	}
	if s.generator, err = newGenerator(dir, keys, o.pets, hotPet, o.duration); err != nil {
		return err
	}
	s.small = filepath.Join(dir, "small-keys")
	if err := os.WriteFile(s.small, []byte(strings.Join(small, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	defer s.stop()
	if err := resetUpdateCounts(ctx, s.database); err != nil {
		return err
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	return s.compare(ctx, out, o.rounds, o.only)
}

// comparedServers are the running servers and what the load generator needs.
type comparedServers struct {
	dir, database, pgbench string
	*generator
	petstore, plain *process
	constantURL     string
	stopConstant    func()
	startTimes      []time.Duration
	deepPath        string // of page 2,000 of the available pets by name
	orderScript     string
}

func (s *comparedServers) start(ctx context.Context) error {
	if err := buildPrograms(ctx, s.dir); err != nil {
		return err
	}
	for i := range starts {
		p, took, err := startPetstore(ctx, filepath.Join(s.dir, "petstore"), filepath.Join(s.dir, "petstore.log"), s.database)
		if err != nil {
			return err
		}
		s.petstore, s.startTimes = p, append(s.startTimes, took)
		if i < starts-1 {
			p.stop()
		}
	}
	var err error
	if s.plain, err = startPlain(ctx, s.dir, s.database, maxConns); err != nil {
		return err
	}
	if s.constantURL, s.stopConstant, err = startConstant(ctx); err != nil {
		return err
	}
	if s.deepPath, err = s.pagePath(ctx, firstPath, min(2000, s.pets/50)); err != nil {
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
	s.orderScript = filepath.Join(s.dir, "order.pgbench")
	return os.WriteFile(s.orderScript, []byte(statement), 0o600)
}

func (s *comparedServers) stop() {
	if s.petstore != nil {
		s.petstore.stop()
	}
	if s.plain != nil {
		s.plain.stop()
	}
	if s.stopConstant != nil {
		s.stopConstant()
	}
}

// pagePath follows the links of a list and returns the path of the page with this number.
func (s *comparedServers) pagePath(ctx context.Context, path string, page int) (string, error) {
	for number := 1; number < page; number++ {
		var pets []json.RawMessage
		next, err := getPage(ctx, s.petstore.url, path, s.keys[0], &pets)
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
