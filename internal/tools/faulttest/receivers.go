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
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// allowLoopback lets webhooks have http URLs on this machine.
const allowLoopback = "PETSTORE_WEBHOOK_ALLOW=127.0.0.0/8"

// receiver is the endpoint of a webhook. It verifies the signature of every request, and
// counts the requests of each event.
type receiver struct {
	id, url string
	respond http.HandlerFunc // nil: 204 at once

	mu         sync.Mutex
	key        []byte
	requests   map[string]int // by the id of the event
	delays     durations      // between the time of an event and its first request
	open, most int            // requests at a time
	err        error          // a request that is not valid
}

// receive starts a receiver, and creates a webhook for it. Without types it gets all events.
func (s *deployment) receive(ctx context.Context, c *client, respond http.HandlerFunc, types ...string) (*receiver, error) {
	r := &receiver{respond: respond, requests: map[string]int{}}
	var err error
	if r.url, err = s.listen(ctx, r); err != nil {
		return nil, err
	}
	if len(types) == 0 {
		types = []string{"*"}
	}
	body, err := json.Marshal(map[string]any{"url": r.url, "types": types})
	if err != nil {
		return nil, err
	}
	created, err := c.want(ctx, http.StatusCreated, "POST", "/webhooks", string(body))
	if err != nil {
		return nil, err
	}
	var webhook struct{ ID, Secret string }
	if err := created.decode(&webhook); err != nil {
		return nil, err
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(webhook.Secret, "whsec_"))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.id, r.key = webhook.ID, key
	return r, err
}

// listen starts an HTTP server on a free port, which ends with the row.
func (f *fixture) listen(ctx context.Context, handler http.Handler) (url string, err error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: requestTimeout}
	go func() { _ = server.Serve(listener) }() // ends with Close
	f.cleanup(func() { _ = server.Close() })
	return "http://" + listener.Addr().String(), nil
}

// listenSlow starts an HTTP server that responds after a time.
func (f *fixture) listenSlow(ctx context.Context, wait time.Duration) (url string, err error) {
	return f.listen(ctx, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // then the server notices that the client disconnects
		sleep(r.Context(), wait)
	}))
}

// listenMute starts an HTTP server that accepts connections and never responds.
func (f *fixture) listenMute(ctx context.Context) (url string, err error) {
	return f.listenSlow(ctx, time.Hour)
}

// ServeHTTP implements [http.Handler].
func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return // the sender was killed
	}
	r.arrived(request.Header, body)
	defer r.left()
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
	r.open++
	r.most = max(r.most, r.open)
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

func (r *receiver) left() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
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

// slowest returns the delays of the first requests: the p99 and the longest.
func (r *receiver) slowest() (p99, longest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.delays) == 0 {
		return 0, 0
	}
	return r.delays.p99(), slices.Max(r.delays)
}

// has returns an error unless the receiver has got all these events.
func (r *receiver) has(events []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	missing := slices.DeleteFunc(slices.Clone(events), func(id string) bool { return r.requests[id] > 0 })
	if len(missing) > 0 {
		return fmt.Errorf("%d of %d events have not reached the receiver of %s, for example %s", len(missing), len(events), r.id, missing[0])
	}
	return r.err
}
