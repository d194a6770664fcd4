package delivery_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/delivery"
	"petstore/internal/egress"
	"petstore/internal/event"
	"petstore/internal/pgtest"
	"petstore/internal/standardwebhooks"
	"petstore/internal/tools/need"
)

// TestBodiesAreEvents: the body of a delivery is an Event of the spec, with its account and
// whether that is a sandbox.
func TestBodiesAreEvents(t *testing.T) {
	t.Parallel()
	document := need.Value(openapi3.NewLoader().LoadFromFile("../api/openapi.yaml"))(t)
	f := newFeed(t)
	worker := f.work()
	for _, test := range []struct {
		*feed

		isSandbox bool
	}{{f, false}, {f.sandbox(), true}} {
		to := receive(t, nil)
		test.webhook(to.url)
		test.emit(event.Reset())
		worker.Wake(test.account)
		body := to.await(1)[0].body
		var value map[string]any
		need.OK(t, json.Unmarshal([]byte(body), &value))
		if err := document.Components.Schemas["Event"].Value.VisitJSON(value); err != nil {
			t.Errorf("%s: %v", body, err)
		}
		if value["accountId"] != account.PublicID(test.account, test.isSandbox) || value["sandbox"] != test.isSandbox {
			t.Errorf("the account %d, sandbox %t, has the event %s", test.account, test.isSandbox, body)
		}
	}
}

// TestEveryEventIsDelivered: two workers deliver each event once to each webhook that wants
// it, signed, with at most 4 requests at a time.
func TestEveryEventIsDelivered(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	f.emit(pets(1, 5)...) // before there is a webhook
	// A request is long enough for the next ones to begin, of which at most 4 may run at a time.
	slowly := func(http.ResponseWriter, *http.Request) { <-time.After(5 * time.Millisecond) }
	all, some := receive(t, slowly), receive(t, nil)
	f.webhook(all.url)
	f.webhook(some.url, "message.queued", "store.reset")
	first := f.work()
	f.work()
	for i := range 30 {
		f.emit(pets(10*i+6, 10*i+15)...)
		f.emit(event.Reset())
		first.Wake(f.account)
	}
	all.await(330)
	some.await(30)
	await(f, 0, "SELECT count(*) FROM webhook_deliveries WHERE status <> 'delivered'")
	has(f, 360, "SELECT count(*) FROM webhook_deliveries")
	var sequences []int64
	for _, r := range all.got() {
		sequences = append(sequences, r.event.Sequence)
		if id := r.header.Get("Webhook-Id"); id != r.event.ID {
			t.Errorf("webhook-id %s of event %s", id, r.event.ID)
		}
		checkSignature(t, r, key)
	}
	slices.Sort(sequences)
	for i, sequence := range slices.Compact(sequences) {
		if sequence != int64(i+6) {
			t.Fatalf("event %d is missing", i+6)
		}
	}
	if len(sequences) != 330 || len(some.got()) != 30 || all.most > 4 {
		t.Errorf("%d and %d requests, %d at a time", len(sequences), len(some.got()), all.most)
	}
}

// checkSignature checks the headers of Standard Webhooks. TestReferenceLibraries does so
// with libraries of others.
func checkSignature(t *testing.T, r received, keys ...[]byte) {
	t.Helper()
	seconds := need.Value(strconv.ParseInt(r.header.Get("Webhook-Timestamp"), 10, 64))(t)
	want := http.Header{}
	var secrets []standardwebhooks.Secret
	for _, k := range keys {
		secrets = append(secrets, need.Value(standardwebhooks.SecretFrom(k))(t))
	}
	standardwebhooks.Sign(want, r.header.Get("Webhook-Id"), time.Unix(seconds, 0), []byte(r.body), secrets...)
	if got := r.header.Get("Webhook-Signature"); got != want.Get("Webhook-Signature") {
		t.Errorf("webhook-signature %s, want %s", got, want.Get("Webhook-Signature"))
	}
}

// TestBothSecretsSign: after a rotation, both secrets sign until the grace is over.
func TestBothSecretsSign(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	to := receive(t, nil)
	id := f.webhook(to.url)
	next := []byte("another key of thirty-two bytes!")
	need.Value(f.queries.WebhookRotate(t.Context(), db.WebhookRotateParams{AccountID: f.account, ID: id, Secret: stored(next), GraceSeconds: 3600}))(t)
	worker := f.work()
	f.emit(pets(1, 1)...)
	worker.Wake(f.account)
	checkSignature(t, to.await(1)[0], next, key)
	f.awaitIdle()
	f.exec("UPDATE webhooks SET previous_until = now()")
	f.emit(pets(2, 2)...)
	worker.Wake(f.account)
	checkSignature(t, to.await(2)[1], next)
}

