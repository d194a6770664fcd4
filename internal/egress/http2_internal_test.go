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
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// TestDeadConnection: a client over HTTP/2 gives up a connection whose other side vanishes without a
// word, and opens another one.
func TestDeadConnection(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	network, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { network.Close() })
	var opened, dead atomic.Int64 // connections, in the order in which they are opened
	go func() {
		for {
			client, err := network.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { client.Close() })
			to, err := new(net.Dialer).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
			if err != nil {
				return
			}
			t.Cleanup(func() { to.Close() })
			number := opened.Add(1)
			forward := func(to io.Writer, from io.Reader) {
				for text := make([]byte, 64<<10); ; {
					n, err := from.Read(text)
					if err != nil {
						return
					}
					if number > dead.Load() {
						_, _ = to.Write(text[:n])
					}
				}
			}
			go forward(to, client)
			go forward(client, to)
		}
	}()
	guard := New(Options{Allow: Loopback, RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs})
	guard.http2.SendPingTimeout, guard.http2.PingTimeout = 50*time.Millisecond, 2*time.Second
	client := guard.Client(20 * time.Second)
	get := func() (string, error) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.Replace(server.URL, server.Listener.Addr().String(), network.Addr().String(), 1), nil)
		if err != nil {
			return "", err
		}
		response, err := client.Do(request)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return string(text), err
	}
	if proto, err := get(); proto != "HTTP/2.0" {
		t.Fatalf("the first request: %q, %v", proto, err)
	}
	dead.Store(opened.Load())
	if _, err := get(); !IsClosed(err) {
		t.Errorf("on the dead connection: %v", err)
	}
	if proto, err := get(); proto != "HTTP/2.0" || opened.Load() != 2 {
		t.Errorf("after %d connections: %q, %v", opened.Load(), proto, err)
	}
}

// certificates returns those of test servers, and the certificates that verify them.
func certificates() ([]tls.Certificate, *x509.CertPool) {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	return server.TLS.Certificates, server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
}

// TestNoStreams: a server that takes connections over HTTP/2, but no request on them, gets few of them
// until the request times out.
func TestNoStreams(t *testing.T) {
	t.Parallel()
	certificate, roots := certificates()
	for name, begin := range map[string]func(*http2.Framer) error{
		"no streams": func(f *http2.Framer) error {
			return f.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams})
		},
		"GOAWAY": func(f *http2.Framer) error {
			_ = f.WriteSettings()
			return f.WriteGoAway(0, http2.ErrCodeNo, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			network, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { network.Close() })
			secure := tls.NewListener(network, &tls.Config{Certificates: certificate, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12})
			var opened, spoke atomic.Int64
			go func() {
				for {
					conn, err := secure.Accept()
					if err != nil {
						return
					}
					opened.Add(1)
					t.Cleanup(func() { conn.Close() })
					go func() {
						frames := http2.NewFramer(conn, conn)
						_ = begin(frames)
						preface := make([]byte, len(http2.ClientPreface))
						if _, err := io.ReadFull(conn, preface); err == nil && string(preface) == http2.ClientPreface {
							spoke.Add(1)
						}
						for {
							frame, err := frames.ReadFrame()
							if err != nil {
								return
							}
							if _, is := frame.(*http2.HeadersFrame); is {
								_ = frames.WriteRSTStream(frame.Header().StreamID, http2.ErrCodeRefusedStream)
							}
						}
					}()
				}
			}()
			client := New(Options{Allow: Loopback, RootCAs: roots}).Client(2 * time.Second)
			response, err := client.Post("https://"+network.Addr().String(), "application/json", strings.NewReader("{}")) //nolint:noctx // short
			if err == nil {
				response.Body.Close()
			}
			// Four at once, and one after each pause: 0.1, 0.2, 0.4 and 0.8 s.
			if made, spoke := opened.Load(), spoke.Load(); !errors.Is(err, context.DeadlineExceeded) || spoke <= 4 || made > 8 {
				t.Errorf("%d connections, %d over HTTP/2, then %v", made, spoke, err)
			}
		})
	}
}

