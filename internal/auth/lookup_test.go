package auth_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"petstore/db"
	stores "petstore/internal/account"
	"petstore/internal/auth"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// lookup is a statement that looked up keys.
type lookup struct {
	at     time.Time
	hashes [][]byte
}

// lookupTracer records the key lookups of a pool. It calls before and after, if
// set, which may block the statement.
type lookupTracer struct {
	before, after func(lookup)

	mu      sync.Mutex
	lookups []lookup
	running int
	most    int // the most at the same time
}

func (l *lookupTracer) trace(_ context.Context, all []pgtest.Statement) (ended func()) {
	last := all[len(all)-1]
	if !strings.HasPrefix(last.SQL, "-- name: APIKeyLookUp ") {
		return nil
	}
	one := lookup{at: time.Now(), hashes: last.Args[len(last.Args)-1].([][]byte)} //nolint:forcetypeassert // the type of the argument
	l.mu.Lock()
	l.lookups = append(l.lookups, one)
	l.running++
	l.most = max(l.most, l.running)
	l.mu.Unlock()
	if l.before != nil {
		l.before(one)
	}
	return func() {
		if l.after != nil {
			l.after(one)
		}
		l.mu.Lock()
		l.running--
		l.mu.Unlock()
	}
}

// seen returns the lookups so far, and the most that ran at the same time.
func (l *lookupTracer) seen() (lookups []lookup, most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append(lookups, l.lookups...), l.most
}

// traced returns a verifier whose lookups this tracer records.
func (a *account) traced(tracer *lookupTracer) *auth.Verifier {
	a.t.Helper()
	const maxConns = 8
	pool := pgtest.Open(a.t, a.database.URL, maxConns, pgtest.Around(tracer.trace))
	return auth.NewVerifier(db.New(pool), db.New(pool.Writing()))
}

// over returns the limit of an address over its failure limit.
func over(address string) auth.OverLimit {
	return func() (netip.Addr, bool) { return netip.MustParseAddr(address), true }
}

// patience is the timeout for operations that should not wait at all.
const patience = 5 * time.Second

// guess verifies a well-formed key that does not exist.
func guess(ctx context.Context, t testing.TB, v *auth.Verifier, limit auth.OverLimit) {
	t.Helper()
	if _, err := v.Verify(ctx, auth.NewSecret().Reveal(), limit); !errors.Is(err, auth.ErrInvalidKey) && !errors.Is(err, context.Canceled) {
		t.Errorf("a guess: %v", err)
	}
}

// gate blocks callers until it opens.
type gate struct {
	arrived chan struct{}
	opened  chan struct{}
}

func newGate() *gate { return &gate{make(chan struct{}, 1000), make(chan struct{})} }

func (g *gate) pass() {
	g.arrived <- struct{}{}
	<-g.opened
}

// TestGuessesShareLookups checks that at most two statements at a time look up
// unknown keys, each at most 100 keys. No key gets the result of another.
func TestGuessesShareLookups(t *testing.T) {
	t.Parallel()
	const guesses = 350
	a := newAccount(t)
	ids := map[int64]string{}
	for range 5 {
		id, secret := a.issue(nil)
		ids[id] = secret
	}
	hold := newGate()
	tracer := &lookupTracer{before: func(lookup) { hold.pass() }}
	v := a.traced(tracer)
	var group sync.WaitGroup
	for range guesses {
		group.Go(func() { guess(t.Context(), t, v, nil) })
	}
	for id, secret := range ids {
		group.Go(func() {
			if identity, err := v.Verify(t.Context(), secret, nil); err != nil || identity.KeyID != id {
				t.Errorf("key %d: %+v, %v", id, identity, err)
			}
		})
	}
	for range auth.ParallelLookups {
		<-hold.arrived
	}
	for misses := uint64(0); misses < guesses; { // until all of them wait
		_, misses = v.Lookups()
	}
	close(hold.opened)
	group.Wait()
	lookups, most := tracer.seen()
	if most != auth.ParallelLookups {
		t.Errorf("%d lookups ran at the same time, want %d", most, auth.ParallelLookups)
	}
	if len(lookups) > guesses/10 {
		t.Errorf("%d guesses took %d statements", guesses, len(lookups))
	}
	for _, one := range lookups {
		if len(one.hashes) > auth.MaxHashesPerLookup {
			t.Errorf("a statement looked up %d keys", len(one.hashes))
		}
	}
}

