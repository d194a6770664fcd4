package delivery_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"petstore/internal/event"
	"petstore/internal/faults"
	"petstore/internal/standardwebhooks"
	"petstore/internal/tools/need"
	"petstore/internal/webhook"
)

// TestProbes: three probes have a mistake each, and the fourth comes twice. Refused probes are not
// repeated, and the webhook stays enabled.
func TestProbes(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	to := receive(t, func(w http.ResponseWriter, r *http.Request) {
		if id := r.Header.Get("Webhook-Id"); id != fmt.Sprintf("evt_%032x", 3) {
			w.WriteHeader(http.StatusGone) // would disable the webhook, if it were not for a probe
		}
	})
	id := f.webhook(to.url)
	for i, kind := range webhook.Probes {
		f.probe(id, kind, i)
	}
	f.work().Deliver(f.account, id)
	await(f, 0, "SELECT count(*) FROM webhook_deliveries WHERE status = 'pending'")

	secret := need.Value(standardwebhooks.SecretFrom(key))(t)
	correct := map[string]int{}
	for _, one := range to.await(5) {
		again := http.Header{}
		var at int64
		need.Value(fmt.Sscan(one.header.Get("Webhook-Timestamp"), &at))(t)
		standardwebhooks.Sign(again, one.header.Get("Webhook-Id"), time.Unix(at, 0), []byte(one.body), secret)
		state := "wrong"
		if again.Get("Webhook-Signature") == one.header.Get("Webhook-Signature") {
			if state = "old"; time.Since(time.Unix(at, 0)) < time.Minute {
				state = "correct"
			}
		}
		correct[one.header.Get("Webhook-Id")[len("evt_"):]+" "+state]++
	}
	want := map[string]int{}
	for i, state := range []string{"wrong", "old", "wrong", "correct"} {
		want[fmt.Sprintf("%032x %s", i, state)] = 1
	}
	want[fmt.Sprintf("%032x correct", 3)] = 2
	need.Same(t, want, correct, "probes")
	for kind, want := range map[string]string{webhook.ProbeForged: "failed 1", webhook.ProbeOld: "failed 1", webhook.ProbeChanged: "failed 1", webhook.ProbeDuplicate: "delivered 2"} {
		has(f, want, "SELECT status || ' ' || jsonb_array_length(attempts) FROM webhook_deliveries WHERE type = $1", kind)
	}
	has(f, "enabled 0 true", "SELECT status || ' ' || failures || ' ' || (failing_since IS NULL) FROM webhooks WHERE id = $1", id)
}

// TestInjectedFaults: a rule of a sandbox drops the response to an event, which then comes again,
// or does not send it, so that it comes late. Rules apply only to the first attempt.
func TestInjectedFaults(t *testing.T) {
	t.Parallel()
	all := newFeed(t)
	worker := all.work()
	for name, test := range map[string]struct {
		when     string
		first    int    // status of the receiver
		attempts string // their errors and statuses
		requests int
	}{
		"the response is lost":    {faults.CloseAfter, 204, webhook.LostResponse + " -204", 2},
		"the receiver refuses it": {faults.CloseAfter, 400, " 400204", 2},
		"the event is not sent":   {faults.CloseBefore, 204, webhook.Unsent + " -204", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := all.of(t, name).sandbox()
			f.exec("INSERT INTO sandbox_faults (account_id, position, operation, effect, delay_ms) VALUES ($1, 0, '*', 'delay', 9000)", f.account) // not for deliveries
			f.exec("INSERT INTO sandbox_faults (account_id, position, operation, effect, close_when) VALUES ($1, 1, 'deliverWebhook', 'close', $2)", f.account, test.when)
			var isLater atomic.Bool
			to := receive(t, func(w http.ResponseWriter, _ *http.Request) {
				if isLater.Swap(true) {
					w.WriteHeader(http.StatusNoContent)
				} else {
					w.WriteHeader(test.first)
				}
			})
			f.webhook(to.url)
			f.emit(event.Reset())
			worker.Wake(f.account)
			await(f, 1, "SELECT count(*) FROM webhook_deliveries WHERE account_id = $1 AND jsonb_array_length(attempts) = 1", f.account)
			f.exec("UPDATE webhook_deliveries SET next_attempt_at = now() WHERE account_id = $1 AND status = 'pending'", f.account) // instead of 5 seconds
			await(f, 1, "SELECT count(*) FROM webhook_deliveries WHERE account_id = $1 AND status = 'delivered'", f.account)
			has(f, test.attempts, "SELECT coalesce(attempts -> 0 ->> 'error', '') || ' ' || coalesce(attempts -> 0 ->> 'httpStatus', '-') || (attempts -> 1 ->> 'httpStatus') FROM webhook_deliveries WHERE account_id = $1", f.account)
			if to.count() != test.requests {
				t.Errorf("%d requests, want %d", to.count(), test.requests)
			}
		})
	}
}

// TestNewRule: a rule applies to the next delivery, although the worker has just found that there was none.
// In the metrics, the response that it drops counts.
func TestNewRule(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	inside := f.sandbox()
	inside.webhook(receive(t, nil).url, "pet.created")
	options := f.options()
	worker := f.workWith(options)
	inside.emit(pets(1, 1)...)
	worker.Wake(inside.account)
	await(f, "delivered", "SELECT coalesce((SELECT status FROM webhook_deliveries), '')")
	f.exec("INSERT INTO sandbox_faults (account_id, position, operation, effect, close_when) VALUES ($1, 0, 'deliverWebhook', 'close', 'after')", inside.account)
	inside.emit(pets(2, 2)...)
	worker.Wake(inside.account)
	await(f, 2, "SELECT count(*) FROM webhook_deliveries WHERE jsonb_array_length(attempts) = 1")
	has(f, webhook.LostResponse, "SELECT coalesce(attempts -> 0 ->> 'error', '') FROM webhook_deliveries WHERE sequence = 2")
	told := httptest.NewRecorder()
	options.Metrics.Handler().ServeHTTP(told, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if strings.Contains(told.Body.String(), `outcome="unreachable"`) {
		t.Error("the dropped response counts as unreachable")
	}
}
