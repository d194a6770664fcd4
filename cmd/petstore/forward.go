package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"petstore/internal/egress"
	"petstore/internal/follow"
	"petstore/internal/sleep"
	"petstore/internal/standardwebhooks"
)

const (
	// forwardTimeout is the maximum time to a response, as for webhooks.
	forwardTimeout = 15 * time.Second
	// forwardAttempts is the maximum number of responses other than 2xx to an event.
	forwardAttempts = 5
	// forwardPause is the first pause between attempts, and longestForwardPause the longest.
	forwardPause        = time.Second
	longestForwardPause = 10 * time.Second
	// maxForwardResponse is the number of bytes that are read of a response.
	maxForwardResponse = 64 << 10
)

// forwarder sends events to a URL as signed webhooks.
type forwarder struct {
	url    string
	secret standardwebhooks.Secret
	client *http.Client
	pause  time.Duration // the first between attempts
	log    io.Writer     // for people
}

func newForwarder(target string, secret standardwebhooks.Secret, log io.Writer) *forwarder {
	client := newHTTPClient(forwardTimeout, nil)
	client.Transport = egress.Direct{RoundTripper: client.Transport}
	client.Timeout = forwardTimeout // also for the body
	return &forwarder{url: target, secret: secret, pause: forwardPause, log: log, client: client}
}

// forward sends an event until the receiver accepts it with 2xx. It skips the event after
// [forwardAttempts] other responses, and waits while there is no response at all. The error
// comes from ctx.
func (f *forwarder) forward(ctx context.Context, e follow.Event) error {
	pause := f.pause
	for rejected := 0; ; pause = min(2*pause, longestForwardPause) {
		began := time.Now()
		status, err := f.send(ctx, e)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			fmt.Fprintf(f.log, "%s %s: no response: %s; next attempt in %s\n", e.ID, e.Type, whyNoResponse(err, forwardTimeout), pause)
		case status/100 == 2:
			fmt.Fprintf(f.log, "%s %s: %d in %s\n", e.ID, e.Type, status, time.Since(began).Round(time.Millisecond))
			return nil
		default:
			if rejected++; rejected == 1 {
				pause = f.pause
			}
			if rejected == forwardAttempts {
				fmt.Fprintf(f.log, "%s %s: %d, skipped after %d attempts\n", e.ID, e.Type, status, forwardAttempts)
				return nil
			}
			fmt.Fprintf(f.log, "%s %s: %d, next attempt in %s\n", e.ID, e.Type, status, pause)
		}
		if !sleep.For(ctx, pause) {
			return ctx.Err()
		}
	}
}

// send sends an event once and returns the status of the response.
func (f *forwarder) send(ctx context.Context, e follow.Event) (status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url, bytes.NewReader(e.JSON))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	standardwebhooks.Sign(request.Header, e.ID, time.Now(), e.JSON, f.secret)
	response, err := f.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	// The status decides, even if the body breaks off.
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxForwardResponse))
	return response.StatusCode, nil
}
