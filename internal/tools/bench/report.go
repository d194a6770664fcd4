package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"petstore/internal/tools/must"
)

// report is the result of a comparison with others.
type report struct {
	machine  string // the CPUs and the versions of the software
	setting  string // the date, the commit and the load
	results  []*result
	others   []line // the rest of the table
	warnings []string
	most     float64 // if the report compares builds: the highest ratio of CPU per request that is not an error
}

// line is a line of the table.
type line struct {
	name, ours, other, theirs string
	ratio, rounds             string
	target, verdict           string
}

var columns = line{name: "Work", ours: "Petstore", other: "Compared with", theirs: "Its figure", ratio: "Ratio", rounds: "Of the rounds", target: "Target", verdict: "Result"}

func (l line) cells() []string {
	return []string{l.name, l.ours, l.other, l.theirs, l.ratio, l.rounds, l.target, l.verdict}
}

func newReport(ctx context.Context, o options) *report {
	r := &report{machine: machine(), most: o.most}
	pets := thousands(float64(o.pets))
	r.setting = fmt.Sprintf("%s, commit %s: %s pets, %s orders, %d keys of one account, 64 connections, %d rounds of %s",
		time.Now().UTC().Format(time.DateOnly), runProgram(ctx, nil, "git", "describe", "--always", "--dirty"), pets, pets, apiKeys, o.rounds, o.duration)
	r.warn(loadWarning())
	return r
}

func (r *report) add(l line) { r.others = append(r.others, l) }

// warn adds a warning unless it is "".
func (r *report) warn(warning string) {
	if warning != "" {
		r.warnings = append(r.warnings, warning)
	}
}

func (r *report) printWarnings(out io.Writer) {
	for _, warning := range r.warnings {
		fmt.Fprintln(out, "WARNING:", warning)
	}
}

// lines returns the table without its head.
func (r *report) lines() (all []line) {
	builds := r.most > 0
	for _, l := range r.results {
		if !l.latencyOnly {
			all = append(all, l.rateLine())
		}
		if l.p99AtMost > 0 || builds && l.measured[0][0].p99 > 0 {
			all = append(all, l.p99Line())
		}
		if builds && l.measuredCPU() {
			all = append(all, l.cpuLines(r.most)...)
		}
	}
	return append(all, r.others...)
}

// compare returns a line with the ratios of a quantity.
func (l *result) compare(quantity func(measurement) float64) line {
	median, least, greatest := l.measured.ratios(quantity)
	return line{name: l.name, other: l.other.name, ratio: ratio(median), rounds: ratio(least) + " to " + ratio(greatest)}
}

// rateLine compares the requests per second.
func (l *result) rateLine() line {
	row := l.compare(rate)
	row.ours, row.theirs = figures(l.measured[1]), figures(l.measured[0])
	if median, _, _ := l.measured.ratios(rate); l.atLeast > 0 {
		row.target, row.verdict = "at least "+ratio(l.atLeast), verdict(median >= l.atLeast)
	}
	return row
}

// p99Line compares the latency.
func (l *result) p99Line() line {
	row := l.compare(p99)
	row.name += ": p99"
	row.ours, row.theirs = p99Figure(l.measured[1]), p99Figure(l.measured[0])
	if median, _, _ := l.measured.ratios(p99); l.p99AtMost > 0 {
		row.target, row.verdict = "at most "+ratio(l.p99AtMost), verdict(median <= l.p99AtMost)
	}
	return row
}

// figures returns the medians of the rate and of the latency, and the share of failures.
func figures(m []measurement) string {
	text := thousands(medianOf(m, rate)) + "/s"
	if medianOf(m, p99) > 0 {
		text += fmt.Sprintf(", p50 %.1f, p99 %s", medianOf(m, p50), p99Figure(m))
	}
	if failed := medianOf(m, func(m measurement) float64 { return m.failed }); failed > 0 {
		text += fmt.Sprintf(", %.0f %% errors", 100*failed)
	}
	return text
}

func p99Figure(m []measurement) string {
	return fmt.Sprintf("%.1f ms", medianOf(m, p99))
}

func verdict(reached bool) string {
	if reached {
		return "reached"
	}
	return "MISSED"
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
	r.printWarnings(out)
}

