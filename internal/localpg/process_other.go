//go:build !linux

package localpg

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// signalOnDeath does nothing: only Linux can. The next Start ends the server.
func signalOnDeath(*syscall.SysProcAttr, syscall.Signal) {}

// reach returns the directory itself, which the account must be able to enter.
func (a *account) reach(_ *exec.Cmd, dir string) (string, func(), error) {
	return dir, func() {}, nil
}

// serves reports whether a process is a server. The data directory is not
// looked at: a number from its postmaster.pid that is postgres again by chance
// is an error to the user at worst.
func serves(pid int, _ string) bool {
	output, err := exec.Command("ps", "-o", "comm=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.Contains(string(output), "postgres")
}
