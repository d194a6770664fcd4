package egress

import (
	"context"
	"net"
	"net/http"
	"net/http/httptrace"
	"testing"

	"petstore/internal/tools/need"
)

// noticed is a connection of a client that tells when the client closes it.
type noticed struct {
	net.Conn

	closed context.CancelFunc
}

func (c noticed) Close() error {
	c.closed()
	return c.Conn.Close()
}

// TestBeforeTheRequest: a server that closes the connection, or sends bytes, before it gets a request.
func TestBeforeTheRequest(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		greeting string
		want     func(error) bool
	}{
		"closes":      {"", IsClosed},
		"speaks SMTP": {"220 mail.example ESMTP\r\n", IsNotHTTP},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := need.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
			t.Cleanup(func() { server.Close() })
			go func() {
				if conn, err := server.Accept(); err == nil {
					_, _ = conn.Write([]byte(test.greeting))
					_ = conn.(*net.TCPConn).CloseWrite()
				}
			}()
			closed, closes := context.WithCancel(t.Context())
			transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, address)
				return noticed{conn, closes}, err
			}}
			// The request begins after the client has seen what the server did.
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { <-closed.Done() }})
			request := need.Value(http.NewRequestWithContext(ctx, http.MethodGet, "http://"+server.Addr().String(), nil))(t)
			response, err := transport.RoundTrip(request)
			if err == nil {
				response.Body.Close()
			}
			if !test.want(err) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}
