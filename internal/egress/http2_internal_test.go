package egress

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
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
