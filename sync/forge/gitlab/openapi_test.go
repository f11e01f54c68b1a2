package gitlab_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
)

var description = sync.OnceValues(func() (*openapi3.T, error) {
	data, err := os.ReadFile("testdata/gitlab-openapi.json")
	if err != nil {
		return nil, err
	}
	doc, err := openapi3.NewLoader().LoadFromData(data)
	if err != nil {
		return nil, err
	}
	// The description names every field and forbids none: here a field that it does not name is a mistake.
	no := false
	for _, s := range doc.Components.Schemas {
		s.Value.AdditionalProperties = openapi3.AdditionalProperties{Has: &no}
	}
	return doc, nil
})

// nulls are fields that GitLab gives as null though its description doesn't say so (recorded in client-go v1.46.0:
// testdata/get_merge_requests.json, commits_test.go).
var nulls = []string{
	"target_url", "description", "started_at", "finished_at", "coverage", "source_project_id", "merge_commit_sha", "squash_commit_sha",
	"merged_at", "closed_at", "merged_by", "merge_user", "closed_by", "default_branch", "discussion_locked",
}

// undescribed are answers that each operation may give, described elsewhere: redirects of moved projects (doc/api/rest),
// credentials, limits, servers in trouble.
var undescribed = []int{301, 401, 403, 409, 410, 429, 500, 502, 503}

// checked stands before a server and holds every exchange against GitLab's published description. It gives the address to
// ask.
func checked(t *testing.T, upstream string) string {
	t.Helper()
	c := &checker{t: t, upstream: upstream}
	doc, err := description()
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(c)
	t.Cleanup(srv.Close)
	here := *doc
	here.Servers = openapi3.Servers{{URL: srv.URL}}
	if c.router, err = gorillamux.NewRouter(&here); err != nil {
		t.Fatal(err)
	}
	return srv.URL
}

type checker struct {
	t        *testing.T
	upstream string
	router   routers.Router
}

func (c *checker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	in := c.request(r, body)
	out, err := http.NewRequestWithContext(r.Context(), r.Method, c.upstream+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		c.t.Error(err)
		return
	}
	out.Header = r.Header.Clone()
	resp, err := http.DefaultTransport.RoundTrip(out)
	if err != nil {
		c.t.Error(err)
		return
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body)
	if in != nil {
		c.answer(in, resp, answer)
	}
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	if to := w.Header().Get("Location"); to != "" {
		w.Header().Set("Location", strings.Replace(to, c.upstream, "http://"+r.Host, 1))
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(answer)
}

// request checks what is asked: path, parameters, body.
func (c *checker) request(r *http.Request, body []byte) *openapi3filter.RequestValidationInput {
	probe := r.Clone(context.Background())
	probe.URL.Scheme, probe.URL.Host = "http", r.Host
	probe.Body = io.NopCloser(bytes.NewReader(body))
	route, params, err := c.router.FindRoute(probe)
	if err != nil {
		c.t.Errorf("%s %s is no operation of the description: %v", r.Method, r.URL.RequestURI(), err)
		return nil
	}
	for k := range r.URL.Query() {
		if route.Operation.Parameters.GetByInAndName("query", k) == nil && k != "cursor" && k != "pagination" { // keyset pages: doc/api/rest
			c.t.Errorf("%s has no parameter %s", route.Operation.OperationID, k)
		}
	}
	in := &openapi3filter.RequestValidationInput{
		Request: probe, PathParams: params, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true},
	}
	if err := openapi3filter.ValidateRequest(context.Background(), in); err != nil {
		c.t.Errorf("request %s %s %s: %v", r.Method, r.URL.RequestURI(), body, err)
	}
	return in
}

// answer checks what comes back. A new status is answered 201, where the description has 200 (doc/api/commits and
// client-go have 201).
func (c *checker) answer(in *openapi3filter.RequestValidationInput, resp *http.Response, answer []byte) {
	op, code := in.Route.Operation, resp.StatusCode
	if op.OperationID == "postApiV4ProjectsIdStatusesSha" && code == http.StatusCreated {
		code = http.StatusOK
	}
	if op.Responses.Status(code) == nil {
		if !slices.Contains(undescribed, code) {
			c.t.Errorf("answer %d to %s is not in the description", code, op.OperationID)
		}
		return
	}
	if code != http.StatusOK {
		return
	}
	answer = denull(answer)
	out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: code, Header: resp.Header, Options: in.Options}
	out.SetBodyBytes(answer)
	if err := openapi3filter.ValidateResponse(context.Background(), out); err != nil {
		var schema *openapi3.SchemaError
		if errors.As(err, &schema) {
			c.t.Errorf("answer %d to %s: at /%s: %s\n%.800s", code, op.OperationID, strings.Join(schema.JSONPointer(), "/"), schema.Reason, answer)
			return
		}
		c.t.Errorf("answer %d to %s: %v", code, op.OperationID, err)
	}
}

// denull takes out the fields that may be null.
func denull(data []byte) []byte {
	var v any
	if json.Unmarshal(data, &v) != nil {
		return data
	}
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	for _, e := range list {
		if m, ok := e.(map[string]any); ok {
			for _, k := range nulls {
				if x, has := m[k]; has && x == nil {
					delete(m, k)
				}
			}
		}
	}
	out, err := json.Marshal(v)
	if err != nil {
		return data
	}
	return out
}
