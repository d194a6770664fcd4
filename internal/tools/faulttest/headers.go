package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	headerLimit     = 16 << 10 // the default of PETSTORE_MAX_HEADER_BYTES
	connectionBound = 2000     // the default of PETSTORE_MAX_CONNECTIONS
)

// incompleteHeaders is the second part of row 29. 4,000 clients never end their headers.
// They send headers of almost the maximum size, then of 58 KB, and reconnect when the
// server closes the connection. Requests with a key succeed in time, on a kept connection
// and on new ones. The server stays within its limits for connections and memory.
func incompleteHeaders(ctx context.Context, f *fixture) (string, error) {
	const (
		clients     = 4000
		during      = 5 * time.Second
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
	before, err := s.api.descriptors()
	if err != nil {
		return "", err
	}
	var figures []string
	for _, size := range []int{headerLimit - 100, 58_000} {
		attacked, stop := context.WithCancel(ctx)
		attack := s.sendIncompleteHeaders(attacked, clients, size)
		known, err := s.measureKnownKey(ctx, during)
		most, descriptorsErr := s.api.descriptors()
		memory, memoryErr := s.api.memory("VmHWM") // VmHWM is the peak
		stop()
		attack.Wait()
		switch {
		case err != nil:
			return "", fmt.Errorf("a known key, during incomplete headers of %d bytes: %w", size, err)
		case descriptorsErr != nil || memoryErr != nil:
			return "", errors.Join(descriptorsErr, memoryErr)
		case most > before+connectionBound+2*poolSize:
			return "", fmt.Errorf("%d descriptors are open, %d before, during incomplete headers of %d bytes", most, before, size)
		case size > headerLimit && attack.rejected.Load() == 0:
			return "", fmt.Errorf("no header of %d bytes gets 431", size)
		case memory > memoryLimit:
			return "", fmt.Errorf("the server used %d MB during incomplete headers of %d bytes", memory>>20, size)
		case known.p99() > p99Limit:
			return "", fmt.Errorf("p99 of a known key is %s during incomplete headers of %d bytes", round(known.p99()), size)
		}
		figures = append(figures, fmt.Sprintf("%d incomplete headers of %d bytes (%d × 431): %d requests, p99 %s, memory %d MB",
			attack.sent.Load(), size, attack.rejected.Load(), len(known), round(known.p99()), memory>>20))
	}
	return strings.Join(figures, "; "), nil
}

// needDescriptors returns a skipError if this process may not open that many descriptors.
// The server inherits the limit.
func needDescriptors(number uint64) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if limit.Cur < number {
		return skipError(fmt.Sprintf("needs %d descriptors (ulimit -n), and the limit is %d", number, limit.Cur))
	}
	return nil
}

// headerAttack counts the headers sent and the responses with 431.
type headerAttack struct {
	sync.WaitGroup
	sent, rejected atomic.Int64
}

// sendIncompleteHeaders starts clients, over some seconds, that each send the beginning of
// a header. When the server closes a connection, its client reconnects some seconds later.
// The clients end with the context.
func (s *deployment) sendIncompleteHeaders(ctx context.Context, clients, size int) *headerAttack {
	const pause = 5 * time.Second // on average
	const begin = "GET /pets HTTP/1.1\r\nHost: petstore\r\nX-Long: "
	text := []byte(begin + strings.Repeat("x", size-len(begin))) // shared, because copies would load this process
	attack := &headerAttack{}
	for range clients {
		attack.Go(func() {
			for sleep(ctx, rand.N(pause)); ctx.Err() == nil; sleep(ctx, pause/2+rand.N(pause)) {
				attack.sent.Add(1)
				if response, err := sendIncompleteHeader(ctx, s.api.addr, text); err == nil && strings.HasPrefix(response, "HTTP/1.1 431 ") {
					attack.rejected.Add(1)
				}
			}
		})
	}
	return attack
}

// sendIncompleteHeader sends text on a new connection and returns the response, or "" if
// the server closes the connection without one.
func sendIncompleteHeader(ctx context.Context, addr string, text []byte) (string, error) {
	const enough = 512 // enough for a 431
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write(text); err != nil {
		return "", err
	}
	response, err := io.ReadAll(io.LimitReader(conn, enough))
	return string(response), err
}

// measureKnownKey reads on a kept connection and orders on new ones, for some time. The
// error is the first request that failed.
func (s *deployment) measureKnownKey(ctx context.Context, during time.Duration) (durations, error) {
	fresh := *s.client
	fresh.transport = &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	var all durations
	for began := time.Now(); time.Since(began) < during; {
		pet := 1 + len(all)%pets
		read, err := s.want(ctx, http.StatusOK, "GET", fmt.Sprintf("/pets/%d", pet), "")
		if err != nil {
			return nil, fmt.Errorf("after %s: %w", round(time.Since(began)), err)
		}
		ordered, err := fresh.order(ctx, pet, "Idempotency-Key", fmt.Sprintf("known-%d-%d", began.UnixNano(), len(all)))
		if err == nil {
			err = ordered.check(http.StatusCreated)
		}
		if err != nil {
			return nil, fmt.Errorf("after %s: %w", round(time.Since(began)), err)
		}
		all = append(all, read.took, ordered.took)
		sleep(ctx, 10*time.Millisecond)
	}
	return all, nil
}
