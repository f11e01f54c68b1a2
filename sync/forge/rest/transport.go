package rest

import (
	"bytes"
	"container/list"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
)

// ErrRedirect is in the chain of an error about a redirect that was not followed.
var ErrRedirect = errors.New("forge redirects")

// SameHost is a CheckRedirect that follows redirects on the API's host only (a renamed repository: GET 301, POST 307). A POST that a 301 would
// turn into a GET is refused: the status would be lost and look posted.
func SameHost(req *http.Request, via []*http.Request) error {
	first := via[0]
	if !strings.EqualFold(first.URL.Host, req.URL.Host) || first.URL.Scheme != req.URL.Scheme {
		return fmt.Errorf("%w to another host: from %s to %s; set the new address in the configuration", ErrRedirect, first.URL.Host, req.URL.Host)
	}
	if first.Method != req.Method {
		return fmt.Errorf("%w a %s to %s; set the repository's new name in the configuration", ErrRedirect, first.Method, req.URL.Path)
	}
	if len(via) >= 5 {
		return fmt.Errorf("%w too often", ErrRedirect)
	}
	return nil
}

// authTransport adds the token for the API's host only. On a 401 it drops the cached token and tries once more: a
// token may have been rotated.
type authTransport struct {
	next         http.RoundTripper
	scheme, host string
	tokens       Tokens
	authorize    func(*http.Request, string)
}

// RoundTrip implements http.RoundTripper.
func (t *authTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if !strings.EqualFold(req.URL.Host, t.host) || req.URL.Scheme != t.scheme {
		return nil, fmt.Errorf("%w to another host: %s", ErrRedirect, req.URL.Host)
	}
	resp, err := t.once(req)
	if err != nil || resp.StatusCode != http.StatusUnauthorized || !t.tokens.Forget() {
		return resp, err
	}
	again := req.Clone(req.Context())
	if req.Body != nil {
		if req.GetBody == nil {
			return resp, nil
		}
		if again.Body, err = req.GetBody(); err != nil {
			return resp, nil //nolint:nilerr // the answer we have is the better one
		}
	}
	_ = resp.Body.Close()
	return t.once(again)
}

func (t *authTransport) once(req *http.Request) (*http.Response, error) {
	token, err := t.tokens.Token(req.Context())
	if err != nil {
		return nil, err
	}
	out := req.Clone(req.Context())
	if !token.Empty() {
		t.authorize(out, string(token.Reveal()))
	}
	return t.next.RoundTrip(out)
}

// etags keeps answers to GET and asks for changes only: a 304 doesn't count against GitHub's primary limit. A kept
// answer carries X-From-Cache, so that go-github doesn't take its rate numbers for new.
type etags struct {
	next http.RoundTripper

	mu    sync.Mutex
	order *list.List
	kept  map[string]*list.Element
	// size of all bodies that are kept.
	size int
}

type keptAnswer struct {
	key, etag string
	header    http.Header
	body      []byte
}

// Bounds of what is kept and of what is read.
const (
	keptAnswers = 200
	keptBytes   = 1 << 20
	keptTotal   = 16 << 20 // lists of files of pull requests are large, are asked for once, and come from anybody
	bodyBytes   = 16 << 20
)

func newETags(next http.RoundTripper) *etags {
	return &etags{next: next, order: list.New(), kept: map[string]*list.Element{}}
}

// RoundTrip implements http.RoundTripper. The request is this chain's own copy.
func (t *etags) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet {
		return t.next.RoundTrip(req)
	}
	key := req.URL.String()
	old := t.get(key)
	if old != nil {
		req.Header.Set("If-None-Match", old.etag)
	}
	resp, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusNotModified && old != nil {
		_ = resp.Body.Close()
		resp.StatusCode, resp.Status = http.StatusOK, "200 OK"
		resp.Header = old.header.Clone()
		resp.Header.Set("X-From-Cache", "1")
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(old.body)), int64(len(old.body))
		return resp, nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, bodyBytes+1))
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	if len(body) > bodyBytes {
		return nil, fmt.Errorf("forge's answer is larger than %d bytes", bodyBytes)
	}
	if etag := resp.Header.Get("ETag"); etag != "" && resp.StatusCode == http.StatusOK && len(body) <= keptBytes {
		t.put(&keptAnswer{key, etag, resp.Header.Clone(), body})
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

func (t *etags) get(key string) *keptAnswer {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.kept[key]
	if !ok {
		return nil
	}
	t.order.MoveToFront(e)
	return e.Value.(*keptAnswer)
}

func (t *etags) put(a *keptAnswer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e, ok := t.kept[a.key]; ok {
		t.drop(e)
	}
	t.kept[a.key] = t.order.PushFront(a)
	t.size += len(a.body)
	for t.order.Len() > keptAnswers || t.size > keptTotal {
		t.drop(t.order.Back())
	}
}

// drop lets an answer go. The lock is held.
func (t *etags) drop(e *list.Element) {
	a := t.order.Remove(e).(*keptAnswer)
	delete(t.kept, a.key)
	t.size -= len(a.body)
}
