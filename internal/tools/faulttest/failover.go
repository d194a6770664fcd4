package main

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"petstore/internal/pgtest/standby"
	"petstore/internal/tools/must"
)

// failover is row 22, and with SIGSTOP row 56: the primary is killed or frozen during writes, and its
// standby is promoted. With two hosts in DATABASE_URL the service finds the new primary, even if the
// kernel of the old one still acknowledges what it sends. Orders succeed again within a limit, all events
// are delivered within 40 seconds, and with synchronous replication no acknowledged order is lost.
func failover(signal syscall.Signal, limit time.Duration) func(context.Context, *fixture) string {
	return func(ctx context.Context, f *fixture) string {
		const delivered, receivers = 40 * time.Second, 6 // more than the worker has transactions
		s, standby := f.openPair(ctx, allowLoopback)
		for range receivers {
			s.receive(ctx, nil)
		}
		w := s.startWriters(ctx, 16)
		sleep(ctx, 1500*time.Millisecond)

		// Stop the primary while its standby is behind: an order acknowledged in this time
		// would be lost.
		standby.follow(ctx, "")
		sleep(ctx, 200*time.Millisecond)
		stopped, primary := time.Now(), s.db
		primary.signal(signal)
		defer func() { _ = must.Attempt(func() { primary.signal(syscall.SIGKILL) }) }() // it may have ended
		standby.promote(ctx)
		promotion := time.Since(stopped)
		s.db = standby
		s.awaitWorking(ctx, limit-promotion)
		back := time.Since(stopped)
		sleep(ctx, time.Second)
		l := w.finish()
		must.Hold(!s.api.process.HasEnded(), "the service has ended")
		s.awaitDelivered(ctx, delivered-time.Since(stopped))
		all := time.Since(stopped)
		s.checkWriters(ctx, l)
		return fmt.Sprintf("%s, slowest %s, 0 of %d lost; orders again after %s (promotion %s), all events delivered after %s",
			l.summary(), round(l.slowest), len(l.placed), round(back), round(promotion), round(all))
	}
}

// followSoon makes a server notice soon that it can follow another one.
var followSoon = map[string]string{"wal_retrieve_retry_interval": "200ms"}

// openPair starts a deployment on two servers: a primary and its synchronous standby.
func (f *fixture) openPair(ctx context.Context, extra ...string) (s *deployment, standby *database) {
	settings := maps.Clone(followSoon)
	settings["synchronous_standby_names"] = "*"
	primary := f.startDatabase(ctx, "", settings)
	standby = f.startStandby(ctx, primary, "standby", "sync")
	return f.openWith(ctx, primary, anyURL(primary, standby), extra...), standby
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
	maps.Copy(options.Settings, followSoon)
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
