package auth_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	stores "petstore/internal/account"
	"petstore/internal/auth"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

func TestMain(m *testing.M) {
	os.Exit(pgtest.Run(m.Run))
}

// account is an account of one test, with a clock.
type account struct {
	t        testing.TB
	database *pgtest.Database
	queries  *db.Queries
	id       int64
	now      time.Time
}

// newAccount creates an account on the database that the tests share.
func newAccount(t testing.TB) *account {
	t.Helper()
	return newAccountOn(t, need.Value(pgtest.Shared())(t))
}

func newAccountOn(t testing.TB, database *pgtest.Database) *account {
	t.Helper()
	queries := db.New(database.Pool)
	owner := need.Value(stores.Ensure(t.Context(), queries, rand.Text()))(t)
	return &account{t: t, database: database, queries: queries, id: owner.ID, now: time.Now()}
}

// verifier returns a verifier of another process with the account's clock.
func (a *account) verifier() *auth.Verifier {
	v := auth.NewVerifier(a.queries, a.queries)
	v.SetClock(func() time.Time { return a.now })
	return v
}

func (a *account) issue(expiresAt *time.Time) (id int64, secret string) {
	a.t.Helper()
	row, made, err := auth.Issue(a.t.Context(), a.queries, auth.NewKey{AccountID: a.id, Name: "test", Scope: auth.Write, ExpiresAt: expiresAt})
	need.OK(a.t, err)
	return row.ID, made.Reveal()
}

// rotate rotates a key and returns the new secret, and when the old one ends.
func (a *account) rotate(id int64, grace time.Duration) (secret string, until *time.Time) {
	a.t.Helper()
	_, made, err := auth.Rotate(a.t.Context(), a.queries, a.id, id, grace)
	need.OK(a.t, err)
	need.OK(a.t, a.database.Pool.QueryRow(a.t.Context(), "SELECT previous_until FROM api_keys WHERE id = $1", id).Scan(&until))
	return made.Reveal(), until
}

// works reports whether a verifier accepts a secret.
func (a *account) works(v *auth.Verifier, secret string) bool {
	a.t.Helper()
	identity, err := v.Verify(a.t.Context(), secret, nil)
	switch {
	case err == nil && identity.AccountID == a.id && identity.Scope == auth.Write:
		return true
	case errors.Is(err, auth.ErrInvalidKey) && identity == (auth.Identity{}):
		return false
	}
	a.t.Fatalf("verified: %+v, %v", identity, err)
	return false
}

// wantWork fails the test unless exactly these secrets work in every process at
// this time.
func (a *account) wantWork(at time.Time, verifiers []*auth.Verifier, want map[string]bool) {
	a.t.Helper()
	a.now = at
	for i, v := range append(verifiers, a.verifier()) {
		got := map[string]bool{}
		for secret := range want {
			got[secret] = a.works(v, secret)
		}
		need.Same(a.t, want, got, "verifier %d at %s: accepted secrets", i, at)
	}
}

// TestGrace: a rotated secret works exactly until its grace ends, in processes with
// and without a cached copy.
func TestGrace(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	id, first := a.issue(nil)
	warm := []*auth.Verifier{a.verifier()}
	second, until := a.rotate(id, 10*time.Minute)
	if grace := until.Sub(a.now); grace < 10*time.Minute || grace > 11*time.Minute {
		t.Errorf("the grace is %s", grace)
	}
	both, one := map[string]bool{first: true, second: true}, map[string]bool{first: false, second: true}
	a.wantWork(a.now, warm, both)
	for range 3 { // cached, even without a live listener
		warm[0].Trust()
		a.wantWork(a.now.Add(time.Millisecond), warm, both)
	}
	a.wantWork(until.Add(-time.Microsecond), warm, both)
	warm[0].Trust()
	a.wantWork(*until, warm, one)
	a.wantWork(until.Add(time.Hour), warm, one)
}

// TestGraceOfAnExpiringKey: a secret ends with its grace or its key, whichever is
// first.
func TestGraceOfAnExpiringKey(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	expiresAt := a.now.Add(time.Hour).Truncate(time.Microsecond)
	short, shortFirst := a.issue(&expiresAt)
	shortSecond, until := a.rotate(short, time.Minute)
	long, longFirst := a.issue(&expiresAt)
	longSecond, _ := a.rotate(long, 2*time.Hour)
	all := func(first, rest bool) map[string]bool {
		return map[string]bool{shortFirst: first, shortSecond: rest, longFirst: rest, longSecond: rest}
	}
	a.wantWork(until.Add(-time.Microsecond), nil, all(true, true))
	a.wantWork(*until, nil, all(false, true))
	a.wantWork(expiresAt.Add(-time.Microsecond), nil, all(false, true))
	a.wantWork(expiresAt, nil, all(false, false))

	// rotation does not revive an expired key
	third, _ := a.rotate(long, time.Hour)
	a.wantWork(expiresAt, nil, map[string]bool{longSecond: false, third: false})
}

