package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
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

// halfHeaders is the second part of row 29: 4,000 clients never end their headers.
// They send headers as long as they may be, then 58 KB, and connect again when the
// server closes them. Requests with a key succeed in time, on a connection that is
// kept and on new ones. The server stays within its bounds of connections and memory.
func halfHeaders(ctx context.Context, b *bench) (string, error) {
	const (
		clients     = 4000
		during      = 5 * time.Second
		p99Limit    = 250 * time.Millisecond
		memoryLimit = 256 << 20
	)
	if err := needDescriptors(clients + 500); err != nil {
		return "", err
	}
	s, err := b.open(ctx)
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
		attack := s.sendHalfHeaders(attacked, clients, size)
		known, err := s.known(ctx, during)
		most, descriptorsErr := s.api.descriptors()
		memory, memoryErr := s.api.memory("VmHWM") // the most so far
		stop()
		attack.Wait()
		switch {
		case err != nil:
			return "", fmt.Errorf("a known key, beside half headers of %d bytes: %w", size, err)
		case descriptorsErr != nil || memoryErr != nil:
			return "", errors.Join(descriptorsErr, memoryErr)
		case most > before+connectionBound+2*poolSize:
			return "", fmt.Errorf("%d descriptors are open, %d before, beside half headers of %d bytes", most, before, size)
		case size > headerLimit && attack.refused.Load() == 0:
			return "", fmt.Errorf("no header of %d bytes is refused with 431", size)
		case memory > memoryLimit:
			return "", fmt.Errorf("the server took %d MB beside half headers of %d bytes", memory>>20, size)
		case known.p99() > p99Limit:
			return "", fmt.Errorf("p99 of a known key is %s beside half headers of %d bytes", round(known.p99()), size)
		}
		figures = append(figures, fmt.Sprintf("%d half headers of %d bytes (%d × 431): %d requests, p99 %s, memory %d MB",
			attack.sent.Load(), size, attack.refused.Load(), len(known), round(known.p99()), memory>>20))
	}
	return strings.Join(figures, "; "), nil
}

// needDescriptors returns a notHereError if this process may not open that many
// descriptors. The server inherits the limit.
func needDescriptors(number uint64) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if limit.Cur < number {
		return notHereError(fmt.Sprintf("it takes %d descriptors (ulimit -n), and the limit is %d", number, limit.Cur))
	}
	return nil
}

// halfHeaderAttack counts what the clients do.
type halfHeaderAttack struct {
	sync.WaitGroup
	sent, refused atomic.Int64
}

// sendHalfHeaders has clients connect, over some seconds, and send the beginning
// of a header. When the server closes the connection, they connect again some
// seconds later. They end with the context.
func (s *shop) sendHalfHeaders(ctx context.Context, clients, size int) *halfHeaderAttack {
	const pause = 5 * time.Second // on average
	const begin = "GET /pets HTTP/1.1\r\nHost: petstore\r\nX-Long: "
	text := []byte(begin + strings.Repeat("x", size-len(begin))) // shared, or its copies would be this process's load
	attack := &halfHeaderAttack{}
	for range clients {
		attack.Go(func() {
			for wait(ctx, rand.N(pause)); ctx.Err() == nil; wait(ctx, pause/2+rand.N(pause)) {
				attack.sent.Add(1)
				if response, err := sendHalfHeader(ctx, s.api.addr, text); err == nil && strings.HasPrefix(response, "HTTP/1.1 431 ") {
					attack.refused.Add(1)
				}
			}
		})
	}
	return attack
}

// sendHalfHeader sends text on a connection of its own and returns the response,
// which is empty if the server closes the connection without one.
func sendHalfHeader(ctx context.Context, addr string, text []byte) (string, error) {
	const enough = 512 // for a 431
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

// durations are how long requests took, in order.
type durations []time.Duration

func (d durations) p99() time.Duration { return d[len(d)*99/100] }

// known reads on a connection that is kept and orders on new ones, for some time.
// The error is the first request that did not succeed.
func (s *shop) known(ctx context.Context, during time.Duration) (durations, error) {
	fresh := *s.client
	fresh.transport = &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	var all durations
	for began := time.Now(); time.Since(began) < during; {
		pet := 1 + len(all)%pets
		read, err := s.want(ctx, http.StatusOK, "GET", fmt.Sprintf("/pets/%d", pet), "")
		if err != nil {
			return nil, fmt.Errorf("after %s: %w", round(time.Since(began)), err)
		}
		ordered, err := fresh.want(ctx, http.StatusCreated, "POST", "/store/orders", fmt.Sprintf(`{"petId": %d}`, pet),
			"Idempotency-Key", fmt.Sprintf("known-%d-%d", began.UnixNano(), len(all)))
		if err != nil {
			return nil, fmt.Errorf("after %s: %w", round(time.Since(began)), err)
		}
		all = append(all, read.took, ordered.took)
		wait(ctx, 10*time.Millisecond)
	}
	slices.Sort(all)
	return all, nil
}
