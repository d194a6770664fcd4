package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// replicaReads is row 36: a read with a consistency token shows the write of the token,
// whichever instance and replica serve it. The replicas lag up to a second, are killed,
// restarted and frozen, and one is promoted after the primary was killed. A walk over
// pages with consistency=eventual never goes back in time. In a second deployment, a
// replica stays on the timeline of the former primary, ahead of the new one.
func replicaReads(ctx context.Context, f *fixture) (string, error) {
	const clients, fresh, lagging = 24, 2000, 10_000
	const leastShare, leastAfter = 0.5, 0.2
	r, err := f.openReplicas(ctx)
	if err != nil {
		return "", err
	}
	p := newPairs(r.instances, clients)
	without, err := r.share(ctx, func() error { return p.run(ctx, fresh) })
	if err != nil {
		return "", fmt.Errorf("without lag: %w", err)
	}
	walks := 0
	with, err := r.share(ctx, func() (err error) { walks, err = r.lag(ctx, p, lagging); return err })
	if err != nil {
		return "", fmt.Errorf("with lag: %w", err)
	}
	back, err := r.failOver(ctx, p)
	if err != nil {
		return "", fmt.Errorf("failover: %w", err)
	}
	after, err := r.share(ctx, func() error { return p.run(ctx, fresh) })
	if err != nil {
		return "", fmt.Errorf("after the failover: %w", err)
	}
	if err := f.formerTimeline(ctx); err != nil {
		return "", fmt.Errorf("a replica on the former timeline: %w", err)
	}
	if without < leastShare || after < leastAfter {
		return "", fmt.Errorf("replicas served %.0f%% of the reads without lag and %.0f%% after the failover, want at least %.0f%% and %.0f%%",
			100*without, 100*after, 100*leastShare, 100*leastAfter)
	}
	return fmt.Sprintf("%d pairs with %d reads, 0 stale, slowest %s; replicas served %.0f%% of the reads without lag, %.0f%% with lag, %.0f%% after the failover; %d walks; writes again %s after the kill; %s",
			p.done.Load(), p.pages.Load(), round(p.slowest), 100*without, 100*with, 100*after, walks, round(back), p.summary()),
		errors.Join(p.only(http.StatusOK, http.StatusCreated, http.StatusNoContent, http.StatusNotFound, http.StatusServiceUnavailable), p.within(responseLimit))
}

// replicated is a deployment with two replicas and two instances.
type replicated struct {
	*deployment

	standbys  [2]*database
	instances [2]*client
	admins    [2]*client // the admin addresses of the instances
}

// replicaSettings make a primary acknowledge a commit when one standby has received it. So
// a failover to the more advanced one loses nothing. A standby that restarts needs the
// older WAL.
var replicaSettings = map[string]string{
	"synchronous_standby_names": "ANY 1 (*)", "wal_retrieve_retry_interval": "200ms", "wal_keep_size": "256MB",
}

// openReplicas starts a primary, two standbys and two instances.
func (f *fixture) openReplicas(ctx context.Context) (*replicated, error) {
	primary, err := f.startDatabase(ctx, "", replicaSettings)
	if err != nil {
		return nil, err
	}
	r := &replicated{}
	for i := range r.standbys {
		if r.standbys[i], err = f.startStandby(ctx, primary, fmt.Sprint("standby", i+1), "quorum"); err != nil {
			return nil, err
		}
	}
	err = r.open(ctx, f, primary)
	return r, err
}

// open starts the instances.
func (r *replicated) open(ctx context.Context, f *fixture, primary *database) (err error) {
	replicas := fmt.Sprintf("PETSTORE_REPLICA_URLS=%s %s", r.standbys[0].url(), r.standbys[1].url())
	servers := anyURL(primary, r.standbys[0], r.standbys[1])
	for i := range r.instances {
		admin, err := freeAddr(ctx)
		if err != nil {
			return err
		}
		api, err := f.serve(ctx, servers, replicas, "PETSTORE_ADMIN_ADDR="+admin)
		if err != nil {
			return err
		}
		r.instances[i], r.admins[i] = &client{base: api.url(), key: f.key}, &client{base: "http://" + admin}
		if i == 0 {
			r.deployment = &deployment{fixture: f, db: primary, api: api, client: r.instances[i]}
		}
	}
	return nil
}

// share calls a function and returns the share that replicas served of the reads meanwhile
// that allow it.
func (r *replicated) share(ctx context.Context, during func() error) (float64, error) {
	replicas, all, err := r.countReads(ctx)
	if err := errors.Join(err, during()); err != nil {
		return 0, err
	}
	replicasAfter, allAfter, err := r.countReads(ctx)
	return (replicasAfter - replicas) / max(1, allAfter-all), err
}

