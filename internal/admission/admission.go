// Package admission shares the resources of a process fairly among those who pay for
// their use.
//
// A resource has a total, a part that one payer may hold, and a longest wait. The payer of
// a request is the account that owns its API key or its sandbox. Keys and sandboxes are
// free, so they get no share of their own. Packages listener and ratelimit limit requests
// without a key, by network address.
//
// A request that cannot have its part at once waits in the queue of its payer. Free places
// go to the payers in turn, not to the requests in order. So a payer with a thousand
// requests delays another one by one request, not by a thousand.
package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// The reasons of a [RefusedError].
var (
	// ErrShare means that the payer itself holds the part that one payer may have.
	ErrShare = errors.New("admission: the payer has its share")
	// ErrTotal means that all payers together hold everything.
	ErrTotal = errors.New("admission: everything is taken")
)

// RefusedError means that a request did not get its part in time. It wraps [ErrShare] or
// [ErrTotal].
type RefusedError struct {
	reason error
	// Resource is the name of the resource.
	Resource string
	// RetryAfter is the time after which the part of the request is likely to be free. Requests
	// that were refused before come first. It is at most [MaxRetryAfter].
	RetryAfter time.Duration
}

// Error returns the reason and the name of the resource.
func (e *RefusedError) Error() string { return e.reason.Error() + ": " + e.Resource }

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.reason }

// MaxRetryAfter is the maximum of RetryAfter. A client that comes again too early puts off the
// clients behind it by no more than this.
const MaxRetryAfter = 30 * time.Second

// Pool is a resource of a process. It is safe for concurrent use.
type Pool struct {
	resource Resource

	mu     sync.Mutex
	used   int64
	payers map[int64]account // those that hold or wait for something
	turns  []int64           // those that wait, the next one first
	holds  holds

	// The times at which refused requests should come again: the last one of each payer that
	// had its share, and the last one of the others.
	retries    map[int64]time.Time
	retryTotal time.Time
}

// holds measures how long requests hold their parts.
type holds struct {
	sum   float64   // seconds in which parts were held, each times its weight
	given float64   // the weight of the parts that were given back
	until time.Time // sum includes what was held until then
}

// memory is the number of parts over which holds averages.
const memory = 64

// add adds the time until now, in which parts of this weight were held.
func (h *holds) add(used int64, now time.Time) {
	if used > 0 {
		h.sum += float64(used) * now.Sub(h.until).Seconds()
	}
	h.until = now
}

// give counts a part that is given back.
func (h *holds) give(weight int64) {
	h.sum -= h.sum / memory
	h.given += float64(weight) - h.given/memory
}

// mean returns for how many seconds a request holds its part, by Little's law. Before any part
// is given back, that is how long the present ones are held.
func (h *holds) mean(used int64) float64 { return h.sum / max(h.given, float64(used), 1) }

// account has the part that one payer holds, and its requests that wait, oldest first.
type account struct {
	used    int64
	waiting []*request
}

// request waits for its part of a resource.
type request struct {
	weight  int64
	granted chan struct{} // closed when it has its part
}

// New returns a Pool of a resource.
func New(resource Resource) *Pool {
	return &Pool{resource: resource, payers: map[int64]account{}, retries: map[int64]time.Time{}}
}

// Take takes a part of the resource for a payer. Return it with [Pool.Give]. The error is a
// [RefusedError] if the part is not free within the longest wait of the resource. If ctx ends
// first, the error wraps its cause.
//
// A payer that holds nothing may take more than its share, and any payer more than the
// total while nothing is taken. Otherwise a large part would never be granted.
func (p *Pool) Take(ctx context.Context, payer, weight int64) error {
	if weight == 0 {
		return nil
	}
	p.mu.Lock()
	p.holds.add(p.used, time.Now())
	err := p.check(payer, weight)
	if err == nil && len(p.turns) == 0 {
		p.grant(payer, weight)
		p.mu.Unlock()
		return nil
	}
	if p.resource.Wait == 0 {
		err = p.refuse(payer, weight, err)
		p.mu.Unlock()
		return err
	}
	waiting := &request{weight, make(chan struct{})}
	p.enqueue(payer, waiting)
	p.serve()
	p.mu.Unlock()
	return p.await(ctx, payer, waiting)
}

// IsContended reports whether a request waits for its part.
func (p *Pool) IsContended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.turns) > 0
}

