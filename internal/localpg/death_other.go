//go:build !linux

package localpg

import "syscall"

// signalOnDeath does nothing: only Linux can. The next Start ends the server.
func signalOnDeath(*syscall.SysProcAttr, syscall.Signal) {}
