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

// failover is row 22: with two hosts in DATABASE_URL the service finds the new primary.
// Orders succeed again within two seconds. With synchronous replication no acknowledged
// order is lost.
func failover(ctx context.Context, f *fixture) (string, error) {
	const limit = 2 * time.Second
	s, standby, err := f.openPair(ctx)
	if err != nil {
		return "", err
	}
	primary := s.db
	w := s.startWriters(ctx, 16)
	sleep(ctx, 1500*time.Millisecond)

	// Kill the primary while its standby is behind: an order acknowledged in this time
	// would be lost.
	if err := standby.follow(ctx, ""); err != nil {
		return "", err
	}
	sleep(ctx, 200*time.Millisecond)
	killed := time.Now()
	if err := primary.signal(syscall.SIGKILL); err != nil {
		return "", err
	}
	if err := standby.promote(ctx); err != nil {
		return "", err
	}
	promotion := time.Since(killed)
	if _, err := s.awaitWorking(ctx, limit-time.Since(killed)); err != nil {
		return "", err
	}
	back := time.Since(killed)
	sleep(ctx, time.Second)
	s.db = standby
	l := w.finish()
	if pid := s.api.cmd.Process.Pid; s.api.cmd.ProcessState != nil {
		return "", fmt.Errorf("the service (pid %d) has ended", pid)
	}
	return fmt.Sprintf("%s, slowest %s, 0 of %d lost; orders again %s after the kill (promotion %s)",
			l.summary(), round(l.slowest), len(l.placed), round(back), round(promotion)),
		errors.Join(l.only(http.StatusCreated, http.StatusServiceUnavailable), l.within(responseLimit), s.audit(ctx, l))
}

// standbyAway is row 25: the server acknowledges an order or a message only when the
// synchronous standby has it, even in the replay of a retry. While the standby is away,
// clients that retry with their keys get no acknowledgement. A failover loses nothing that
// was acknowledged. The replay of an order locks its pet, so its commit waits for the
// standby anyway. The replay of a message locks no row. The messages belong to another
// account, because the writes of an account may share a commit.
func standbyAway(ctx context.Context, f *fixture) (string, error) {
	const clients, away = 4, 7500 * time.Millisecond // longer than the deadline of a request
	s, standby, err := f.openPair(ctx)
	if err != nil {
		return "", err
	}
	primary := s.db
	var leader string
	if err := standby.read(ctx, "SHOW primary_conninfo", nil, &leader); err != nil {
		return "", err
	}
	key, err := f.runCommand(ctx, s.db.url(), "key", "create", "--account", "messages", "--scope", "write")
	if err != nil {
		return "", err
	}
	k := keyedWrites{orderer: s.client, sender: s.withKey(strings.TrimSpace(key))}
	attempt := func(name string, meanwhile func() error) error {
		if err := s.detachStandby(ctx, standby); err != nil {
			return err
		}
		ended := make(chan error, 1)
		go func() { ended <- k.send(ctx, name, clients) }()
		sleep(ctx, away)
		return errors.Join(meanwhile(), <-ended)
	}
	// The first time the standby returns, the second time it is promoted.
	if err := attempt("returns-", func() error { return standby.follow(ctx, leader) }); err != nil {
		return "", err
	}
	if k.replayed == 0 {
		return "", errors.New("nothing was replayed, so the row proves nothing")
	}
	if err := attempt("promoted-", func() error {
		return errors.Join(primary.signal(syscall.SIGKILL), standby.promote(ctx))
	}); err != nil {
		return "", err
	}
	s.db = standby
	return fmt.Sprintf("%d orders and %d messages acknowledged (%d requests, %d replayed), 0 lost, each there once",
		len(k.orders.placed), len(k.messages), k.attempts, k.replayed), s.auditKeyed(ctx, &k)
}

// keyedWrites are orders and messages that clients retried with their keys until the server
// acknowledged them.
type keyedWrites struct {
	orderer, sender *client

	mu                 sync.Mutex
	orders             ledger
	messages           []string // ids
	attempts, replayed int
}

