package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"

	"petstore/internal/egress"
	"petstore/internal/follow"
	"petstore/internal/sleep"
)

const (
	// responseTimeout is the maximum time to the header of a response, and without a byte of its body.
	// It is longer than the longest Prefer: wait, and the server sends a byte of a stream every 10 s.
	responseTimeout = 45 * time.Second
	// streamTimeout is the maximum time to the header of a stream that a command follows.
	streamTimeout = 15 * time.Second
	// pingTimeout is the time without a frame of HTTP/2 before a ping, and the time for its response.
	pingTimeout = 10 * time.Second
	// maxResponse is the number of bytes that are read of a response. Pages have less.
	maxResponse = 16 << 20

	mostParallel = 256 // to a server, for the requests of import

	defaultRetries   = 4
	mostRetries      = 20
	firstRetryPause  = time.Second
	longestRetryWait = 10 * time.Second // without Retry-After

	idempotencyKey = "Idempotency-Key"
	jsonType       = "application/json"
)

// keyedPosts are the paths whose POST takes an Idempotency-Key. Other POSTs reject or ignore
// it.
var keyedPosts = []string{"/pets", "/categories", "/store/orders", "/messages"}

// newHTTPClient returns a client that does not follow redirects, because they could lead to
// another server. Its transport is an [http.Transport]. Timeout is the maximum time to the header
// of a response. The TLS configuration may be nil.
func newHTTPClient(timeout time.Duration, config *tls.Config) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // documented
	transport.ResponseHeaderTimeout, transport.TLSClientConfig = timeout, config
	// Otherwise all requests would go to a dead connection over HTTP/2 for minutes, because a timeout ends
	// only their streams.
	transport.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingTimeout, PingTimeout: pingTimeout}
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = mostParallel, mostParallel
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// client sends requests to the API. It repeats a request that fails for a time, if that is
// safe.
type client struct {
	target
	http     *http.Client
	retries  int
	observes bool // whether a sandbox leaves the requests out of its record and its fault rules
	// patience is the time for which a client waits for a server that is away, in addition to the
	// retries. A client with patience waits for 429 without end.
	patience time.Duration
	silence  time.Duration // the longest in a body
	log      io.Writer     // for people
	answered atomic.Bool   // whether there was a response

	limiting sync.Mutex
	limited  time.Time // the end of the Retry-After of each 429, before which no request is sent
}

func (p *program) newClient(to target) *client {
	return &client{target: to, http: to.client(responseTimeout), retries: defaultRetries, observes: true, silence: responseTimeout, log: p.stderr}
}

// call is a request to the API.
type call struct {
	method, path string // the path may have a query
	header       http.Header
	body         []byte    // nil: none
	until        time.Time // of the wall clock, after which it is not sent; zero: none
}

// errTooLate means that a call had no final response until its time.
var errTooLate = errors.New("more than 23 hours have passed since a row was sent first")

// reply is the response to a call.
type reply struct {
	*http.Response

	text []byte // the body; nil if it is a stream
}

// err returns the error in the response, or nil. A redirect is an error, because no command follows it.
func (r *reply) err() error {
	if r.StatusCode < http.StatusMultipleChoices {
		return nil
	}
	failed := follow.ReadError(r.Response, r.text)
	if r.StatusCode < http.StatusBadRequest && failed.Location == "" { // such as 304
		return nil
	}
	return failed
}

