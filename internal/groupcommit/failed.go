package groupcommit

import (
	"errors"
	"sync"
	"time"

	"petstore/internal/postgres"
)

const (
	// groupTimeout limits each statement of a group of several writes, and waitingTimeout
	// if the group waits for locks, so beyond lock_timeout. So a write whose statement hangs
	// leaves its neighbors most of their time to run again. Alone it may take as long as
	// statement_timeout.
	groupTimeout   = time.Second
	waitingTimeout = 3 * time.Second
	// mostFailures is the number of writes of a failed group, one after the other, that the
	// database may fail again before the others give up.
	mostFailures = 3
)

// groupError is the error of a group that had no effect and whose writes may run again
// alone. They share it, so that they give up together: if the database fails each of
// them, more transactions would only be more load.
type groupError struct {
	err error

	mu       sync.Mutex
	failures int   // in a row
	last     error // the latest of them
}

// Error returns the error of the group.
func (g *groupError) Error() string { return g.err.Error() }

// failure returns the error of a group of a number of writes, which waited for locks or not.
// It is a [groupError] if running them again may help, and cannot have an effect twice.
func failure(err error, writes int, waited bool) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errSpoiled):
	case !postgres.RolledBack(err):
		return err
	case writes == 1 && postgres.Unavailable(err) && !postgres.LostToAnother(err):
		return err // no neighbor has caused it
	case waited && postgres.IsLockTimeout(err): // they have waited long enough
		return err
	}
	return &groupError{err: err}
}

// ended records how a transaction ended that ran a write of the group again. A nil group
// records nothing.
func (g *groupError) ended(err error) {
	if g == nil || postgres.LostToAnother(err) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !postgres.Unavailable(err) {
		g.failures = 0
		return
	}
	g.failures++
	g.last = err
}

// hopeless returns an error if the database has failed the writes that ran again. A nil
// group is not hopeless.
func (g *groupError) hopeless() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failures < mostFailures {
		return nil
	}
	return g.last
}
