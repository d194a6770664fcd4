package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"time"

	"petstore/internal/localpg"
)

// replicaPair is a primary, its standby, and a program that reads from both.
type replicaPair struct {
	*generator
	program *process
	// roots are the processes whose CPU time counts, with their children: of the program,
	// the primary and the standby.
	roots [3]int
}

// costs is the CPU time of each request on the program, the primary and the standby.
type costs struct {
	name      string
	perSecond float64
	cpu       [3]time.Duration
}

// measureReplicas measures the CPU time of GET /pets/{petId} on the primary and on a
// replica, and prints how reads scale with replicas.
func measureReplicas(ctx context.Context, o options, out io.Writer) (err error) {
	dir, removeDir, err := makeDir()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeDir()) }()
	primary, binaries, err := startPostgres(ctx, filepath.Join(dir, "postgres"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, primary.Stop(context.WithoutCancel(ctx))) }()
	fmt.Fprintf(out, "%s, PostgreSQL %s, %d pets\n", machine(), binaries.Version, o.pets)
	r := &replicaPair{}
	keys, err := r.fill(ctx, primary, o)
	if err != nil {
		return err
	}
	if r.generator, err = newGenerator(dir, keys, o.pets, hotPet, o.duration); err != nil {
		return err
	}
	standbyDir := filepath.Join(dir, "standby")
	standby, err := localpg.Start(ctx, localpg.Options{Binaries: binaries, Dir: standbyDir, StandbyOf: primary, Settings: standbySettings()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, standby.Stop(context.WithoutCancel(ctx))) }()
	if err := buildPrograms(ctx, dir); err != nil {
		return err
	}
	r.program, _, err = startPetstore(ctx, filepath.Join(dir, "petstore"), filepath.Join(dir, "petstore.log"), primary.URL(petstoreDatabase),
		"PETSTORE_REPLICA_URLS="+standby.URL(petstoreDatabase))
	if err != nil {
		return err
	}
	defer r.program.stop()
	r.roots[0] = r.program.cmd.Process.Pid
	for i, dir := range []string{filepath.Join(dir, "postgres"), standbyDir} {
		if r.roots[1+i], err = postmaster(dir); err != nil {
			return err
		}
	}
	return r.compare(ctx, o, out)
}

// fill prepares the database and returns API keys.
func (r *replicaPair) fill(ctx context.Context, primary *localpg.Cluster, o options) (keys []string, err error) {
	if err := primary.EnsureDatabase(ctx, petstoreDatabase); err != nil {
		return nil, err
	}
	keys, _, err = prepareDatabase(ctx, primary.URL(petstoreDatabase), o.pets)
	return keys, err
}

// standbySettings returns the settings of the primary, without checkpoints during a
// measurement, and the settings of a replica.
func standbySettings() map[string]string {
	settings := maps.Clone(postgresSettings)
	settings["hot_standby_feedback"] = "on"
	return settings
}

// compare measures every round and prints the medians.
func (r *replicaPair) compare(ctx context.Context, o options, out io.Writer) error {
	token, err := r.token(ctx)
	if err != nil {
		return err
	}
	const many = 64
	for _, connections := range []int{1, many} {
		loads := []struct {
			name string
			load load
		}{
			{"read on the primary", load{kind: "pet", connections: connections}},
			{"read with consistency=eventual", load{kind: "preferring", path: "consistency=eventual", connections: connections}},
			{"read with a token", load{kind: "preferring", path: "consistency=" + token, connections: connections}},
			{"order", load{kind: "order", connections: connections}},
		}
		rounds := make([][]costs, len(loads))
		for range o.rounds {
			for i, l := range loads {
				c, err := r.measure(ctx, l.name, l.load)
				if err != nil {
					return err
				}
				rounds[i] = append(rounds[i], c)
			}
		}
		medians := make([]costs, len(loads))
		for i := range rounds {
			medians[i] = medianCosts(rounds[i])
		}
		printCosts(out, connections, medians)
	}
	return nil
}

// measure runs a load once to warm up and once to measure it.
func (r *replicaPair) measure(ctx context.Context, name string, l load) (c costs, err error) {
	brief := *r.generator
	brief.duration = warmUp
	if _, err := brief.wrk(ctx, r.program.url, l); err != nil {
		return c, err
	}
	before, err := cpuOfTrees(r.roots[:])
	if err != nil {
		return c, err
	}
	m, err := r.wrk(ctx, r.program.url, l)
	if err != nil {
		return c, err
	}
	after, err := cpuOfTrees(r.roots[:])
	c = costs{name: name, perSecond: m.perSecond}
	for i := range c.cpu {
		c.cpu[i] = (after[i] - before[i]) / time.Duration(m.requests)
	}
	return c, err
}

// token returns the consistency token of a write.
func (r *replicaPair) token(ctx context.Context) (string, error) {
	response, err := send(ctx, http.MethodPost, r.program.url+"/store/orders", r.keys[0], `{"petId": 1}`)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	token := response.Header.Get("Petstore-Consistency")
	if token == "" {
		return "", errors.New("a write returns no Petstore-Consistency header")
	}
	return token, nil
}

func medianCosts(rounds []costs) costs {
	c := costs{name: rounds[0].name, perSecond: medianOf(rounds, func(c costs) float64 { return c.perSecond })}
	for i := range c.cpu {
		c.cpu[i] = time.Duration(medianOf(rounds, func(c costs) float64 { return float64(c.cpu[i]) }))
	}
	return c
}

// printCosts prints the costs of all loads, the first of which reads on the primary, and
// how reads scale. A primary and replicas serve reads until the CPUs of each are busy.
func printCosts(out io.Writer, connections int, all []costs) {
	fmt.Fprintf(out, "\n%d connections: CPU time of each request (user and system)\n", connections)
	fmt.Fprintf(out, "%-32s %10s %10s %10s %10s\n", "", "requests/s", "service", "primary", "replica")
	for _, c := range all {
		fmt.Fprintf(out, "%-32s %10.0f %10s %10s %10s\n", c.name, c.perSecond, microseconds(c.cpu[0]), microseconds(c.cpu[1]), microseconds(c.cpu[2]))
	}
	base := all[0]
	for _, c := range all[1:3] {
		fmt.Fprintf(out, "%s, of linear:", c.name)
		for _, replicas := range []int{1, 2, 4, 8} {
			fmt.Fprintf(out, " %d replicas %.2f", replicas, ofLinear(base, c, replicas))
		}
		fmt.Fprintln(out)
	}
}

func microseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f µs", float64(d)/float64(time.Microsecond))
}

// ofLinear returns the reads that a primary and some replicas of the same size serve. The
// unit is as many times the reads of the primary alone as there are servers. Reads on a
// replica also use the primary a little.
func ofLinear(onPrimary, onReplica costs, replicas int) float64 {
	const primary, replica = 1, 2
	alone, n := float64(onPrimary.cpu[primary]), float64(replicas)
	each := float64(onReplica.cpu[replica])
	atReplicas := n / each
	atPrimary := (1 - atReplicas*float64(onReplica.cpu[primary])) / alone
	return (atPrimary + atReplicas) * alone / (n + 1)
}
