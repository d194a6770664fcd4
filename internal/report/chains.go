package report

import (
	"slices"
	"time"
)

const (
	// maxPause is the longest pause between two attempts.
	maxPause = 2 * time.Minute
	// polledFor and polledTimes say when a client polls: another request after a failure is then
	// the next poll rather than a retry.
	polledFor   = time.Minute
	polledTimes = 3
)

// addChains adds the chains of attempts of a client: a request that failed, and the same request
// again until it succeeds or the client gives up.
//
// With an Idempotency-Key, it is certain that a request is a retry. Otherwise, another part of the
// client may have sent it. So it counts only if the client sent nothing else meanwhile.
func (r *Record) addChains(all []*Exchange) {
	inChain := map[*Exchange]bool{}
	byKey := map[string][]*Exchange{}
	for _, e := range all {
		if e.Key != "" {
			byKey[e.Path+" "+e.Key] = append(byKey[e.Path+" "+e.Key], e)
		}
	}
	for _, e := range all {
		if inChain[e] || e.succeeded() || e.lasts() || r.polls(all, e) {
			continue
		}
		chain := []*Exchange{e}
		for {
			last := chain[len(chain)-1]
			following := r.retryOf(last, byKey[last.Path+" "+last.Key])
			if last.succeeded() || following == nil || inChain[following] {
				break
			}
			inChain[following] = true
			chain = append(chain, following)
		}
		r.chains = append(r.chains, chain)
	}
}

// retryOf returns the next attempt after one that failed, or nil.
func (r *Record) retryOf(e *Exchange, sameKey []*Exchange) *Exchange {
	var retry *Exchange
	if e.hidesKey() {
		return nil
	}
	if e.Key != "" {
		if i := slices.Index(sameKey, e); i+1 < len(sameKey) {
			retry = sameKey[i+1]
		}
	} else if retry = r.next(e); retry != nil && r.isAmong(e, retry) {
		return nil
	}
	if retry == nil || !repeats(e, retry) || retry.Began.Before(e.Ended) || retry.Began.Sub(e.Ended) > maxPause {
		return nil
	}
	return retry
}

// repeats reports whether two requests are the same.
func repeats(a, b *Exchange) bool {
	return a.Method == b.Method && a.Path == b.Path && a.Key == b.Key && a.episode == b.episode && a.IfMatch == b.IfMatch &&
		a.RawQuery == b.RawQuery && a.Body.mayEqual(b.Body)
}

// isAmong reports whether the client had other requests in progress from one request to the next.
func (r *Record) isAmong(e, next *Exchange) bool {
	const nearby = 50 // requests that began before
	all := r.clients[e.client()]
	for _, other := range all[max(0, e.index-nearby):e.index] {
		if other.Ended.After(e.Began) && !other.lasts() {
			return true
		}
	}
	after := r.next(next)
	return after != nil && after.Began.Before(next.Ended) && !after.lasts()
}

// polls reports whether the client has just sent the same request several times with success.
func (r *Record) polls(all []*Exchange, e *Exchange) bool {
	if !e.isRead() {
		return false
	}
	number := 0
	for _, other := range slices.Backward(all[:e.index]) {
		if e.Began.Sub(other.Began) > polledFor || number >= polledTimes {
			break
		}
		if other.succeeded() && repeats(other, e) {
			number++
		}
	}
	return number >= polledTimes
}

// pause returns the time that a client let pass before an attempt. The client got the response
// after its end, so it really paused for a shorter time.
func pause(before, attempt *Exchange) time.Duration { return attempt.Began.Sub(before.Ended) }
