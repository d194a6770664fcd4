package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
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
	database = need.Value(pgtest.Shared())(t)
	shared.once.Do(func() {
		shared.environ = []string{
			"DATABASE_URL=" + database.URL, "PETSTORE_DIRECT_URL=" + database.DirectURL, "PETSTORE_ADDR=127.0.0.1:0",
			"PETSTORE_RATE_LIMIT=0", "PETSTORE_ACCOUNT_RATE_LIMIT=0", "PETSTORE_WEBHOOK_ALLOW=127.0.0.0/8",
		}
		shared.process = start(t, emptyDir, shared.environ, "serve")
		shared.base = shared.process.address()
		// The first sandbox of a sample makes it. Others would wait for that, on a busy machine longer than lock_timeout.
		must(t, shared.environ, "account", "create", "samples")
		for _, sample := range account.BuiltInSamples() {
			must(t, shared.environ, "sandbox", "create", "--account", "samples", "--sample", sample)
		}
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
	if found := theSecrets.In(p.stdout.String() + p.stderr.String()); len(found) > 0 {
		err = errors.Join(err, fmt.Errorf("the shared server prints %q", found))
	}
	return err
}

// accountOf returns the name of the account of a test on the shared server. A repeated test has
// another one.
func accountOf(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("acme of %s %p", t.Name(), t)
}

// serveAccount returns the environment of the shared server, its URL, and a key of the account of
// the test.
func serveAccount(t *testing.T) (environ []string, base, key string) {
	t.Helper()
	_, environ, base = sharedServer(t)
	return environ, base, strings.TrimSpace(must(t, environ, "key", "create", "--account", accountOf(t), "--scope", "write"))
}

// clientOf returns the environment of a client of a server.
func clientOf(url, key string) []string {
	return []string{"PETSTORE_URL=" + url, "PETSTORE_API_KEY=" + key}
}

// clientOfStub serves a handler until the test ends, and returns the environment of a client of it.
func clientOfStub(t *testing.T, handle http.HandlerFunc) []string {
	t.Helper()
	return clientOf(need.Server(t, handle).URL, auth.NewSecret().Reveal())
}

// serveInProcess serves the API as serve does with this environment, in this process and without its
// checks and limits of connections. It returns the URL.
func serveInProcess(t *testing.T, pool *postgres.DB, environ []string) (base string) {
	t.Helper()
	p := &program{environ: environ, dir: emptyDir, stdout: io.Discard, stderr: io.Discard}
	c := need.Value(p.loadServerConfig(true))(t)
	options := apiOptions(c)
	options.DB, options.Verifier, options.Log = pool, auth.NewVerifier(db.New(pool), db.New(pool.Writing())), slog.New(slog.DiscardHandler)
	handler := need.Value(api.New(options))(t)
	server := need.Server(t, handler.ServeHTTP)
	return server.URL
}

// httpRequest is a request, with an API key if it has one.
type httpRequest struct {
	method, url, key, body string
	header                 http.Header // more fields; Host replaces the host of the URL
}

// exchanged is a response that was read.
type exchanged struct {
	status, protocol int
	header           http.Header
	body             string
}

// try sends the request with a client.
func (r httpRequest) try(ctx context.Context, client *http.Client) (exchanged, error) {
	request, err := http.NewRequestWithContext(ctx, r.method, r.url, strings.NewReader(r.body))
	if err != nil {
		return exchanged{}, err
	}
	maps.Copy(request.Header, r.header)
	request.Host = r.header.Get("Host")
	if r.key != "" {
		request.Header.Set("Authorization", "Bearer "+r.key)
	}
	if r.body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := client.Do(request)
	if err != nil {
		return exchanged{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return exchanged{response.StatusCode, response.ProtoMajor, response.Header, string(text)}, err
}

// tryOK is try, but any other status than 200 is an error.
func (r httpRequest) tryOK(ctx context.Context, client *http.Client) error {
	got, err := r.try(ctx, client)
	if err == nil && got.status != http.StatusOK {
		err = fmt.Errorf("status %d: %s", got.status, got.body)
	}
	return err
}

// send sends the request, which must get a response.
func (r httpRequest) send(t *testing.T) exchanged {
	t.Helper()
	got := need.Value(r.try(t.Context(), http.DefaultClient))(t)
	return got
}

func get(t *testing.T, url, key string) exchanged {
	t.Helper()
	return httpRequest{method: http.MethodGet, url: url, key: key}.send(t)
}

// status sends a GET and returns the status of the response.
func status(t *testing.T, url, key string) int {
	t.Helper()
	return get(t, url, key).status
}

// wantStatus fails the test unless a GET returns a status.
func wantStatus(t *testing.T, url, key string, want int) {
	t.Helper()
	if got := get(t, url, key); got.status != want {
		t.Errorf("GET %s: %d %s, want %d", url, got.status, got.body, want)
	}
}

// post sends a body and returns the Location header.
func post(t *testing.T, url, key, body string) (location string) {
	t.Helper()
	got := httpRequest{method: http.MethodPost, url: url, key: key, body: body}.send(t)
	if got.status != http.StatusCreated {
		t.Fatalf("POST %s: %d %s", url, got.status, got.body)
	}
	return got.header.Get("Location")
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text := need.Value(os.ReadFile(path))(t)
	return string(text)
}

// writeFile writes a file that only this user can read.
func writeFile(t *testing.T, path, text string) {
	t.Helper()
	need.OK(t, os.WriteFile(path, []byte(text), 0o600))
}
