package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"petstore/internal/tools/must"
	"petstore/internal/tools/run"
)

// report is the result of a comparison with others.
type report struct {
	options
	machine  string // the CPUs and the versions of the software
	setting  string // the date, the commit and the load
	results  []*result
	others   []line // the rest of the table
	warnings []string
}

// line is a line of the table.
type line struct {
	name, ours, other, theirs string
	ratio, rounds             string
	target, verdict           string

	median, least float64 // of the ratio
}

var columns = line{name: "Work", ours: petstoreName, other: "Compared with", theirs: "Its figure", ratio: "Ratio", rounds: "Of the rounds", target: "Target", verdict: "Result"}

func (l line) cells() []string {
	return []string{l.name, l.ours, l.other, l.theirs, l.ratio, l.rounds, l.target, l.verdict}
}

const missed = "MISSED"

// judged returns the line with a target.
func (l line) judged(target string, reached bool) line {
	l.target, l.verdict = target, missed
	if reached {
		l.verdict = "reached"
	}
	return l
}

func newReport(ctx context.Context, o options) *report {
	r := &report{options: o, machine: machine(), warnings: loadWarning()}
	pets := thousands(float64(o.pets))
	r.setting = fmt.Sprintf("%s, commit %s: %s pets, %s orders, 16 keys of one account, 64 connections, %d rounds of %s",
		time.Now().UTC().Format(time.DateOnly), run.Program(ctx, "git", "describe", "--always", "--dirty"), pets, pets, o.rounds, o.duration)
	if o.base != "" {
		must.Explain("set BASE to a commit, tag or branch, such as HEAD~1", func() { r.base = run.Program(ctx, "git", "rev-parse", "--verify", "--short", o.base+"^{commit}") })
		r.setting += ", compared with commit " + r.base
	}
	return r
}

// lines returns the table without its head.
func (r *report) lines() (all []line) {
	for _, l := range r.results {
		all = append(all, r.linesOf(l)...)
	}
	return append(all, r.others...)
}

// linesOf returns the lines of a result. Between builds, p99 and CPU time count too.
func (r *report) linesOf(l *result) (all []line) {
	if l.cpuAtMost > 0 {
		row := l.line(": CPU", cpu, cpuFigures)
		return []line{row.judged("at most "+ratio(l.cpuAtMost), row.median <= l.cpuAtMost)}
	}
	row := l.line("", rate, figures)
	switch {
	case l.atLeast > 0:
		row = row.judged("at least "+ratio(l.atLeast), row.median >= l.atLeast)
	case l.perSecond > 0:
		row = row.judged("at least "+thousands(l.perSecond)+"/s", medianOf(l.measured[1], rate) >= l.perSecond)
	}
	all = append(all, row)
	row = l.line(": p99", p99, p99Figure)
	switch {
	case l.p99AtMost > 0:
		all = append(all, row.judged("at most "+ratio(l.p99AtMost), row.median <= l.p99AtMost))
	case r.base != "" && medianOf(l.measured[0], p99) > 0:
		all = append(all, row)
	}
	if l.measured[0][0].cpu == nil || l.measured[1][0].cpu == nil {
		return all
	}
	row = l.line(": CPU", cpu, cpuFigures)
	switch {
	case r.base != "":
		server := func(m measurement) float64 { return m.cpu[0] }
		all = append(all, row.judged("at most "+ratio(r.most)+" in a round", row.least <= r.most),
			l.line(": CPU of the server", server, func([]measurement) string { return "" }))
	case r.replica:
		all = append(all, row)
	}
	return all
}

// missed returns an error that names the lines with a missed target.
func (r *report) missed() error {
	var names []string
	for _, l := range r.lines() {
		if l.verdict == missed {
			names = append(names, l.name)
		}
	}
	if names != nil {
		return fmt.Errorf("missed: %s", strings.Join(names, "; "))
	}
	return nil
}

// line compares a quantity.
func (l *result) line(suffix string, quantity func(measurement) float64, figure func([]measurement) string) line {
	median, least, greatest := l.measured.ratios(quantity)
	return line{
		name: l.name + suffix, ours: figure(l.measured[1]), other: l.other.name, theirs: figure(l.measured[0]),
		ratio: ratio(median), rounds: ratio(least) + " to " + ratio(greatest), median: median, least: least,
	}
}

