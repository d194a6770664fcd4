package report

import (
	"net/http"
	"slices"
	"time"
)

const (
	// maxPause is the longest pause between two attempts.
	maxPause = 2 * time.Minute
	// polledFor and polledTimes say when a client polls: another request after a failure is then
	// the next poll rather than a retry. It may also poll more slowly, with equal pauses.
	polledFor   = time.Minute
	polledTimes = 3
)

// addChains adds the chains of attempts of a client: a request that failed, and the same request
// again until it succeeds or the client gives up.
//
// With an Idempotency-Key, it is certain that a request is a retry. Otherwise, another part of the
// client may have sent it. So it counts only if the body is known, the client sent nothing else meanwhile, and
// the chain is not shared.
func (r *Record) addChains(all []*Exchange) {
	inChain := map[*Exchange]bool{}
	latest, again := map[string]*Exchange{}, map[*Exchange]*Exchange{} // by key; the next request with the same key
	same := map[request][]*Exchange{}
	for _, e := range all {
		same[e.request()] = append(same[e.request()], e)
		if e.Key != "" {
			of := e.Path + " " + e.Key
			again[latest[of]], latest[of] = e, e
		}
	}
	polls := map[request][]time.Time{} // the starts of its last successes
	for _, e := range all {
		before := polls[e.request()]
		isPoll := e.isRead() && len(before) == polledTimes && isPolled(before, e.Began)
		if e.succeeded() {
			polls[e.request()] = append(before[max(0, len(before)+1-polledTimes):], e.Began)
		}
		if inChain[e] || e.succeeded() || e.lasts || isPoll {
			continue
		}
		chain := []*Exchange{e}
		for {
			last := chain[len(chain)-1]
			following := last.retry(again[last])
			if last.succeeded() || following == nil || inChain[following] {
				break
			}
			inChain[following] = true
			chain = append(chain, following)
		}
		if e.Key != "" || !isShared(chain, same[e.request()]) {
			r.chains = append(r.chains, chain)
		}
	}
}

// isPolled reports whether a client polls, by the starts of its last successes.
func isPolled(successes []time.Time, now time.Time) bool {
	since := now.Sub(successes[0])
	return since <= polledFor || since <= polledTimes*maxPause && areEqual(successes[1].Sub(successes[0]), successes[2].Sub(successes[1]))
}

// isShared reports whether several parts of the client seem to have sent a chain, because they send the
// same request. Then an attempt is early, but each temporary failure has its own retry, after Retry-After.
func isShared(chain, same []*Exchange) bool {
	last, seemsEarly := chain[len(chain)-1], false
	for i, e := range chain[1:] {
		seemsEarly = seemsEarly || isEarly(chain[i], e)
	}
	if !seemsEarly {
		return false
	}
	first, _ := slices.BinarySearchFunc(same, chain[0].index, func(e *Exchange, index int) int { return e.index - index })
	var waiting []*Exchange // failures of the chain without a retry
	for _, e := range same[first:] {
		if !e.Body.equals(last.Body) {
			continue
		}
		if len(waiting) > 0 && pause(waiting[0], e) > waiting[0].RetryAfter+patience {
			return false
		}
		if due := slices.IndexFunc(waiting, func(failed *Exchange) bool { return !isEarly(failed, e) }); due >= 0 {
			waiting = slices.Delete(waiting, due, due+1)
		}
		if (e.RetryAfter > 0 || e.Status == 0 || e.Status >= http.StatusInternalServerError) && e.index <= last.index {
			waiting = append(waiting, e)
		}
		if e.index >= last.index && len(waiting) == 0 {
			return true
		}
	}
	return false
}

// mayBeOfSeveral reports whether parts of the client may each have sent an attempt of a chain, and given up.
func mayBeOfSeveral(chain []*Exchange) bool {
	return chain[0].Key == "" && !chain[len(chain)-1].succeeded()
}

// retry returns the next attempt after one that failed, or nil. Another request may have the same key.
func (e *Exchange) retry(sameKey *Exchange) *Exchange {
	retry := sameKey
	if e.hidesKey() {
		return nil
	}
	if e.Key == "" {
		if retry = e.at(1); retry != nil && isAmong(e, retry) {
			return nil
		}
	}
	if retry == nil || e.request() != retry.request() || retry.Began.Before(e.Ended) || retry.Began.Sub(e.Ended) > maxPause {
		return nil
	}
	if e.Body.equals(retry.Body) || e.Key != "" && e.Body.mayEqual(retry.Body) {
		return retry
	}
	return nil
}

// request has what a repetition has too, except for the body.
type request struct {
	episode                                                        int
	method, path, query, key, ifMatch, accept, contentType, prefer string
}

func (e *Exchange) request() request {
	return request{e.episode, e.Method, e.Path, e.RawQuery, e.Key, e.IfMatch, e.Accept, e.ContentType, e.Prefer}
}

// isAmong reports whether the client had other requests in progress from one request to the next.
func isAmong(e, next *Exchange) bool {
	const nearby = 50 // requests that began before
	for _, other := range e.client.all[max(0, e.index-nearby):e.index] {
		if other.Ended.After(e.Began) && !other.lasts {
			return true
		}
	}
	after := next.at(1)
	return after != nil && after.Began.Before(next.Ended) && !after.lasts
}

// pause returns the time that a client let pass before an attempt. The client got the response
// after its end, so it really paused for a shorter time.
func pause(before, attempt *Exchange) time.Duration { return attempt.Began.Sub(before.Ended) }

// isEarly reports whether an attempt began before the time in Retry-After was over.
func isEarly(before, attempt *Exchange) bool {
	return pause(before, attempt) < tolerated(before.RetryAfter)
}
