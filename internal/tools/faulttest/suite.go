package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"petstore/internal/localpg"
	"petstore/internal/tools/must"
	"petstore/internal/tools/run"
)

const (
	pets         = 64            // in stock of every deployment
	stockOfPet   = 1_000_000_000 // units, so that no row sells out a pet by accident
	databaseName = "petstore"
	poolSize     = 10 // connections of a service
)

// suite has everything that the rows share: the built program, the installed
// PostgreSQL, and a template cluster that each row copies.
type suite struct {
	stdout   io.Writer
	dir      string
	program  program
	postgres localpg.Binaries
	key      string   // the API key in every copy, of scope admin
	keys     []string // the keys of the stores: key, and one of each small store
}

// newSuite builds the program from the sources in the current folder and creates the
// template.
func newSuite(ctx context.Context, stdout io.Writer) *suite {
	dir := must.Get(os.MkdirTemp("", "petstore-faulttest-"))
	must.OK(os.Chmod(dir, 0o711)) // PostgreSQL runs as another user if this process is root
	s := &suite{stdout: stdout, dir: dir, program: program{binary: filepath.Join(dir, "petstore")}}
	s.postgres = must.Get(localpg.Find(ctx, os.Getenv("PETSTORE_PG_BIN"), nil))
	s.program.build(ctx)
	s.makeTemplate(ctx)
	return s
}

// close removes everything except the logs of failed rows.
func (s *suite) close() error {
	err := errors.Join(os.RemoveAll(s.templateDir()), os.RemoveAll(filepath.Join(s.dir, "fault")), os.RemoveAll(s.program.binary), os.RemoveAll(filepath.Join(s.dir, "released")))
	_ = os.Remove(s.dir) // not empty if a row failed
	return err
}

// program is a build of the sources in the current folder.
type program struct {
	binary       string
	source, text string // the absolute path of a file that differs, and its text; "" means none
}

// build compiles a program.
func (p program) build(ctx context.Context) {
	p.goCommand(ctx, "./cmd/petstore", "build", "-o", p.binary)
}

// goCommand runs a command of go on the package in a folder. It does not change the source files.
func (p program) goCommand(ctx context.Context, folder string, args ...string) {
	dir := must.Get(os.MkdirTemp(filepath.Dir(p.binary), "overlay-"))
	defer os.RemoveAll(dir)
	if p.source != "" {
		planted, overlay := filepath.Join(dir, "planted.go"), filepath.Join(dir, "overlay.json")
		must.OK(os.WriteFile(planted, []byte(p.text), 0o600))
		must.OK(os.WriteFile(overlay, must.Get(json.Marshal(map[string]any{"Replace": map[string]string{p.source: planted}})), 0o600))
		args = append(args, "-overlay", overlay)
	}
	run.Program(ctx, "go", append(args, folder)...)
}

// templateDir is the folder of the cluster that rows copy.
func (s *suite) templateDir() string { return filepath.Join(s.dir, "shop") }

// makeTemplate creates a migrated database of several accounts, each with an API key, a
// category and pets in stock.
func (s *suite) makeTemplate(ctx context.Context) {
	f := &fixture{suite: s, program: s.program, dir: s.templateDir()}
	defer f.close(false)
	db := f.startDatabase(ctx, "", nil)
	must.OK(db.EnsureDatabase(ctx, databaseName))
	f.runCommand(ctx, db, "migrate", "up")
	s.keys = make([]string, 1+smallStores)
	must.Parallel(len(s.keys), func(store int) {
		s.keys[store] = f.newKey(ctx, db, strings.TrimSuffix(fmt.Sprint(accountName, " ", store), " 0"), "admin")
	})
	s.key = s.keys[0]
	db.fillStore(ctx, accountName+"%")
}

// accountName is the account whose key the rows use.
const accountName = "faulttest"