// TestFewStreams: a server that takes one request per connection over HTTP/2 gets several at the same time.
func TestFewStreams(t *testing.T) {
	t.Parallel()
	const requests = 8
	var arrived atomic.Int64
	all, end := context.WithCancel(t.Context()) // until all requests have arrived, or one has failed
	defer end()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if arrived.Add(1) == requests {
			end()
		}
		<-all.Done()
		_, _ = io.WriteString(w, r.Proto)
	}))
	server.EnableHTTP2 = true
	server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 1}
	server.StartTLS()
	t.Cleanup(server.Close)
	client := New(Options{Allow: Loopback, RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}).Client(20 * time.Second)
	var group sync.WaitGroup
	for range requests {
		group.Go(func() {
			response, err := client.Post(server.URL, "application/json", strings.NewReader("{}")) //nolint:noctx // short
			if err != nil {
				end()
				t.Error(err)
				return
			}
			defer response.Body.Close()
			if text, err := io.ReadAll(response.Body); string(text) != "HTTP/2.0" {
				t.Errorf("the response is %q, %v", text, err)
			}
		})
	}
	group.Wait()
}

// TestPauses: the pauses between the dials of a request grow, and end with it.
func TestPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := New(Options{}).Client(time.Minute).Transport.(*transport)
		ctx, end := withDials(t.Context(), false)
		for i, want := range []int64{0, 0, 0, 0, 100, 200, 400, 800, 1600, 3200, 1000} {
			if want == 1000 {
				time.AfterFunc(time.Second, end)
			}
			began := time.Now()
			_, err := client.http.DialContext(ctx, "tcp", "10.0.0.1:443")
			if took := time.Since(began).Milliseconds(); took != want || errors.Is(err, context.Canceled) != (want == 1000) {
				t.Errorf("the dial %d takes %d ms: %v", i+1, took, err)
			}
		}
	})
}

// TestIdleConnections: a client closes idle connections over HTTP/2 when it has too many.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	const servers, most = 12, 3
	_, roots := certificates()
	client := New(Options{Allow: Loopback, RootCAs: roots}).Client(20 * time.Second)
	client.Transport.(*transport).maxIdle = most
	closed := make(chan bool, servers)
	for range servers {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
		server.EnableHTTP2 = true
		server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed {
				closed <- true
			}
		}
		server.StartTLS()
		t.Cleanup(server.Close)
		response, err := client.Get(server.URL) //nolint:noctx // short
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(response.Body); string(text) != "HTTP/2.0" {
			t.Fatalf("the response is %q, %v", text, err)
		}
		response.Body.Close()
	}
	tooLate := time.After(idleTimeout / 2)
	for range servers - most - 1 {
		select {
		case <-closed:
		case <-tooLate:
			t.Fatalf("the client has too many connections; it counts %d", client.Transport.(*transport).open.Load())
		}
	}
}

// TestUnreadConnection: a server that reads nothing delays a write for the time of a request, and the
// end of its connection not at all.
func TestUnreadConnection(t *testing.T) {
	t.Parallel()
	certificate, roots := certificates()
	for name, test := range map[string]struct {
		do   func(*tls.Conn) error
		want time.Duration
	}{
		"write": {func(c *tls.Conn) error { _, err := io.WriteString(c, "x"); return err }, time.Minute},
		"close": {func(c *tls.Conn) error { return c.Close() }, goodbye},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe() // without buffers
				defer theirs.Close()
				go func() {
					_ = tls.Server(theirs, &tls.Config{Certificates: certificate, MinVersion: tls.VersionTLS12}).HandshakeContext(t.Context())
				}()
				conn := tls.Client(&counted{ours, func() {}, time.Minute}, &tls.Config{RootCAs: roots, ServerName: "example.com", MinVersion: tls.VersionTLS12})
				if err := conn.HandshakeContext(t.Context()); err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				began := time.Now()
				err := test.do(conn)
				if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took != test.want {
					t.Errorf("after %s: %v", took, err)
				}
			})
		})
	}
}
