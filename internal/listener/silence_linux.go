package listener

import (
	"time"

	"golang.org/x/sys/unix"
)

// limitSilence makes the kernel close connections whose client is silent for longer than
// [WriteTimeout] (TCP_USER_TIMEOUT, RFC 5482).
func limitSilence(fd int) error {
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(WriteTimeout/time.Millisecond))
}