// fillStore creates a category and pets in stock, with ids from 1, in the stores of the
// accounts whose names are LIKE this.
func (d *database) fillStore(ctx context.Context, name string) {
	d.exec(ctx, fmt.Sprintf(`
		INSERT INTO categories (account_id, id, name, name_key)
		SELECT id, 1, 'Hedgehogs', 'hedgehogs'
		FROM accounts
		WHERE name LIKE '%[1]s';

		INSERT INTO pets (account_id, id, category_id, name, name_key)
		SELECT id, pet, 1, 'Pet ' || pet, 'pet ' || pet
		FROM accounts, generate_series(1, %[2]d) AS pet
		WHERE accounts.name LIKE '%[1]s';

		INSERT INTO inventory (account_id, pet_id, quantity)
		SELECT id, pet, %[3]d
		FROM accounts, generate_series(1, %[2]d) AS pet
		WHERE accounts.name LIKE '%[1]s'`, name, pets, stockOfPet))
}

// fixture is the environment of one row. Everything that it starts ends with the row.
type fixture struct {
	*suite
	program  program // under test
	grantee  string  // the role that migrate up grants privileges to, or "" for none
	dir      string  // with the clusters and logs of the row
	cleanups []func()
}

func (s *suite) fixture(p program, r row) *fixture {
	dir := must.Get(os.MkdirTemp(s.dir, fmt.Sprintf("row%02d-", r.number)))
	must.OK(os.Chmod(dir, 0o711))
	return &fixture{suite: s, program: p, dir: dir}
}

// cleanup registers a function to call when the row ends, the latest first.
func (f *fixture) cleanup(do func()) { f.cleanups = append(f.cleanups, do) }

// close calls all cleanups and removes the folder if remove is true.
func (f *fixture) close(remove bool) {
	for _, end := range slices.Backward(f.cleanups) {
		end()
	}
	if remove {
		_ = os.RemoveAll(f.dir) // it is in a temporary folder anyway
	}
}

// deployment is a running service with its database and a client with a key.
type deployment struct {
	*fixture
	*client
	db  *database
	api *service
}

// open starts a database and a service, with more environment variables.
func (f *fixture) open(ctx context.Context, extra ...string) *deployment {
	db := f.startDatabase(ctx, "", nil)
	return f.openWith(ctx, db, db.url(), extra...)
}

// openWith starts a service on a database, with more environment variables. It connects
// to dbURL, which may name several servers.
func (f *fixture) openWith(ctx context.Context, db *database, dbURL string, extra ...string) *deployment {
	api := f.serve(ctx, dbURL, extra...)
	return &deployment{fixture: f, db: db, api: api, client: api.client}
}

// startSecond starts a second instance of the service, and returns both. A promise within one
// process may depend on its memory, but a promise across two depends on the database.
func (s *deployment) startSecond(ctx context.Context) [2]*service {
	return [2]*service{s.api, s.serve(ctx, s.db.url())}
}

// setupError is a failure to prepare a row, which says nothing about the program.
type setupError struct{ error }

// Unwrap returns the failure.
func (e setupError) Unwrap() error { return e.error }

// prepare calls a function whose failure is a [setupError].
func prepare(do func()) {
	if err := must.Attempt(do); err != nil {
		must.OK(setupError{err})
	}
}

// skipError says why a row cannot run on this machine.
type skipError string

func (e skipError) Error() string { return string(e) }

// smallStores is the number of accounts in every copy beside [accountName], with the same
// pets. Their writes share groups, as long as an account has at most 8 in progress at an
// instance. It is odd, so that two clients of [spread] in the same store use two instances.
const smallStores = 25

// spread returns the stores of clients: of the first ones the store of [accountName], which
// is 0, and then the small stores by turns, from 1.
func spread(first, small int) []int {
	stores := make([]int, first, first+small)
	for i := range small {
		stores = append(stores, 1+i%smallStores)
	}
	return stores
}

// store returns a client of a store.
func (s *service) store(number int) *client { return s.withKey(s.fixture.keys[number]) }

