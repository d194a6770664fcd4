package egress

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// silence is the time without a frame after which a client sends a ping, and the time for its response.
const silence = 10 * time.Second

// Pings lets a client notice that a connection over HTTP/2 is dead. Otherwise all requests would go to
// that connection for minutes, because a timeout ends only their streams.
func Pings() *http.HTTP2Config {
	return &http.HTTP2Config{SendPingTimeout: silence, PingTimeout: silence}
}

// IsClosed reports whether an error of a client says that the server closed the connection, or over
// HTTP/2 the stream, before the response. The errors of HTTP/2 have no exported types.
func IsClosed(err error) bool {
	for _, closed := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, closed) {
			return true
		}
	}
	text := fmt.Sprint(err)
	return strings.Contains(text, "; received from peer") || strings.Contains(text, "http2: server sent GOAWAY") || strings.Contains(text, "http2: client connection lost")
}
