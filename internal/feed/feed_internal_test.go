package feed

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"petstore/db"
)

// TestWaitersWithDifferentCursors: another process writes two events. A request that has
// read both waits for the next one before a look has found them. Requests that wait for the
// first one wake nevertheless.
func TestWaitersWithDifferentCursors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := New(nil, nil)
		h.looking = true // the test looks
		woken := make(chan bool)
		wait := func(after int64) { woken <- h.Wait(t.Context(), 1, after) }
		go wait(10)
		synctest.Wait()
		go wait(12)
		synctest.Wait()
		h.found([]db.FeedEndsRow{{AccountID: 1, LastSequence: 12}})
		if !<-woken {
			t.Error("the first request was not woken")
		}
		synctest.Wait()
		if n := h.Waiting(); n != 1 {
			t.Fatalf("%d requests wait, want the second one", n)
		}
		h.found([]db.FeedEndsRow{{AccountID: 1, LastSequence: 13}})
		if !<-woken {
			t.Error("the second request was not woken")
		}
	})
}

// TestHub checks who is woken by a commit, the end of a request and a shutdown.
func TestHub(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := New(nil, nil)
		h.looking = true
		ctx, cancel := context.WithCancel(t.Context())
		woken := map[string]bool{}
		for name, one := range map[string]struct {
			ctx     context.Context
			account int64
		}{"same account": {t.Context(), 1}, "other account": {t.Context(), 2}, "gone": {ctx, 3}} {
			go func() { woken[name] = h.Wait(one.ctx, one.account, 5) }()
			synctest.Wait()
		}
		h.Announce(1)
		synctest.Wait()
		if len(woken) != 1 || !woken["same account"] {
			t.Errorf("after a commit of account 1: %v", woken)
		}
		cancel()
		synctest.Wait()
		if found, ended := woken["gone"]; !ended || found || len(woken) != 2 {
			t.Errorf("after the end of a request: %v", woken)
		}
		h.Close()
		synctest.Wait()
		if found, ended := woken["other account"]; !ended || found || h.Waiting() != 0 || h.Wait(t.Context(), 1, 5) {
			t.Errorf("after the shutdown: %v, %d wait", woken, h.Waiting())
		}
	})
}

// TestNextLook: looks take at most a fifth of the time.
func TestNextLook(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{
		0:                      interval,
		time.Millisecond:       99 * time.Millisecond,
		20 * time.Millisecond:  80 * time.Millisecond,
		50 * time.Millisecond:  200 * time.Millisecond,
		400 * time.Millisecond: 1600 * time.Millisecond,
	} {
		if got := nextLook(took); got != want {
			t.Errorf("after a look of %s: %s, want %s", took, got, want)
		}
	}
}
