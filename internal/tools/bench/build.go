package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"petstore/internal/account"
	"petstore/internal/auth"
	"petstore/internal/follow"
	"petstore/internal/localpg"
	"petstore/internal/tools/must"
	"petstore/internal/tools/run"
)

const (
	benchAccount = "bench" // the large account, which is the first one
	smallPets    = 20      // of each small account and of its sandboxes, with ids from 1
	unitsInStock = "1000000000"
	// The comparison draws pages of this size from the lists.
	pageSize, pagesDrawn = 50, 200
)

// build is a program and its own PostgreSQL, whose database it migrates and seeds itself. So
// two builds may have different migrations. A build needs the commands migrate up, key create,
// seed and serve, and the environment of petstoreEnv. It also needs the paths in load.lua, and
// the columns in addStores and addEvents.
type build struct {
	dir  string // of its files
	pets int    // ids from 1 to pets, of the large account

	program  string
	binaries localpg.Binaries
	cluster  *localpg.Cluster
	postgres []int  // process ids of PostgreSQL and of its replica, if there is one
	database string // the URL
	admin    string // an API key
	server   *process
	cleanups []func()
}

// newBuild compiles the program of a folder with the sources as a release does, and fills a database for it.
func newBuild(ctx context.Context, pets int, dir, name, source string) *build {
	b := &build{program: filepath.Join(dir, "petstore-"+name), dir: filepath.Join(dir, name), pets: pets}
	must.OK(os.Mkdir(b.dir, 0o711))
	b.writeFile(wrkFile, wrkScript)
	b.writeFile(orderFile, orderScript)
	run.Program(ctx, "go", "build", "-C", source, "-tags", "nomsgpack", "-buildvcs=false", "-trimpath", "-o", b.program, "./cmd/petstore")
	b.binaries = must.Get(localpg.Find(ctx, os.Getenv("PETSTORE_PG_BIN"), os.Stderr))
	b.cluster = b.startPostgres(ctx, localpg.Options{Dir: b.file("postgres")})
	must.OK(b.cluster.EnsureDatabase(ctx, "petstore"))
	b.database = b.cluster.URL("petstore")
	must.Explain(name, func() {
		const apiKeys = 16
		b.run(ctx, "migrate", "up")
		var keys []string
		for range apiKeys {
			keys = append(keys, b.newKey(ctx, "write"))
		}
		b.writeFile(largeAccount, keys...)
		b.admin = b.newKey(ctx, "admin")
		b.run(ctx, "seed", "--pets", strconv.Itoa(pets), "--account", benchAccount)
		run.Exec(ctx, b.database, "UPDATE inventory SET quantity = "+unitsInStock+"; UPDATE pets SET status = 'available' WHERE status <> 'available'")
		keys = addStores(ctx, b.database, newAccounts, 1000)
		b.writeFile(smallAccounts, keys...)
		b.writeFile(fewAccounts, keys[:100]...)
		b.writeFile(sandboxes, addStores(ctx, b.database, newSandboxes, account.MaxSandboxes)...)
		vacuum(ctx, b.database)
	})
	return b
}

// file returns the path of a file of the build.
func (b *build) file(name string) string { return filepath.Join(b.dir, name) }

func (b *build) writeFile(name string, lines ...string) {
	must.OK(os.WriteFile(b.file(name), []byte(strings.Join(lines, "\n")+"\n"), 0o600))
}

// startPostgres starts a cluster with fsync and synchronous_commit on, as in production. No
// checkpoint runs during a comparison, because only some of the measurements would pay for it.
func (b *build) startPostgres(ctx context.Context, options localpg.Options) *localpg.Cluster {
	options.Binaries = b.binaries
	options.Settings = map[string]string{
		"shared_buffers": "512MB", "max_wal_size": "16GB", "checkpoint_timeout": "1h", "max_connections": "200", "autovacuum": "off",
		"hot_standby_feedback": "on", // for a standby
	}
	cluster := must.Get(localpg.Start(ctx, options))
	b.cleanups = append(b.cleanups, func() { _ = cluster.Stop(context.WithoutCancel(ctx)) }) // it ends with this process anyway
	b.postgres = append(b.postgres, run.Postmaster(cluster.Data()))
	return cluster
}

// stop stops everything that the build has started.
func (b *build) stop(ctx context.Context) {
	b.server.stop(ctx)
	for _, end := range b.cleanups {
		end()
	}
}

// run runs a command of the build and returns its standard output.
func (b *build) run(ctx context.Context, args ...string) string {
	cmd := exec.CommandContext(ctx, b.program, args...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+b.database)
	return run.Output(cmd)
}

func (b *build) newKey(ctx context.Context, scope string) string {
	return b.run(ctx, "key", "create", "--account", benchAccount, "--scope", scope)
}

// serve starts the server with more environment variables. It returns the time until GET
// /readyz returned 200.
func (b *build) serve(ctx context.Context, extra ...string) time.Duration {
	addr := run.FreeAddr(ctx)
	b.server = b.start(ctx, "serve", append(extra, "PETSTORE_ADDR="+addr)...)
	return b.server.awaitReady(ctx, addr, "/readyz")
}