// TestKnownKeysDoNotWaitForGuesses checks that keys known to this process do not
// wait for lookups of guesses. That holds for keys in the cache and for those to
// read again.
func TestKnownKeysDoNotWaitForGuesses(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	_, secret := a.issue(nil)
	parsed := need.Value(auth.ParseSecret(secret))(t)
	known := parsed.Hash()
	hold := newGate()
	tracer := &lookupTracer{before: func(one lookup) {
		if !bytes.Equal(one.hashes[0], known[:]) {
			hold.pass()
		}
	}}
	v := a.traced(tracer)
	verify := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if _, err := v.Verify(ctx, secret, over("192.0.2.1")); err != nil {
			t.Errorf("the known key: %v", err)
		}
	}
	verify()
	var group sync.WaitGroup
	for i := range 20 {
		limit := over("192.0.2.1")
		if i%2 == 0 {
			limit = nil
		}
		group.Go(func() { guess(t.Context(), t, v, limit) })
	}
	for range auth.ParallelLookups {
		<-hold.arrived
	}
	v.Trust()
	verify()
	v.Forget()
	verify()
	if lookups, _ := tracer.seen(); len(lookups) != 2+auth.ParallelLookups {
		t.Errorf("%d lookups, want one for each of %d guesses and two for the known key", len(lookups), auth.ParallelLookups)
	}
	close(hold.opened)
	group.Wait()
}

// TestGuessesOverTheLimit checks that addresses over their failure limit share one
// lookup at a time, and that other addresses pass them. A valid key from such an
// address works.
func TestGuessesOverTheLimit(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	_, secret := a.issue(nil)
	hold := newGate()
	var held atomic.Bool
	tracer := &lookupTracer{before: func(lookup) {
		if held.CompareAndSwap(false, true) {
			hold.pass()
		}
	}}
	v := a.traced(tracer)
	addresses := []string{"192.0.2.1", "192.0.2.2", "2001:db8::"}
	var group sync.WaitGroup
	for i := range 30 {
		group.Go(func() { guess(t.Context(), t, v, over(addresses[i%len(addresses)])) })
	}
	<-hold.arrived
	for range 10 {
		guess(t.Context(), t, v, nil)
	}
	if lookups, most := tracer.seen(); len(lookups) != 11 || most != 2 {
		t.Errorf("%d lookups, %d at the same time; want one of an address over its limit, and the ten others", len(lookups), most)
	}
	group.Go(func() {
		if _, err := v.Verify(t.Context(), secret, over(addresses[0])); err != nil {
			t.Errorf("a valid key from an address over its limit: %v", err)
		}
	})
	close(hold.opened)
	group.Wait()
	if _, most := tracer.seen(); most != 2 {
		t.Errorf("%d lookups at the same time, want the two from before", most)
	}
}

