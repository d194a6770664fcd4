package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"petstore/db"
	"petstore/internal/auth"
	"petstore/internal/pgtest"
)

// apiKey is an API key, as a client sees it.
type apiKey struct {
	ID                               int64
	Name, Scope, Prefix              string
	CreatedAt                        time.Time
	ExpiresAt, LastUsedAt, RevokedAt *time.Time
	Secret                           string
}

const keysPath = "/account/api-keys"

func keyPath(id int64) string    { return fmt.Sprintf("%s/%d", keysPath, id) }
func rotatePath(id int64) string { return keyPath(id) + "/rotate" }

// wantSecret fails the test unless the response contains a secret. It returns the
// key.
func (r *response) wantSecret() apiKey {
	r.t.Helper()
	made := decode[apiKey](r.want(201))
	if cache := r.header.Get("Cache-Control"); cache != "no-store" || r.header.Get("ETag") != "" {
		r.t.Errorf("%s: a response with a secret has Cache-Control %q and ETag %q", r.what, cache, r.header.Get("ETag"))
	}
	if location := r.header.Get("Location"); location != keyPath(made.ID) {
		r.t.Errorf("%s: key %d has the Location %q", r.what, made.ID, location)
	}
	secret, err := auth.ParseSecret(made.Secret)
	if err != nil || secret.Prefix() != made.Prefix {
		r.t.Errorf("%s: the secret is malformed or does not start with the prefix %s: %v", r.what, made.Prefix, err)
	}
	return made
}

// makeKey creates an API key in the client's account.
func (p *petstore) makeKey(name, scope string) apiKey {
	p.t.Helper()
	return p.post(keysPath, object{"name": name, "scope": scope}).wantSecret()
}

// works reports whether the server accepts a secret.
func (p *petstore) works(secret string) bool {
	p.t.Helper()
	resp := p.as(secret).get("/account")
	if resp.status != 200 {
		resp.wantChallenge(401, "invalid_api_key", challengeInvalid)
	}
	return resp.status == 200
}

// wantWork fails the test unless exactly the secrets marked true work.
func (p *petstore) wantWork(want map[string]bool) {
	p.t.Helper()
	got := map[string]bool{}
	for secret := range want {
		got[secret] = p.works(secret)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		p.t.Errorf("accepted secrets (-want +got):\n%s", diff)
	}
}

// keys returns the keys of the client's account by id.
func (p *petstore) keys() map[int64]apiKey {
	p.t.Helper()
	byID := map[int64]apiKey{}
	for _, one := range walk[apiKey](p, keysPath+"?limit=200") {
		byID[one.ID] = one
	}
	return byID
}

func TestAccount(t *testing.T) {
	t.Parallel()
	p := start(t)
	began := time.Now().Add(-time.Minute)
	for _, scope := range []auth.Scope{auth.Read, auth.Write, auth.Admin} {
		secret := p.newKey("acme", scope)
		resp := p.as(secret).get("/account").want(200)
		got := decode[struct {
			ID, Name  string
			CreatedAt time.Time
			APIKey    apiKey
		}](resp)
		if !strings.HasPrefix(got.ID, "acc_1") || got.Name != p.named("acme") || got.CreatedAt.Before(began) {
			t.Errorf("account: %s", resp.body)
		}
		key := got.APIKey
		if key.ID == 0 || key.Name != "test" || key.Scope != scope.String() || key.Prefix != secret[:len("petstore_")+8] ||
			key.CreatedAt.Before(began) || key.ExpiresAt != nil || key.LastUsedAt != nil || key.RevokedAt != nil {
			t.Errorf("key: %s", resp.body)
		}
		if cache := resp.header.Get("Cache-Control"); cache != "private, no-store" {
			t.Errorf("Cache-Control %q", cache)
		}
	}
}

