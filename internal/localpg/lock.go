package localpg

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// dirLock is the right to a directory. The kernel takes it back when the
// process ends, however it ends.
type dirLock struct {
	file *os.File
	// previous is what the last owner left behind; zero when it stopped in order.
	previous record
}

// record stands in the lock file, for the next owner and for an [InUseError].
type record struct {
	Owner  int    `json:"owner"`            // process id
	Server int    `json:"server,omitempty"` // process id
	Socket string `json:"socket,omitempty"` // its directory
}

// lockDir takes the lock or returns an [*InUseError].
func lockDir(dir string) (*dirLock, error) {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("localpg: %w", err)
	}
	lockErr := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	var last record
	// what cannot be read is unknown: the owner may be writing it just now
	if content, err := io.ReadAll(file); err != nil || json.Unmarshal(content, &last) != nil {
		last = record{}
	}
	if lockErr != nil {
		file.Close()
		if errors.Is(lockErr, syscall.EWOULDBLOCK) {
			return nil, &InUseError{Dir: dir, PID: last.Owner}
		}
		return nil, fmt.Errorf("localpg: locking %s: %w", file.Name(), lockErr)
	}
	lock := &dirLock{file: file, previous: last}
	// the server of the last owner is still its server until ended
	if err := lock.record(record{Server: last.Server, Socket: last.Socket}); err != nil {
		file.Close()
		return nil, err
	}
	return lock, nil
}

// record writes what the next owner must know, with our process id.
func (l *dirLock) record(r record) error {
	r.Owner = os.Getpid()
	content, err := json.Marshal(r)
	if err == nil {
		err = l.file.Truncate(0)
	}
	if err == nil {
		_, err = l.file.WriteAt(content, 0)
	}
	if err != nil {
		return fmt.Errorf("localpg: %w", err)
	}
	return nil
}

// forget leaves nothing to the next owner, or, if that fails, what it finds out
// to be no longer so.
func (l *dirLock) forget() { _ = l.file.Truncate(0) }

func (l *dirLock) release() { l.file.Close() }
