package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"petstore/internal/localpg"
	"petstore/internal/sleep"
	"petstore/internal/tools/must"
	"petstore/internal/tools/run"
)

// restoredBackups is row 50: a database is dumped and archived while clients change 26 stores.
// Then PostgreSQL is killed during writes, and its data are deleted. pgBackRest and the WAL of
// pg_receivewal restore every acknowledged order, or everything up to a time before the last
// writes. The dump restores one point too, with two roles: the feed of each store makes its lists.
// A large object of another role does not stop the owner's next dump.
func restoredBackups(ctx context.Context, f *fixture) string {
	const writers, pause, limit = 16, 1500 * time.Millisecond, 60 * time.Second
	b := f.openArchive(ctx)
	s := f.openWith(ctx, b.database, b.url())
	before := make([]storeCopy, len(s.keys))
	for store := range before {
		before[store] = s.api.store(store).readStore(ctx)
	}
	shoppers := s.newShoppers(spread(12, 2*smallStores))
	load := startShoppers(ctx, shoppers, func(_ int, do func(*client) (response, error)) (response, error) { return do(s.client) })
	sleep.For(ctx, pause)
	dump := filepath.Join(f.dir, "petstore.dump")
	f.script(ctx, "deploy/backup/dump.sh", b.database, []string{dump})
	sleep.For(ctx, pause)
	load.finish().wantOnly(http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent, http.StatusNotFound, http.StatusConflict)
	var point string
	b.read(ctx, "SELECT clock_timestamp()::text", nil, &point)

	lost := startLoad(ctx, writers, func(int) (response, error) { return s.order(ctx, unchangedPet) })
	sleep.For(ctx, pause)
	b.signal(syscall.SIGKILL)
	acknowledged := lost.finish()
	s.api.kill()
	began := time.Now()
	b.restore(ctx, "--type=default")
	s = f.openWith(ctx, b.database, b.url())
	must.Get(s.order(ctx, unchangedPet)).check(http.StatusCreated)
	took := time.Since(began)
	missing := s.db.count(ctx, "SELECT count(*) FROM unnest($1::bigint[]) AS acknowledged (id) WHERE NOT EXISTS (SELECT FROM orders WHERE orders.id = acknowledged.id)", acknowledged.placed)
	must.Hold(missing == 0, "%d of %d acknowledged orders are lost", missing, len(acknowledged.placed))
	must.Hold(took <= limit, "the restore took %s", took)
	s.api.kill()

	b.restore(ctx, "--type=time", "--target="+point, "--target-action=promote")
	f.runCommand(ctx, b.database, "after-restore")
	b.receive(ctx, "received-again") // writes wait until it runs
	events := f.checkRestored(ctx, restored{b.database, b.url()}, before, shoppers)

	other := f.startEmpty(ctx, localpg.Options{Binaries: f.postgres, Dir: filepath.Join(f.dir, "other"), Disposable: true})
	f.restoreDump(ctx, other, dump)
	other.exec(ctx, "SELECT lo_create(0)")
	f.script(ctx, "deploy/backup/dump.sh", other, []string{dump}, "OWNER_URL="+other.urlOf(ownerRole))
	dumped := f.checkRestored(ctx, restored{other, other.urlOf(servingRole)}, before, nil)
	return fmt.Sprintf("0 of %d acknowledged orders lost, restored in %s; %d and %d events make the lists",
		len(acknowledged.placed), round(took), events, dumped)
}

// unchangedPet is a pet that the shoppers do not change.
const unchangedPet = pets

// restored is a database that was restored, and the URL that the service uses.
type restored struct {
	*database

	serviceURL string
}

// checkRestored starts the service on a database that was restored to an earlier point. It fails the row
// unless the feeds make the lists, and the acknowledged orders are there. It returns the number of events.
func (f *fixture) checkRestored(ctx context.Context, db restored, before []storeCopy, shoppers []*shopper) (events int) {
	s := f.openWith(ctx, db.database, db.serviceURL)
	defer s.api.kill()
	for store := range s.keys {
		c := s.api.store(store)
		feed := c.readFeed(ctx)
		c.compareStore(ctx, before[store], ordersOf(shoppers, c.key), []*subscriber{{events: feed}})
		checkNumbers(feed)
		events += len(feed)
	}
	return events
}