func TestCreateAPIKey(t *testing.T) {
	t.Parallel()
	p := start(t)
	began := time.Now().Add(-time.Minute)
	for _, scope := range []string{"read", "write", "admin"} {
		made := p.makeKey("for "+scope, scope)
		if made.Name != "for "+scope || made.Scope != scope || made.CreatedAt.Before(began) || made.ExpiresAt != nil || made.LastUsedAt != nil || made.RevokedAt != nil {
			t.Errorf("created key: %+v", made)
		}
		client := p.as(made.Secret)
		for needs, resp := range map[string]*response{
			"read":  client.get("/pets"),
			"write": client.post("/messages", object{"message": "x"}),
			"admin": client.get(keysPath),
		} {
			may, _ := auth.ParseScope(scope)
			need, _ := auth.ParseScope(needs)
			if may.Includes(need) == (resp.status == 403) || resp.status == 401 {
				t.Errorf("scope %s, %s: %d", scope, resp.what, resp.status)
			}
		}
	}
	names := append([]string{"x", "ci / é 漢 🐶", "\u3000a\u00A0", strings.Repeat("🐶", 100)}, awkwardNames...)
	for _, name := range names {
		if len([]rune(name)) > 100 || strings.TrimSpace(name) == "" || strings.ContainsAny(name, "\t\r\n") {
			continue
		}
		if got := p.makeKey(name, "read").Name; got != name {
			t.Errorf("the name %q was returned as %q", name, got)
		}
	}
}

func TestAPIKeyExpiry(t *testing.T) {
	t.Parallel()
	p := start(t)
	expiring := func(at string) *response {
		t.Helper()
		return p.post(keysPath, object{"name": "x", "scope": "read", "expiresAt": at})
	}
	soon := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	for sent, want := range map[string]time.Time{
		soon.Format(time.RFC3339Nano):                               soon,
		soon.In(time.FixedZone("", 19800)).Format(time.RFC3339Nano): soon,
		soon.Format("2006-01-02T15:04:05.000000") + "999Z":          soon,
		"9999-12-31T23:59:59.999999Z":                               time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC),
	} {
		made := expiring(sent).wantSecret()
		if made.ExpiresAt == nil || !made.ExpiresAt.Equal(want) || !p.works(made.Secret) {
			t.Errorf("expiresAt %s was returned as %v", sent, made.ExpiresAt)
		}
	}
	for _, sent := range []string{
		time.Now().Add(-time.Second).UTC().Format(time.RFC3339Nano),
		time.Now().UTC().Format(time.RFC3339Nano), // in the past when the request arrives
		"0001-01-01T00:00:00Z",
		"2026-01-01T00:00:00+23:59",
	} {
		expiring(sent).wantViolations("validation_failed", "/expiresAt out_of_range")
	}
	for _, sent := range []string{"", "tomorrow", "2099-01-01", "2099-01-01T00:00:00", "2099-02-30T00:00:00Z", "10000-01-01T00:00:00Z", "2099-01-01 00:00:00Z", "2098-12-31t23:59:60z"} {
		expiring(sent).wantViolations("validation_failed", "/expiresAt invalid_format")
	}
}

