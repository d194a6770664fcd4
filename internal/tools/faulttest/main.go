// Command faulttest tests what the service promises about faults, as
// docs/reliability.md describes. It builds the program, causes faults in it and in
// its PostgreSQL, and checks the responses over real HTTP. Each row is one experiment
// with its own database, service and folder.
//
//	go run ./internal/tools/faulttest                 all rows, in ten minutes
//	go run ./internal/tools/faulttest -rows 5,7       only these rows
//	go run ./internal/tools/faulttest -faults         each row must detect a mistake planted in the program
//	go run ./internal/tools/faulttest -compile        the package of each such mistake must compile
//
// It needs Linux, because it reads /proc. As root it also fills a disk and makes fsync fail.
// Row 49 needs the commit of the last release in git. It says which rows it skips, and why.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"petstore/internal/tools/must"
)

// row is one experiment. run returns its figures. It fails, as package must says, if the promise in its
// doc comment does not hold.
type row struct {
	number int
	name   string
	run    func(context.Context, *fixture) (figures string)
}

// rows lists the experiments, as docs/reliability.md numbers them.
var rows = []row{
	{5, "PostgreSQL is killed during writes", databaseKilled},
	{7, "PostgreSQL is frozen", databaseFrozen},
	{9, "the disk is full, then fsync fails", diskFails},
	{13, "16 writers, then 960", overload},
	{22, "the primary is killed, the standby promoted", failover(syscall.SIGKILL, 2*time.Second)},
	{27, "SIGTERM while the database is silent", silentShutdown},
	{28, "a hostile account with six keys", hostileAccount},
	{30, "histories of hot pets across crashes", crashHistories},
	{36, "replicas lag, restart and fail over", replicaReads},
	{37, "the feeds of 26 stores, under kills", feedReplay},
	{38, "streams beside a transaction and restarts", streamRestart},
	{39, "bad webhooks of other accounts", webhookFairness},
	{40, "workers are killed and stopped", workersKilled},
	{42, "60,000 deliveries are due after an outage", webhookBacklog},
	{44, "sandboxes of one account do heavy work", payerWork},
	{45, "4,500 clients without a key", keylessClients},
	{49, "the last release is upgraded, and back", upgrade},
	{50, "PostgreSQL is lost and restored", restoredBackups},
	{51, "1,000 requests a second, a full record", fullRecord},
	{52, "an import is killed ten times", killedImport},
	{53, "two writers, readers on two replicas", longForks},
	{54, "slow handshakes, unread streams, floods", hostileHTTP2},
	{55, "PostgreSQL gets a newer major version", majorUpgrade},
	{56, "the primary freezes, the standby is promoted", failover(syscall.SIGSTOP, 10*time.Second)},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := execute(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "faulttest: %v\n", err)
		os.Exit(1)
	}
}

// help precedes the flags in the output of -h.
const help = `Tests what the service does when something fails. Run it from the root of the repository.
See docs/reliability.md.

Usage:
  go run ./internal/tools/faulttest [flags]

Flags:
`

// execute runs the program. The error names the rows that failed, or says why no row could run.
func execute(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("faulttest", flag.ContinueOnError)
	numbers := flags.String("rows", "", "run only the rows with these `numbers`, such as 5,7 (default all)")
	faults := flags.Bool("faults", false, "plant the faults of these rows one after the other; the rows must detect them")
	compiles := flags.Bool("compile", false, "only check that the package of each fault of these rows compiles with it")
	flags.SetOutput(stdout)
	flags.Usage = func() {
		fmt.Fprint(stdout, help)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	return must.Attempt(func() {
		chosen := choose(*numbers)
		if *compiles {
			compileFaults(ctx, stdout, chosen)
			return
		}
		suite := newSuite(ctx, stdout)
		try := suite.runRows
		if *faults {
			try = suite.plantFaults
		}
		must.OK(errors.Join(must.Attempt(func() { try(ctx, chosen) }), suite.close()))
	})
}

// choose returns the rows with these comma-separated numbers, or all rows for an empty
// string.
func choose(numbers string) (chosen []row) {
	if numbers == "" {
		return rows
	}
	for text := range strings.SplitSeq(numbers, ",") {
		number, err := strconv.Atoi(text)
		i := slices.IndexFunc(rows, func(r row) bool { return r.number == number })
		must.Hold(err == nil && i >= 0, "unknown row %q; docs/reliability.md lists the rows, as in -rows 5,7", text)
		chosen = append(chosen, rows[i])
	}
	return chosen
}

// rowTimeout limits each row. Most take some seconds.
const rowTimeout = 4 * time.Minute

// runRows runs rows one after the other, because most of them measure time, and prints a
// line for each.
func (s *suite) runRows(ctx context.Context, chosen []row) {
	began := time.Now()
	var failed []string
	skipped := 0
	for _, r := range chosen {
		started := time.Now()
		figures, logs, err := s.runRow(ctx, s.program, r)
		verdict := "ok"
		if why, ok := errors.AsType[skipError](err); ok {
			verdict, figures = "-", "skipped: "+why.Error()
			skipped++
		} else if err != nil {
			verdict, figures = "FAILED", fmt.Sprintf("%s\n%38s%s", err, "logs: ", logs)
			failed = append(failed, strconv.Itoa(r.number))
		}
		fmt.Fprintf(s.stdout, "%2d  %-44s %-6s %5.1f s  %s\n", r.number, r.name, verdict, time.Since(started).Seconds(), figures)
		must.OK(ctx.Err())
	}
	fmt.Fprintf(s.stdout, "%d of %d rows passed, %d skipped, %.0f s\n", len(chosen)-len(failed)-skipped, len(chosen), skipped, time.Since(began).Seconds())
	must.Hold(len(failed) == 0, "rows %s failed", strings.Join(failed, ", "))
}

// runRow runs one row against a build of the program. If the row fails, its folder with all
// logs is kept.
func (s *suite) runRow(ctx context.Context, p program, r row) (figures, logs string, err error) {
	f := s.fixture(p, r)
	ctx, cancel := context.WithTimeoutCause(ctx, rowTimeout, fmt.Errorf("the row took longer than %s", rowTimeout))
	defer cancel()
	err = must.Attempt(func() { figures = r.run(ctx, f) })
	cancel() // ends the clients of a row that failed, before their service ends
	f.close(err == nil)
	return figures, f.dir, err
}
