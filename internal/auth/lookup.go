package auth

import (
	"context"
	"crypto/sha256"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"petstore/db"
	"petstore/internal/coalesce"
)

const (
	// lookupTimeout limits one statement that looks up keys.
	lookupTimeout = 3 * time.Second

	// maxHashesPerLookup is the maximum number of keys per statement.
	maxHashesPerLookup = 100

	// parallelLookups is the maximum number of concurrent statements for remembered
	// keys, and also for unknown keys.
	parallelLookups = 2

	// spareLookups is the number of additional statements for remembered keys when
	// earlier ones hang.
	spareLookups = 2

	// suspectPace is the minimum time between two lookups for one address that is
	// over its failure limit: at most 40 a second. The waiting keys of the address
	// share a statement, so a valid key among them waits for a few of these.
	suspectPace = 25 * time.Millisecond
)

// hash is the SHA-256 of a secret.
type hash = [sha256.Size]byte

// lookups reads keys from the database for a [Verifier]. Waiting keys share a
// statement.
//
// There are three lanes, so that guessing keys does not delay other clients: keys
// that this process remembers, unknown keys, and unknown keys from addresses over
// their failure limit. The last two share parallelLookups connections, of which the
// third uses at most one.
type lookups struct {
	remembered, unknown, suspect *lane
}

// lane looks up keys. Keys from different networks do not share a statement. Only the lane of
// suspects names networks.
type lane = coalesce.Coalescer[netip.Addr, hash, *cachedKey]

// newLookups returns lookups that read keys with the given function, which returns
// nil for a key that does not exist.
func newLookups(read func(context.Context, netip.Addr, []hash) ([]*cachedKey, error)) lookups {
	unknownPlaces, suspectPlace := semaphore.NewWeighted(parallelLookups), semaphore.NewWeighted(1)
	readUnknown := func(ctx context.Context, network netip.Addr, hashes []hash) ([]*cachedKey, error) {
		if err := unknownPlaces.Acquire(ctx, 1); err != nil {
			return nil, err
		}
		defer unknownPlaces.Release(1)
		return read(ctx, network, hashes)
	}
	readSuspect := func(ctx context.Context, network netip.Addr, hashes []hash) ([]*cachedKey, error) {
		// The pace also applies to clients that disconnect.
		pace := time.NewTimer(suspectPace)
		defer func() { <-pace.C }()
		if err := suspectPlace.Acquire(ctx, 1); err != nil {
			return nil, err
		}
		defer suspectPlace.Release(1)
		return readUnknown(ctx, network, hashes)
	}
	return lookups{
		remembered: coalesce.New(coalesce.Limits{Parallel: parallelLookups, Inputs: maxHashesPerLookup, Spare: spareLookups}, read),
		unknown:    coalesce.New(coalesce.Limits{Parallel: parallelLookups, Inputs: maxHashesPerLookup}, readUnknown),
		suspect:    coalesce.New(coalesce.Limits{Parallel: 1, Inputs: maxHashesPerLookup}, readSuspect),
	}
}

// read reads keys from the database and caches them, without those that do not exist, for
// which it returns nil, and those that have ended. It ignores the cancellation of ctx,
// because canceling a statement would close the connection.
func (v *Verifier) read(ctx context.Context, _ netip.Addr, hashes []hash) ([]*cachedKey, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupTimeout)
	defer cancel()
	// Read both before the keys, so that later changes are noticed.
	change, loadedAt := v.changes.count.Load(), v.now()
	wanted := make([][]byte, len(hashes))
	for i := range hashes {
		wanted[i] = hashes[i][:]
	}
	rows, err := v.queries.APIKeyLookUp(ctx, wanted)
	if err != nil {
		return nil, err
	}
	found := make(map[hash]*cachedKey, len(rows))
	for _, row := range rows {
		current, err := cachedKeyOf(row)
		if err != nil {
			return nil, err
		}
		current.change, current.loadedAt = change, loadedAt
		found[hash(row.SecretSha256)] = current
		if row.PreviousSha256 != nil {
			previous := *current
			previous.endsAt = earliest(row.PreviousUntil, row.ExpiresAt)
			found[hash(row.PreviousSha256)] = &previous
		}
	}
	for hash, key := range found {
		if old, remembered := v.cache.Peek(hash); remembered {
			key.noted = old.noted
		}
	}
	keys := make([]*cachedKey, len(hashes))
	for i, hash := range hashes { // several may be the same, so no key changes from here on
		if keys[i] = found[hash]; keys[i] != nil && !keys[i].hasEnded(loadedAt) {
			v.cache.Add(hash, keys[i])
		} else {
			v.cache.Remove(hash)
		}
	}
	return keys, nil
}

// cachedKeyOf returns the key of a row, for its current secret.
func cachedKeyOf(row db.APIKeyLookUpRow) (*cachedKey, error) {
	scope, err := ParseScope(row.Scope)
	if err != nil {
		return nil, err
	}
	key := &cachedKey{
		identity: Identity{KeyID: row.ID, AccountID: row.AccountID, Scope: scope, ExpiresAt: row.ExpiresAt, Prefix: row.Prefix},
		endsAt:   row.ExpiresAt,
		noted:    new(atomic.Int64),
	}
	if row.ParentID != nil {
		key.identity.ParentID = *row.ParentID
	}
	return key, nil
}

// earliest returns the earlier of two times. Nil means never.
func earliest(one, other *time.Time) *time.Time {
	if one == nil || other != nil && other.Before(*one) {
		return other
	}
	return one
}
