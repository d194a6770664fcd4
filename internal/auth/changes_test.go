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

// lookupsOf returns how many lookups it takes to verify a secret, while notifications
// arrive. Each counts as one hit or miss, and a malformed secret as neither.
func lookupsOf(t *testing.T, v *auth.Verifier, secret string) uint64 {
	t.Helper()
	hits, before := v.Lookups()
	v.Trust()
	_, _ = v.Verify(t.Context(), "malformed", nil)
	if _, err := v.Verify(t.Context(), secret, nil); err != nil {
		t.Error(err)
	}
	found, after := v.Lookups()
	need.Same(t, 1, found-hits+after-before, "hits and misses of one lookup")
	return after - before
}

// TestAnnouncements checks which notifications the changes of keys send. [TestHeard] checks which keys
// these end.
func TestAnnouncements(t *testing.T) {
	t.Parallel()
	a := newAccountOn(t, pgtest.New(t)) // the others announce their own changes
	id, secret := a.issue(nil)
	for range 2 {
		a.issue(nil)
	}
	newAccountOn(t, a.database).issue(nil)
	made := need.Value(stores.CreateSandbox(t.Context(), a.queries, stores.NewSandbox{ParentID: a.id, Name: "x", Sample: stores.SampleEmpty, Expiry: time.Hour}))(t)
	transact := func(change func(*db.Queries) error) {
		need.OK(t, pgx.BeginFunc(t.Context(), a.database.Pool, func(tx pgx.Tx) error { return change(db.New(tx)) }))
	}
	revoke := func(want bool) {
		transact(func(queries *db.Queries) error {
			revoked, err := auth.Revoke(t.Context(), queries, a.id, id)
			need.Same(t, want, revoked, "revoked")
			return err
		})
	}
	account := func(id int64) string { return "account " + strconv.FormatInt(id, 10) }
	key := []string{strconv.FormatInt(id, 10)}
	for _, step := range []struct {
		what   string
		change func()
		want   []string
	}{
		{"a use", func() { a.use(a.verifier(), secret, a.now) }, nil},
		{"a rotation", func() { a.rotate(id, time.Hour) }, key},
		{"a revocation", func() { revoke(true) }, key},
		{"a second revocation", func() {
			version := func() string {
				return pgtest.Read[string](t, a.database.Pool, "SELECT xmin::text FROM api_keys WHERE id = $1", id)
			}
			before := version()
			revoke(false)
			if _, err := a.queries.APIKeyRevokeOwn(t.Context(), db.APIKeyRevokeOwnParams{ID: id, AccountID: a.id}); !errors.Is(err, pgx.ErrNoRows) {
				t.Errorf("revoking it again: %v, want no row", err)
			}
			need.Same(t, before, version(), "version of the row")
		}, nil},
		{"the deletion of the account", func() { // one for each account, whatever the number of keys
			transact(func(queries *db.Queries) error {
				_, err := stores.Delete(t.Context(), queries, a.id)
				return err
			})
		}, []string{account(a.id), account(made.Sandbox.ID)}},
	} {
		need.Same(t, step.want, announced(t, a.database, step.change), "notifications of %s", step.what)
	}
}

// TestHeard checks which keys a verifier reads again after a notification.
func TestHeard(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	v := a.verifier()
	id, first := a.issue(nil)
	_, second := a.issue(nil)
	_, other := newAccount(t).issue(nil)
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
