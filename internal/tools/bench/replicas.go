package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"text/tabwriter"

	"petstore/internal/localpg"
)

// measureReplicas measures the CPU time of GET /pets/{petId} on the primary and on a
// replica, and prints how reads scale with replicas.
func measureReplicas(ctx context.Context, o options, dir string, out io.Writer) {
	b := newBuild(ctx, o, dir, "present", ".")
	defer b.stop()
	standbyDir := filepath.Join(b.dir, "standby")
	standby := b.startPostgres(ctx, localpg.Options{Dir: standbyDir, StandbyOf: b.cluster})
	b.serve(ctx, "PETSTORE_REPLICA_URLS="+standby.URL("petstore"))
	fmt.Fprintf(out, "%s, PostgreSQL %s, %d pets\n", machine(), b.binaries.Version, o.pets)
	header, _ := b.ask(ctx, http.MethodPost, "/store/orders", `{"petId": 1}`)
	token := header.Get("Petstore-Consistency")
	pids := append(b.pids(), postmaster(standbyDir))
	for _, connections := range []int{1, 64} {
		loads := []struct {
			name string
			load load
		}{
			{"read on the primary", load{kind: "pet", connections: connections}},
			{"read with consistency=eventual", load{kind: "preferring", path: "consistency=eventual", connections: connections}},
			{"read with a token", load{kind: "preferring", path: "consistency=" + token, connections: connections}},
			{"order", load{kind: "order", connections: connections}},
		}
		rounds := make([][]measurement, len(loads))
		for range o.rounds {
			for i, l := range loads {
				b.wrk(ctx, b.server.url, l.load, warmUp)
				m := withCPU(pids, func() measurement { return b.wrk(ctx, b.server.url, l.load, o.duration) })
				rounds[i] = append(rounds[i], m)
			}
		}
		table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(table, "\n%d connections, CPU µs of a request\trequests/s\tservice + primary + replica\tof linear with 1, 2, 4, 8 replicas\t\n", connections)
		for i, l := range loads {
			fmt.Fprintf(table, "%s\t%.0f\t%s\t", l.name, medianOf(rounds[i], rate), cpuFigures(rounds[i]))
			if l.load.kind == "preferring" {
				for _, replicas := range []float64{1, 2, 4, 8} {
					fmt.Fprintf(table, " %.2f", ofLinear(rounds[0], rounds[i], replicas))
				}
			}
			fmt.Fprintln(table, "\t")
		}
		_ = table.Flush() // writes to standard output
	}
}

// ofLinear returns the reads that a primary and some replicas of the same size serve until the
// CPUs of each are busy. The unit is as many times the reads of the primary alone as there are
// servers. Reads on a replica also use the primary a little.
func ofLinear(onPrimary, onReplica []measurement, replicas float64) float64 {
	cpu := func(all []measurement, process int) float64 {
		return medianOf(all, func(m measurement) float64 { return float64(m.cpu[process]) })
	}
	const primary, replica = 1, 2
	alone, atReplicas := cpu(onPrimary, primary), replicas/cpu(onReplica, replica)
	atPrimary := (1 - atReplicas*cpu(onReplica, primary)) / alone
	return (atPrimary + atReplicas) * alone / (replicas + 1)
}
