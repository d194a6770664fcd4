package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"petstore/internal/localpg"
	"petstore/internal/sleep"
	"petstore/internal/tools/must"
	"petstore/internal/tools/run"
)

const (
	lastRelease  = ".ci/last-release"                    // the file that names its commit
	sampleFolder = "internal/tools/faulttest/migrations" // of migrations that are later than all others

	upgradedPets = 100_000
	servingRole  = "petstore_serving"
	ownerRole    = "petstore_owner" // which docs/deploying.md creates with it
)

// upgrade is row 49. Two instances of the last release serve a store of 100,000 pets and a
// sandbox. The schema gets the migrations of this program, and samples of the release after it.
// This program replaces the instances one by one, and then the last release again. Then the
// schema goes back to the last release, and forward again.
//
//   - no request fails
//   - the feeds have no gap, and copies made of their events equal the lists
//   - the webhook gets every event
//   - the doctor of the last release finds its schema and its privileges all the time
func upgrade(ctx context.Context, f *fixture) string {
	u := f.openReleased(ctx)
	u.start(ctx)
	u.phase(ctx, "with the last release", func() {})
	took := u.migrate(ctx)
	u.phase(ctx, "after migrate up", func() { u.diagnose(ctx) })
	u.phase(ctx, "with one instance of each", func() { u.replace(ctx, 0, f.program.binary) })
	u.phase(ctx, "with the new program", func() { u.replace(ctx, 1, f.program.binary) })
	u.phase(ctx, "with one instance of each, on the way back", func() { u.replace(ctx, 0, u.old.binary) })
	u.phase(ctx, "with the last release again", func() { u.replace(ctx, 1, u.old.binary) })
	u.revert(ctx)
	u.phase(ctx, "after migrate down", func() { u.diagnose(ctx) })
	u.migrate(ctx)
	u.phase(ctx, "after migrate up again", func() { u.diagnose(ctx) })
	events := u.finish(ctx)
	return fmt.Sprintf("%d migrations in %s, 4 replacements in %s: %s, slowest %s; %d events without a gap, the copies equal the stores; %d reached the webhook",
		u.migrations, round(took), round(u.replacing), u.load.summary(), round(u.load.slowest), events, len(u.webhook.requests))
}

// upgraded is a deployment that changes its release.
type upgraded struct {
	*deployment

	old        program // the last release
	version    string  // of its schema
	migrations int     // later ones
	replacing  time.Duration
	instances  [2]*service
	sandbox    string // the key of the sandbox
	webhook    *receiver
	load       *load
	feeds      []*followedFeed
	shoppers   []*shopper
	stop       func() // stops the checks of the balancer
}

// openReleased starts two instances of the last release on a database that it has migrated.
func (f *fixture) openReleased(ctx context.Context) *upgraded {
	u := &upgraded{old: f.released(ctx)}
	present := f.program
	f.program, f.grantee = u.old, servingRole
	defer func() { f.program = present }()
	db := f.startCluster(ctx, localpg.Options{Binaries: f.postgres, Dir: filepath.Join(f.dir, "pg"), Disposable: true, Settings: maps.Clone(durable)})
	must.OK(db.EnsureDatabase(ctx, databaseName))
	db.exec(ctx, "CREATE ROLE "+servingRole+" LOGIN")
	u.deployment = &deployment{fixture: f, db: db}
	f.runCommand(ctx, db, "migrate", "up")
	u.version = f.runCommand(ctx, db, "migrate", "version")
	key := f.newKey(ctx, db, accountName, "admin")
	db.exec(ctx, fmt.Sprintf(`
		INSERT INTO categories (account_id, id, name, name_key) SELECT id, 1, 'Hedgehogs', 'hedgehogs' FROM accounts WHERE name = '%s';
		INSERT INTO pets (account_id, category_id, name, name_key)
		SELECT account_id, id, 'Pet ' || n, 'pet ' || n FROM categories, generate_series(1, %d) AS n;
		INSERT INTO inventory (account_id, pet_id, quantity) SELECT account_id, id, %d FROM pets;
		ANALYZE`, accountName, upgradedPets, stockOfPet))
	for i := range u.instances {
		u.instances[i] = f.serve(ctx, db.urlOf(servingRole), allowLoopback, "PETSTORE_ACCOUNT_RATE_LIMIT=0")
		u.instances[i].client.key = key
	}
	u.api, u.client = u.instances[0], u.instances[0].client
	return u
}

// released builds the last release from the history of the repository, once for all rows.
func (f *fixture) released(ctx context.Context) program {
	old := program{binary: filepath.Join(f.suite.dir, "released")}
	if _, err := os.Stat(old.binary); err == nil {
		return old
	}
	commit := strings.TrimSpace(string(must.Get(os.ReadFile(lastRelease))))
	if must.Attempt(func() { run.Program(ctx, "git", "cat-file", "-e", commit+"^{commit}") }) != nil {
		must.OK(skipError(fmt.Sprintf("git does not find the commit %s of the last release (%s); run git fetch --unshallow in a clone", commit, lastRelease)))
	}
	source := filepath.Join(f.dir, "released")
	run.Checkout(ctx, commit, source)
	run.Program(ctx, "go", "-C", source, "build", "-trimpath", "-o", old.binary, "./cmd/petstore")
	must.OK(os.RemoveAll(source))
	return old
}

