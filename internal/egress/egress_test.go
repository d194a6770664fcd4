package egress_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"petstore/internal/egress"
	"petstore/internal/tools/need"
)

// forbidden are URLs that no webhook may have, by what they reach.
var forbidden = map[string]string{
	"loopback":                        "https://127.0.0.1/hook",
	"another loopback address":        "https://127.8.9.10:8443/hook",
	"loopback over IPv6":              "https://[::1]/hook",
	"IPv4 loopback in IPv6":           "https://[::ffff:127.0.0.1]/hook",
	"IPv4 loopback in hexadecimal":    "https://[::ffff:7f00:1]/hook",
	"IPv4 loopback through NAT64":     "https://[64:ff9b::7f00:1]/hook",
	"IPv4 loopback through 6to4":      "https://[2002:7f00:1::]/hook",
	"loopback as one number":          "https://2130706433/hook",
	"loopback in hexadecimal":         "https://0x7f000001/hook",
	"loopback in octal":               "https://0177.0.0.1/hook",
	"loopback in short":               "https://127.1/hook",
	"the unspecified address":         "https://0.0.0.0/hook",
	"the unspecified IPv6 address":    "https://[::]/hook",
	"a private network, class A":      "https://10.0.0.1/hook",
	"a private network, class B":      "https://172.16.0.1/hook",
	"a private network, class C":      "https://192.168.1.1/hook",
	"a carrier's network":             "https://100.64.0.1/hook",
	"the metadata service of a cloud": "https://169.254.169.254/latest/meta-data/",
	"the metadata service over IPv6":  "https://[fd00:ec2::254]/latest/meta-data/",
	"a link-local IPv6 address":       "https://[fe80::1]/hook",
	"an IPv6 address with a zone":     "https://[fe80::1%25lo]/hook",
	"a unique local IPv6 address":     "https://[fd12:3456::1]/hook",
	"a multicast address":             "https://224.0.0.1/hook",
	"the broadcast address":           "https://255.255.255.255/hook",
	"a network for documentation":     "https://192.0.2.1/hook",
	"localhost":                       "https://localhost/hook",
	"localhost with a dot":            "https://LocalHost./hook",
	"a name without a domain":         "https://postgres/hook",
	"an internal name":                "https://metadata.google.internal/computeMetadata/v1/",
	"a name of a cluster":             "https://petstore.default.svc.cluster.local/hook",
	"a name in capitals":              "https://Petstore.Default.SVC.Cluster.LOCAL./hook",
	"a name of a home network":        "https://nas.home.arpa/hook",
	"a service of Kubernetes":         "https://petstore.default.svc/hook",
	"a service of Consul":             "https://postgres.service.consul/hook",
	"a name of a cluster by itself":   "https://petstore.cluster/hook",
	"a container":                     "https://db.docker/hook",
	"a name of Tor":                   "https://expyuzz4wqqyqhjn.onion/hook",
	"a reverse name":                  "https://1.0.0.10.in-addr.arpa/hook",
	"no TLS":                          "http://93.184.216.34/hook",
	"no TLS at a name":                "http://example.com/hook",
	"the port of SSH":                 "https://93.184.216.34:22/hook",
	"the port of Postgres at a name":  "https://example.com:5432/hook",
	"port 0":                          "https://example.com:0/hook",
	"another scheme":                  "ftp://example.com/hook",
	"a file":                          "file:///etc/passwd",
	"gopher":                          "gopher://example.com:443/_GET",
	"a user name":                     "https://example.com@127.0.0.1/hook",
	"a user name before a public one": "https://127.0.0.1@example.com/hook",
	"no host":                         "https:///hook",
	"no scheme":                       "example.com/hook",
	"a backslash":                     `https://example.com\@127.0.0.1/hook`,
	"a line feed":                     "https://example.com/\r\nHost: x",
	"a host that is not ASCII":        "https://ex\u00e4mple.com/hook",
	"full-width digits":               "https://\uff11\uff12\uff17.0.0.1/hook",
	"percent-encoded digits":          "https://%31%32%37.0.0.1/hook",
	"a fragment":                      "https://example.com/hook#x",
	"a long URL":                      "https://example.com/" + strings.Repeat("x", 2000),
}

