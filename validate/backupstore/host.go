package backupstore

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

var (
	errNoHost = errors.New("spec.s3.endpoint names no host")
	errLong   = fmt.Errorf("spec.s3.endpoint is longer than %d bytes", maxEndpoint)
)

// maxEndpoint in bytes: a host has at most 253, and mapping a long one costs the square of its length.
const maxEndpoint = 2048

// storeHost takes the host out of an endpoint as the S3 client does (a URL, else host[:port] with https put in front),
// in the form in which it is dialled: lower case, IDN and full-width forms mapped as Go's HTTP client maps them, no
// trailing dots, no zone, no brackets.
func storeHost(endpoint string) (string, error) {
	s := strings.TrimSpace(endpoint)
	if s == "" {
		return "", errNoHost
	}
	if len(s) > maxEndpoint {
		return "", errLong
	}
	if i := strings.Index(s, "://"); i < 0 || strings.ContainsAny(s[:i], "/?#") {
		s = "https://" + bareIPv6(strings.TrimPrefix(s, "//"))
	}
	u, err := url.Parse(s)
	if err != nil {
		return "", fmt.Errorf("spec.s3.endpoint is neither a URL nor host[:port]: %w", cause(err))
	}
	if scheme := strings.ToLower(u.Scheme); scheme != "http" && scheme != "https" {
		return "", fmt.Errorf("spec.s3.endpoint has the scheme %q: use https or http", u.Scheme)
	}
	host := canonicalName(u.Hostname())
	if host == "" {
		return "", errNoHost
	}
	if _, err := netip.ParseAddr(host); err != nil && strings.ContainsAny(host, ":[] \t") {
		return "", fmt.Errorf("spec.s3.endpoint has the host %q, which is neither a name nor an address", host)
	}
	return host, nil
}

// bareIPv6 puts brackets around an IPv6 address that was written without: people mean the address, and reading it as
// host:port would let it pass as a name.
func bareIPv6(s string) string {
	rest := ""
	if i := strings.IndexAny(s, "/?#"); i >= 0 {
		s, rest = s[:i], s[i:]
	}
	if a, err := netip.ParseAddr(s); err == nil && a.Is6() {
		s = "[" + strings.ReplaceAll(s, "%", "%25") + "]"
	}
	return s + rest
}

// cause leaves the text of the URL out of the error: it may hold a password.
func cause(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// canonicalName lowers and maps a host as Go's HTTP client does before it dials.
func canonicalName(host string) string {
	if i := strings.IndexByte(host, '%'); i >= 0 && strings.Contains(host, ":") {
		host = host[:i] // the zone of a link-local IPv6 address
	}
	if !ascii(host) {
		if mapped, err := idna.Lookup.ToASCII(host); err == nil {
			host = mapped
		} else if mapped, err := lenient.ToASCII(host); err == nil {
			host = mapped
		}
	}
	return strings.TrimRight(strings.ToLower(strings.TrimSpace(host)), ".")
}

// lenient maps names that the strict profile refuses, so that a forbidden character does not hide where a name lies.
var lenient = idna.New(idna.MapForLookup(), idna.Transitional(false), idna.StrictDomainName(false))

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// hostAddrs gives the addresses that a host stands for: none where it is a name. An IPv6 address that carries an IPv4
// one (mapped, compatible, NAT64 with the well-known prefix, 6to4) stands for both.
func hostAddrs(host string) []netip.Addr {
	if a, err := netip.ParseAddr(host); err == nil {
		a = a.WithZone("").Unmap()
		if v4, ok := embedded(a); ok {
			return []netip.Addr{a, v4}
		}
		return []netip.Addr{a}
	}
	var out []netip.Addr
	if a, ok := inetAton(host); ok {
		out = append(out, a)
	}
	if a, ok := zeroPadded(host); ok {
		out = append(out, a)
	}
	return out
}

// zeroPadded reads 010.096.000.001 as people mean it; resolvers read such parts as octal, or not at all.
func zeroPadded(host string) (netip.Addr, bool) {
	parts := strings.Split(host, ".")
	if len(parts) != 4 {
		return netip.Addr{}, false
	}
	for i, p := range parts {
		if parts[i] = strings.TrimLeft(p, "0"); parts[i] == "" && p != "" {
			parts[i] = "0"
		}
	}
	a, err := netip.ParseAddr(strings.Join(parts, "."))
	return a, err == nil
}

var (
	nat64  = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052
	sixTo4 = netip.MustParsePrefix("2002::/16")    // RFC 3056
	compat = netip.MustParsePrefix("::/96")        // RFC 4291, deprecated
)

// embedded gives the IPv4 address that an IPv6 address carries.
func embedded(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() {
		return netip.Addr{}, false
	}
	b := a.As16()
	switch {
	case nat64.Contains(a):
		return netip.AddrFrom4([4]byte(b[12:16])), true
	case sixTo4.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	case compat.Contains(a) && !a.IsLoopback() && !a.IsUnspecified():
		return netip.AddrFrom4([4]byte(b[12:16])), true
	}
	return netip.Addr{}, false
}

// inetAton reads what the C library's resolver takes for an IPv4 address: one to four parts, each decimal, octal (0…)
// or hexadecimal (0x…), the last filling what the others leave (inet_aton(3)). Go's HTTP client hands a host that it
// can't read as an address to that resolver.
func inetAton(host string) (netip.Addr, bool) {
	parts := strings.Split(host, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var v uint64
	for i, p := range parts {
		n, ok := atonPart(p)
		if !ok {
			return netip.Addr{}, false
		}
		if i < len(parts)-1 {
			if n > 255 {
				return netip.Addr{}, false
			}
			v |= n << (24 - 8*i)
			continue
		}
		if n >= 1<<(32-8*i) {
			return netip.Addr{}, false
		}
		v |= n
	}
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), true
}

func atonPart(p string) (uint64, bool) {
	base, digits := 10, p
	switch {
	case strings.HasPrefix(p, "0x"):
		base, digits = 16, p[2:]
	case len(p) > 1 && p[0] == '0':
		base, digits = 8, p[1:]
	}
	if digits == "" || strings.ContainsAny(digits, "+-_") {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, base, 64)
	return n, err == nil && n < 1<<32
}
