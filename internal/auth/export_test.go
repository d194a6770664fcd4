package auth

import "time"

// SetClock gives the verifier another clock, before it is used.
func (v *Verifier) SetClock(now func() time.Time) { v.now = now }
