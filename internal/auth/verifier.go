package auth

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	"petstore/db"
)

const (
	// A cached key is valid for trustFor after the latest proof that no revocation
	// was missed (Verifier.Trust). The proof may be 0.3 s old when it arrives
	// (postgres.Listener). Without a proof, a key is valid for cachedFor after it
	// was read. Both are below the one second within which a revoked key must stop
	// working.
	trustFor  = 650 * time.Millisecond
	cachedFor = 500 * time.Millisecond
)

// Identity is the authenticated account and key.
type Identity struct {
	KeyID int64
	// AccountID is the account whose store the key opens.
	AccountID int64
	// ParentID is the account that created the sandbox; 0 if the account is not a
	// sandbox.
	ParentID int64
	Scope    Scope
	// ExpiresAt is when the key expires; nil: never.
	ExpiresAt *time.Time
	// Prefix is the display prefix, which is safe to log.
	Prefix string
}

// IsSandbox reports whether the account is a sandbox.
func (i Identity) IsSandbox() bool { return i.ParentID != 0 }

// Payer returns the account whose limits the request counts against: a sandbox shares
// the limits of its parent.
func (i Identity) Payer() int64 {
	if i.IsSandbox() {
		return i.ParentID
	}
	return i.AccountID
}

// Verifier verifies secrets. It caches keys, so that verifying usually needs no
// database query. After a key changes, it reads that key again at its next use.
type Verifier struct {
	queries      *db.Queries
	writes       *db.Queries
	now          func() time.Time
	cache        *keyCache
	lookups      lookups
	changes      changes
	trustedUntil atomic.Pointer[time.Time]
	uses         uses
	hits, misses atomic.Uint64
}

// cachedKey is the key that a secret belongs to.
type cachedKey struct {
	identity Identity
	// endsAt is when the key expires or the grace of a replaced secret ends,
	// whichever is first. Nil means never.
	endsAt *time.Time
	// change, the number of the latest change, and loadedAt are from just before the
	// key was read.
	change   uint64
	loadedAt time.Time
	noted    *atomic.Int64 // when its use was last noted or stored, in Unix nanoseconds
}

func (k *cachedKey) hasEnded(now time.Time) bool { return k.endsAt != nil && !now.Before(*k.endsAt) }

// NewVerifier returns a Verifier that reads keys with queries and stores their last
// use with writes.
func NewVerifier(queries, writes *db.Queries) *Verifier {
	v := &Verifier{queries: queries, writes: writes, now: time.Now, cache: newKeyCache()}
	v.lookups = newLookups(v.read)
	v.trustedUntil.Store(&time.Time{})
	return v
}

// Trust states that every change up to now has led to a call of Forget, ForgetKey or
// ForgetAccount.
func (v *Verifier) Trust() {
	until := v.now().Add(trustFor)
	v.trustedUntil.Store(&until)
}

// Lookups returns how many well-formed secrets were verified from the cache so far,
// and how many needed a database query.
func (v *Verifier) Lookups() (hits, misses uint64) { return v.hits.Load(), v.misses.Load() }

// OverLimit reports whether the client's address has had too many failed
// authentications, and its network. A nil OverLimit means no.
type OverLimit func() (network netip.Addr, over bool)

// Verify returns the identity of a secret. The error is [ErrInvalidKey], a database
// error, or the error of ctx. A secret that is not cached waits for its lookup, longer
// if it comes from an address over its limit.
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
	if key.hasEnded(now) {
		return Identity{}, ErrInvalidKey
	}
	v.note(key, now)
	return key.identity, nil
}

// Remembered returns the identity of a secret that is cached. It makes no query and counts no use,
// so it does not find every valid secret.
func (v *Verifier) Remembered(text string) (Identity, bool) {
	secret, err := ParseSecret(text)
	if err != nil {
		return Identity{}, false
	}
	now := v.now()
	key, remembered := v.cache.Get(secret.Hash())
	if !remembered || !v.isFresh(key, now) || key.hasEnded(now) {
		return Identity{}, false
	}
	return key.identity, true
}

// isFresh reports whether a cached key is still valid without reading it again.
func (v *Verifier) isFresh(key *cachedKey, now time.Time) bool {
	return !v.changes.since(key.change, key.identity) &&
		(v.isTrusted(now) || now.Sub(key.loadedAt) <= cachedFor)
}

// isTrusted reports whether no announcement of a change was lost.
func (v *Verifier) isTrusted(now time.Time) bool { return !now.After(*v.trustedUntil.Load()) }

// lookUp reads a key in its lane.
func (v *Verifier) lookUp(ctx context.Context, hash hash, remembered bool, limit OverLimit) (*cachedKey, error) {
	lane, of := v.lookups.unknown, netip.Addr{}
	if remembered {
		lane = v.lookups.remembered
	} else if limit != nil {
		if network, over := limit(); over {
			lane, of = v.lookups.suspect, network
		}
	}
	key, err := lane.Do(ctx, of, hash)
	if err == nil && key == nil {
		err = ErrInvalidKey
	}
	return key, err
}
