package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"petstore/internal/pgtest/standby"
	"petstore/internal/sleep"
	"petstore/internal/tools/must"
)

// failover is row 22, and with SIGSTOP row 56: the primary is killed or frozen during writes, and its
// standby is promoted. With two hosts in DATABASE_URL the service finds the new primary, even if the
// kernel of the old one still acknowledges what it sends. Orders succeed again within a limit, all events
// are delivered within 40 seconds, and with synchronous replication no acknowledged order is lost.
func failover(signal syscall.Signal, limit time.Duration) func(context.Context, *fixture) string {
	return func(ctx context.Context, f *fixture) string {
		const delivered, receivers = 40 * time.Second, 6 // more than the worker has transactions
		primary := f.startDatabase(ctx, "", map[string]string{"synchronous_standby_names": "*"})
		standby := f.startStandby(ctx, primary, "standby", "sync")
		s := f.openWith(ctx, primary, anyURL(primary, standby), allowLoopback)
		var healthy []*receiver
		for range receivers {
			healthy = append(healthy, s.receive(ctx, nil))
		}
		w := s.startWriters(ctx, 16)
		sleep.For(ctx, 1500*time.Millisecond)

		// Stop the primary while its standby is behind: an order acknowledged in this time
		// would be lost.
		standby.follow(ctx, "")
		sleep.For(ctx, 200*time.Millisecond)
		stopped := time.Now()
		primary.signal(signal)
		defer func() { _ = must.Attempt(func() { primary.signal(syscall.SIGKILL) }) }() // it may have ended
		standby.promote(ctx)
		promotion := time.Since(stopped)
		s.db = standby
		s.awaitWorking(ctx, limit-promotion)
		back := time.Since(stopped)
		sleep.For(ctx, time.Second)
		l := w.finish()
		must.Hold(!s.api.process.HasEnded(), "the service has ended")
		s.awaitDelivered(ctx, delivered-time.Since(stopped))
		all := time.Since(stopped)
		s.checkDeliveries(ctx, badReceivers{all: healthy})
		s.checkWriters(ctx, l)
		return fmt.Sprintf("%s, slowest %s, 0 of %d lost; orders again after %s (promotion %s), all events delivered after %s",
			l.summary(), round(l.slowest), len(l.placed), round(back), round(promotion), round(all))
	}
}

// configure changes a setting of a running server.
func (d *database) configure(ctx context.Context, name, value string) {
	d.exec(ctx, "ALTER SYSTEM SET "+name+" = '"+strings.ReplaceAll(value, "'", "''")+"'")
	d.exec(ctx, "SELECT pg_reload_conf()")
}

// follow makes a standby follow a primary, or none if primary is "".
func (d *database) follow(ctx context.Context, primary string) {
	d.configure(ctx, "primary_conninfo", primary)
}

// promote makes a standby the primary.
func (d *database) promote(ctx context.Context) { must.OK(standby.Promote(ctx, d.Cluster)) }

// startStandby copies a primary and starts a standby of it, in a folder of this name. Its
// sync_state is "sync", "quorum" or "async".
func (f *fixture) startStandby(ctx context.Context, primary *database, name, state string) *database {
	options := primary.options
	options.Dir, options.Copy = filepath.Join(f.dir, name), standby.Of(primary.Cluster)
	must.OK(os.Mkdir(options.Dir, 0o711))
	// Without synchronous_standby_names, because it has no standby after its promotion.
	options.Settings = maps.Clone(durable)
	options.Settings["cluster_name"] = name
	standby := f.startCluster(ctx, options)
	must.Await(ctx, 10*time.Second, func() {
		following := primary.count(ctx, "SELECT count(*) FROM pg_stat_replication WHERE application_name = $1 AND sync_state = $2 AND state = 'streaming'", name, state)
		must.Hold(following > 0, "the standby does not stream yet")
	})
	return standby
}

// anyURL returns a URL with several servers that connects to the one that accepts writes.
func anyURL(servers ...*database) string {
	var address *url.URL
	var hosts, ports []string
	for _, server := range servers {
		address = must.Get(url.Parse(server.url()))
		hosts, ports = append(hosts, address.Query().Get("host")), append(ports, address.Query().Get("port"))
	}
	query := address.Query()
	query.Set("host", strings.Join(hosts, ","))
	query.Set("port", strings.Join(ports, ","))
	query.Set("target_session_attrs", "read-write")
	address.RawQuery = query.Encode()
	return address.String()
}

