// Command faulttest shows what the service promises about faults: it builds
// the program, does bad things to it and to its PostgreSQL, and looks at it from
// outside, over real HTTP. Each row is one experiment, with a database, a server
// and a folder of its own; docs/reliability.md tells the promises in words.
//
//	go run ./internal/tools/faulttest                 every row, in under four minutes
//	go run ./internal/tools/faulttest -rows 5,6       these rows
//	go run ./internal/tools/faulttest -faults         each row must notice a mistake planted in the program
//
// It runs on Linux, where it can look into /proc. As root it also fills a disk
// and makes fsync fail; elsewhere it says that it left a row out.
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
)

// row is one experiment. It returns its figures, and an error when the promise
// of its doc comment does not hold.
type row struct {
	number int
	name   string
	run    func(context.Context, *bench) (figures string, err error)
}

// rows are the experiments, in the order of the scorecard.
var rows = []row{
	{1, "200 buyers of 100 units at two instances", oversell},
	{2, "buyers, readers, restockers of one pet", linearizable},
	{3, "20 idempotency keys, 30 requests each", twins},
	{4, "half of the responses are cut off", cutAnswers},
	{5, "PostgreSQL is killed during writes", databaseKilled},
	{6, "backends are terminated, then refused", backendsTerminated},
	{7, "PostgreSQL is frozen", databaseFrozen},
	{8, "every connection waits for a table lock", tablesLocked},
	{9, "the disk is full, then fsync fails", diskFails},
	{10, "the service is killed during writes", serviceKilled},
	{11, "SIGTERM during slow orders and under load", terminated},
	{12, "650 clients that are slow on purpose", slowClients},
	{13, "16 writers, then 320", overload},
	{14, "every body of JSONTestSuite", jsonBodies},
	{15, "every naughty string", naughtyStrings},
	{16, "malformed, huge and endless requests", malformedRequests},
	{17, "300 clients hang up while they wait", hangUps},
	{18, "paging while others add and delete", pagingUnderWrites},
	{19, "four instances start on an empty database", simultaneousStarts},
	{20, "ten wrong credentials, every operation", wrongCredentials},
	{21, "a key is revoked elsewhere", revokedKey},
	{22, "the primary is killed, the standby promoted", failover},
	{23, "24 pooled connections go silent", silentConnections},
	{24, "one of seven backends is frozen", backendFrozen},
	{25, "the synchronous standby is away", standbyAway},
	{26, "120 clients of shared reads hang up", sharedHangUps},
	{27, "SIGTERM while the database is silent", silentEnd},
	{28, "a hostile account with six keys", hostileAccount},
	{29, "strangers guess keys or send half headers", strangers},
	{30, "histories of hot pets across crashes", crashHistories},
	{31, "a rolling restart of two instances", rollingRestart},
	{32, "LISTEN is on another server than the pool", listenElsewhere},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "faulttest: %v\n", err)
		os.Exit(1)
	}
}

// run is the program; the error says which rows failed, or why none could run.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("faulttest", flag.ContinueOnError)
	numbers := flags.String("rows", "", "the rows to run, such as 5,6 (default: all)")
	faults := flags.Bool("faults", false, "plant the faults of these rows, one after the other; each must be noticed")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := choose(*numbers)
	if err != nil {
		return err
	}
	suite, err := newSuite(ctx, stdout)
	if err != nil {
		return err
	}
	if *faults {
		err = suite.plantFaults(ctx, chosen)
	} else {
		err = suite.runRows(ctx, chosen)
	}
	return errors.Join(err, suite.close())
}

// choose finds rows by their numbers.
func choose(numbers string) ([]row, error) {
	if numbers == "" {
		return rows, nil
	}
	var chosen []row
	for text := range strings.SplitSeq(numbers, ",") {
		number, err := strconv.Atoi(text)
		i := slices.IndexFunc(rows, func(r row) bool { return r.number == number })
		if err != nil || i < 0 {
			return nil, fmt.Errorf("there is no row %q", text)
		}
		chosen = append(chosen, rows[i])
	}
	return chosen, nil
}

// rowTimeout bounds one row; the longest takes a quarter of it.
const rowTimeout = time.Minute

// runRows runs rows one after the other, since most of them measure time, and
// prints a line for each as it ends.
func (s *suite) runRows(ctx context.Context, chosen []row) error {
	began := time.Now()
	var failed []string
	left := 0
	for _, r := range chosen {
		started := time.Now()
		figures, logs, err := s.try(ctx, s.binary, r)
		verdict := "ok"
		if why, ok := errors.AsType[notHereError](err); ok {
			verdict, figures = "-", "not run here: "+why.Error()
			left++
		} else if err != nil {
			verdict, figures = "FAILED", fmt.Sprintf("%s\n%38s%s", err, "logs: ", logs)
			failed = append(failed, strconv.Itoa(r.number))
		}
		fmt.Fprintf(s.stdout, "%2d  %-44s %-6s %5.1f s  %s\n", r.number, r.name, verdict, time.Since(started).Seconds(), figures)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	fmt.Fprintf(s.stdout, "%d of %d rows hold, %d not run here, %.0f s\n", len(chosen)-len(failed)-left, len(chosen), left, time.Since(began).Seconds())
	if len(failed) > 0 {
		return fmt.Errorf("rows %s failed", strings.Join(failed, ", "))
	}
	return nil
}

// try runs one row against a build of the program. The row's folder, with all
// logs, is kept when it fails.
func (s *suite) try(ctx context.Context, binary string, r row) (figures, logs string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, rowTimeout, fmt.Errorf("the row took longer than %s", rowTimeout))
	defer cancel()
	b, err := s.bench(binary, r)
	if err != nil {
		return "", "", err
	}
	figures, err = r.run(ctx, b)
	b.close(err == nil)
	return figures, b.dir, err
}
