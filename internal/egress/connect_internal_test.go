package egress

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"
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
		ctx, end := withDials(t.Context(), false)
		defer end()
		made, began := guard.Client(timeout).Transport.(*transport).http, time.Now()
		_, err := made.DialContext(ctx, "tcp", "nowhere.example.com:443")
		if took := time.Since(began); !errors.Is(err, ErrLookup) || took != timeout || made.TLSHandshakeTimeout != timeout {
			t.Errorf("the dialer takes %s and the handshake %s, want %s: %v", took, made.TLSHandshakeTimeout, timeout, err)
		}
		close(release)
	})
}
