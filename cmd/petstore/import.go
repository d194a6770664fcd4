package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"petstore/internal/follow"
	"petstore/internal/transfer"
)

// importOptions are the flags of import.
type importOptions struct {
	resource, errors, inDoubt             string
	connections                           int
	createCategories, dryRun, again, json bool
}

func (p *program) importCommand() *cobra.Command {
	o := importOptions{connections: 32}
	names := transfer.Names()
	command := &cobra.Command{
		Use:   "import FILE...",
		Short: "Create the resources in files of NDJSON or CSV, or continue an interrupted import",
		Long: `Import sends each row of the files to the API: ` + orList(names) + `, or an
archive, as export writes them. Files may be gzipped, and - is stdin. The name of a file
says which resource it has, such as pets.csv. The server gives new ids. A pet has a
categoryId or the name of a category in the column category. The API key needs the scope
write.

A journal beside the file has the ids of the rows. After an interruption, the same command
without --again continues. A row that the server refuses does not stop the others. Correct
such rows and run the command again: it sends only rows that were not imported. Other
input from stdin or a pipe is a new import, so give it only these rows. Import waits while
the server limits the rate or is away.

Nobody knows whether rows that were on their way at an interruption have arrived. Import
sends them again with the same API key for 23 hours, because the server then recognizes
them. Later, with another key, without their category, or in a file of inventory,
--in-doubt says what to do with them.`,
		Example: "  petstore import categories.csv pets.csv\n  petstore import pets.ndjson.gz --errors errors.ndjson\n  petstore export | petstore import - --url https://other.example",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return wrongUsage(cmd, "import takes files, such as pets.csv, or - for stdin")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case o.again && len(args) > 1:
				return wrongUsage(cmd, "--again takes one file, so that the command without it can continue")
			case p.isInput(o.errors, args):
				return wrongUsage(cmd, "--errors must not be a file to import, but is %q", o.errors)
			}
			return p.importFiles(cmd, args, o)
		},
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	}
	flags := command.Flags()
	addURLFlag(command)
	addChoiceFlag(command, &o.resource, "resource", "the resource in the files: "+orList(names)+" (default: by the file name)", names...)
	flags.StringVar(&o.errors, "errors", "", "a file for the rows that were not imported, with the line, field, code and message")
	addChoiceFlag(command, &o.inDoubt, "in-doubt", "send or skip rows of which import and the server do not know whether they were imported", "send", "skip")
	flags.BoolVar(&o.createCategories, "create-categories", false, "create the categories that rows name")
	flags.BoolVar(&o.dryRun, "dry-run", false, "only check the rows, and send nothing")
	flags.BoolVar(&o.again, "again", false, "import all rows of a file once more, although a journal says that they were imported")
	flags.BoolVar(&o.json, "json", false, "print the summary of each file as one line of JSON")
	addNumberFlag(command, &o.connections, "connections", numberRange{1, mostParallel}, "the number of requests at a time")
	completeFlag(command, "errors")
	return command
}

// sameCommand names the command that continues.
func (o *importOptions) sameCommand() string {
	if o.again {
		return "the same command without --again"
	}
	return "the same command again"
}

// toContinue says what the command that continues needs after an error.
func toContinue(err error) string {
	failed, isStatus := errors.AsType[*follow.StatusError](err)
	if isStatus && (failed.Status == http.StatusUnauthorized || failed.Status == http.StatusForbidden) {
		return "with a key of the same account and the scope write"
	}
	return "to continue"
}

// isInput reports whether a path leads to a regular file that is one of the files to import.
func (p *program) isInput(path string, names []string) bool {
	output, err := os.Stat(path)
	return err == nil && output.Mode().IsRegular() && slices.ContainsFunc(names, func(name string) bool {
		input, err := os.Stat(name)
		if stdin, isFile := p.stdin.(*os.File); isFile && name == transfer.Stdin {
			input, err = stdin.Stat()
		}
		return err == nil && os.SameFile(input, output)
	})
}

