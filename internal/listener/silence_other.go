//go:build !linux

package listener

// limitSilence does nothing, because only Linux has TCP_USER_TIMEOUT. Write deadlines and
// keepalives close the connections of silent clients later.
func limitSilence(int) error { return nil }