// checkStores fails the row unless the events of each account have no gap and fit its orders.
// It also fails the row unless some transactions placed orders of several accounts, and none
// of these has more than 8 of one account. It returns their number.
func (s *deployment) checkStores(ctx context.Context) (figures string) {
	const backlog = 8
	wrong := s.db.count(ctx, `
		SELECT count(*)
		FROM account_state
		LEFT JOIN (
			SELECT account_id, count(*) AS events, max(sequence) AS newest,
			       count(*) FILTER (WHERE type = 'order.placed') - count(*) FILTER (WHERE type = 'order.cancelled') AS orders
			FROM events
			GROUP BY account_id
		) AS feed USING (account_id)
		LEFT JOIN (SELECT account_id, count(*) AS orders FROM orders GROUP BY account_id) AS store USING (account_id)
		WHERE last_sequence <> coalesce(events, 0) OR last_sequence <> coalesce(newest, 0) OR coalesce(feed.orders, 0) <> coalesce(store.orders, 0)`)
	must.Hold(wrong == 0, "the events of %d accounts have gaps, or do not fit their orders", wrong)
	var common, most int
	s.db.read(ctx, `
		SELECT count(*), coalesce(max(most), 0)
		FROM (
			SELECT max(orders) AS most
			FROM (SELECT xmin::text AS transaction, account_id, count(*) AS orders FROM orders GROUP BY 1, 2) AS placed
			GROUP BY transaction
			HAVING count(*) > 1
		) AS common`, nil, &common, &most)
	must.Hold(common > 0, "no transaction placed orders of several accounts")
	must.Hold(most <= backlog, "a group of several accounts has %d orders of one of them", most)
	return fmt.Sprintf("%d transactions of several accounts", common)
}

// addAccounts adds accounts with webhooks, which all have the same URL and all types.
func (d *database) addAccounts(ctx context.Context, url string, hooks int, accounts ...string) {
	d.exec(ctx, `
		WITH made AS (INSERT INTO accounts (name) SELECT unnest($1::text[]) RETURNING id)
		INSERT INTO account_state (account_id)
		SELECT id FROM made`, accounts)
	d.addWebhooks(ctx, url, hooks, accounts...)
}

// addWebhooks adds such webhooks to accounts.
func (d *database) addWebhooks(ctx context.Context, url string, hooks int, accounts ...string) {
	d.exec(ctx, `
		INSERT INTO webhooks (account_id, id, url, types, secret, after_sequence, unsettled_after)
		SELECT s.account_id, 'wh_' || md5(random()::text), $1, '{*}', '\x00'::bytea || 'a key of at least 24 bytes'::bytea, s.last_sequence, NULL
		FROM accounts AS a
		JOIN account_state AS s ON s.account_id = a.id, generate_series(1, $2::int)
		WHERE a.name = ANY ($3::text[])`, url, hooks, accounts)
}

// addEvents adds events to the feeds of accounts.
func (d *database) addEvents(ctx context.Context, count int, accounts ...string) {
	d.exec(ctx, run.AddEvents, accounts, count)
}

// addMessages adds messages of 16 KB to an account.
func (d *database) addMessages(ctx context.Context, count int, account string) {
	d.exec(ctx, `
		INSERT INTO messages (account_id, id, message)
		SELECT accounts.id, 'msg_' || lpad(to_hex(number), 32, '0'), repeat('🐕', 4000)
		FROM accounts, generate_series(1, $1::int) AS number
		WHERE accounts.name = $2`, count, account)
}

// addDeliveries makes all events of accounts due at all their webhooks, as they are after an
// outage of an hour. The ids have the present time, because the sweep deletes old ones.
func (d *database) addDeliveries(ctx context.Context, accounts ...string) {
	d.exec(ctx, `
		INSERT INTO webhook_deliveries (account_id, id, webhook_id, event_id, sequence, type, next_attempt_at)
		SELECT w.account_id, 'dlv_' || lpad(to_hex((extract(epoch FROM statement_timestamp()) * 1000)::bigint), 12, '0') || left(md5(w.id || e.sequence), 20), w.id, 'evt_' || lpad(to_hex(e.account_id), 12, '0') || lpad(to_hex(e.sequence), 12, '0') || '00000001', e.sequence, e.type,
		       statement_timestamp() - interval '1 hour' + e.sequence * interval '1 millisecond'
		FROM accounts AS a
		JOIN webhooks AS w ON w.account_id = a.id
		JOIN events AS e ON e.account_id = a.id
		WHERE a.name = ANY ($1::text[])`, accounts)
	d.exec(ctx, `
		UPDATE webhooks
		SET after_sequence = last_sequence
		FROM account_state, accounts AS a
		WHERE account_state.account_id = webhooks.account_id
		  AND a.id = webhooks.account_id
		  AND a.name = ANY ($1::text[])`, accounts)
}