// importFiles imports files one after the other.
func (p *program) importFiles(cmd *cobra.Command, names []string, o importOptions) (err error) {
	ctx := cmd.Context()
	report := &importReport{p: p}
	defer func() { report.file.Close() }()
	job := transfer.Import{Dir: p.dir, Connections: o.connections, CreateCategories: o.createCategories, Again: o.again, InDoubt: o.inDoubt, Failed: report.failed}
	if !o.dryRun {
		to, err := p.target(cmd)
		if err != nil {
			return err
		}
		sender := p.newClient(to)
		if err := sender.do(ctx, http.MethodGet, "/account", nil, &job.Account); err != nil {
			return err
		}
		if job.Account.ID == "" {
			return sender.notPetstore("it has no account")
		}
		sender.patience, sender.log = 10*time.Minute, report
		job.Send, job.WasReset = sender.sendRow, sender.wasReset
	}
	for _, name := range names {
		if err := p.importFile(ctx, name, &job, o, report); err != nil {
			return err
		}
	}
	return report.err(o)
}

// importFile imports a file, and prints the summary.
func (p *program) importFile(ctx context.Context, name string, job *transfer.Import, o importOptions, report *importReport) error {
	source, err := transfer.Open(ctx, name, o.resource, p.stdin)
	if err != nil {
		return err
	}
	defer source.Close()
	if err := report.create(o.errors); err != nil {
		return err
	}
	job.Source = source
	began := time.Now()
	var summary transfer.Summary
	verb := "imported"
	if o.dryRun {
		verb = "checked"
		if summary, err = source.Check(ctx, report.failed); err != nil {
			return err
		}
	} else {
		job.Progress = report.importing(began)
		summary, err = job.Run(ctx)
		p.status("")
	}
	done, again := summary.Imported+summary.Before, o.sameCommand()
	if source.IsCopy() {
		again += " on the same input"
		report.isCopy = report.isCopy || summary.Failed > 0
	}
	if ctx.Err() != nil && !o.dryRun {
		return fmt.Errorf("interrupted; %d of %d rows of %s are imported; run %s to continue", done, summary.Rows, source.Name, again)
	}
	if _, isChoice := errors.AsType[*transfer.ChoiceError](err); isChoice {
		return err
	}
	if err != nil {
		return fmt.Errorf("%d of %d rows of %s are imported: %w; run %s %s", done, summary.Rows, source.Name, err, again, toContinue(err))
	}
	if o.json {
		return p.printJSON(summary)
	}
	line := fmt.Sprintf("%s: %s %d of %d rows in %s", source.Name, verb, summary.Imported, summary.Rows, time.Since(began).Round(time.Millisecond))
	if o.dryRun {
		line = fmt.Sprintf("%s: checked %d rows", source.Name, summary.Rows)
	}
	if summary.Before > 0 {
		line += fmt.Sprintf(", %d before", summary.Before)
	}
	if summary.Failed > 0 {
		line += fmt.Sprintf(", %d with mistakes", summary.Failed)
	}
	fmt.Fprintln(p.stdout, line)
	return nil
}

// sendRow sends a request of an import.
func (c *client) sendRow(ctx context.Context, r transfer.Request) (status int, body []byte, err error) {
	one := call{method: r.Method, path: r.Path, body: r.Body, until: r.Until}
	if r.Key != "" {
		one.header = http.Header{idempotencyKey: {r.Key}}
	}
	got, err := c.send(ctx, one)
	if err != nil {
		return 0, nil, err
	}
	return got.StatusCode, got.text, nil
}

// wasReset is a [transfer.WasReset].
func (c *client) wasReset(ctx context.Context, after string) (end string, is bool, err error) {
	if end, err = c.feedEnd(ctx, nil); err != nil || after == "" {
		return end, false, err
	}
	look := func(after string) error {
		return c.eachElement(ctx, call{method: http.MethodGet, path: "/events?type=store.reset" + after}, func(json.RawMessage) error {
			is = true
			return nil
		})
	}
	err = look("&after=" + after)
	if failed, isStatus := errors.AsType[*follow.StatusError](err); isStatus && failed.Code == "cursor_expired" {
		err = look("") // the server keeps events for 30 days, and a restore may have lost this one
	}
	return end, is, err
}

