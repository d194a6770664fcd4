package auth

import "time"

// Limits of key lookups.
const (
	MaxHashesPerLookup = maxHashesPerLookup
	ParallelLookups    = parallelLookups
	SuspectPace        = suspectPace
)

// SetClock replaces the verifier's clock. Call it before the first use.
func (v *Verifier) SetClock(now func() time.Time) { v.now = now }
