package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"petstore/internal/tools/must"
)

// warmUp is how long each side of a workload runs before the first round. So no measurement
// includes the first use of a connection, a statement or a page.
const warmUp = time.Second

// side is one of the two sides of a workload.
type side struct {
	name    string
	measure measure
}

// measure measures a load for a time.
type measure func(ctx context.Context, during time.Duration) measurement

// workload is a comparison of Petstore with another side. The targets are limits of the ratio
// Petstore/other; 0 means no target.
type workload struct {
	name        string
	ours, other side
	atLeast     float64 // requests per second
	p99AtMost   float64
	latencyOnly bool // whether requests per second mean nothing
	chart       bool // whether the chart shows the workload
}

// The workloads whose figures are in README.md.
const (
	readPets     = "GET /pets/{petId}"
	randomOrders = "POST /store/orders, random pets"
	flashSale    = "POST /store/orders, one pet (flash sale)"
)

// result is a workload and its measurements.
type result struct {
	workload
	measured pair
}

// pair is the measurements of two sides, one for each round: of a reference, and of the side
// that is compared with it.
type pair [2][]measurement

// ratios returns the ratio of a quantity to the reference: the median, minimum and
// maximum of the rounds.
func (p pair) ratios(quantity func(measurement) float64) (median, least, greatest float64) {
	all := make([]float64, len(p[0]))
	for i := range all {
		all[i] = quantity(p[1][i]) / quantity(p[0][i])
	}
	return medianOf(all, func(r float64) float64 { return r }), slices.Min(all), slices.Max(all)
}

func rate(m measurement) float64 { return m.perSecond }

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func p50(m measurement) float64 { return milliseconds(m.p50) }

func p99(m measurement) float64 { return milliseconds(m.p99) }

