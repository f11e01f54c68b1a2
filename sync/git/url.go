package git

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/transport"
)

// scpLike is the short SSH form user@host:path (git-clone(1), "GIT URLS").
var scpLike = regexp.MustCompile(`^(?:[A-Za-z0-9._-]+@)?[A-Za-z0-9.-]+:[^:/\\][^:]*$`)

// parseURL gives the endpoint of a repository URL. http, https and ssh are accepted, and local paths when the
// configuration allows them. Credentials in a URL end up in logs and process lists, so they are refused; other
// transports ("ext::", "git://") run commands or are not authenticated.
func parseURL(raw string, allowLocal bool) (*transport.Endpoint, error) {
	op := "read repository URL"
	refuse := func(format string, args ...any) (*transport.Endpoint, error) {
		return nil, failAs(op, ClassConfig, fmt.Errorf(format, args...))
	}
	if raw == "" {
		return refuse("is empty")
	}
	if strings.ContainsAny(raw, "\x00\n\r") || strings.HasPrefix(raw, "-") {
		return refuse("has characters that no URL has")
	}
	if strings.Contains(raw, "::") && !strings.Contains(raw, "://") {
		return refuse("remote helpers (%q) are not supported", clip(raw[:strings.Index(raw, "::")], 20)+"::")
	}
	if !strings.Contains(raw, "://") {
		if scpLike.MatchString(raw) && !filepath.IsAbs(raw) {
			return transport.NewEndpoint(raw)
		}
		return localEndpoint(raw, allowLocal)
	}
	u, err := url.Parse(raw)
	if err != nil {
		// url.Error repeats the URL, credentials included.
		return refuse("is not a URL")
	}
	if _, hasPassword := u.User.Password(); hasPassword || (u.User != nil && u.Scheme != "ssh") {
		return refuse("must not hold credentials; use a token file or an SSH key")
	}
	switch u.Scheme {
	case "http", "https", "ssh":
		if u.Hostname() == "" {
			return refuse("has no host")
		}
		if u.RawQuery != "" || u.Fragment != "" {
			return refuse("must not have a query or fragment")
		}
		return transport.NewEndpoint(u.String())
	case "file":
		return localEndpoint(u.Path, allowLocal)
	}
	return refuse("scheme %q is not supported; use https, ssh or http", u.Scheme)
}

func localEndpoint(path string, allow bool) (*transport.Endpoint, error) {
	if !allow {
		return nil, failAs("read repository URL", ClassConfig, errors.New("is a local path, which is not allowed here"))
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, failAs("read repository URL", ClassConfig, err)
	}
	return &transport.Endpoint{Protocol: "file", Path: abs}, nil
}

// isLoopback tells whether a host is this machine, so that plain http can't be overheard.
func isLoopback(host string) bool {
	host = strings.Trim(host, "[]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
