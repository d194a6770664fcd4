//go:build !linux

package postgres

import "syscall"

// boundUnacknowledged does nothing: only Linux can. Keepalives end an idle
// connection all the same.
func boundUnacknowledged(string, string, syscall.RawConn) error { return nil }
