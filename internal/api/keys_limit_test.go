package api_test

import (
	"fmt"
	"testing"
	"time"

	"petstore/internal/auth"
	"petstore/internal/tools/need"
)

// TestTooManyAPIKeys checks that an account has at most 100 live keys, also when many
// requests create keys at the same time.
func TestTooManyAPIKeys(t *testing.T) {
	t.Parallel()
	p := start(t)
	past := time.Now().Add(-time.Minute)
	p.issue(auth.Read, &past) // not live
	var lastID int64
	for range auth.MaxKeys - 5 { // one is the key of the test
		lastID, _ = p.issue(auth.Read, nil)
	}
	ends := outcomes(allAtOnce(t, 10, func(i int) (*response, error) {
		return p.try("POST", keysPath, object{"name": fmt.Sprint(i), "scope": "read"})
	}))
	need.Same(t, map[string]int{"201": 4, "409 too_many_api_keys": 6}, ends, "new keys")
	p.revoke(lastID)
	p.makeKey("after a revocation", "read")
	p.post(keysPath, object{"name": "one more", "scope": "read"}).wantError(409, "too_many_api_keys")
	p.as(p.newKey("another", auth.Admin)).makeKey("of another account", "read")
}

// copyKeys adds keys to the account, which may be revoked.
func (p *petstore) copyKeys(number int, revokedAt *time.Time) {
	p.t.Helper()
	account := p.accountID()
	columns := []string{"account_id", "name", "scope", "prefix", "secret_sha256", "revoked_at"}
	p.copy("api_keys", columns, number, func(i int) []any {
		hash := auth.NewSecret().Hash()
		return []any{account, fmt.Sprint(i), "read", "petstore_00000000", hash[:], revokedAt}
	})
}

// TestTooManyStoredKeys checks that an account has at most 10,000 keys, and that those revoked 30
// days ago make room for others.
func TestTooManyStoredKeys(t *testing.T) {
	t.Parallel()
	p := start(t)
	lately := time.Now().Add(-29 * 24 * time.Hour)
	p.copyKeys(auth.MaxStored-1, &lately)
	p.post(keysPath, object{"name": "new", "scope": "read"}).wantError(409, "too_many_api_keys")
	p.exec("UPDATE api_keys SET revoked_at = now() - interval '30 days 00:01' WHERE account_id = $1 AND revoked_at IS NOT NULL", p.accountID())
	p.makeKey("new", "read")
}

// TestExpiryBeyondCreator checks that a key expires no later than the key that creates it.
func TestExpiryBeyondCreator(t *testing.T) {
	t.Parallel()
	p := start(t)
	end := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	_, secret := p.issue(auth.Admin, &end)
	creator := p.as(secret)
	body := func(expiresAt time.Time) object {
		return object{"name": "new", "scope": "read", "expiresAt": expiresAt}
	}
	creator.post(keysPath, body(end.Add(time.Microsecond))).wantError(422, "expiry_beyond_creator")
	for _, one := range []struct {
		body object
		want time.Time
	}{
		{body(end), end},
		{body(end.Add(-time.Minute)), end.Add(-time.Minute)},
		{object{"name": "new", "scope": "read"}, end}, // the default
	} {
		key := decode[apiKey](creator.post(keysPath, one.body).want(201))
		need.Same(t, &one.want, key.ExpiresAt, "%v: expiresAt", one.body)
	}
	need.Same(t, nil, p.makeKey("forever", "read").ExpiresAt, "expiresAt of a key of a key without expiry")
}

// TestRotateBeyondCreator checks that a key rotates no key that expires later than itself,
// in the account and in a sandbox. A refused rotation changes nothing.
func TestRotateBeyondCreator(t *testing.T) {
	t.Parallel()
	account := start(t)
	sandbox := account.as(account.newSandbox("one", "empty").Key.Secret)
	for what, p := range map[string]*petstore{"account": account, "sandbox": sandbox} {
		end := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
		creator := p.post(keysPath, object{"name": "creator", "scope": "admin", "expiresAt": end}).wantSecret()
		for _, test := range []struct {
			what    string
			body    object
			refused bool
		}{
			{"without expiry", object{}, true}, // in a sandbox, with the sandbox
			{"later", object{"expiresAt": end.Add(time.Microsecond)}, true},
			{"at the same time", object{"expiresAt": end}, false},
			{"earlier", object{"expiresAt": end.Add(-time.Minute)}, false},
		} {
			test.body["name"], test.body["scope"] = "rotated", "read"
			key := p.post(keysPath, test.body).wantSecret()
			resp := p.as(creator.Secret).post(rotatePath(key.ID), object{"graceSeconds": 60})
			if test.refused {
				resp.wantError(422, "expiry_beyond_creator")
			} else if made := resp.wantSecret(); !p.works(made.Secret) {
				t.Errorf("%s: %s: the new secret does not work", what, test.what)
			}
			if prefix := p.keys()[key.ID].Prefix; !p.works(key.Secret) || test.refused && prefix != key.Prefix {
				t.Errorf("%s: %s: the rotation changed the key with the prefix %s to %s", what, test.what, key.Prefix, prefix)
			}
		}
		own := p.as(creator.Secret).post(rotatePath(creator.ID), nil).wantSecret()
		p.as(own.Secret).get("/pets").want(200)
	}
}

// TestSandboxBeyondCreator checks that a sandbox expires no later than the key that
// creates it, also when that lives less than the shortest sandbox.
func TestSandboxBeyondCreator(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, test := range []struct {
		life    time.Duration // of the creator; 0: forever
		seconds int           // 0: the default
		want    time.Duration // 0: refused
	}{
		{0, 0, 24 * time.Hour},
		{0, 604_700, 604_700 * time.Second},
		{time.Hour, 0, time.Hour},
		{time.Hour, 3500, 3500 * time.Second},
		{time.Hour, 3601, 0},
		{time.Hour, 604_700, 0},
		{48 * time.Hour, 0, 24 * time.Hour},
		{40 * time.Second, 0, 40 * time.Second},
		{40 * time.Second, 70, 0},
	} {
		var end *time.Time
		if test.life > 0 {
			at := time.Now().Add(test.life).UTC().Truncate(time.Microsecond)
			end = &at
		}
		_, secret := p.issue(auth.Admin, end)
		body := object{"sample": "empty"}
		if test.seconds > 0 {
			body["expiresAt"] = time.Now().Add(time.Duration(test.seconds) * time.Second)
		}
		resp := p.as(secret).post(sandboxesPath, body)
		if test.want == 0 {
			resp.wantError(422, "expiry_beyond_creator")
			continue
		}
		made := decode[sandbox](resp.want(201))
		if life := made.ExpiresAt.Sub(made.CreatedAt); (life-test.want).Abs() > time.Minute || end != nil && made.ExpiresAt.After(*end) {
			t.Errorf("%+v: the sandbox exists for %s, until %s", test, life, made.ExpiresAt)
		}
		p.as(made.Key.Secret).get("/pets").want(200)
	}
}
