package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"petstore/internal/sleep"
)

// InUseError says that another process uses the directory.
type InUseError struct {
	Dir string
	PID int // of that process, 0 if unknown
}

func (e *InUseError) Error() string {
	if e.PID == 0 {
		return "another process uses the database in " + e.Dir
	}
	return fmt.Sprintf("another process (pid %d) uses the database in %s", e.PID, e.Dir)
}

// lockDir locks a directory, or returns an [*InUseError]. The file of the lock holds
// the process id of its owner, unless the server is detached from it.
//
// The server inherits the locked file. So the kernel releases the lock when the
// owner and the last process of its server have ended.
func lockDir(ctx context.Context, dir string, detached bool) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = takeLock(ctx, file, dir)
	if server := readPID(pidFile(dir)); err == nil && runsOn(server, filepath.Dir(pidFile(dir))) {
		err = &InUseError{Dir: dir, PID: server} // it was started without our lock
	}
	if err == nil {
		err = file.Truncate(0)
	}
	if err == nil && !detached {
		_, err = file.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// orphanTimeout is the maximum time for a server without an owner to end: for its last
// checkpoint and, if it is detached, for the deletion of its data, which may be large.
const orphanTimeout = time.Minute

// takeLock locks the file. If its owner does not live, it stops the server that the
// owner left, and waits until that has ended.
func takeLock(ctx context.Context, file *os.File, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, orphanTimeout)
	defer cancel()
	signaled := false
	for first := true; ; first = false {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		owner := readPID(file.Name())
		if owner > 0 && !errors.Is(syscall.Kill(owner, 0), syscall.ESRCH) {
			return &InUseError{Dir: dir, PID: owner}
		}
		server := readPID(pidFile(dir))
		if server > 0 && !first && !signaled { // an owner that has just locked has not written its id
			signaled = syscall.Kill(server, syscall.SIGINT) == nil
		}
		if !sleep.For(ctx, pollInterval) {
			return &InUseError{Dir: dir, PID: server}
		}
	}
}

// pidFile is the file in which a server writes its process id first.
func pidFile(dir string) string { return filepath.Join(dir, "data", "postmaster.pid") }

// runsOn reports whether the process is a server on this data directory. Only Linux can
// tell.
func runsOn(pid int, data string) bool {
	current, err := os.Stat(fmt.Sprintf("/proc/%d/cwd", pid))
	if err != nil {
		return false
	}
	wanted, err := os.Stat(data)
	return err == nil && os.SameFile(current, wanted)
}

// readPID returns the number in the first line of a file, or 0.
func readPID(file string) int {
	content, _ := os.ReadFile(file)
	line, _, _ := strings.Cut(string(content), "\n")
	pid, _ := strconv.Atoi(line)
	return max(0, pid)
}
