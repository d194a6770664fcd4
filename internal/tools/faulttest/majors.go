package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"petstore/internal/localpg"
	"petstore/internal/tools/must"
)

// majorUpgrade is row 55: the database moves to a newer major version of PostgreSQL, by logical
// replication while clients write, and by a dump while nobody does. No acknowledged write is lost. The feeds make
// the lists, and no id comes again. A token of the former server is refused.
func majorUpgrade(ctx context.Context, f *fixture) string {
	const writers, pause = 16, 2 * time.Second
	f.needClients()
	if os.Getenv("PETSTORE_PG_NEW") == "" {
		must.OK(skipError("it needs PETSTORE_PG_NEW, as make rehearse-upgrade sets it"))
	}
	newer := must.Get(localpg.Find(ctx, os.Getenv("PETSTORE_PG_NEW"), nil))
	old := f.startDatabase(ctx, "", map[string]string{"wal_level": "logical"})
	s := f.openWith(ctx, old, old.url(), "PETSTORE_REPLICA_URLS="+old.url())
	m := &majors{fixture: f, newer: newer}
	for store := range s.keys {
		m.before = append(m.before, s.api.store(store).readStore(ctx))
	}
	load := startLoad(ctx, writers+smallStores, func(number int) (response, error) {
		return s.api.store(max(0, 1+number-writers)).order(ctx, 1+number%pets)
	})
	sleep(ctx, pause)
	replicated := m.start(ctx, "replicated")
	f.script(ctx, "deploy/backup/replicate.sh", old, nil, "NEW_URL="+replicated.url())
	sleep(ctx, pause)
	made := must.Get(s.order(ctx, 1)).check(http.StatusCreated)
	m.token = made.header.Get("Petstore-Consistency")

	stopped := time.Now()
	m.acknowledged = load.finish()
	m.acknowledged.wantOnly(http.StatusCreated)
	must.Hold(s.api.terminate(ctx) == 0, "the service failed")
	f.script(ctx, "deploy/backup/cutover.sh", old, nil, "NEW_URL="+replicated.url())
	byReplication := m.check(ctx, replicated, stopped)

	stopped = time.Now()
	dump, dumped := filepath.Join(f.dir, "petstore.dump"), m.start(ctx, "dumped")
	f.script(ctx, "deploy/backup/dump.sh", old, []string{dump})
	f.script(ctx, "deploy/backup/restore.sh", dumped, []string{dump, "--nothing-lost"})
	byDump := m.check(ctx, dumped, stopped)
	return fmt.Sprintf("%d to %s: 0 of %d acknowledged orders lost; writes stopped for %s by replication, %s by dump",
		f.postgres.Major, newer.Version, len(m.acknowledged.placed), round(byReplication), round(byDump))
}

// majors is a move to a newer version.
type majors struct {
	*fixture

	newer        localpg.Binaries
	before       []storeCopy
	token        string // of the former server
	acknowledged *ledger
}

// start starts an empty server of the newer version.
func (m *majors) start(ctx context.Context, name string) *database {
	db := m.startCluster(ctx, localpg.Options{Binaries: m.newer, Dir: filepath.Join(m.dir, name), Disposable: true, Settings: durable})
	must.OK(db.EnsureDatabase(ctx, databaseName))
	return db
}

// check starts the service on the newer server. It returns the time from the last write on the
// former server to the first on this one. It fails the row unless the server has everything.
func (m *majors) check(ctx context.Context, db *database, stopped time.Time) (away time.Duration) {
	s := m.openWith(ctx, db, db.url(), "PETSTORE_REPLICA_URLS="+db.url())
	defer s.api.kill()
	placed := decode[order](must.Get(s.order(ctx, 1)).check(http.StatusCreated))
	away = time.Since(stopped)
	for _, id := range m.acknowledged.placed {
		must.Hold(id < placed.ID, "order %d came after %d", placed.ID, id)
	}
	s.audit(ctx, m.acknowledged)
	for store := range s.keys {
		c := s.api.store(store)
		feed := c.readFeed(ctx)
		c.compareStore(ctx, m.before[store], nil, []*subscriber{{events: feed}})
		must.Hold(feed[len(feed)-1].Sequence == int64(len(feed)), "the feed of store %d has gaps", store)
	}
	refused := must.Get(s.do(ctx, "GET", "/pets", "", "Prefer", "consistency="+m.token)).check(http.StatusBadRequest)
	must.Hold(refused.code() == "invalid_consistency", "a token of the former server: %s", refused)
	return away
}
