package git

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/go-git/go-git/v5/plumbing/transport"
	gitfile "github.com/go-git/go-git/v5/plumbing/transport/file"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
)

var errRedirect = errors.New("server redirects to another host")

// remote speaks the Git protocol with one repository. It uses go-git's sessions rather than its Remote: there the
// old hash of a push is ours to say (a true compare-and-swap, where Remote.Push has forms that overwrite, facts 3.2),
// and a pack can be looked at before it is inflated.
type remote struct {
	ep      *transport.Endpoint
	client  transport.Transport
	auth    Auth
	timeout time.Duration
	guard   func(ctx context.Context) error
}

// allowed asks the guard whether to talk to the server at all.
func (r *remote) allowed(ctx context.Context) error {
	if r.guard == nil {
		return nil
	}
	if err := r.guard(ctx); err != nil {
		return failAs("reach the repository", ClassReplaced, err)
	}
	return nil
}

func newRemote(o Options, auth Auth) (*remote, error) {
	ep, err := parseURL(o.URL, o.AllowLocal)
	if err != nil {
		return nil, err
	}
	r := &remote{ep: ep, auth: auth, timeout: o.Timeout, guard: o.Guard}
	switch ep.Protocol {
	case "file":
		r.client = gitfile.DefaultClient
	case "ssh":
		r.client = gitssh.NewClient(nil)
		ep.Proxy = transport.ProxyOptions{URL: o.ProxyURL}
	default:
		if ep.Protocol == "http" && auth.http() && !isLoopback(ep.Host) && !o.AllowPlainHTTPAuth {
			return nil, failAs("read repository URL", ClassConfig,
				errors.New("a credential would be sent over plain http; use https, or allow it in the configuration"))
		}
		hc, err := httpClient(o)
		if err != nil {
			return nil, err
		}
		r.client = githttp.NewClient(hc)
	}
	return r, nil
}

// httpClient trusts the system's CAs and the configured one, uses the configured proxy or the environment's, and
// follows redirects on the same host only: a credential must not travel.
func httpClient(o Options) (*http.Client, error) {
	tr := http.DefaultTransport.(*http.Transport).Clone()
	tr.ResponseHeaderTimeout = o.Timeout
	tr.MaxIdleConnsPerHost = 2
	if o.ProxyURL != "" {
		u, err := url.Parse(o.ProxyURL)
		if err != nil {
			return nil, failAs("read proxy URL", ClassConfig, errors.New("is not a URL"))
		}
		tr.Proxy = http.ProxyURL(u)
	}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, failAs("read CA file", ClassConfig, err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, failAs("read CA file", ClassConfig, fmt.Errorf("%s holds no certificate", o.CAFile))
		}
		tr.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: tr, CheckRedirect: sameHost}, nil
}

func sameHost(req *http.Request, via []*http.Request) error {
	if from := via[0].URL; !strings.EqualFold(from.Host, req.URL.Host) {
		return fmt.Errorf("%w: from %s to %s", errRedirect, from.Host, req.URL.Host)
	}
	return nil
}

func sshAddress(ep *transport.Endpoint) string {
	port := ep.Port
	if port <= 0 {
		port = gitssh.DefaultPort
	}
	return net.JoinHostPort(ep.Host, strconv.Itoa(port))
}

