package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
		if o.only.MatchString(w.name) {
			r.results = append(r.results, &result{workload: w})
			w.other.measure(ctx, warmUp)
			w.ours.measure(ctx, warmUp)
		}
	}
	must.Hold(len(r.results) > 0, "no request has a name that matches %q; run without -only to see the names", o.only)
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
	r.print(out)
	must.OK(judgeCPU(out, r.results, o.most))
}

// buildWorkloads returns the workloads that compare the builds.
func buildWorkloads(ctx context.Context, base, present *build, s *sink) (all []workload) {
	const many, few = 64, 16
	// deliveriesPerSecond is how many deliveries a measurement has for each second of its
	// duration. They may take longer.
	const deliveriesPerSecond = 2000
	order, keyed := load{kind: "order", connections: many}, load{kind: "keyed", connections: many}
	fewOrders, pages := order.by(smallAccounts), func(b *build) load { return load{kind: "path", path: b.drawnPages(ctx), connections: many} }
	fewOrders.connections = few
	for _, w := range []struct {
		name string
		load load
	}{
		{readPets, load{kind: "pet", connections: many}},
		{readPets + ", 16 connections", load{kind: "pet", connections: few}},
		{"GET /pets?id={petId}", load{kind: "petById", connections: many}},
		{"GET /pets?limit=50, one page", load{kind: "path", path: "/pets?limit=50", connections: many}},
		{randomOrders, order},
		{randomOrders + ", Idempotency-Key", keyed},
		{flashSale, load{kind: "sale", connections: many}},
		{"POST /pets", load{kind: "create", connections: many}},
		{"POST /store/orders, 1,000 accounts", order.by(smallAccounts)},
		{"POST /store/orders, 1,000 accounts, 16 connections", fewOrders},
		{"POST /store/orders, 1,000 accounts, Idempotency-Key", keyed.by(smallAccounts)},
		{"POST /store/orders, 100 accounts", order.by(fewAccounts)},
		{"POST /store/orders, 1,000 sandboxes", order.by(sandboxes)},
	} {
		all = append(all, workload{name: w.name, other: base.load("base", w.load), ours: present.load("present", w.load)})
	}
	small, large := order.by(smallAccounts), order
	small.connections, large.connections = 8, 256
	all = append(all,
		workload{name: "GET /pets?limit=50, different pages", other: base.load("base", pages(base)), ours: present.load("present", pages(present))},
		workload{name: "POST /store/orders, 1,000 accounts, 8 connections beside 256 of one account", other: base.beside("base", small, large), ours: present.beside("present", small, large)},
		workload{name: "POST /store/orders, 1,000 accounts, 8 connections beside 256 of one account", other: base.load("base, alone", small), ours: present.beside("present", small, large)})
	for _, hooks := range []int{1, 4} {
		deliver := func(name string, b *build) side {
			return side{name, func(ctx context.Context, during time.Duration) measurement {
				return b.deliver(ctx, s, hooks, int(deliveriesPerSecond*during.Seconds()))
			}}
		}
		all = append(all, workload{name: fmt.Sprintf("deliveries to %d webhooks", hooks), other: deliver("base", base), ours: deliver("present", present)})
	}
	return all
}

// cpuMicroseconds returns the CPU time of a request, in the server and in PostgreSQL.
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

// cpuLines compares the CPU time of a request: of server and PostgreSQL, and of the server.
func (l *result) cpuLines(most float64) []line {
	all := l.compare(cpuMicroseconds)
	all.name += ": CPU of server + PostgreSQL"
	all.ours, all.theirs = cpuFigures(l.measured[1]), cpuFigures(l.measured[0])
	all.target, all.verdict = "at most "+ratio(most), cpuVerdict(l.measured, most)
	server := l.compare(func(m measurement) float64 { return float64(m.cpu[0]) })
	server.name += ": CPU of server"
	return []line{all, server}
}

// judgeCPU prints which workloads need more CPU time. It is an error if one needs too much in
// every round.
func judgeCPU(out io.Writer, results []*result, most float64) error {
	names := map[string][]string{} // by verdict
	for _, l := range results {
		if l.measuredCPU() {
			verdict := cpuVerdict(l.measured, most)
			names[verdict] = append(names[verdict], l.name)
		}
	}
	if unsure := names["more?"]; unsure != nil {
		fmt.Fprintf(out, "The rounds disagree about: %s. Run this again on a quiet machine.\n", strings.Join(unsure, "; "))
	}
	if more := names["MORE"]; more != nil {
		return fmt.Errorf("CPU per request is above %.2f of the base in every round: %s", most, strings.Join(more, "; "))
	}
	_, err := fmt.Fprintf(out, "No workload has CPU per request above %.2f of the base in every round.\n", most)
	return err
}

// measuredCPU reports whether both sides measured the CPU time.
func (l *result) measuredCPU() bool {
	return l.measured[0][0].cpu != nil && l.measured[1][0].cpu != nil
}

// cpuFigures returns the medians of the CPU time of a request, for each process.
func cpuFigures(all []measurement) string {
	var figures []string
	for i := range all[0].cpu {
		figures = append(figures, fmt.Sprintf("%.1f", medianOf(all, func(m measurement) float64 { return 1000 * milliseconds(m.cpu[i]) })))
	}
	return strings.Join(figures, " + ") + " µs"
}
