package main

import "golang.org/x/sys/unix"

// isClosed reports whether the other side of a socket has closed the connection, also if
// the socket has data to read.
func isClosed(fd int) (bool, error) {
	ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}, 0) //nolint:gosec // a descriptor is an int32
	return ready > 0, err
}
