package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/api"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// fromJSON parses the output of a command with --json, which must be one line.
func fromJSON[T any](t *testing.T, output string) T {
	t.Helper()
	var value T
	if err := json.Unmarshal([]byte(output), &value); err != nil || strings.Count(output, "\n") != 1 || !strings.HasSuffix(output, "\n") {
		t.Fatalf("%v; want one line of JSON:\n%s", err, output)
	}
	return value
}

// wantRefusal fails the test unless a command fails with a sentence and prints nothing
// on stdout.
func wantRefusal(t *testing.T, environ []string, sentence string, args ...string) {
	t.Helper()
	if stdout, _, err := execute(t, environ, args...); err == nil || !strings.Contains(err.Error(), sentence) || stdout != "" {
		t.Errorf("petstore %s: %v, printed %q; want the error %q", strings.Join(args, " "), err, stdout, sentence)
	}
}

// wantOutput fails the test unless a command succeeds and prints exactly this on stdout.
func wantOutput(t *testing.T, environ []string, want string, args ...string) {
	t.Helper()
	if got := must(t, environ, args...); got != want {
		t.Errorf("petstore %s prints %q, want %q", strings.Join(args, " "), got, want)
	}
}

// wantText fails the test unless a command succeeds and prints this text, perhaps among others.
func wantText(t *testing.T, environ []string, want string, args ...string) {
	t.Helper()
	if got := must(t, environ, args...); !strings.Contains(got, want) {
		t.Errorf("petstore %s prints\n%s\nwithout %q", strings.Join(args, " "), got, want)
	}
}

// TestAccounts checks the account commands as the serving role, which the operator's
// container has.
func TestAccounts(t *testing.T) {
	t.Parallel()
	environ := []string{"DATABASE_URL=" + pgtest.New(t).URL}
	wantOutput(t, environ, "ID  NAME  CREATED\n", "account", "list")
	wantOutput(t, environ, "[]\n", "account", "list", "--json")
	wantOutput(t, environ, "acc_1001\n", "account", "create", "acme")
	wantRefusal(t, environ, `there is already an account "acme"; choose another name`, "account", "create", "acme")
	made := fromJSON[accountObject](t, must(t, environ, "account", "create", "<b> & co", "--json"))
	if made.Name != "<b> & co" || made.ID == "acc_1001" || !strings.HasPrefix(made.ID, "acc_") || time.Since(made.CreatedAt) > time.Hour {
		t.Errorf("account create --json: %+v", made)
	}
	must(t, environ, "sandbox", "create", "--account", "acme", "--sample", "empty", "--name", "hidden")
	listed := fromJSON[[]accountObject](t, must(t, environ, "account", "list", "--json"))
	if len(listed) != 2 || listed[0].Name != "acme" || listed[1] != made {
		t.Errorf("account list --json: %+v", listed)
	}
	if list := must(t, environ, "account", "list"); !strings.Contains(list, "1001  acme ") || strings.Contains(list, "hidden") {
		t.Errorf("account list:\n%s", list)
	}

	key := strings.TrimSpace(must(t, environ, "key", "create", "--account", "acme"))
	wantRefusal(t, environ, `account delete deletes the account "acme" with its store, its keys and its sandboxes; confirm it with --yes`, "account", "delete", "acme")
	wantRefusal(t, environ, `there is no account "nobody"; petstore account list shows all accounts`, "account", "delete", "nobody", "--yes")
	wantRefusal(t, environ, `there is no account "hidden"`, "account", "delete", "hidden", "--yes") // a sandbox
	wantText(t, environ, key[:len("petstore_")+8], "key", "list", "--account", "acme")
	wantOutput(t, environ, "deleted account acc_1001 (acme)\n", "account", "delete", "acme", "--yes")
	wantRefusal(t, environ, `there is no account "acme"`, "account", "delete", "acme", "--yes")
	wantRefusal(t, environ, `there is no account "acme"`, "key", "list", "--account", "acme")
	if id := must(t, environ, "account", "create", "acme"); id == "1001\n" {
		t.Errorf("a new account with the name of a deleted one has its id %s", id)
	}
}

// TestDeleteBusyOrGone checks the errors of a deletion while another process writes the
// store, and after another process has deleted the account.
func TestDeleteBusyOrGone(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "its workers do not have the limits of the role of this test")
	owner := pgtest.New(t)
	environ := []string{"DATABASE_URL=" + owner.URL}
	must(t, environ, "account", "create", "acme")
	const id = 1001
	lock := pgtest.Begin(t, owner.Pool)
	need.OK(t, db.New(lock).StoreLock(t.Context(), id))
	wantRefusal(t, environ, errStoreBusy.Error(), "account", "delete", "acme", "--yes")
	pgtest.Rollback(t, lock)
	database := pgtest.Open(t, owner.URL, 2)
	for _, want := range []error{nil, noAccount("acme")} {
		err := deleteAccount(t.Context(), database, db.AccountGetByNameRow{ID: id, Name: "acme"})
		need.Same(t, fmt.Sprint(want), fmt.Sprint(err), "the error")
	}
}