// checkNumbers fails the row unless the numbers of the events have no gap but one, before the last
// event, which is store.reset.
func checkNumbers(feed []feedEvent) {
	last := len(feed) - 1
	reset := feed[last]
	must.Hold(reset.Type == "store.reset" && reset.Sequence > int64(len(feed)), "the last of %d events is %s with the number %d", len(feed), reset.Type, reset.Sequence)
	for i, e := range feed[:last] {
		must.Hold(e.Sequence == int64(i)+1, "event %s has the number %d, want %d", e.ID, e.Sequence, i+1)
	}
}

// readFeed reads the feed up to the event that is the newest at first. Other clients may still write, so the
// last page may have more.
func (c *client) readFeed(ctx context.Context) (events []feedEvent) {
	newest := c.newest(ctx).Sequence
	for target, reached := "/events?limit=200", int64(0); reached < newest; reached = events[len(events)-1].Sequence {
		resp := c.want(ctx, http.StatusOK, "GET", target, "")
		must.Hold(resp.next() != target, "the page %s leads to itself", target)
		events, target = append(events, decode[[]feedEvent](resp)...), resp.next()
		must.Hold(len(events) > 0, "the feed has no events, but the number %d", newest)
	}
	return events
}

// archive is a database that pgBackRest archives, and whose WAL pg_receivewal receives before a
// commit is acknowledged.
type archive struct {
	*database

	fixture  *fixture
	scripts  string // folder of the files of deploy/backup for pgBackRest, with the paths of the row
	user     *syscall.Credential
	receiver *run.Process // pg_receivewal
}

// openArchive starts the database and makes a full backup.
func (f *fixture) openArchive(ctx context.Context) *archive {
	b := &archive{fixture: f, scripts: filepath.Join(f.dir, "backup")}
	if _, err := exec.LookPath("pgbackrest"); err != nil {
		must.OK(skipError("it needs pgbackrest, Debian package pgbackrest"))
	}
	f.needClients()
	owner, ok := must.Get(os.Stat(filepath.Join(f.templateDir(), "pg", "data"))).Sys().(*syscall.Stat_t)
	must.Hold(ok, "the folder of the template has no owner")
	b.user = &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
	data := filepath.Join(f.dir, "pg", "data")
	for _, name := range []string{"backup", "backup/repository", "backup/log"} {
		b.mkdir(filepath.Join(f.dir, name))
	}
	config := filepath.Join(b.scripts, "pgbackrest.conf")
	places := strings.NewReplacer("/var/lib/pgbackrest", b.scripts+"/repository", "/var/lib/pgreceivewal", b.scripts+"/received",
		"/usr/local/bin", b.scripts, "/var/lib/postgresql/15/main", data, "pgbackrest --stanza", "pgbackrest --config="+config+" --stanza",
		"[global]", "[global]\nlog-path="+b.scripts+"/log\nlock-path="+b.scripts+"/log")
	for _, file := range must.Get(filepath.Glob("deploy/backup/*")) {
		text := must.Get(os.ReadFile(file))
		must.OK(os.WriteFile(filepath.Join(b.scripts, filepath.Base(file)), []byte(places.Replace(string(text))), 0o755)) //nolint:gosec // the server's user runs it
	}
	b.database = f.startDatabase(ctx, "", map[string]string{
		"archive_mode": "on", "archive_command": places.Replace("pgbackrest --stanza=petstore archive-push %p"),
		"data_directory": data, // as pgBackRest knows it
	})
	b.receive(ctx, "received")
	socket := "--pg1-socket-path=" + must.Get(url.Parse(b.url())).Query().Get("host")
	b.backrest(ctx, "stanza-create", socket, "--pg1-user=postgres")
	b.backrest(ctx, "backup", "--type=full", socket, "--pg1-user=postgres")
	return b
}

// receive starts pg_receivewal with a new folder, and makes commits wait for it. The first
// command creates the slot.
func (b *archive) receive(ctx context.Context, folder string) {
	folder = filepath.Join(b.scripts, folder)
	b.mkdir(folder)
	receive := []string{filepath.Join(b.fixture.postgres.Dir, "pg_receivewal"), "--directory=" + folder, "--slot=petstore", "--dbname=" + b.URL("")}
	run.Output(b.command(ctx, append(receive, "--create-slot", "--if-not-exists")...))
	b.receiver = run.Start(b.command(ctx, append(receive, "--synchronous")...), "")
	b.fixture.cleanup(b.receiver.Kill)
	b.configure(ctx, "synchronous_standby_names", "pg_receivewal")
}

