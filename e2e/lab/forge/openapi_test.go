package forge_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
)

var description = sync.OnceValues(func() (*openapi3.T, error) {
	data, err := os.ReadFile("testdata/github-openapi.json")
	if err != nil {
		return nil, err
	}
	return openapi3.NewLoader().LoadFromData(data)
})

// checked is a transport that holds every exchange against GitHub's published OpenAPI description.
type checked struct {
	t      *testing.T
	token  string
	router routers.Router
	mu     sync.Mutex
	seen   map[string]int
}

func newChecked(t *testing.T, base, token string) *checked {
	t.Helper()
	doc, err := description()
	if err != nil {
		t.Fatal(err)
	}
	here := *doc
	here.Servers = openapi3.Servers{{URL: strings.TrimSuffix(base, "/")}}
	router, err := gorillamux.NewRouter(&here)
	if err != nil {
		t.Fatal(err)
	}
	return &checked{t: t, token: token, router: router, seen: map[string]int{}}
}

func (c *checked) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	route, params, err := c.find(r)
	if err != nil {
		c.t.Errorf("%s %s is no operation of the description: %v", r.Method, r.URL, err)
		return http.DefaultTransport.RoundTrip(r)
	}
	in := &openapi3filter.RequestValidationInput{
		Request: r.Clone(r.Context()), PathParams: params, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true},
	}
	if body != nil {
		in.Request.Body = io.NopCloser(bytes.NewReader(body))
	}
	if err := openapi3filter.ValidateRequest(context.Background(), in); err != nil && !expectedBad(r) {
		c.t.Errorf("request %s %s: %v", r.Method, r.URL, err)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	c.checkAnswer(r, resp, in)
	return resp, nil
}

// refInPath is a ref as an argument of a path, with what may follow it.
var refInPath = regexp.MustCompile(`/(commits|branches)/(.+?)(/status|/statuses|/pulls)?$`)

var byNumber = regexp.MustCompile(`/repositories/[0-9]+`)

// find the operation. The router takes one segment an argument, where a branch name may hold slashes.
func (c *checked) find(r *http.Request) (*routers.Route, map[string]string, error) {
	flat := r.Clone(r.Context())
	u := *r.URL
	u.RawPath = ""
	if m := refInPath.FindStringSubmatch(u.Path); m != nil {
		u.Path = strings.TrimSuffix(u.Path, m[0]) + "/" + m[1] + "/" + strings.ReplaceAll(m[2], "/", "-") + m[3]
	}
	// where a renamed repository is read by its number
	u.Path = byNumber.ReplaceAllString(u.Path, "/repos/acme/fleet")
	flat.URL = &u
	return c.router.FindRoute(flat)
}

type wantBad struct{}

// expectedBad marks requests that a test makes wrong on purpose.
func expectedBad(r *http.Request) bool { return r.Context().Value(wantBad{}) != nil }

func (c *checked) checkAnswer(r *http.Request, resp *http.Response, in *openapi3filter.RequestValidationInput) {
	answer, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(answer))
	if err != nil {
		c.t.Errorf("read answer: %v", err)
	}
	op := in.Route.Operation
	c.mu.Lock()
	c.seen[op.OperationID]++
	c.mu.Unlock()
	// the description lists no 401, 404 and 422 for each operation that really gives them
	if op.Responses.Status(resp.StatusCode) == nil {
		if resp.StatusCode < 300 { // redirects of renamed repositories and 304 are described in words only
			c.t.Errorf("answer %d to %s is not in the description", resp.StatusCode, op.OperationID)
		}
		return
	}
	if strings.Contains(r.Header.Get("Accept"), ".sha") && resp.StatusCode == 200 {
		return // the sha media type is described in words only
	}
	out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: resp.StatusCode, Header: resp.Header, Options: in.Options}
	out.SetBodyBytes(answer)
	if err := openapi3filter.ValidateResponse(context.Background(), out); err != nil {
		var schema *openapi3.SchemaError
		if errors.As(err, &schema) {
			// the description is wrong there: the head repository of a deleted fork is null
			if at := strings.Join(schema.JSONPointer(), "/"); strings.HasSuffix(at, "head/repo") && schema.Value == nil {
				return
			}
			c.t.Errorf("answer %d to %s: at /%s: %s\n%.2000s", resp.StatusCode, op.OperationID, strings.Join(schema.JSONPointer(), "/"), schema.Reason, answer)
			return
		}
		c.t.Errorf("answer %d to %s: %v", resp.StatusCode, op.OperationID, err)
	}
}
