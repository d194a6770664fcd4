// Bench compares Petstore with its limits, with a plain handler or with another commit, on
// one machine in one run, and prints the ratios. docs/performance.md explains how to run it
// and how to read them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"petstore/internal/tools/must"
)

// options are the values of the flags.
type options struct {
	pets, rounds int
	duration     time.Duration
	only         *regexp.Regexp // names of rows
	base         string         // a commit; "" means none
	most         float64        // with base: an error if the ratio of CPU per request is higher in every round
	swagger      string         // the URL of a swagger-petstore; "" means none
	replica      bool           // measure reads on a replica
	webhooks     bool           // measure webhooks
	documents    string         // the folder of the repository whose docs/performance.md gets the result; "" means none
}

func parseOptions(args []string) (o options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "Run it from the root of the repository: go run ./internal/tools/bench [flags]\nSee docs/performance.md.\n\nFlags:")
		flags.PrintDefaults()
	}
	flags.IntVar(&o.pets, "pets", 200_000, "`number` of pets and of orders of the large account")
	flags.IntVar(&o.rounds, "rounds", 3, "`number` of rounds; the table shows the median")
	seconds := flags.Int("seconds", 3, "duration of each measurement in `seconds`")
	only := flags.String("only", "", "measure only rows whose name matches this `regexp`, such as '1,000 accounts$'")
	flags.StringVar(&o.base, "base", "", "compare the working directory with this `commit`; fail if a request needs more CPU time")
	flags.Float64Var(&o.most, "most", 1.05, "with -base: fail if CPU per request is above this `ratio` in every round")
	flags.BoolVar(&o.replica, "replica", false, "measure the CPU time of reads on a replica and on its primary")
	flags.BoolVar(&o.webhooks, "webhooks", false, "measure the rate and the delay of webhooks")
	flags.StringVar(&o.swagger, "swagger", "", "also compare with the swagger-petstore at this `URL`, such as http://localhost:8081/api/v3")
	flags.StringVar(&o.documents, "report", "", "write the result to docs/performance.md in this `folder`")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.only, err = regexp.Compile(*only); err != nil {
		return o, fmt.Errorf("-only must be a regular expression: %w", err)
	}
	o.duration, o.swagger = time.Duration(*seconds)*time.Second, strings.TrimSuffix(o.swagger, "/")
	modes := 0
	flags.Visit(func(f *flag.Flag) {
		if slices.Contains([]string{"base", "replica", "webhooks", "report"}, f.Name) {
			modes++
		}
	})
	switch {
	case modes > 1 || *only != "" && o.documents != "":
		return o, errors.New("use only one of -base, -replica, -webhooks and -report, and -report without -only")
	case o.pets < 1 || o.rounds < 1 || *seconds < 1:
		return o, errors.New("-pets, -rounds and -seconds must be at least 1")
	}
	return o, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	o, err := parseOptions(os.Args[1:])
	if err == nil {
		err = must.Attempt(func() { execute(ctx, o, os.Stdout) })
	}
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func execute(ctx context.Context, o options, out io.Writer) {
	began := time.Now()
	must.Explain("install wrk, on Debian and Ubuntu with `apt-get install wrk`", func() { must.Get(exec.LookPath("wrk")) })
	if o.swagger != "" {
		must.Explain("start swagger-petstore, or correct the URL of -swagger", func() { send(ctx, http.MethodGet, o.swagger+"/pet/1", "") })
	}
	dir := must.Get(os.MkdirTemp("", "petstore-bench-"))
	defer os.RemoveAll(dir)
	must.OK(os.Chmod(dir, 0o711)) // PostgreSQL runs as another user if this process is root
	r := newReport(ctx, o)
	b := newBuild(ctx, o.pets, dir, "present", ".")
	defer b.stop(ctx)
	r.machine += ", PostgreSQL " + b.binaries.Version
	fmt.Fprintf(out, "%s\n%s\n", r.machine, r.setting)
	switch {
	case o.base != "":
		compareBuilds(ctx, r, b, dir)
	case o.replica:
		measureReplicas(ctx, r, b)
	case o.webhooks:
		measureWebhooks(ctx, r, b)
	default:
		compareWithOthers(ctx, r, b)
	}
	r.print(out)
	if o.documents != "" {
		r.write(o.documents)
	}
	fmt.Fprintf(out, "%.0f s in total\n", time.Since(began).Seconds())
	if o.base != "" {
		must.OK(r.missed())
	}
}
