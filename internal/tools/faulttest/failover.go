package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Row 22. With two hosts in DATABASE_URL the service finds the new primary by
// itself: orders succeed again within two seconds, and with synchronous
// replication none that was acknowledged is lost.
func failover(ctx context.Context, b *bench) (string, error) {
	const limit = 2 * time.Second
	s, standby, err := b.openPair(ctx)
	if err != nil {
		return "", err
	}
	primary := s.db
	w := s.startWriters(ctx, 16)
	wait(ctx, 1500*time.Millisecond)

	// The primary goes down when its standby is behind: what it acknowledged in this
	// time would be lost.
	if err := standby.follow(ctx, ""); err != nil {
		return "", err
	}
	wait(ctx, 200*time.Millisecond)
	killed := time.Now()
	if err := primary.signal(syscall.SIGKILL); err != nil {
		return "", err
	}
	if err := standby.promote(ctx); err != nil {
		return "", err
	}
	promotion := time.Since(killed)
	if _, err := s.working(ctx, limit-time.Since(killed)); err != nil {
		return "", err
	}
	back := time.Since(killed)
	wait(ctx, time.Second)
	s.db = standby
	l := w.finish()
	if pid := s.api.cmd.Process.Pid; s.api.cmd.ProcessState != nil {
		return "", fmt.Errorf("the service (pid %d) has ended", pid)
	}
	return fmt.Sprintf("%s, slowest %s, 0 of %d lost; orders again %s after the kill (promotion %s)",
			l.count(), round(l.slowest), len(l.placed), round(back), round(promotion)),
		errors.Join(l.only(http.StatusCreated, http.StatusServiceUnavailable), l.within(answerLimit), s.audit(ctx, l))
}

// Row 25. An order is acknowledged when the synchronous standby has it, also by the
// replay of a retry: while the standby is away, clients that retry under their keys
// get no acknowledgement, and none that they get is lost by a failover.
func standbyAway(ctx context.Context, b *bench) (string, error) {
	const clients, away = 4, 7500 * time.Millisecond // longer than the deadline of a request
	s, standby, err := b.openPair(ctx)
	if err != nil {
		return "", err
	}
	primary := s.db
	var leader string
	if err := standby.read(ctx, "SHOW primary_conninfo", nil, &leader); err != nil {
		return "", err
	}
	var confirmed ledger
	attempts, replayed := 0, 0
	attempt := func(name string, meanwhile func() error) error {
		if err := s.cutStandby(ctx, standby); err != nil {
			return err
		}
		results := make([]orderResult, clients)
		var group sync.WaitGroup
		for i := range results {
			group.Go(func() { results[i] = s.orderUntilPlaced(ctx, 1+i, fmt.Sprint(name, i)) })
		}
		wait(ctx, away)
		err := meanwhile()
		group.Wait()
		for _, result := range results {
			err = errors.Join(err, result.err)
			confirmed.placed = append(confirmed.placed, result.id)
			attempts += result.attempts
			if result.replayed {
				replayed++
			}
		}
		return err
	}
	// At first the standby comes back, and then it takes over.
	if err := attempt("returns-", func() error { return standby.follow(ctx, leader) }); err != nil {
		return "", err
	}
	if replayed == 0 {
		return "", errors.New("no order was replayed, so nothing is shown")
	}
	if err := attempt("promoted-", func() error {
		return errors.Join(primary.signal(syscall.SIGKILL), standby.promote(ctx))
	}); err != nil {
		return "", err
	}
	s.db = standby
	var placed int
	if err := standby.read(ctx, "SELECT count(*) FROM orders", nil, &placed); err != nil {
		return "", err
	}
	if err := s.audit(ctx, &confirmed); err != nil {
		return "", err
	}
	if placed != len(confirmed.placed) {
		return "", fmt.Errorf("%d orders placed under %d keys", placed, len(confirmed.placed))
	}
	return fmt.Sprintf("%d orders acknowledged (%d requests, %d replayed), 0 lost, each placed once", placed, attempts, replayed), nil
}

