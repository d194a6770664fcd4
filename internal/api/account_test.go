package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"petstore/db"
	stores "petstore/internal/account"
	"petstore/internal/auth"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
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

// wantSecret fails the test unless the response contains a secret. It returns the key.
func (r *response) wantSecret() apiKey {
	r.t.Helper()
	made := decode[apiKey](r.want(201))
	r.wantHeader("Cache-Control", "no-store").wantHeader("ETag", "").wantHeader("Location", keyPath(made.ID))
	secret, err := auth.ParseSecret(made.Secret)
	if err != nil || secret.Prefix() != made.Prefix {
		r.t.Errorf("%s: the secret is malformed or does not start with the prefix %s: %v", r.what, made.Prefix, err)
	}
	return made
}

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
	need.Same(p.t, want, got, "accepted secrets")
}

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
		stored := need.Value(db.New(p.db).AccountGetByName(t.Context(), p.named("acme")))(t)
		if got.ID != fmt.Sprint("acc_", stored.ID) || got.Name != p.named("acme") || got.CreatedAt.Before(began) {
			t.Errorf("account: %s", resp.body)
		}
		key := got.APIKey
		if key.ID == 0 || key.Name != "test" || key.Scope != scope.String() || key.Prefix != secret[:len("petstore_")+8] ||
			key.CreatedAt.Before(began) || key.ExpiresAt != nil || key.LastUsedAt != nil || key.RevokedAt != nil {
			t.Errorf("key: %s", resp.body)
		}
		resp.wantHeader("Cache-Control", "private, no-store")
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
	}
	for _, name := range []string{"x", "ci / e\u0301 漢 🐶", "\u3000a\u00A0", strings.Repeat("🐶", 100)} {
		need.Same(t, name, p.makeKey(name, "read").Name, "the returned name")
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
	expiring("tomorrow").wantViolations("validation_failed", "/expiresAt invalid_format")
}

// TestRotationWithoutABody: an absent body is the same as {} and needs no Content-Type.
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

	// The server learns only at the end that there is no body.
	chunked := func(body string) *response {
		return p.sent(p.request(t.Context(), "POST", rotation, io.MultiReader(strings.NewReader(body)), "Content-Type", ""), []byte(body))
	}
	chunked("{}").wantError(400, "unsupported_content_type")
	rotated := chunked("").wantSecret()
	p.wantWork(map[string]bool{made.Secret: false, rotated.Secret: true})
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
	need.Same(t, 0, p.count("idempotency_keys"), "stored responses")
	need.Same(t, 2, len(p.keys()), "keys")
	p.do("DELETE", keyPath(made.ID), nil, "Idempotency-Key", "a b").want(204) // DELETE ignores the header
}