// lastUsed returns the stored last use of a key.
func (a *account) lastUsed(id int64) (at *time.Time) {
	a.t.Helper()
	err := a.database.Pool.QueryRow(a.t.Context(), "SELECT last_used_at FROM api_key_uses WHERE api_key_id = $1", id).Scan(&at)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		a.t.Fatal(err)
	}
	return at
}

func (a *account) wantLastUsed(id int64, want time.Time) {
	a.t.Helper()
	if got := a.lastUsed(id); got == nil || !got.Equal(want.Truncate(time.Microsecond)) {
		a.t.Errorf("key %d was last used at %v, want %s", id, got, want)
	}
}

// use verifies a secret, which must work, and writes the last uses.
func (a *account) use(v *auth.Verifier, secret string, at time.Time) {
	a.t.Helper()
	a.now = at
	if !a.works(v, secret) {
		a.t.Fatalf("the secret does not work at %s", at)
	}
	need.OK(a.t, v.FlushUses(a.t.Context()))
}

// TestLastUsed: each use is written at most once a minute, whatever the number of
// processes.
func TestLastUsed(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	a.now = a.now.Add(-6 * time.Hour)
	began := a.now
	id, secret := a.issue(nil)
	unused, _ := a.issue(nil)
	one, other := a.verifier(), a.verifier()

	a.works(one, secret)
	if got := a.lastUsed(id); got != nil {
		t.Errorf("last use %s was written while the request ran", got)
	}
	a.use(one, secret, began)
	a.wantLastUsed(id, began)
	minute := began.Add(time.Minute)
	for _, v := range []*auth.Verifier{one, other} {
		for _, at := range []time.Time{began, began.Add(time.Second), minute.Add(-time.Microsecond)} {
			a.use(v, secret, at)
			a.wantLastUsed(id, began)
		}
	}
	one.Forget()
	a.use(one, secret, minute.Add(-time.Microsecond))
	a.wantLastUsed(id, began)

	a.use(one, secret, minute)
	a.wantLastUsed(id, minute)
	a.use(other, secret, minute.Add(30*time.Second))
	a.wantLastUsed(id, minute)
	a.use(other, secret, minute.Add(time.Hour))
	a.wantLastUsed(id, minute.Add(time.Hour))

	// both secrets of a key count as uses
	second, _ := a.rotate(id, auth.MaxGrace)
	a.use(one, secret, minute.Add(2*time.Hour))
	a.use(one, second, minute.Add(3*time.Hour))
	a.wantLastUsed(id, minute.Add(3*time.Hour))

	a.use(one, second, time.Now().Add(24*time.Hour)) // by a clock that is ahead
	if got := a.lastUsed(id); got.After(time.Now().Add(time.Minute)) {
		t.Errorf("the last use %s is in the future", got)
	}
	pgtest.Exec(t, a.database.Pool, "DELETE FROM api_key_uses WHERE api_key_id = $1", id)
	a.use(one, second, minute.Add(4*time.Hour)) // the clock is right again
	a.wantLastUsed(id, minute.Add(4*time.Hour))
	if got := a.lastUsed(unused); got != nil {
		t.Errorf("an unused key has the last use %s", got)
	}
}

// TestRejectedIsNotUsed: expired and revoked keys have no uses.
func TestRejectedIsNotUsed(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	expiresAt := a.now.Add(time.Hour)
	expired, expiredSecret := a.issue(&expiresAt)
	revoked, revokedSecret := a.issue(nil)
	v := a.verifier()
	a.use(v, expiredSecret, a.now)
	a.use(v, revokedSecret, a.now)
	before := a.now
	need.Value(a.queries.APIKeyRevokeOwn(t.Context(), db.APIKeyRevokeOwnParams{ID: revoked, AccountID: a.id}))(t)
	v.Forget()
	a.wantWork(expiresAt, []*auth.Verifier{v}, map[string]bool{expiredSecret: false, revokedSecret: false})
	need.OK(t, v.FlushUses(t.Context()))
	a.wantLastUsed(expired, before)
	a.wantLastUsed(revoked, before)
}

