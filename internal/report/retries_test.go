package report_test

import (
	"strconv"
	"testing"
)

// chain returns attempts of a request with these pauses, all with one status.
func chain(after float64, line string, pauses ...float64) []Exchange {
	all := []Exchange{x(after, line)}
	for _, pause := range pauses {
		after += 0.01 + pause
		all = append(all, x(after, line))
	}
	return all
}

// with adds exchanges.
func with(all []Exchange, more ...Exchange) []Exchange { return append(all, more...) }

func TestRetries(t *testing.T) {
	t.Parallel()
	order, other := body("order"), body("other")
	hidden := key("[redacted]")
	lost := func(after float64, changes ...change) Exchange {
		return x(after, "POST /store/orders 0", append([]change{fault("close")}, changes...)...)
	}
	placed := func(after float64, changes ...change) Exchange { return x(after, "POST /store/orders 201", changes...) }
	failed := func(after float64, changes ...change) Exchange {
		return x(after, "POST /store/orders 502 injected_fault", changes...)
	}
	const get, anyForm = "GET /pets 502 injected_fault", "application/json, text/event-stream"
	var firsts, varied, shorts, agreed, mostly, unknown, once, cut, byLibrary, otherKeys, refused, endless []Exchange
	for i := range 14 {
		endless = append(endless, failed(float64(i), key("a")))
	}
	for i := range 5 {
		unknown = append(unknown, failed(0.02*float64(i), unread(5)))
	}
	for i := range 3 {
		began, id := float64(10*i), strconv.Itoa(i)
		once = append(once, x(began, "GET /store/orders/"+id+" 503", retryAfter(1)))
		cut = append(cut, lost(began, key(id), body(id)))
		byLibrary = append(byLibrary, x(began+30, "GET /pets 0", fault("close")), x(began+30.02, "GET /pets 200"))
		otherKeys = append(otherKeys, lost(began, key(id), body(id)), placed(began+1, key("again-"+id), body(id)))
		refused = append(refused, x(began, "POST /pets 429", key(id), unread(0)), x(began+1, "POST /pets 201", key("again-"+id), body(id)))
	}
	for i := range 4 {
		began, change := float64(10*i), 0.1*float64(i)
		next := x(began+9, "GET /pets/1 200")
		firsts = append(append(firsts, chain(began, get, 0.5)...), next)
		varied = append(append(varied, chain(began, get, 0.5+change)...), next)
		shorts = append(append(shorts, chain(began, get, 0.09)...), next)
		agreed = append(append(agreed, chain(began, get, 0.12, 0.2+change)...), next)
		if i < 3 {
			mostly = append(append(mostly, chain(began, get, 0.5, 1, 2, 4-0.1*float64(i/2))...), next)
		}
	}
	run(t, []test{
		about("retry_same_key", "same key", Passed, lost(0, key("a"), order), placed(1, key("a"), order)),
		about("retry_same_key", "same key, later", Passed, lost(0, key("a"), order), placed(0.5, key("b"), other), placed(1, key("a"), order)),
		about("retry_same_key", "new key", Failed, lost(0, key("a"), order), placed(1, key("b"), order)),
		about("retry_same_key", "new key after a 503", Failed, x(0, "POST /store/orders 503", key("a"), order), placed(1, key("b"), order)),
		about("retry_same_key", "new key after a refusal", Failed, lost(0, key("a"), order), failed(1, key("b"), unread(5)), placed(2, key("b"), order)),
		about("retry_same_key", "another order", NotSeen, lost(0, key("a"), order), placed(1, key("b"), other)),
		about("retry_same_key", "another client", NotSeen, lost(0, key("a"), order), placed(1, key("b"), order, agent("other/1"))),
		about("retry_same_key", "another API key", NotSeen, lost(0, key("a"), order), placed(1, key("b"), order, apiKey(2))),
		about("retry_same_key", "same key with another API key", NotSeen, lost(0, key("a"), order), placed(1, key("a"), order, apiKey(2))),
		about("retry_same_key", "a body that nobody read", NotSeen, lost(0, key("a"), unread(5)), placed(1, key("b"), order)),
		about("retry_same_key", "bodies that nobody read", NotSeen, failed(0, key("a"), unread(0)), failed(1, key("b"), unread(0))),
		about("retry_same_key", "many equal orders", NotSeen, placed(0, key("0"), order), lost(1, key("a"), order), placed(2, key("b"), order)),
		about("retry_same_key", "long after", NotSeen, lost(0, key("a"), order), placed(90, key("b"), order)),
		about("retry_same_key", "keys that the record hides", NotSeen, lost(0, hidden, order), placed(1, hidden, order)),
		about("retry_same_key", "no retry", NotSeen, lost(0, key("a"), order)),

		about("retry_with_key", "no key", Failed, lost(0, order), placed(1, order)),
		about("retry_with_key", "no key, after a refusal", Failed, lost(0, order), failed(1, unread(5)), x(2, "POST /store/orders 429", unread(0)), placed(3, order)),
		about("retry_with_key", "no key, after a refusal of another order", NotSeen, lost(0, order), failed(1, unread(9)), placed(2, order)),
		about("retry_with_key", "key", Passed, lost(0, key("a"), order), placed(1, key("a"), order)),
		about("retry_with_key", "key, with another API key", NotSeen, lost(0, key("a"), order), placed(1, key("a"), order, apiKey(2))),
		about("retry_with_key", "after a 429", NotSeen, x(0, "POST /store/orders 429", order), placed(2, order)),
		about("retry_with_key", "in parallel", NotSeen, lost(0, order, took(2)), placed(1, order)),

		about("retry_new_key", "twice", Failed, x(0, "POST /pets 422 idempotency_key_reused"), x(1, "POST /pets 422 idempotency_key_reused")),
		about("retry_new_key", "once", Warning, x(0, "POST /pets 422 idempotency_key_reused")),
		about("retry_new_key", "once, with a lost response", Warning, x(0, "POST /pets 0 idempotency_key_reused"), x(1, "POST /pets 422 idempotency_key_reused")),
		about("retry_new_key", "new", Passed, placed(0, key("a")), placed(1, key("b"))),
		about("retry_new_key", "one key", NotSeen, placed(0, key("a"))),
		about("retry_new_key", "keys that the record hides", NotSeen, placed(0, key("a")), placed(1, hidden)),

		about("retry_temporary", "never", Warning, once...),
		about("retry_temporary", "never, lost", Warning, cut...),
		about("retry_temporary", "never, beside a library", Warning, with(once[:3:3], byLibrary...)...),
		about("retry_temporary", "never, beside another client", Warning, with(once[:3:3], x(30, "GET /store/orders/0 502", agent("other")), x(31, "GET /store/orders/0 200", agent("other")))...),
		about("retry_temporary", "never, long before", Warning, with(once[:3:3], x(200, "GET /store/orders/0 200"))...),
		about("retry_temporary", "gives up", Passed, with(once[:3:3], x(30, "GET /pets 429"), x(31, "GET /pets 200"))...),
		about("retry_temporary", "with other keys", NotSeen, otherKeys...),
		about("retry_temporary", "with other keys, after refusals", NotSeen, refused...),
		about("retry_temporary", "perhaps in other parts of the client", NotSeen,
			with(once[:3:3], x(40, "GET /store/orders/0 503"), x(41, "GET /store/orders/1 503"), x(42, "GET /store/orders/2 503"))...),
		about("retry_temporary", "few", NotSeen, once[:2]...),
		about("retry_temporary", "not safe", NotSeen, lost(0, order), x(1, "POST /pets 503"), x(2, "POST /pets?x=1 503")),
		about("retry_temporary", "not safe, even with a key", NotSeen, x(0, "POST /webhooks/1/test 503", key("a")), x(1, "POST /webhooks/2/test 503", key("b")), x(2, "POST /webhooks/3/test 503", key("c"))),
		about("retry_temporary", "ended by the client", NotSeen, x(0, "GET /pets/1 0"), x(1, "GET /pets/2 0"), x(2, "GET /pets/3 0", fault("delay"))),
		about("retry_temporary", "streams", NotSeen, x(0, "GET /events?after=evt_1 503", prefer("wait=9")), x(1, "GET /events?after=evt_2 503", prefer("wait=9")), x(2, "GET /events?after=evt_3 503", prefer("wait=9"))),

		about("retry_only_temporary", "three times", Failed, chain(0, "POST /pets 400 validation_failed", 0.1, 0.1)...),
		about("retry_only_temporary", "twice with a key", Warning, x(0, "POST /pets 400 invalid_json", key("a")), x(1, "POST /pets 400 invalid_json", key("a"))),
		about("retry_only_temporary", "twice without a key", Passed, chain(0, "POST /pets 400 validation_failed", 0.1)...),
		about("retry_only_temporary", "until it succeeds", Passed, x(0, "POST /store/orders 409 insufficient_stock", key("a")), x(1, "POST /store/orders 201", key("a"))),
		about("retry_only_temporary", "once", Passed, x(0, "POST /pets 400 validation_failed")),
		about("retry_only_temporary", "wait until it exists", NotSeen, chain(0, "GET /pets/1 404 pet_not_found", 1, 1, 1)...),
		about("retry_only_temporary", "wait until it exists, first lost", NotSeen, with([]Exchange{x(0, "GET /pets/1 0")}, chain(1, "GET /pets/1 404 pet_not_found", 1, 1, 1)...)...),
		about("retry_only_temporary", "409 in progress", NotSeen, x(0, "POST /pets 409 idempotency_in_progress", key("a")), x(1, "POST /pets 201", key("a"))),
		about("retry_only_temporary", "other bodies", Passed, x(0, "POST /pets 400", body("a")), x(1, "POST /pets 400", body("b")), x(2, "POST /pets 400", body("c"))),
		about("retry_only_temporary", "bodies that nobody read", Passed, x(0, "POST /pets 400", unread(5)), x(1, "POST /pets 400", unread(5)), x(2, "POST /pets 400", unread(5))),
		about("retry_only_temporary", "other Accept", Passed, x(0, "GET /pets 406", accept("a/a")), x(1, "GET /pets 406", accept("b/b")), x(2, "GET /pets 406", accept("c/c"))),
		about("retry_only_temporary", "other Prefer", Passed, x(0, "GET /pets 400", prefer("a")), x(1, "GET /pets 400", prefer("b")), x(2, "GET /pets 400", prefer("c"))),
		about("retry_only_temporary", "right Content-Type with the same key", Passed, x(0, "POST /pets 400", key("a"), unread(5), content("text/plain")), x(1, "POST /pets 201", key("a"), order, content("application/json"))),

		about("retry_after", "early", Failed, x(0, "GET /pets 503", retryAfter(1)), x(0.2, "GET /pets 200")),
		about("retry_after", "early, with headers of streams and waits", Failed,
			x(0, "GET /pets 503", accept(anyForm), prefer("wait=10"), retryAfter(1)), x(0.2, "GET /pets 200", accept(anyForm), prefer("wait=10"))),
		about("retry_after", "in time", Passed, x(0, "GET /pets 503", retryAfter(1)), x(1.01, "GET /pets 200")),
		about("retry_after", "early with a key", Failed, x(0, "POST /pets 429", key("a"), unread(5), retryAfter(2)), x(0.1, "GET /pets 200", took(1)), x(1, "POST /pets 201", key("a"), order)),
		about("retry_after", "another form", NotSeen, x(0, "GET /events 503", retryAfter(1)), x(0.1, "GET /events 200", accept("text/event-stream"))),
		about("retry_after", "keys that the record hides", NotSeen, x(0, "POST /pets 429", hidden, unread(5), retryAfter(2)), x(0.1, "POST /pets 201", hidden, order)),
		about("retry_after", "in parallel", NotSeen, x(-1, "GET /pets/1 200", took(2)), x(0, "GET /pets 503", retryAfter(1)), x(0.2, "GET /pets 200")),
		about("retry_after", "of two parts of the client", NotSeen, x(0, "GET /pets 429", retryAfter(1)), x(0.1, "GET /pets 429", retryAfter(1)), x(1.1, "GET /pets 200"), x(1.3, "GET /pets 200")),
		about("retry_after", "of two parts that give up", Warning, x(0, "GET /pets 429", retryAfter(1)), x(0.1, "GET /pets 429", retryAfter(1))),
		about("retry_after", "early with a key, and gives up", Failed, x(0, "POST /pets 503", key("a"), retryAfter(1)), x(0.1, "POST /pets 503", key("a"), retryAfter(1))),
		about("retry_after", "of two parts, of which one fails again", NotSeen,
			x(0, "GET /pets 503", retryAfter(2)), x(0.1, "GET /pets 503", retryAfter(1)), x(1.2, "GET /pets 503", retryAfter(1)), x(2.2, "GET /pets 200"), x(2.3, "GET /pets/1 200"), x(2.4, "GET /pets 200")),
		about("retry_after", "beside a part that succeeds", NotSeen, x(0, "GET /pets 503", retryAfter(1)), x(0.1, "GET /pets 200"), x(1.5, "GET /pets 200")),
		about("retry_after", "always half of the time", Failed, x(0, "GET /pets 503", retryAfter(1)), x(0.5, "GET /pets 503", retryAfter(1)), x(1, "GET /pets 503", retryAfter(1)), x(1.5, "GET /pets 200")),
		about("retry_after", "always half of the time, with other failures", Failed, x(0, "GET /pets 429", retryAfter(1)), x(0.5, "GET /pets 502"), x(1, "GET /pets 502"), x(1.5, "GET /pets 200")),
		about("retry_after", "early, and again long after", Failed, x(0, "GET /pets 503", retryAfter(1)), x(0.2, "GET /pets 200"), x(20, "GET /pets 200")),
		about("retry_after", "early, and another body later", Failed,
			x(0, "PUT /store/inventory/1 503", body("1"), retryAfter(1)), x(0.2, "PUT /store/inventory/1 200", body("1")), x(2, "PUT /store/inventory/1 200", body("2"))),
		about("retry_after", "early with a key, and once more", Failed, x(0, "POST /pets 503", key("a"), retryAfter(1)), x(0.1, "POST /pets 201", key("a")), x(2, "POST /pets 201", key("a"))),
		about("retry_after", "another request in between", NotSeen, x(0, "GET /pets 503", retryAfter(1)), x(0.1, "GET /pets/1 200"), x(0.2, "GET /pets 200")),
		about("retry_after", "another client", NotSeen, x(0, "GET /pets 503", retryAfter(1)), x(0.2, "GET /pets 200", agent("other"))),
		about("retry_after", "a poll", NotSeen, x(0, "GET /pets 200"), x(0.1, "GET /pets 200"), x(0.2, "GET /pets 200"), x(0.3, "GET /pets 503", retryAfter(1)), x(0.4, "GET /pets 200")),

		about("retry_backoff", "at once", Failed, chain(0, get, 0.01, 0.01, 0.01, 0.01, 0.01)...),
		about("retry_backoff", "constant", Warning, chain(0, get, 1, 1, 1, 1)...),
		about("retry_backoff", "growing", Passed, chain(0, get, 0.5, 1.1, 1.9, 4.2)...),
		about("retry_backoff", "full jitter", Passed, chain(0, get, 0.4, 0.3, 1.9, 0.8)...),
		about("retry_backoff", "bodies that nobody read", NotSeen, unknown...),
		about("retry_backoff", "slow polls", NotSeen, with(chain(0, "GET /pets 200", 30, 30), chain(90, get, 30, 30, 30, 30)...)...),
		about("retry_backoff", "after some reads", Warning, with([]Exchange{x(0, "GET /pets 200"), x(30, "GET /pets 200"), x(33, "GET /pets 200")}, chain(90, get, 30, 30, 30, 30)...)...),
		about("retry_backoff", "few", NotSeen, chain(0, get, 1, 1)...),
		about("retry_backoff", "library repeats the first", Passed, chain(0, get, 0.001, 0.5, 1, 2, 4)...),
		about("retry_backoff", "library repeats a lost one", Warning, with([]Exchange{x(-0.011, "GET /pets 0")}, chain(0, get, 1, 1, 1, 1)...)...),
		about("retry_backoff", "full jitter, first short", Passed, chain(0, get, 0.04, 0.19, 0.1, 0.2, 0.2)...),

		about("retry_jitter", "exponential", Warning, chain(0, get, 0.5, 1, 2, 4)...),
		about("retry_jitter", "linear", Warning, chain(0, get, 0.5, 1, 1.5, 2)...),
		about("retry_jitter", "constant", Warning, chain(0, get, 1, 1.001, 1, 1.002)...),
		about("retry_jitter", "equal in several requests", Warning, firsts...),
		about("retry_jitter", "varied in several requests", Passed, varied...),
		about("retry_jitter", "random", Passed, chain(0, get, 0.52, 1.3, 1.8, 4.4)...),
		about("retry_jitter", "short first pauses agree by chance", Passed, agreed...),
		about("retry_jitter", "short pauses", NotSeen, shorts...),
		about("retry_jitter", "one chain of three varied", Warning, mostly...),
		about("retry_jitter", "few", NotSeen, chain(0, get, 1, 1)...),

		about("retry_ends", "never", Failed, endless...),
		about("retry_ends", "never, or in several parts of the client", Warning, chain(0, get, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)...),
		about("retry_ends", "after four", Passed, with(chain(0, get, 1, 1, 1), x(9, "GET /pets/1 200"))...),
		about("retry_ends", "waits until it exists", NotSeen, chain(0, "GET /pets/1 404 pet_not_found", 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)...),
		about("retry_ends", "waits until it exists, first 503", NotSeen, with([]Exchange{x(0, "GET /pets/1 503")}, chain(1, "GET /pets/1 404 pet_not_found", 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)...)...),
		about("retry_ends", "after success", NotSeen, with(chain(0, get, 1, 1, 1), x(4, "GET /pets 200"))...),

		about("retry_patience", "hangs up", Warning, x(0, "GET /pets 0", took(2), fault("delay"))),
		about("retry_patience", "waits", Passed, x(0, "GET /pets 200", took(10.01), fault("delay"))),
		about("retry_patience", "waits 4 seconds", NotSeen, x(0, "GET /pets 200", took(4), fault("delay"))),
		about("retry_patience", "lost by a fault", NotSeen, x(0, "GET /pets 0", took(2), fault("close"))),
		about("retry_patience", "ends a wait", NotSeen, x(0, "GET /events 0", took(2), prefer("wait=30"))),
		about("retry_patience", "waits 11 seconds", NotSeen, x(0, "GET /pets 0", took(11), fault("delay"))),
	})
}
