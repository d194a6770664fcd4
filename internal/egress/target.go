package egress

import (
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// MaxURLLength is the maximum number of characters of a URL.
const MaxURLLength = 2000

// target is where a URL leads.
type target struct {
	plain bool // without TLS
	host  string
	addr  netip.Addr // of a host that is an address
	port  uint16
}

// hostPattern matches a name in the DNS. A client writes other names in Punycode.
var hostPattern = regexp.MustCompile(`^([0-9A-Za-z_]([0-9A-Za-z_-]{0,61}[0-9A-Za-z_])?\.)*[0-9A-Za-z_]([0-9A-Za-z_-]{0,61}[0-9A-Za-z_])?\.?$`)

// numberPattern matches a last label that some resolvers read as a number of an IPv4
// address, such as 127.1 and 0x7f000001.
var numberPattern = regexp.MustCompile(`(^|\.)([0-9]+|0[xX][0-9A-Fa-f]*)\.?$`)

const maxHostLength = 253

// parse reads a URL. The error is a [RefusedError].
func parse(text string) (target, error) {
	u, err := url.Parse(text)
	switch {
	case len(text) > MaxURLLength:
		return target{}, malformed(fmt.Sprintf("must have at most %d characters.", MaxURLLength))
	case err != nil || u.Scheme == "" || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }):
		return target{}, malformed("must be an absolute URL in ASCII, such as https://example.com/webhooks.")
	case u.Scheme != "https" && u.Scheme != "http":
		return target{}, errPlain
	case u.User != nil:
		return target{}, refuse("must not have a user name or password.")
	case u.Fragment != "" || strings.HasSuffix(text, "#"):
		return target{}, refuse("must not have a fragment.")
	}
	t := target{plain: u.Scheme == "http", host: u.Hostname(), port: 443}
	if t.plain {
		t.port = 80
	}
	if text := u.Port(); text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return target{}, errPort
		}
		t.port = uint16(port)
	}
	t.addr, err = netip.ParseAddr(t.host)
	switch {
	case err == nil && t.addr.Zone() != "":
		return target{}, errAddr
	case err == nil:
		t.addr = t.addr.Unmap()
		return t, nil
	case len(t.host) > maxHostLength || !hostPattern.MatchString(t.host) || strings.HasSuffix(u.Host, ":"):
		return target{}, malformed("must have a valid host. Write a name that is not ASCII in Punycode.")
	case numberPattern.MatchString(t.host):
		return target{}, malformed("must have an IPv4 address of four decimal numbers, or a name.")
	default:
		return t, nil
	}
}

// Network is a network that URLs may have although its addresses are not public, with
// https or http.
type Network struct {
	prefix netip.Prefix
	port   uint16 // 0: all
}

// Loopback lists the networks of the machine itself.
var Loopback = []Network{{prefix: netip.MustParsePrefix("127.0.0.0/8")}, {prefix: netip.MustParsePrefix("::1/128")}}

// ParseNetwork reads an address or a network in CIDR notation, and an optional port:
// 10.1.0.0/16, 10.1.2.3:8080 or [fd00::/8]:8080. Without a port, all ports are allowed.
func ParseNetwork(text string) (Network, error) {
	host, port := text, ""
	if rest, bracketed := strings.CutPrefix(text, "["); bracketed {
		var closed bool
		if host, port, closed = strings.Cut(rest, "]"); !closed || !strings.Contains(host, ":") || (port != "" && !strings.HasPrefix(port, ":")) {
			return Network{}, errNetwork(text)
		}
	} else if strings.Count(text, ":") == 1 {
		host, port, _ = strings.Cut(text, ":")
		port = ":" + port
	}
	n := Network{}
	if port != "" {
		number, err := strconv.ParseUint(port[1:], 10, 16)
		if err != nil || number == 0 {
			return Network{}, errNetwork(text)
		}
		n.port = uint16(number)
	}
	if addr, err := netip.ParseAddr(host); err == nil && addr.Zone() == "" {
		n.prefix = netip.PrefixFrom(addr, addr.BitLen())
		return n, nil
	}
	var err error
	if n.prefix, err = netip.ParsePrefix(host); err != nil || n.prefix != n.prefix.Masked() {
		return Network{}, errNetwork(text)
	}
	return n, nil
}

func errNetwork(text string) error {
	return fmt.Errorf("egress: %q is not a network with an optional port, such as 10.1.0.0/16 or 10.1.2.3:8080", text)
}

// contains reports whether an address is in the network.
func (n Network) contains(to netip.AddrPort) bool {
	return n.prefix.Contains(to.Addr()) && (n.port == 0 || n.port == to.Port())
}
