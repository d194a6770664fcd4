package api

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/httpjson"
	"petstore/internal/postgres"
)

const (
	// maxWait is the maximum of Prefer: wait.
	maxWait = 30 * time.Second
	// readPace is the minimum time between two reads of a request that waits. Otherwise
	// each commit of a busy account would cause a read.
	readPace = 10 * time.Millisecond
)

// mayWait reports whether requests to a path may wait for a change.
func mayWait(path string) bool { return path == eventsPath || path == messagePath }

// preferredWait returns the time that a request prefers to wait (RFC 7240, section 4.3); 0:
// it does not wait.
func preferredWait(c *gin.Context) time.Duration {
	value, _ := httpjson.Preference(c.Request.Header, "wait")
	seconds, err := strconv.Atoi(value)
	if err != nil || seconds < 0 {
		return 0
	}
	return min(time.Duration(min(seconds, math.MaxInt32))*time.Second, maxWait)
}

// applyWait says in the header of a response how long its request preferred to wait.
func applyWait(header http.Header, wait time.Duration) {
	if wait > 0 {
		applyPreference(header, "wait="+strconv.Itoa(int(wait/time.Second)))
	}
}

// connectionOf returns the context that ends when the client of a request disconnects. It
// has no deadline and reads from the primary. The operation must be one that may wait.
func connectionOf(c *gin.Context) context.Context {
	return c.MustGet(connectionKey).(context.Context) //nolint:forcetypeassert // only handler sets it
}

// sight is the state of an account that a request has seen while it waits.
type sight struct {
	newest int64 // the number of the newest event that it knows
	more   bool  // whether it must look again at once
	found  bool  // whether it has what it waits for
}

// await lets a request wait after a sight. It calls look when the account may have newer
// events, until look has found something, the time is over or the server shuts down. While
// it waits, the request has no place among those in progress.
func (s *Server) await(c *gin.Context, wait time.Duration, seen sight, look func(context.Context) (sight, error)) error {
	if seen.found {
		return nil
	}
	payer := caller(c).Payer()
	if err := s.limits.longPolls.Take(c.Request.Context(), payer, 1); err != nil {
		return err
	}
	defer s.limits.longPolls.Give(payer, 1)
	s.leave(c)
	ctx, cancel := context.WithTimeout(connectionOf(c), wait)
	defer cancel()
	defer countWait(c, time.Now())
	extended := time.Now()
	for !seen.found && ctx.Err() == nil {
		if !seen.more && !(s.feed.Wait(ctx, caller(c).AccountID, seen.newest) && pause(ctx, readPace)) {
			break
		}
		extendDeadline(connectionOf(c), c, time.Since(extended))
		extended = time.Now()
		if _, err := s.authenticate(c); err != nil { // somebody may have revoked the key meanwhile
			return err
		}
		if err := s.look(c, func(ctx context.Context) (err error) {
			seen, err = look(ctx)
			return err
		}); err != nil {
			return err
		}
	}
	if connectionOf(c).Err() != nil {
		return errClientGone
	}
	extendDeadline(connectionOf(c), c, time.Since(extended))
	return nil
}

// countWait records how long a request has waited.
func countWait(c *gin.Context, began time.Time) { c.Set(waitedKey, time.Since(began)) }

// leave returns the place of a request that waits. The ReadTimeout of the HTTP server does
// not end the wait: net/http lifts it when it has read a request.
func (s *Server) leave(c *gin.Context) { s.limits.release(reservationOf(c)) }

// look reads for a request that waits, within the time limit of a request. The request has
// a place meanwhile. It waits for that, because a commit may wake more requests than its
// account has places.
func (s *Server) look(c *gin.Context, read func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(connectionOf(c), s.requestTimeout)
	defer cancel()
	for {
		err := s.reservePlace(c)
		if err == nil {
			break
		}
		if !pause(ctx, readPace) {
			return err
		}
	}
	defer s.limits.release(reservationOf(c))
	return postgres.RetryRead(ctx, func() error { return read(ctx) })
}

// pause waits. It reports false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
