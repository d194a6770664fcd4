package postgres

import (
	"errors"
	"net"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// isAlive reports whether an idle connection is still usable: the server has
// neither closed it nor sent an unsolicited message, such as that it shuts down. It
// costs one system call and does not block. A connection whose network is cut looks
// alive.
func isAlive(conn *pgx.Conn) bool {
	under := conn.PgConn().Conn()
	if encrypted, ok := under.(interface{ NetConn() net.Conn }); ok {
		under = encrypted.NetConn()
	}
	socket, ok := under.(syscall.Conn)
	if !ok {
		return true // it cannot be checked
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	// A Read would wait for one in progress: after a slow write pgx leaves a Read
	// behind, which ends when the server next sends something.
	var peeked error
	err = raw.Control(func(descriptor uintptr) {
		_, _, peeked = syscall.Recvfrom(int(descriptor), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	})
	return err == nil && errors.Is(peeked, syscall.EAGAIN)
}
