package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"petstore/internal/localpg"
	"petstore/internal/tools/must"
)

// majorUpgrade is row 55: the database moves to a newer major version of PostgreSQL, by logical
// replication while clients write, and by a dump while nobody does. No acknowledged write is lost. The feeds make
// the lists, and no id comes again. A token of the former server is refused. The owner of the tables
// must own the new database, so that it can create partitions of events. The record of a sandbox moves up to
// its last request, though its commits do not wait for the disk.
func majorUpgrade(ctx context.Context, f *fixture) string {
	const writers, pause = 16, 2 * time.Second
	f.needClients()
	if os.Getenv("PETSTORE_PG_NEW") == "" {
		must.OK(skipError("it needs PETSTORE_PG_NEW, as make rehearse-upgrade sets it"))
	}
	m := &majors{fixture: f, newer: must.Get(localpg.Find(ctx, os.Getenv("PETSTORE_PG_NEW"), nil))}
	old := m.startOld(ctx)
	s := m.serveFrom(ctx, old)
	sandbox := s.withKey(s.create(ctx, "/sandboxes", `{"sample": "empty"}`))
	sandbox.want(ctx, http.StatusOK, "GET", "/pets", "") // so that the last use of its key is on the disk
	for store := range s.keys {
		m.before = append(m.before, s.api.store(store).readStore(ctx))
	}
	load := startLoad(ctx, writers+smallStores, func(number int) (response, error) {
		return s.api.store(max(0, 1+number-writers)).order(ctx, 1+number%pets)
	})
	sleep(ctx, pause)
	replicated := m.start(ctx, "replicated")
	replicated.exec(ctx, "ALTER DATABASE "+databaseName+" OWNER TO postgres")
	refused := must.Attempt(func() { f.script(ctx, "deploy/backup/replicate.sh", old, nil, "NEW_URL="+replicated.url()) })
	remedy := "ALTER DATABASE " + databaseName + " OWNER TO " + ownerRole
	must.Hold(refused != nil && strings.Contains(refused.Error(), remedy), "replicate.sh into a database of another owner: %v", refused)
	replicated.exec(ctx, remedy)
	f.script(ctx, "deploy/backup/replicate.sh", old, nil, "NEW_URL="+replicated.url())
	sleep(ctx, pause)
	made := must.Get(s.order(ctx, 1)).check(http.StatusCreated)
	m.token = made.header.Get("Petstore-Consistency")

	stopped := time.Now()
	m.acknowledged = load.finish()
	m.acknowledged.wantOnly(http.StatusCreated)
	sandbox.want(ctx, http.StatusOK, "GET", "/pets", "")
	must.Hold(s.api.process.Terminate(ctx) == 0, "the service failed")
	f.script(ctx, "deploy/backup/cutover.sh", old, nil, "NEW_URL="+replicated.url(), "PETSTORE_SERVING_ROLE="+servingRole)
	const recorded = "SELECT max(last_number) FROM exchange_logs"
	was, is := old.count(ctx, recorded), replicated.count(ctx, recorded)
	must.Hold(was > 0 && is == was, "the new server has %d of %d requests of the sandbox", is, was)
	byReplication := m.check(ctx, replicated, stopped)

	stopped = time.Now()
	dump, dumped := filepath.Join(f.dir, "petstore.dump"), m.start(ctx, "dumped")
	f.script(ctx, "deploy/backup/dump.sh", old, []string{dump})
	f.restoreDump(ctx, dumped, dump, "--nothing-lost")
	byDump := m.check(ctx, dumped, stopped)
	return fmt.Sprintf("%d to %s: 0 of %d acknowledged orders lost; writes stopped for %s by replication, %s by dump",
		f.postgres.Major, m.newer.Version, len(m.acknowledged.placed), round(byReplication), round(byDump))
}

// majors is a move to a newer version.
type majors struct {
	*fixture

	newer        localpg.Binaries
	before       []storeCopy
	token        string // of the former server
	acknowledged *ledger
}

// startOld starts the former server with the contents of the template, which its owner restores.
func (m *majors) startOld(ctx context.Context) *database {
	template, dump := m.startDatabase(ctx, filepath.Join(m.dir, "template"), nil), filepath.Join(m.dir, "template.dump")
	m.script(ctx, "deploy/backup/dump.sh", template, []string{dump})
	settings := maps.Clone(durable)
	settings["wal_level"] = "logical"
	settings["wal_writer_delay"] = "10s" // until then, a commit that does not wait is only in memory
	old := m.startEmpty(ctx, localpg.Options{Binaries: m.postgres, Dir: filepath.Join(m.dir, "old"), Disposable: true, Settings: settings})
	m.restoreDump(ctx, old, dump, "--nothing-lost")
	return old
}

// start starts an empty server of the newer version.
func (m *majors) start(ctx context.Context, name string) *database {
	return m.startEmpty(ctx, localpg.Options{Binaries: m.newer, Dir: filepath.Join(m.dir, name), Disposable: true, Settings: durable})
}

// serveFrom starts the service in the serving role, with the database as its own replica.
func (m *majors) serveFrom(ctx context.Context, db *database) *deployment {
	db.exec(ctx, "GRANT pg_read_all_stats TO "+servingRole)
	return m.openWith(ctx, db, db.urlOf(servingRole), "PETSTORE_REPLICA_URLS="+db.urlOf(servingRole))
}

// check starts the service on the newer server. It returns the time from the last write on the
// former server to the first on this one. It fails the row unless the server has everything.
func (m *majors) check(ctx context.Context, db *database, stopped time.Time) (away time.Duration) {
	s := m.serveFrom(ctx, db)
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
	db.exec(ctx, `DO $$ BEGIN EXECUTE (SELECT format('DROP TABLE %s', partition_name) FROM event_partitions() ORDER BY lower(bounds) DESC LIMIT 1); END $$`)
	must.Hold(db.count(ctx, "SELECT maintain_events()") == 1, "maintain_events has not created the newest partition again")
	return away
}