// markdown returns the part of docs/performance.md that the report replaces.
func (r *report) markdown() string {
	var text strings.Builder
	text.WriteString("![" + chartTitle + "](performance.svg)\n\n")
	for i, l := range append([]line{columns}, r.lines()...) {
		for _, cell := range l.cells() {
			text.WriteString(strings.TrimRight("| "+cell, " ") + " ")
		}
		text.WriteString("|\n")
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

// write writes the report to the documents in a folder.
func (r *report) write(root string) {
	editFile(filepath.Join(root, "docs", "performance.md"), r.replacePart)
	must.OK(os.WriteFile(filepath.Join(root, "docs", "performance.svg"), r.chart(), 0o644))
	editFile(filepath.Join(root, "README.md"), r.replaceFigures)
}

func editFile(path string, edit func(string) string) {
	must.Explain(path, func() {
		text := edit(string(must.Get(os.ReadFile(path))))
		must.OK(os.WriteFile(path, []byte(text), 0o644))
	})
}

// replacePart replaces the result in the text of docs/performance.md.
func (r *report) replacePart(text string) string {
	before, rest, begins := strings.Cut(text, reportBegins)
	_, after, ends := strings.Cut(rest, reportEnds)
	must.Hold(begins && ends, "the lines %q and %q are missing; restore them", strings.TrimSpace(reportBegins), strings.TrimSpace(reportEnds))
	return before + reportBegins + "\n" + r.markdown() + "\n" + reportEnds + after
}

// readmeFigure is a phrase of README.md with the figures of a workload.
type readmeFigure struct {
	workload, other string
	phrase          string // with RATE, TIMES, THEIRS and FAILED in place of the figures
}

// readmeFigures are the phrases. A report without a swagger-petstore leaves those about it
// unchanged, because both of their figures must be of the same run.
var readmeFigures = []readmeFigure{
	{readPets, plainName, "RATE reads of single pets per second, TIMES times a plain Gin handler"},
	{flashSale, plainName, "RATE orders of one pet per second (a flash sale), TIMES times a plain handler"},
	{readPets, swaggerName, "| `GET` of a pet, 64 connections, same machine | RATE per second | THEIRS per second |"},
	{randomOrders, swaggerName, "| `POST` of an order, 64 connections, same machine | RATE per second | THEIRS per second, FAILED % errors |"},
}

// pattern matches the phrase with any figures.
func (f readmeFigure) pattern() *regexp.Regexp {
	const number = `([\d.,]+)`
	return regexp.MustCompile(strings.NewReplacer("RATE", number, "TIMES", number, "THEIRS", number, "FAILED", number).Replace(regexp.QuoteMeta(f.phrase)))
}

// with returns the phrase with the figures of a result.
func (f readmeFigure) with(r *result) string {
	times, _, _ := r.measured.ratios(rate)
	failed := medianOf(r.measured[0], func(m measurement) float64 { return m.failed })
	return strings.NewReplacer(
		"RATE", thousands(medianOf(r.measured[1], rate)), "TIMES", ratio(times),
		"THEIRS", thousands(medianOf(r.measured[0], rate)), "FAILED", fmt.Sprintf("%.0f", 100*failed),
	).Replace(f.phrase)
}

// replaceFigures replaces the figures in the text of README.md.
func (r *report) replaceFigures(text string) string {
	for _, f := range readmeFigures {
		i := slices.IndexFunc(r.results, func(r *result) bool { return r.name == f.workload && r.other.name == f.other })
		if i < 0 && f.other == swaggerName {
			continue
		}
		must.Hold(i >= 0, "nothing measured %s", f.workload)
		pattern := f.pattern()
		must.Hold(pattern.MatchString(text), "the phrase %q is missing; restore it or change readmeFigures", f.phrase)
		text = pattern.ReplaceAllLiteralString(text, f.with(r.results[i]))
	}
	return text
}

// machine names the CPUs, the kernel and the version of Go.
func machine() string {
	model, kernel := runtime.GOARCH, runtime.GOOS
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if found := cpuModel.FindSubmatch(text); found != nil {
			model = string(found[1])
		}
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		kernel = "Linux " + strings.TrimSpace(string(release))
	}
	return fmt.Sprintf("%d CPUs (%s), %s, %s", runtime.NumCPU(), model, kernel, runtime.Version())
}

var cpuModel = regexp.MustCompile(`(?m)^model name\s*: (.*\S)`)
