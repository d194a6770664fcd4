package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// report is the result of a comparison with others.
type report struct {
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
}

var columns = line{name: "Work", ours: "Petstore", other: "Compared with", theirs: "Its figure", ratio: "Ratio", rounds: "Of the rounds", target: "Target", verdict: "Result"}

func (l line) cells() []string {
	return []string{l.name, l.ours, l.other, l.theirs, l.ratio, l.rounds, l.target, l.verdict}
}

func newReport(ctx context.Context, o options) (*report, error) {
	version, err := runProgram(ctx, "git", "describe", "--always", "--dirty")
	if err != nil {
		return nil, err
	}
	r := &report{machine: machine()}
	pets := thousands(float64(o.pets))
	r.setting = fmt.Sprintf("%s, commit %s: %s pets, %s orders, %d keys of one account, 64 connections, %d rounds of %s",
		time.Now().UTC().Format(time.DateOnly), strings.TrimSpace(string(version)), pets, pets, apiKeys, o.rounds, o.duration)
	warning, err := loadWarning()
	if warning != "" {
		r.warnings = append(r.warnings, warning)
	}
	return r, err
}

func (r *report) add(l line) { r.others = append(r.others, l) }

// lines returns the table without its head.
func (r *report) lines() (all []line) {
	for _, result := range r.results {
		if !result.latencyOnly {
			all = append(all, result.rateLine())
		}
		if result.p99AtMost > 0 {
			all = append(all, result.p99Line())
		}
	}
	return append(all, r.others...)
}

// rateLine compares the requests per second.
func (l *result) rateLine() line {
	median, least, greatest := l.measured.ratios(rate)
	row := line{
		name: l.name, ours: figures(l.measured[1]), other: l.other.name, theirs: figures(l.measured[0]),
		ratio: ratio(median), rounds: ratio(least) + " to " + ratio(greatest),
	}
	if l.atLeast > 0 {
		row.target, row.verdict = "at least "+ratio(l.atLeast), verdict(median >= l.atLeast)
	}
	return row
}

// p99Line compares the latency.
func (l *result) p99Line() line {
	median, least, greatest := l.measured.ratios(p99Milliseconds)
	return line{
		name: l.name + ": p99", ours: milliseconds(l.measured[1]), other: l.other.name, theirs: milliseconds(l.measured[0]),
		ratio: ratio(median), rounds: ratio(least) + " to " + ratio(greatest),
		target: "at most " + ratio(l.p99AtMost), verdict: verdict(median <= l.p99AtMost),
	}
}

// figures returns the medians of the rate and of the latency, and the share of failures.
func figures(m []measurement) string {
	text := thousands(medianOf(m, rate)) + "/s"
	if medianOf(m, p99Milliseconds) > 0 {
		text += fmt.Sprintf(", p50 %.1f, p99 %s", medianOf(m, p50Milliseconds), milliseconds(m))
	}
	if failed := medianOf(m, func(m measurement) float64 { return m.failed }); failed > 0 {
		text += fmt.Sprintf(", %.0f %% errors", 100*failed)
	}
	return text
}

func milliseconds(m []measurement) string {
	return fmt.Sprintf("%.1f ms", medianOf(m, p99Milliseconds))
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
	printWarnings(out, r.warnings)
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
func (r *report) write(root string) error {
	page, readme := filepath.Join(root, "docs", "performance.md"), filepath.Join(root, "README.md")
	chart, err := r.chart()
	if err != nil {
		return err
	}
	if err := editFile(page, r.replacePart); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "docs", "performance.svg"), chart, 0o644); err != nil {
		return err
	}
	return editFile(readme, r.replaceFigures)
}

func editFile(path string, edit func(string) (string, error)) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	edited, err := edit(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(edited), 0o644)
}

// replacePart replaces the result in the text of docs/performance.md.
func (r *report) replacePart(text string) (string, error) {
	before, rest, begins := strings.Cut(text, reportBegins)
	_, after, ends := strings.Cut(rest, reportEnds)
	if !begins || !ends {
		return "", fmt.Errorf("the lines %q and %q are missing; restore them", strings.TrimSpace(reportBegins), strings.TrimSpace(reportEnds))
	}
	return before + reportBegins + "\n" + r.markdown() + "\n" + reportEnds + after, nil
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
func (r *report) replaceFigures(text string) (string, error) {
	for _, f := range readmeFigures {
		found := r.find(f.workload, f.other)
		if found == nil && f.other == swaggerName {
			continue
		}
		if found == nil {
			return "", errors.New("nothing measured " + f.workload)
		}
		pattern := f.pattern()
		if !pattern.MatchString(text) {
			return "", fmt.Errorf("the phrase %q is missing; restore it or change readmeFigures", f.phrase)
		}
		text = pattern.ReplaceAllLiteralString(text, f.with(found))
	}
	return text, nil
}

// find returns the result of a workload and another side, or nil.
func (r *report) find(name, other string) *result {
	for _, result := range r.results {
		if result.name == name && result.other.name == other {
			return result
		}
	}
	return nil
}
