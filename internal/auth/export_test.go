package auth

import "time"

// What lookups of keys cost at most.
const (
	MaxHashesPerLookup = maxHashesPerLookup
	ParallelLookups    = parallelLookups
	SuspectPace        = suspectPace
)

// SetClock gives the verifier another clock, before it is used.
func (v *Verifier) SetClock(now func() time.Time) { v.now = now }