// figures returns the medians of the rate and of the latency, and the share of failures.
func figures(m []measurement) string {
	text := thousands(medianOf(m, rate)) + "/s"
	if medianOf(m, p99) > 0 {
		text += fmt.Sprintf(", p50 %.1f, p99 %s", medianOf(m, func(m measurement) float64 { return m.p50 }), p99Figure(m))
	}
	if failed := medianOf(m, func(m measurement) float64 { return m.failed }); failed > 0 {
		text += fmt.Sprintf(", %.0f %% errors", 100*failed)
	}
	return text
}

func p99Figure(m []measurement) string { return fmt.Sprintf("%.1f ms", medianOf(m, p99)) }

// cpuFigures returns the medians of the CPU time of a request in each process: the server, its
// PostgreSQL, and the replica if there is one.
func cpuFigures(all []measurement) string {
	var figures []string
	for i := range all[0].cpu {
		figures = append(figures, fmt.Sprintf("%.1f", medianOf(all, func(m measurement) float64 { return m.cpu[i] })))
	}
	return strings.Join(figures, " + ") + " µs"
}

// ratio returns a ratio with three digits.
func ratio(r float64) string {
	if r >= 9.995 {
		return fmt.Sprintf("%.1f", r)
	}
	return fmt.Sprintf("%.2f", r)
}

// thousands returns a rounded number with commas: 11,820.
func thousands(n float64) string {
	digits := strconv.FormatInt(int64(n+0.5), 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// print prints the table and the warnings.
func (r *report) print(out io.Writer) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.Debug)
	for _, l := range append([]line{columns}, r.lines()...) {
		fmt.Fprintln(table, strings.Join(l.cells(), "\t")+"\t")
	}
	_ = table.Flush() // writes to standard output
	for _, warning := range r.warnings {
		fmt.Fprintln(out, "WARNING:", warning)
	}
}

// markdown returns the part of docs/performance.md that the report replaces.
func (r *report) markdown() string {
	var text strings.Builder
	for i, l := range append([]line{columns}, r.lines()...) {
		row := "| " + strings.Join(l.cells(), " | ") + " |\n"
		text.WriteString(strings.ReplaceAll(row, "  ", " ")) // of empty cells
		if i == 0 {
			text.WriteString(strings.Repeat("|---", len(l.cells())) + "|\n")
		}
	}
	fmt.Fprintf(&text, "\n%s.\n%s.\n", r.machine, r.setting)
	for _, warning := range r.warnings {
		fmt.Fprintf(&text, "\n**Warning:** %s\n", warning)
	}
	return text.String()
}

// The comments around the part of docs/performance.md that the report replaces.
const (
	reportBegins = "<!-- make bench-report replaces this part -->\n"
	reportEnds   = "<!-- end of the replaced part -->\n"
)

// write writes the report to docs/performance.md in a folder.
func (r *report) write(root string) {
	path := filepath.Join(root, "docs", "performance.md")
	must.Explain(path, func() {
		text := r.replacePart(string(must.Get(os.ReadFile(path))))
		must.OK(os.WriteFile(path, []byte(text), 0o644))
	})
}

// replacePart replaces the result in the text of docs/performance.md.
func (r *report) replacePart(text string) string {
	before, rest, begins := strings.Cut(text, reportBegins)
	_, after, ends := strings.Cut(rest, reportEnds)
	must.Hold(begins && ends, "the lines %q and %q are missing; restore them", reportBegins, reportEnds)
	return before + reportBegins + "\n" + r.markdown() + "\n" + reportEnds + after
}

var cpuModel = regexp.MustCompile(`(?m)^model name\s*: (.*\S)`)

// machine names the CPUs, the kernel and the version of Go.
func machine() string {
	model := runtime.GOARCH
	if found := cpuModel.FindStringSubmatch(readProc("cpuinfo")); found != nil {
		model = found[1]
	}
	return fmt.Sprintf("%d CPUs (%s), Linux %s, %s", runtime.NumCPU(), model, strings.TrimSpace(readProc("sys/kernel/osrelease")), runtime.Version())
}
