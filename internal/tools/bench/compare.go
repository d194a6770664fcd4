package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

const firstPath = "/pets?limit=50&sort=name&status=available"

// work is a line of the table: what is asked of petstore and of one other, how
// often, and what the ratio of the two should be.
type work struct {
	name   string
	load   load
	other  other
	target float64
}

// other is what petstore is compared with.
type other int

const (
	plainServer other = iota
	constantBytes
	samePgbench
	firstPage
)

var otherNames = map[other]string{plainServer: "plain", constantBytes: "HTTP limit", samePgbench: "pgbench", firstPage: "first page"}

// works are the rows of the table. The target is the least ratio of requests a
// second.
func (b *bench) works() []work {
	const many, few = 64, 16
	return []work{
		{"GET /pets/{petId}", load{"pet", "", many}, plainServer, 1.4},
		{"GET /pets/{petId}", load{"pet", "", many}, constantBytes, 0.40},
		{"GET /pets/{petId}", load{"pet", "", few}, plainServer, 1.0},
		{"GET /pets?id={petId}", load{"batch", "", many}, plainServer, 1.2},
		{"GET /pets?limit=50", load{"path", "/pets?limit=50", many}, plainServer, 1.2},
		{"page 2,000 by name", load{"path", b.deepPath, many}, firstPage, 1 / 1.2},
		{"POST /store/orders", load{"order", "", many}, plainServer, 1.4},
		{"POST /store/orders", load{"order", "", many}, samePgbench, 0.5},
		{"POST, one pet (flash sale)", load{"sale", "", many}, plainServer, 2},
		{"POST /pets", load{"create", "", many}, plainServer, 1.2},
	}
}

// line is a work and what was measured of it, round by round.
type line struct {
	work
	ours, others []measured
}

// compare measures every work, the two sides in turn, round after round, and
// prints the table.
func (b *bench) compare(ctx context.Context, out io.Writer, rounds int, only string) error {
	var lines []*line
	for _, w := range b.works() {
		if strings.Contains(w.name, only) {
			lines = append(lines, &line{work: w})
		}
	}
	for range rounds {
		for _, l := range lines {
			if err := b.measure(ctx, l); err != nil {
				return err
			}
		}
	}
	printLines(out, lines)
	if err := printHOT(ctx, out, "petstore and plain", b.database); err != nil {
		return err
	}
	if only != "" {
		return nil
	}
	return b.printRest(ctx, out, rounds)
}

func (b *bench) measure(ctx context.Context, l *line) error {
	ours, err := b.wrk(ctx, b.petstore.url, l.load)
	if err != nil {
		return err
	}
	var others measured
	switch l.other {
	case plainServer:
		others, err = b.wrk(ctx, b.plain.url, l.load)
	case constantBytes:
		others, err = b.wrk(ctx, b.constantURL, l.load)
	case samePgbench:
		others, err = b.generator.pgbench(ctx, b.pgbench, b.database, b.orderScript, l.load.connections)
	case firstPage:
		others, err = b.wrk(ctx, b.petstore.url, load{"path", firstPath, l.load.connections})
	}
	l.ours, l.others = append(l.ours, ours), append(l.others, others)
	return err
}

func printLines(out io.Writer, lines []*line) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight|tabwriter.Debug)
	fmt.Fprintln(table, "work\tconnections\tpetstore/s\tp99 ms\tcompared with\tits/s\tits p99 ms\tratio\ttarget\t\t")
	for _, l := range lines {
		ours, others := medianOf(l.ours, rate), medianOf(l.others, rate)
		p99, otherP99 := medianOf(l.ours, p99Milliseconds), medianOf(l.others, p99Milliseconds)
		verdict := "reached"
		if ours/others < l.target {
			verdict = "MISSED"
		}
		// Only against plain is the p99 a matter of like and like.
		if l.other == plainServer && p99 > otherP99 {
			verdict += ", p99 MISSED"
		}
		fmt.Fprintf(table, "%s\t%d\t%.0f\t%.1f\t%s\t%.0f\t%.1f\t%.2f\t%.2f\t%s\t\n",
			l.name, l.load.connections, ours, p99, otherNames[l.other], others, otherP99, ours/others, l.target, verdict)
	}
	_ = table.Flush() // to stdout
}

// printRest prints what is no ratio of rates: the latency of reads beside
// writes, memory and the time to start.
func (b *bench) printRest(ctx context.Context, out io.Writer, rounds int) error {
	var idle, busy []measured
	for range rounds {
		alone, err := b.wrk(ctx, b.petstore.url, load{"pet", "", 1})
		if err != nil {
			return err
		}
		wrote := make(chan error, 1)
		go func() {
			_, err := b.wrk(ctx, b.petstore.url, load{"order", "", 64})
			wrote <- err
		}()
		beside, err := b.wrk(ctx, b.petstore.url, load{"pet", "", 1})
		if err := <-wrote; err != nil {
			return err
		}
		if err != nil {
			return err
		}
		idle, busy = append(idle, alone), append(busy, beside)
	}
	memory, err := b.petstore.memory()
	if err != nil {
		return err
	}
	before, after := medianOf(idle, p99Milliseconds), medianOf(busy, p99Milliseconds)
	slices.Sort(b.startTimes)
	fmt.Fprintf(out, "p99 of GET /pets/{petId}: %.1f ms idle, %.1f ms while 64 connections order: %.1f times (target: under 5)\n", before, after, after/before)
	fmt.Fprintf(out, "memory after all this: %d MB (target: under 80)\n", memory>>20)
	fmt.Fprintf(out, "from start to /readyz 200: %d ms, the median of %d starts (target: under 150)\n", b.startTimes[len(b.startTimes)/2].Milliseconds(), len(b.startTimes))
	return nil
}

func rate(m measured) float64 { return m.perSecond }

func p99Milliseconds(m measured) float64 { return float64(m.p99) / float64(time.Millisecond) }

// medianOf returns the median of a quantity over the rounds.
func medianOf[T any](all []T, quantity func(T) float64) float64 {
	values := make([]float64, len(all))
	for i, m := range all {
		values[i] = quantity(m)
	}
	slices.Sort(values)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}
