package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/account"
	"petstore/internal/auth"
	"petstore/internal/localpg"
	"petstore/internal/tools/must"
)

const (
	benchAccount = "bench" // the large account, which is the first one
	apiKeys      = 16
	// The accounts beside the large one, and their sandboxes. Each has a key and pets with
	// ids from 1.
	smallPets    = 20
	unitsInStock = 1_000_000_000 // so many that every order succeeds
	// The comparison draws pages of this size from the lists.
	pageSize, pagesDrawn = 50, 200
)

// build is a program and its own PostgreSQL, whose database it migrates and seeds itself. So
// two builds may have different migrations. A build needs the commands migrate up, key create,
// seed and serve, the environment of petstoreEnv, and the paths in load.lua.
type build struct {
	generator

	name     string // of its files
	program  string
	binaries localpg.Binaries
	cluster  *localpg.Cluster
	database string // the URL
	admin    string // an API key
	server   *process
	cleanups []func()
}

// newBuild compiles the program of a folder with the sources, and fills a database for it.
func newBuild(ctx context.Context, o options, dir, name, source string) *build {
	b := &build{name: name, program: filepath.Join(dir, "petstore-"+name), generator: generator{dir: filepath.Join(dir, name), pets: o.pets}}
	must.OK(os.Mkdir(b.dir, 0o711))
	runProgram(ctx, nil, "go", "build", "-C", source, "-buildvcs=false", "-trimpath", "-o", b.program, "./cmd/petstore")
	b.binaries = must.Get(localpg.Find(ctx, os.Getenv("PETSTORE_PG_BIN"), os.Stderr))
	b.cluster = b.startPostgres(ctx, localpg.Options{Dir: b.postgresDir()})
	must.OK(b.cluster.EnsureDatabase(ctx, "petstore"))
	b.database = b.cluster.URL("petstore")
	must.Explain(name, func() {
		b.run(ctx, "migrate", "up")
		var keys []string
		for range apiKeys {
			keys = append(keys, b.newKey(ctx, benchAccount, "write"))
		}
		b.writeFile(largeAccount+".keys", keys...)
		b.admin = b.newKey(ctx, benchAccount, "admin")
		b.run(ctx, "seed", "--pets", strconv.Itoa(o.pets), "--account", benchAccount)
		execute(ctx, b.database, "UPDATE inventory SET quantity = "+strconv.Itoa(unitsInStock)+"; UPDATE pets SET status = 'available' WHERE status <> 'available'")
		keys = addStores(ctx, b.database, newAccounts, 1000)
		b.writeFile(smallAccounts+".keys", keys...)
		b.writeFile(fewAccounts+".keys", keys[:100]...)
		b.writeFile(sandboxes+".keys", addStores(ctx, b.database, newSandboxes, account.MaxSandboxes)...)
		b.writeFile(scriptFile, string(wrkScript))
		vacuum(ctx, b.database)
	})
	return b
}

func (b *build) postgresDir() string { return filepath.Join(b.dir, "postgres") }

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
	return cluster
}

// postmaster returns the process id of the server of a directory of localpg.
func postmaster(dir string) int {
	text := must.Get(os.ReadFile(filepath.Join(dir, "data", "postmaster.pid")))
	line, _, _ := strings.Cut(string(text), "\n")
	return must.Get(strconv.Atoi(line))
}

// stop stops everything that the build has started.
func (b *build) stop() {
	if b == nil {
		return
	}
	b.server.stop()
	for _, end := range b.cleanups {
		end()
	}
}

// run runs a command of the build and returns its standard output.
func (b *build) run(ctx context.Context, args ...string) string {
	return runProgram(ctx, []string{"DATABASE_URL=" + b.database}, b.program, args...)
}

func (b *build) newKey(ctx context.Context, account, scope string) string {
	return b.run(ctx, "key", "create", "--account", account, "--scope", scope)
}

// serve starts the server with more environment variables. It returns the time until GET
// /readyz returned 200.
func (b *build) serve(ctx context.Context, extra ...string) time.Duration {
	addr := freeAddress(ctx)
	b.server = b.start(ctx, "serve", append(extra, "PETSTORE_ADDR="+addr)...)
	return b.server.awaitReady(ctx, addr, "/readyz")
}

