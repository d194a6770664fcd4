package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// quiet is how long no connection comes before a listener that is drained closes.
const quiet = time.Millisecond

// listener listens on a TCP address, and can end without cutting off who has
// connected already.
type listener struct {
	*net.TCPListener
	draining atomic.Bool
}

// maxUnsent is how many bytes the kernel takes of a response that it cannot send yet.
// It would take megabytes, for which no limit of ours holds (docs/decisions/0008-limits.md).
const maxUnsent = 128 << 10

// listen listens on an address that this variable names.
func listen(ctx context.Context, addr, variable string) (*listener, error) {
	// A connection inherits the option from its listener.
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) {
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent)
		})
		return errors.Join(err, failed)
	}}
	l, err := config.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %s; set %s to another address", addr, whyNotListening(err), variable)
	}
	return &listener{TCPListener: l.(*net.TCPListener)}, nil
}

// whyNotListening says in a few words why an address cannot be listened on.
func whyNotListening(err error) string {
	lookup, isLookup := errors.AsType[*net.DNSError](err)
	number, isNumber := errors.AsType[syscall.Errno](err)
	switch {
	case isLookup:
		return fmt.Sprintf("the host name %q is unknown", lookup.Name)
	case errors.Is(err, syscall.EADDRINUSE):
		return "another program listens there"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "this machine does not have that address"
	case isNumber: // such as "permission denied"
		return number.Error()
	default:
		return err.Error()
	}
}

// drain makes Accept close the listener as soon as there is nobody left to accept.
// Close alone resets the connections that the kernel has made and nobody has
// accepted yet, with the requests on them.
func (l *listener) drain() error {
	l.draining.Store(true)
	return l.SetDeadline(time.Now().Add(quiet)) // for the Accept under way
}

// Accept is that of net.Listener. Once the listener is drained, it is closed and
// Accept fails with net.ErrClosed.
func (l *listener) Accept() (net.Conn, error) {
	for {
		if l.draining.Load() {
			if err := l.SetDeadline(time.Now().Add(quiet)); err != nil {
				return nil, err
			}
		}
		conn, err := l.TCPListener.Accept()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			// Somebody may have come since the deadline.
			if waits, err := l.waits(); err == nil && waits {
				continue
			}
			return nil, errors.Join(net.ErrClosed, l.Close())
		}
		return conn, err
	}
}

// waits reports whether there is a connection to accept now.
func (l *listener) waits() (bool, error) {
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
