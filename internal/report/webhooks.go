package report

import (
	"strings"
	"time"

	"petstore/internal/webhook"
)

// Delivery is a delivery to a webhook.
type Delivery struct {
	ID, WebhookID string
	Type, Status  string
	Attempts      []Attempt
}

// Attempt is an attempt of a delivery.
type Attempt struct {
	DurationMs int64  `json:"durationMs"`
	HTTPStatus int    `json:"httpStatus"`
	Error      string `json:"error"`
}

func (a Attempt) accepted() bool { return a.HTTPStatus/100 == 2 }

var webhookRules = []Rule{
	{
		ID: "webhook_accepts", Subject: "Webhooks", Title: "Accept an event with a 2xx", Guide: "webhooks#respond",
		situation: "a response of the receiver to an event",
		mistake:   "the receiver refused an event with a status other than 2xx",
		judge: func(r *Record, f *finding) {
			const several = 3
			for _, d := range r.Deliveries {
				refused, accepted := 0, 0
				for _, a := range d.Attempts {
					switch {
					case a.accepted():
						accepted++
					case a.HTTPStatus != 0:
						refused++
					}
				}
				switch {
				case webhook.IsProbe(d.Type):
				case refused >= several && d.Status != "delivered" || refused > 0 && d.Status == "failed":
					f.fail(d.ID)
				case refused > 0:
					f.warn(d.ID)
				case accepted > 0:
					f.pass()
				}
			}
		},
	},
	{
		ID: "webhook_fast", Subject: "Webhooks", Title: "Respond to an event within 5 seconds", Guide: "webhooks#respond",
		situation: "a response of the receiver to an event",
		mistake:   "the receiver took longer than 5 seconds to respond",
		judge: func(r *Record, f *finding) {
			const limit = 5 * time.Second
			for _, d := range r.Deliveries {
				for _, a := range d.Attempts {
					switch took := time.Duration(a.DurationMs) * time.Millisecond; {
					case a.HTTPStatus == 0 && strings.HasPrefix(a.Error, "No response within"):
						f.fail(d.ID)
					case a.HTTPStatus != 0 && took > limit:
						f.warn(d.ID)
					case a.HTTPStatus != 0:
						f.pass()
					}
				}
			}
		},
	},
	probeRule("webhook_signature", "Refuse an event with a forged signature", "a forged signature", webhook.ProbeForged),
	probeRule("webhook_timestamp", "Refuse an event with an old timestamp", "a timestamp of an hour ago", webhook.ProbeOld),
	probeRule("webhook_body", "Refuse an event whose body does not match its signature", "a changed body", webhook.ProbeChanged),
	{
		ID: "webhook_duplicates", Subject: "Webhooks", Title: "Accept an event again that you have already", Guide: "webhooks#duplicates",
		situation: "an event that the receiver accepted and then got again",
		mistake:   "the receiver did not accept an event that it had accepted before",
		judge: func(r *Record, f *finding) {
			for _, d := range r.Deliveries {
				if len(d.Attempts) < 2 || d.Attempts[1].HTTPStatus == 0 {
					continue
				}
				first, second := d.Attempts[0], d.Attempts[1]
				if d.Type == webhook.ProbeDuplicate && first.accepted() || first.Error == webhook.LostResponse {
					f.check(second.accepted(), d.ID)
				}
			}
		},
	},
}

// probeRule returns the rule for a probe that a receiver must refuse. It counts only if the
// receiver accepts a correct event: otherwise it may refuse everything.
func probeRule(id, title, what, probe string) Rule {
	return Rule{
		ID: id, Subject: "Webhooks", Title: title, Guide: "webhooks#receivers",
		situation: "a probe with " + what + ", at a receiver that accepts a correct one",
		mistake:   "the receiver accepted a probe with " + what,
		judge: func(r *Record, f *finding) {
			works := map[string]bool{}
			for _, d := range r.Deliveries {
				if d.Type == webhook.ProbeDuplicate && len(d.Attempts) > 0 && d.Attempts[0].accepted() {
					works[d.WebhookID] = true
				}
			}
			for _, d := range r.Deliveries {
				if d.Type != probe || !works[d.WebhookID] {
					continue
				}
				for _, a := range d.Attempts {
					switch {
					case a.HTTPStatus == 0: // there was no response
					case a.accepted():
						f.fail(d.ID)
					case a.HTTPStatus/100 == 5: // the receiver breaks instead of refusing
						f.warn(d.ID)
					default:
						f.pass()
					}
				}
			}
		},
	}
}
