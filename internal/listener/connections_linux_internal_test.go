package listener

import (
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"petstore/internal/tools/need"
)

// dialFrom connects from a loopback address, of which only Linux has more than one.
func (b *bounded) dialFrom(address string) *peer {
	b.t.Helper()
	return dialPeerFrom(b.t, &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}, b.limited.Addr().String())
}

// TestConnectionsOfCrowdsAreReplacedFirst: strangers of one network do not replace strangers of
// another one, although these are older.
func TestConnectionsOfCrowdsAreReplacedFirst(t *testing.T) {
	t.Parallel()
	b := startBounded(t, 8)
	opened := func(number int) { b.until(func(l *Limited) bool { return l.open == number }) }
	others := []*peer{b.dialFrom("127.0.0.2"), b.dialFrom("127.0.0.2")} // a quarter
	opened(len(others))
	var crowd []*peer
	for i := range 6 {
		crowd = append(crowd, b.dialFrom("127.0.0.1"))
		opened(len(others) + i + 1)
	}
	for i, from := range []string{"127.0.0.1", "127.0.0.3"} {
		p := b.dialFrom(from)
		crowd[i].wantClosed()
		others = append(others, p)
	}
	b.wantEvicted(2)
	for _, p := range append(others, crowd[2:]...) {
		b.exchange(p, wholeHeader)
	}
}

// TestWaitingStreamsOfKnownClientsFit: many networks without a key, with few streams each, do not
// close the connection of a known client with more streams.
func TestWaitingStreamsOfKnownClientsFit(t *testing.T) {
	t.Parallel()
	b := startBoundedTLS(t, 100)
	b.limitWaiting(12)
	known := dialHTTP2(t, b.limited.Addr().String())
	for range 3 {
		known.get("/known", "authorization", "a key")
		b.handled("/known")
	}
	for i := range 6 {
		b.openStreams(fmt.Sprintf("127.0.0.%d", 2+i), 2)
	}
	b.untilWaiting(12)
	for range 3 {
		b.finish() // the client does not read the response
	}
	b.until(func(l *Limited) bool { return l.evicted == 2 })
	if got, want := b.waitingCount(), 12+3-2*2; got != want {
		t.Errorf("%d streams wait, want %d", got, want)
	}
}

// openStreams connects from an address and opens streams that wait.
func (b *bounded) openStreams(address string, streams int) {
	b.t.Helper()
	p := beginHTTP2(b.t, &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}, b.limited.Addr().String())
	for range streams {
		p.get("/large")
		b.handled("/large")
	}
}

// TestWaitingStreamsOfNetworks: the network with the most streams that wait loses a connection, not
// the connection with the most of them.
func TestWaitingStreamsOfNetworks(t *testing.T) {
	t.Parallel()
	b := startBoundedTLS(t, 100)
	b.limitWaiting(8)
	for range 3 {
		b.openStreams("127.0.0.1", 2)
	}
	b.openStreams("127.0.0.2", 3)
	b.untilWaiting(3*2 + 3 - 2)
	b.wantEvicted(1)
}

// TestConnectionsHaveOptions: connections inherit the time limits of silence. The kernel
// buffers less for a client without a known key.
func TestConnectionsHaveOptions(t *testing.T) {
	t.Parallel()
	b := startBounded(t, 1)
	client := b.dial("", 1)
	b.limited.mu.Lock()
	conn := b.limited.fresh.head.next
	b.limited.mu.Unlock()
	conn.wantOptions(t, map[int]int{
		unix.TCP_USER_TIMEOUT:  12_000, // ms
		unix.TCP_KEEPIDLE:      15,
		unix.TCP_KEEPINTVL:     int(probeInterval / time.Second),
		unix.TCP_NOTSENT_LOWAT: maxUnsentStranger,
	})
	client.send(knownHeader)
	b.handled("/known")
	conn.wantOptions(t, map[int]int{unix.TCP_NOTSENT_LOWAT: maxUnsent})
	b.finish()
	client.want(http.StatusOK)
}

// wantOptions fails the test unless the socket has these options of TCP.
func (c *connection) wantOptions(t *testing.T, options map[int]int) {
	t.Helper()
	raw := need.Value(c.tcp.SyscallConn())(t)
	for option, want := range options {
		var got int
		var failed error
		if err := raw.Control(func(fd uintptr) { got, failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option) }); err != nil || failed != nil {
			t.Fatal(err, failed)
		}
		need.Same(t, want, got, "option %d of a connection", option)
	}
}
