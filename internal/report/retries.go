package report

import (
	"net/http"
	"slices"
	"time"
)

const (
	// soon is the time within which a request may be the repetition of one that was lost.
	soon = time.Minute
	// automatic is the longest pause of an HTTP library that sends a request again by itself. It
	// does that if a connection turns out to be closed.
	automatic = 50 * time.Millisecond
	// noise is the difference that timers and the way to the server make to a pause.
	noise = 10 * time.Millisecond
	// mostAttempts is the number of attempts after which a client should have given up.
	mostAttempts = 12
	// patience is the time for which a client should wait for a response, and longer.
	patience = 10 * time.Second
	// hurry is the time from which a client that closes a connection gave up waiting.
	hurry = 500 * time.Millisecond
)

var retryRules = []Rule{
	{
		ID: "retry_same_key", Subject: "Retries", Title: "Retry a POST with the same Idempotency-Key", Guide: "idempotency#send",
		situation: "a POST with an Idempotency-Key that was repeated after a lost response or a 5xx",
		mistake:   "the client repeated a POST with another Idempotency-Key, so it may take effect twice",
		judge: func(r *Record, f *finding) {
			r.eachRepeatedPost(func(lost, retry *Exchange) {
				if lost.Key != "" || retry.Key != "" {
					f.check(lost.Key == retry.Key, retry.ID)
				}
			})
		},
	},
	{
		ID: "retry_with_key", Subject: "Retries", Title: "Repeat a POST only if it has an Idempotency-Key", Guide: "retries#retries",
		situation: "a POST that was repeated after a lost response or a 5xx",
		mistake:   "the client repeated a POST without an Idempotency-Key, so it may take effect twice",
		judge: func(r *Record, f *finding) {
			r.eachRepeatedPost(func(lost, retry *Exchange) { f.check(lost.Key != "" || retry.Key != "", retry.ID) })
		},
	},
	{
		ID: "retry_new_key", Subject: "Retries", Title: "Use a new Idempotency-Key for a new request", Guide: "idempotency#rules",
		situation: "two POST requests with different Idempotency-Keys",
		mistake:   "the client sent the Idempotency-Key of another request",
		judge: func(r *Record, f *finding) {
			keys := map[string]bool{}
			for _, e := range r.all {
				switch {
				case e.Code == "idempotency_key_reused":
					f.warn(e.ID)
				case e.Key != "" && e.takesKey() && !e.hidesKey() && !keys[e.Key]:
					keys[e.Key] = true
					if len(keys) > 1 {
						f.pass()
					}
				}
			}
			f.escalate(2) // one may be a test
		},
	},
	{
		ID: "retry_temporary", Subject: "Retries", Title: "Retry a request that failed temporarily", Guide: "retries#retries",
		situation: "a request that was repeated after a temporary failure",
		mistake:   "the client did not repeat a request that had failed temporarily, nor any other one",
		judge:     judgeTemporary,
	},
	{
		ID: "retry_only_temporary", Subject: "Retries", Title: "Do not retry a request that would fail again", Guide: "retries#errors",
		situation: "a 4xx response other than 408, 409 idempotency_in_progress and 429",
		mistake:   "the client sent a request again that had got a final 4xx",
		judge:     judgeFinal,
	},
	{
		ID: "retry_after", Subject: "Retries", Title: "Wait as long as Retry-After says", Guide: "retries#retries",
		situation: "a request that was repeated after a response with Retry-After",
		mistake:   "the client repeated a request before the time in Retry-After was over",
		judge: func(r *Record, f *finding) {
			for _, chain := range r.chains {
				for i, e := range chain[1:] {
					switch before := chain[i]; {
					case before.RetryAfter == 0:
					case !isEarly(before, e):
						f.pass()
					case mayBeOfSeveral(chain):
						f.warn(e.ID)
					default:
						f.fail(e.ID)
					}
				}
			}
		},
	},
	{
		ID: "retry_backoff", Subject: "Retries", Title: "Wait longer before each attempt", Guide: "retries#retries",
		situation: "a request with at least five attempts in a row that got no Retry-After",
		mistake:   "the client did not wait longer before the later attempts",
		judge:     judgeBackoff,
	},
	{
		ID: "retry_jitter", Subject: "Retries", Title: "Vary the pauses at random", Guide: "retries#retries",
		situation: "enough pauses without Retry-After to compare them",
		mistake:   "the client made pauses without a random part, so clients that failed together come back together",
		judge:     judgeJitter,
	},
	{
		ID: "retry_ends", Subject: "Retries", Title: "Give up after some attempts", Guide: "retries#retries",
		situation: "a request that failed at least four times until the client gave up",
		mistake:   "the client sent a request more than 12 times in a row",
		judge: func(r *Record, f *finding) {
			const several = 4
			for _, chain := range r.chains {
				last := chain[len(chain)-1]
				switch {
				case waitsUntilFound(chain):
				case len(chain) > mostAttempts && last.Key == "": // parts of the client may each have sent a few
					f.warn(last.ID)
				case len(chain) > mostAttempts:
					f.fail(last.ID)
				case len(chain) >= several && !last.succeeded():
					f.pass()
				}
			}
		},
	},
	{
		ID: "retry_patience", Subject: "Retries", Title: "Wait longer than 10 seconds for a response", Guide: "report#patience",
		situation: "a response that took longer than 10 seconds",
		mistake:   "the client closed the connection within 10 seconds, before the response",
		judge: func(r *Record, f *finding) {
			for _, e := range r.all {
				took := e.Ended.Sub(e.Began)
				switch {
				case e.lasts || e.Fault == "close":
				case e.Status == 0 && took < patience && (took >= hurry || e.Fault == "delay"):
					f.warn(e.ID)
				case e.Status != 0 && took >= patience:
					f.pass()
				}
			}
		},
	},
}

