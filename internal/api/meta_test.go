package api_test

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"

	"petstore/db"
	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
)

// TestSpec: the JSON and YAML forms have the same content, according to an
// independent parser.
func TestSpec(t *testing.T) {
	t.Parallel()
	p := start(t).as("")
	inJSON, inYAML := p.get("/openapi.json").want(200), p.get("/openapi.yaml").want(200)
	if got := inYAML.header.Get("Content-Type"); got != "application/yaml" {
		t.Errorf("openapi.yaml is served as %q", got)
	}
	for _, resp := range []*response{inJSON, inYAML} {
		if got := resp.header.Get("Cache-Control"); got != "public, no-cache" {
			t.Errorf("%s: Cache-Control %q", resp.what, got)
		}
		if !bytes.Contains(resp.body, []byte("9223372036854775807")) {
			t.Errorf("%s: 2^63-1 was rounded", resp.what)
		}
	}
	if diff := cmp.Diff(document(t, inYAML.body), document(t, inJSON.body)); diff != "" {
		t.Errorf("spec (-YAML +JSON):\n%s", diff)
	}
}

// document parses a spec into a comparable value.
func document(t *testing.T, text []byte) any {
	t.Helper()
	read, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(read)
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := json.Unmarshal(encoded, &value); err != nil {
		t.Fatal(err)
	}
	return value
}

// TestBaseURL: with a base URL, the spec names it and links begin with it.
// Otherwise links are relative, whatever Host the request has: behind a TLS proxy,
// a link to http:// would send the key in the clear.
func TestBaseURL(t *testing.T) {
	t.Parallel()
	const base = "https://petstore.example"
	p := start(t)
	p.newPet("one", 0)
	p.newPet("two", 0)
	for _, header := range [][]string{nil, {"X-Forwarded-Proto", "https"}, {"X-Forwarded-Host", "evil.example"}, {"Forwarded", "proto=https;host=evil.example"}} {
		page := p.do("GET", "/pets?limit=1", nil, header...).want(200)
		if first := page.link("first"); first != "/pets?limit=1" {
			t.Errorf("%v: without a base URL, the first page is %q", header, first)
		}
		if next := page.link("next"); !strings.HasPrefix(next, "/pets?cursor=") {
			t.Errorf("%v: without a base URL, the next page is %q", header, next)
		}
	}
	p = p.with(func(o *api.Options) { o.BaseURL = base })
	for _, target := range []string{"/openapi.json", "/openapi.yaml"} {
		read, err := openapi3.NewLoader().LoadFromData(p.get(target).want(200).body)
		if err != nil {
			t.Fatal(err)
		}
		if len(read.Servers) != 1 || read.Servers[0].URL != base {
			t.Errorf("%s has the servers %+v", target, read.Servers)
		}
	}
	if first := p.get("/pets?limit=1").want(200).link("first"); first != base+"/pets?limit=1" {
		t.Errorf("link %q", first)
	}
}

func TestReady(t *testing.T) {
	t.Parallel()
	p := start(t).as("")
	for target, want := range map[string]string{
		"/livez":  `{"status":"ok"}`,
		"/readyz": `{"status":"ok","checks":{"database":"ok","schema":"ok","shutdown":"ok"}}`,
	} {
		resp := p.get(target).want(200)
		var got, wanted any
		if err := json.Unmarshal([]byte(want), &wanted); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(resp.body, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wanted, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", target, diff)
		}
		if cache := resp.header.Get("Cache-Control"); cache != "no-store" {
			t.Errorf("%s: Cache-Control %q", target, cache)
		}
	}
}

// wantNotReady fails the test unless /readyz returns 503 with these checks and a
// message that contains this text.
func (p *petstore) wantNotReady(message string, checks map[string]string) {
	p.t.Helper()
	resp := p.as("").get("/readyz").wantError(503, "unavailable")
	got := resp.error()
	if diff := cmp.Diff(checks, got.Checks); diff != "" {
		p.t.Errorf("checks (-want +got):\n%s", diff)
	}
	if !strings.Contains(got.Message, message) {
		p.t.Errorf("the message %q does not contain %q", got.Message, message)
	}
	if resp.header.Get("Retry-After") == "" {
		p.t.Error("Retry-After is missing")
	}
	for _, internal := range []string{"SQLSTATE", "dial", "127.0.0.1", "goose", "pool"} {
		if bytes.Contains(resp.body, []byte(internal)) {
			p.t.Errorf("/readyz tells internals: %s", resp.body)
		}
	}
	p.as("").get("/livez").want(200)
}

func TestNotReadyWithoutDatabase(t *testing.T) {
	t.Parallel()
	nobody, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := nobody.Addr().String()
	nobody.Close()
	away, err := postgres.Open(t.Context(), "postgres://petstore@"+address+"/petstore?sslmode=disable", 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(away.Close)
	clock := &stoppedClock{}
	p := start(t).with(func(o *api.Options) { o.Now = clock.now })
	gone := map[string]string{"database": "unavailable", "schema": "unknown", "shutdown": "ok"}

	rejected := p.with(func(o *api.Options) { o.DB, o.Verifier = away, auth.NewVerifier(db.New(away), db.New(away.Writing())) })
	rejected.wantNotReady("database", gone)
	rejected.get("/pets").wantError(503, "unavailable")

	p.get("/readyz").want(200)
	p.pool.Close()
	clock.move(time.Second)
	p.wantNotReady("database", gone)
}

func TestNotReadyWhileSchemaIsBehind(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	clock := &stoppedClock{}
	p := startOn(t, database).with(func(o *api.Options) { o.Now = clock.now })
	p.get("/readyz").want(200)
	migrations, err := postgres.OpenMigrations(t.Context(), database.OwnerURL)
	if err != nil {
		t.Fatal(err)
	}
	defer migrations.Close()
	behind := map[string]string{"database": "ok", "schema": "behind", "shutdown": "ok"}
	if _, err := migrations.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	clock.move(time.Second)
	p.wantNotReady("petstore migrate up", behind)
	if _, err := migrations.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	clock.move(time.Second)
	p.get("/readyz").want(200)

	empty, err := postgres.Open(t.Context(), pgtest.NewEmpty(t).URL, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(empty.Close)
	p.with(func(o *api.Options) { o.DB = empty }).wantNotReady("petstore migrate up", behind)
}

// TestShutDown: during shutdown the server is not ready, but still handles
// requests.
func TestShutDown(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.server.ShutDown()
	p.wantNotReady("shutting down", map[string]string{"database": "ok", "schema": "ok", "shutdown": "in progress"})
	p.get("/pets").want(200)
	p.post("/messages", object{"message": "x"}).want(202)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+"/livez", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if !resp.Close {
		t.Error("the connection stays open for another request")
	}
}
