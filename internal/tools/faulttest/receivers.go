package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"petstore/internal/tools/must"
	"petstore/internal/tools/run"
)

// allowLoopback lets webhooks have http URLs on this machine.
const allowLoopback = "PETSTORE_WEBHOOK_ALLOW=127.0.0.0/8"

// receiver is the endpoint of a webhook. It verifies the signature of every request, and
// counts the requests of each event.
type receiver struct {
	id, url string
	respond http.HandlerFunc // nil: 204 at once

	mu       sync.Mutex
	key      []byte
	requests map[string]int // by the id of the event
	delays   durations      // between the time of an event and its first request
	err      error          // a request that is not valid
}

// receive starts a receiver, and creates a webhook for it. Without types it gets all events.
func (s *deployment) receive(ctx context.Context, respond http.HandlerFunc, types ...string) *receiver {
	r := &receiver{respond: respond, requests: map[string]int{}}
	r.url = s.listen(ctx, r)
	if len(types) == 0 {
		types = []string{"*"}
	}
	body := must.Get(json.Marshal(map[string]any{"url": r.url, "types": types}))
	webhook := decode[struct{ ID, Secret string }](s.want(ctx, http.StatusCreated, "POST", "/webhooks", string(body)))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.id, r.key = webhook.ID, must.Get(base64.StdEncoding.DecodeString(strings.TrimPrefix(webhook.Secret, "whsec_")))
	return r
}

// listen starts an HTTP server on a free port, which ends with the row. It returns its URL.
func (f *fixture) listen(ctx context.Context, handler http.Handler) string {
	url, stop := run.Serve(ctx, handler)
	f.cleanup(stop)
	return url
}

// listenSlow starts an HTTP server that responds after a time.
func (f *fixture) listenSlow(ctx context.Context, wait time.Duration) string {
	return f.listen(ctx, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // then the server notices that the client disconnects
		sleep(r.Context(), wait)
	}))
}

// ServeHTTP implements [http.Handler].
func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return // the sender was killed
	}
	r.arrived(request.Header, body)
	if r.respond == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	r.respond(w, request)
}

// arrived records a request.
func (r *receiver) arrived(header http.Header, body []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id, now := header.Get("Webhook-Id"), time.Now()
	var e feedEvent
	err := errors.Join(verifyWebhook(r.key, header, body), json.Unmarshal(body, &e))
	if err == nil && e.ID != id {
		err = fmt.Errorf("the request of event %s has the webhook-id %s", e.ID, id)
	}
	if err != nil {
		r.err = err
		return
	}
	if r.requests[id]++; r.requests[id] == 1 {
		r.delays = append(r.delays, now.Sub(e.Timestamp))
	}
}

// verifyWebhook checks the signature of a request as the Standard Webhooks specification
// says.
func verifyWebhook(key []byte, header http.Header, body []byte) error {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", header.Get("Webhook-Id"), header.Get("Webhook-Timestamp"), body)
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	if !slices.Contains(strings.Fields(header.Get("Webhook-Signature")), want) {
		return fmt.Errorf("the signature of event %s is wrong: %s, want %s", header.Get("Webhook-Id"), header.Get("Webhook-Signature"), want)
	}
	return nil
}

// received returns the number of requests and the number of different events.
func (r *receiver) received() (requests, events int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, count := range r.requests {
		requests += count
	}
	return requests, len(r.requests)
}

// count returns the number of requests of an event.
func (r *receiver) count(event string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests[event]
}

// slowest returns the delays of the first requests: the p99 and the longest.
func (r *receiver) slowest() (p99, longest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.delays.p99(), slices.Max(r.delays)
}

// has fails the row unless the receiver has got all these events, in valid requests.
func (r *receiver) has(events []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	missing := slices.DeleteFunc(slices.Clone(events), func(id string) bool { return r.requests[id] > 0 })
	must.Hold(len(missing) == 0, "%d of %d events have not reached the receiver of %s, for example %s", len(missing), len(events), r.id, strings.Join(missing[:min(1, len(missing))], ""))
	must.OK(r.err)
}
