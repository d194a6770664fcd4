package report_test

import (
	"testing"

	"petstore/internal/report"
)

func TestCorrectness(t *testing.T) {
	t.Parallel()
	unknown := func(after float64) Exchange {
		return x(after, "POST /pets 400 validation_failed", body("x"), violates("", "unknown_field"))
	}
	created := x(9, "POST /pets 201", body("y"))
	page := func(after float64) Exchange {
		return x(after, "GET /pets?page=2 400 invalid_parameter", violates("page", "unknown"))
	}
	typeless := func(after float64) Exchange { return x(after, "POST /pets 400 unsupported_content_type") }
	lostPath := func(after float64) Exchange { return x(after, "GET /petz 404 route_not_found") }
	orders := func(name string, want Status, exchanges ...Exchange) test {
		one := about("order_once", name, want, exchanges...)
		one.record.Events = []Event{{At: at(0.005), Type: report.OrderPlaced, Subject: "/store/orders/1"}, {At: at(1.005), Type: report.OrderPlaced, Subject: "/store/orders/2"}}
		return one
	}
	order := body("order")
	var polls, waits, messages, unchanged, ignored, streamless, capital, forever, ends []Exchange
	for i := range 5 {
		polls = append(polls, x(float64(i), "GET /events 200", empty))
		waits = append(waits, x(float64(i), "GET /events 200", empty, prefer("wait=30")))
		messages = append(messages, x(float64(i), "GET /messages/1 200", empty))
		unchanged = append(unchanged, x(float64(i), "GET /messages/1 304"))
		ignored = append(ignored, x(float64(i), "GET /events 200", empty, prefer("wait=0")))
		streamless = append(streamless, x(float64(i), "GET /events 200", empty, accept("application/json, text/event-stream;q=0.5")))
		capital = append(capital, x(float64(i), "GET /events 200", empty, prefer("Wait=10")))
		ends = append(ends, x(float64(i), "GET /events?after=latest 200", empty))
		forever = append(forever, x(float64(i), "GET /events 200", empty, prefer("wait=9223372036854775808")))
	}
	acrossReset := about("no_polling", "across a reset", NotSeen, polls...)
	acrossReset.record.Events = []Event{{At: at(2.5), Type: report.StoreReset}}
	sameID := orders("order of after a reset", NotSeen, x(0, "POST /store/orders 0", key("a"), order, fault("close")), x(3, "POST /store/orders 201", key("b"), order, location("/store/orders/1")))
	sameID.record.Events = append(sameID.record.Events, Event{At: at(2), Type: report.StoreReset})
	run(t, []test{
		acrossReset,
		sameID,

		about("known_fields", "always", Failed, unknown(0), unknown(1), unknown(2)),
		about("known_fields", "once", Warning, unknown(0), created),
		about("known_fields", "known", Passed, created),
		about("known_fields", "no body", NotSeen, x(0, "GET /pets 200")),

		about("known_parameters", "always", Failed, page(0), page(1), page(2)),
		about("known_parameters", "once", Warning, page(0)),
		about("known_parameters", "known", Passed, x(0, "GET /pets?limit=1 200")),
		about("known_parameters", "none", NotSeen, x(0, "GET /pets 200")),

		about("content_type", "always", Failed, typeless(0), typeless(1), typeless(2)),
		about("content_type", "once", Warning, typeless(0), created),
		about("content_type", "twice, with a lost response", Warning, x(0, "POST /pets 0 unsupported_content_type"), typeless(1), typeless(2)),
		about("content_type", "JSON", Passed, created),
		about("content_type", "no body", NotSeen, x(0, "GET /pets 200")),

		orders("twice", Failed, x(0, "POST /store/orders 0", key("a"), order, fault("close")), x(1, "POST /store/orders 201", key("b"), order, location("/store/orders/2"))),
		orders("twice, after a refusal", Failed, x(0, "POST /store/orders 0", order, fault("close")), x(0.5, "POST /store/orders 503", unread(5)), x(1, "POST /store/orders 201", order, location("/store/orders/2"))),
		orders("replayed", Passed, x(0, "POST /store/orders 0", key("a"), order, fault("close")), x(0.5, "POST /store/orders 201", key("a"), order, location("/store/orders/1"))),
		orders("same key, beside an order of another program", NotSeen, x(0, "POST /store/orders 0", key("a"), order, fault("close")), x(1, "POST /store/orders 201", key("a"), order, location("/store/orders/2"))),
		orders("lost before", NotSeen, x(3, "POST /store/orders 0", key("a"), order, fault("close")), x(4, "POST /store/orders 201", key("b"), order, location("/store/orders/3"))),
		orders("another order", NotSeen, x(0, "POST /store/orders 0", key("a"), order, fault("close")), x(1, "POST /store/orders 201", key("b"), body("x"), location("/store/orders/2"))),

		about("no_polling", "events", Warning, polls...),
		about("no_polling", "message", Warning, messages...),
		about("no_polling", "message that is unchanged", Warning, unchanged...),
		about("no_polling", "message that was sent", NotSeen, with([]Exchange{x(-1, "GET /messages/1 200")}, unchanged...)...),
		about("no_polling", "between failures", Warning, with(polls[:3:3], x(2.5, "GET /events 503"), x(2.7, "GET /events 0"), polls[3], polls[4])...),
		about("no_polling", "waits for no time", Warning, ignored...),
		about("no_polling", "prefers a list to a stream", Warning, streamless...),
		about("no_polling", "waits", Passed, waits...),
		about("no_polling", "waits, in capitals", Passed, capital...),
		about("no_polling", "waits forever", Passed, forever...),
		about("no_polling", "asks where the feed ends", NotSeen, ends...),
		about("no_polling", "a few", NotSeen, polls[:4]...),
		about("no_polling", "with news", NotSeen, with(polls[:4:4], x(4, "GET /events 200"), x(5, "GET /events 200", empty))...),

		about("not_deprecated", "deprecated", Warning, x(0, "GET /pets/1 200", deprecated)),
		about("not_deprecated", "others", Passed, x(0, "GET /pets 200")),
		about("not_deprecated", "unknown path", NotSeen, lostPath(0)),

		about("known_paths", "always", Failed, lostPath(0), lostPath(1), lostPath(2), created),
		about("known_paths", "once", Warning, lostPath(0), created),
		about("known_paths", "known", Passed, created),
		about("known_paths", "none", NotSeen),
	})
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	clean := x(0, "GET /pets 200")
	run(t, []test{
		about("secret_url", "query", Failed, x(0, "GET /pets 200", redacted("request.query"))),
		about("secret_url", "path", Failed, x(0, "GET /pets 200", redacted("request.path"))),
		about("secret_url", "response", Passed, x(0, "GET /pets 200", redacted("response.body"))),
		about("secret_url", "none", NotSeen),
		about("secret_elsewhere", "body", Failed, x(0, "POST /pets 201", redacted("request.body"))),
		about("secret_elsewhere", "method", Failed, x(0, "POST /pets 405", redacted("request.method"))),
		about("secret_elsewhere", "header", Failed, x(0, "POST /pets 201", redacted("request.headers"))),
		about("secret_elsewhere", "clean", Passed, clean),
		about("secret_elsewhere", "none", NotSeen),
		about("secret_shared", "four programs", Warning, x(0, "GET /pets 200", agent("a/1")), x(1, "GET /pets 200", agent("b/1")), x(2, "GET /pets 200", agent("c/1")), x(3, "GET /pets 200", agent("d 1"))),
		about("secret_shared", "versions", Passed, x(0, "GET /pets 200", agent("a/1")), x(1, "GET /pets 200", agent("a/2")), x(2, "GET /pets 200", agent("a/3")), x(3, "GET /pets 200", agent("a/4"))),
		about("secret_shared", "own keys", Passed, x(0, "GET /pets 200", agent("a")), x(1, "GET /pets 200", agent("b"), apiKey(2)), x(2, "GET /pets 200", agent("c"), apiKey(3)), x(3, "GET /pets 200", agent("d"), apiKey(4))),
		about("secret_shared", "none", NotSeen),
	})
}
