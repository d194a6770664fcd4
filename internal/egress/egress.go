// Package egress sends HTTP requests to URLs that clients of the API choose. It does not
// connect to networks that those clients must not reach. Examples are the loopback
// interface, private networks and the metadata service of a cloud.
//
// The address is checked when a connection is opened. So a name that resolves to another
// address by then does not help an attacker. [Guard.Check] checks the text of a URL
// earlier, so that a mistake is visible when the URL is stored.
//
// The DNS of the server can have names that the public DNS does not. So a name with a
// private address and a name that does not exist have the same error.
// If the DNS fails, all names have another error, [ErrLookup].
package egress

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
)

// Ports are the ports of public addresses that a URL may have.
var Ports = []uint16{443, 8443}

const (
	maxIdle          = 1000 // connections of a client
	idleTimeout      = 30 * time.Second
	idlePerHost      = 4
	maxResponseBytes = 64 << 10 // of the header
	goodbye          = time.Millisecond
	connectTimeout   = 10 * time.Second
)

// RefusedError says why a URL is not allowed.
type RefusedError struct {
	// Reason completes a sentence that begins with the URL. It never has an address that
	// the server has looked up, because that could be the address of an internal host.
	Reason string
	// Malformed says that the text is no absolute URL with a valid host, whatever is allowed.
	Malformed bool
}

// Error returns the whole sentence.
func (e *RefusedError) Error() string { return "the URL " + e.Reason }

func refuse(reason string) error { return &RefusedError{Reason: reason} }

func malformed(reason string) error { return &RefusedError{Reason: reason, Malformed: true} }

// Options are the settings of a [Guard].
type Options struct {
	// Allow lists networks that URLs may have besides public addresses.
	Allow []Network
	// Proxy is the HTTP proxy for all requests, which then resolves the names and must
	// check their addresses; nil: none.
	Proxy *url.URL
	// Resolver looks up names; nil: [net.DefaultResolver].
	Resolver *net.Resolver
	// RootCAs verify the certificates; nil: the certificates of the system.
	RootCAs *x509.CertPool
}

// Guard decides which URLs are allowed. It is safe for concurrent use.
type Guard struct {
	options Options
	public  *ssrf.Guardian
}

// New returns a Guard.
func New(options Options) *Guard { return &Guard{options, ssrf.New()} }

// Check returns a [RefusedError] if a URL is not allowed. It looks up no name.
func (g *Guard) Check(text string) error {
	target, err := parse(text)
	if err != nil {
		return err
	}
	return g.checkTarget(target)
}

// checkLocalhost checks a URL whose host is localhost. That is a loopback address (RFC 6761,
// section 6.3), so the check needs no lookup.
func (g *Guard) checkLocalhost(t target) error {
	for _, addr := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
		if g.checkAddr(t.plain, netip.AddrPortFrom(addr, t.port)) == nil {
			return nil
		}
	}
	if t.plain {
		return errPlain
	}
	return errName
}

// lookedUp returns the name that the resolver looks up for a host. It ends with a dot, so
// that the search domains of the machine do not make a name of the local network of it. An
// operator who allows a network may want these.
func (g *Guard) lookedUp(host string) string {
	if len(g.options.Allow) > 0 || strings.HasSuffix(host, ".") {
		return host
	}
	return host + "."
}

// checkTarget checks what the URL says by itself. It refuses the names of internal networks
// whether they exist or not, so that a client learns nothing about them.
func (g *Guard) checkTarget(t target) error {
	if t.addr.IsValid() {
		return g.checkAddr(t.plain, netip.AddrPortFrom(t.addr, t.port))
	}
	if g.options.Proxy == nil && strings.TrimSuffix(t.host, ".") == "localhost" {
		return g.checkLocalhost(t)
	}
	// The address of a name decides whether it is in an allowed network, except behind a
	// proxy, where this process does not see the address.
	isAllowed := func(n Network) bool { return n.port == 0 || n.port == t.port }
	switch {
	case g.options.Proxy == nil && slices.ContainsFunc(g.options.Allow, isAllowed):
		return nil
	case t.plain:
		return errPlain
	case !slices.Contains(Ports, t.port):
		return errPort
	case isInternalName(t.host):
		return errName
	default:
		return nil
	}
}

