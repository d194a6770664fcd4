package auth

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"petstore/db"
	"petstore/internal/sleep"
)

const (
	// noteInterval is the minimum time between two recorded uses of a key. The
	// query APIKeyMarkUsed applies the same interval.
	noteInterval = time.Minute

	// flushInterval is the time between two writes of the recorded uses. Each may
	// take flushTimeout.
	flushInterval = 10 * time.Second
	flushTimeout  = 3 * time.Second
)

// uses holds the latest use of each key until it is written. It has at most one
// entry per existing key.
type uses struct {
	mu sync.Mutex
	at map[int64]time.Time // by the key's id
}

func (u *uses) add(keyID int64, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.at == nil {
		u.at = make(map[int64]time.Time)
	}
	if at.After(u.at[keyID]) {
		u.at[keyID] = at
	}
}

// take empties u and returns its entries.
func (u *uses) take() map[int64]time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	taken := u.at
	u.at = nil
	return taken
}

// note records the use of a key, at most once per noteInterval. Otherwise it only
// reads an atomic value.
func (v *Verifier) note(key *cachedKey, now time.Time) {
	noted, at := key.noted.Load(), now.UnixNano()
	if age := time.Duration(at - noted); age.Abs() >= noteInterval && key.noted.CompareAndSwap(noted, at) { // negative: the clock was ahead
		v.uses.add(key.identity.KeyID, now)
	}
}

// FlushUses writes the recorded uses in one statement. After an error they are kept
// for the next call.
func (v *Verifier) FlushUses(ctx context.Context) error {
	taken := v.uses.take()
	if len(taken) == 0 {
		return nil
	}
	var used db.APIKeyMarkUsedParams
	for id, at := range taken {
		used.Ids = append(used.Ids, id)
		used.UsedAt = append(used.UsedAt, at)
	}
	err := v.writes.APIKeyMarkUsed(ctx, used)
	if err != nil {
		for id, at := range taken {
			v.uses.add(id, at)
		}
	}
	return err
}

// RecordUses writes the recorded uses every 10 s until ctx ends, and then once
// more.
func (v *Verifier) RecordUses(ctx context.Context, log *slog.Logger) {
	flush := func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		if err := v.FlushUses(ctx); err != nil {
			log.LogAttrs(ctx, slog.LevelWarn, "could not write when API keys were last used", slog.Any("error", err))
		}
	}
	sleep.Every(ctx, flushInterval, flush)
	flush(ctx)
}
