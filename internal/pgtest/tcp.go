package pgtest

import (
	"net"
	"strings"
	"testing"

	"petstore/internal/tools/freeport"
)

// ServeTCP listens on this machine until the test ends, handles every connection with
// handle and closes it. It returns the address.
func ServeTCP(t testing.TB, handle func(net.Conn)) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				defer conn.Close()
				handle(conn)
			}()
		}
	}()
	return listener.Addr().String()
}

// FreePort returns a port of this machine that nothing listens on.
func FreePort(t testing.TB) string {
	t.Helper()
	address, err := freeport.Addr(t.Context())
	check(t, err)
	return strings.TrimPrefix(address, "127.0.0.1:")
}