// Row 32. When the connection that listens for revoked keys ends up on another
// server than those of the pool, as after a split, a revoked key stops all the same.
func listenElsewhere(ctx context.Context, b *bench) (string, error) {
	primary, err := b.startDatabase(ctx, "", map[string]string{"wal_retrieve_retry_interval": "200ms"})
	if err != nil {
		return "", err
	}
	standby, err := b.startStandby(ctx, primary, "async")
	if err != nil {
		return "", err
	}
	api, err := b.serve(ctx, bothURL(primary, standby))
	if err != nil {
		return "", err
	}
	s := &shop{bench: b, db: primary, api: api, client: &client{base: api.url(), key: b.key}}
	other, err := s.another(ctx)
	if err != nil {
		return "", err
	}
	worked, err := s.revoke(ctx, other, func() error {
		// Both servers take writes now. The first takes no new connections, so a
		// listener that is cut off comes to the second.
		if err := errors.Join(standby.promote(ctx),
			primary.execIn(ctx, "postgres", "ALTER DATABASE petstore ALLOW_CONNECTIONS false"),
			primary.execIn(ctx, "postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'petstore listen'")); err != nil {
			return err
		}
		wait(ctx, 1500*time.Millisecond)
		return nil
	})
	if err != nil {
		return "", err
	}
	// When the first takes connections again, the listener comes back to it.
	if err := primary.execIn(ctx, "postgres", "ALTER DATABASE petstore ALLOW_CONNECTIONS true"); err != nil {
		return "", err
	}
	back, err := eventually(ctx, 5*time.Second, func() error {
		var listening int
		err := primary.read(ctx, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'petstore listen'", nil, &listening)
		if err == nil && listening < 2 {
			err = fmt.Errorf("%d of 2 services listen to the server of their pool", listening)
		}
		return err
	})
	return fmt.Sprintf("401 after %s; listening to the pool's server again after %s", round(worked), round(back)), err
}

// openPair starts a shop on two servers: a primary, and a synchronous standby that
// follows it.
func (b *bench) openPair(ctx context.Context) (s *shop, standby *database, err error) {
	primary, err := b.startDatabase(ctx, "", map[string]string{"synchronous_standby_names": "*", "wal_retrieve_retry_interval": "200ms"})
	if err != nil {
		return nil, nil, err
	}
	if standby, err = b.startStandby(ctx, primary, "sync"); err != nil {
		return nil, nil, err
	}
	api, err := b.serve(ctx, bothURL(primary, standby))
	if err != nil {
		return nil, nil, err
	}
	return &shop{bench: b, db: primary, api: api, client: &client{base: api.url(), key: b.key}}, standby, nil
}

// follow has a standby follow another primary; none when it is empty.
func (d *database) follow(ctx context.Context, primary string) error {
	return errors.Join(
		d.exec(ctx, "ALTER SYSTEM SET primary_conninfo = '"+strings.ReplaceAll(primary, "'", "''")+"'"),
		d.exec(ctx, "SELECT pg_reload_conf()"))
}

// cutStandby takes the standby away and returns when the primary knows.
func (s *shop) cutStandby(ctx context.Context, standby *database) error {
	if err := standby.follow(ctx, ""); err != nil {
		return err
	}
	_, err := eventually(ctx, 5*time.Second, func() error {
		var followers int
		err := s.db.read(ctx, "SELECT count(*) FROM pg_stat_replication", nil, &followers)
		if err == nil && followers > 0 {
			err = errors.New("the standby still follows")
		}
		return err
	})
	return err
}

// promote makes a standby a primary.
func (d *database) promote(ctx context.Context) error {
	var promoted bool
	if err := d.read(ctx, "SELECT pg_promote()", nil, &promoted); err != nil || !promoted {
		return fmt.Errorf("promoting the standby: %t, %w", promoted, err)
	}
	return nil
}

// startStandby copies a primary and starts a server that follows it, which is
// "sync" or "async".
func (b *bench) startStandby(ctx context.Context, primary *database, state string) (*database, error) {
	dir := filepath.Join(b.dir, "standby")
	if err := os.Mkdir(dir, 0o711); err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	// While nobody follows, no commit is acknowledged; a base backup makes none.
	if err := command(ctx, filepath.Join(b.postgres.Dir, "pg_basebackup"), "--pgdata="+data, "--dbname="+primary.URL("postgres"),
		"--write-recovery-conf", "--checkpoint=fast", "--no-sync"); err != nil {
		return nil, err
	}
	// The copy belongs to us; the server must be who it was.
	if err := command(ctx, "chown", "--recursive", "--reference="+filepath.Join(primary.options.Dir, "data"), data); err != nil {
		return nil, err
	}
	options := primary.options
	options.Dir = dir
	// Not to wait for standbys: once it is the primary, it has none.
	options.Settings = maps.Clone(durable)
	options.Settings["wal_retrieve_retry_interval"] = "200ms"
	standby := &database{options: options}
	if err := standby.start(ctx); err != nil {
		return nil, err
	}
	b.atEnd(func() { _ = standby.Stop(context.WithoutCancel(ctx)) }) // it dies with us anyway
	_, err := eventually(ctx, 10*time.Second, func() error {
		var following int
		err := primary.read(ctx, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = $1 AND state = 'streaming'", []any{state}, &following)
		if err == nil && following == 0 {
			err = errors.New("the standby does not follow yet")
		}
		return err
	})
	return standby, err
}

// bothURL names two servers, of which the one that takes writes is meant.
func bothURL(primary, standby *database) string {
	first, err := url.Parse(primary.url())
	if err != nil {
		panic(err) // localpg made it
	}
	second, err := url.Parse(standby.url())
	if err != nil {
		panic(err)
	}
	query := first.Query()
	query.Set("host", query.Get("host")+","+second.Query().Get("host"))
	query.Set("port", query.Get("port")+","+second.Query().Get("port"))
	query.Set("target_session_attrs", "read-write")
	first.RawQuery = query.Encode()
	return first.String()
}