// replicaReads is row 36: a read with a consistency token shows the write of the token,
// whichever instance and replica serve it. The replicas lag up to a second, are killed,
// restarted and frozen, and one is promoted after the primary was killed. A walk over
// pages with consistency=eventual never goes back in time, as [forkSearch] finds out. In a second deployment, a
// replica stays on the timeline of the former primary, ahead of the new one.
func replicaReads(ctx context.Context, f *fixture) string {
	const clients, fresh, lagging = 24, 2000, 10_000
	const leastShare, leastAfter = 0.5, 0.2
	r := f.openReplicas(ctx)
	p := newPairs(r.instances, clients)
	var without, with, after float64
	must.Explain("without lag", func() { without = r.share(ctx, func() { p.run(ctx, fresh) }) })
	others := 0
	must.Explain("with lag", func() { with = r.share(ctx, func() { others = r.lag(ctx, p, lagging) }) })
	var back time.Duration
	must.Explain("failover", func() { back = r.failOver(ctx, p) })
	must.Explain("after the failover", func() { after = r.share(ctx, func() { p.run(ctx, fresh) }) })
	must.Explain("a replica on the former timeline", func() { f.formerTimeline(ctx) })
	must.Hold(without >= leastShare && after >= leastAfter,
		"replicas served %.0f%% of the reads without lag and %.0f%% after the failover, want at least %.0f%% and %.0f%%",
		100*without, 100*after, 100*leastShare, 100*leastAfter)
	p.wantOnly(http.StatusOK, http.StatusServiceUnavailable)
	p.wantInTime()
	return fmt.Sprintf("%d pairs with %d reads, 0 stale, slowest %s; replicas served %.0f%% of the reads without lag, %.0f%% with lag, %.0f%% after the failover; %d other reads in the order of the feed; writes again %s after the kill; %s",
		p.done.Load(), p.pages.Load(), round(p.slowest), 100*without, 100*with, 100*after, others, round(back), p.summary())
}

// replicated is a deployment with two replicas and two instances.
type replicated struct {
	*deployment

	standbys  [2]*database
	instances [2]*service
}

// openReplicas starts a primary, two standbys and two instances. The primary acknowledges a
// commit when one standby has received it, so a failover to the more advanced one loses
// nothing. A standby that restarts needs the older WAL.
func (f *fixture) openReplicas(ctx context.Context) *replicated {
	primary := f.startDatabase(ctx, "", map[string]string{"synchronous_standby_names": "ANY 1 (*)", "wal_keep_size": "256MB"})
	var standbys [2]*database
	for i := range standbys {
		standbys[i] = f.startStandby(ctx, primary, fmt.Sprint("standby", i+1), "quorum")
	}
	return f.openReplicated(ctx, primary, standbys)
}

// openReplicated starts two instances on a primary and its standbys.
func (f *fixture) openReplicated(ctx context.Context, primary *database, standbys [2]*database) *replicated {
	replicas := fmt.Sprintf("PETSTORE_REPLICA_URLS=%s %s", standbys[0].url(), standbys[1].url())
	servers := anyURL(primary, standbys[0], standbys[1])
	s := f.openWith(ctx, primary, servers, replicas)
	return &replicated{s, standbys, [2]*service{s.api, f.serve(ctx, servers, replicas)}}
}

// share calls a function and returns the share that replicas served of the reads meanwhile
// that allow it.
func (r *replicated) share(ctx context.Context, during func()) float64 {
	replicas, all := r.countReads(ctx)
	during()
	replicasAfter, allAfter := r.countReads(ctx)
	return (replicasAfter - replicas) / max(1, allAfter-all)
}

// countReads returns how many reads replicas served, and how many allow it.
func (r *replicated) countReads(ctx context.Context) (replicas, all float64) {
	for _, instance := range r.instances {
		for line := range strings.Lines(instance.metrics(ctx)) {
			labels, isRead := strings.CutPrefix(line, "petstore_reads_total{")
			if !isRead || strings.Contains(labels, `"default"`) {
				continue
			}
			_, value, _ := strings.Cut(labels, "} ")
			count := must.Get(strconv.ParseFloat(strings.TrimSpace(value), 64))
			all += count
			if strings.Contains(labels, `"fresh"`) {
				replicas += count
			}
		}
	}
	return replicas, all
}

// lag makes pairs, and reads two pets besides, while the replicas lag, and are killed and frozen by turns.
func (r *replicated) lag(ctx context.Context, p *pairs, count int) (reads int) {
	for i, delay := range []string{"1s", "300ms"} {
		r.standbys[i].delay(ctx, delay)
	}
	s := &forkSearch{replicated: r}
	beside, stop := context.WithCancel(ctx)
	must.Together(ctx,
		func(ctx context.Context) {
			defer stop()
			p.run(ctx, count)
		},
		func(context.Context) { s.search(beside, "consistency=eventual") },
		func(ctx context.Context) {
			for beside.Err() == nil {
				r.disturb(ctx)
			}
		})
	s.check(ctx)
	return len(s.seen)
}

