package delivery

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"petstore/internal/egress"
	"petstore/internal/faults"
	"petstore/internal/standardwebhooks"
	"petstore/internal/webhook"
)

// Timeout is the maximum time of an attempt, from the lookup of the host name to the
// header of the response.
const Timeout = 15 * time.Second

const (
	// maxAttempts is the number of attempts of a delivery.
	maxAttempts = 10
	// maxRetryAfter is the longest wait that a receiver can ask for.
	maxRetryAfter = 24 * time.Hour
	// jitter is the largest deviation of a wait, as a share of it.
	jitter = 0.1
	// drainedBytes is how much of a response body is read, so that the connection can be
	// used again. A connection with a longer body is closed.
	drainedBytes = 4 << 10
	// drainedWithin is how long that may take.
	drainedWithin = time.Second
)

// waits are the retry schedule, the times between attempts: 75.6 hours in total. The guide Webhooks has it.
var waits = [...]time.Duration{
	5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
}

// never stands for NULL in an array of times, which are before it.
var never = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)

// target is an endpoint, the secrets that sign for it, and its state.
type target struct {
	url      string
	secrets  []standardwebhooks.Secret // at least one
	isSlow   bool
	failures int       // failed attempts in a row
	readAt   time.Time // by this process
}

// result is the result of an attempt.
type result struct {
	delivery

	url        string    // to which it was sent; empty: to none
	at         time.Time // by the clock of the database, which signatures have, too
	took       time.Duration
	httpStatus int    // 0: there was no response
	problem    string // empty: the status says it all
	refused    bool   // whether the server refused to connect
	retryAfter time.Duration
}

func (r *result) isSuccess() bool { return r.httpStatus/100 == 2 }

func (r *result) isGone() bool { return r.httpStatus == http.StatusGone && !r.isProbe() }

func (r *result) isProbe() bool { return webhook.IsProbe(r.eventType) }

// isInjected reports whether a fault rule of the sandbox made the attempt fail.
func (r *result) isInjected() bool {
	return r.problem == webhook.Unsent || r.problem == webhook.LostResponse
}

// saysNothing reports whether the result says nothing about the health of the webhook.
func (r *result) saysNothing() bool { return r.isProbe() || r.isInjected() || r.unsent != "" }

// isRepeated reports whether the same event follows at once.
func (r *result) isRepeated() bool {
	return r.eventType == webhook.ProbeDuplicate && r.attempts == 0 && r.isSuccess()
}

// isFinal reports whether there is no further attempt.
func (r *result) isFinal() bool {
	if r.isProbe() {
		return !r.isRepeated()
	}
	return r.isSuccess() || r.isGone() || r.unsent != "" || r.attempts+1 >= maxAttempts
}

// status returns the status of the delivery after the attempt.
func (r *result) status() string {
	switch {
	case !r.isFinal():
		return "pending"
	case r.isSuccess():
		return "delivered"
	default:
		return "failed"
	}
}

// next returns the time of the next attempt, or never. Now is the time of the database,
// because its clock decides what is due.
func (r *result) next(now time.Time) time.Time {
	if r.isFinal() {
		return never
	}
	if r.isRepeated() {
		return now
	}
	return now.Add(max(vary(waits[r.attempts]), r.retryAfter))
}

// vary returns a wait that deviates at random from another one.
func vary(wait time.Duration) time.Duration {
	return wait + time.Duration(float64(wait)*jitter*(2*rand.Float64()-1)) //nolint:gosec // jitter need not be secret
}

// attempt sends an event to an endpoint.
func (d *drain) attempt(ctx context.Context, to *target, one delivery) result {
	r := result{delivery: one, at: one.now.Add(time.Since(one.readAt))}
	if one.unsent != "" {
		r.problem = one.unsent
		return r
	}
	if one.attempts == 0 {
		d.options.Metrics.WebhookFirstAttempt(one.waited + time.Since(one.readAt))
	}
	loses := d.injectFault(ctx, &r)
	if r.problem != "" {
		return r
	}
	ctx, cancel := context.WithTimeoutCause(ctx, Timeout, errTimeout)
	defer cancel()
	began := time.Now()
	r.url = to.url
	r.at = one.now.Add(began.Sub(one.readAt))
	response, err := d.post(ctx, to, &r) //nolint:bodyclose // finish closes it
	r.took = time.Since(began)
	if err != nil {
		r.problem = describe(ctx, err)
		_, r.refused = errors.AsType[*egress.RefusedError](err)
	} else {
		r.httpStatus = response.StatusCode
		r.retryAfter = retryAfter(response.Header.Get("Retry-After"), r.at.Add(r.took))
		switch {
		case r.httpStatus < 100 || r.httpStatus > 999: // net/http accepts any number
			r.httpStatus, r.retryAfter, r.problem = 0, 0, notHTTP
		case r.httpStatus/100 == 3:
			r.problem = "Redirects are not followed."
		}
		finish(response.Body, cancel)
	}
	d.options.Metrics.WebhookAttempted(r.outcome(), r.took) // an injected fault says nothing about receivers
	if loses && r.isSuccess() {
		r.httpStatus, r.retryAfter, r.problem = 0, 0, webhook.LostResponse
	}
	return r
}

