package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"petstore/internal/tools/need"
)

// TestConnectTimeout: to connect may take as long as the request, for the dialer and for TLS.
func TestConnectTimeout(t *testing.T) {
	t.Parallel()
	const timeout = time.Minute
	// The first lookup of a process makes channels for all later ones, so it must not be in the bubble.
	first := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed }}
	_, _ = first.LookupHost(t.Context(), "nowhere.example.com")
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		guard := New(Options{Resolver: &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
			<-release
			return nil, errors.New("the test looks up no names")
		}}})
		made, began := guard.Client(timeout).Transport.(*transport).http, time.Now()
		_, err := made.DialTLSContext(t.Context(), "tcp", "nowhere.example.com:443")
		if took := time.Since(began); !errors.Is(err, ErrLookup) || took != timeout || made.TLSHandshakeTimeout != timeout {
			t.Errorf("the dialer takes %s and the handshake %s, want %s: %v", took, made.TLSHandshakeTimeout, timeout, err)
		}
		close(release)
	})
}

// certificates returns those of test servers, and the certificates that verify them.
func certificates() ([]tls.Certificate, *x509.CertPool) {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	return server.TLS.Certificates, server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
}

// TestIdleConnections: a client closes idle connections when it has too many.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	const servers, most = 12, 3
	_, roots := certificates()
	client := New(Options{Allow: Loopback, RootCAs: roots}).Client(20 * time.Second)
	made := client.Transport.(*transport).http
	if made.MaxIdleConns != maxIdle {
		t.Errorf("%d idle connections", made.MaxIdleConns)
	}
	made.MaxIdleConns = most
	closed := make(chan bool, servers)
	for range servers {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed {
				closed <- true
			}
		}
		server.StartTLS()
		t.Cleanup(server.Close)
		response, err := client.Get(server.URL) //nolint:noctx // short
		need.OK(t, err)
		response.Body.Close()
	}
	tooLate := time.After(idleTimeout / 2)
	for range servers - most {
		select {
		case <-closed:
		case <-tooLate:
			t.Fatal("the client has too many connections")
		}
	}
}

// TestUnreadConnection: a server that reads nothing delays a write for the time of a request. It does
// not delay the end of its connection, and hardly does so through a proxy.
func TestUnreadConnection(t *testing.T) {
	t.Parallel()
	certificate, roots := certificates()
	for name, test := range map[string]struct {
		do   func(abrupt) error
		want time.Duration
		err  error
	}{
		"write":                 {func(c abrupt) error { _, err := io.WriteString(c, "x"); return err }, time.Minute, os.ErrDeadlineExceeded},
		"close":                 {func(c abrupt) error { return c.Close() }, 0, nil},
		"close through a proxy": {func(c abrupt) error { return c.Conn.Close() }, goodbye, os.ErrDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe() // without buffers
				defer theirs.Close()
				go func() {
					_ = tls.Server(theirs, &tls.Config{Certificates: certificate, MinVersion: tls.VersionTLS12}).HandshakeContext(t.Context())
				}()
				dialer := &http.Transport{
					DialContext:         func(context.Context, string, string) (net.Conn, error) { return &patient{ours, time.Minute}, nil },
					TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
					TLSHandshakeTimeout: time.Minute,
				}
				conn, err := dialTLS(t.Context(), dialer, "tcp", "example.com:443")
				need.OK(t, err)
				defer conn.Close()
				began := time.Now()
				err = test.do(conn.(abrupt))
				if took := time.Since(began); !errors.Is(err, test.err) || took != test.want {
					t.Errorf("after %s: %v", took, err)
				}
			})
		})
	}
}