// TestWaitersOfOneKey verifies one key in many goroutines while it must be read again all
// the time. Waiters of the same key share a lookup. Run it with the race detector: a key
// must not change once the cache has it.
func TestWaitersOfOneKey(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	_, secret := a.issue(nil)
	v := a.verifier()
	v.Trust()
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for i := range 100 {
				if i%10 == 0 {
					v.Forget()
				}
				if _, err := v.Verify(t.Context(), secret, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}

// TestPaceOfGuesses checks the minimum duration of a lookup for an address over its
// failure limit, also when the client hangs up.
func TestPaceOfGuesses(t *testing.T) {
	t.Parallel()
	const guesses = 5
	a := newAccount(t)
	hangUp := func() {}
	v := a.traced(&lookupTracer{before: func(lookup) { hangUp() }})
	for _, hangs := range []bool{false, true} {
		began := time.Now()
		for range guesses {
			ctx, cancel := context.WithCancel(t.Context())
			if hangs {
				hangUp = cancel
			}
			guess(ctx, t, v, over("192.0.2.1"))
			cancel()
		}
		if took := time.Since(began); took < guesses*auth.SuspectPace {
			t.Errorf("%d guesses took %s, want at least %s each (hanging up: %t)", guesses, took, auth.SuspectPace, hangs)
		}
	}
}

// TestForgetDuringALookup checks that a verifier does not use a key again that was
// revoked during its lookup, whatever the notification names.
func TestForgetDuringALookup(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	for what, forget := range map[string]func(v *auth.Verifier, id int64){
		"the key":     (*auth.Verifier).ForgetKey,
		"the account": func(v *auth.Verifier, _ int64) { v.ForgetAccount(a.id) },
		"every key":   func(v *auth.Verifier, _ int64) { v.Forget() },
	} {
		id, secret := a.issue(nil)
		hold := newGate()
		var held atomic.Bool
		v := a.traced(&lookupTracer{after: func(lookup) {
			if held.CompareAndSwap(false, true) {
				hold.pass()
			}
		}})
		v.Trust()
		verified := make(chan error)
		go func() {
			_, err := v.Verify(t.Context(), secret, nil)
			verified <- err
		}()
		<-hold.arrived
		need.Value(a.queries.APIKeyRevokeOwn(t.Context(), db.APIKeyRevokeOwnParams{ID: id, AccountID: a.id}))(t)
		forget(v, id)
		close(hold.opened)
		if err := <-verified; err != nil {
			t.Errorf("%s: a request from before the revocation: %v", what, err)
		}
		v.Trust()
		if _, err := v.Verify(t.Context(), secret, nil); !errors.Is(err, auth.ErrInvalidKey) {
			t.Errorf("%s: after the key was revoked: %v", what, err)
		}
	}
}

// TestCacheIsShared: a payer that uses more keys than the cache has places for evicts none of another
// payer. Keys that have ended evict none at all.
func TestCacheIsShared(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	other := newAccount(t)
	made := need.Value(stores.CreateSandbox(t.Context(), a.queries, stores.NewSandbox{ParentID: a.id, Name: "test", Sample: stores.SampleEmpty, Expiry: time.Hour}))(t)
	sandbox := &account{t: t, database: a.database, queries: a.queries, id: made.Sandbox.ID}
	past := a.now.Add(-time.Second)
	for name, test := range map[string]struct {
		keys      *account
		endAt     *time.Time
		want      error
		bystander *account
	}{
		"keys of a sandbox":    {sandbox, nil, nil, other},
		"keys that have ended": {a, &past, auth.ErrInvalidKey, a},
	} {
		v := a.verifier()
		kept := test.bystander.issueMany(1, nil)[0]
		lookupsOf(t, v, kept)
		const part = 50
		var group sync.WaitGroup
		for secrets := range slices.Chunk(test.keys.issueMany(auth.CacheSize+1, test.endAt), part) {
			group.Go(func() {
				for _, secret := range secrets {
					if _, err := v.Verify(t.Context(), secret, nil); !errors.Is(err, test.want) {
						t.Errorf("%s: verified: %v, want %v", name, err, test.want)
					}
				}
			})
		}
		group.Wait()
		newest := test.keys.issueMany(1, nil)[0]
		for _, secret := range []string{kept, newest} {
			first, second := lookupsOf(t, v, secret), lookupsOf(t, v, secret)
			if isNew := secret == newest; first != 0 && !isNew || second != 0 {
				t.Errorf("%s: a key (new: %t) is looked up %d times, and then %d times", name, isNew, first, second)
			}
		}
	}
}

// issueMany issues keys in one statement.
func (a *account) issueMany(number int, expiresAt *time.Time) (secrets []string) {
	a.t.Helper()
	var hashes [][]byte
	for range number {
		secret := auth.NewSecret()
		hash := secret.Hash()
		secrets, hashes = append(secrets, secret.Reveal()), append(hashes, hash[:])
	}
	pgtest.Exec(a.t, a.database.Pool, `INSERT INTO api_keys (account_id, name, scope, prefix, secret_sha256, expires_at)
		SELECT $1, 'many', 'read', 'x', unnest($2::bytea[]), $3`, a.id, hashes, expiresAt)
	pgtest.Exec(a.t, a.database.Pool, "ANALYZE api_keys") // or each lookup reads the whole table
	return secrets
}