// TestFlushFails: the next flush writes the uses that could not be written,
// including later ones.
func TestFlushFails(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	a.now = a.now.Add(-2 * time.Hour)
	v := a.verifier()
	first, firstSecret := a.issue(nil)
	second, secondSecret := a.issue(nil)
	a.works(v, firstSecret)
	a.works(v, secondSecret)
	began := a.now
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		if err := v.FlushUses(cancelled); !errors.Is(err, context.Canceled) {
			t.Errorf("flushed: %v", err)
		}
	}
	a.use(v, firstSecret, began.Add(time.Hour))
	a.wantLastUsed(first, began.Add(time.Hour))
	a.wantLastUsed(second, began)
}

// TestFlushIsAWrite: a flush does not take a connection that is reserved for reads.
func TestFlushIsAWrite(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	const conns = 3 // one for writes, two reserved for reads
	pool := pgtest.Open(t, a.database.URL, conns)
	pool.WaitAtMost(time.Second)
	v := auth.NewVerifier(db.New(pool), db.New(pool.Writing()))
	_, secret := a.issue(nil)
	a.works(v, secret)
	rows, err := pool.Writing().Query(t.Context(), "SELECT") //nolint:sqlclosecheck // held until the end on purpose
	need.OK(t, err)
	t.Cleanup(rows.Close)
	if err := v.FlushUses(t.Context()); !postgres.Unavailable(err) || pool.CanceledWrites() != 1 {
		t.Errorf("%v, and %d writes without a connection; want one", err, pool.CanceledWrites())
	}
}

// TestRecordUses: the last flush runs at the end, and failures are logged.
func TestRecordUses(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	pool := pgtest.Open(t, a.database.URL, 1)
	a.queries = db.New(pool)
	v := a.verifier()
	id, secret := a.issue(nil)
	a.works(v, secret)
	began := a.now
	ended, end := context.WithCancel(t.Context())
	end()
	var log bytes.Buffer
	v.RecordUses(ended, slog.New(slog.NewTextHandler(&log, nil)))
	a.wantLastUsed(id, began)
	if log.Len() > 0 {
		t.Errorf("logged: %s", &log)
	}

	a.now = began.Add(time.Hour)
	a.works(v, secret)
	pool.Close()
	v.RecordUses(ended, slog.New(slog.NewTextHandler(&log, nil)))
	if line := log.String(); !strings.Contains(line, "level=WARN") || !strings.Contains(line, "last used") || strings.Contains(line, secret) {
		t.Errorf("logged: %s", line)
	}
}

// TestFlushesAtOnce: processes that write the same uses in different orders do not
// deadlock, and one of them wins.
func TestFlushesAtOnce(t *testing.T) {
	t.Parallel()
	const keys, processes, rounds = auth.MaxKeys, 4, 5
	a := newAccount(t)
	a.now = a.now.Add(-rounds * time.Hour)
	secrets := make([]string, keys)
	for i := range secrets {
		_, secrets[i] = a.issue(nil)
	}
	verifiers := make([]*auth.Verifier, processes)
	for i := range verifiers {
		verifiers[i] = a.verifier()
	}
	for range rounds {
		a.now = a.now.Add(time.Hour)
		for _, v := range verifiers {
			v.Trust()
			for _, secret := range secrets {
				a.works(v, secret)
			}
		}
		var group sync.WaitGroup
		for _, v := range verifiers {
			group.Go(func() {
				if err := v.FlushUses(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if written := pgtest.Read[int](t, a.database.Pool, "SELECT count(*) FROM api_key_uses WHERE account_id = $1 AND last_used_at = $2", a.id, a.now.Truncate(time.Microsecond)); written != keys {
			t.Errorf("uses of %d of %d keys were written", written, keys)
		}
	}
}

// TestRecordingAUseAllocatesNothing: recording a use of a cached key allocates nothing
// beyond parsing the secret.
func TestRecordingAUseAllocatesNothing(t *testing.T) { //nolint:paralleltest // AllocsPerRun counts for the whole process
	a := newAccount(t)
	_, text := a.issue(nil)
	v := a.verifier()
	a.works(v, text)
	v.Trust()
	ctx := t.Context()
	const runs = 1000
	reading := testing.AllocsPerRun(runs, func() {
		secret, err := auth.ParseSecret(text)
		if hash := secret.Hash(); err != nil || hash[0] == hash[1] && hash[1] == hash[2] && hash[2] == hash[3] {
			t.Error("the secret could not be parsed")
		}
	})
	verifying := testing.AllocsPerRun(runs, func() {
		if _, err := v.Verify(ctx, text, nil); err != nil {
			t.Error(err)
		}
	})
	if verifying > reading {
		t.Errorf("verifying allocates %.0f times, parsing the secret %.0f times", verifying, reading)
	}
}