func TestAPIKeyBodies(t *testing.T) {
	t.Parallel()
	p := start(t)
	rotation := rotatePath(p.makeKey("x", "read").ID)
	before := len(p.keys())
	for _, test := range []struct {
		what, target string
		body         any
		want         []string
	}{
		{"nothing", keysPath, `{}`, []string{"/name required", "/scope required"}},
		{"nulls", keysPath, `{"name":null,"scope":null,"expiresAt":null}`, []string{"/name null_not_allowed", "/scope null_not_allowed", "/expiresAt null_not_allowed"}},
		{"numbers", keysPath, `{"name":1,"scope":3,"expiresAt":1798761600}`, []string{"/name wrong_type", "/scope wrong_type", "/expiresAt wrong_type"}},
		{"an empty name", keysPath, `{"name":"","scope":"read"}`, []string{"/name too_short"}},
		{"a blank name", keysPath, object{"name": whiteSpace[5:6] + "\u3000", "scope": "read"}, []string{"/name blank"}},
		{"a long name", keysPath, object{"name": strings.Repeat("n", 101), "scope": "read"}, []string{"/name too_long"}},
		{"control characters", keysPath, `{"name":"a\u009Fb","scope":"read"}`, []string{"/name invalid_characters"}},
		{"U+0000", keysPath, `{"name":"a\u0000b","scope":"read\u0000"}`, []string{"/name invalid_characters", "/scope invalid_characters"}},
		{"unknown scope", keysPath, `{"name":"x","scope":"root"}`, []string{"/scope not_in_enum"}},
		{"scope in the wrong case", keysPath, `{"name":"x","scope":"Admin"}`, []string{"/scope not_in_enum"}},
		{"two scopes", keysPath, `{"name":"x","scope":["read","write"]}`, []string{"/scope wrong_type"}},
		{
			"read-only fields", keysPath, `{"name":"x","scope":"read","id":1,"prefix":"petstore_00000000","createdAt":"2026-01-01T00:00:00Z","lastUsedAt":null,"revokedAt":null,"secret":"x"}`,
			[]string{"/id read_only", "/prefix read_only", "/createdAt read_only", "/lastUsedAt read_only", "/revokedAt read_only", "/secret read_only"},
		},
		{"accountId of another account", keysPath, `{"name":"x","scope":"read","accountId":1,"account":"x"}`, []string{"/accountId unknown_field", "/account unknown_field"}},
		{"negative grace", rotation, `{"graceSeconds":-1}`, []string{"/graceSeconds out_of_range"}},
		{"too much grace", rotation, `{"graceSeconds":86401}`, []string{"/graceSeconds out_of_range"}},
		{"infinite grace", rotation, `{"graceSeconds":18446744073709551617}`, []string{"/graceSeconds out_of_range"}},
		{"a fraction", rotation, `{"graceSeconds":1.5}`, []string{"/graceSeconds wrong_type"}},
		{"an exponent", rotation, `{"graceSeconds":1e2}`, []string{"/graceSeconds wrong_type"}},
		{"a string", rotation, `{"graceSeconds":"60"}`, []string{"/graceSeconds wrong_type"}},
		{"null", rotation, `{"graceSeconds":null}`, []string{"/graceSeconds null_not_allowed"}},
		{"not an object", rotation, `null`, []string{" wrong_type"}},
		{"a misspelled field", rotation, `{"grace":60,"name":"x"}`, []string{"/grace unknown_field", "/name unknown_field"}},
	} {
		t.Run(test.what, func(t *testing.T) {
			p.in(t).post(test.target, test.body).wantViolations("validation_failed", test.want...)
		})
	}
	p.post(rotation, " ").wantError(400, "invalid_json")
	p.post(rotation, "{}{}").wantError(400, "invalid_json")
	p.post(rotation, strings.Repeat(" ", maxBodyBytes+1)).wantError(413, "body_too_large")
	if after := len(p.keys()); after != before {
		t.Errorf("%d keys, want %d as before", after, before)
	}
}

// TestRotationWithoutABody: an absent body is the same as {} and needs no
// Content-Type.
func TestRotationWithoutABody(t *testing.T) {
	t.Parallel()
	p := start(t)
	made := p.makeKey("x", "read")
	rotation := rotatePath(made.ID)
	for _, body := range []any{nil, "", "{}", object{"graceSeconds": 0}} {
		rotated := p.post(rotation, body).wantSecret()
		p.wantWork(map[string]bool{made.Secret: false, rotated.Secret: true})
		made = rotated
	}
	for _, resp := range []*response{
		p.do("POST", rotation, "", "Content-Type", "text/plain"),
		p.do("POST", rotation, "{}", "Content-Type", ""),
		p.do("POST", rotation, "{}", "Content-Type", "text/plain"),
		p.do("POST", rotation, nil, "Content-Encoding", "gzip"),
		p.do("POST", keysPath, nil),
		p.do("POST", "/messages", nil),
	} {
		resp.wantError(400, "unsupported_content_type")
	}
	p.wantWork(map[string]bool{made.Secret: true})
}

// TestSecretsRejectIdempotencyKeys: the header is rejected with any value, after
// the parameters and before the body are checked.
func TestSecretsRejectIdempotencyKeys(t *testing.T) {
	t.Parallel()
	p := start(t)
	made := p.makeKey("x", "read")
	for _, target := range []string{keysPath, rotatePath(made.ID)} {
		for _, values := range [][]string{{"x"}, {""}, {"a b"}, {"x", "y"}, {strings.Repeat("x", 256)}} {
			p.withHeader("Idempotency-Key", values, "POST", target, []byte(`{}`)).
				wantViolations("invalid_idempotency_key", "Idempotency-Key not_allowed")
		}
		p.under("x", target, "{").wantError(400, "invalid_idempotency_key")
		p.under("x", target, strings.Repeat(" ", maxBodyBytes+1)).wantError(400, "invalid_idempotency_key")
		p.under("x", target+"?x", "{").wantError(400, "invalid_parameter")
	}
	p.do("POST", rotatePath(made.ID), nil, "Idempotency-Key", "x").wantError(400, "invalid_idempotency_key")
	p.under("x", rotatePath(0), "{").wantError(400, "invalid_parameter")
	p.under("x", rotatePath(made.ID+1), "{}").wantError(400, "invalid_idempotency_key")
	p.wantWork(map[string]bool{made.Secret: true})
	if kept := p.count("idempotency_keys"); kept > 0 || len(p.keys()) != 2 {
		t.Errorf("%d responses were stored; the keys are %v", kept, p.keys())
	}
	p.do("DELETE", keyPath(made.ID), nil, "Idempotency-Key", "a b").want(204) // DELETE ignores the header
}