// send sends an order and a message of each client, with keys that begin with name, and
// retries them until they are acknowledged.
func (k *keyedWrites) send(ctx context.Context, name string, clients int) error {
	failures := make([]error, 2*clients)
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() {
			result := k.orderer.orderUntilPlaced(ctx, 1+i, fmt.Sprint(name, "order-", i))
			failures[i] = result.err
			k.mu.Lock()
			defer k.mu.Unlock()
			k.orders.placed = append(k.orders.placed, result.id)
			k.count(result.attempts, result.replayed)
		})
		group.Go(func() {
			resp, attempts, err := k.sender.postUntilDone(ctx, "/messages", `{"message": "Hello"}`, fmt.Sprint(name, "message-", i))
			var sent struct{ ID string }
			failures[clients+i] = errors.Join(err, resp.decode(&sent))
			k.mu.Lock()
			defer k.mu.Unlock()
			k.messages = append(k.messages, sent.ID)
			k.count(attempts, resp.isReplay())
		})
	}
	group.Wait()
	return errors.Join(failures...)
}

// count counts the requests of a write. The caller holds the lock.
func (k *keyedWrites) count(attempts int, replayed bool) {
	k.attempts += attempts
	if replayed {
		k.replayed++
	}
}

// auditKeyed returns an error unless the database has exactly the acknowledged orders and
// messages.
func (s *deployment) auditKeyed(ctx context.Context, k *keyedWrites) error {
	if err := s.audit(ctx, &k.orders); err != nil {
		return err
	}
	var placed, sent, lost int
	if err := s.db.read(ctx, `
		SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM messages),
		       (SELECT count(*) FROM unnest($1::text[]) AS acknowledged WHERE acknowledged NOT IN (SELECT id FROM messages))`,
		[]any{k.messages}, &placed, &sent, &lost); err != nil {
		return err
	}
	if lost > 0 {
		return fmt.Errorf("%d of %d acknowledged messages are lost", lost, len(k.messages))
	}
	if placed != len(k.orders.placed) || sent != len(k.messages) {
		return fmt.Errorf("%d orders with %d keys, %d messages with %d keys", placed, len(k.orders.placed), sent, len(k.messages))
	}
	return nil
}

