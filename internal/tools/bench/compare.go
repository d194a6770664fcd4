package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"petstore/internal/localpg"
	"petstore/internal/pgtest/standby"
	"petstore/internal/tools/must"
	"petstore/internal/tools/run"
)

const (
	// warmUp is how long each side of a workload runs before the first round. So no measurement
	// includes the first use of a connection, a statement or a page.
	warmUp = time.Second

	petstoreName = "Petstore" // the side of the program of the working directory
)

// side is one of the two sides of a workload.
type side struct {
	name    string
	measure func(ctx context.Context, during time.Duration) measurement
}

// workload is a comparison of Petstore with another side. The targets are limits of the ratio
// Petstore/other; 0 means no target.
type workload struct {
	name        string
	ours, other side
	atLeast     float64 // requests per second
	perSecond   float64 // requests per second of Petstore, not a ratio
	p99AtMost   float64
	cpuAtMost   float64 // CPU time per request; the line has no rate
}

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

func p99(m measurement) float64 { return m.p99 }

// cpu returns the CPU time of a request in all processes.
func cpu(m measurement) (sum float64) {
	for _, part := range m.cpu {
		sum += part
	}
	return sum
}

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
func (r *report) measureRounds(ctx context.Context, all []workload) {
	var names []string
	for _, w := range all {
		names = append(names, w.name)
		if r.only.MatchString(w.name) {
			r.results = append(r.results, &result{workload: w})
			w.other.measure(ctx, warmUp)
			w.ours.measure(ctx, warmUp)
		}
	}
	must.Hold(len(r.results) > 0 || r.webhooks, "no row has a name that matches %q; the names are:\n%s", r.only, strings.Join(names, "\n"))
	before := readProc("stat")
	for round := range r.rounds {
		for _, l := range r.results {
			sides := [2]side{l.other, l.ours}
			for i := range sides {
				at := (round + i) % len(sides)
				must.Explain(l.name, func() { l.measured[at] = append(l.measured[at], sides[at].measure(ctx, r.duration)) })
			}
		}
	}
	r.warnings = append(r.warnings, stealWarning(before, readProc("stat"))...)
}

// compareBuilds compares the present program with the one of another commit.
func compareBuilds(ctx context.Context, r *report, present *build, dir string) {
	source := filepath.Join(dir, "source")
	run.Checkout(ctx, r.base, source)
	base := newBuild(ctx, r.pets, dir, "base", source)
	present.cleanups = append(present.cleanups, func() { base.stop(ctx) })
	s := present.newSink(ctx)
	for _, b := range []*build{base, present} {
		b.serve(ctx)
		b.drawPages(ctx)
	}
	var all []workload
	for _, l := range loads {
		all = append(all, workload{name: l.name, ours: present.side(petstoreName, l), other: base.side("base", l)})
	}
	few, many := smallBesideLarge()
	all = append(all,
		workload{name: few.name, ours: present.beside(petstoreName, few, many), other: base.beside("base", few, many)},
		workload{name: few.name, ours: present.beside(petstoreName, few, many), other: base.side("base, alone", few)},
		workload{name: deliveriesToOne, ours: present.deliver(petstoreName, s, 1), other: base.deliver("base", s, 1)},
		workload{name: deliveriesToFour, ours: present.deliver(petstoreName, s, 4), other: base.deliver("base", s, 4)})
	r.measureRounds(ctx, all)
}

// measureReplicas measures the CPU time of reads on the primary and on a replica.
func measureReplicas(ctx context.Context, r *report, b *build) {
	standby := b.startPostgres(ctx, localpg.Options{Dir: b.file("standby"), Copy: standby.Of(b.cluster)})
	b.serve(ctx, "PETSTORE_REPLICA_URLS="+standby.URL("petstore"))
	header, _ := b.ask(ctx, http.MethodPost, "/store/orders", `{"petId": 1}`)
	token := header.Get("Petstore-Consistency")
	var all []workload
	for _, connections := range []int{1, 64} {
		onPrimary := b.side("read on the primary", load{kind: "petById", connections: connections})
		add := func(name string, l load) {
			l.connections = connections
			all = append(all, workload{name: fmt.Sprintf("%s, %d connections", name, connections), ours: b.side(petstoreName, l), other: onPrimary})
		}
		add("read with consistency=eventual", load{kind: "preferring", path: "consistency=eventual"})
		add("read with a token", load{kind: "preferring", path: "consistency=" + token})
		add("order", load{kind: "order"})
	}
	r.measureRounds(ctx, all)
}
