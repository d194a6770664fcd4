package egress

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"syscall"
)

// IsClosed reports whether an error of a client says that the server closed the connection, or over
// HTTP/2 the stream, before the response. Some errors of net/http have no exported types.
func IsClosed(err error) bool {
	for _, closed := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, closed) {
			return true
		}
	}
	return contains(err, "http: server closed idle connection", "; received from peer", "http2: server sent GOAWAY", "http2: client connection lost")
}

// IsNotHTTP reports whether an error of a client says that the bytes of the server are not HTTP. The
// last text is of a server that sends the first bytes, as mail servers do.
func IsNotHTTP(err error) bool {
	return contains(err, "malformed", "readLoopPeekFailLocked: %!w(<nil>)")
}

// contains looks for texts in an error, and not in the URL of the request.
func contains(err error, texts ...string) bool {
	if request, ok := errors.AsType[*url.Error](err); ok {
		err = request.Err
	}
	all := fmt.Sprint(err)
	for _, text := range texts {
		if strings.Contains(all, text) {
			return true
		}
	}
	return false
}
