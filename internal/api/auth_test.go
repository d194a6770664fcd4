package api_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"petstore/db"
	"petstore/internal/auth"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// Values of WWW-Authenticate (RFC 6750, section 3).
const (
	challenge        = `Bearer realm="petstore"`
	challengeInvalid = `Bearer realm="petstore", error="invalid_token"`
	challengeScope   = `Bearer realm="petstore", error="insufficient_scope"`
)

// wantChallenge fails the test unless the response is this error with this challenge.
func (r *response) wantChallenge(status int, code, challenge string) {
	r.t.Helper()
	r.wantError(status, code)
	need.Same(r.t, []string{challenge}, r.header.Values("WWW-Authenticate"), "%s: WWW-Authenticate", r.what)
}

// issue creates a key in the account "tester".
func (p *petstore) issue(scope auth.Scope, expiresAt *time.Time) (id int64, key string) {
	p.t.Helper()
	return p.issueIn("tester", scope, expiresAt)
}

// revoke revokes a key as `petstore key revoke` does.
func (p *petstore) revoke(id int64) {
	p.t.Helper()
	key := db.APIKeyRevokeOwnParams{ID: id, AccountID: p.accountID()}
	_, err := db.New(p.db).APIKeyRevokeOwn(p.t.Context(), key)
	for postgres.LostToAnother(err) { // on Citus, it deadlocks with a new sandbox of another test
		_, err = db.New(p.db).APIKeyRevokeOwn(p.t.Context(), key)
	}
	if err != nil {
		p.t.Fatalf("revoking the key: %v", err)
	}
}

func TestAuthentication(t *testing.T) {
	t.Parallel()
	p := start(t)
	past, future := time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	revokedID, revoked := p.issue(auth.Admin, nil)
	p.revoke(revokedID)
	_, expired := p.issue(auth.Admin, &past)
	_, lasting := p.issue(auth.Read, &future)
	unknown := auth.NewSecret().Reveal()

	for what, fields := range map[string][]string{
		"valid key":                {"Bearer " + p.key},
		"scheme in lower case":     {"bearer " + p.key},
		"scheme in upper case":     {"BEARER " + p.key},
		"scheme in mixed case":     {"bEaReR " + p.key},
		"key with a future expiry": {"Bearer " + lasting},
		"more than one space":      {"Bearer   " + p.key},
		"surrounding white space":  {"  Bearer " + p.key + "  "},
	} {
		need.Same(t, 200, p.withHeader("Authorization", fields, "GET", "/pets", nil).status, "%s: the status", what)
	}
	for what, fields := range map[string][]string{
		"nothing":                    nil,
		"empty header":               {""},
		"Basic":                      {"Basic dXNlcjpwYXNz"},
		"Digest":                     {`Digest username="x"`},
		"the key without a scheme":   {p.key},
		"a longer scheme":            {"Bearers " + p.key},
		"a scheme of two words":      {"API Bearer " + p.key},
		"comma after the scheme":     {"Bearer," + p.key},
		"two headers without Bearer": {"Basic dXNlcjpwYXNz", "Token x"},
		"scheme alone":               {"Bearer"},
		"empty key":                  {"Bearer "},
	} {
		t.Run(what, func(t *testing.T) {
			p.in(t).withHeader("Authorization", fields, "GET", "/pets", nil).wantChallenge(401, "missing_api_key", challenge)
		})
	}
	for what, fields := range map[string][]string{
		"malformed":                     {"Bearer x"},
		"very long":                     {"Bearer " + strings.Repeat("x", 10_000)},
		"two keys":                      {"Bearer " + p.key + " " + p.key},
		"two keys separated by a comma": {"Bearer " + p.key + "," + p.key},
		"quoted":                        {`Bearer "` + p.key + `"`},
		"characters outside ASCII":      {"Bearer petstore_" + strings.Repeat("é", 18)},
		"unknown":                       {"Bearer " + unknown},
		"revoked":                       {"Bearer " + revoked},
		"expired":                       {"Bearer " + expired},
		"two headers":                   {"Bearer " + p.key, "Bearer " + p.key},
		"two headers, Bearer first":     {"Bearer " + p.key, "Basic dXNlcjpwYXNz"},
		"two headers, Bearer second":    {"Basic dXNlcjpwYXNz", "Bearer " + p.key},
	} {
		t.Run(what, func(t *testing.T) {
			p.in(t).withHeader("Authorization", fields, "GET", "/pets", nil).wantChallenge(401, "invalid_api_key", challengeInvalid)
		})
	}
	// only the Authorization header carries a key
	p.as("").get("/pets?api_key="+p.key).wantChallenge(401, "missing_api_key", challenge)
	p.as("").do("GET", "/pets", nil, "X-API-Key", p.key, "Cookie", "api_key="+p.key).wantChallenge(401, "missing_api_key", challenge)
}