// TestFailedAttempts: every way in which an attempt fails is recorded in words that reveal
// nothing, and the delivery waits for its next attempt.
func TestFailedAttempts(t *testing.T) {
	t.Parallel()
	secure := httptest.NewTLSServer(http.NotFoundHandler()) // its certificate is unknown
	t.Cleanup(secure.Close)
	target := receive(t, nil)
	aborts := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	other := httptest.NewUnstartedServer(http.NotFoundHandler())
	other.TLS = &tls.Config{NextProtos: []string{"spdy/3"}, MinVersion: tls.VersionTLS12}
	other.StartTLS()
	t.Cleanup(other.Close)
	guarded := egress.New(egress.Options{Allow: egress.Loopback}).Client(delivery.Timeout)
	all := newFeed(t)
	options, clients := all.options(), map[string]*http.Client{} // by URL
	plain := options.Client
	options.Client = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		return clients[r.URL.String()].Transport.RoundTrip(r)
	})} // without CheckRedirect, as guarded
	worker := all.workWith(options)
	for name, c := range map[string]struct {
		url      string
		client   *http.Client
		handle   http.HandlerFunc
		resolver *net.Resolver // of a guarded client
		status   int
		problem  string
		wait     float64 // seconds; 0: about 5
	}{
		"a redirect": {client: guarded, handle: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, target.url, http.StatusTemporaryRedirect)
		}, status: 307, problem: "Redirects are not followed."},
		"a redirect to no URL": {client: guarded, handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "https://example.com/%zz")
			w.WriteHeader(http.StatusFound)
		}, status: 302, problem: "Redirects are not followed."},
		"a switch of protocols": {client: guarded, handle: func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		}, status: 101},
		"an error with Retry-After": {handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7200")
			w.WriteHeader(http.StatusServiceUnavailable)
		}, status: 503, wait: 7200},
		"an error":                       {handle: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, status: 500},
		"a reset":                        {handle: aborts, problem: "The connection was closed before the response."},
		"no HTTP/1.1":                    {url: other.URL, client: egress.New(egress.Options{Allow: egress.Loopback, RootCAs: other.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}).Client(delivery.Timeout), problem: "The endpoint does not speak HTTP/1.1."},
		"no HTTP":                        {handle: sends("220 mail.example ESMTP\r\n"), problem: "The response is not valid HTTP."},
		"the status 000":                 {handle: sends("HTTP/1.1 000 x\r\n\r\n"), problem: "The response is not valid HTTP."},
		"the status 099":                 {handle: sends("HTTP/1.1 099 x\r\nRetry-After: 86400\r\n\r\n"), problem: "The response is not valid HTTP."},
		"a closed port":                  {url: "http://127.0.0.1:1", problem: "The connection was refused."},
		"a bad certificate":              {url: secure.URL, problem: "The TLS certificate is not valid."},
		"TLS without TLS":                {url: "https" + target.url[4:], problem: "The TLS handshake failed."},
		"an address that is not allowed": {url: "https://127.0.0.1/", resolver: failingDNS, problem: "The URL must have a public host, but its address is not public."},
		"a name without a host":          {url: "https://nowhere.example.com/hook", resolver: emptyDNS(t), problem: "The URL must have a host name that resolves to a public address."},
		"a failed lookup":                {url: "https://nowhere.example.com/other", resolver: failingDNS, problem: "The host name could not be looked up."},
	} {
		if c.url == "" {
			c.url = receive(t, c.handle).url
		}
		if c.resolver != nil {
			c.client = egress.New(egress.Options{Resolver: c.resolver}).Client(delivery.Timeout)
		}
		clients[c.url] = cmp.Or(c.client, plain)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := all.of(t, name)
			f.webhook(c.url, "pet.created")
			f.emit(pets(1, 1)...)
			worker.Wake(f.account)
			await(f, int32(1), "SELECT coalesce((SELECT jsonb_array_length(attempts) FROM webhook_deliveries WHERE account_id = $1), 0)", f.account)
			refused, took := strings.HasPrefix(c.problem, "The URL "), read[int](f, "SELECT (attempts->0->>'durationMs')::int FROM webhook_deliveries WHERE account_id = $1", f.account)
			if refused && took != 0 || c.resolver != nil && !refused && took == 0 {
				t.Errorf("the duration is %d ms", took)
			}
			got := read[string](f, "SELECT concat(status, ' ', attempts->0->>'httpStatus', ' ', attempts->0->>'error') FROM webhook_deliveries WHERE account_id = $1", f.account)
			status := ""
			if c.status != 0 {
				status = strconv.Itoa(c.status)
			}
			if want := fmt.Sprintf("pending %s %s", status, c.problem); got != want {
				t.Errorf("%q, want %q", got, want)
			}
			least := cmp.Or(c.wait, 4.5)
			if wait := read[float64](f, "SELECT extract(epoch FROM next_attempt_at - created_at)::float8 FROM webhook_deliveries WHERE account_id = $1", f.account); wait < least || wait > least+600 {
				t.Errorf("the next attempt comes after %g s, want %g", wait, least)
			}
			if read[bool](f, "SELECT failing_since IS NULL FROM webhooks WHERE account_id = $1", f.account) {
				t.Error("the webhook does not count as failing")
			}
		})
	}
}

