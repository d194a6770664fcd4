package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"petstore/internal/tools/must"
)

// keylessClients is row 45. 4,500 clients without a key request documents and never read
// the responses. Then they send half headers, headers of almost the maximum size, and
// headers of 58 KB. They connect again when the server closes a connection. Requests with a
// key succeed in time, on a kept connection and on new ones, and so do health checks. The
// server stays within its limits for connections and memory.
func keylessClients(ctx context.Context, f *fixture) string {
	const (
		clients     = 4500
		connections = 2000 // the default of PETSTORE_MAX_CONNECTIONS
		p99Limit    = 250 * time.Millisecond
		memoryLimit = 256 << 20
		document    = "GET /openapi.json HTTP/1.1\r\nHost: petstore\r\n"
	)
	needDescriptors(clients + 500)
	s := f.open(ctx)
	before := s.api.descriptors()
	var figures []string
	for _, attack := range []struct {
		what, text string
		during     time.Duration
	}{
		{"unread documents", strings.Repeat(document+"\r\n", 12), 13 * time.Second}, // longer than the server waits for a reader
		{"half headers", document + "X-", 13 * time.Second},
		{"headers of 16 KB", document + "X-Long: " + strings.Repeat("x", 16<<10-100), 5 * time.Second},
		{"headers of 58 KB", document + "X-Long: " + strings.Repeat("x", 58_000), 5 * time.Second},
	} {
		must.Explain("during "+attack.what, func() {
			attacked, stop := context.WithCancel(ctx)
			text := []byte(attack.text)
			defer s.crowd(attacked, clients, func(ctx context.Context, conn net.Conn) { holdOpen(ctx, conn, text) }).Wait()
			defer stop()
			known, checks := s.measureOthers(ctx, attack.during)
			open, memory := s.api.descriptors(), s.api.peakMemory()
			figure := fmt.Sprintf("%s of %d clients: %d requests, p99 %s, %d health checks, p99 %s, %d descriptors, memory %d MB",
				attack.what, clients, len(known), round(known.p99()), len(checks), round(checks.p99()), open, memory>>20)
			must.Hold(known.p99() <= p99Limit && memory <= memoryLimit && open <= before+connections+2*poolSize, "%s", figure)
			figures = append(figures, figure)
		})
	}
	return strings.Join(figures, "; ")
}

// needDescriptors skips the row if this process may not open that many descriptors. The
// server inherits the limit.
func needDescriptors(number uint64) {
	var limit syscall.Rlimit
	must.OK(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	if limit.Cur < number {
		must.OK(skipError(fmt.Sprintf("needs %d descriptors (ulimit -n), and the limit is %d", number, limit.Cur)))
	}
}

// crowd starts clients of a function, over some seconds, each with one connection at a time. When
// the server closes a connection, its client connects again some seconds later. The clients end
// with the context.
func (s *deployment) crowd(ctx context.Context, clients int, attack func(context.Context, net.Conn)) *sync.WaitGroup {
	const pause = 5 * time.Second // on average
	group := &sync.WaitGroup{}
	for range clients {
		group.Go(func() {
			for sleep(ctx, rand.N(pause)); ctx.Err() == nil; sleep(ctx, pause/2+rand.N(pause)) {
				s.connect(ctx, attack)
			}
		})
	}
	return group
}

// connect calls a function with a new connection. It ignores its failure, because the server may
// close the connection at any time. The context closes it, too.
func (s *deployment) connect(ctx context.Context, attack func(context.Context, net.Conn)) {
	_ = must.Attempt(func() {
		conn := dialSlow(ctx, s.api.addr)
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		attack(ctx, conn)
	})
}

// dialSlow connects with a small receive buffer.
func dialSlow(ctx context.Context, addr string) net.Conn {
	const buffer = 4096
	var dialer net.Dialer
	conn := must.Get(dialer.DialContext(ctx, "tcp", addr))
	if tcp, ok := conn.(*net.TCPConn); ok {
		must.OK(tcp.SetReadBuffer(buffer))
	}
	return conn
}

// holdOpen sends text, and waits until the server has closed the connection, without reading.
func holdOpen(ctx context.Context, conn net.Conn, text []byte) {
	must.Get(conn.Write(text))
	tcp, ok := conn.(syscall.Conn)
	must.Hold(ok, "not a socket")
	socket := must.Get(tcp.SyscallConn())
	for closed := 0; closed == 0 && ctx.Err() == nil; sleep(ctx, time.Second) {
		var failed error
		must.OK(socket.Control(func(fd uintptr) {
			closed, failed = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: pollRDHUP}}, 0) //nolint:gosec // a descriptor is an int32
		}))
		must.OK(failed)
	}
}

// pollRDHUP is the event that the other side has closed the connection, even if there are data to
// read (poll(2)). Only Linux has it.
const pollRDHUP = 0x2000

// measureOthers measures others for some time. They send requests with a key on a kept
// connection and on new ones, and health checks without a key. It returns their response
// times.
func (s *deployment) measureOthers(ctx context.Context, during time.Duration) (known, checks durations) {
	unkept := &http.Transport{DisableKeepAlives: true, DisableCompression: true, TLSClientConfig: anyCertificate()}
	fresh, anonymous := &client{base: s.base, key: s.key, transport: unkept}, &client{base: s.base, transport: unkept}
	began := time.Now()
	wait := must.Background(func() {
		for ; time.Since(began) < during; sleep(ctx, 50*time.Millisecond) {
			checks = append(checks, anonymous.want(ctx, http.StatusOK, "GET", "/livez", "").took)
		}
	})
	for ; time.Since(began) < during; sleep(ctx, 10*time.Millisecond) {
		pet := 1 + len(known)%pets
		read := must.Get(s.getPet(ctx, pet)).check(http.StatusOK)
		ordered := must.Get(fresh.order(ctx, pet, "Idempotency-Key", fmt.Sprintf("known-%d-%d", began.UnixNano(), len(known)))).check(http.StatusCreated)
		known = append(known, read.took, ordered.took)
	}
	wait()
	return known, checks
}