// countReads returns how many reads replicas served, and how many allow it.
func (r *replicated) countReads(ctx context.Context) (replicas, all float64, err error) {
	for _, admin := range r.admins {
		resp, err := admin.want(ctx, http.StatusOK, "GET", "/metrics", "")
		if err != nil {
			return 0, 0, err
		}
		for line := range strings.Lines(string(resp.body)) {
			labels, isRead := strings.CutPrefix(line, "petstore_reads_total{")
			if !isRead || strings.Contains(labels, `"default"`) {
				continue
			}
			_, value, _ := strings.Cut(labels, "} ")
			count, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				return 0, 0, err
			}
			all += count
			if strings.Contains(labels, `"fresh"`) {
				replicas += count
			}
		}
	}
	return replicas, all, nil
}

// lag makes pairs and walks while the replicas lag, and are killed and frozen by turns.
func (r *replicated) lag(ctx context.Context, p *pairs, count int) (walks int, err error) {
	for i, delay := range []string{"1s", "300ms"} {
		if err := r.standbys[i].delay(ctx, delay); err != nil {
			return 0, err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	background := func(run func(context.Context) error) {
		group.Go(func() {
			for ctx.Err() == nil {
				if err := run(ctx); err != nil {
					cancel(err)
				}
			}
		})
	}
	marks := 0
	background(func(ctx context.Context) error { marks++; return r.mark(ctx, marks) })
	background(func(ctx context.Context) error { walks++; return r.walkMarks(ctx) })
	background(r.disturb)
	cancel(cmp.Or(p.run(ctx, count), errLagEnded)) // unless the background has failed
	group.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, errLagEnded) {
		return walks, cause
	}
	return walks, nil
}

// errLagEnded ends what runs beside the pairs.
var errLagEnded = errors.New("the pairs are done")

// disturb kills and restarts one standby and freezes the other, and the reverse. One of
// them always acknowledges commits.
func (r *replicated) disturb(ctx context.Context) error {
	const pause, frozen = 300 * time.Millisecond, time.Second
	for i, standby := range r.standbys {
		sleep(ctx, pause)
		if err := errors.Join(standby.signal(syscall.SIGKILL), standby.start(context.WithoutCancel(ctx))); err != nil {
			return err
		}
		if err := r.awaitStandbys(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		other := r.standbys[1-i]
		err := other.signal(syscall.SIGSTOP)
		sleep(ctx, frozen)
		if err := errors.Join(err, other.signal(syscall.SIGCONT)); err != nil {
			return err
		}
	}
	return nil
}

// awaitStandbys waits until both standbys receive WAL.
func (r *replicated) awaitStandbys(ctx context.Context) error {
	_, err := eventually(ctx, responseLimit, func() error {
		var following int
		err := r.db.read(ctx, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'", nil, &following)
		if err == nil && following < len(r.standbys) {
			err = fmt.Errorf("%d of %d standbys receive WAL", following, len(r.standbys))
		}
		return err
	})
	return err
}

// Pets that no pair uses: on the first and on the last page of a walk.
const firstMarked, lastMarked = 1, pets

// mark renames the pet of the last page, then the pet of the first page. So a walk that
// shows a mark on the first page must show it, or a later one, on the last page.
func (r *replicated) mark(ctx context.Context, number int) error {
	for _, pet := range []int{lastMarked, firstMarked} {
		resp, err := r.instances[0].do(ctx, "PATCH", fmt.Sprint("/pets/", pet), fmt.Sprintf(`{"name": "mark %09d"}`, number))
		if err != nil || resp.status != http.StatusOK {
			sleep(ctx, loadPause)
			return nil //nolint:nilerr // the next mark is a later one
		}
	}
	return nil
}

// walkMarks walks over the pets with consistency=eventual, at both instances by turns.
func (r *replicated) walkMarks(ctx context.Context) error {
	marks := map[int64]string{}
	pages := 0
	for target := "/pets?sort=id&limit=10"; target != ""; pages++ {
		resp, err := r.instances[pages%2].do(ctx, "GET", target, "", "Prefer", "consistency=eventual")
		if err != nil || resp.status == http.StatusServiceUnavailable {
			return nil //nolint:nilerr // the next walk may succeed
		}
		var page []listedPet
		if err := errors.Join(resp.check(http.StatusOK), resp.decode(&page)); err != nil {
			return err
		}
		for _, pet := range page {
			if name, marked := strings.CutPrefix(pet.Name, "mark "); marked {
				marks[pet.ID] = name
			}
		}
		target = resp.next()
	}
	if marks[firstMarked] > marks[lastMarked] {
		return fmt.Errorf("a walk went back in time: the first of %d pages has mark %s, the last has mark %s", pages, marks[firstMarked], marks[lastMarked])
	}
	return nil
}

// failOver kills the primary during pairs and promotes the standby that received more. The
// other one follows it, without a delay. It returns the time until writes work again.
func (r *replicated) failOver(ctx context.Context, p *pairs) (back time.Duration, err error) {
	const during, within = 2000, 3 * time.Second
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.run(running, during) }()
	sleep(ctx, 200*time.Millisecond)
	killed := time.Now()
	other, err := r.promoteOne(ctx)
	if err == nil {
		_, err = r.awaitWorking(ctx, within-time.Since(killed))
	}
	back = time.Since(killed)
	if err != nil {
		cancel()
	}
	err = cmp.Or(err, <-ended)
	cancel()
	if err == nil {
		err = other.delay(ctx, "0")
	}
	if err == nil {
		_, err = eventually(ctx, responseLimit, func() error { return r.replays(ctx, other) })
	}
	return back, err
}

// promoteOne kills the primary and promotes the standby that received more. It returns the
// other one, which follows the new primary.
func (r *replicated) promoteOne(ctx context.Context) (other *database, err error) {
	if err := r.db.signal(syscall.SIGKILL); err != nil {
		return nil, err
	}
	next, other, err := r.mostAdvanced(ctx)
	if err != nil {
		return nil, err
	}
	r.db = next
	return other, errors.Join(next.promote(ctx), other.follow(ctx, next.URL("postgres")))
}

// replays returns an error unless a standby has replayed all WAL of the primary.
func (r *replicated) replays(ctx context.Context, standby *database) error {
	var position string
	var replayed bool
	err := r.db.read(ctx, "SELECT pg_current_wal_flush_lsn()::text", nil, &position)
	if err == nil {
		err = standby.read(ctx, "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", []any{position}, &replayed)
	}
	if err == nil && !replayed {
		err = errors.New("the standby has not replayed the WAL")
	}
	return err
}

// mostAdvanced returns the standby that received more WAL, and the other one.
func (r *replicated) mostAdvanced(ctx context.Context) (most, other *database, err error) {
	var received [2]int64
	for i, standby := range r.standbys {
		if err := standby.read(ctx, "SELECT (pg_last_wal_receive_lsn() - '0/0')::bigint", nil, &received[i]); err != nil {
			return nil, nil, err
		}
	}
	if received[0] > received[1] {
		return r.standbys[0], r.standbys[1], nil
	}
	return r.standbys[1], r.standbys[0], nil
}

// delay makes a standby apply commits this much later.
func (d *database) delay(ctx context.Context, delay string) error {
	return errors.Join(
		d.exec(ctx, "ALTER SYSTEM SET recovery_min_apply_delay = '"+delay+"'"),
		d.exec(ctx, "SELECT pg_reload_conf()"))
}

// formerTimeline makes pairs while one replica stays on the timeline of the former primary.
// It received more WAL than the promoted standby, so its position looks newer.
func (f *fixture) formerTimeline(ctx context.Context) error {
	const clients, before, after = 8, 200, 1000
	primary, err := f.startDatabase(ctx, filepath.Join(f.dir, "former"), nil)
	if err != nil {
		return err
	}
	r := &replicated{}
	for i, name := range []string{"ahead", "behind"} {
		if r.standbys[i], err = f.startStandby(ctx, primary, name, "async"); err != nil {
			return err
		}
	}
	if err := r.open(ctx, f, primary); err != nil {
		return err
	}
	served, err := r.share(ctx, func() error { return newPairs(r.instances, clients).run(ctx, before) })
	if err != nil {
		return err
	}
	if served == 0 {
		return errors.New("the replicas served nothing before the failover")
	}
	ahead, behind := r.standbys[0], r.standbys[1]
	if err := errors.Join(behind.follow(ctx, ""), r.advance(ctx, ahead), primary.signal(syscall.SIGKILL), behind.promote(ctx)); err != nil {
		return err
	}
	r.db = behind
	if _, err := r.awaitWorking(ctx, responseLimit); err != nil {
		return err
	}
	p := newPairs(r.instances, clients) // the failover lost what only the other standby has
	return errors.Join(p.run(ctx, after), p.within(responseLimit))
}

// advance writes 32 MB of WAL and waits until a standby has replayed it.
func (r *replicated) advance(ctx context.Context, standby *database) error {
	if err := r.db.exec(ctx, "SELECT pg_logical_emit_message(false, 'ahead', repeat('x', 1000000)) FROM generate_series(1, 32)"); err != nil {
		return err
	}
	_, err := eventually(ctx, responseLimit, func() error { return r.replays(ctx, standby) })
	return err
}