// needClients skips the row without the programs of PostgreSQL that backups need.
func (f *fixture) needClients() {
	if _, err := os.Stat(filepath.Join(f.postgres.Dir, "pg_receivewal")); err != nil {
		must.OK(skipError("it needs pg_dump, pg_receivewal and psql beside postgres"))
	}
}

// mkdir makes a folder of the server's user.
func (b *archive) mkdir(dir string) {
	must.OK(os.MkdirAll(dir, 0o700))
	must.OK(os.Chown(dir, int(b.user.Uid), int(b.user.Gid)))
}

// command returns a command that runs as the server's user.
func (b *archive) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = "/"
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: b.user}
	}
	return cmd
}

// backrest runs a command of pgBackRest.
func (b *archive) backrest(ctx context.Context, args ...string) {
	all := append([]string{"pgbackrest", "--config=" + b.scripts + "/pgbackrest.conf", "--stanza=petstore"}, args...)
	run.Output(b.command(ctx, all...))
}

// restore deletes the data and restores the backup in their place. It then starts the server, which
// replays the WAL up to the target in args. Commits wait for nobody, as docs/backup.md says.
func (b *archive) restore(ctx context.Context, args ...string) {
	b.receiver.Kill()
	must.OK(b.Stop(ctx))
	data := filepath.Join(b.options.Dir, "data")
	must.OK(os.RemoveAll(data))
	b.mkdir(data)
	b.backrest(ctx, append([]string{"restore"}, args...)...)
	b.Cluster = must.Get(localpg.Start(ctx, b.options))
	must.Await(ctx, time.Minute, func() {
		must.Hold(b.count(ctx, "SELECT pg_is_in_recovery()::int") == 0, "the server still recovers")
	})
	b.configure(ctx, "synchronous_standby_names", "")
}

// startEmpty starts a cluster with the two roles, and with an empty database of the owner.
func (f *fixture) startEmpty(ctx context.Context, options localpg.Options) *database {
	db := f.startCluster(ctx, options)
	must.OK(db.EnsureDatabase(ctx, databaseName))
	db.exec(ctx, "CREATE ROLE "+ownerRole+" LOGIN; CREATE ROLE "+servingRole+" LOGIN; ALTER DATABASE "+databaseName+" OWNER TO "+ownerRole)
	return db
}

// restoreDump restores a dump into the database of [fixture.startEmpty], as its owner.
func (f *fixture) restoreDump(ctx context.Context, db *database, dump string, args ...string) {
	f.script(ctx, "deploy/backup/restore.sh", db, append([]string{dump}, args...), "OWNER_URL="+db.urlOf(ownerRole), "PETSTORE_SERVING_ROLE="+servingRole)
}

// script runs a script of deploy/backup with arguments and more variables. OWNER_URL names the
// superuser, unless extra has another URL.
func (f *fixture) script(ctx context.Context, script string, db *database, args []string, extra ...string) {
	programs := filepath.Join(f.dir, "bin")
	if err := os.Mkdir(programs, 0o755); !errors.Is(err, os.ErrExist) {
		must.OK(errors.Join(err, os.Symlink(f.program.binary, filepath.Join(programs, "petstore"))))
	}
	cmd := exec.CommandContext(ctx, script, args...)
	cmd.Env = append([]string{"OWNER_URL=" + db.url(), "PATH=" + programs + ":" + f.postgres.Dir + ":" + os.Getenv("PATH")}, extra...)
	run.Output(cmd)
}

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
	sleep.For(ctx, pause)
	replicated := m.start(ctx, "replicated")
	replicated.exec(ctx, "ALTER DATABASE "+databaseName+" OWNER TO postgres")
	refused := must.Attempt(func() { f.script(ctx, "deploy/backup/replicate.sh", old, nil, "NEW_URL="+replicated.url()) })
	remedy := "ALTER DATABASE " + databaseName + " OWNER TO " + ownerRole
	must.Hold(refused != nil && strings.Contains(refused.Error(), remedy), "replicate.sh into a database of another owner: %v", refused)
	replicated.exec(ctx, remedy)
	f.script(ctx, "deploy/backup/replicate.sh", old, nil, "NEW_URL="+replicated.url())
	sleep.For(ctx, pause)
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
