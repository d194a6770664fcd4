package groupcommit

import (
	"errors"
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
)

// failure returns the error of a group of a number of writes, which waited for locks or not.
// It is errAlone if running them again may help, and cannot have an effect twice.
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
	return errAlone
}