func TestForbiddenTargets(t *testing.T) {
	t.Parallel()
	guard := egress.New(egress.Options{Resolver: newDNS(t, nil).resolver})
	client := guard.Client(5 * time.Second)
	for what, text := range forbidden {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			wantRefused(t, guard.Check(text))
			wantRefused(t, guard.Connect(t.Context(), text))
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, text, strings.NewReader("{}"))
			if err != nil {
				return // net/http cannot even make a request of it
			}
			response, err := client.Do(request)
			if err == nil {
				response.Body.Close()
			}
			wantRefused(t, err)
		})
	}
}

func TestAllowedTargets(t *testing.T) {
	t.Parallel()
	dns := newDNS(t, nil)
	guard := egress.New(egress.Options{Resolver: dns.resolver})
	for _, text := range []string{
		"https://93.184.216.34/hook", "https://93.184.216.34:8443", "https://[2606:2800:220:1:248:1893:25c8:1946]:443/hook", "https://example.com:443/hook?x=%20",
		"HTTPS://Example.COM./", "https://xn--exmple-cua.com/", "https://unknown.example.com/hook", "https://a_b.example.com/hook",
		"https://svc.example.com/hook", "https://consul.io/hook", "https://hooks.dev/", "https://hooks.cloud/", "https://hooks.network/", "https://hooks.services/", "https://fritz.box/",
	} {
		if err := guard.Check(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	if names := dns.names(); len(names) > 0 {
		t.Errorf("%s were looked up", names)
	}
}

// TestNamesOfForbiddenAddresses: a client cannot find out which names exist that are not
// public. Each is allowed when the URL is stored. At a connection, a name with a private
// address, a name without one and a name that does not exist have the same error.
func TestNamesOfForbiddenAddresses(t *testing.T) {
	t.Parallel()
	sink := newSink(t)
	dns := newDNS(t, map[string][]string{
		"private.example.com.": {"10.0.0.1"}, "loopback.example.com.": {"127.0.0.1"}, "two.example.com.": {"10.0.0.1", "127.0.0.1"}, "empty.example.com.": {},
	})
	// The port of the sink is allowed elsewhere, so that only the address is wrong.
	guard := egress.New(egress.Options{Resolver: dns.resolver, Allow: networks(t, "198.51.100.0/24:"+sink.port)})
	errs := map[string]bool{}
	for _, name := range []string{"private", "loopback", "two", "empty", "missing"} {
		for _, scheme := range []string{"https", "http"} {
			url := fmt.Sprintf("%s://%s.example.com:%s/hook", scheme, name, sink.port)
			if err := guard.Check(url); err != nil {
				t.Error(err)
			}
			for _, err := range []error{post(t, guard, url), guard.Connect(t.Context(), url)} {
				refused, is := errors.AsType[*egress.RefusedError](err)
				if !is {
					t.Fatalf("%s is not refused: %v", url, err)
				}
				errs[refused.Reason] = true
			}
		}
	}
	if len(errs) != 1 {
		t.Errorf("errors %v, want one", errs)
	}
	if made := sink.connections.Load(); made > 0 {
		t.Errorf("%d connections to a forbidden address", made)
	}
}

// TestFailedLookups: if the DNS fails, the URL is not at fault, so it is not refused. All
// names have the same error, which has no address.
func TestFailedLookups(t *testing.T) {
	t.Parallel()
	dials := func(err error) *net.Resolver {
		return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, err }}
	}
	for what, resolver := range map[string]*net.Resolver{
		"an error of the server": newDNS(t, nil).resolver, "a timeout": dials(os.ErrDeadlineExceeded), "no server": dials(syscall.ECONNREFUSED),
	} {
		for _, name := range []string{"broken.example.com", "broken.prod"} {
			err := post(t, egress.New(egress.Options{Resolver: resolver}), "https://"+name+"/hook")
			if _, refused := errors.AsType[*egress.RefusedError](err); refused || !errors.Is(err, egress.ErrLookup) {
				t.Errorf("%s at %s: %v", what, name, err)
			}
		}
	}
}

