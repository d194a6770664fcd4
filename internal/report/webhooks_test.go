package report_test

import (
	"testing"

	"petstore/internal/webhook"
)

func TestWebhooks(t *testing.T) {
	t.Parallel()
	got := func(kind, status string, httpStatuses ...int) Delivery {
		d := Delivery{ID: "dlv_" + kind, WebhookID: "wh_1", Type: kind, Status: status}
		for _, httpStatus := range httpStatuses {
			d.Attempts = append(d.Attempts, Attempt{DurationMs: 20, HTTPStatus: httpStatus})
		}
		return d
	}
	late := Delivery{ID: "dlv_1", Type: "pet.created", Attempts: []Attempt{{DurationMs: 6000, HTTPStatus: 204}}}
	never := Delivery{ID: "dlv_1", Type: "pet.created", Attempts: []Attempt{{DurationMs: 15000, Error: "No response within 15 seconds."}}}
	again := func(httpStatus int) Delivery {
		return Delivery{ID: "dlv_1", Type: "pet.created", Attempts: []Attempt{{DurationMs: 9, Error: webhook.LostResponse}, {DurationMs: 9, HTTPStatus: httpStatus}}}
	}
	tests := []struct {
		rule, name string
		want       Status
		deliveries []Delivery
	}{
		{"webhook_accepts", "accepts", Passed, []Delivery{got("pet.created", "delivered", 204)}},
		{"webhook_accepts", "once not", Warning, []Delivery{got("pet.created", "delivered", 500, 204)}},
		{"webhook_accepts", "at last", Warning, []Delivery{got("pet.created", "delivered", 503, 503, 503, 204)}},
		{"webhook_accepts", "gives up", Failed, []Delivery{got("pet.created", "failed", 410)}},
		{"webhook_accepts", "never", Failed, []Delivery{got("pet.created", "pending", 500, 500, 500)}},
		{"webhook_accepts", "is not there", NotSeen, []Delivery{got("pet.created", "failed", 0, 0, 0)}},
		{"webhook_accepts", "refuses a probe", NotSeen, []Delivery{got(webhook.ProbeForged, "failed", 400)}},
		{"webhook_fast", "fast", Passed, []Delivery{got("pet.created", "delivered", 204)}},
		{"webhook_fast", "slow", Warning, []Delivery{late}},
		{"webhook_fast", "too slow", Failed, []Delivery{never}},
		{"webhook_fast", "nothing", NotSeen, nil},
		{"webhook_duplicates", "accepts", Passed, []Delivery{got(webhook.ProbeDuplicate, "delivered", 204, 200)}},
		{"webhook_duplicates", "refuses", Failed, []Delivery{got(webhook.ProbeDuplicate, "failed", 204, 409)}},
		{"webhook_duplicates", "refuses everything", NotSeen, []Delivery{got(webhook.ProbeDuplicate, "failed", 401, 401)}},
		{"webhook_duplicates", "accepts after a fault", Passed, []Delivery{again(204)}},
		{"webhook_duplicates", "refuses after a fault", Failed, []Delivery{again(500)}},
		{"webhook_duplicates", "ordinary", NotSeen, []Delivery{got("pet.created", "delivered", 500, 204)}},
	}
	var all []test
	for _, one := range tests {
		all = append(all, test{one.rule, one.name, one.want, Record{Deliveries: one.deliveries}})
	}
	works := got(webhook.ProbeDuplicate, "delivered", 204, 204)
	for rule, kind := range map[string]string{"webhook_signature": webhook.ProbeForged, "webhook_timestamp": webhook.ProbeOld, "webhook_body": webhook.ProbeChanged} {
		for _, one := range []struct {
			name       string
			want       Status
			deliveries []Delivery
		}{
			{"accepts", Failed, []Delivery{works, got(kind, "delivered", 204)}},
			{"breaks", Warning, []Delivery{works, got(kind, "failed", 500)}},
			{"refuses", Passed, []Delivery{works, got(kind, "failed", 400)}},
			{"refuses everything", NotSeen, []Delivery{got(webhook.ProbeDuplicate, "failed", 401, 401), got(kind, "failed", 401)}},
			{"no response", NotSeen, []Delivery{works, got(kind, "failed", 0)}},
			{"no probe", NotSeen, []Delivery{works}},
		} {
			all = append(all, test{rule, one.name, one.want, Record{Deliveries: one.deliveries}})
		}
	}
	run(t, all)
}

func TestStreams(t *testing.T) {
	t.Parallel()
	stream := func(after float64, line string, changes ...change) Exchange {
		return x(after, line, append([]change{func(e *Exchange) { e.Accept, e.HasEvents = "text/event-stream", e.Status == 200 }}, changes...)...)
	}
	cut := stream(0, "GET /events 200", fault("close"))
	resumed := func(e *Exchange) { e.LastEventID = "evt_1" }
	broken := func(after float64) Exchange { return stream(after, "GET /events 200", fault("close"), took(8.99)) }
	refused := func(after float64) Exchange { return stream(after, "GET /events 503", fault("status")) }
	run(t, []test{
		about("stream_resumes", "resumes", Passed, cut, stream(1, "GET /events 200", resumed)),
		about("stream_resumes", "resumes by the URL", Passed, cut, stream(1, "GET /events?after=evt_1 200")),
		about("stream_resumes", "begins again", Failed, cut, stream(1, "GET /events?after=latest 200")),
		about("stream_resumes", "beside another part of the client", Passed, cut, stream(1, "GET /events?after=latest 200"), stream(2, "GET /events 200", resumed)),
		about("stream_resumes", "begins with the oldest event", Warning, cut, stream(1, "GET /events 200")),
		about("stream_resumes", "another stream", NotSeen, cut, stream(1, "GET /events?type=pet.created 200")),
		about("stream_resumes", "ended by the client", NotSeen, stream(0, "GET /events 200"), stream(1, "GET /events 200")),
		about("stream_resumes", "another client", NotSeen, cut, stream(1, "GET /events 200", agent("other"))),

		about("stream_waits", "waits", Passed, cut, stream(1, "GET /events 200", resumed)),
		about("stream_waits", "once at once", Warning, cut, stream(0.05, "GET /events 200", resumed)),
		about("stream_waits", "always at once", Failed, refused(0), refused(0.05), refused(0.1), refused(0.15)),
		about("stream_waits", "always at once, in a long stream", Failed, broken(0), broken(9), broken(18), broken(27)),
		about("stream_waits", "always at once, in parallel", Failed, broken(0), broken(0.5), broken(1), broken(9), broken(9.5), broken(10)),
		about("stream_waits", "waits in parallel", Passed, broken(0), broken(0.9), broken(9.95), broken(10.9)),
		about("stream_waits", "begins in parallel", Passed, refused(0), refused(0.05), refused(0.1), broken(1.05), broken(1.1), broken(1.15)),
		about("stream_waits", "corrects a mistake", NotSeen, stream(0, "GET /events?limit=1 400"), stream(0.05, "GET /events 200")),
		about("stream_waits", "ended by the client", NotSeen, stream(0, "GET /events 200"), stream(0.1, "GET /events 200")),
	})
}