// await runs fn, but not longer than ctx: dialling over SSH and starting a helper don't look at the context.
func await(ctx context.Context, fn func() error) error {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// advert is what a server says it has.
type advert struct {
	refs map[string]plumbing.Hash
	caps *capability.List
	// head is the branch HEAD points to, without refs/heads/, "" when unknown.
	head string
}

// heads by branch name.
func (a *advert) heads() map[string]string {
	out := map[string]string{}
	for name, h := range a.refs {
		if b, ok := strings.CutPrefix(name, "refs/heads/"); ok {
			out[b] = h.String()
		}
	}
	return out
}

func newAdvert(ar *packp.AdvRefs) (*advert, error) {
	a := &advert{refs: ar.References, caps: ar.Capabilities}
	for _, f := range ar.Capabilities.Get("object-format") {
		if f != "sha1" {
			return nil, failAs("read refs", ClassUnsupported, fmt.Errorf("object-format=%s is not supported", f))
		}
	}
	for _, s := range ar.Capabilities.Get(capability.SymRef) {
		if to, ok := strings.CutPrefix(s, "HEAD:refs/heads/"); ok {
			a.head = to
		}
	}
	return a, nil
}

// upload opens a fetch session, reads the advertisement and hands both to fn.
func (r *remote) upload(ctx context.Context, fn func(context.Context, transport.UploadPackSession, *advert) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	if err := r.allowed(ctx); err != nil {
		return err
	}
	auth, err := r.auth.method(ctx, r.ep)
	if err != nil {
		return err
	}
	return await(ctx, func() error {
		ep := *r.ep // a redirect changes the session's endpoint
		s, err := r.client.NewUploadPackSession(&ep, auth)
		if err != nil {
			return err
		}
		defer s.Close() //nolint:errcheck // what matters was read
		ar, err := s.AdvertisedReferencesContext(ctx)
		if err != nil {
			return err
		}
		a, err := newAdvert(ar)
		if err != nil {
			return err
		}
		return fn(ctx, s, a)
	})
}

// list asks for the refs only.
func (r *remote) list(ctx context.Context) (*advert, error) {
	var out *advert
	err := r.upload(ctx, func(_ context.Context, _ transport.UploadPackSession, a *advert) error {
		out = a
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// fetch asks for what choose wants, and writes the pack to dst (at most limit bytes). No wants, no pack.
func (r *remote) fetch(ctx context.Context, choose func(*advert) (wants, haves []plumbing.Hash, err error),
	dst io.Writer, limit int64,
) error {
	return r.upload(ctx, func(ctx context.Context, s transport.UploadPackSession, a *advert) error {
		wants, haves, err := choose(a)
		if err != nil || len(wants) == 0 {
			return err
		}
		req := packp.NewUploadPackRequestFromCapabilities(a.caps)
		if a.caps.Supports(capability.NoProgress) {
			_ = req.Capabilities.Set(capability.NoProgress)
		}
		req.Wants, req.Haves = wants, haves
		resp, err := s.UploadPack(ctx, req)
		if err != nil {
			return err
		}
		defer resp.Close() //nolint:errcheck // what matters was read
		var src io.Reader = resp
		switch {
		case req.Capabilities.Supports(capability.Sideband64k):
			src = sideband.NewDemuxer(sideband.Sideband64k, resp)
		case req.Capabilities.Supports(capability.Sideband):
			src = sideband.NewDemuxer(sideband.Sideband, resp)
		}
		n, err := io.Copy(dst, io.LimitReader(src, limit+1))
		if err == nil && n > limit {
			err = fmt.Errorf("%w: pack is larger than %d bytes", errLimits, limit)
		}
		return err
	})
}

// push asks the server to move ref from old (zero: absent) to new, with the objects in pack. The server itself
// compares old. The text is what the server said, for people. An error says nothing about the outcome: list the ref.
func (r *remote) push(ctx context.Context, ref plumbing.ReferenceName, old, to plumbing.Hash, pack io.Reader) (text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	if err := r.allowed(ctx); err != nil {
		return "", err
	}
	auth, err := r.auth.method(ctx, r.ep)
	if err != nil {
		return "", err
	}
	said := &boundedText{max: 2000}
	err = await(ctx, func() error {
		ep := *r.ep
		s, err := r.client.NewReceivePackSession(&ep, auth)
		if err != nil {
			return err
		}
		defer s.Close() //nolint:errcheck // the report was read
		ar, err := s.AdvertisedReferencesContext(ctx)
		if err != nil {
			return err
		}
		if at := ar.References[ref.String()]; at != old {
			return fmt.Errorf("%w: %s is at %s, not at %s", ErrMoved, ref, at, old)
		}
		req := packp.NewReferenceUpdateRequestFromCapabilities(ar.Capabilities)
		if ar.Capabilities.Supports(capability.Sideband64k) {
			_ = req.Capabilities.Set(capability.Sideband64k)
			req.Progress = said
		}
		req.Commands = []*packp.Command{{Name: ref, Old: old, New: to}}
		req.Packfile = io.NopCloser(pack)
		_, err = s.ReceivePack(ctx, req)
		return err
	})
	return said.String(), err
}

// boundedText keeps the first max bytes of what a server says.
type boundedText struct {
	max int
	mu  sync.Mutex
	b   strings.Builder
}

func (t *boundedText) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if room := t.max - t.b.Len(); room > 0 {
		t.b.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (t *boundedText) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return clip(t.b.String(), 300)
}
