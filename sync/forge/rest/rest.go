// Package rest is the HTTP that the clients of all forges share: a credential for one host only, redirects that take none
// along, conditional requests, one call at a time, and limits that hold for every call once one was told of them.
package rest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/sync/forge"
)

// Options of New.
type Options struct {
	// Base is the API's address, with a slash at its end.
	Base   *url.URL
	Tokens Tokens
	// Anonymous: there is no credential, so plain http is no danger to it.
	Anonymous bool
	// Authorize puts the token into a request; nil is "Authorization: Bearer".
	Authorize func(r *http.Request, token string)
	// CAFile holds PEM certificates that are trusted beside the system's; ProxyURL "" is the environment's.
	CAFile, ProxyURL string
	// AllowPlainHTTPAuth sends a credential over plain http to a host that isn't this machine.
	AllowPlainHTTPAuth bool
	// Timeout of one request, default 30 s.
	Timeout time.Duration
}

// HTTP makes the client. It does not reach for the network.
func HTTP(o Options) (*http.Client, error) {
	if o.Timeout <= 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Base.Scheme == "http" && !loopback(o.Base.Hostname()) && !o.Anonymous && !o.AllowPlainHTTPAuth {
		return nil, errors.New("a credential would be sent over plain http; use https, or allow it in the configuration")
	}
	tr, err := Transport(o)
	if err != nil {
		return nil, err
	}
	if o.Authorize == nil {
		o.Authorize = func(r *http.Request, token string) { r.Header.Set("Authorization", "Bearer "+token) }
	}
	return &http.Client{
		Timeout: o.Timeout, CheckRedirect: SameHost,
		Transport: &authTransport{
			next: newETags(tr), host: o.Base.Host, scheme: o.Base.Scheme, tokens: o.Tokens, authorize: o.Authorize,
		},
	}, nil
}

// Transport trusts the given authorities and uses the given proxy. It adds no credential.
func Transport(o Options) (*http.Transport, error) {
	tr := http.DefaultTransport.(*http.Transport).Clone()
	tr.ResponseHeaderTimeout = o.Timeout
	if o.ProxyURL != "" {
		u, err := url.Parse(o.ProxyURL)
		if err != nil {
			return nil, errors.New("proxy address is not a URL")
		}
		tr.Proxy = http.ProxyURL(u)
	}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read CA file: %w", err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read CA file: %s holds no certificate", o.CAFile)
		}
		tr.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return tr, nil
}

// Address reads a forge's address: http or https, without credentials and query.
func Address(raw string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimRight(raw, "/") + "/")
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || u.User != nil || u.RawQuery != "" {
		return nil, errors.New("forge address must be an http or https URL without credentials")
	}
	return u, nil
}

// Turn lets one call out at a time, as forges advise, and none while a limit that one of them was told lasts.
type Turn struct {
	turn chan struct{}
	// limited is the last limit that was told. Guarded by turn.
	limited *forge.Error
}

// NewTurn makes one.
func NewTurn() *Turn { return &Turn{turn: make(chan struct{}, 1)} }

// Call runs fn when it is its turn. fault gives its error a kind.
func (t *Turn) Call(ctx context.Context, op string, fault func(op string, err error) error, fn func() error) error {
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return fault(op, ctx.Err())
	}
	if t.limited != nil && time.Now().Before(t.limited.Until) {
		return &forge.Error{Op: op, Kind: forge.KindRate, Until: t.limited.Until, Err: t.limited.Err}
	}
	err := fault(op, fn())
	t.limited = nil
	if e := (*forge.Error)(nil); errors.As(err, &e) && e.Kind == forge.KindRate {
		t.limited = e
	}
	return err
}

// minRatePause when a limit is told without a time (GitHub: "wait for at least one minute").
const minRatePause = time.Minute

// maxWait in seconds is believed of a Retry-After: more is a mistake.
const maxWait = 24 * 60 * 60

// soon bounds a time that a server names: one with a wrong clock must not silence Ichor for years.
func soon(at, now time.Time) time.Time {
	if last := now.Add(maxWait * time.Second); at.After(last) {
		return last
	}
	return at
}

// RetryAt reads Retry-After (seconds or a date), else RateLimit-Reset as GitHub and GitLab have it, else a minute from now. It
// is at least a second away; a time that is over (two clocks differ) is none.
func RetryAt(r *http.Response) time.Time {
	now := time.Now()
	if v := r.Header.Get("Retry-After"); v != "" {
		if n, err := strconv.Atoi(v); err == nil && n >= 0 {
			return now.Add(time.Duration(min(max(n, 1), maxWait)) * time.Second)
		}
		if t, err := http.ParseTime(v); err == nil && t.After(now) {
			return soon(t, now)
		}
	}
	for _, prefix := range []string{"X-RateLimit-", "RateLimit-"} {
		n, err := strconv.ParseInt(r.Header.Get(prefix+"Reset"), 10, 64)
		if at := time.Unix(n, 0); err == nil && at.After(now) && r.Header.Get(prefix+"Remaining") == "0" {
			return soon(at, now)
		}
	}
	return now.Add(minRatePause)
}

func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Untrusted tells whether the server did not prove who it is. That is no outage: it may be an attack.
func Untrusted(err error) bool {
	var (
		ua  x509.UnknownAuthorityError
		hn  x509.HostnameError
		inv x509.CertificateInvalidError
		ver *tls.CertificateVerificationError
	)
	return errors.As(err, &ua) || errors.As(err, &hn) || errors.As(err, &inv) || errors.As(err, &ver)
}