// TestListManyAccounts checks that the list has all accounts in order, over several
// pages.
func TestListManyAccounts(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	const many = 2 * accountsPerPage // the second page is full
	pgtest.Exec(t, database.Pool, "INSERT INTO accounts (name) SELECT 'account ' || n FROM generate_series(1, $1) n", many)
	listed := fromJSON[[]accountObject](t, must(t, []string{"DATABASE_URL=" + database.URL}, "account", "list", "--json"))
	if len(listed) != many || !slices.IsSortedFunc(listed, func(a, b accountObject) int {
		return cmp.Or(len(a.ID)-len(b.ID), strings.Compare(a.ID, b.ID))
	}) {
		t.Fatalf("the list has %d accounts, want %d, sorted by id", len(listed), many)
	}
}

// TestSandboxes checks the command sandbox as the serving role.
func TestSandboxes(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	environ := []string{"DATABASE_URL=" + database.URL}
	wantRefusal(t, environ, `there is no account "acme"`, "sandbox", "create", "--account", "acme")
	must(t, environ, "account", "create", "acme")
	secret, stderr, err := execute(t, environ, "sandbox", "create", "--account", "acme")
	if err != nil || !keyPattern.MatchString(secret) || keyPattern.ReplaceAllString(secret, "") != "\n" || !strings.HasPrefix(stderr, "created sbx_") {
		t.Fatalf("sandbox create prints %q, want only the key, and %q: %v", secret, stderr, err)
	}
	create := func(more ...string) api.SandboxWithKey {
		t.Helper()
		return fromJSON[api.SandboxWithKey](t, must(t, environ, append([]string{"sandbox", "create", "--account", "acme", "--json"}, more...)...))
	}
	made := create()
	if until := time.Until(*made.ExpiresAt); made.Name != account.DefaultName || made.Sample != "shop" || until > day || until < day-time.Hour {
		t.Errorf("sandbox create --json: %+v, which expires after %s", made, until)
	}
	made = create("--name", "ci", "--sample", "empty", "--expires-in", "7d")
	if until := time.Until(*made.ExpiresAt); made.Name != "ci" || made.Sample != "empty" || !strings.HasPrefix(made.ID, "sbx_") || until > 7*day || until < 6*day || !keyPattern.MatchString(made.APIKey.Secret) {
		t.Errorf("sandbox create --json: %+v, which expires after %s", made, until)
	}
	wantRefusal(t, environ, `the account "acme" has no sample dogs; petstore api /samples with a key of scope admin shows its samples`, "sandbox", "create", "--account", "acme", "--sample", "dogs")
	pgtest.Exec(t, database.Pool, "INSERT INTO accounts (kind, parent_id, name, sample_id, sample, expires_at) SELECT 'sandbox', parent_id, 'full', sample_id, sample, expires_at FROM accounts, generate_series(4, $1) WHERE name = 'ci'",
		account.MaxSandboxes)
	wantRefusal(t, environ, `the account "acme" has 100 live sandboxes, or 200 with those being deleted, which is the maximum; delete one, or wait a few minutes`, "sandbox", "create", "--account", "acme")
}

// TestRepeatedTransactions: commands repeat a transaction that the server has ended because of a deadlock.
func TestRepeatedTransactions(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "reference tables have no triggers")
	database := pgtest.New(t)
	pgtest.Exec(t, database.Pool, `
		CREATE SEQUENCE attempts;
		CREATE FUNCTION end_every_other() RETURNS trigger SECURITY DEFINER LANGUAGE plpgsql AS $$
		BEGIN
			IF nextval('attempts') % 2 = 1 THEN RAISE deadlock_detected; END IF;
			RETURN NULL;
		END $$;
		CREATE TRIGGER end_every_other BEFORE INSERT ON accounts FOR EACH STATEMENT EXECUTE FUNCTION end_every_other()`)
	environ := []string{"DATABASE_URL=" + database.URL, "PETSTORE_DIRECT_URL=" + database.DirectURL}
	must(t, environ, "account", "create", "one")
	must(t, environ, "key", "create", "--account", "two")
	must(t, environ, "seed", "--account", "three", "--pets", "1")
	if got := pgtest.Read[int](t, database.Pool, "SELECT last_value FROM attempts"); got != 6 {
		t.Errorf("the three commands inserted %d times, want 6", got)
	}
}