// injectFault injects a fault into the first attempt of a delivery of a sandbox, if a rule applies.
// It reports whether the response is lost. If the event is not sent, it sets the problem.
func (d *drain) injectFault(ctx context.Context, r *result) (loses bool) {
	if d.payer == d.AccountID || r.attempts > 0 || r.isProbe() {
		return false
	}
	rule, err := d.faults.Choose(ctx, d.payer, d.AccountID, faults.DeliverWebhook)
	d.warn(ctx, "could not read the fault rules of a sandbox", err)
	if rule == nil {
		return false
	}
	if *rule.CloseWhen == faults.CloseBefore {
		r.problem = webhook.Unsent
		return false
	}
	return true
}

// post sends the request of an attempt.
func (d *drain) post(ctx context.Context, to *target, r *result) (*http.Response, error) {
	sent := r.content(to)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to.url, bytes.NewReader(sent.body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "Petstore-Webhooks")
	// A receiver may close an idle connection just when a request is sent. With this key, which is not
	// sent, net/http then repeats the request.
	request.Header["Idempotency-Key"] = nil
	standardwebhooks.Sign(request.Header, r.eventID, sent.at, r.body, sent.secrets...)
	return d.options.Client.Do(request)
}

// outcome returns the label of an attempt in the metrics.
func (r *result) outcome() string {
	switch {
	case r.isSuccess():
		return "delivered"
	case r.httpStatus != 0:
		return "rejected"
	default:
		return "unreachable"
	}
}

// finish reads the rest of a short response, so that its connection can be used again. It
// closes a connection whose response is long or slow.
func finish(body io.ReadCloser, cut func()) {
	defer body.Close()
	timer := time.AfterFunc(drainedWithin, cut)
	defer timer.Stop()
	_, _ = io.CopyN(io.Discard, body, drainedBytes+1) // the status has arrived, so an error does not matter
}

// retryAfter returns the wait that a Retry-After header asks for (RFC 9110, section
// 10.2.3), at most 24 hours; 0: none.
func retryAfter(value string, now time.Time) time.Duration {
	wait := time.Duration(0)
	if seconds, err := strconv.ParseUint(value, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		wait = time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second
	} else if at, err := http.ParseTime(value); err == nil {
		wait = at.Sub(now)
	}
	return min(max(wait, 0), maxRetryAfter)
}

var errTimeout = errors.New("delivery: timeout")

const notHTTP = "The response is not valid HTTP."

// milliseconds returns the duration that the owner of the webhook sees. It is 0 if the
// server refused to connect, because the duration of a lookup tells whether the local
// network has the name.
func (r *result) milliseconds() int64 {
	if r.refused {
		return 0
	}
	return r.took.Milliseconds()
}

// describe describes the error of a request to the owner of the webhook. It has no
// addresses, because those could be of an internal network.
func describe(ctx context.Context, err error) string {
	var certificate *tls.CertificateVerificationError
	var refused *egress.RefusedError
	var timeout net.Error
	switch {
	case errors.As(err, &refused):
		return "The URL " + refused.Reason
	case errors.Is(err, egress.ErrLookup):
		return "The host name could not be looked up."
	case errors.Is(context.Cause(ctx), errTimeout), errors.As(err, &timeout) && timeout.Timeout():
		return "No response within 15 seconds."
	case errors.As(err, &certificate):
		return "The TLS certificate is not valid."
	case errors.Is(err, syscall.ECONNREFUSED):
		return "The connection was refused."
	case egress.IsClosed(err):
		return "The connection was closed before the response."
	case strings.Contains(err.Error(), "tls: no application protocol"):
		return "The endpoint does not speak HTTP/1.1."
	case strings.Contains(err.Error(), "tls: "), strings.Contains(err.Error(), "HTTP response to HTTPS client"):
		return "The TLS handshake failed."
	case egress.IsNotHTTP(err), strings.Contains(err.Error(), "net/http: "):
		return notHTTP
	default:
		return "The endpoint could not be reached."
	}
}
