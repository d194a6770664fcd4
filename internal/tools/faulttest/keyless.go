package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// keylessClients is row 45. 4,500 clients without a key request documents and never read
// the responses. Then they send half headers. They connect again when the server closes a
// connection. Requests with a key succeed in time, on a kept connection and on new ones,
// and so do health checks. The memory of the server stays within its limit.
func keylessClients(ctx context.Context, f *fixture) (string, error) {
	const (
		clients     = 4500
		during      = 13 * time.Second // longer than the server waits for a client that does not read
		p99Limit    = 250 * time.Millisecond
		memoryLimit = 256 << 20
	)
	if err := needDescriptors(clients + 500); err != nil {
		return "", err
	}
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	var figures []string
	for _, attack := range []struct{ what, text string }{
		{"unread documents", strings.Repeat("GET /openapi.json HTTP/1.1\r\nHost: petstore\r\n\r\n", 12)},
		{"half headers", "GET /openapi.json HTTP/1.1\r\nHost: petstore\r\nX-"},
	} {
		attacked, stop := context.WithCancel(ctx)
		group := s.holdConnections(attacked, clients, attack.text)
		known, checks, err := s.measureOthers(ctx, during)
		memory, memoryErr := s.api.memory("VmHWM") // VmHWM is the peak
		stop()
		group.Wait()
		if err := errors.Join(err, memoryErr); err != nil {
			return "", fmt.Errorf("during %s: %w", attack.what, err)
		}
		figure := fmt.Sprintf("%s of %d clients: %d requests, p99 %s, %d health checks, p99 %s, memory %d MB",
			attack.what, clients, len(known), round(known.p99()), len(checks), round(checks.p99()), memory>>20)
		if known.p99() > p99Limit || memory > memoryLimit {
			return "", errors.New(figure)
		}
		figures = append(figures, figure)
	}
	return strings.Join(figures, "; "), nil
}

// holdConnections starts clients, over some seconds, that each send text and read nothing. When
// the server closes a connection, its client connects again some seconds later. The clients
// end with the context.
func (s *deployment) holdConnections(ctx context.Context, clients int, text string) *sync.WaitGroup {
	const pause = 5 * time.Second // on average
	group := &sync.WaitGroup{}
	for range clients {
		group.Go(func() {
			for sleep(ctx, rand.N(pause)); ctx.Err() == nil; sleep(ctx, pause/2+rand.N(pause)) {
				_ = holdConnection(ctx, s.api.addr, text) // the next one may succeed
			}
		})
	}
	return group
}

// holdConnection sends text on a new connection. It waits until the server has closed the
// connection or the context ends, without reading.
func holdConnection(ctx context.Context, addr, text string) error {
	conn, err := dialSlow(ctx, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, text); err != nil {
		return err
	}
	for closed := false; err == nil && !closed && ctx.Err() == nil; sleep(ctx, time.Second) {
		err = onSocket(conn, func(fd int) (err error) {
			closed, err = isClosed(fd)
			return err
		})
	}
	return err
}

// measureOthers sends requests with a key, and health checks without one on new
// connections, for some time. It returns their response times. The error is the first of
// them that failed.
func (s *deployment) measureOthers(ctx context.Context, during time.Duration) (known, checks durations, err error) {
	var checksErr error
	var group sync.WaitGroup
	group.Go(func() {
		anonymous := &client{base: s.base, transport: &http.Transport{DisableKeepAlives: true}}
		for began := time.Now(); checksErr == nil && time.Since(began) < during; sleep(ctx, 50*time.Millisecond) {
			var checked response
			checked, checksErr = anonymous.want(ctx, http.StatusOK, "GET", "/livez", "")
			checks = append(checks, checked.took)
		}
	})
	known, err = s.measureKnownKey(ctx, during)
	group.Wait()
	if err != nil {
		err = fmt.Errorf("a known key: %w", err)
	}
	return known, checks, errors.Join(err, checksErr)
}
