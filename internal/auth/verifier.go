package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/singleflight"

	"petstore/db"
)

const (
	// cacheSize bounds the keys that are remembered, some 200 bytes each. Only
	// keys that exist are, so nobody fills it with guesses.
	cacheSize = 10_000

	// A remembered key is good for trustFor after the latest proof, which may be
	// 0.3 s old when it comes (postgres.Listener waits no longer), that every
	// revocation so far was heard, and without such proof for timeToLive after
	// it was read. Both are under the second in which a revoked key must stop.
	trustFor   = 650 * time.Millisecond
	timeToLive = 500 * time.Millisecond

	// loadTimeout bounds the reading of a key.
	loadTimeout = 3 * time.Second
)

// Channel is the notification channel on which every change of a key is announced.
const Channel = "api_keys"

// Identity is whose key it is and what it may do.
type Identity struct {
	KeyID     int64
	AccountID int64
	Scope     Scope
	// Prefix is the key's display prefix, fit for logs.
	Prefix string
}

// Verifier verifies secrets. It remembers the keys it has seen, so that on a
// warm server verifying costs no database round trip, and forgets all of them
// when one changes, which is rare.
type Verifier struct {
	queries *db.Queries
	writes  *db.Queries
	now     func() time.Time
	cache   *lru.Cache[[sha256.Size]byte, cachedKey]
	loads   singleflight.Group
	// generation counts the times the cache was emptied: a key read from the
	// database before then must not be remembered after.
	generation   atomic.Uint64
	trustedUntil atomic.Pointer[time.Time]
	uses         uses
	hits, misses atomic.Uint64
}

// cachedKey is the key that a secret is of.
type cachedKey struct {
	identity Identity
	// endsAt is when the key expires, or the grace of a secret that was replaced
	// ends, whichever is first.
	endsAt   *time.Time
	loadedAt time.Time
	noted    *atomic.Int64 // when its use was last noted or stored, in Unix nanoseconds
}

// NewVerifier returns a Verifier that reads keys with queries, and stores with
// writes when they were last used.
func NewVerifier(queries, writes *db.Queries) *Verifier {
	cache, err := lru.New[[sha256.Size]byte, cachedKey](cacheSize)
	if err != nil {
		panic(err) // the size is not positive
	}
	v := &Verifier{queries: queries, writes: writes, now: time.Now, cache: cache}
	v.trustedUntil.Store(&time.Time{})
	return v
}

// Forget empties the cache: a key has changed, or may have changed unheard.
func (v *Verifier) Forget() {
	v.generation.Add(1)
	v.cache.Purge()
}

// Trust says that every change up to now has led to a call of Forget.
func (v *Verifier) Trust() {
	until := v.now().Add(trustFor)
	v.trustedUntil.Store(&until)
}

// Lookups says how many well-formed secrets were found in memory so far, and for
// how many the database had to be asked.
func (v *Verifier) Lookups() (hits, misses uint64) { return v.hits.Load(), v.misses.Load() }

// Verify returns whose secret it is. The error is [ErrInvalidKey] or one of the
// database.
func (v *Verifier) Verify(ctx context.Context, text string) (Identity, error) {
	secret, err := ParseSecret(text)
	if err != nil {
		return Identity{}, err
	}
	hash := secret.Hash()
	now := v.now()
	key, found := v.cache.Get(hash)
	if !found || (now.After(*v.trustedUntil.Load()) && now.Sub(key.loadedAt) > timeToLive) {
		v.misses.Add(1)
		if key, err = v.load(ctx, hash); err != nil {
			return Identity{}, err
		}
		now = v.now()
	} else {
		v.hits.Add(1)
	}
	if key.endsAt != nil && !now.Before(*key.endsAt) {
		return Identity{}, ErrInvalidKey
	}
	v.note(key, now)
	return key.identity, nil
}

// load reads a key, once for all who ask for it at the same time and since the
// same change of a key: what was read before it may be wrong after.
func (v *Verifier) load(ctx context.Context, hash [sha256.Size]byte) (cachedKey, error) {
	generation := v.generation.Load()
	loaded, err, _ := v.loads.Do(fmt.Sprintf("%x %d", hash, generation), func() (any, error) {
		loadedAt := v.now()
		// The first who asks may leave; the others wait for this.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
		defer cancel()
		row, err := v.queries.APIKeyVerify(ctx, hash[:])
		if errors.Is(err, pgx.ErrNoRows) {
			v.cache.Remove(hash)
			return nil, ErrInvalidKey
		}
		if err != nil {
			return nil, err
		}
		scope, err := ParseScope(row.Scope)
		if err != nil {
			return nil, err
		}
		key := cachedKey{
			identity: Identity{KeyID: row.ID, AccountID: row.AccountID, Scope: scope, Prefix: row.Prefix},
			endsAt:   endsAt(row),
			loadedAt: loadedAt,
			noted:    new(atomic.Int64),
		}
		if row.LastUsedAt != nil {
			key.noted.Store(row.LastUsedAt.UnixNano())
		}
		v.cache.Add(hash, key)
		if v.generation.Load() != generation {
			v.cache.Remove(hash)
		}
		return key, nil
	})
	if err != nil {
		return cachedKey{}, err
	}
	return loaded.(cachedKey), nil //nolint:forcetypeassert // what the function above returns
}

// endsAt is when a secret ends; nil: never.
func endsAt(row db.APIKeyVerifyRow) *time.Time {
	if row.Superseded && (row.ExpiresAt == nil || row.PreviousUntil.Before(*row.ExpiresAt)) {
		return row.PreviousUntil
	}
	return row.ExpiresAt
}
