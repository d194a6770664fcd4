package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"petstore/internal/localpg"
	"petstore/internal/pgtest/standby"
)

// measureReplicas measures the CPU time of reads on the primary and on a replica, and how reads
// scale with replicas.
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
	for _, l := range r.results {
		if strings.HasPrefix(l.name, "read") {
			var shares []string
			for _, replicas := range []float64{1, 2, 4, 8} {
				shares = append(shares, ratio(ofLinear(l.measured, replicas)))
			}
			r.others = append(r.others, line{name: l.name + ": of linear with 1, 2, 4, 8 replicas", ours: strings.Join(shares, ", ")})
		}
	}
}

// ofLinear returns the reads that a primary and some replicas of the same size serve until the
// CPUs of each are busy. The unit is as many times the reads of the primary alone as there are
// servers. Reads on a replica also use the primary a little.
func ofLinear(measured pair, replicas float64) float64 {
	cpu := func(side, process int) float64 {
		return medianOf(measured[side], func(m measurement) float64 { return m.cpu[process] })
	}
	const primary, replica = 1, 2
	alone, atReplicas := cpu(0, primary), replicas/cpu(1, replica)
	atPrimary := (1 - atReplicas*cpu(1, primary)) / alone
	return (atPrimary + atReplicas) * alone / (replicas + 1)
}