// listen receives notifications of revoked keys until the test ends, wired as in `petstore serve`.
func (p *petstore) listen() {
	p.t.Helper()
	connected := make(chan struct{})
	first := sync.OnceFunc(func() { close(connected) })
	listener := &postgres.Listener{
		DB:      p.pool,
		URL:     p.direct,
		Channel: auth.Channel,
		Connected: func() {
			p.verifier.Forget()
			first()
		},
		Heard: p.verifier.Heard,
		Alive: p.verifier.Trust,
		Log:   slog.New(slog.DiscardHandler),
	}
	need.Background(p.t, func(ctx context.Context) { _ = listener.Run(ctx) })
	select {
	case <-connected:
	case <-p.t.Context().Done():
		p.t.Fatal("the listener did not connect before the test ended")
	}
}

// cutListeners terminates every listening connection, repeatedly.
func (p *petstore) cutListeners(ctx context.Context) {
	p.mustBeAlone()
	for again := time.NewTicker(20 * time.Millisecond); ctx.Err() == nil; <-again.C {
		_, _ = p.db.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'petstore listen'`)
	}
}

// TestRevokedKeyStops: within a second of a revocation, no process accepts the key, with or without a
// notification. The same holds for a secret that was rotated without grace.
func TestRevokedKeyStops(t *testing.T) {
	t.Parallel()
	for what, connections := range map[string]struct{ opened, cut bool }{
		"with notifications":           {opened: true},
		"with interrupted connections": {opened: true, cut: true},
		"without notifications":        {},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			servers := []*petstore{startOn(t, database), startOn(t, database)}
			if connections.opened {
				servers[0].listen()
				servers[1].listen()
			}
			if connections.cut {
				need.Background(servers[0].t, servers[0].cutListeners)
			}
			for round, end := range []func(*petstore, int64){
				(*petstore).revoke,
				(*petstore).rotateAway,
				func(p *petstore, id int64) { p.del(keyPath(id)).want(204) },
				func(p *petstore, id int64) { p.post(rotatePath(id), nil).wantSecret() },
				(*petstore).revoke,
			} {
				id, key := servers[0].issue(auth.Read, nil)
				for _, server := range servers {
					server.as(key).get("/pets").want(200)
				}
				end(servers[round%2], id)
				revoked := time.Now()
				atOnce(t, len(servers), func(i int) error { return servers[i].as(key).stops(revoked) })
			}
		})
	}
}

// stops returns an error unless the server rejects the revoked key within a second, and from then on.
func (p *petstore) stops(revoked time.Time) error {
	for rejected := 0; rejected < 10; <-time.After(10 * time.Millisecond) {
		since := time.Since(revoked)
		resp, err := p.try("GET", "/pets?limit=1", nil)
		switch {
		case err != nil:
			return err
		case resp.status == 401:
			rejected++
		case resp.status != 200:
			return fmt.Errorf("%d: %s", resp.status, resp.body)
		case rejected > 0:
			return fmt.Errorf("the key worked again after it had been rejected")
		case since > time.Second:
			return fmt.Errorf("the key still worked %s after it was revoked", since)
		}
	}
	return nil
}

// TestWarmServerNeedsNoConnection: a server with a live listener verifies a cached
// key, and rejects invalid requests, without a database connection.
func TestWarmServerNeedsNoConnection(t *testing.T) {
	t.Parallel()
	p := startWithoutStandby(t).trusting() // polls of positions use connections, and a listener can be late
	reader := p.as(p.newKey("tester", auth.Read))
	p.newCategory("one")
	p.newCategory("two")
	next := p.get("/categories?limit=1").want(200).link("next")
	p.get(next).want(200)
	reader.get("/pets").want(200)

	taken := func() int64 { return p.pool.Pool().Stat().AcquireCount() }
	before, began := taken(), time.Now()
	const longerThanUnheardKeysLive = 1500 * time.Millisecond
	for ; time.Since(began) < longerThanUnheardKeysLive; <-time.After(100 * time.Millisecond) {
		p.get("/nothing").want(404)
		p.put("/pets", object{}).want(405)
		p.as("").get("/pets").want(401)
		p.as("petstore_x").get("/pets").want(401)
		reader.post("/pets", object{}).want(403)
		p.do("GET", "/pets", nil, "Accept", "text/html").want(406)
		p.do("POST", "/pets", "x", "Content-Type", "text/plain").want(400)
		p.get("/pets?limit=0").want(400)
		p.get("/store/orders/0").want(400)
		p.post("/pets", "{").want(400)
		p.post("/pets", object{}).want(400)
		p.get("/categories?cursor=x").wantError(400, "invalid_cursor")
		p.get("/livez").want(200)
		p.get("/openapi.json").want(200)
	}
	need.Same(t, 0, taken()-before, "acquired connections")
}