// TestListAPIKeys: the list has the keys of the account by id, and revoked keys for 30 days.
func TestListAPIKeys(t *testing.T) {
	t.Parallel()
	p := start(t)
	for i := range 11 {
		p.makeKey(fmt.Sprintf("key %d", i), "read")
	}
	revoked := func(id int64, age string) {
		t.Helper()
		p.exec("UPDATE api_keys SET revoked_at = now() - $2::interval WHERE id = $1", id, age)
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
		need.Same(t, id == all[3] || id == all[5], one.RevokedAt != nil, "whether key %d is revoked", id)
		want = append(want, one)
	}
	walkAll(p, keysPath, nil, want)
	p.get(keyPath(all[5])).want(200)
	p.get(keyPath(all[7])).wantError(404, "api_key_not_found")

	p.copyKeys(200, nil)
	for target, want := range map[string]int{"": 50, "?limit=200": 200} {
		need.Same(t, want, len(decode[[]json.RawMessage](p.get(keysPath+target).want(200))), "keys of %q", target)
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
	need.Same(t, want, second, "rotated key")
	if second.Secret == first.Secret || second.Prefix == first.Prefix {
		t.Errorf("the rotated key %s is the one before", second.Prefix)
	}
	want.Secret = ""
	need.Same(t, want, p.keys()[first.ID], "key in the list")
	p.wantWork(map[string]bool{first.Secret: true, second.Secret: true})

	// the key that signs the request
	admin := p.makeKey("admin", "admin")
	renewed := p.as(admin.Secret).post(rotatePath(admin.ID), nil).wantSecret()
	p.wantWork(map[string]bool{admin.Secret: false, renewed.Secret: true})
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
	need.Same(t, at, p.keys()[first.ID].RevokedAt, "revokedAt after revoking again")
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
	p := startAlone(t).patient()
	one := p.makeKey("one", "admin")
	two := p.makeKey("two", "admin")
	p.revoke(p.keyID())
	tx := pgtest.Begin(t, p.db)
	pgtest.Exec(t, tx, "SELECT FROM api_keys WHERE id = ANY ($1) ORDER BY id FOR UPDATE", []int64{one.ID, two.ID})
	released := background(func() error { return errors.Join(p.awaitWaiting(2), tx.Commit(t.Context())) })
	ends := outcomes(allAtOnce(t, 2, func(i int) (*response, error) {
		admins, targets := []apiKey{one, two}, []apiKey{two, one}
		return p.as(admins[i].Secret).try("DELETE", keyPath(targets[i].ID), nil)
	}))
	need.OK(t, released())
	need.Same(t, map[string]int{"204": 1, "409 last_admin_key": 1}, ends, "responses")
}

// TestRevokedWhileTheBodyArrives checks that a request does nothing when its key
// was revoked before its body arrived.
func TestRevokedWhileTheBodyArrives(t *testing.T) {
	t.Parallel()
	p := start(t)
	writer := p.makeKey("writer", "write")
	finish := p.as(writer.Secret).slowly()
	p.del(keyPath(writer.ID)).want(204)
	finish().want(401)
	p.slowly()().want(202)
	need.Same(t, 1, p.count("messages"), "stored messages")
}

// TestRevokedWhileABodyWaits: a write has no effect when its key was revoked while the large body waited
// for its decoding.
func TestRevokedWhileABodyWaits(t *testing.T) {
	t.Parallel()
	p := start(t).patient()
	writer := p.makeKey("writer", "write")
	need.OK(t, p.server.Decodings().Take(t.Context(), p.accountID(), 1))
	created := p.as(writer.Secret).begin("POST", "/categories", padded("large", 4<<10))
	need.Within(t, 30*time.Second, "the body waits", p.server.Decodings().IsContended)
	p.del(keyPath(writer.ID)).want(204)
	p.server.Decodings().Give(p.accountID(), 1)
	created().want(401)
}

// TestRevokedWhileALockIsHeld: a change of keys or sandboxes has no effect when its key was revoked while
// it waited for a lock.
func TestRevokedWhileALockIsHeld(t *testing.T) {
	t.Parallel()
	p := startAlone(t).patient()
	made := p.newSandbox("one", "empty")
	id, _ := stores.ParseSandboxID(made.ID)
	row := need.Value(db.New(p.db).AccountGet(t.Context(), id))(t)
	tests := []struct {
		lock    func(*db.Queries, context.Context, int64) error
		account int64
		target  string
		body    any
	}{
		{(*db.Queries).KeysLock, p.accountID(), keysPath, object{"name": "new", "scope": "admin"}},
		{(*db.Queries).StoreLock, *row.SampleID, sandboxesPath, object{"sample": "empty"}},
		{(*db.Queries).StoreLock, id, made.path() + "/reset", nil},
	}
	for _, test := range tests {
		leaked := p.makeKey("leaked", "admin")
		release := p.locked(test.account, test.lock)
		received := p.as(leaked.Secret).begin("POST", test.target, test.body)
		need.OK(t, p.awaitWaiting(1))
		p.del(keyPath(leaked.ID)).want(204)
		release()
		received().wantError(401, "invalid_api_key")
	}
	need.Same(t, 1+len(tests), len(p.keys()), "keys")
	need.Same(t, 1, len(walk[sandbox](p, sandboxesPath)), "sandboxes")
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
	need.Same(t, nil, p.keys()[made.ID].LastUsedAt, "lastUsedAt while a request ran")
	need.OK(t, p.verifier.FlushUses(t.Context()))
	at := p.keys()[made.ID].LastUsedAt
	if at == nil || at.Before(began) || at.After(ended) {
		t.Errorf("lastUsedAt is %v, want a time between %s and %s", at, began, ended)
	}
	need.Contains(t, "the account", string(p.as(made.Secret).get("/account").body), `"lastUsedAt"`)
}

// TestSecretsAreNowhere checks that a secret is only in the response that creates
// it, and not in other responses, the log or the database.
func TestSecretsAreNowhere(t *testing.T) {
	t.Parallel()
	p := startAlone(t)
	made := p.makeKey("x", "admin")
	rotated := p.post(rotatePath(made.ID), object{"graceSeconds": 60}).wantSecret()
	var seen strings.Builder // without the secrets, which searchResponse looks for
	for _, client := range []*petstore{p, p.as(made.Secret), p.as(rotated.Secret)} {
		for _, resp := range []*response{
			client.get("/account"), client.get(keysPath), client.get(keysPath + "?secret=" + made.Secret), client.get("/" + made.Secret),
			client.post(keysPath, object{"name": made.Secret[:20], "scope": made.Secret}), client.del(keyPath(1 << 40)),
			client.do("GET", "/pets", nil, "Accept", made.Secret), client.do("POST", "/pets", made.Secret),
		} {
			fmt.Fprintf(&seen, "%s %v\n", resp.body, resp.header)
		}
	}
	seen.WriteString(p.log.String())
	stored := p.rows()
	for _, secret := range []string{made.Secret, rotated.Secret} {
		for table, rows := range stored {
			text := strings.Join(rows, "\n")
			if strings.Contains(text, secret[len("petstore_")+8:]) || strings.Contains(text, secretHash(secret)) != (table == "api_keys") {
				t.Errorf("the table %s has %s", table, text)
			}
		}
		if strings.Contains(seen.String(), secretHash(secret)) {
			t.Errorf("a response or the log contains the hash %s", secretHash(secret))
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
		responses := allAtOnce(t, clients, func(i int) (*response, error) {
			return servers[i%2].try("POST", rotatePath(first.ID), object{"graceSeconds": grace})
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
	p.post(rotatePath(key.ID), nil).wantSecret()
	need.Same(t, 0, lookups(), "lookups of a key of another account after a rotation")
	p.del(keyPath(key.ID)).want(204)
	need.Same(t, 0, lookups(), "lookups of a key of another account after a revocation")
	p.del(sandbox.path()).want(204)
	need.Same(t, 0, lookups(), "lookups of a key of another account after the deletion of a sandbox")
}

// TestRaceOfRotateAndRevoke: in any order, no secret works in the end.
func TestRaceOfRotateAndRevoke(t *testing.T) {
	t.Parallel()
	p := start(t)
	ends := map[int]int{}
	for range 20 {
		first := p.makeKey("x", "read")
		responses := allAtOnce(t, 2, func(i int) (*response, error) {
			if i == 0 {
				return p.try("POST", rotatePath(first.ID), object{"graceSeconds": 60})
			}
			return p.try("DELETE", keyPath(first.ID), nil)
		})
		responses[1].want(204)
		resp := responses[0]
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
