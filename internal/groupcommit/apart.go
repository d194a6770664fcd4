package groupcommit

import (
	"maps"
	"sync"
	"time"
)

const (
	// backlog is the number of writes in progress above which a store has groups of its own.
	// Its writes would fill the common groups, and its neighbors would wait.
	backlog = 8
	// The times for which a store has groups of its own: after it had a backlog, after one of
	// its writes has failed without neighbors too, and after a common group has left it out.
	backlogFor, failedFor, contendedFor = time.Second, 10 * time.Second, time.Second
)

// apart knows the stores that take no part in common groups.
type apart struct {
	mu     sync.Mutex
	writes map[int64]int       // in progress, by account
	until  map[int64]time.Time // by account
}

func newApart() *apart {
	return &apart{writes: map[int64]int{}, until: map[int64]time.Time{}}
}

// begin counts a write, and reports whether its store takes no part in common groups. Call
// end after the write.
func (a *apart) begin(account int64) (isApart bool) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writes[account]++
	if a.writes[account] > backlog {
		a.put(account, now.Add(backlogFor))
	}
	return now.Before(a.until[account])
}

func (a *apart) end(account int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.writes[account]--; a.writes[account] == 0 {
		delete(a.writes, account)
	}
}

// stores returns the number of stores with writes in progress.
func (a *apart) stores() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.writes)
}

// keep keeps a store out of common groups for a time.
func (a *apart) keep(account int64, duration time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.put(account, time.Now().Add(duration))
}

// put makes a store have groups of its own until a time, if it has none until then. The caller
// holds the lock.
func (a *apart) put(account int64, until time.Time) {
	if _, known := a.until[account]; !known {
		now := time.Now()
		maps.DeleteFunc(a.until, func(_ int64, until time.Time) bool { return !until.After(now) })
	}
	if until.After(a.until[account]) {
		a.until[account] = until
	}
}