var (
	errPlain = refuse("must begin with https://.")
	errPort  = refuse("must have the port 443 or 8443.")
	errAddr  = refuse("must have a public host, but its address is not public.")
	errName  = refuse("must have a host name that resolves to a public address.")
)

// ErrLookup means that the lookup of a host name failed, such as by a timeout. So the
// server does not know whether the URL is allowed. It is the same for all names.
var ErrLookup = errors.New("egress: the host name could not be looked up")

// checkAddr checks the address of a connection. Without TLS, only allowed networks are
// reachable.
func (g *Guard) checkAddr(plain bool, to netip.AddrPort) error {
	switch {
	case slices.ContainsFunc(g.options.Allow, func(n Network) bool { return n.contains(to) }):
		return nil
	case g.public.SafeAddr(to.Addr()) != nil:
		return errAddr
	case plain:
		return errPlain
	case !slices.Contains(Ports, to.Port()):
		return errPort
	default:
		return nil
	}
}

// Client returns a client whose connections are all checked. It follows no redirect, uses
// no proxy of the environment, and ends a request after the timeout. The error of a
// request that is not allowed wraps a [RefusedError].
func (g *Guard) Client(timeout time.Duration) *http.Client {
	return &http.Client{Transport: g.transport(timeout), Timeout: timeout}
}

// Direct is a transport for clients that follow no redirect and switch no protocol. It deletes
// Location, because a client would reject a response with an invalid one before it asks CheckRedirect.
type Direct struct{ http.RoundTripper }

// RoundTrip sends a request.
func (t Direct) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	response.Header.Del("Location")
	if response.StatusCode == http.StatusSwitchingProtocols {
		// The body is the connection, and neither a context nor a timeout ends a read from it.
		_ = response.Body.Close()
		response.Body = http.NoBody
	}
	return response, nil
}

// Connect opens a connection to the host of a URL as a request does, with TLS if the URL has it,
// and closes it. With a proxy, it connects only to the proxy.
func (g *Guard) Connect(ctx context.Context, text string) error {
	to, err := parse(text)
	if err == nil {
		err = g.checkTarget(to)
	}
	if err != nil {
		return err
	}
	made, address := g.transport(connectTimeout).http, net.JoinHostPort(to.host, strconv.Itoa(int(to.port)))
	dial := made.DialTLSContext
	if to.plain {
		dial = made.DialContext
	}
	if proxy := g.options.Proxy; proxy != nil {
		dial, address = made.DialContext, net.JoinHostPort(proxy.Hostname(), cmp.Or(proxy.Port(), map[string]string{"http": "80", "https": "443"}[proxy.Scheme]))
	}
	conn, err := dial(withPlain(ctx, to.plain), "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// transport checks the URL of each request, and the address of each connection.
type transport struct {
	guard *Guard
	http  *http.Transport
}

// RoundTrip sends a request.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	to, err := parse(request.URL.String())
	if err == nil {
		err = t.guard.checkTarget(to)
	}
	if err != nil {
		if request.Body != nil {
			_ = request.Body.Close() // as RoundTripper requires
		}
		return nil, err
	}
	return Direct{t.http}.RoundTrip(request.WithContext(withPlain(request.Context(), to.plain)))
}

// CloseIdleConnections closes the connections that no request uses.
func (t *transport) CloseIdleConnections() { t.http.CloseIdleConnections() }

// transport returns a transport. The timeout limits each part of connecting. It speaks HTTP/1.1 only,
// because net/http reads without end what a server sends over HTTP/2 between responses.
func (g *Guard) transport(timeout time.Duration) *transport {
	dialer := &net.Dialer{Timeout: timeout, Resolver: g.options.Resolver}
	made := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := g.connect(ctx, dialer, network, address)
			if err != nil {
				return nil, err
			}
			return &patient{conn, timeout}, nil
		},
		TLSClientConfig:        &tls.Config{RootCAs: g.options.RootCAs, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}},
		TLSHandshakeTimeout:    timeout,
		DisableCompression:     true, // a small response must not become a large one
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    idlePerHost,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxResponseBytes,
	}
	made.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		return dialTLS(ctx, made, network, address)
	}
	if g.options.Proxy != nil {
		made.Proxy = http.ProxyURL(g.options.Proxy) // whose own address needs no check
		return &transport{g, made}
	}
	dialer.ControlContext = func(ctx context.Context, _, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return errAddr
		}
		plain, _ := ctx.Value(plainKey{}).(bool)
		return g.checkAddr(plain, netip.AddrPortFrom(to.Addr().Unmap(), to.Port()))
	}
	return &transport{g, made}
}