// send sends a call until it gets a response that is not temporary. Every attempt of a POST
// has the same Idempotency-Key, so that it takes effect once. If an attempt of a POST had no
// response, and the last response does not tell its result, send returns an error.
func (c *client) send(ctx context.Context, one call) (*reply, error) {
	one.header = c.headerOf(one)
	isSafe := one.method != http.MethodPost || one.header.Get(idempotencyKey) != ""
	end := time.Now().Add(c.patience)
	isLost := false // whether an attempt may have taken effect without a response
	for attempt := 0; ; attempt++ {
		got, err := c.try(ctx, one)
		pause := retryPause(attempt)
		var why string
		switch {
		case ctx.Err() != nil, errors.Is(err, errTooLate):
			return nil, cmp.Or(ctx.Err(), err)
		case err != nil:
			// The first attempt finds out that there is no server. Between two calls, it may restart.
			if !isSafe || attempt == 0 && isDial(err) && c.patience == 0 && !c.answered.Load() {
				return nil, c.noResponse(err)
			}
			why = whyNoResponse(err, responseTimeout)
		case isTemporary(got, isSafe):
			failed := follow.ReadError(got.Response, got.text)
			why = strings.TrimSuffix(failed.Error(), ".")
			if failed.RetryAfter > 0 {
				pause = failed.RetryAfter + rand.N(time.Second) //nolint:gosec // not a secret
			}
			if failed.Status == http.StatusTooManyRequests {
				c.limit(failed.RetryAfter)
			}
		case isLost && !tellsResult(got):
			failed := follow.ReadError(got.Response, got.text)
			return nil, fmt.Errorf("%s; an earlier attempt had no response, so it may have taken effect", strings.TrimSuffix(failed.Error(), "."))
		default:
			return got, nil
		}
		status := 0 // no response
		if err == nil {
			status = got.StatusCode
		}
		isLimit, isBug := status == http.StatusTooManyRequests, status == http.StatusInternalServerError || status == http.StatusNotImplemented
		isLost = isLost || one.method == http.MethodPost && !isDial(err) && !isLimit
		waits := c.patience > 0 && (isLimit || !isBug && time.Now().Before(end))
		if attempt >= c.retries && !waits {
			if err != nil {
				err = c.noResponse(err)
			}
			return got, err
		}
		fmt.Fprintf(c.log, "%s; next attempt in %s\n", why, pause.Round(100*time.Millisecond))
		if !sleep.For(ctx, pause) {
			return nil, ctx.Err()
		}
	}
}

// succeed sends a call. A redirect or a status from 400 is an error, a [*follow.StatusError].
func (c *client) succeed(ctx context.Context, one call) (*reply, error) {
	got, err := c.send(ctx, one)
	if err == nil {
		err = got.err()
	}
	return got, err
}

// headerOf returns the header of all attempts of a call. Its own fields come first.
func (c *client) headerOf(one call) http.Header {
	header := one.header.Clone()
	if header == nil {
		header = http.Header{}
	}
	defaults := map[string]string{"Authorization": "Bearer " + c.key, "User-Agent": "petstore/" + version()}
	if c.observes {
		defaults["Petstore-Observer"] = "true"
	}
	for name, value := range defaults {
		if header.Values(name) == nil {
			header.Set(name, value)
		}
	}
	if one.body != nil && header.Get("Content-Type") == "" {
		header.Set("Content-Type", jsonType)
	}
	path, _, _ := strings.Cut(one.path, "?")
	if one.method == http.MethodPost && header.Get(idempotencyKey) == "" && slices.Contains(keyedPosts, path) {
		header.Set(idempotencyKey, uuid.NewString())
	}
	return header
}

// isTemporary reports whether the same request may succeed later. A request that is not safe to
// repeat has certainly had no effect.
func isTemporary(got *reply, isSafe bool) bool {
	switch got.StatusCode {
	case http.StatusTooManyRequests:
		return true
	case http.StatusRequestTimeout:
		return isSafe
	case http.StatusConflict:
		return isSafe && follow.ReadError(got.Response, got.text).Code == "idempotency_in_progress"
	default:
		return isSafe && got.StatusCode >= http.StatusInternalServerError
	}
}

// tellsResult reports whether the response to a POST tells the result of earlier attempts with the
// same Idempotency-Key. A refused API key does not, and another program does not know the result.
func tellsResult(got *reply) bool {
	switch got.StatusCode {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		code := follow.ReadError(got.Response, got.text).Code
		return code != "" && code != "route_not_found"
	default:
		return got.StatusCode < http.StatusBadRequest && json.Valid(got.text)
	}
}

// retryPause returns the pause after an attempt, the first of which is 0.
func retryPause(attempt int) time.Duration {
	pause := min(firstRetryPause<<min(attempt, 10), longestRetryWait)
	return pause/2 + rand.N(pause/2) //nolint:gosec // not a secret
}

// limit returns how long the rate limit of the server holds up requests, at least for a time from now.
func (c *client) limit(least time.Duration) time.Duration {
	c.limiting.Lock()
	defer c.limiting.Unlock()
	if end := time.Now().Add(least); end.After(c.limited) {
		c.limited = end
	}
	return time.Until(c.limited)
}

// try sends a call once, when the rate limit allows it and unless it is too late. It reads the body,
// unless that is a stream.
func (c *client) try(ctx context.Context, one call) (*reply, error) {
	for left := c.limit(0); left > 0; left = c.limit(0) { // again, because other requests go on first
		if !sleep.For(ctx, left+rand.N(time.Second)) { //nolint:gosec // not a secret
			return nil, ctx.Err()
		}
	}
	if !one.until.IsZero() && time.Now().After(one.until) {
		return nil, errTooLate
	}
	request, err := http.NewRequestWithContext(ctx, one.method, c.url+one.path, bytes.NewReader(one.body))
	if err != nil {
		return nil, err
	}
	request.Header = one.header
	if request.Header.Get(idempotencyKey) != "" {
		request.GetBody = nil // else net/http repeats a request whose response was lost, and does not say so
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	c.answered.Store(true)
	response.Body = &watchedBody{ReadCloser: response.Body, silence: c.silence}
	got := &reply{Response: response}
	if strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") {
		return got, nil
	}
	defer response.Body.Close()
	got.text, err = io.ReadAll(io.LimitReader(response.Body, maxResponse))
	return got, err
}