// TestOrderOfChecksWithOptionalBody is TestOrderOfChecks for an operation with an
// optional body.
func TestOrderOfChecksWithOptionalBody(t *testing.T) {
	t.Parallel()
	p := start(t)
	writer := p.newKey("tester", auth.Write)
	id := p.makeKey("x", "read").ID
	tooLarge := strings.Repeat(" ", maxBodyBytes+1)
	wrong := "/account/api-keys/0/rotate?x"
	for _, step := range []struct {
		target, key, accept, contentType string
		body                             any
		status                           int
		code                             string
	}{
		{wrong, "", "text/html", "text/plain", tooLarge, 401, "missing_api_key"},
		{wrong, writer, "text/html", "text/plain", tooLarge, 403, "insufficient_scope"},
		{wrong, p.key, "text/html", "text/plain", tooLarge, 406, "not_acceptable"},
		{wrong, p.key, "", "text/plain", tooLarge, 400, "unsupported_content_type"},
		{wrong, p.key, "", "application/json", tooLarge, 400, "invalid_parameter"},
		{wrong, p.key, "", "", nil, 400, "invalid_parameter"},
		{rotatePath(id + 1), p.key, "", "application/json", tooLarge, 413, "body_too_large"},
		{rotatePath(id + 1), p.key, "", "application/json", "{", 400, "invalid_json"},
		{rotatePath(id + 1), p.key, "", "application/json", "[]", 400, "validation_failed"},
		{rotatePath(id + 1), p.key, "", "application/json", "{}", 404, "api_key_not_found"},
		{rotatePath(id + 1), p.key, "", "", nil, 404, "api_key_not_found"},
	} {
		p.as(step.key).do("POST", step.target, step.body, "Accept", step.accept, "Content-Type", step.contentType).wantError(step.status, step.code)
	}
}

// TestListAPIKeys: the list has the keys of the account by id, and revoked keys for
// 30 days.
func TestListAPIKeys(t *testing.T) {
	t.Parallel()
	p := start(t)
	other := p.as(p.newKey("another", auth.Admin))
	for i := range 11 {
		p.makeKey(fmt.Sprintf("key %d", i), "read")
		other.makeKey("another's", "write")
	}
	revoked := func(id int64, age string) {
		t.Helper()
		if _, err := p.db.Exec(t.Context(), "UPDATE api_keys SET revoked_at = now() - $2::interval WHERE id = $1", id, age); err != nil {
			t.Fatal(err)
		}
	}
	all := slices.Sorted(maps.Keys(p.keys()))
	if len(all) != 12 {
		t.Fatalf("%d keys", len(all))
	}
	revoked(all[3], "1 second")
	revoked(all[5], "29 days 23:59")
	revoked(all[7], "30 days 00:01")
	revoked(all[8], "1 year")
	var want []apiKey
	for _, id := range slices.Delete(slices.Clone(all), 7, 9) {
		one := p.keys()[id]
		if (one.RevokedAt != nil) != (id == all[3] || id == all[5]) {
			t.Errorf("key %d has revokedAt %v", id, one.RevokedAt)
		}
		want = append(want, one)
	}
	walkAll(p, keysPath, nil, want)
	p.get(keyPath(all[5])).want(200)
	p.get(keyPath(all[7])).wantError(404, "api_key_not_found")
	if got := len(other.keys()); got != 12 {
		t.Errorf("the other account has %d keys", got)
	}
	for _, target := range []string{"?sort=id", "?name=key", "?scope=read"} {
		p.get(keysPath+target).wantViolations("invalid_parameter", target[1:strings.Index(target, "=")]+" unknown")
	}
	// a cursor is valid only for the account that received it
	next := p.get(keysPath + "?limit=1").want(200).link("next")
	other.get(next).wantError(400, "invalid_cursor")
	p.get("/messages?cursor="+next[strings.Index(next, "cursor=")+len("cursor="):strings.LastIndex(next, "&")]).wantError(400, "invalid_cursor")

	p.copy("api_keys", []string{"account_id", "name", "scope", "prefix", "secret_sha256"}, 200, func(i int) []any {
		hash := auth.NewSecret().Hash()
		return []any{p.accountID(), fmt.Sprint(i), "read", "petstore_00000000", hash[:]}
	})
	for target, want := range map[string]int{"": 50, "?limit=200": 200} {
		if got := len(decode[[]json.RawMessage](p.get(keysPath + target).want(200))); got != want {
			t.Errorf("%q: %d keys, want %d", target, got, want)
		}
	}
}

