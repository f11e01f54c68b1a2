package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"ichor.maesh.dev/ichor/e2e/lab/wire"
)

// Content types of patches.
const (
	mergePatch     = "application/merge-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
)

// apiError is an answer of the API server that is no success.
type apiError struct {
	Code    int    `json:"code"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Error implements error.
func (e *apiError) Error() string { return fmt.Sprintf("%d %s: %s", e.Code, e.Reason, e.Message) }

// answered says whether an error is the API server's answer with one of the codes.
func answered(err error, codes ...int) bool {
	e, ok := errors.AsType[*apiError](err)
	if !ok {
		return false
	}
	for _, c := range codes {
		if e.Code == c {
			return true
		}
	}
	return false
}

// client talks to a cluster's API servers as one user. The few calls that a kubelet makes are written out here: the lab
// and all that link it then do without client-go, whose packages take longer to build than the rest of the lab.
type client struct {
	http *http.Client
	tr   *http.Transport

	mu      sync.Mutex
	first   int // which endpoint is tried first
	watches map[*context.CancelFunc]struct{}
}

// newClient makes a client that connects from an address (of a node, so that the network's faults are its own) to the
// first of the endpoints that answers. TLS is checked for 127.0.0.1, as through Talos's KubePrism.
func newClient(from netip.Addr, endpoints func() []netip.AddrPort, ca []byte, cert *tls.Certificate, token string) *client {
	roots := stdx509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	c := &client{watches: map[*context.CancelFunc]struct{}{}}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: "127.0.0.1"}
	if cert != nil {
		conf.Certificates = []tls.Certificate{*cert}
	}
	d := wire.Dialer(from)
	d.Timeout = 2 * time.Second
	c.tr = &http.Transport{
		TLSClientConfig: conf, TLSHandshakeTimeout: 5 * time.Second, MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return c.dial(ctx, d, endpoints())
		},
	}
	c.http = &http.Client{Transport: bearer{c.tr, token}}
	return c
}

// bearer adds a token where there is one.
type bearer struct {
	next  http.RoundTripper
	token string
}

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.next.RoundTrip(r)
}

func (c *client) dial(ctx context.Context, d *net.Dialer, list []netip.AddrPort) (net.Conn, error) {
	if len(list) == 0 {
		return nil, errors.New("no control plane is known")
	}
	c.mu.Lock()
	first := c.first
	c.mu.Unlock()
	var errs []error
	for i := range list {
		conn, err := d.DialContext(ctx, "tcp", list[(first+i)%len(list)].String())
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// elsewhere makes the next connections go to another endpoint, and breaks what is open.
func (c *client) elsewhere() {
	c.mu.Lock()
	c.first++
	for cancel := range c.watches {
		(*cancel)()
	}
	c.mu.Unlock()
	c.tr.CloseIdleConnections()
}

// close ends all connections.
func (c *client) close() { c.elsewhere() }

// do makes a call; in and out are values for JSON, nil for none. kind is the content type, JSON by default.
func (c *client) do(ctx context.Context, method, path, kind string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	resp, err := c.send(ctx, method, path, kind, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

func (c *client) send(ctx context.Context, method, path, kind string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "https://kubernetes"+path, body)
	if err != nil {
		return nil, err
	}
	if kind == "" {
		kind = "application/json"
	}
	req.Header.Set("Content-Type", kind)
	req.Header.Set("Accept", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	data, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	e := &apiError{}
	if json.Unmarshal(data, e) != nil || e.Code == 0 {
		e.Message = string(data)
	}
	e.Code = resp.StatusCode
	return nil, e
}

// follow lists objects and then watches them, for ever: on gets each object as it is now and whether it is gone; all
// gets what a list held, so that what is missing there is known to be gone.
func (c *client) follow(ctx context.Context, path, selector string, all func([]json.RawMessage), on func(obj json.RawMessage, gone bool)) {
	for ctx.Err() == nil {
		err := c.followOnce(ctx, path, selector, all, on)
		pause := 500 * time.Millisecond
		if err == nil {
			pause = 0 // the watch ended as it was asked to
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (c *client) followOnce(ctx context.Context, path, selector string, all func([]json.RawMessage), on func(json.RawMessage, bool)) error {
	query := url.Values{}
	if selector != "" {
		query.Set("fieldSelector", selector)
	}
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []json.RawMessage
	}
	if err := c.do(ctx, http.MethodGet, path+"?"+query.Encode(), "", nil, &list); err != nil {
		return err
	}
	all(list.Items)
	query.Set("watch", "true")
	query.Set("resourceVersion", list.Metadata.ResourceVersion)
	query.Set("timeoutSeconds", "300")
	wctx, cancel := context.WithTimeout(ctx, 310*time.Second)
	c.mu.Lock()
	c.watches[&cancel] = struct{}{}
	c.mu.Unlock()
	defer func() {
		cancel()
		c.mu.Lock()
		delete(c.watches, &cancel)
		c.mu.Unlock()
	}()
	resp, err := c.send(wctx, http.MethodGet, path+"?"+query.Encode(), "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return readEvents(resp.Body, on)
}

func readEvents(r io.Reader, on func(json.RawMessage, bool)) error {
	dec := json.NewDecoder(r)
	for {
		var e struct {
			Type   string
			Object json.RawMessage
		}
		if err := dec.Decode(&e); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		switch e.Type {
		case "ADDED", "MODIFIED":
			on(e.Object, false)
		case "DELETED":
			on(e.Object, true)
		case "ERROR":
			return fmt.Errorf("watch: %s", e.Object)
		}
	}
}
