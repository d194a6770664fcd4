package postgres

import (
	"errors"
	"net"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// isAlive reports whether a connection that nobody uses is still good: the server
// has neither closed it nor said something unasked, such as that it shuts down.
// It costs one call of the kernel and no time, so that a statement need not be
// lost to find out. A connection that is cut further away looks alive.
func isAlive(conn *pgx.Conn) bool {
	under := conn.PgConn().Conn()
	if encrypted, ok := under.(interface{ NetConn() net.Conn }); ok {
		under = encrypted.NetConn()
	}
	socket, ok := under.(syscall.Conn)
	if !ok {
		return true // nothing is known
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	// Not Read, which would wait for another that is under way: after a slow write
	// pgx leaves one behind, which ends when the server next says something.
	var peeked error
	err = raw.Control(func(descriptor uintptr) {
		_, _, peeked = syscall.Recvfrom(int(descriptor), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	})
	return err == nil && errors.Is(peeked, syscall.EAGAIN)
}
