package auth

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"petstore/db"
)

const (
	// cacheSize bounds the keys that are remembered, about 250 bytes each. Only
	// keys that exist are, so nobody fills it with guesses.
	cacheSize = 10_000

	// A remembered key is good for trustFor after the latest proof, which may be
	// 0.3 s old when it comes (postgres.Listener waits no longer), that every
	// revocation so far was heard, and without such proof for timeToLive after
	// it was read. Both are under the second in which a revoked key must stop.
	trustFor   = 650 * time.Millisecond
	timeToLive = 500 * time.Millisecond
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

// Verifier verifies secrets. It remembers the keys it has seen, so that on a warm
// server verifying costs no database round trip. When one key changes, which is
// rare, it reads each of them again at its next use.
type Verifier struct {
	queries *db.Queries
	writes  *db.Queries
	now     func() time.Time
	cache   *lru.Cache[hash, *cachedKey]
	lookups lookups
	// generation counts the calls of Forget. A key that was read under an earlier
	// generation must be read again.
	generation   atomic.Uint64
	trustedUntil atomic.Pointer[time.Time]
	uses         uses
	hits, misses atomic.Uint64
}

// cachedKey is the key that a secret is of.
type cachedKey struct {
	identity Identity
	// endsAt is when the key expires, or the grace of a secret that was replaced
	// ends, whichever is first; nil: never.
	endsAt *time.Time
	// generation and loadedAt are those of the moment before the key was read.
	generation uint64
	loadedAt   time.Time
	noted      *atomic.Int64 // when its use was last noted or stored, in Unix nanoseconds
}

// NewVerifier returns a Verifier that reads keys with queries, and stores with
// writes when they were last used.
func NewVerifier(queries, writes *db.Queries) *Verifier {
	cache, err := lru.New[hash, *cachedKey](cacheSize)
	if err != nil {
		panic(err) // the size is not positive
	}
	v := &Verifier{queries: queries, writes: writes, now: time.Now, cache: cache}
	v.lookups = newLookups(v.read)
	v.trustedUntil.Store(&time.Time{})
	return v
}

// Forget has every key read again at its next use: a key has changed, or may have
// changed unheard.
func (v *Verifier) Forget() { v.generation.Add(1) }

// Trust says that every change up to now has led to a call of Forget.
func (v *Verifier) Trust() {
	until := v.now().Add(trustFor)
	v.trustedUntil.Store(&until)
}

// Lookups says how many well-formed secrets were found in memory so far, and for
// how many the database had to be asked.
func (v *Verifier) Lookups() (hits, misses uint64) { return v.hits.Load(), v.misses.Load() }

// OverLimit reports whether the client's address has had too many failed
// authentications, and which network it belongs to. Nil: it has not.
type OverLimit func() (network netip.Addr, over bool)

// Verify returns whose secret it is. The error is [ErrInvalidKey], one of the
// database, or the context's. A secret that is not in memory waits for its lookup,
// longer if it comes from an address over its limit.
func (v *Verifier) Verify(ctx context.Context, text string, limit OverLimit) (Identity, error) {
	secret, err := ParseSecret(text)
	if err != nil {
		return Identity{}, err
	}
	hash := secret.Hash()
	now := v.now()
	key, remembered := v.cache.Get(hash)
	if remembered && v.isFresh(key, now) {
		v.hits.Add(1)
	} else {
		v.misses.Add(1)
		if key, err = v.lookUp(ctx, hash, remembered, limit); err != nil {
			return Identity{}, err
		}
		now = v.now()
	}
	if key.endsAt != nil && !now.Before(*key.endsAt) {
		return Identity{}, ErrInvalidKey
	}
	v.note(key, now)
	return key.identity, nil
}

// isFresh reports whether a remembered key need not be read again.
func (v *Verifier) isFresh(key *cachedKey, now time.Time) bool {
	return key.generation == v.generation.Load() &&
		(!now.After(*v.trustedUntil.Load()) || now.Sub(key.loadedAt) <= timeToLive)
}

// lookUp reads a key in the lane that it belongs to.
func (v *Verifier) lookUp(ctx context.Context, hash hash, remembered bool, limit OverLimit) (key *cachedKey, err error) {
	var network netip.Addr
	suspect := false
	if limit != nil && !remembered {
		network, suspect = limit()
	}
	switch {
	case remembered:
		key, err = v.lookups.remembered.Do(ctx, struct{}{}, hash)
	case suspect:
		key, err = v.lookups.suspect.Do(ctx, network, hash)
	default:
		key, err = v.lookups.unknown.Do(ctx, struct{}{}, hash)
	}
	if err == nil && key == nil {
		err = ErrInvalidKey
	}
	return key, err
}
