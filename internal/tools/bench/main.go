// Bench compares Petstore with its limits and with a plain handler, on one machine in
// one run, and prints the ratios. docs/performance.md explains how to read them.
//
//	go run ./internal/tools/bench [-pets 200000] [-rounds 3] [-seconds 3] [-swagger URL] [-report .]
//	go run ./internal/tools/bench -base COMMIT [-pets 200000] [-rounds 5] [-seconds 3] [-most 1.05]
//	go run ./internal/tools/bench -replica [-pets 200000] [-rounds 3] [-seconds 3]
//	go run ./internal/tools/bench -webhooks [-pets 200000] [-rounds 3] [-seconds 3]
//
// With -base it compares the program of the working directory with the program of another
// commit instead. It then fails if a request or a delivery needs more CPU time. With
// -replica it measures the CPU time of reads on a replica, and with -webhooks the rate and
// the delay of webhooks. Run it from the root of the repository. It needs wrk, and pgbench
// in the folder of the PostgreSQL server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// options are the values of the flags.
type options struct {
	pets, rounds int
	duration     time.Duration
	only, base   string
	most         float64 // with base: the highest ratio of CPU per request that is not an error
	swagger      string  // the URL of a swagger-petstore; "" means none
	replica      bool    // measure reads on a replica
	webhooks     bool    // measure webhooks
	report       string  // the folder of the repository whose documents get the result; "" means none
}

// help precedes the flags in the output of -h.
const help = `Compares Petstore with its limits and with a plain handler, or with another commit.
The requests use 16 API keys of one account. Without -base, some also run with 1,000
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
	flags.Float64Var(&o.most, "most", 1.05, "with -base: fail if CPU per request is above this `ratio` in every round")
	flags.BoolVar(&o.replica, "replica", false, "measure the CPU time of reads on a replica and on its primary")
	flags.BoolVar(&o.webhooks, "webhooks", false, "measure the rate and the delay of webhooks")
	flags.StringVar(&o.swagger, "swagger", "", "also compare with the swagger-petstore at this `URL`, such as http://localhost:8081/api/v3")
	flags.StringVar(&o.report, "report", "", "write the result to docs/performance.md, docs/performance.svg and README.md in this `folder`")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.base != "" && (o.swagger != "" || o.report != "") {
		return o, errors.New("-swagger and -report do not work with -base; leave out one of them")
	}
	if o.webhooks && o.replica {
		return o, errors.New("-webhooks does not work with -replica; leave out one of them")
	}
	if (o.replica || o.webhooks) && (o.base != "" || o.swagger != "" || o.report != "" || o.only != "") {
		return o, errors.New("-replica and -webhooks work only with -pets, -rounds and -seconds; leave out the other flags")
	}
	if o.only != "" && o.report != "" {
		return o, errors.New("-report needs all requests; leave out -only")
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
	if o.swagger != "" && !isOK(ctx, strings.TrimSuffix(o.swagger, "/")+"/pet/1") {
		return fmt.Errorf("GET %s/pet/1 does not return 200; start swagger-petstore, or correct the URL of -swagger", strings.TrimSuffix(o.swagger, "/"))
	}
	compare := compareWithOthers
	switch {
	case o.base != "":
		compare = compareBuilds
	case o.replica:
		compare = measureReplicas
	case o.webhooks:
		compare = measureWebhooks
	}
	if err := compare(ctx, o, os.Stdout); err != nil {
		return err
	}
	if o.base == "" { // otherwise the verdict is the last line
		fmt.Printf("%.0f s in total\n", time.Since(began).Seconds())
	}
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