// await waits until a request has its part. If it waits too long, await returns why.
func (p *Pool) await(ctx context.Context, payer int64, waiting *request) error {
	timer := time.NewTimer(p.resource.Wait)
	defer timer.Stop()
	select {
	case <-waiting.granted:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.dequeue(payer, waiting) {
		if ctx.Err() == nil {
			return nil // granted just now
		}
		p.give(payer, waiting.weight)
		return p.ended(ctx)
	}
	err := p.check(payer, waiting.weight)
	p.serve() // the requests behind this one may need less
	switch {
	case ctx.Err() != nil:
		return p.ended(ctx)
	case err == nil:
		err = ErrTotal // others come first
	}
	return p.refuse(payer, waiting.weight, err)
}

// ended returns the error of a wait that ended with its context.
func (p *Pool) ended(ctx context.Context) error {
	return fmt.Errorf("admission: waiting for %s: %w", p.resource.Name, context.Cause(ctx))
}

// manyRetries is the number of payers from which on refuse forgets those whose time is over.
const manyRetries = 1000

// refuse returns a [RefusedError]. The request should come again after the requests that were
// refused before it, when parts of its weight are given back too. p.mu must be locked.
func (p *Pool) refuse(payer, weight int64, reason error) error {
	now := time.Now()
	p.holds.add(p.used, now)
	at, parts := p.retryTotal, p.resource.Total
	if errors.Is(reason, ErrShare) {
		at, parts = p.retries[payer], p.resource.OfOnePayer()
	}
	if at.Before(now) {
		at = now
	}
	seconds := p.holds.mean(p.used) * float64(weight) / float64(parts)
	wait := min(at.Sub(now)+time.Duration(min(seconds, MaxRetryAfter.Seconds())*float64(time.Second)), MaxRetryAfter)
	switch at = now.Add(wait); {
	case !errors.Is(reason, ErrShare):
		p.retryTotal = at
	default:
		if len(p.retries) > manyRetries {
			maps.DeleteFunc(p.retries, func(_ int64, at time.Time) bool { return at.Before(now) })
		}
		p.retries[payer] = at
	}
	return &RefusedError{reason, p.resource.Name, wait}
}

// Give returns a part that Take has granted.
func (p *Pool) Give(payer, weight int64) {
	if weight == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.give(payer, weight)
}

// give returns a part and serves those that wait. p.mu must be locked.
func (p *Pool) give(payer, weight int64) {
	p.holds.add(p.used, time.Now())
	p.holds.give(weight)
	p.used -= weight
	own := p.payers[payer]
	own.used -= weight
	p.set(payer, own)
	p.serve()
}

// check returns why a payer cannot have a part at once, or nil. p.mu must be locked.
func (p *Pool) check(payer, weight int64) error {
	switch has := p.payers[payer].used; { // differences, because a sum with a large weight would overflow
	case has > 0 && weight > p.resource.OfOnePayer()-has:
		return ErrShare
	case p.used > 0 && weight > p.resource.Total-p.used:
		return ErrTotal
	default:
		return nil
	}
}

// grant counts a part. p.mu must be locked.
func (p *Pool) grant(payer, weight int64) {
	p.used += weight
	own := p.payers[payer]
	own.used += weight
	p.payers[payer] = own
}

// set stores what a payer holds and waits for. p.mu must be locked.
func (p *Pool) set(payer int64, own account) {
	if own.used == 0 && len(own.waiting) == 0 {
		delete(p.payers, payer)
	} else {
		p.payers[payer] = own
	}
}

// enqueue adds a request to the queue of its payer. A payer without a queue gets the last
// turn. p.mu must be locked.
func (p *Pool) enqueue(payer int64, waiting *request) {
	own := p.payers[payer]
	if len(own.waiting) == 0 {
		p.turns = append(p.turns, payer)
	}
	own.waiting = append(own.waiting, waiting)
	p.payers[payer] = own
}

// dequeue removes a request from the queue of its payer. It reports false if the request is
// not there, because it has its part. p.mu must be locked.
func (p *Pool) dequeue(payer int64, waiting *request) bool {
	own := p.payers[payer]
	at := slices.Index(own.waiting, waiting)
	if at < 0 {
		return false
	}
	own.waiting = slices.Delete(own.waiting, at, at+1)
	if len(own.waiting) == 0 {
		turn := slices.Index(p.turns, payer)
		p.turns = slices.Delete(p.turns, turn, turn+1)
	}
	p.set(payer, own)
	return true
}

// serve grants free parts to the payers in turn. It passes over a payer that has its share,
// but not over one that waits for the total. Otherwise small parts would hold up a large
// one without end. p.mu must be locked.
func (p *Pool) serve() {
	for turn := 0; turn < len(p.turns); {
		payer := p.turns[turn]
		first := p.payers[payer].waiting[0]
		err := p.check(payer, first.weight)
		switch {
		case errors.Is(err, ErrTotal):
			return
		case err != nil:
			turn++
			continue
		}
		p.grant(payer, first.weight)
		p.dequeue(payer, first)
		close(first.granted)
		if len(p.payers[payer].waiting) > 0 { // it gets the last turn
			p.turns = append(slices.Delete(p.turns, turn, turn+1), payer)
		}
		turn = 0
	}
}