// TestInternalNames: a client cannot find out which names an internal network has. Those
// that exist and those that do not have the same error, without a lookup.
func TestInternalNames(t *testing.T) {
	t.Parallel()
	proxy := need.Value(url.Parse("http://127.0.0.1:9"))(t)
	for what, options := range map[string]egress.Options{"directly": {}, "with a proxy": {Proxy: proxy}, "with an allowed port": {Allow: networks(t, "127.0.0.1:8080")}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dns := newDNS(t, map[string][]string{"db.prod.svc.cluster.local.": {"10.0.0.7"}, "postgres.": {"10.0.0.7"}, "public.internal.": {"93.184.216.34"}})
			options.Resolver = dns.resolver
			guard := egress.New(options)
			errs := map[string]bool{}
			for _, host := range []string{"db.prod.svc.cluster.local", "db2.prod.svc.cluster.local", "postgres", "postgres2", "public.internal", "localhost"} {
				checked, posted := guard.Check("https://"+host+"/hook"), post(t, guard, "https://"+host+"/hook")
				wantRefused(t, checked)
				wantRefused(t, posted)
				errs[checked.Error()] = true
			}
			if names := dns.names(); len(errs) != 1 || len(names) > 0 {
				t.Errorf("%s were looked up; errors %v", names, errs)
			}
		})
	}
	// An operator who allows a network allows its names, and no others.
	dns := newDNS(t, map[string][]string{"hook.internal.": {"10.0.0.7"}, "db.internal.": {"10.1.0.7"}, "www.example.com.": {"93.184.216.34"}})
	guard := egress.New(egress.Options{Resolver: dns.resolver, Allow: networks(t, "10.0.0.0/24")})
	if err := guard.Check("http://hook.internal:3000/"); err != nil {
		t.Error(err)
	}
	// A public name still needs https, and the error says so.
	if err := post(t, guard, "http://www.example.com/"); err == nil || !strings.Contains(err.Error(), "https") {
		t.Errorf("no TLS at a public name: %v", err)
	}
	var other, missing *egress.RefusedError
	if !errors.As(post(t, guard, "https://db.internal/"), &other) || !errors.As(post(t, guard, "https://nothing.internal/"), &missing) || *other != *missing {
		t.Errorf("a name with another address: %v; a name without one: %v", other, missing)
	}
}

// TestSearchDomains: the search domains of the machine are not added to a name.
func TestSearchDomains(t *testing.T) {
	t.Parallel()
	dns := newDNS(t, nil)
	guard := egress.New(egress.Options{Resolver: dns.resolver})
	wantRefused(t, post(t, guard, "https://db.prod/hook"))
	if names := dns.names(); len(names) == 0 {
		t.Error("the name was not looked up")
	}
	for _, name := range dns.names() {
		if name != "db.prod." {
			t.Errorf("%s was looked up", name)
		}
	}
}

// TestRebinding: a name that resolves to an allowed address at one connection, and to
// another loopback address at the next, reaches nothing there.
func TestRebinding(t *testing.T) {
	t.Parallel()
	sink := newSink(t)
	dns := newDNS(t, map[string][]string{"rebind.example.com.": {"127.0.0.1"}})
	guard := egress.New(egress.Options{Resolver: dns.resolver, Allow: networks(t, "127.0.0.1:"+sink.port)})
	text := "http://rebind.example.com:" + sink.port + "/hook"
	if err := post(t, guard, text); err != nil {
		t.Fatalf("before the rebinding: %v", err)
	}
	dns.set("rebind.example.com.", "127.0.0.2")
	wantRefused(t, post(t, guard, text))
}