// open requests a stream once. The error of a response is a [*follow.StatusError], even if its body
// does not end.
func (c *client) open(ctx context.Context, path string) (*http.Response, error) {
	one := call{method: http.MethodGet, path: path, header: http.Header{"Accept": {"text/event-stream"}}}
	one.header = c.headerOf(one)
	got, err := c.try(ctx, one)
	if got == nil {
		return nil, err
	}
	if err = cmp.Or(got.err(), err); err != nil {
		got.Body.Close()
		return nil, err
	}
	return got.Response, nil
}

// errSilence means that a response has stopped before its end.
var errSilence = errors.New("the response stopped before its end")

// watchedBody is the body of a response, whose Read returns [errSilence] after too long a silence.
type watchedBody struct {
	io.ReadCloser

	silence time.Duration
	isOver  atomic.Bool
}

// Read implements [io.Reader].
func (b *watchedBody) Read(into []byte) (int, error) {
	timer := time.AfterFunc(b.silence, func() {
		b.isOver.Store(true)
		b.Close()
	})
	n, err := b.ReadCloser.Read(into)
	timer.Stop()
	if err != nil && b.isOver.Load() {
		err = errSilence
	}
	return n, err
}

// do sends a call with a JSON body, or without one if the body is nil. It decodes the
// response into a value, unless that is nil. The error may be a [*follow.StatusError].
func (c *client) do(ctx context.Context, method, path string, body, into any) error {
	one := call{method: method, path: path}
	if body != nil {
		var err error
		if one.body, err = json.Marshal(body); err != nil {
			return err
		}
	}
	got, err := c.succeed(ctx, one)
	if err != nil || into == nil {
		return err
	}
	if err := json.Unmarshal(got.text, into); err != nil {
		return c.notPetstore(err.Error())
	}
	return nil
}

// notPetstore returns the error of a successful response that another program has sent.
func (c *client) notPetstore(why string) error {
	return fmt.Errorf("the response of %s is not from Petstore: %s", c.url, why)
}

// noResponse explains why there is no response, and what to do.
func (c *client) noResponse(err error) error {
	return fmt.Errorf("no response from %s: %s%s", c.url, whyNoResponse(err, responseTimeout), serverRemedy(err))
}

// serverRemedy returns [startServer] after a semicolon, or "" if a server runs and closed the connection.
func serverRemedy(err error) string {
	if egress.IsClosed(err) {
		return ""
	}
	return "; " + startServer
}

// startServer says what to do if no server responds.
const startServer = "start a server with `petstore dev`, or set PETSTORE_URL or --url to where one listens"

// isDial reports whether an error means that there was no connection.
func isDial(err error) bool {
	network, ok := errors.AsType[*net.OpError](err)
	return ok && network.Op == "dial"
}

// whyNoResponse explains briefly why a request with a timeout, the reading of its response, or listening failed.
func whyNoResponse(err error, timeout time.Duration) string {
	request, isRequest := errors.AsType[*url.Error](err)
	lookup, isLookup := errors.AsType[*net.DNSError](err)
	number, isNumber := errors.AsType[syscall.Errno](err)
	certificate, isCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	var netErr net.Error
	switch {
	case isLookup && lookup.IsNotFound:
		return fmt.Sprintf("the host name %q is unknown", lookup.Name)
	case isLookup:
		return fmt.Sprintf("the host name %q cannot be looked up", lookup.Name)
	case isNumber: // such as "connection refused"
		return number.Error()
	case errors.As(err, &netErr) && netErr.Timeout():
		return fmt.Sprintf("no response within %s", timeout)
	case isCertificate:
		return fmt.Sprintf("its certificate is not valid (%v)", certificate.Err)
	case errors.Is(err, http.ErrSchemeMismatch):
		return "the server there speaks http, not https"
	case egress.IsClosed(err):
		return "the server closed the connection"
	case !isRequest: // such as [errSilence]
		return err.Error()
	case egress.IsNotHTTP(err):
		return "the program that listens there does not speak HTTP"
	default: // such as the status of a proxy
		return request.Err.Error()
	}
}