// medianOf returns the median of a quantity over the rounds.
func medianOf[T any](all []T, quantity func(T) float64) float64 {
	values := make([]float64, len(all))
	for i, m := range all {
		values[i] = quantity(m)
	}
	slices.Sort(values)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

// measureRounds measures the chosen workloads, round after round. The sides of each are
// measured in direct succession, and take turns to go first.
func (r *report) measureRounds(ctx context.Context, all []workload, o options) {
	for _, w := range all {
		if strings.Contains(w.name, o.only) {
			r.results = append(r.results, &result{workload: w})
			w.other.measure(ctx, warmUp)
			w.ours.measure(ctx, warmUp)
		}
	}
	must.Hold(len(r.results) > 0, "no request has a name that contains %q; run without -only to see the names", o.only)
	before, known := readCPUTimes()
	for round := range o.rounds {
		for _, l := range r.results {
			must.Explain(l.name, func() { l.measure(ctx, o.duration, round) })
		}
	}
	if after, _ := readCPUTimes(); known {
		r.warn(stealWarning(after.stolenSince(before)))
	}
}

// measure adds a round.
func (l *result) measure(ctx context.Context, during time.Duration, round int) {
	sides := [2]side{l.other, l.ours}
	for i := range sides {
		at := (round + i) % len(sides)
		l.measured[at] = append(l.measured[at], sides[at].measure(ctx, during))
	}
}

// compareBuilds compares the programs of the working directory and of another commit,
// and prints the ratios.
func compareBuilds(ctx context.Context, o options, dir string, out io.Writer) {
	r := newReport(ctx, o)
	var commit string
	must.Explain("set BASE to a commit, tag or branch, such as HEAD~1", func() { commit = runProgram(ctx, nil, "git", "rev-parse", "--verify", o.base+"^{commit}") })
	source, archive := filepath.Join(dir, "source"), filepath.Join(dir, "source.tar")
	must.OK(os.Mkdir(source, 0o700))
	runProgram(ctx, nil, "git", "archive", "--format=tar", "--output="+archive, commit)
	runProgram(ctx, nil, "tar", "-xf", archive, "-C", source)
	base := newBuild(ctx, o, dir, "base", source)
	defer base.stop()
	present := newBuild(ctx, o, dir, "present", ".")
	defer present.stop()
	fmt.Fprintf(out, "%s\n%s\nbase: %s\n", r.machine, r.setting, runProgram(ctx, nil, "git", "describe", "--always", commit))
	s := newSink(ctx)
	defer s.stop()
	base.serve(ctx)
	present.serve(ctx)
	r.measureRounds(ctx, buildWorkloads(ctx, base, present, s), o)
	r.printWarnings(out)
	must.OK(printCPU(out, r.results, o.most))
}

// buildWorkloads returns the workloads that compare the builds.
func buildWorkloads(ctx context.Context, base, present *build, s *sink) (all []workload) {
	const many = 64
	// deliveriesPerSecond is how many deliveries a measurement has for each second of its
	// duration. They may take longer.
	const deliveriesPerSecond = 2000
	add := func(name string, measure func(b *build) measure) {
		all = append(all, workload{name: name, other: side{"base", measure(base)}, ours: side{"present", measure(present)}})
	}
	addLoad := func(name string, l load) {
		l.connections = many
		add(name, func(b *build) measure {
			own := l
			if l.kind == "pages" {
				own.kind, own.path = "path", b.drawnPages(ctx)
			}
			return func(ctx context.Context, during time.Duration) measurement { return b.measure(ctx, own, during) }
		})
	}
	addLoad(readPets, load{kind: "pet"})
	addLoad("GET /pets?limit=50, one page", load{kind: "path", path: "/pets?limit=50"})
	addLoad("GET /pets?limit=50, different pages", load{kind: "pages"})
	addLoad(randomOrders, load{kind: "order"})
	addLoad(randomOrders+", Idempotency-Key", load{kind: "keyed"})
	addLoad(flashSale, load{kind: "sale"})
	addLoad("POST /pets", load{kind: "create"})
	for _, hooks := range []int{1, 4} {
		add(fmt.Sprintf("deliveries to %d webhooks", hooks), func(b *build) measure {
			return func(ctx context.Context, during time.Duration) measurement {
				return b.deliver(ctx, s, hooks, int(deliveriesPerSecond*during.Seconds()))
			}
		})
	}
	return all
}

// cpuMicroseconds returns the CPU time of a request.
func cpuMicroseconds(m measurement) (sum float64) {
	for _, part := range m.cpu {
		sum += float64(part) / float64(time.Microsecond)
	}
	return sum
}

// cpuVerdict says whether the present build uses more CPU time than the base, multiplied
// by most. A question mark means that the rounds disagree.
func cpuVerdict(p pair, most float64) string {
	median, least, greatest := p.ratios(cpuMicroseconds)
	switch {
	case least > most:
		return "MORE"
	case median > most:
		return "more?"
	case greatest > most:
		return "ok?"
	default:
		return "ok"
	}
}

// printCPU prints a line for each workload, and then the verdict. It is an error if a
// workload uses too much CPU time in every round.
func printCPU(out io.Writer, results []*result, most float64) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight|tabwriter.Debug)
	fmt.Fprintln(table, "CPU µs of server + PostgreSQL\tbase\tpresent\tratio\tof the rounds\t\tbase/s\tpresent/s\tratio\tof the rounds\t")
	names := map[string][]string{} // by verdict
	for _, l := range results {
		verdict := cpuVerdict(l.measured, most)
		names[verdict] = append(names[verdict], l.name)
		c, fewest, greatest := l.measured.ratios(cpuMicroseconds)
		r, slowest, fastest := l.measured.ratios(rate)
		fmt.Fprintf(table, "%s\t%s\t%s\t%.3f\t%.2f to %.2f\t%s\t%.0f\t%.0f\t%.2f\t%.2f to %.2f\t\n", l.name,
			strings.Join(cpuFigures(l.measured[0]), " + "), strings.Join(cpuFigures(l.measured[1]), " + "), c, fewest, greatest, verdict,
			medianOf(l.measured[0], rate), medianOf(l.measured[1], rate), r, slowest, fastest)
	}
	_ = table.Flush() // writes to standard output
	if unsure := names["more?"]; unsure != nil {
		fmt.Fprintf(out, "The rounds disagree about: %s. Run this again on a quiet machine.\n", strings.Join(unsure, "; "))
	}
	if more := names["MORE"]; more != nil {
		return fmt.Errorf("CPU per request is above %.2f of the base in every round: %s", most, strings.Join(more, "; "))
	}
	_, err := fmt.Fprintf(out, "No workload has CPU per request above %.2f of the base in every round.\n", most)
	return err
}

// cpuFigures returns the medians of the CPU time of a request, for each process.
func cpuFigures(all []measurement) (figures []string) {
	for i := range all[0].cpu {
		figures = append(figures, fmt.Sprintf("%.1f", medianOf(all, func(m measurement) float64 { return 1000 * milliseconds(m.cpu[i]) })))
	}
	return figures
}