// start starts a command of the build that runs until it is stopped.
func (b *build) start(ctx context.Context, command string, extra ...string) *process {
	return start(ctx, b.program+".log", append(append([]string{"DATABASE_URL=" + b.database}, petstoreEnv...), extra...), b.program, command)
}

// ask sends a request with a key of the large account, and returns the header and the body of
// the response.
func (b *build) ask(ctx context.Context, method, path, body string) (http.Header, []byte) {
	return send(ctx, method, b.server.url+path, b.admin, body)
}

// These statements create accounts: some small ones, and some sandboxes of each of the first
// ten small ones.
const (
	newAccounts  = "INSERT INTO accounts (name) SELECT 'small ' || i FROM generate_series(1, $1) AS i RETURNING id"
	newSandboxes = `
		INSERT INTO accounts (parent_id, name, sample, expires_at)
		SELECT parent.id, 'sandbox', 'empty', now() + interval '1 day'
		FROM (SELECT id FROM accounts WHERE name LIKE 'small %' ORDER BY id LIMIT 10) AS parent, generate_series(1, $1)
		RETURNING id`
)

// addStores creates accounts with their stores, and returns a key of each. The statement
// creates the accounts, and the number is its argument.
func addStores(ctx context.Context, databaseURL, statement string, number int) (keys []string) {
	conn := must.Get(pgx.Connect(ctx, databaseURL))
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, statement, number)
	must.OK(err)
	ids := must.Get(pgx.CollectRows(rows, pgx.RowTo[int64]))
	var prefixes []string
	var hashes [][]byte
	for range ids {
		secret := auth.NewSecret()
		hash := secret.Hash()
		keys, prefixes, hashes = append(keys, secret.Reveal()), append(prefixes, secret.Prefix()), append(hashes, hash[:])
	}
	must.Get(conn.Exec(ctx, `
		INSERT INTO api_keys (account_id, name, scope, prefix, secret_sha256)
		SELECT key.account, 'bench', 'write', key.prefix, key.hash
		FROM unnest($1::bigint[], $2::text[], $3::bytea[]) AS key (account, prefix, hash)`, ids, prefixes, hashes))
	stores := fmt.Sprintf("unnest($1::bigint[]) AS account, generate_series(1, %d) AS pet", smallPets)
	for _, statement := range []string{
		"INSERT INTO account_state (account_id) SELECT unnest($1::bigint[])",
		"INSERT INTO categories (account_id, id, name, name_key) SELECT account, 1, 'Cats', 'cats' FROM unnest($1::bigint[]) AS account",
		"INSERT INTO pets (account_id, id, category_id, name, name_key) SELECT account, pet, 1, 'Pet ' || pet, 'pet ' || pet FROM " + stores,
		"INSERT INTO inventory (account_id, pet_id, quantity) SELECT account, pet, " + strconv.Itoa(unitsInStock) + " FROM " + stores,
	} {
		must.Get(conn.Exec(ctx, statement, ids))
	}
	return keys
}

// vacuum brings a database to the same state before every run, because autovacuum is off.
func vacuum(ctx context.Context, databaseURL string) {
	execute(ctx, databaseURL, "VACUUM (ANALYZE)")
	execute(ctx, databaseURL, "CHECKPOINT")
}

// execute runs statements in a session of their own. Only a single one may have arguments.
func execute(ctx context.Context, databaseURL, statements string, args ...any) {
	conn := must.Get(pgx.Connect(ctx, databaseURL))
	_, err := conn.Exec(ctx, statements, args...)
	must.OK(errors.Join(err, conn.Close(ctx)))
}

// scan reads a row in a session of its own.
func scan(ctx context.Context, databaseURL, query string, args []any, into ...any) {
	conn := must.Get(pgx.Connect(ctx, databaseURL))
	must.OK(errors.Join(conn.QueryRow(ctx, query, args...).Scan(into...), conn.Close(ctx)))
}

