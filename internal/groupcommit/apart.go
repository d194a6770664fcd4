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
	// The times for which a store has groups of its own: after it had a backlog, after a failure
	// without neighbors or of an own group, and after a held feed. failedFor is also the time for a
	// sandbox that may become full.
	backlogFor, failedFor, contendedFor = time.Second, 10 * time.Second, time.Second
)

// apart knows the stores that take no part in common groups.
type apart struct {
	mu     sync.Mutex
	writes map[int64]int // in progress, by account
	until  times         // when stores take part again
	held   times         // until when own groups of stores may wait for their feed
}

// times has a time for each account.
type times struct {
	of    map[int64]time.Time
	swept time.Time // when it forgot the times that were over
}

func newApart() *apart {
	return &apart{writes: map[int64]int{}}
}

// begin counts a write, and reports whether its store takes no part in common groups. Call
// end after the write.
func (a *apart) begin(account int64) (isApart bool) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writes[account]++
	if a.writes[account] > backlog {
		a.until.put(account, now.Add(backlogFor))
	}
	return now.Before(a.until.of[account])
}

func (a *apart) end(account int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.writes[account]--; a.writes[account] == 0 {
		delete(a.writes, account)
	}
}

// stores returns the number of stores with writes between begin and end.
func (a *apart) stores() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.writes)
}

// exclude keeps a store out of common groups for a time.
func (a *apart) exclude(account int64, duration time.Duration) {
	until := time.Now().Add(duration)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.until.put(account, until)
}

// excludeHeld is exclude for a store whose own groups may then wait for the feed, because it was held
// or a write has failed.
func (a *apart) excludeHeld(account int64, duration time.Duration) {
	until := time.Now().Add(duration)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.until.put(account, until)
	a.held.put(account, until)
}

// isHeld reports whether own groups of a store may wait for the feed.
func (a *apart) isHeld(account int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Now().Before(a.held.of[account])
}

// put sets the time of an account, unless it has a later one. It forgets the times that are over, at
// most once a second: if the writes of many stores fail, each would look at all times.
func (t *times) put(account int64, until time.Time) {
	if t.of == nil {
		t.of = map[int64]time.Time{}
	}
	if now := time.Now(); now.Sub(t.swept) >= time.Second {
		maps.DeleteFunc(t.of, func(_ int64, until time.Time) bool { return !until.After(now) })
		t.swept = now
	}
	if until.After(t.of[account]) {
		t.of[account] = until
	}
}