// failingDNS fails, so that tests do not depend on the network. It takes longer than a
// millisecond.
var failingDNS = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
	<-time.After(5 * time.Millisecond)
	return nil, errors.New("the tests look up no names")
}}

// emptyDNS returns a resolver whose DNS server has no names (RFC 1035, section 4.1.1). It
// takes longer than a millisecond.
func emptyDNS(t *testing.T) *net.Resolver {
	t.Helper()
	server := need.Value(net.ListenPacket("udp", "127.0.0.1:0"))(t) //nolint:noctx // returns at once
	t.Cleanup(func() { server.Close() })
	go func() {
		query := make([]byte, 1500)
		for {
			n, from, err := server.ReadFrom(query)
			if err != nil {
				return
			}
			<-time.After(5 * time.Millisecond)
			query[2], query[3] = 0x81, 0x83 // a response: the name does not exist
			_, _ = server.WriteTo(query[:n], from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
}

// sends responds with bytes.
func sends(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, text)
		_ = conn.Close()
	}
}

// TestClosedConnections: an attempt does not fail because the receiver closes a connection that was
// idle. Here the second request on each connection finds it closed.
func TestClosedConnections(t *testing.T) {
	t.Parallel()
	const events = 20
	f := newFeed(t)
	var used sync.Map // addresses of connections
	to := receive(t, func(w http.ResponseWriter, r *http.Request) {
		if _, again := used.LoadOrStore(r.RemoteAddr, true); again {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusNoContent)
	})
	f.webhook(to.url)
	f.emit(pets(1, events)...)
	options := f.options()
	options.Client = egress.New(egress.Options{Allow: egress.Loopback}).Client(delivery.Timeout)
	f.workWith(options).Wake(f.account)
	await(f, events, "SELECT count(*) FROM webhook_deliveries WHERE status = 'delivered' AND jsonb_array_length(attempts) = 1")
	requests := to.got()
	if len(requests) == events {
		t.Error("no connection was used again")
	}
	if sent, has := requests[0].header["Idempotency-Key"]; has {
		t.Errorf("Idempotency-Key %q is sent", sent)
	}
}

// TestEventThatIsGone: the delivery of an event that the feed no longer has fails.
func TestEventThatIsGone(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	to := reject(t, http.StatusBadGateway)
	f.webhook(to.url)
	f.emit(pets(1, 1)...)
	f.work().Wake(f.account)
	to.await(1)
	await(f, 1, "SELECT jsonb_array_length(attempts) FROM webhook_deliveries")
	f.awaitIdle()
	f.exec("DELETE FROM events")
	f.exec("UPDATE webhook_deliveries SET next_attempt_at = now()")
	await(f, "failed The feed no longer has the event.", "SELECT status || ' ' || (attempts->1->>'error') FROM webhook_deliveries WHERE jsonb_array_length(attempts) = 2 UNION ALL SELECT ''")
}

// hanging returns the URL of a receiver that never responds.
func hanging(t testing.TB) string {
	t.Helper()
	return "http://" + pgtest.ServeTCP(t, func(net.Conn) { <-t.Context().Done() })
}

// TestStoppedWorker: a worker that stops gives up its leases, and records no request that it has cut
// off. Another one sends these deliveries again.
func TestStoppedWorker(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	release := make(chan struct{})
	to := receive(t, func(http.ResponseWriter, *http.Request) { <-release })
	f.webhook(to.url)
	f.emit(pets(1, 20)...)
	worker, stop := f.start(f.options())
	worker.Wake(f.account)
	to.await(4)
	stop()
	has(f, 20, "SELECT count(*) FROM webhooks JOIN webhook_deliveries USING (account_id) WHERE lease_until IS NULL AND attempts = '[]'")
	close(release)
	f.work()
	await(f, 20, "SELECT count(*) FROM webhook_deliveries WHERE status = 'delivered'")
	if got := len(to.got()); got < 20 || got > 24 {
		t.Errorf("%d requests for 20 deliveries, of which 4 were cut off", got)
	}
}