// TestAllowedNetworks: an operator can allow networks, and then a plain connection, too.
func TestAllowedNetworks(t *testing.T) {
	t.Parallel()
	sink := newSink(t)
	dns := newDNS(t, map[string][]string{"hook.example.com.": {"127.0.0.1"}})
	target := "http://hook.example.com:" + sink.port
	for allow, allowed := range map[string]bool{
		"127.0.0.1": true, "127.0.0.0/8": true, "127.0.0.1:" + sink.port: true, "127.0.0.1:1": false, "127.0.0.2": false, "[::1]:" + sink.port: false, "10.0.0.0/8": false,
	} {
		guard := egress.New(egress.Options{Resolver: dns.resolver, Allow: networks(t, allow)})
		for what, err := range map[string]error{
			"checking a name": guard.Check(target), "posting to a name": post(t, guard, target),
			"connecting to a name": guard.Connect(t.Context(), target), "connecting to an address": guard.Connect(t.Context(), sink.URL),
			"checking an address": guard.Check(sink.URL), "posting to an address": post(t, guard, sink.URL),
		} {
			if allowed && err != nil {
				t.Errorf("%s with %s: %v", what, allow, err)
			}
			if !allowed && what != "checking a name" { // which looks up nothing
				wantRefused(t, err)
			}
		}
	}
}

// TestProxy: all requests go through the proxy, which resolves the names.
func TestProxy(t *testing.T) {
	t.Parallel()
	var asked atomic.Value
	proxy := need.Server(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.Method + " " + r.Host)
		w.WriteHeader(http.StatusForbidden)
	})
	address := need.Value(url.Parse(proxy.URL))(t)
	dns := newDNS(t, nil)
	guard := egress.New(egress.Options{Resolver: dns.resolver, Proxy: address, Allow: egress.Loopback})
	if err := guard.Check("https://hook.example.com/"); err != nil {
		t.Error(err)
	}
	if err := post(t, guard, "https://hook.example.com/"); err == nil {
		t.Error("the request succeeded, although the proxy refused it")
	}
	if err := guard.Connect(t.Context(), "https://hook.example.com/"); err != nil {
		t.Errorf("connecting to the proxy: %v", err)
	}
	if got := asked.Load(); got != "CONNECT hook.example.com:443" {
		t.Errorf("the proxy got %v", got)
	}
	asked.Store("nothing")
	for _, text := range []string{"https://10.0.0.1/", "http://hook.example.com/", "https://hook.example.com:22/", "https://localhost/", "https://metadata.google.internal/"} {
		wantRefused(t, guard.Check(text))
		wantRefused(t, post(t, guard, text))
	}
	if got := asked.Load(); got != "nothing" || len(dns.names()) > 0 {
		t.Errorf("the proxy got %v, and %s were looked up", got, dns.names())
	}
}

// TestEnvironmentProxy: a proxy of the environment would make the connections to it, so
// that the address of the target is not checked.
func TestEnvironmentProxy(t *testing.T) {
	sink := newSink(t)
	t.Setenv("HTTP_PROXY", sink.URL)
	t.Setenv("HTTPS_PROXY", sink.URL)
	// The address of the proxy is allowed, so that only the address of the target is wrong.
	guard := egress.New(egress.Options{Resolver: newDNS(t, map[string][]string{"hook.example.com.": {"10.0.0.1"}}).resolver, Allow: egress.Loopback})
	wantRefused(t, post(t, guard, "https://hook.example.com/"))
	if made := sink.connections.Load(); made > 0 {
		t.Errorf("%d connections to the proxy", made)
	}
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ErrorLog = nil
	t.Cleanup(server.Close)
	strict := egress.New(egress.Options{Allow: egress.Loopback})
	for _, err := range []error{post(t, strict, server.URL), strict.Connect(t.Context(), server.URL)} {
		if _, is := errors.AsType[*tls.CertificateVerificationError](err); !is {
			t.Errorf("a certificate of an unknown authority: %v", err)
		}
	}
	roots := server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	trusting := egress.New(egress.Options{Allow: egress.Loopback, RootCAs: roots})
	for _, err := range []error{post(t, trusting, server.URL), trusting.Connect(t.Context(), server.URL)} {
		if err != nil {
			t.Errorf("a valid certificate: %v", err)
		}
	}
}

// TestProtocol: a server that prefers HTTP/2 gets requests over HTTP/1.1.
func TestProtocol(t *testing.T) {
	t.Parallel()
	var proto atomic.Value
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		proto.Store(r.Proto + " " + r.TLS.NegotiatedProtocol)
	}))
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	guard := egress.New(egress.Options{Allow: egress.Loopback, RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs})
	if err := post(t, guard, server.URL); err != nil || proto.Load() != "HTTP/1.1 http/1.1" {
		t.Errorf("the server sees %v: %v", proto.Load(), err)
	}
}

