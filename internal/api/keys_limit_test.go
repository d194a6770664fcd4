package api_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"petstore/internal/auth"
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
	var created, refused atomic.Int64
	atOnce(t, 10, func(i int) error {
		resp, err := p.try("POST", keysPath, object{"name": fmt.Sprint(i), "scope": "read"})
		switch {
		case err != nil:
			return err
		case resp.status == 201:
			created.Add(1)
		default:
			resp.wantError(409, "too_many_api_keys")
			refused.Add(1)
		}
		return nil
	})
	if created.Load() != 4 || refused.Load() != 6 {
		t.Errorf("%d keys created and %d refused, want 4 and 6", created.Load(), refused.Load())
	}
	p.revoke(lastID)
	p.makeKey("after a revocation", "read")
	p.post(keysPath, object{"name": "one more", "scope": "read"}).wantError(409, "too_many_api_keys")
	p.as(p.newKey("another", auth.Admin)).makeKey("of another account", "read")
}

// TestExpiryBeyondCreator checks that a key expires no later than the key that creates
// it.
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
		if key.ExpiresAt == nil || !key.ExpiresAt.Equal(one.want) {
			t.Errorf("%v: the key expires at %v, want %s", one.body, key.ExpiresAt, one.want)
		}
	}
	if key := p.makeKey("forever", "read"); key.ExpiresAt != nil {
		t.Errorf("a key of a key without expiry expires at %s", key.ExpiresAt)
	}
}
