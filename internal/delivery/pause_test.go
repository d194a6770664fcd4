package delivery_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"petstore/internal/webhook"
)

// broken makes a webhook pause after failures until a time, in SQL.
func (f *feed) broken(id, until string) {
	f.t.Helper()
	f.exec("UPDATE webhooks SET failures = 20, failing_since = now() - interval '1 hour', retry_at = "+until+" WHERE id = $1", id)
}

// madeAt makes deliveries of events as old as if they came from a time.
func (f *feed) madeAt(at time.Time, sequences ...int64) {
	f.t.Helper()
	f.exec("UPDATE webhook_deliveries SET id = left($1, -2) || lpad(to_hex(sequence), 2, '0'), created_at = $2 WHERE sequence = ANY ($3)", webhook.FirstDeliveryID(at), at, sequences)
}

// TestRequestEndsPause: a test is sent at once, before the deliveries that wait. Its success
// ends the pause, and its failure does not.
func TestRequestEndsPause(t *testing.T) {
	t.Parallel()
	all := newFeed(t)
	worker := all.work()
	for name, status := range map[string]int32{"success": http.StatusOK, "failure": http.StatusBadGateway} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := all.of(t, name)
			to := reject(t, status)
			id := f.webhook(to.url, "pet.created")
			f.broken(id, "now() + interval '100 seconds'")
			f.emit(pets(1, 50)...)
			worker.Wake(f.account)
			await(f, 50, "SELECT count(*) FROM webhook_deliveries WHERE account_id = $1", f.account)
			f.test(id, 1)
			worker.Deliver(f.account, id)
			if got := to.await(1)[0]; got.event.Type != "webhook.test" {
				t.Errorf("the first request is %s", got.body)
			}
			if status == http.StatusOK {
				to.await(51)
				return
			}
			await(f, "21 50", "SELECT failures || ' ' || (SELECT count(*) FROM webhook_deliveries WHERE account_id = $1 AND attempts = '[]') FROM webhooks WHERE account_id = $1 AND retry_at > now() + interval '50 seconds'  UNION ALL SELECT '' LIMIT 1", f.account)
		})
	}
}

// TestPauseCountsNoAttempt: deliveries that have waited too long for a webhook that has failed
// all that time have failed, and so have their messages. Those that have waited for a webhook
// to be enabled wait on, and so does one whose id comes from a clock that is behind.
func TestPauseCountsNoAttempt(t *testing.T) {
	t.Parallel()
	const expired = "The endpoint has failed for 84 hours."
	for name, test := range map[string]struct {
		failing, messages, deliveries string
	}{
		"failing for 84 hours": {"84 hours", "failed 2, queued 3", "failed: " + expired + " failed: " + expired + " pending: 502"},
		"failing for 83 hours": {"83 hours", "queued 5", "pending: 502"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFeed(t)
			to := reject(t, http.StatusBadGateway)
			id := f.webhook(to.url, "message.queued")
			first := f.queue(5, time.Hour)
			f.deliver(id, "pending", first, first+4)
			for i, age := range []time.Duration{85 * time.Hour, 85 * time.Hour, 85 * time.Hour, 83 * time.Hour, 85 * time.Hour} {
				f.madeAt(time.Now().Add(-age), first+int64(i))
			}
			f.exec("UPDATE webhook_deliveries SET next_attempt_at = now() - interval '61 minutes'")
			f.exec("UPDATE webhook_deliveries SET created_at = now() WHERE sequence = $1", first+4)
			f.settled()
			f.broken(id, "now()")
			f.exec("UPDATE webhooks SET failing_since = now() - $1::interval", test.failing)
			f.work()
			await(f, true, "SELECT failures = 21 AND lease_until IS NULL FROM webhooks")
			has(f, test.messages, byStatus("messages"))
			has(f, test.deliveries, "SELECT string_agg(status || ': ' || coalesce(attempts->0->>'error', attempts->0->>'httpStatus'), ' ' ORDER BY status, id) FROM webhook_deliveries")
			if got := to.count(); got != 1 {
				t.Errorf("%d requests, want 1", got)
			}
		})
	}
}