// importReport prints mistakes in rows, the progress, and why import waits.
type importReport struct {
	p      *program
	file   *os.File // of the mistakes; nil: stderr
	rows   int      // with mistakes
	isCopy bool     // some of them, see [transfer.Source.IsCopy]
	wrote  error

	latest  atomic.Pointer[transfer.Summary] // nil: no row of the file has ended
	waiting sync.Mutex
	next    time.Time // when it says again why it waits
}

// shownMistakes is the number of rows with mistakes that import prints.
const shownMistakes = 10

// create creates the file with a path when import can begin, unless there is one or no path.
func (r *importReport) create(path string) (err error) {
	if path != "" && r.file == nil {
		r.file, err = os.Create(path) //nolint:gosec // the user names the file
	}
	return err
}

// failed reports the mistakes of a row.
func (r *importReport) failed(wrong transfer.RowErrors) {
	r.rows++
	file := json.NewEncoder(r.file)
	file.SetEscapeHTML(false)
	for _, one := range wrong {
		switch {
		case r.file != nil:
			r.wrote = errors.Join(r.wrote, file.Encode(one))
		case r.rows <= shownMistakes:
			r.p.status("")
			fmt.Fprintf(r.p.stderr, "%s:%d: %s\n", one.File, one.Line, printable(one.Message))
		}
	}
}

// err returns an error if rows have mistakes.
func (r *importReport) err(o importOptions) error {
	if r.rows == 0 || r.wrote != nil {
		return r.wrote
	}
	where := ""
	if o.errors != "" {
		where = ", see " + o.errors
	} else if r.rows > shownMistakes {
		where = fmt.Sprintf(", of which the first %d are above; --errors FILE has all", shownMistakes)
	}
	if o.dryRun {
		return fmt.Errorf("rows with mistakes: %d%s", r.rows, where)
	}
	next := "run " + o.sameCommand() + ", which sends only these"
	if r.isCopy {
		next = "import only these, because other input from stdin or a pipe is a new import"
	}
	return fmt.Errorf("rows that were not imported: %d%s; correct them and %s", r.rows, where, next)
}

// importing returns a function that shows the progress, the rate and the time left in one line of a terminal.
func (r *importReport) importing(began time.Time) func(transfer.Summary) {
	var shown time.Time
	r.latest.Store(nil)
	return func(s transfer.Summary) {
		r.latest.Store(&s)
		if time.Since(shown) < 200*time.Millisecond {
			return
		}
		shown = time.Now()
		sent := s.Imported + s.Failed
		rate := float64(sent) / time.Since(began).Seconds()
		left := time.Duration(float64(s.Rows-s.Before-sent) / rate * float64(time.Second))
		r.p.status(fmt.Sprintf("importing: %d of %d rows, %.0f/s, %s left", s.Before+sent, s.Rows, rate, left.Round(time.Second)))
	}
}

// Write implements [io.Writer] for the log of a client. It prints the first line in ten seconds, and
// how much is imported.
func (r *importReport) Write(text []byte) (int, error) {
	r.waiting.Lock()
	defer r.waiting.Unlock()
	if now := time.Now(); now.After(r.next) {
		r.next = now.Add(10 * time.Second)
		r.p.status("")
		progress := ""
		if s := r.latest.Load(); s != nil {
			progress = fmt.Sprintf("; %d of %d rows are imported", s.Imported+s.Before, s.Rows)
			if s.Imported+s.Before+s.Failed == s.Rows {
				progress += ", but the stock of the archive is not final"
			}
		}
		fmt.Fprintf(r.p.stderr, "waiting: %s%s\n", strings.TrimSpace(string(text)), progress)
	}
	return len(text), nil
}
