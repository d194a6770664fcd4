package localpg

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

func signalOnDeath(attr *syscall.SysProcAttr, signal syscall.Signal) { attr.Pdeathsig = signal }

// reach returns the path under which cmd finds a directory, and a function to call
// after its start. Root's directories are often closed to other users (a clone in
// /root, for example). So the account inherits the directory as an open file, whose
// path does not lead through its parents.
func (a *account) reach(cmd *exec.Cmd, dir string) (string, func(), error) {
	if a == nil {
		return dir, func() {}, nil
	}
	file, err := os.Open(dir)
	if err != nil {
		return "", nil, fmt.Errorf("localpg: %w", err)
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, file)
	return fmt.Sprintf("/proc/self/fd/%d", 2+len(cmd.ExtraFiles)), func() { file.Close() }, nil
}

// serves reports whether a process is a server of the data directory: that is
// where postgres works.
func serves(pid int, data string) bool {
	cwd, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid), "cwd"))
	if err != nil {
		return false
	}
	info, err := os.Stat(data)
	return err == nil && os.SameFile(cwd, info)
}