// disturb kills and restarts one standby and freezes the other, and the reverse. One of
// them always acknowledges commits.
func (r *replicated) disturb(ctx context.Context) {
	const pause, frozen = 300 * time.Millisecond, time.Second
	for i, standby := range r.standbys {
		sleep.For(ctx, pause)
		standby.signal(syscall.SIGKILL)
		standby.start(context.WithoutCancel(ctx))
		r.awaitStandbys(context.WithoutCancel(ctx))
		other := r.standbys[1-i]
		other.signal(syscall.SIGSTOP)
		sleep.For(ctx, frozen)
		other.signal(syscall.SIGCONT)
	}
}

// awaitStandbys waits until both standbys receive WAL.
func (r *replicated) awaitStandbys(ctx context.Context) {
	must.Await(ctx, responseLimit, func() {
		following := r.db.count(ctx, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")
		must.Hold(following >= len(r.standbys), "%d of %d standbys receive WAL", following, len(r.standbys))
	})
}

// failOver kills the primary during pairs and promotes the standby that received more. The
// other one follows it, without a delay. It returns the time until writes work again.
func (r *replicated) failOver(ctx context.Context, p *pairs) time.Duration {
	const during, limit = 2000, 3 * time.Second
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	wait := must.Background(func() { p.run(running, during) })
	sleep.For(ctx, 200*time.Millisecond)
	killed := time.Now()
	r.db.signal(syscall.SIGKILL)
	next, other := r.mostAdvanced(ctx)
	next.promote(ctx)
	other.follow(ctx, next.URL("postgres"))
	r.db = next
	r.awaitWorking(ctx, limit-time.Since(killed))
	back := time.Since(killed)
	wait()
	other.delay(ctx, "0")
	r.awaitReplay(ctx, other)
	return back
}

// awaitReplay waits until a standby has replayed all WAL of the primary.
func (r *replicated) awaitReplay(ctx context.Context, standby *database) {
	must.Await(ctx, responseLimit, func() {
		var position string
		r.db.read(ctx, "SELECT pg_current_wal_flush_lsn()::text", nil, &position)
		replayed := standby.count(ctx, "SELECT (pg_last_wal_replay_lsn() >= $1::text::pg_lsn)::int", position)
		must.Hold(replayed == 1, "the standby has not replayed the WAL")
	})
}

// mostAdvanced returns the standby that received more WAL, and the other one.
func (r *replicated) mostAdvanced(ctx context.Context) (most, other *database) {
	var received [2]int
	for i, standby := range r.standbys {
		received[i] = standby.count(ctx, "SELECT (pg_last_wal_receive_lsn() - '0/0')::bigint")
	}
	if received[0] > received[1] {
		return r.standbys[0], r.standbys[1]
	}
	return r.standbys[1], r.standbys[0]
}

// delay makes a standby apply commits this much later.
func (d *database) delay(ctx context.Context, delay string) {
	d.configure(ctx, "recovery_min_apply_delay", delay)
}

// formerTimeline makes pairs while one replica stays on the timeline of the former primary.
// It received more WAL than the promoted standby, so its position looks newer.
func (f *fixture) formerTimeline(ctx context.Context) {
	const clients, before, after = 8, 200, 1000
	primary := f.startDatabase(ctx, filepath.Join(f.dir, "former"), nil)
	ahead, behind := f.startStandby(ctx, primary, "ahead", "async"), f.startStandby(ctx, primary, "behind", "async")
	r := f.openReplicated(ctx, primary, [2]*database{ahead, behind})
	served := r.share(ctx, func() { newPairs(r.instances, clients).run(ctx, before) })
	must.Hold(served > 0, "the replicas served nothing before the failover")
	behind.follow(ctx, "")
	r.db.exec(ctx, "SELECT pg_logical_emit_message(false, 'ahead', repeat('x', 1000000)) FROM generate_series(1, 32)") // 32 MB of WAL
	r.awaitReplay(ctx, ahead)
	primary.signal(syscall.SIGKILL)
	behind.promote(ctx)
	r.db = behind
	r.awaitWorking(ctx, responseLimit)
	p := newPairs(r.instances, clients) // the failover lost what only the other standby has
	p.run(ctx, after)
	p.wantInTime()
}