func TestRotate(t *testing.T) {
	t.Parallel()
	p := start(t)
	expiresAt := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	first := p.post(keysPath, object{"name": "x", "scope": "write", "expiresAt": expiresAt}).wantSecret()
	p.wantWork(map[string]bool{first.Secret: true})

	second := p.post(rotatePath(first.ID), object{"graceSeconds": 86400}).wantSecret()
	want := first
	want.Secret, want.Prefix = second.Secret, second.Prefix
	if diff := cmp.Diff(want, second); diff != "" || second.Secret == first.Secret || second.Prefix == first.Prefix {
		t.Errorf("rotated key (-want +got):\n%s", diff)
	}
	want.Secret = ""
	if diff := cmp.Diff(want, p.keys()[first.ID]); diff != "" {
		t.Errorf("key in the list (-want +got):\n%s", diff)
	}
	p.wantWork(map[string]bool{first.Secret: true, second.Secret: true})

	// a second rotation ends the oldest secret, even within its grace
	third := p.post(rotatePath(first.ID), object{"graceSeconds": 60}).wantSecret()
	p.wantWork(map[string]bool{first.Secret: false, second.Secret: true, third.Secret: true})
	fourth := p.post(rotatePath(first.ID), nil).wantSecret()
	p.wantWork(map[string]bool{first.Secret: false, second.Secret: false, third.Secret: false, fourth.Secret: true})

	// the key that signs the request
	admin := p.makeKey("admin", "admin")
	renewed := p.as(admin.Secret).post(rotatePath(admin.ID), nil).wantSecret()
	p.wantWork(map[string]bool{admin.Secret: false, renewed.Secret: true})
}

// TestGraceEnds: the old secret works exactly until its grace ends, also on a
// server that has cached it.
func TestGraceEnds(t *testing.T) {
	t.Parallel()
	p := start(t)
	first := p.makeKey("x", "read")
	second := p.post(rotatePath(first.ID), object{"graceSeconds": 1}).wantSecret()
	var until time.Time
	if err := p.db.QueryRow(t.Context(), "SELECT previous_until FROM api_keys WHERE id = $1", first.ID).Scan(&until); err != nil {
		t.Fatal(err)
	}
	old := p.as(first.Secret)
	eventually(t, 5*time.Second, func() bool {
		p.verifier.Trust()
		began := time.Now()
		resp := old.get("/pets")
		if resp.status == 200 && !began.Before(until) {
			t.Fatalf("the secret still worked %s after its grace", began.Sub(until))
		}
		if resp.status == 401 && time.Now().Before(until) {
			t.Fatalf("the secret stopped working %s before the end of its grace", time.Until(until))
		}
		return resp.status == 401
	})
	p.wantWork(map[string]bool{first.Secret: false, second.Secret: true})
}

// TestRotateExpired: rotating an expired key returns a new secret but does not
// extend its life.
func TestRotateExpired(t *testing.T) {
	t.Parallel()
	p := start(t)
	past := time.Now().Add(-time.Minute).UTC().Truncate(time.Microsecond)
	id, secret := p.issue(auth.Read, &past)
	rotated := p.post(rotatePath(id), object{"graceSeconds": 60}).wantSecret()
	if rotated.ExpiresAt == nil || !rotated.ExpiresAt.Equal(past) {
		t.Errorf("expiresAt is %v", rotated.ExpiresAt)
	}
	p.wantWork(map[string]bool{secret: false, rotated.Secret: false})
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	p := start(t)
	first := p.makeKey("x", "read")
	second := p.post(rotatePath(first.ID), object{"graceSeconds": 60}).wantSecret()
	p.wantWork(map[string]bool{first.Secret: true, second.Secret: true})
	began := time.Now().Add(-time.Minute)
	p.del(keyPath(first.ID)).want(204)
	p.wantWork(map[string]bool{first.Secret: false, second.Secret: false})
	at := p.keys()[first.ID].RevokedAt
	if at == nil || at.Before(began) {
		t.Errorf("revokedAt is %v", at)
	}
	p.post(rotatePath(first.ID), object{"graceSeconds": 60}).wantError(404, "api_key_not_found")
	p.del(keyPath(first.ID)).want(204)
	if again := p.keys()[first.ID].RevokedAt; again == nil || !again.Equal(*at) {
		t.Errorf("revoking again returned %v, want %v", again, at)
	}
	p.wantWork(map[string]bool{first.Secret: false, second.Secret: false})

	// a key may revoke itself
	self := p.makeKey("self", "admin")
	p.as(self.Secret).del(keyPath(self.ID)).want(204)
	p.wantWork(map[string]bool{self.Secret: false})
}