// TestRetriesOfOldDeliveries: each of several old deliveries that requests have retried gets an
// attempt, although the first one fails.
func TestRetriesOfOldDeliveries(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	to := reject(t, http.StatusBadGateway)
	id := f.webhook(to.url, "message.queued")
	f.deliver(id, "failed", f.queue(2, time.Hour), 2)
	f.madeAt(time.Now().Add(-85*time.Hour), 1, 2)
	f.exec("UPDATE webhook_deliveries SET attempts = '[{}, {}, {}, {}, {}, {}, {}, {}, {}, {}]'")
	f.settled()
	f.broken(id, "now() + interval '100 seconds'")
	f.exec("UPDATE webhooks SET failing_since = now() - interval '85 hours'")
	for sequence := range 2 {
		f.retry(id, read[string](f, "SELECT id FROM webhook_deliveries WHERE sequence = $1", sequence+1))
	}
	f.work()
	for attempts := range 2 {
		await(f, true, "SELECT failures = $1 AND lease_until IS NULL FROM webhooks", 21+attempts)
		f.exec("UPDATE webhooks SET retry_at = now()")
	}
	has(f, "502 502", "SELECT string_agg(coalesce(attempts->10->>'httpStatus', attempts->10->>'error', status), ' ') FROM webhook_deliveries")
}

// TestRefusedProbeEndsNothing: a receiver that works again and refuses a forged event gets the
// deliveries that have waited long.
func TestRefusedProbeEndsNothing(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	to := receive(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Webhook-Id") == fmt.Sprintf("evt_%032x", 1) {
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	id := f.webhook(to.url, "message.queued")
	first := f.queue(2, time.Hour)
	f.deliver(id, "pending", first, first+1)
	f.madeAt(time.Now().Add(-85*time.Hour), first, first+1)
	f.settled()
	f.broken(id, "now()")
	f.exec("UPDATE webhooks SET failing_since = now() - interval '85 hours'")
	f.probe(id, webhook.ProbeForged, 1)
	f.work()
	await(f, "delivered 2, failed 1", byStatus("webhook_deliveries"))
}

// roundTripper is a function as a transport.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// panicking is a response body that panics.
type panicking struct{}

func (panicking) Read([]byte) (int, error) { panic("in the body") }
func (panicking) Close() error             { return errors.New("not closed") }

// TestPanic: a panic while sending a request or reading its response is a failed attempt. The worker goes on.
func TestPanic(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	to := receive(t, nil)
	f.webhook(to.url)
	f.emit(pets(1, 20)...)
	options := f.options()
	sound := options.Client.Transport
	options.Client.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		switch {
		case bytes.Contains(body, []byte(`"/pets/7"`)):
			panic("in the request")
		case bytes.Contains(body, []byte(`"/pets/8"`)):
			return &http.Response{StatusCode: http.StatusOK, Body: panicking{}}, nil
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		return sound.RoundTrip(r)
	})
	f.workWith(options).Wake(f.account)
	to.await(18)
	await(f, "delivered 18 0, pending 2 2", `
		SELECT string_agg(status || ' ' || count || ' ' || errors, ', ' ORDER BY status)
		FROM (SELECT status, count(*), count(*) FILTER (WHERE attempts->0->>'error' = 'The server could not send the event.') AS errors FROM webhook_deliveries GROUP BY status) AS s`)
}

// TestPayersHaveShares: the sandboxes of one payer take a quarter of the places, and another
// payer gets its events meanwhile.
func TestPayersHaveShares(t *testing.T) {
	t.Parallel()
	const sandboxes, hooks, fast, slow = 21, 20, 100, 50
	f := newFeed(t)
	release := make(chan struct{})
	to := receive(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	t.Cleanup(func() { close(release) })
	f.exec(`
		WITH made AS (INSERT INTO accounts (kind, parent_id, name, sample_id, sample, expires_at) SELECT 'sandbox', $1, 'sandbox ' || n, $1, 'empty', now() + interval '1 day' FROM generate_series(1, $2::int) AS n RETURNING id)
		INSERT INTO account_state (account_id, last_sequence) SELECT id, 1 FROM made`, f.account, sandboxes)
	f.exec("INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data) SELECT account_id, 1, now(), 1, 'pet.created', '/pets/1', '{}' FROM account_state WHERE account_id <> $1", f.account)
	f.exec(`
		INSERT INTO webhooks (account_id, id, url, types, secret, after_sequence, unsettled_after)
		SELECT account_id, 'wh_' || md5(account_id || ' ' || n), $2, '{*}', $3, 0, NULL
		FROM account_state, generate_series(1, $4::int) AS n WHERE account_id <> $1`, f.account, to.url, stored(key), hooks)
	worker := f.work()
	to.await(fast)
	await(f, sandboxes*hooks, "SELECT count(*) FROM webhook_deliveries")
	other, quick := f.of(t, "other"), receive(t, nil)
	other.webhook(quick.url)
	for i := range 20 {
		other.emit(pets(i, i)...)
		worker.Wake(other.account)
		quick.await(i + 1)
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	if to.most > fast+slow {
		t.Errorf("one payer had %d places, want at most %d", to.most, fast+slow)
	}
}