// tolerated returns the shortest pause that counts as a wait.
func tolerated(wait time.Duration) time.Duration {
	const tenths = 9
	return wait * tenths / 10
}

// eachRepeatedPost calls a function for each POST whose effect the client does not know, and its
// repetition. Without the same key, a request counts only if it comes next, has the same body and
// is the only one with that body.
func (r *Record) eachRepeatedPost(do func(lost, retry *Exchange)) {
	type attempt struct {
		apiKeyID  int64 // an Idempotency-Key counts for one API key
		episode   int
		path, key string
	}
	again := map[attempt]*Exchange{} // the last one with a key
	for _, e := range slices.Backward(r.all) {
		if !e.takesKey() || e.hidesKey() {
			continue
		}
		one := attempt{e.APIKeyID, e.episode, e.Path, e.Key}
		same := again[one]
		if e.Key != "" {
			again[one] = e
		}
		if !e.isLost() {
			continue
		}
		if e.Key != "" && same != nil {
			do(e, same)
			continue
		}
		if next := r.repetition(e); next != nil && !next.hidesKey() {
			do(e, next)
		}
	}
}

// repetition returns the next request that has the effect of a lost one again, or nil. It passes over those
// that the server refused before it read their bodies.
func (r *Record) repetition(lost *Exchange) *Exchange {
	next := lost.at(1)
	if lost.Body.Hash == 0 {
		return nil
	}
	isSame := func() bool { return next != nil && next.Method == lost.Method && next.Path == lost.Path }
	for isSame() && next.Status >= 400 && next.Body.Hash == 0 && next.Body.mayEqual(lost.Body) {
		next = next.at(1)
	}
	if isSame() && next.episode == lost.episode && next.Body.equals(lost.Body) &&
		!next.Began.Before(lost.Ended) && next.Began.Sub(lost.Ended) <= soon && !r.sendsOften(next) {
		return next
	}
	return nil
}

// effect is the effect of requests of a client with the same body.
type effect struct {
	client  *client
	episode int
	path    string
	body    Body
}

func (e *Exchange) effect() effect { return effect{e.client, e.episode, e.Path, e.Body} }

// hasEffect reports whether a request has certainly taken effect.
func (e *Exchange) hasEffect() bool { return e.succeeded() && !e.Replayed }

// sendsOften reports whether the client means several requests with the same body, which is known.
func (r *Record) sendsOften(e *Exchange) bool {
	others := r.effects[e.effect()]
	if e.hasEffect() {
		others--
	}
	return others > 0
}

// judgeTemporary looks for clients that repeat nothing. Only a chain is certainly a repetition, but any
// equal request may be one. Repetitions by an HTTP library itself do not count.
func judgeTemporary(r *Record, f *finding) {
	const certain = 3
	repeats := map[*client]bool{}
	for _, chain := range r.chains {
		for i, e := range chain[1:] {
			if chain[i].isTemporary() && !isAutomatic(chain[i], e) {
				repeats[e.client] = true
				f.pass()
			}
		}
	}
	type sent struct {
		client  *client
		request request
	}
	later, maybe, never := map[sent]*Exchange{}, map[*client]int{}, map[*client][]*Exchange{}
	for _, e := range slices.Backward(r.all) {
		by := sent{e.client, e.request()}
		again := later[by]
		later[by] = e
		byOthers := by // with another key
		byOthers.request.key = ""
		if again == nil && e.Key != "" {
			again = r.repetition(e)
			if other := later[byOthers]; again == nil && e.Body.Hash == 0 && other != nil && !other.isTemporary() && e.Body.mayEqual(other.Body) {
				again = other
			}
		}
		later[byOthers] = e
		switch {
		case !e.isTemporary():
		case again == nil || pause(e, again) > maxPause:
			never[e.client] = append(never[e.client], e)
		case !isAutomatic(e, again):
			maybe[e.client]++
		}
	}
	for by, all := range never {
		if len(all) < certain || len(all) <= maybe[by] || repeats[by] {
			continue
		}
		for _, e := range all {
			f.warn(e.ID)
		}
	}
}