// TestLastAdminKey checks that the API does not revoke the last live admin key of
// an account, and that its operator can.
func TestLastAdminKey(t *testing.T) {
	t.Parallel()
	p := start(t)
	past := time.Now().Add(-time.Minute)
	expired, _ := p.issue(auth.Admin, &past)
	revoked, _ := p.issue(auth.Admin, nil)
	p.revoke(revoked)
	p.newKey("bob", auth.Admin) // keys of other accounts do not count
	writer := p.makeKey("writer", "write")
	p.del(keyPath(p.keyID())).wantError(409, "last_admin_key")
	p.del(keyPath(expired)).want(204)
	p.del(keyPath(revoked)).want(204)
	p.del(keyPath(writer.ID)).want(204)
	p.get(keysPath).want(200)

	future := time.Now().Add(time.Hour)
	nextID, next := p.issue(auth.Admin, &future)
	p.del(keyPath(p.keyID())).want(204)
	p.get(keysPath).wantError(401, "invalid_api_key")
	p = p.as(next)
	p.del(keyPath(nextID)).wantError(409, "last_admin_key")
	p.revoke(nextID)
	p.verifier.Forget()
	p.get(keysPath).wantError(401, "invalid_api_key")
}

// TestAdminsRevokeEachOther checks that one of two admin keys stays when both
// requests have seen the other's key as valid.
func TestAdminsRevokeEachOther(t *testing.T) {
	t.Parallel()
	p := startAlone(t)
	one := p.makeKey("one", "admin")
	two := p.makeKey("two", "admin")
	p.revoke(p.keyID())
	tx, err := p.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }() // has no effect after the commit
	if _, err := tx.Exec(t.Context(), "SELECT FROM api_keys WHERE id = ANY ($1) ORDER BY id FOR UPDATE", []int64{one.ID, two.ID}); err != nil {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	go func() {
		released <- errors.Join(p.awaitWaiting(2), tx.Commit(t.Context()))
	}()
	responses := make([]*response, 2)
	atOnce(t, 2, func(i int) (err error) {
		admins, targets := []apiKey{one, two}, []apiKey{two, one}
		responses[i], err = p.as(admins[i].Secret).try("DELETE", keyPath(targets[i].ID), nil)
		return err
	})
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	statuses := []int{responses[0].status, responses[1].status}
	slices.Sort(statuses)
	if diff := cmp.Diff([]int{204, 409}, statuses); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}
}

// TestRevokedWhileTheBodyArrives checks that a request does nothing when its key
// was revoked before its body arrived.
func TestRevokedWhileTheBodyArrives(t *testing.T) {
	t.Parallel()
	p := start(t)
	writer := p.makeKey("writer", "write")
	finish := p.as(writer.Secret).slowly()
	p.del(keyPath(writer.ID)).want(204)
	if status := finish(); status != 401 {
		t.Errorf("status %d, want 401", status)
	}
	if finish := p.slowly(); finish() != 202 {
		t.Error("a slow body with a valid key was rejected")
	}
	if got := len(p.contents([]string{"messages"})["messages"]); got != 1 {
		t.Errorf("%d messages were stored, want 1", got)
	}
}