// pagePaths follows the links of a list and returns the paths of its first pages.
func (b *build) pagePaths(ctx context.Context, path string, pages int) []string {
	paths := []string{path}
	for len(paths) < pages {
		header, _ := b.ask(ctx, http.MethodGet, path, "")
		path = nextPage(header.Get("Link"))
		must.Hold(path != "", "%s ends at page %d; use more pets", paths[0], len(paths))
		paths = append(paths, path)
	}
	return paths
}

// nextPage returns the path of the link rel="next", which may be a URL or relative to the
// host, or "".
func nextPage(header string) string {
	for link := range strings.SplitSeq(header, ",") {
		if target, found := strings.CutSuffix(strings.TrimSpace(link), `>; rel="next"`); found {
			return must.Get(url.Parse(strings.TrimPrefix(target, "<"))).RequestURI()
		}
	}
	return ""
}

// load measures a load of the server, and the CPU times of the server and of PostgreSQL.
func (b *build) load(name string, l load) side {
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

// pids returns the process ids of the server and of PostgreSQL.
func (b *build) pids() []int { return []int{b.server.cmd.Process.Pid, postmaster(b.postgresDir())} }

// deliver measures how fast a number of stored events reach new webhooks at a sink.
func (b *build) deliver(ctx context.Context, s *sink, hooks, number int) measurement {
	paths := b.addWebhooks(ctx, b.admin, hooks, s.url)
	s.count.Store(0)
	s.first.Store(0)
	execute(ctx, b.database, addEvents, benchAccount, number/hooks)
	m := withCPU(b.pids(), func() measurement {
		must.Await(ctx, deliveriesWithin, func() {
			must.Hold(s.count.Load() >= int64(number), "%d of %d deliveries have arrived", s.count.Load(), number)
		})
		took := time.Since(time.Unix(0, s.first.Load()))
		must.Await(ctx, deliveriesWithin, func() {
			for _, path := range paths {
				_, pending := b.ask(ctx, http.MethodGet, path+"/deliveries?status=pending&limit=1", "")
				must.Hold(string(pending) == "[]", "deliveries are pending")
			}
		})
		return measurement{requests: number, perSecond: float64(number) / took.Seconds()}
	})
	b.deleteWebhooks(ctx, paths)
	return m
}

// deliveriesWithin is how long deliveries may take.
const deliveriesWithin = 2 * time.Minute

// addWebhooks creates webhooks over HTTP, because builds may store them differently. It
// returns their paths.
func (b *build) addWebhooks(ctx context.Context, key string, hooks int, target string) (paths []string) {
	for range hooks {
		header, _ := send(ctx, http.MethodPost, b.server.url+"/webhooks", key, fmt.Sprintf(`{"url": %q, "types": ["*"]}`, target))
		paths = append(paths, header.Get("Location"))
	}
	return paths
}

// deleteWebhooks deletes webhooks with their deliveries.
func (b *build) deleteWebhooks(ctx context.Context, paths []string) {
	for _, path := range paths {
		b.ask(ctx, http.MethodDelete, path, "")
	}
}

// addEvents adds events to the feed of an account.
const addEvents = `
	WITH moved AS (
		UPDATE account_state
		SET last_sequence = last_sequence + $2::bigint, last_nonce = 1, last_event_at = statement_timestamp()
		WHERE account_id = (SELECT id FROM accounts WHERE name = $1)
		RETURNING account_id, last_sequence - $2::bigint AS before
	)
	INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data)
	SELECT account_id, before + i, statement_timestamp(), 1, 'pet.updated', '/pets/' || i,
	       json_build_object('pet', json_build_object('id', i, 'name', 'Bella the Brave', 'categoryId', 1, 'status', 'available'))
	FROM moved, generate_series(1, $2::bigint) AS i`

// drawnPages returns the path of load.lua for different pages of pets.
func (b *build) drawnPages(ctx context.Context) string {
	path := fmt.Sprintf("/pets?limit=%d", pageSize)
	return "@" + b.writeFile("pages", b.pagePaths(ctx, path, min(pagesDrawn, b.pets/pageSize))...)
}