// isTemporary reports whether the client should repeat a request: its failure is temporary, and the
// repetition is safe.
func (e *Exchange) isTemporary() bool {
	isSafe := e.Method != http.MethodPost || e.takesKey() && e.Key != ""
	return isSafe && !e.lasts && (slices.Contains([]int{429, 502, 503, 504}, e.Status) || e.Status == 0 && e.Fault == "close")
}

// isAutomatic reports whether an HTTP library may have repeated a lost request by itself.
func isAutomatic(before, attempt *Exchange) bool {
	return before.Status == 0 && pause(before, attempt) <= automatic
}

func judgeFinal(r *Record, f *finding) {
	const certain = 2 // repetitions without a key, because a test may send a request twice
	for _, chain := range r.chains {
		repetitions, seen := 0, false
		var last *Exchange
		for i, e := range chain {
			if !e.isFinal() {
				continue
			}
			seen = true
			if i+1 < len(chain) && !chain[i+1].succeeded() { // else something has changed meanwhile, such as the stock
				repetitions++
				last = chain[i+1]
			}
		}
		switch {
		case !seen || waitsUntilFound(chain) && repetitions > 0:
		case repetitions >= certain:
			f.fail(last.ID)
		case repetitions == 1 && last.Key != "":
			f.warn(last.ID)
		default:
			f.pass()
		}
	}
}

// waitsUntilFound reports whether a client may wait until a resource exists.
func waitsUntilFound(chain []*Exchange) bool {
	return slices.ContainsFunc(chain, func(e *Exchange) bool { return e.isRead() && e.Status == 404 })
}

// pausesOf returns the pauses between attempts that the client chose by itself.
func pausesOf(chain []*Exchange) (pauses []time.Duration) {
	for i, e := range chain[1:] {
		before := chain[i]
		if before.RetryAfter == 0 && !before.isFinal() && (i > 0 || !isAutomatic(before, e)) {
			pauses = append(pauses, pause(before, e))
		}
	}
	return pauses
}

// judgeBackoff compares the first pause with the later ones. They may be random, so it needs four
// pauses in a chain.
func judgeBackoff(r *Record, f *finding) {
	const enough, growth = 4, 1.3
	for _, chain := range r.chains {
		pauses := pausesOf(chain)
		if len(pauses) < enough {
			continue
		}
		last := chain[len(chain)-1]
		switch longest := slices.Max(pauses[1:]); {
		case longest <= automatic:
			f.fail(last.ID)
		case float64(longest) < growth*float64(pauses[0]):
			f.warn(last.ID)
		default:
			f.pass()
		}
	}
}

// judgeJitter looks for pauses that are equal, in two ways: the pauses of one chain have equal
// quotients or differences, or pauses with the same index agree in several chains. A few random
// pauses agree by chance, more often if they are short, so one such finding does not outweigh others.
func judgeJitter(r *Record, f *finding) {
	const enough, shortest = 4, 10 * noise
	byIndex := map[int][]time.Duration{}
	lasts := map[int]*Exchange{}
	var equal []*Exchange
	varied := 0
	compare := func(pauses []time.Duration, isEqual bool, last *Exchange) {
		switch {
		case isEqual && slices.Max(pauses) >= shortest:
			equal = append(equal, last)
		case !isEqual:
			varied++
		}
	}
	for _, chain := range r.chains {
		pauses, last := pausesOf(chain), chain[len(chain)-1]
		if len(pauses) > 0 && slices.Min(pauses) <= automatic {
			continue
		}
		for i, p := range pauses {
			byIndex[i] = append(byIndex[i], p)
			lasts[i] = last
		}
		if len(pauses) >= enough {
			compare(pauses, isSeries(pauses), last)
		}
	}
	for i := range len(byIndex) {
		if pauses := byIndex[i]; len(pauses) >= enough {
			compare(pauses, areEqual(slices.Min(pauses), slices.Max(pauses)), lasts[i])
		}
	}
	switch {
	case len(equal) > varied:
		for _, last := range equal {
			f.warn(last.ID)
		}
	case varied > 0:
		f.pass()
	}
}

// areEqual reports whether two pauses differ only by the precision of timers and by the time on
// the way.
func areEqual(a, b time.Duration) bool {
	const share = 200
	return (a - b).Abs() <= noise+max(a, b)/share
}

// isSeries reports whether each pause follows from the two before it.
func isSeries(pauses []time.Duration) bool {
	geometric, arithmetic := true, true
	for i := 2; i < len(pauses); i++ {
		a, b, c := pauses[i-2], pauses[i-1], pauses[i]
		geometric = geometric && areEqual(c, time.Duration(float64(b)*float64(b)/float64(a)))
		arithmetic = arithmetic && areEqual(c, 2*b-a)
	}
	return geometric || arithmetic
}
