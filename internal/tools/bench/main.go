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
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"petstore/internal/tools/must"
)

// options are the values of the flags.
type options struct {
	pets, rounds int
	duration     time.Duration
	only         *regexp.Regexp // names of requests
	base         string         // a commit; "" means none
	most         float64        // with base, otherwise 0: the highest ratio of CPU per request that is not an error
	swagger      string         // the URL of a swagger-petstore; "" means none
	replica      bool           // measure reads on a replica
	webhooks     bool           // measure webhooks
	report       string         // the folder of the repository whose documents get the result; "" means none
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
	only := flags.String("only", "", "measure only requests whose name matches this `regexp`, such as '1,000 accounts$'")
	flags.StringVar(&o.base, "base", "", "compare the working directory with this `commit`")
	flags.Float64Var(&o.most, "most", 1.05, "with -base: fail if CPU per request is above this `ratio` in every round")
	flags.BoolVar(&o.replica, "replica", false, "measure the CPU time of reads on a replica and on its primary")
	flags.BoolVar(&o.webhooks, "webhooks", false, "measure the rate and the delay of webhooks")
	flags.StringVar(&o.swagger, "swagger", "", "also compare with the swagger-petstore at this `URL`, such as http://localhost:8081/api/v3")
	flags.StringVar(&o.report, "report", "", "write the result to docs/performance.md, docs/performance.svg and README.md in this `folder`")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.only, err = regexp.Compile(*only); err != nil {
		return o, fmt.Errorf("-only must be a regular expression: %w", err)
	}
	o.duration, o.swagger = time.Duration(*seconds)*time.Second, strings.TrimSuffix(o.swagger, "/")
	modes := 0
	for _, chosen := range []bool{o.base != "", o.replica, o.webhooks, o.swagger != "" || o.report != ""} {
		if chosen {
			modes++
		}
	}
	switch {
	case modes > 1:
		return o, errors.New("-base, -replica, -webhooks, and -swagger with -report, exclude each other; leave out all but one")
	case *only != "" && (o.report != "" || o.replica || o.webhooks):
		return o, errors.New("-report, -replica and -webhooks measure everything; leave out -only")
	case o.pets < 1 || o.rounds < 0 || o.duration < time.Second:
		return o, errors.New("-pets, -rounds and -seconds must be at least 1")
	}
	if o.base == "" {
		o.most = 0
	}
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
		err = must.Attempt(func() { run(ctx, o, os.Stdout) })
	}
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, out io.Writer) {
	began := time.Now()
	if _, err := exec.LookPath("wrk"); err != nil {
		must.OK(errors.New("wrk is missing; install it with `apt-get install wrk` (Debian, Ubuntu) or `brew install wrk` (macOS)"))
	}
	must.Hold(o.swagger == "" || isOK(ctx, o.swagger+"/pet/1"), "GET %s/pet/1 does not return 200; start swagger-petstore, or correct the URL of -swagger", o.swagger)
	dir := must.Get(os.MkdirTemp("", "petstore-bench-"))
	defer os.RemoveAll(dir)
	must.OK(os.Chmod(dir, 0o711)) // PostgreSQL runs as another user if this process is root
	switch {
	case o.base != "":
		compareBuilds(ctx, o, dir, out)
		return // the verdict is the last line
	case o.replica:
		measureReplicas(ctx, o, dir, out)
	case o.webhooks:
		measureWebhooks(ctx, o, dir, out)
	default:
		compareWithOthers(ctx, o, dir, out)
	}
	fmt.Fprintf(out, "%.0f s in total\n", time.Since(began).Seconds())
}