// listenElsewhere is row 32: a revoked key stops working even if the connection that
// listens for revocations is on another server than the pool, as after a split brain.
func listenElsewhere(ctx context.Context, f *fixture) (string, error) {
	primary, err := f.startDatabase(ctx, "", map[string]string{"wal_retrieve_retry_interval": "200ms"})
	if err != nil {
		return "", err
	}
	standby, err := f.startStandby(ctx, primary, "standby", "async")
	if err != nil {
		return "", err
	}
	s, err := f.openWith(ctx, primary, anyURL(primary, standby))
	if err != nil {
		return "", err
	}
	other, err := s.startSecond(ctx)
	if err != nil {
		return "", err
	}
	worked, err := s.revoke(ctx, other, func() error {
		// Both servers accept writes now. The first accepts no new connections, so the
		// listener reconnects to the second.
		if err := errors.Join(standby.promote(ctx),
			primary.execIn(ctx, "postgres", "ALTER DATABASE petstore ALLOW_CONNECTIONS false"),
			primary.execIn(ctx, "postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'petstore listen'")); err != nil {
			return err
		}
		sleep(ctx, 1500*time.Millisecond)
		return nil
	})
	if err != nil {
		return "", err
	}
	// When the first server accepts connections again, the listener returns to it.
	if err := primary.execIn(ctx, "postgres", "ALTER DATABASE petstore ALLOW_CONNECTIONS true"); err != nil {
		return "", err
	}
	back, err := eventually(ctx, 5*time.Second, func() error {
		var listening int
		err := primary.read(ctx, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'petstore listen'", nil, &listening)
		if err == nil && listening < 2 {
			err = fmt.Errorf("%d of 2 services listen on the server of their pool", listening)
		}
		return err
	})
	return fmt.Sprintf("401 after %s; LISTEN on the server of the pool again after %s", round(worked), round(back)), err
}

// openPair starts a deployment on two servers: a primary and its synchronous standby.
func (f *fixture) openPair(ctx context.Context) (s *deployment, standby *database, err error) {
	primary, err := f.startDatabase(ctx, "", map[string]string{"synchronous_standby_names": "*", "wal_retrieve_retry_interval": "200ms"})
	if err != nil {
		return nil, nil, err
	}
	if standby, err = f.startStandby(ctx, primary, "standby", "sync"); err != nil {
		return nil, nil, err
	}
	s, err = f.openWith(ctx, primary, anyURL(primary, standby))
	return s, standby, err
}

// follow makes a standby follow a primary, or none if primary is "".
func (d *database) follow(ctx context.Context, primary string) error {
	return errors.Join(
		d.exec(ctx, "ALTER SYSTEM SET primary_conninfo = '"+strings.ReplaceAll(primary, "'", "''")+"'"),
		d.exec(ctx, "SELECT pg_reload_conf()"))
}

// detachStandby stops replication to the standby and waits until the primary has noticed.
func (s *deployment) detachStandby(ctx context.Context, standby *database) error {
	if err := standby.follow(ctx, ""); err != nil {
		return err
	}
	_, err := eventually(ctx, 5*time.Second, func() error {
		var followers int
		err := s.db.read(ctx, "SELECT count(*) FROM pg_stat_replication", nil, &followers)
		if err == nil && followers > 0 {
			err = errors.New("the standby still receives WAL")
		}
		return err
	})
	return err
}

// promote makes a standby the primary. pg_promote does not wait, because replay would wait
// for the end of a statement that waits for the end of replay.
func (d *database) promote(ctx context.Context) error {
	if err := d.exec(ctx, "SELECT pg_promote(false)"); err != nil {
		return fmt.Errorf("promoting the standby: %w", err)
	}
	_, err := eventually(ctx, 10*time.Second, func() error {
		var standby bool
		err := d.read(ctx, "SELECT pg_is_in_recovery()", nil, &standby)
		if err == nil && standby {
			err = errors.New("the server is still a standby")
		}
		return err
	})
	return err
}

// startStandby copies a primary and starts a standby of it, in a folder of this name. Its
// sync_state is "sync", "quorum" or "async".
func (f *fixture) startStandby(ctx context.Context, primary *database, name, state string) (*database, error) {
	dir := filepath.Join(f.dir, name)
	if err := os.Mkdir(dir, 0o711); err != nil {
		return nil, err
	}
	options := primary.options
	options.Dir, options.StandbyOf = dir, primary.Cluster
	// Without synchronous_standby_names, because it has no standby after its promotion.
	options.Settings = maps.Clone(durable)
	options.Settings["wal_retrieve_retry_interval"], options.Settings["cluster_name"] = "200ms", name
	standby := &database{options: options}
	if err := standby.start(ctx); err != nil {
		return nil, err
	}
	f.cleanup(func() { _ = standby.Stop(context.WithoutCancel(ctx)) }) // it ends with this process anyway
	_, err := eventually(ctx, 10*time.Second, func() error {
		var following int
		err := primary.read(ctx, "SELECT count(*) FROM pg_stat_replication WHERE application_name = $1 AND sync_state = $2 AND state = 'streaming'", []any{name, state}, &following)
		if err == nil && following == 0 {
			err = errors.New("the standby does not stream yet")
		}
		return err
	})
	return standby, err
}

// anyURL returns a URL with several servers that connects to the one that accepts writes.
func anyURL(servers ...*database) string {
	var address *url.URL
	var hosts, ports []string
	for _, server := range servers {
		parsed, err := url.Parse(server.url())
		if err != nil {
			panic(err) // localpg returns valid URLs
		}
		address = parsed
		hosts, ports = append(hosts, parsed.Query().Get("host")), append(ports, parsed.Query().Get("port"))
	}
	query := address.Query()
	query.Set("host", strings.Join(hosts, ","))
	query.Set("port", strings.Join(ports, ","))
	query.Set("target_session_attrs", "read-write")
	address.RawQuery = query.Encode()
	return address.String()
}
