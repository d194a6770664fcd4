package report

import (
	"cmp"
	"net/http"
	"slices"
	"time"
)

var correctnessRules = []Rule{
	{
		ID: "known_fields", Subject: "Correctness", Title: "Send only fields that the operation has", Guide: "errors#validation_failed",
		situation: "a request with a body",
		mistake:   "the client sent a field that the operation does not have",
		judge:     judgeHabit(func(e *Exchange) (relevant, wrong bool) { return e.Body.Size > 0, e.violates("unknown_field") }),
	},
	{
		ID: "known_parameters", Subject: "Correctness", Title: "Send only parameters that the operation has", Guide: "errors#invalid_parameter",
		situation: "a request with a query",
		mistake:   "the client sent a parameter that the operation does not have",
		judge:     judgeHabit(func(e *Exchange) (relevant, wrong bool) { return e.RawQuery != "", e.violates("unknown") }),
	},
	{
		ID: "content_type", Subject: "Correctness", Title: "Send JSON with Content-Type: application/json", Guide: "errors#unsupported_content_type",
		situation: "a request with a body",
		mistake:   "the client sent a body without Content-Type: application/json, or compressed",
		judge: judgeHabit(func(e *Exchange) (relevant, wrong bool) {
			return e.Body.Size > 0 || e.Code == "unsupported_content_type", e.Code == "unsupported_content_type"
		}),
	},
	{
		ID: "order_once", Subject: "Correctness", Title: "Place an order once, even if its response is lost", Guide: "idempotency#send",
		situation: "an order that was placed but whose response was lost",
		mistake:   "the client placed an order again that had been placed already",
		judge:     judgeOrders,
	},
	{
		ID: "no_polling", Subject: "Correctness", Title: "Wait for changes instead of polling", Guide: "events#wait",
		situation: "a client that followed the events or the status of a message",
		mistake:   "the client asked five times within a minute and got nothing new, without Prefer: wait",
		judge:     judgePolling,
	},
	{
		ID: "not_deprecated", Subject: "Correctness", Title: "Use no deprecated operation", Guide: "requests#deprecation",
		situation: "a request for an operation",
		mistake:   "the client used a deprecated operation",
		judge: func(r *Record, f *finding) {
			for _, e := range r.all {
				switch {
				case e.Deprecated:
					f.warn(e.ID)
				case e.Operation != "":
					f.pass()
				}
			}
		},
	},
	{
		ID: "known_paths", Subject: "Correctness", Title: "Send requests only to paths of the API", Guide: "errors#route_not_found",
		situation: "a request to the API",
		mistake:   "the client sent a request to a path that does not exist, or with a method that the path does not have",
		judge: judgeHabit(func(e *Exchange) (relevant, wrong bool) {
			return true, e.Code == "route_not_found" || e.Code == "method_not_allowed"
		}),
	},
}

// judgeHabit judges a mistake that tests make on purpose, to see the error. It is a failure only if
// a client makes it with most requests of an operation, and otherwise a warning.
func judgeHabit(look func(*Exchange) (relevant, wrong bool)) func(*Record, *finding) {
	const certain = 3
	type habit struct {
		client    *client
		operation string
	}
	return func(r *Record, f *finding) {
		habits := map[habit]*finding{}
		for _, e := range r.all {
			relevant, wrong := look(e)
			if !relevant {
				continue
			}
			of := habit{e.client, cmp.Or(e.Operation, e.Method+" "+e.Path)}
			if habits[of] == nil {
				habits[of] = &finding{}
			}
			switch {
			case wrong:
				habits[of].warn(e.ID)
			case e.succeeded():
				habits[of].pass()
			}
		}
		for _, one := range habits {
			if len(one.mild) > one.good {
				one.escalate(certain)
			}
			f.good, f.mild, f.grave = f.good+one.good, append(f.mild, one.mild...), append(f.grave, one.grave...)
		}
	}
}

// judgeOrders finds orders in the feed whose response was lost.
func judgeOrders(r *Record, f *finding) {
	type order struct {
		episode  int
		location string
	}
	known := map[order]bool{}
	for _, e := range r.all {
		if e.Operation == "placeOrder" && e.Location != "" {
			known[order{e.episode, e.Location}] = true
		}
	}
	for _, e := range r.all {
		if e.Operation != "placeOrder" || e.Status != 0 {
			continue
		}
		first, _ := slices.BinarySearchFunc(r.Events, e.Began, func(event Event, at time.Time) int { return event.At.Compare(at) })
		placed := func(isKnown bool) bool {
			for _, event := range r.Events[first:] {
				if event.At.After(e.Ended) {
					break
				}
				if event.Type == OrderPlaced && known[order{e.episode, event.Subject}] == isKnown {
					return true
				}
			}
			return false
		}
		switch {
		case placed(false):
			if next := r.repetition(e); next != nil && next.Status == 201 && (e.Key == "" || next.Key != e.Key) {
				f.fail(next.ID)
			}
		case e.Key != "" && placed(true):
			f.pass()
		}
	}
}

// judgePolling looks for requests that came too early to get something new.
func judgePolling(r *Record, f *finding) {
	const often = 5
	vain, ended := map[place][]*Exchange{}, map[place]bool{}
	for _, e := range r.all {
		if !e.follows() || e.after == "latest" && !e.lasts { // it asks where the feed ends
			continue
		}
		if e.lasts {
			f.pass()
			continue
		}
		at := e.place("")
		switch {
		case e.IsEmpty || e.Status == http.StatusNotModified && !ended[at]:
			before := vain[at]
			for len(before) > 0 && e.Began.Sub(before[0].Began) > time.Minute {
				before = before[1:]
			}
			if vain[at] = append(before, e); len(vain[at]) == often {
				f.warn(e.ID)
				delete(vain, at)
			}
		case e.Status == http.StatusOK:
			delete(vain, at)
			ended[at] = e.Operation == "getMessage" // its status does not change any more
		}
	}
}