// TestKeysBelongToAnAccount: a client can neither see nor change the keys of
// another account.
func TestKeysBelongToAnAccount(t *testing.T) {
	t.Parallel()
	p := start(t)
	bob := p.as(p.newKey("bob", auth.Admin))
	mine := p.makeKey("mine", "admin")
	if _, seen := bob.keys()[mine.ID]; seen || len(bob.keys()) != 1 {
		t.Errorf("bob's list of keys: %+v", bob.keys())
	}
	before := p.keys()
	bob.post(rotatePath(mine.ID), object{"graceSeconds": 60}).wantError(404, "api_key_not_found")
	bob.del(keyPath(mine.ID)).wantError(404, "api_key_not_found")
	if diff := cmp.Diff(before, p.keys()); diff != "" {
		t.Errorf("bob's keys changed (-before +after):\n%s", diff)
	}
	p.wantWork(map[string]bool{mine.Secret: true})
	if made := bob.makeKey("bob's", "read"); len(p.keys()) != len(before) || !strings.Contains(string(p.as(made.Secret).get("/account").body), `"`+p.named("bob")+`"`) {
		t.Errorf("the list of bob's keys contains key %d of another account", made.ID)
	}
}

// TestLastUsedAt checks lastUsedAt after the server has written it.
func TestLastUsedAt(t *testing.T) {
	t.Parallel()
	p := start(t).readingPrimary() // FlushUses returns no token
	made := p.makeKey("x", "read")
	began := time.Now().Add(-time.Millisecond)
	p.as(made.Secret).get("/pets").want(200)
	p.as(made.Secret).post("/pets", object{}).wantError(403, "insufficient_scope")
	ended := time.Now()
	if at := p.keys()[made.ID].LastUsedAt; at != nil {
		t.Errorf("lastUsedAt is %s, written while a request ran", at)
	}
	if err := p.verifier.FlushUses(t.Context()); err != nil {
		t.Fatal(err)
	}
	at := p.keys()[made.ID].LastUsedAt
	if at == nil || at.Before(began) || at.After(ended) {
		t.Errorf("lastUsedAt is %v, want a time between %s and %s", at, began, ended)
	}
	if got := string(p.as(made.Secret).get("/account").body); !strings.Contains(got, `"lastUsedAt"`) {
		t.Errorf("account: %s", got)
	}
}

// TestSecretsAreNowhere checks that a secret is only in the response that creates
// it, and not in other responses, the log or the database.
func TestSecretsAreNowhere(t *testing.T) {
	t.Parallel()
	p := startAlone(t)
	made := p.makeKey("x", "admin")
	rotated := p.post(rotatePath(made.ID), object{"graceSeconds": 60}).wantSecret()
	seen := map[string]string{}
	for _, client := range []*petstore{p, p.as(made.Secret), p.as(rotated.Secret)} {
		for _, resp := range []*response{
			client.get("/account"), client.get(keysPath), client.get(keysPath + "?secret=" + made.Secret), client.get("/" + made.Secret),
			client.post(keysPath, object{"name": made.Secret[:20], "scope": made.Secret}), client.del(keyPath(1 << 40)),
			client.do("GET", "/pets", nil, "Accept", made.Secret), client.do("POST", "/pets", made.Secret),
		} {
			seen[resp.what] += string(resp.body) + fmt.Sprint(resp.header)
		}
	}
	p.del(keyPath(made.ID)).want(204)
	p.as(rotated.Secret).get("/account").wantError(401, "invalid_api_key")
	seen["the log"] = p.log.String()
	for table, rows := range p.contents([]string{"accounts", "api_keys", "messages", "idempotency_keys"}) {
		seen["the table "+table] = strings.Join(rows, "\n")
	}
	for where, text := range seen {
		for _, secret := range []string{made.Secret, rotated.Secret} {
			if hidden := secret[len("petstore_")+8:]; strings.Contains(text, hidden) && !strings.Contains(where, secret) {
				t.Errorf("%s contains a secret: %s", where, text)
			}
			hash := secretHash(secret)
			if strings.Contains(text, hash) != (where == "the table api_keys") {
				t.Errorf("%s: contains the hash %s", where, hash)
			}
		}
	}
}

// secretHash returns the stored hash of a secret, as Postgres prints it.
func secretHash(text string) string {
	secret, _ := auth.ParseSecret(text)
	return fmt.Sprintf("%x", secret.Hash())
}

