package auth_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	stores "petstore/internal/account"
	"petstore/internal/auth"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// announced returns the payloads of the notifications that an action sends.
func announced(t *testing.T, database *pgtest.Database, action func()) (payloads []string) {
	t.Helper()
	listener := need.Value(pgx.Connect(t.Context(), database.DirectURL))(t)
	defer listener.Close(context.WithoutCancel(t.Context()))
	pgtest.Exec(t, listener, "LISTEN "+auth.Channel)
	action()
	pgtest.Exec(t, database.Pool, "SELECT pg_notify($1, 'end')", auth.Channel)
	for {
		notification := need.Value(listener.WaitForNotification(t.Context()))(t)
		if notification.Payload == "end" {
			return payloads
		}
		payloads = append(payloads, notification.Payload)
	}
}

// another returns another account on the same database.
func (a *account) another(name string) *account {
	a.t.Helper()
	owner := need.Value(stores.Ensure(a.t.Context(), a.queries, name))(a.t)
	return &account{t: a.t, database: a.database, queries: a.queries, id: owner.ID, now: a.now}
}

// lookupsOf returns how many lookups it takes to verify a secret, while notifications
// arrive.
func lookupsOf(t *testing.T, v *auth.Verifier, secret string) uint64 {
	t.Helper()
	_, before := v.Lookups()
	v.Trust()
	if _, err := v.Verify(t.Context(), secret, nil); err != nil {
		t.Error(err)
	}
	_, after := v.Lookups()
	return after - before
}

// TestRotationsOfAnotherAccount checks that 100 rotations of a key cause no lookup of a
// key of another account, nor of another key of the account.
func TestRotationsOfAnotherAccount(t *testing.T) {
	t.Parallel()
	const rotations = 100
	a := newAccount(t)
	v := a.verifier()
	id, rotated := a.issue(nil)
	_, sibling := a.issue(nil)
	_, other := a.another("another").issue(nil)
	for _, secret := range []string{rotated, sibling, other} {
		lookupsOf(t, v, secret)
	}
	payloads := announced(t, a.database, func() {
		for range rotations {
			rotated, _ = a.rotate(id, 0)
		}
		a.use(v, sibling, a.now) // nobody is notified of that
	})
	if len(payloads) != rotations {
		t.Errorf("%d notifications, want %d", len(payloads), rotations)
	}
	for _, payload := range payloads {
		v.Heard(payload)
		if siblings, others := lookupsOf(t, v, sibling), lookupsOf(t, v, other); siblings != 0 || others != 0 {
			t.Fatalf("%d lookups of another key of the account and %d of another account, want none", siblings, others)
		}
	}
	lookupsOf(t, v, rotated)
}

// TestHeard checks which keys a verifier reads again after a notification.
func TestHeard(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	v := a.verifier()
	id, first := a.issue(nil)
	_, second := a.issue(nil)
	_, other := a.another("another").issue(nil)
	key, account := strconv.FormatInt(id, 10), "account "+strconv.FormatInt(a.id, 10)
	for _, test := range []struct {
		payload string
		want    [3]uint64 // lookups of the keys
	}{
		{key, [3]uint64{1, 0, 0}},
		{account, [3]uint64{1, 1, 0}},
		{"", [3]uint64{1, 1, 1}}, // NOTIFY by hand
		{"account", [3]uint64{1, 1, 1}},
		{"sandbox " + key, [3]uint64{1, 1, 1}}, // of a later release
		{"99999999999999999999", [3]uint64{1, 1, 1}},
		{"-1", [3]uint64{}},
		{"account -1", [3]uint64{}},
	} {
		for _, secret := range []string{first, second, other} {
			lookupsOf(t, v, secret)
		}
		v.Heard(test.payload)
		var got [3]uint64
		for i, secret := range []string{first, second, other} {
			got[i] = lookupsOf(t, v, secret)
		}
		if got != test.want {
			t.Errorf("after %q: %d lookups, want %d", test.payload, got, test.want)
		}
	}
}

// TestDeletionAnnouncesAccounts checks that the deletion of an account sends one
// notification for it and one for each sandbox, whatever the number of keys. They end all
// these keys and no others.
func TestDeletionAnnouncesAccounts(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	v := a.verifier()
	var secrets []string
	for range 3 {
		_, secret := a.issue(nil)
		secrets = append(secrets, secret)
	}
	made := need.Value(stores.CreateSandbox(t.Context(), a.queries, stores.NewSandbox{ParentID: a.id, Name: "x", Sample: stores.SampleEmpty, Expiry: time.Hour}))(t)
	secrets = append(secrets, made.Secret.Reveal())
	_, other := a.another("another").issue(nil)
	for _, secret := range append(secrets, other) {
		lookupsOf(t, v, secret)
	}
	payloads := announced(t, a.database, func() {
		need.OK(t, pgx.BeginFunc(t.Context(), a.database.Pool, func(tx pgx.Tx) error {
			_, err := stores.Delete(t.Context(), db.New(tx), a.id)
			return err
		}))
	})
	want := []string{"account " + strconv.FormatInt(a.id, 10), "account " + strconv.FormatInt(made.Sandbox.ID, 10)}
	need.Same(t, want, payloads, "notifications")
	for _, payload := range payloads {
		v.Heard(payload)
	}
	v.Trust()
	for i, secret := range secrets {
		if a.works(v, secret) {
			t.Errorf("key %d of the deleted account works", i)
		}
	}
	if got := lookupsOf(t, v, other); got != 0 {
		t.Errorf("%d lookups of a key of another account, want 0", got)
	}
}

// TestRevokeAgain checks that revoking a revoked key neither writes nor notifies.
func TestRevokeAgain(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	id, _ := a.issue(nil)
	version := func() (xmin string) {
		t.Helper()
		return pgtest.Read[string](t, a.database.Pool, "SELECT xmin::text FROM api_keys WHERE id = $1", id)
	}
	revoke := func(want bool) {
		t.Helper()
		need.OK(t, pgx.BeginFunc(t.Context(), a.database.Pool, func(tx pgx.Tx) error {
			revoked, err := auth.Revoke(t.Context(), db.New(tx), a.id, id)
			need.Same(t, want, revoked, "revoked")
			return err
		}))
	}
	payloads := announced(t, a.database, func() {
		revoke(true)
		before := version()
		revoke(false)
		if _, err := a.queries.APIKeyRevokeOwn(t.Context(), db.APIKeyRevokeOwnParams{ID: id, AccountID: a.id}); !errors.Is(err, pgx.ErrNoRows) {
			t.Errorf("revoking it again: %v, want no row", err)
		}
		if after := version(); after != before {
			t.Errorf("the row was written again: version %s, then %s", before, after)
		}
	})
	need.Same(t, []string{strconv.FormatInt(id, 10)}, payloads, "notifications")
}