// serveHTTP starts a server in this process, which ends with the build, and returns its URL.
func (b *build) serveHTTP(ctx context.Context, handler http.Handler) string {
	url, stop := run.Serve(ctx, handler)
	b.cleanups = append(b.cleanups, stop)
	return url
}

// start starts a command of the build that runs until it is stopped.
func (b *build) start(ctx context.Context, command string, extra ...string) *process {
	return start(ctx, append(append([]string{"DATABASE_URL=" + b.database}, petstoreEnv...), extra...), b.program, command)
}

// ask sends a request with a key of the large account, and returns the header and the body of
// the response.
func (b *build) ask(ctx context.Context, method, path, body string) (http.Header, []byte) {
	return send(ctx, method, b.server.url+path, body, "Authorization", "Bearer "+b.admin)
}

// These statements create accounts: some small ones, and some sandboxes of each of the first
// ten small ones.
const (
	newAccounts  = "INSERT INTO accounts (name) SELECT 'small ' || i FROM generate_series(1, $1) AS i RETURNING id"
	newSandboxes = `
		INSERT INTO accounts (kind, parent_id, name, sample_id, sample, expires_at)
		SELECT 'sandbox', parent.id, 'sandbox', parent.id, 'empty', now() + interval '1 day'
		FROM (SELECT id FROM accounts WHERE name LIKE 'small %' ORDER BY id LIMIT 10) AS parent, generate_series(1, $1)
		RETURNING id`
)

// addStores creates accounts with their stores, and returns a key of each. The statement
// creates the accounts, and the number is its argument.
func addStores(ctx context.Context, databaseURL, statement string, number int) (keys []string) {
	var ids []int64
	run.Scan(ctx, databaseURL, "WITH made AS ("+statement+") SELECT array_agg(id) FROM made", []any{number}, &ids)
	var prefixes []string
	var hashes [][]byte
	for range ids {
		secret := auth.NewSecret()
		hash := secret.Hash()
		keys, prefixes, hashes = append(keys, secret.Reveal()), append(prefixes, secret.Prefix()), append(hashes, hash[:])
	}
	run.Exec(ctx, databaseURL, `
		INSERT INTO api_keys (account_id, name, scope, prefix, secret_sha256)
		SELECT key.account, 'bench', 'write', key.prefix, key.hash
		FROM unnest($1::bigint[], $2::text[], $3::bytea[]) AS key (account, prefix, hash)`, ids, prefixes, hashes)
	stores := fmt.Sprintf("unnest($1::bigint[]) AS account, generate_series(1, %d) AS pet", smallPets)
	for _, statement := range []string{
		"INSERT INTO account_state (account_id) SELECT unnest($1::bigint[])",
		"INSERT INTO categories (account_id, id, name, name_key) SELECT account, 1, 'Cats', 'cats' FROM unnest($1::bigint[]) AS account",
		"INSERT INTO pets (account_id, id, category_id, name, name_key) SELECT account, pet, 1, 'Pet ' || pet, 'pet ' || pet FROM " + stores,
		"INSERT INTO inventory (account_id, pet_id, quantity) SELECT account, pet, " + unitsInStock + " FROM " + stores,
	} {
		run.Exec(ctx, databaseURL, statement, ids)
	}
	return keys
}

// vacuum brings a database to the same state before every run, because autovacuum is off.
func vacuum(ctx context.Context, databaseURL string) {
	run.Exec(ctx, databaseURL, "VACUUM (ANALYZE)")
	run.Exec(ctx, databaseURL, "CHECKPOINT")
}

// drawPages writes the file with the paths of different pages of pets.
func (b *build) drawPages(ctx context.Context) {
	paths, _ := b.pages(ctx, fmt.Sprintf("/pets?limit=%d", pageSize), min(pagesDrawn, b.pets/pageSize))
	b.writeFile(pagesFile, paths...)
}

// pages follows the links of a list. It returns the paths of its first pages and the sizes of
// the responses, without the headers of the same size.
func (b *build) pages(ctx context.Context, path string, number int) (paths []string, sizes []int) {
	for len(paths) < number {
		must.Hold(path != "", "the list ends at page %d; use more pets", len(paths))
		header, body := b.ask(ctx, http.MethodGet, path, "")
		paths, sizes = append(paths, path), append(sizes, len(header.Get("Link"))+len(body))
		path = ""
		if next := follow.NextLink(header); next != nil {
			path = next.RequestURI()
		}
	}
	return paths, sizes
}

// side measures a load of the server, and the CPU times of the server and of PostgreSQL.
func (b *build) side(name string, l load) side {
	return side{name, func(ctx context.Context, during time.Duration) measurement {
		return withCPU(b.pids(), func() measurement { return b.wrk(ctx, b.server.url, l, during) })
	}}
}

// beside measures a load of the server during another one.
func (b *build) beside(name string, l, other load) side {
	return side{name, func(ctx context.Context, during time.Duration) measurement {
		wait := must.Background(func() { b.wrk(ctx, b.server.url, other, during) })
		m := b.wrk(ctx, b.server.url, l, during)
		wait()
		return m
	}}
}

// pids returns the process ids of the server, of PostgreSQL and of its replica.
func (b *build) pids() []int { return append([]int{b.server.PID()}, b.postgres...) }
