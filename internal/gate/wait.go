package gate

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/feed"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
	"petstore/internal/sleep"
)

const (
	// maxWait is the maximum of Prefer: wait.
	maxWait = 30 * time.Second
	// readPace is the minimum time between two reads of a request that waits. Otherwise
	// each commit of a busy account would cause a read.
	readPace = 10 * time.Millisecond
)

// PreferredWait returns the time that a request prefers to wait (RFC 7240, section 4.3); 0:
// it does not wait, or its operation has not the attribute [Waits].
func PreferredWait(c *gin.Context) time.Duration {
	if !requestOf(c).route.has(Waits) {
		return 0
	}
	return min(httpjson.PreferredWait(c.Request.Header), maxWait)
}

// ApplyWait says in the header of a response how long its request preferred to wait.
func ApplyWait(header http.Header, wait time.Duration) {
	if wait > 0 {
		httpjson.ApplyPreference(header, "wait="+strconv.Itoa(int(wait/time.Second)))
	}
}

// Seen is the state of an account that a request has seen while it waits.
type Seen struct {
	Newest int64 // the number of the newest event that the request knows
	More   bool  // whether it must look again at once
	Cost   int   // of the next look, in requests; 0: the caller does not pay it before
	Found  bool  // whether it has what it waits for
}

// Watched names the account and the hub for whose events a request waits.
type Watched struct {
	Hub     *feed.Hub
	Account int64
	// Check returns an error of the API when the account is gone. A request that waits calls it at the
	// end, and a silent stream after each heartbeat. nil: the API key of the request then ends too.
	Check func(context.Context) error
}

// Await lets a request wait after what it has seen. It calls read when the account may have
// newer events, until read has found something, the time is over or the server shuts down.
// While the request waits, it has no place among those in progress. The ReadTimeout of the HTTP
// server does not end the wait: net/http lifts it when it has read a request.
func (g *Gate) Await(c *gin.Context, watched Watched, wait time.Duration, seen Seen, read func(context.Context) (Seen, error)) error {
	if seen.Found {
		return nil
	}
	state := requestOf(c)
	payer := state.identity.Payer()
	if err := g.Limits.longPolls.Take(c.Request.Context(), payer, 1); err != nil {
		return err
	}
	defer g.Limits.longPolls.Give(payer, 1)
	state.reserved.release()
	ctx, cancel := context.WithTimeout(state.connection, wait)
	defer cancel()
	defer state.countWait(time.Now())
	extended := time.Now()
	for !seen.Found && ctx.Err() == nil {
		liftWriteDeadline(c)
		if !seen.More && !(watched.Hub.Wait(ctx, watched.Account, seen.Newest) && sleep.For(ctx, readPace)) {
			break
		}
		g.extendDeadline(c, time.Since(extended))
		extended = time.Now()
		if err := g.CheckKey(c); err != nil {
			return err
		}
		if seen.Cost > 0 && !g.Limits.Pay(state.identity, seen.Cost) {
			seen.Found = true // the caller goes on from there when it may again
			break
		}
		if err := g.boundedRead(c, func(ctx context.Context) (err error) {
			seen, err = read(ctx)
			return err
		}); err != nil {
			return err
		}
		if err := g.CheckKey(c); err != nil { // the read may have waited
			return err
		}
	}
	if state.connection.Err() != nil {
		return errClientGone
	}
	g.extendDeadline(c, time.Since(extended))
	if seen.Found {
		return nil
	}
	return cmp.Or(g.keyRefusal(c), g.gone(c, watched))
}

// keyRefusal returns why the API key of a request does not work any more, or nil.
func (g *Gate) keyRefusal(c *gin.Context) error { return apiErrorOf(g.CheckKey(c)) }

// gone returns why the account that a request watches is gone, or nil.
func (g *Gate) gone(c *gin.Context, watched Watched) error {
	if watched.Check == nil {
		return nil
	}
	return apiErrorOf(g.boundedRead(c, watched.Check))
}

// apiErrorOf returns an error of the API, which ends a wait or a stream. A server or a database that is
// busy or fails does not.
func apiErrorOf(err error) error {
	if refused, ok := errors.AsType[*httpjson.Error](err); ok {
		return refused
	}
	return nil
}

// countWait records how long a request has waited.
func (r *request) countWait(began time.Time) { r.waited = time.Since(began) }

// boundedRead reads for a request that waits, within the time limit of a request.
func (g *Gate) boundedRead(c *gin.Context, read func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(requestOf(c).connection, g.options.RequestTimeout)
	defer cancel()
	return postgres.RetryRead(ctx, func() error { return read(ctx) })
}