// TestRaceOfRotations: each of many concurrent rotations returns a secret, and the
// last one wins. The secret before it keeps its grace, and all others stop working.
func TestRaceOfRotations(t *testing.T) {
	t.Parallel()
	const clients = 12
	database := pgtest.New(t)
	p := startOn(t, database)
	servers := []*petstore{p, startOn(t, database).as(p.key)}
	for grace, left := range map[int]int{0: 1, 60: 2} {
		first := p.makeKey("x", "read")
		responses := make([]*response, clients)
		atOnce(t, clients, func(i int) (err error) {
			responses[i], err = servers[i%2].try("POST", rotatePath(first.ID), object{"graceSeconds": grace})
			return err
		})
		prefix := p.keys()[first.ID].Prefix
		for _, server := range servers {
			server.verifier.Forget() // stands in for the notification to the other server
			var working []string
			for _, resp := range responses {
				if made := resp.wantSecret(); server.works(made.Secret) {
					working = append(working, made.Prefix)
				}
			}
			if len(working) != left || !slices.Contains(working, prefix) || server.works(first.Secret) {
				t.Errorf("grace %d: %v work; the prefix of the key is %s", grace, working, prefix)
			}
		}
	}
}

// TestChangesOfOtherKeys: this process need not look up a key again because another key is
// rotated or revoked, or a sandbox deleted.
func TestChangesOfOtherKeys(t *testing.T) {
	t.Parallel()
	p := start(t)
	other, key, sandbox := p.newKey("another", auth.Read), p.makeKey("x", "read"), p.newSandbox("x", "empty")
	lookups := func() uint64 {
		_, before := p.verifier.Lookups()
		p.verifier.Trust()
		if _, err := p.verifier.Verify(t.Context(), other, nil); err != nil {
			t.Error(err)
		}
		_, after := p.verifier.Lookups()
		return after - before
	}
	lookups()
	wantNone := func(what string) {
		t.Helper()
		if got := lookups(); got != 0 {
			t.Errorf("after %s: %d lookups of a key of another account, want 0", what, got)
		}
	}
	for range 100 {
		p.post(rotatePath(key.ID), nil).wantSecret()
		wantNone("a rotation")
	}
	p.del(keyPath(key.ID)).want(204)
	wantNone("a revocation")
	p.del(sandbox.path()).want(204)
	wantNone("the deletion of a sandbox")
}

// TestRaceOfRotateAndRevoke: in any order, no secret works in the end.
func TestRaceOfRotateAndRevoke(t *testing.T) {
	t.Parallel()
	p := start(t)
	ends := map[int]int{}
	for range 20 {
		first := p.makeKey("x", "read")
		var resp *response
		atOnce(t, 2, func(i int) (err error) {
			if i == 0 {
				resp, err = p.try("POST", rotatePath(first.ID), object{"graceSeconds": 60})
				return err
			}
			gone, err := p.try("DELETE", keyPath(first.ID), nil)
			if err == nil && gone.status != 204 {
				err = errors.New(string(gone.body))
			}
			return err
		})
		ends[resp.status]++
		secrets := map[string]bool{first.Secret: false}
		if resp.status == 201 {
			secrets[resp.wantSecret().Secret] = false
		} else {
			resp.wantError(404, "api_key_not_found")
		}
		p.wantWork(secrets)
	}
	t.Log(ends)
}

// rotateAway rotates a key without grace, as `petstore key rotate` does.
func (p *petstore) rotateAway(id int64) {
	p.t.Helper()
	found, err := db.New(p.db).APIKeyFind(p.t.Context(), db.APIKeyFindParams{ID: &id})
	if err != nil || len(found) != 1 {
		p.t.Fatalf("found %+v: %v", found, err)
	}
	if _, _, err := auth.Rotate(p.t.Context(), db.New(p.db), found[0].AccountID, id, 0); err != nil {
		p.t.Fatal(err)
	}
}

// revokeOver revokes a key over HTTP.
func (p *petstore) revokeOver(id int64) {
	p.t.Helper()
	p.del(keyPath(id)).want(204)
}

// rotateOver rotates a key over HTTP, without grace.
func (p *petstore) rotateOver(id int64) {
	p.t.Helper()
	p.post(rotatePath(id), nil).wantSecret()
}

// TestAccountOfNewKey: a key that a replica does not have yet is not reported as invalid.
func TestAccountOfNewKey(t *testing.T) {
	t.Parallel()
	r := startReplicated(t)
	r.pair.Standby.Pause()
	made := r.makeKey("new", "read")
	got := decode[struct{ APIKey apiKey }](r.as(made.Secret).do("GET", "/account", nil, "Prefer", "consistency=eventual").want(200))
	if got.APIKey.ID != made.ID {
		t.Errorf("GET /account returns the key %d, want %d", got.APIKey.ID, made.ID)
	}
}
