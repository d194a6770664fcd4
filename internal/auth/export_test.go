package auth

import "time"

// Limits of key lookups.
const (
	CacheSize          = cacheSize
	MaxHashesPerLookup = maxHashesPerLookup
	ParallelLookups    = parallelLookups
	SuspectPace        = suspectPace
)

// SetClock replaces the clock of the verifier. Call it before the first use.
func (v *Verifier) SetClock(now func() time.Time) { v.now = now }
