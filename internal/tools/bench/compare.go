package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// warmUp is how long each side of a workload runs before the first round. So no measurement
// includes the first use of a connection, a statement or a page.
const warmUp = time.Second

// compareWithOthers compares the program with its limits and with a plain handler, and
// prints the ratios.
func compareWithOthers(ctx context.Context, o options, out io.Writer) (err error) {
	dir, removeDir, err := makeDir()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeDir()) }()
	r, err := newReport(ctx, o)
	if err != nil {
		return err
	}
	cluster, binaries, err := startPostgres(ctx, filepath.Join(dir, "postgres"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop(context.WithoutCancel(ctx))) }()
	if err := cluster.EnsureDatabase(ctx, petstoreDatabase); err != nil {
		return err
	}
	r.machine += ", PostgreSQL " + binaries.Version
	fmt.Fprintf(out, "%s\n%s\n", r.machine, r.setting)
	s := &comparedServers{dir: dir, swagger: o.swagger, pgbench: filepath.Join(binaries.Dir, "pgbench")}
	s.database, s.plainDatabase, s.pgbenchDatabase = cluster.URL(petstoreDatabase), cluster.URL(plainDatabase), cluster.URL(pgbenchDatabase)
	keys, smallKeys, err := prepareDatabase(ctx, s.database, o.pets)
	if err != nil {
		return err
	}
	if s.generator, err = newGenerator(dir, keys, o.pets, hotPet, o.duration); err != nil {
		return err
	}
	if err := errors.Join(addOtherDatabases(ctx, cluster), resetUpdateCounts(ctx, s.database)); err != nil {
		return err
	}
	defer s.stop()
	if err := s.start(ctx); err != nil {
		return err
	}
	if err := s.writeLoads(ctx, smallKeys); err != nil {
		return err
	}
	if err := s.fill(ctx, r, o); err != nil {
		return err
	}
	r.print(out)
	if o.report == "" {
		return nil
	}
	return r.write(o.report)
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

// fill measures everything and adds it to the report.
func (s *comparedServers) fill(ctx context.Context, r *report, o options) error {
	if err := r.measureRounds(ctx, s.workloads(), s.generator, o); err != nil {
		return err
	}
	hot, err := hotUpdates(ctx, s.database)
	if err != nil {
		return err
	}
	if hot.updates > 0 {
		r.add(hot.line())
	}
	memory, err := s.petstore.memory()
	if err != nil {
		return err
	}
	const most = 80
	megabytes := memory >> 20
	r.add(line{name: "memory after all rounds", ours: fmt.Sprintf("%d MB", megabytes), target: fmt.Sprintf("under %d MB", most), verdict: verdict(megabytes < most)})
	r.add(startLine(s.startTimes))
	return nil
}

// startLine returns the time from the start of the process until it is ready.
func startLine(times []time.Duration) line {
	const most = 150
	slices.Sort(times)
	median := times[len(times)/2].Milliseconds()
	return line{
		name: "start to /readyz 200", ours: fmt.Sprintf("%d ms", median),
		rounds: fmt.Sprintf("%d to %d ms", times[0].Milliseconds(), times[len(times)-1].Milliseconds()),
		target: fmt.Sprintf("under %d ms", most), verdict: verdict(median < most),
	}
}

// measureRounds measures the chosen workloads, round after round. The sides of each are
// measured in direct succession, and take turns to go first.
func (r *report) measureRounds(ctx context.Context, all []workload, g *generator, o options) error {
	brief := *g
	brief.duration = warmUp
	for _, w := range all {
		if !strings.Contains(w.name, o.only) {
			continue
		}
		r.results = append(r.results, &result{workload: w})
		for _, side := range []side{w.other, w.ours} {
			if _, err := side.measure(ctx, &brief); err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
		}
	}
	if len(r.results) == 0 {
		return fmt.Errorf("no request has a name that contains %q; run without -only to see the names", o.only)
	}
	disturbed, err := watchDisturbance()
	if err != nil {
		return err
	}
	for round := range o.rounds {
		err := disturbed.during(ctx, func() error {
			for _, l := range r.results {
				if err := l.measure(ctx, g, round); err != nil {
					return fmt.Errorf("%s: %w", l.name, err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	r.warnings = append(r.warnings, disturbed.warnings()...)
	return nil
}

// measure adds a round.
func (l *result) measure(ctx context.Context, g *generator, round int) error {
	sides := [2]side{l.other, l.ours}
	for i := range sides {
		at := (round + i) % len(sides)
		m, err := sides[at].measure(ctx, g)
		if err != nil {
			return err
		}
		l.measured[at] = append(l.measured[at], m)
	}
	return nil
}

func rate(m measurement) float64 { return m.perSecond }

func p50Milliseconds(m measurement) float64 { return float64(m.p50) / float64(time.Millisecond) }

func p99Milliseconds(m measurement) float64 { return float64(m.p99) / float64(time.Millisecond) }

// medianOf returns the median of a quantity over the rounds.
func medianOf[T any](all []T, quantity func(T) float64) float64 {
	values := make([]float64, len(all))
	for i, m := range all {
		values[i] = quantity(m)
	}
	slices.Sort(values)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}
