package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"ichor.maesh.dev/ichor/sync/forge"
)

// Client asks a JSON API: one call at a time, each error with its kind. Safe for concurrent use.
type Client struct {
	base *url.URL
	http *http.Client
	turn *Turn
	kind func(status int, text string) forge.Kind
}

// NewClient makes one. kind may know more of a refusal than its code says; "" leaves it to the code.
func NewClient(o Options, kind func(status int, text string) forge.Kind) (*Client, error) {
	hc, err := HTTP(o)
	if err != nil {
		return nil, err
	}
	return &Client{base: o.Base, http: hc, turn: NewTurn(), kind: kind}, nil
}

// Ask is one request. Path is below the base, escaped. In is sent and Out filled as JSON; nil is none.
type Ask struct {
	Op, Method, Path string
	Query            url.Values
	In, Out          any
}

// refusal is an answer that is no success.
type refusal struct {
	resp *http.Response
	text string
}

func (r *refusal) Error() string {
	return fmt.Sprintf("forge answers %d: %s", r.resp.StatusCode, r.text)
}

// Do asks, and gives the answer's header.
func (c *Client) Do(ctx context.Context, a Ask) (http.Header, error) {
	var header http.Header
	err := c.turn.Call(ctx, a.Op, c.fault, func() (err error) {
		header, err = c.do(ctx, a)
		return err
	})
	return header, err
}

func (c *Client) do(ctx context.Context, a Ask) (http.Header, error) {
	var body io.Reader
	if a.In != nil {
		b, err := json.Marshal(a.In)
		if err != nil {
			return nil, &forge.Error{Op: a.Op, Kind: forge.KindPermanent, Err: err}
		}
		body = bytes.NewReader(b)
	}
	u, err := url.Parse(strings.TrimRight(c.base.String(), "/") + "/" + a.Path)
	if err != nil {
		return nil, &forge.Error{Op: a.Op, Kind: forge.KindPermanent, Err: err}
	}
	u.RawQuery = a.Query.Encode()
	req, err := http.NewRequestWithContext(ctx, a.Method, u.String(), body)
	if err != nil {
		return nil, &forge.Error{Op: a.Op, Kind: forge.KindPermanent, Err: err}
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "ichor")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // what matters was read
	data, err := io.ReadAll(io.LimitReader(resp.Body, bodyBytes+1))
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return nil, &refusal{resp: resp, text: said(data)}
	case len(data) > bodyBytes:
		return nil, fmt.Errorf("forge's answer is larger than %d bytes", bodyBytes)
	case a.Out == nil:
		return resp.Header, nil
	}
	if err := json.Unmarshal(data, a.Out); err != nil {
		// A proxy or a page for logging in may answer 200 in the forge's place.
		return nil, errors.New("the answer is not the forge's JSON")
	}
	return resp.Header, nil
}

// said takes a refusal's words out of the forms that forges use: message, error, errors.
func said(data []byte) string {
	var m map[string]any
	if json.Unmarshal(data, &m) != nil {
		return forge.Clamp(string(data), 100)
	}
	var parts []string
	for _, k := range []string{"message", "error", "errors"} {
		if v := m[k]; v != nil && fmt.Sprint(v) != "" && fmt.Sprint(v) != "[]" {
			parts = append(parts, fmt.Sprint(v))
		}
	}
	return forge.Clamp(strings.Join(parts, "; "), 200)
}

func (c *Client) fault(op string, err error) error {
	var (
		e *forge.Error
		r *refusal
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		return err
	case errors.Is(err, ErrRedirect), Untrusted(err):
		return &forge.Error{Op: op, Kind: forge.KindHeld, Err: err}
	case !errors.As(err, &r):
		return &forge.Error{Op: op, Kind: forge.KindTransient, Err: err}
	}
	out := &forge.Error{Op: op, Err: r}
	if c.kind != nil {
		out.Kind = c.kind(r.resp.StatusCode, strings.ToLower(r.text))
	}
	if out.Kind == "" {
		out.Kind = kindOf(r)
	}
	if out.Kind == forge.KindRate {
		out.Until = RetryAt(r.resp)
	}
	return out
}

func kindOf(r *refusal) forge.Kind {
	switch code := r.resp.StatusCode; {
	case code == http.StatusTooManyRequests,
		(code == http.StatusForbidden || code == http.StatusServiceUnavailable) && r.resp.Header.Get("Retry-After") != "":
		return forge.KindRate
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return forge.KindAuth
	case code == http.StatusNotFound, code == http.StatusGone, code < 400, code == http.StatusUnavailableForLegalReasons:
		return forge.KindHeld
	case code == http.StatusRequestTimeout, code == http.StatusLocked, code == http.StatusTooEarly, code >= 500:
		return forge.KindTransient
	}
	return forge.KindPermanent
}
