package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"petstore/internal/account"
	"petstore/internal/api"
	"petstore/internal/pgtest"
)

// TestSampleCommands: save makes a sample of which sandboxes are copies, list shows it, and delete
// makes its name free.
func TestSampleCommands(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	environ := []string{"DATABASE_URL=" + database.URL}
	must(t, environ, "account", "create", "acme")
	made := fromJSON[api.SandboxWithKey](t, must(t, environ, "sandbox", "create", "--account", "acme", "--sample", "empty", "--json"))
	number, _ := account.ParseSandboxID(made.ID)
	pgtest.Exec(t, database.Pool, "INSERT INTO categories (account_id, id, name, name_key) VALUES ($1, 7, 'Dogs', 'dogs')", number)
	if saved := must(t, environ, "sample", "save", "dogs", "--from", made.ID); saved != fmt.Sprintf("saved sandbox %s as dogs\n", made.ID) {
		t.Errorf("sample save prints %q", saved)
	}
	wantRefusal(t, environ, "there is already a sample dogs; choose another name, or delete the sample first", "sample", "save", "dogs", "--from", made.ID)
	wantRefusal(t, environ, "there is already a sample shop; choose another name, or delete the sample first", "sample", "save", "shop", "--from", made.ID)
	wantRefusal(t, environ, noSandbox("sbx_999").Error(), "sample", "save", "more", "--from", "sbx_999")

	fork := fromJSON[api.SandboxWithKey](t, must(t, environ, "sandbox", "create", "--account", "acme", "--sample", "dogs", "--json"))
	number, _ = account.ParseSandboxID(fork.ID)
	var id int
	if err := database.Pool.QueryRow(t.Context(), "SELECT id FROM categories WHERE account_id = $1", number).Scan(&id); err != nil || id != 7 || fork.Sample != "dogs" {
		t.Errorf("the sandbox %+v has the category %d: %v", fork, id, err)
	}
	listed := fromJSON[[]account.Sample](t, must(t, environ, "sample", "list", "--account", "acme", "--json"))
	if len(listed) != 3 || listed[0].CreatedAt == nil {
		t.Fatalf("sample list --json: %+v", listed)
	}
	listed[0].CreatedAt = nil
	if diff := cmp.Diff([]account.Sample{{Name: "dogs"}, {Name: "empty", BuiltIn: true}, {Name: "shop", BuiltIn: true}}, listed); diff != "" {
		t.Errorf("sample list --json (-want +got):\n%s", diff)
	}
	if list := must(t, environ, "sample", "list", "--account", "acme"); !strings.HasPrefix(list, "NAME   CREATED\ndogs   2") || !strings.HasSuffix(list, "Z\nempty  built in\nshop   built in\n") {
		t.Errorf("sample list:\n%s", list)
	}

	wantRefusal(t, environ, `sample delete deletes the sample dogs of the account "acme"; confirm it with --yes`, "sample", "delete", "dogs", "--account", "acme")
	if deleted := must(t, environ, "sample", "delete", "dogs", "--account", "acme", "--yes"); deleted != "deleted sample dogs\n" {
		t.Errorf("sample delete prints %q", deleted)
	}
	gone := `the account "acme" has no sample dogs; petstore sample list --account acme shows its samples`
	wantRefusal(t, environ, gone, "sample", "delete", "dogs", "--account", "acme", "--yes")
	wantRefusal(t, environ, gone, "sandbox", "create", "--account", "acme", "--sample", "dogs")
	must(t, environ, "sandbox", "reset", fork.ID)
	must(t, environ, "sample", "save", "dogs", "--from", fork.ID)
	if accounts := must(t, environ, "account", "list"); strings.Count(accounts, "\n") != 2 {
		t.Errorf("account list:\n%s", accounts)
	}
}

// TestTooManySandboxesAndSamples checks that the errors name the maximum.
func TestTooManySandboxesAndSamples(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	environ := []string{"DATABASE_URL=" + database.URL}
	must(t, environ, "account", "create", "acme")
	made := fromJSON[api.SandboxWithKey](t, must(t, environ, "sandbox", "create", "--account", "acme", "--json"))
	for _, sql := range []string{
		fmt.Sprintf("INSERT INTO accounts (kind, parent_id, name) SELECT 'sample', 1001, 's' || n FROM generate_series(1, %d) AS n", account.MaxSamples),
		fmt.Sprintf("INSERT INTO accounts (kind, parent_id, name, sample_id, sample, expires_at) SELECT 'sandbox', 1001, 'full', 1001, 'empty', now() + interval '1 hour' FROM generate_series(2, %d)", account.MaxSandboxes),
	} {
		pgtest.Exec(t, database.Pool, sql)
	}
	wantRefusal(t, environ, "the account has 20 samples, which is the maximum; delete one first", "sample", "save", "last", "--from", made.ID)
	wantRefusal(t, environ, `the account "acme" has 100 live sandboxes, which is the maximum; delete one first`, "sandbox", "create", "--account", "acme")
}
