package main

import "golang.org/x/sys/unix"

// discardPackets makes the kernel discard all packets to a socket, and acknowledge none.
func discardPackets(fd int) error {
	discard := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(discard)), Filter: &discard[0]}) //nolint:gosec // one
}

// isClosed reports whether the other side of a socket has closed the connection, also if
// the socket has data to read.
func isClosed(fd int) (bool, error) {
	ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}, 0) //nolint:gosec // a descriptor is an int32
	return ready > 0, err
}