func TestParseNetwork(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"10.1.0.0/16", "10.1.2.3", "10.1.2.3:8080", "10.1.0.0/16:8080", "fd00::/8", "::1", "[::1]", "[fd00::/8]:8080"} {
		if _, err := egress.ParseNetwork(text); err != nil {
			t.Error(err)
		}
	}
	for _, text := range []string{"", "x", "10.1.2.3/16", "10.1.0.0/33", "10.1.2.3:", "10.1.2.3:0", "10.1.2.3:65536", "10.1.2.3:x", "fe80::1%lo", "[::1", "[::1]x", "[10.1.2.3]:80", "example.com", ":80", "10.0.0.0/8 "} {
		if _, err := egress.ParseNetwork(text); err == nil {
			t.Errorf("%q was read as a network", text)
		}
	}
}

// wantRefused fails the test unless the error says that the URL is not allowed.
func wantRefused(t *testing.T, err error) {
	t.Helper()
	if _, refused := errors.AsType[*egress.RefusedError](err); !refused {
		t.Errorf("error %v, want a RefusedError", err)
	}
}

// networks reads networks.
func networks(t *testing.T, texts ...string) []egress.Network {
	t.Helper()
	var all []egress.Network
	for _, text := range texts {
		network := need.Value(egress.ParseNetwork(text))(t)
		all = append(all, network)
	}
	return all
}

// post sends a request and reads the response.
func post(t *testing.T, guard *egress.Guard, text string) error {
	t.Helper()
	request := need.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, text, strings.NewReader("{}")))(t)
	client := guard.Client(10 * time.Second)
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// sink is a server on the loopback interface that counts its connections.
type sink struct {
	*httptest.Server
	port        string
	connections atomic.Int64
}

func newSink(t *testing.T) *sink {
	t.Helper()
	s := &sink{Server: httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))}
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.connections.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	_, s.port, _ = net.SplitHostPort(s.Listener.Addr().String())
	return s
}

// dnsServer is a DNS server on the loopback interface (RFC 1035).
type dnsServer struct {
	resolver *net.Resolver

	mu      sync.Mutex
	records map[string][]string // IPv4 addresses by name, with a dot at the end
	asked   []string            // the names
}

// newDNS starts a DNS server. It fails to look up names like broken.example.com. Any other
// name does not exist.
func newDNS(t *testing.T, records map[string][]string) *dnsServer {
	t.Helper()
	listener, err := net.ListenPacket("udp", "127.0.0.1:0") //nolint:noctx // returns at once
	need.OK(t, err)
	t.Cleanup(func() { listener.Close() })
	s := &dnsServer{records: records}
	address := listener.LocalAddr().String()
	s.resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", address)
	}}
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := listener.ReadFrom(buffer)
			if err != nil {
				return
			}
			if response, err := s.reply(buffer[:n]); err != nil {
				t.Errorf("the DNS server: %v", err)
			} else {
				_, _ = listener.WriteTo(response, from)
			}
		}
	}()
	return s
}

// set replaces the records of a name.
func (s *dnsServer) set(name string, addresses ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records[name] = addresses
}

// names returns the names of the queries for IPv4 addresses.
func (s *dnsServer) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// reply returns the response to a query with one question.
func (s *dnsServer) reply(query []byte) ([]byte, error) {
	var message dnsmessage.Message
	if err := message.Unpack(query); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	question := message.Questions[0]
	name := question.Name.String()
	addresses, known := s.records[strings.ToLower(name)]
	response := dnsmessage.Message{Header: dnsmessage.Header{ID: message.ID, Response: true, RecursionDesired: true, RecursionAvailable: true}, Questions: message.Questions}
	switch {
	case strings.HasPrefix(name, "broken."):
		response.RCode = dnsmessage.RCodeServerFailure
	case !known:
		response.RCode = dnsmessage.RCodeNameError
	}
	if question.Type == dnsmessage.TypeA {
		s.asked = append(s.asked, name)
		for _, address := range addresses {
			header := dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET}
			response.Answers = append(response.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: netip.MustParseAddr(address).As4()}})
		}
	}
	return response.Pack()
}
