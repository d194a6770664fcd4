package auth_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/auth"
)

// TestRevokeAgain checks that revoking a revoked key neither writes nor notifies.
func TestRevokeAgain(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	id, _ := a.issue(nil)
	listener, err := pgx.Connect(t.Context(), a.database.DirectURL)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close(context.WithoutCancel(t.Context()))
	if _, err := listener.Exec(t.Context(), "LISTEN "+auth.Channel); err != nil {
		t.Fatal(err)
	}
	version := func() (xmin string) {
		t.Helper()
		if err := a.database.Pool.QueryRow(t.Context(), "SELECT xmin::text FROM api_keys WHERE id = $1", id).Scan(&xmin); err != nil {
			t.Fatal(err)
		}
		return xmin
	}
	revoke := func(want bool) {
		t.Helper()
		err := pgx.BeginFunc(t.Context(), a.database.Pool, func(tx pgx.Tx) error {
			revoked, err := auth.Revoke(t.Context(), db.New(tx), a.id, id)
			if revoked != want {
				t.Errorf("revoked: %t, want %t", revoked, want)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	revoke(true)
	before := version()
	revoke(false)
	if named, err := a.queries.APIKeyRevoke(t.Context(), db.APIKeyRevokeParams{ID: &id}); err != nil || len(named) != 1 || named[0].ID != id {
		t.Errorf("returned %+v, %v", named, err)
	}
	if after := version(); after != before {
		t.Errorf("the row was written again: version %s, then %s", before, after)
	}
	if _, err := a.database.Pool.Exec(t.Context(), "SELECT pg_notify($1, 'end')", auth.Channel); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{strconv.FormatInt(id, 10), "end"} {
		received, err := listener.WaitForNotification(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if received.Payload != want {
			t.Errorf("received %q, want %q", received.Payload, want)
		}
	}
}