// start starts clients of the store and of a sandbox, a webhook and subscribers of both feeds.
func (u *upgraded) start(ctx context.Context) {
	const clients, during = 16, 5 * time.Millisecond
	u.webhook = u.receive(ctx, nil)
	u.sandbox = decode[struct{ APIKey struct{ Secret string } }](u.want(ctx, http.StatusCreated, "POST", "/sandboxes", "{}")).APIKey.Secret
	for number := range clients {
		key := u.key()
		if number%4 == 0 {
			key = u.sandbox
		}
		u.shoppers = append(u.shoppers, &shopper{key: key, pets: u.stock(ctx, key), plenty: true})
	}
	for _, key := range []string{u.key(), u.sandbox} {
		u.feeds = append(u.feeds, u.withKey(key).follow(ctx, u.instances[0].withKey(key), u.instances[1].withKey(key)))
	}
	balancer, stop := newBalancer(ctx, u.instances)
	u.stop = stop
	u.load = startShoppers(ctx, u.shoppers, func(number int, do func(*client) (response, error)) (response, error) {
		sleep.For(ctx, during)
		return balancer.send(number%2 == 0, do)
	})
}

// key is the API key of the store.
func (u *upgraded) key() string { return u.instances[0].client.key }

// stock returns pets of a store, after it has put units of them in stock.
func (u *upgraded) stock(ctx context.Context, key string) (ids []int64) {
	c := u.withKey(key)
	for _, pet := range decode[[]listedPet](c.want(ctx, http.StatusOK, "GET", "/pets?status=available&limit=5", "")) {
		c.setStock(ctx, int(pet.ID), stockOfPet)
		ids = append(ids, pet.ID)
	}
	return ids
}

// phase does something under load, waits a moment, and fails the row if a request has failed.
func (u *upgraded) phase(ctx context.Context, name string, do func()) {
	const during = time.Second
	must.Explain(name, func() {
		do()
		sleep.For(ctx, during)
		u.load.wantOnly(http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent)
	})
}

// replace shuts an instance down, and starts another program in its place.
func (u *upgraded) replace(ctx context.Context, number int, binary string) {
	began, instance := time.Now(), u.instances[number]
	code := instance.process.Terminate(ctx)
	must.Hold(code == 0, "SIGTERM: exit code %d", code)
	instance.binary = binary
	instance.restart(ctx)
	u.replacing += time.Since(began)
}

// migrate applies the migrations of this program and the samples. It returns how long that
// took.
func (u *upgraded) migrate(ctx context.Context) time.Duration {
	began := time.Now()
	must.Explain("migrate up", func() {
		u.migrations = strings.Count(u.runCommand(ctx, u.db, "migrate", "up"), "applied ")
		u.withSamples(func(samples *goose.Provider) { u.migrations += len(must.Get(samples.Up(ctx))) })
	})
	return time.Since(began)
}

// revert reverts the migrations that the last release does not have.
func (u *upgraded) revert(ctx context.Context) {
	must.Explain("migrate down", func() {
		u.withSamples(func(samples *goose.Provider) {
			for _, one := range slices.Backward(samples.ListSources()) {
				must.Get(samples.ApplyVersion(ctx, one.Version, false))
			}
		})
		for u.runCommand(ctx, u.db, "migrate", "version") != u.version {
			u.runCommand(ctx, u.db, "migrate", "down", "--yes")
		}
	})
}

// withSamples calls a function with the sample migrations of the release after this program,
// which may have a planted fault.
func (u *upgraded) withSamples(do func(*goose.Provider)) {
	dir := filepath.Join(u.dir, "samples")
	must.OK(os.MkdirAll(dir, 0o700))
	for _, file := range must.Get(filepath.Glob(sampleFolder + "/*.sql")) {
		text := u.program.text
		if u.program.source != must.Get(filepath.Abs(file)) {
			text = string(must.Get(os.ReadFile(file)))
		}
		must.OK(os.WriteFile(filepath.Join(dir, filepath.Base(file)), []byte(text), 0o600))
	}
	db := must.Get(sql.Open("pgx", u.db.url()))
	defer db.Close()
	do(must.Get(goose.NewProvider(goose.DialectPostgres, db, os.DirFS(dir))))
}

// diagnose fails the row unless the schema and the role fit the last release.
func (u *upgraded) diagnose(ctx context.Context) {
	cmd := exec.CommandContext(ctx, u.old.binary, "doctor", "--json")
	cmd.Env = environment(u.db.urlOf(servingRole), "127.0.0.1:0", "127.0.0.1:0")
	output, err := cmd.Output()
	if _, failed := errors.AsType[*exec.ExitError](err); !failed { // other checks may fail
		must.OK(err)
	}
	var checks []struct {
		Check, Message string
		OK             bool
	}
	must.OK(json.Unmarshal(output, &checks))
	found := 0
	for _, one := range checks {
		if one.Check == "schema" || one.Check == "role" {
			found++
			must.Hold(one.OK, "the doctor of the last release says: %s: %s", one.Check, one.Message)
		}
	}
	must.Hold(found == 2, "the doctor of the last release does not check schema and role: %s", output)
}

// finish ends the load, and fails the row unless the feeds and the webhook have everything. It
// returns the number of events.
func (u *upgraded) finish(ctx context.Context) (events int) {
	u.load.finish()
	u.stop()
	u.awaitDelivered(ctx, 30*time.Second)
	for i, key := range []string{u.key(), u.sandbox} {
		acknowledged := ordersOf(u.shoppers, key)
		must.Hold(len(acknowledged) > 0, "no orders in store %d", i)
		events += u.feeds[i].check(ctx, acknowledged)
	}
	u.checkDeliveries(ctx, badReceivers{all: []*receiver{u.webhook}})
	return events
}
