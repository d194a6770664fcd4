package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"

	"petstore/db"
	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
)

// shared is the server that tests share which need no more than an account of their own.
var shared struct {
	once    sync.Once
	process *process
	environ []string
	base    string
}

// sharedServer returns the database of the shared server, its environment and its URL. It has no
// rate limits, and delivers to webhooks on this machine.
func sharedServer(t *testing.T) (database *pgtest.Database, environ []string, base string) {
	t.Helper()
	database, err := pgtest.Shared()
	if err != nil {
		t.Fatal(err)
	}
	shared.once.Do(func() {
		shared.environ = []string{
			"DATABASE_URL=" + database.URL, "PETSTORE_DIRECT_URL=" + database.DirectURL, "PETSTORE_ADDR=127.0.0.1:0",
			"PETSTORE_RATE_LIMIT=0", "PETSTORE_ACCOUNT_RATE_LIMIT=0", "PETSTORE_WEBHOOK_ALLOW=127.0.0.0/8",
		}
		shared.process = start(t, emptyDir, shared.environ, "serve")
		shared.base = shared.process.address()
	})
	if shared.base == "" {
		t.Fatal("the shared server does not run")
	}
	return database, shared.environ, shared.base
}

// endShared ends the shared server, and searches its output for secrets.
func endShared() error {
	p := shared.process
	if p == nil {
		return nil
	}
	err := p.cmd.Process.Signal(syscall.SIGTERM)
	if code := p.wait(); err == nil && code != 0 {
		err = fmt.Errorf("the shared server exits with %d:\n%s", code, &p.stderr)
	}
	p.kill()
	if found := theSecrets().In(p.stdout.String() + p.stderr.String()); len(found) > 0 {
		err = errors.Join(err, fmt.Errorf("the shared server prints %q", found))
	}
	return err
}

// accountOf returns the name of the account of a test on the shared server.
func accountOf(t *testing.T) string {
	t.Helper()
	return "acme of " + t.Name()
}

// serveSandbox returns the URL of the shared server and a key of a new sandbox, whose ids begin at 1001.
func serveSandbox(t *testing.T) (base, key string) {
	t.Helper()
	client := newStores(t)(t).environ
	return strings.TrimPrefix(client[0], "PETSTORE_URL="), strings.TrimPrefix(client[1], "PETSTORE_API_KEY=")
}

// serveAccount returns the environment of the shared server, its URL, and a key of the account of
// the test.
func serveAccount(t *testing.T) (environ []string, base, key string) {
	t.Helper()
	_, environ, base = sharedServer(t)
	return environ, base, strings.TrimSpace(must(t, environ, "key", "create", "--account", accountOf(t), "--scope", "write"))
}

// serveInProcess serves the API as serve does with this environment, in this process and without its
// checks and limits of connections. It returns the URL.
func serveInProcess(t *testing.T, pool *postgres.DB, environ []string) (base string) {
	t.Helper()
	p := &program{environ: environ, dir: emptyDir, stdout: io.Discard, stderr: io.Discard}
	c, err := p.loadServerConfig(true)
	if err != nil {
		t.Fatal(err)
	}
	options := apiOptions(c)
	options.DB, options.Verifier, options.Log = pool, auth.NewVerifier(db.New(pool), db.New(pool.Writing())), slog.New(slog.DiscardHandler)
	handler, err := api.New(options)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}
