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

// workload is a row of the table: the load for Petstore and the other side, and the target
// of their ratio.
type workload struct {
	name   string
	load   load
	other  other
	target float64
}

// other is the other side that Petstore is compared with.
type other int

const (
	plainServer other = iota
	constantBytes
	samePgbench
	firstPage
	oneAccount
)

var otherNames = map[other]string{plainServer: "plain", constantBytes: "HTTP limit", samePgbench: "pgbench", firstPage: "first page", oneAccount: "one account"}

// workloads returns the rows of the table. The target is the minimum ratio of requests per
// second.
func (s *comparedServers) workloads() []workload {
	const many, few = 64, 16
	return []workload{
		{"GET /pets/{petId}", load{kind: "pet", connections: many}, plainServer, 1.4},
		{"GET /pets/{petId}", load{kind: "pet", connections: many}, constantBytes, 0.40},
		{"GET /pets/{petId}", load{kind: "pet", connections: few}, plainServer, 1.0},
		{"GET /pets?id={petId}", load{kind: "batch", connections: many}, plainServer, 1.2},
		{"GET /pets?limit=50", load{kind: "path", path: "/pets?limit=50", connections: many}, plainServer, 1.2},
		{"page 2,000 by name", load{kind: "path", path: s.deepPath, connections: many}, firstPage, 1 / 1.2},
		{"POST /store/orders", load{kind: "order", connections: many}, plainServer, 1.4},
		{"POST /store/orders", load{kind: "order", connections: many}, samePgbench, 0.5},
		{"POST, one pet (flash sale)", load{kind: "sale", connections: many}, plainServer, 2},
		{"POST /pets", load{kind: "create", connections: many}, plainServer, 1.2},
		{"GET /pets/{petId}, 1,000 accounts", load{kind: "pet", connections: many, accounts: true}, plainServer, 1.0},
		{"GET /pets/{petId}, 1,000 accounts", load{kind: "pet", connections: many, accounts: true}, oneAccount, 0.8},
		{"POST /store/orders, 1,000 accounts", load{kind: "order", connections: many, accounts: true}, plainServer, 1.2},
		{"POST /store/orders, 1,000 accounts", load{kind: "order", connections: many, accounts: true}, oneAccount, 0.8},
	}
}

// result is a workload and its measurements, one for each round.
type result struct {
	workload
	ours, others []measurement
}

// compare measures every workload on both sides, round after round, and prints the table.
func (s *comparedServers) compare(ctx context.Context, out io.Writer, rounds int, only string) error {
	var lines []*result
	for _, w := range s.workloads() {
		if strings.Contains(w.name, only) {
			lines = append(lines, &result{workload: w})
		}
	}
	for range rounds {
		for _, l := range lines {
			if err := s.measure(ctx, l); err != nil {
				return err
			}
		}
	}
	printResults(out, lines)
	if err := printHOT(ctx, out, "petstore and plain", s.database); err != nil {
		return err
	}
	if only != "" {
		return nil
	}
	return s.printRest(ctx, out, rounds)
}

func (s *comparedServers) measure(ctx context.Context, l *result) error {
	ours, err := s.wrk(ctx, s.petstore.url, l.load)
	if err != nil {
		return err
	}
	var others measurement
	switch l.other {
	case plainServer:
		others, err = s.wrk(ctx, s.plain.url, l.load.ofOneAccount()) // it has one store
	case constantBytes:
		others, err = s.wrk(ctx, s.constantURL, l.load)
	case samePgbench:
		others, err = s.generator.pgbench(ctx, s.pgbench, s.database, s.orderScript, l.load.connections)
	case oneAccount:
		others, err = s.wrk(ctx, s.petstore.url, l.load.ofOneAccount())
	case firstPage:
		others, err = s.wrk(ctx, s.petstore.url, load{kind: "path", path: firstPath, connections: l.load.connections})
	}
	l.ours, l.others = append(l.ours, ours), append(l.others, others)
	return err
}

func printResults(out io.Writer, lines []*result) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight|tabwriter.Debug)
	fmt.Fprintln(table, "request\tconnections\tpetstore/s\tp99 ms\tcompared with\tits/s\tits p99 ms\tratio\ttarget\t\t")
	for _, l := range lines {
		ours, others := medianOf(l.ours, rate), medianOf(l.others, rate)
		p99, otherP99 := medianOf(l.ours, p99Milliseconds), medianOf(l.others, p99Milliseconds)
		verdict := "reached"
		if ours/others < l.target {
			verdict = "MISSED"
		}
		// The p99 of the other sides is not comparable.
		if l.other == plainServer && p99 > otherP99 {
			verdict += ", p99 MISSED"
		}
		fmt.Fprintf(table, "%s\t%d\t%.0f\t%.1f\t%s\t%.0f\t%.1f\t%.2f\t%.2f\t%s\t\n",
			l.name, l.load.connections, ours, p99, otherNames[l.other], others, otherP99, ours/others, l.target, verdict)
	}
	_ = table.Flush() // writes to standard output
}

// printRest prints the latency of reads during writes, the memory and the startup time.
func (s *comparedServers) printRest(ctx context.Context, out io.Writer, rounds int) error {
	var idle, busy []measurement
	for range rounds {
		alone, err := s.wrk(ctx, s.petstore.url, load{kind: "pet", connections: 1})
		if err != nil {
			return err
		}
		wrote := make(chan error, 1)
		go func() {
			_, err := s.wrk(ctx, s.petstore.url, load{kind: "order", connections: 64})
			wrote <- err
		}()
		beside, err := s.wrk(ctx, s.petstore.url, load{kind: "pet", connections: 1})
		if err := <-wrote; err != nil {
			return err
		}
		if err != nil {
			return err
		}
		idle, busy = append(idle, alone), append(busy, beside)
	}
	memory, err := s.petstore.memory()
	if err != nil {
		return err
	}
	before, after := medianOf(idle, p99Milliseconds), medianOf(busy, p99Milliseconds)
	slices.Sort(s.startTimes)
	fmt.Fprintf(out, "p99 of GET /pets/{petId}: %.1f ms idle, %.1f ms while 64 connections order: %.1f times (target: under 5)\n", before, after, after/before)
	fmt.Fprintf(out, "memory after all rounds: %d MB (target: under 80)\n", memory>>20)
	fmt.Fprintf(out, "from start to /readyz 200: %d ms, the median of %d starts (target: under 150)\n", s.startTimes[len(s.startTimes)/2].Milliseconds(), len(s.startTimes))
	return nil
}

func rate(m measurement) float64 { return m.perSecond }

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
