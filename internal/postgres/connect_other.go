//go:build !linux

package postgres

import "syscall"

// boundUnacknowledged does nothing, because only Linux has TCP_USER_TIMEOUT.
// Keepalives still close idle connections.
func boundUnacknowledged(string, string, syscall.RawConn) error { return nil }
