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
	"syscall"
	"time"
)

// Row 22. With two hosts in DATABASE_URL the service finds the new primary by
// itself: orders succeed again within two seconds, and with synchronous
// replication none that was acknowledged is lost.
func failover(ctx context.Context, b *bench) (string, error) {
	const limit = 2 * time.Second
	primary, err := b.startDatabase(ctx, "", map[string]string{"synchronous_standby_names": "*", "wal_retrieve_retry_interval": "200ms"})
	if err != nil {
		return "", err
	}
	standby, err := b.startStandby(ctx, primary)
	if err != nil {
		return "", err
	}
	api, err := b.serve(ctx, bothURL(primary, standby))
	if err != nil {
		return "", err
	}
	s := &shop{bench: b, db: primary, api: api, client: &client{base: api.url(), key: b.key}}
	w := s.startWriters(ctx, 16)
	wait(ctx, 1500*time.Millisecond)

	// The primary goes down when its standby is behind: what it acknowledged in this
	// time would be lost.
	if err := standby.exec(ctx, "ALTER SYSTEM SET primary_conninfo = ''"); err != nil {
		return "", err
	}
	if err := standby.exec(ctx, "SELECT pg_reload_conf()"); err != nil {
		return "", err
	}
	wait(ctx, 200*time.Millisecond)
	killed := time.Now()
	if err := primary.signal(syscall.SIGKILL); err != nil {
		return "", err
	}
	var promoted bool
	if err := standby.read(ctx, "SELECT pg_promote()", nil, &promoted); err != nil || !promoted {
		return "", fmt.Errorf("promoting the standby: %t, %w", promoted, err)
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

// startStandby copies a primary and starts a server that follows it.
func (b *bench) startStandby(ctx context.Context, primary *database) (*database, error) {
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
		var synchronous int
		err := primary.read(ctx, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'", nil, &synchronous)
		if err == nil && synchronous == 0 {
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
