// Package listener accepts the connections of clients, over HTTP/1.1 and HTTP/2. It limits what
// clients without a known API key hold: connections, streams, frames, and bytes in the kernel
// (docs/decisions/0008-limits.md).
package listener

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// quiet is the time without new connections after which a draining listener closes.
const quiet = time.Millisecond

// Listener is a TCP listener that can stop without resetting connections in the backlog.
type Listener struct {
	*net.TCPListener
	draining atomic.Bool
}

// The maximum number of unsent bytes of a response in the kernel, for clients with a known
// key and for others. By default it buffers megabytes, which no limit of the server covers
// (docs/decisions/0008-limits.md).
const (
	maxUnsent         = 128 << 10
	maxUnsentStranger = 16 << 10
)

// WriteTimeout is the maximum time to send a response. It is also the maximum time in which a
// client acknowledges nothing of the bytes that it gets.
const WriteTimeout = 12 * time.Second

// probeInterval is the time between two keepalive probes that the client does not
// acknowledge. The first comes after 15 seconds without a packet.
const probeInterval = 5 * time.Second

// Listen listens on an address.
func Listen(ctx context.Context, addr string) (*Listener, error) {
	config := net.ListenConfig{
		// Connections inherit the options from the listener.
		Control: func(_, _ string, raw syscall.RawConn) error {
			var failed error
			err := raw.Control(func(fd uintptr) {
				failed = limitSilence(int(fd))
			})
			return errors.Join(err, failed, limitUnsent(raw, maxUnsentStranger))
		},
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Interval: probeInterval},
	}
	l, err := config.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &Listener{TCPListener: l.(*net.TCPListener)}, nil
}

// limitUnsent limits the unsent bytes in the kernel.
func limitUnsent(raw syscall.RawConn, most int) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, most)
	})
	return errors.Join(err, failed)
}

// Drain makes Accept close the listener as soon as the backlog is empty. Close
// alone would reset the connections in the backlog, with their requests.
func (l *Listener) Drain() error {
	l.draining.Store(true)
	return l.SetDeadline(time.Now().Add(quiet)) // for an Accept in progress
}

// Accept implements net.Listener. When a draining listener has no more connections,
// Accept closes it and returns net.ErrClosed.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		if l.draining.Load() {
			if err := l.SetDeadline(time.Now().Add(quiet)); err != nil {
				return nil, err
			}
		}
		conn, err := l.TCPListener.Accept()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			// A connection may have arrived since the deadline.
			if waits, err := l.waits(); err == nil && waits {
				continue
			}
			return nil, errors.Join(net.ErrClosed, l.Close())
		}
		return conn, err
	}
}

// waits reports whether a connection can be accepted now.
func (l *Listener) waits() (bool, error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return false, err
	}
	var ready int
	var failed error
	err = raw.Control(func(fd uintptr) {
		ready, failed = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) //nolint:gosec // a descriptor is an int32
	})
	return ready > 0, errors.Join(err, failed)
}
