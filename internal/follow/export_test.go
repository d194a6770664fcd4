package follow

import "time"

// SetSilence sets the time without a byte after which a stream is lost.
func (f *Feed) SetSilence(after time.Duration) { f.silence = after }
