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
	"strconv"
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
func newSuite(ctx context.Context, stdout io.Writer) (*suite, error) {
	dir, err := os.MkdirTemp("", "petstore-faulttest-")
	if err != nil {
		return nil, err
	}
	s := &suite{stdout: stdout, dir: dir, program: program{binary: filepath.Join(dir, "petstore")}}
	return s, must.Attempt(func() {
		must.OK(os.Chmod(dir, 0o711)) // PostgreSQL runs as another user if this process is root
		s.postgres = must.Get(localpg.Find(ctx, os.Getenv("PETSTORE_PG_BIN"), nil))
		must.OK(build(ctx, s.program))
		s.makeTemplate(ctx)
	})
}

// close removes everything except the logs of failed rows.
func (s *suite) close() error {
	err := errors.Join(os.RemoveAll(s.templateDir()), os.RemoveAll(filepath.Join(s.dir, "fault")), os.RemoveAll(s.program.binary), os.RemoveAll(filepath.Join(s.dir, "released")))
	_ = os.Remove(s.dir) // not empty if a row failed
	return err
}

// program is a build of the sources in the current folder.
type program struct {
	binary string
	// replaced has the texts of source files that differ, by their absolute paths.
	replaced map[string]string
}

// build compiles a program.
func build(ctx context.Context, p program) error {
	return p.goCommand(ctx, "build", "-o", p.binary)
}

// goCommand runs a command of go on a program. It does not change the source files.
func (p program) goCommand(ctx context.Context, args ...string) error {
	dir, err := os.MkdirTemp(filepath.Dir(p.binary), "overlay-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for source, text := range p.replaced {
		planted := filepath.Join(dir, strconv.Itoa(len(overlay.Replace))+".go")
		if err := os.WriteFile(planted, []byte(text), 0o600); err != nil {
			return err
		}
		overlay.Replace[source] = planted
	}
	encoded, err := json.Marshal(overlay)
	if err != nil {
		return err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, encoded, 0o600); err != nil {
		return err
	}
	return must.Attempt(func() { run.Program(ctx, "go", append(args, "-overlay", list, "./cmd/petstore")...) })
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

func (s *suite) fixture(p program, r row) (*fixture, error) {
	dir, err := os.MkdirTemp(s.dir, fmt.Sprintf("row%02d-", r.number))
	if err != nil {
		return nil, err
	}
	return &fixture{suite: s, program: p, dir: dir}, os.Chmod(dir, 0o711)
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
