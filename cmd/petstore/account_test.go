package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net/http"
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
	gone := errors.New("gone")
	p := &program{stdout: io.Discard}
	for _, want := range []error{nil, gone} {
		if err := p.remove(t.Context(), nil, database, removal{yes: true, id: id, gone: gone}); !errors.Is(err, want) {
			t.Errorf("the error is %v, want %v", err, want)
		}
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

// TestSandboxes checks the sandbox commands as the serving role.
func TestSandboxes(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	environ := []string{"DATABASE_URL=" + database.URL}
	wantRefusal(t, environ, `there is no account "acme"`, "sandbox", "create", "--account", "acme")
	wantRefusal(t, environ, `there is no account "acme"`, "sandbox", "list", "--account", "acme")
	must(t, environ, "account", "create", "acme")
	must(t, environ, "account", "create", "other")
	wantOutput(t, environ, "ID  NAME  SAMPLE  CREATED  EXPIRES\n", "sandbox", "list", "--account", "acme")
	secret, stderr, err := execute(t, environ, "sandbox", "create", "--account", "acme")
	if err != nil || !keyPattern.MatchString(secret) || keyPattern.ReplaceAllString(secret, "") != "\n" {
		t.Fatalf("sandbox create prints %q, want only the key: %v", secret, err)
	}
	made := fromJSON[api.SandboxWithKey](t, must(t, environ, "sandbox", "create", "--account", "acme", "--name", "ci", "--sample", "empty", "--expires-in", "7d", "--json"))
	if until := time.Until(*made.ExpiresAt); made.Name != "ci" || made.Sample != "empty" || !strings.HasPrefix(made.ID, "sbx_") || until > 7*day || until < 6*day || !keyPattern.MatchString(made.APIKey.Secret) {
		t.Errorf("sandbox create --json: %+v", made)
	}
	listed := fromJSON[[]api.Sandbox](t, must(t, environ, "sandbox", "list", "--account", "acme", "--json"))
	if len(listed) != 2 || listed[0].Name != account.DefaultName || listed[0].Sample != "shop" || listed[1].ID != made.ID ||
		!strings.Contains(stderr, "created "+listed[0].ID+"\n") {
		t.Errorf("sandbox list --json: %+v", listed)
	}
	if until := time.Until(*listed[0].ExpiresAt); until > day || until < day-time.Hour {
		t.Errorf("a sandbox expires after %s by default, want 24h", until)
	}
	if list := must(t, environ, "sandbox", "list", "--account", "acme"); !strings.Contains(list, made.ID+"  ci ") || strings.Count(list, "\n") != 3 {
		t.Errorf("sandbox list:\n%s", list)
	}
	wantOutput(t, environ, "[]\n", "sandbox", "list", "--account", "other", "--json")

	wantRefusal(t, environ, "sandbox delete deletes the sandbox "+made.ID+" (ci) with its store and its keys; confirm it with --yes", "sandbox", "delete", made.ID)
	for _, id := range []string{"sbx_1001", "sbx_9007199254740991"} { // an account, and none
		wantRefusal(t, environ, "there is no sandbox "+id, "sandbox", "delete", id, "--yes")
		wantRefusal(t, environ, "there is no sandbox "+id, "sandbox", "reset", id)
	}
	wantOutput(t, environ, "deleted sandbox "+made.ID+" (ci)\n", "sandbox", "delete", made.ID, "--yes")
	wantRefusal(t, environ, "there is no sandbox "+made.ID, "sandbox", "delete", made.ID, "--yes")
	wantRefusal(t, environ, "there is no sandbox "+made.ID, "sandbox", "reset", made.ID)
	wantRefusal(t, environ, `the account "acme" has no sample dogs; petstore api /samples with a key of scope admin shows its samples`, "sandbox", "create", "--account", "acme", "--sample", "dogs")
	pgtest.Exec(t, database.Pool, "INSERT INTO accounts (kind, parent_id, name, sample_id, sample, expires_at) SELECT 'sandbox', parent_id, 'full', sample_id, sample, expires_at FROM accounts, generate_series(2, $1) WHERE name = $2",
		account.MaxSandboxes, account.DefaultName)
	wantRefusal(t, environ, `the account "acme" has 100 live sandboxes, or 200 with those being deleted, which is the maximum; delete one, or wait a few minutes`, "sandbox", "create", "--account", "acme")
}

// TestSandboxLives checks a sandbox from the outside: its key works on a server, a reset
// returns it to its sample data, and deleting it or its account stops the keys.
func TestSandboxLives(t *testing.T) {
	t.Parallel()
	database, environ, base := sharedServer(t)
	must(t, environ, "account", "create", accountOf(t))
	first := strings.TrimSpace(must(t, environ, "sandbox", "create", "--account", accountOf(t)))
	second := fromJSON[api.SandboxWithKey](t, must(t, environ, "sandbox", "create", "--account", accountOf(t), "--json"))
	wantStatus(t, base+"/pets/1", first, http.StatusOK)
	post(t, base+"/categories", second.APIKey.Secret, `{"name": "Reptiles"}`)
	categories := func() int64 {
		t.Helper()
		return pgtest.Read[int64](t, database.Pool, "SELECT count(*) FROM categories WHERE 'sbx_' || account_id = $1", second.ID)
	}
	if got := categories(); got != 13 {
		t.Errorf("the sandbox has %d categories before the reset, want 13", got)
	}
	wantOutput(t, environ, "reset sandbox "+second.ID+" (sandbox)\n", "sandbox", "reset", second.ID)
	if got := categories(); got != 12 {
		t.Errorf("the sandbox has %d categories after the reset, want 12", got)
	}
	stops := func(key string) {
		t.Helper()
		need.Within(t, patience, "a key of a deleted account stops", func() bool { return status(t, base+"/pets/1", key) == http.StatusUnauthorized })
	}
	must(t, environ, "sandbox", "delete", second.ID, "--yes")
	stops(second.APIKey.Secret)
	wantStatus(t, base+"/pets/1", first, http.StatusOK)
	must(t, environ, "account", "delete", accountOf(t), "--yes")
	stops(first)
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