// plainKey is the key of whether a request has no TLS, in its context.
type plainKey struct{}

func withPlain(ctx context.Context, plain bool) context.Context {
	return context.WithValue(ctx, plainKey{}, plain)
}

// dialTLS connects with TLS, as net/http does without a proxy.
func dialTLS(ctx context.Context, by *http.Transport, network, address string) (net.Conn, error) {
	conn, err := by.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	config := by.TLSClientConfig.Clone()
	config.ServerName, _, _ = net.SplitHostPort(address)
	ctx, end := context.WithTimeout(ctx, by.TLSHandshakeTimeout)
	defer end()
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return abrupt{secure}, nil
}

// abrupt is a connection with TLS that closes at once. TLS would first send a message, and wait for
// a server that reads nothing. Meanwhile net/http can hold a lock that all requests need.
type abrupt struct{ *tls.Conn }

// Close closes the connection.
func (c abrupt) Close() error { return c.NetConn().Close() }

// patient is a connection whose writes end, although a server reads nothing. Through a proxy, TLS
// waits for them before it closes.
type patient struct {
	net.Conn

	patience time.Duration // of a write
}

// Write writes bytes.
func (c *patient) Write(bytes []byte) (int, error) {
	if err := c.Conn.SetWriteDeadline(time.Now().Add(c.patience)); err != nil {
		return 0, err
	}
	return c.Conn.Write(bytes)
}

// SetWriteDeadline shortens the patience. TLS calls it before its last message.
func (c *patient) SetWriteDeadline(time.Time) error {
	c.patience = goodbye
	return nil
}

// connect connects as the dialer does. A name that does not resolve and a name whose address is
// not allowed have the same error. A failed lookup has another.
func (g *Guard) connect(ctx context.Context, dialer *net.Dialer, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if _, isName := netip.ParseAddr(host); err != nil || isName == nil || g.options.Proxy != nil {
		return dialer.DialContext(ctx, network, address)
	}
	conn, err := dialer.DialContext(ctx, network, net.JoinHostPort(g.lookedUp(host), port))
	lookup, failed := errors.AsType[*net.DNSError](err)
	switch {
	case failed && !lookup.IsNotFound:
		err = ErrLookup
	case failed || errors.Is(err, errAddr):
		err = errName
	}
	return conn, err
}

// internalDomains are top-level domains of internal networks that the public DNS does not
// have. They come from RFC 2606, 6761, 6762 (with appendix G), 7686, 8375 and 9476, from
// ICANN's reserved names, and from clusters, containers and routers.
var internalDomains = []string{
	"alt", "arpa", "corp", "example", "home", "internal", "intranet", "invalid", "lan", "local", "localhost", "mail", "onion", "private", "test",
	"cluster", "consul", "docker", "intra", "k8s", "kube", "kubernetes", "localdomain", "lxd", "mesos", "nomad", "podman", "rancher", "svc", "swarm",
	"dhcp", "domain", "priv", "router", "workgroup",
}

// isInternalName reports whether a name belongs to an internal network by its form: one
// label, or one of the internalDomains.
func isInternalName(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	last := host[strings.LastIndexByte(host, '.')+1:]
	return last == host || slices.Contains(internalDomains, last)
}
