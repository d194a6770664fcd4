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
)

// lockDir takes the lock of a directory, or returns an [*InUseError]. The file
// holds the process id of its owner.
//
// The server inherits the locked file, so the lock lasts until the owner and the
// last process of its server have ended, and the kernel releases it.
func lockDir(ctx context.Context, dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("localpg: %w", err)
	}
	if err := takeLock(ctx, file, dir); err != nil {
		file.Close()
		return nil, err
	}
	err = file.Truncate(0)
	if err == nil {
		_, err = file.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("localpg: %w", err)
	}
	return file, nil
}

// takeLock locks the file. If the owner was killed, it stops the server that the
// owner left, and waits until that has ended.
func takeLock(ctx context.Context, file *os.File, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	for signalled := false; ; {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("localpg: lock %s: %w", file.Name(), err)
		}
		owner := readPID(file.Name())
		if processExists(owner) {
			return &InUseError{Dir: dir, PID: owner}
		}
		if server := readPID(pidFile(dir)); owner > 0 && server > 0 && !signalled {
			signalled = syscall.Kill(server, syscall.SIGINT) == nil
		}
		if !pause(ctx) {
			return &InUseError{Dir: dir, PID: readPID(pidFile(dir))}
		}
	}
}

// pidFile is the file in which a server writes its process id first.
func pidFile(dir string) string { return filepath.Join(dir, "data", "postmaster.pid") }

// readPID returns the number in the first line of a file, or 0.
func readPID(file string) int {
	content, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || pid < 1 {
		return 0
	}
	return pid
}

// processExists reports whether a process has the id, even one of another user.
func processExists(pid int) bool {
	if pid < 1 {
		return false
	}
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
