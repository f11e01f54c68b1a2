package forge

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Request is one line of the request log.
type Request struct {
	Time time.Time `json:"time"`
	// Endpoint: an operation such as statuses.create, pulls.list, git.upload-pack or web.blob; api.unknown for what
	// the lab doesn't have.
	Endpoint string `json:"endpoint"`
	Method   string `json:"method"`
	Path     string `json:"path"`
	// User is the token's login, "" without a token.
	User string `json:"user,omitempty"`
	// Status of the answer; 0 where none was given.
	Status int `json:"status"`
	// Fault that was met.
	Fault FaultKind `json:"fault,omitempty"`
	// ID is the X-GitHub-Request-Id.
	ID string `json:"id"`
}

// maxRequests are kept of the request log; the counts go on.
const maxRequests = 20000

// Requests gives the newest requests, oldest first.
func (f *Forge) Requests() []Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]Request(nil), f.requests...)
}

// Counts gives how often each endpoint was asked since New or ResetRequests, faults included.
func (f *Forge) Counts() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.counts)
}

// ResetRequests empties the request log and the counts.
func (f *Forge) ResetRequests() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests, f.counts = nil, map[string]int{}
}

// call is one request on its way.
type call struct {
	f        *Forge
	r        *http.Request
	endpoint string
	// repo and args are filled in by the router; args are unescaped.
	repo  *repository
	args  map[string]string
	who   identity
	serve func(c *call, w http.ResponseWriter)
}

// recorder remembers the status of the answer.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController through.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// ServeHTTP answers Git, the API (at the root and under /api/v3) and the web pages.
func (f *Forge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := f.route(r)
	rec := &recorder{ResponseWriter: w}
	log := Request{Time: f.now().UTC(), Endpoint: c.endpoint, Method: r.Method, Path: r.URL.RequestURI(), ID: requestID()}
	rec.Header().Set("X-GitHub-Request-Id", log.ID)
	rec.Header().Set("Server", "ichor-lab")
	if id, given, ok := f.who(r); given && ok {
		log.User = id.login
	}
	fault := f.takeFault(c.endpoint)
	if fault != nil {
		log.Fault = fault.Kind
	}
	defer func() {
		log.Status = rec.status
		f.logRequest(log)
	}()
	if fault != nil {
		f.emit("forge.fault", map[string]any{"endpoint": c.endpoint, "fault": string(fault.Kind)})
		fault.answer(f, rec, r, func(w http.ResponseWriter) { c.serve(c, w) })
		return
	}
	c.serve(c, rec)
}

func (f *Forge) logRequest(r Request) {
	f.mu.Lock()
	f.counts[r.Endpoint]++
	if f.requests = append(f.requests, r); len(f.requests) > maxRequests {
		f.requests = append([]Request(nil), f.requests[maxRequests/2:]...)
	}
	f.mu.Unlock()
	f.log.Debug("request", "endpoint", r.Endpoint, "method", r.Method, "path", r.Path, "status", r.Status, "user", r.User, "fault", string(r.Fault))
}

func requestID() string {
	return fmt.Sprintf("%04X:%06X:%07X:%07X:%08X", rand.Uint32N(1<<16), rand.Uint32N(1<<24), rand.Uint32N(1<<28), rand.Uint32N(1<<28), rand.Uint32())
}

// route finds out what is asked.
func (f *Forge) route(r *http.Request) *call {
	c := &call{f: f, r: r, args: map[string]string{}}
	p := r.URL.EscapedPath()
	if rest, ok := strings.CutPrefix(p, "/api/v3"); ok {
		c.routeAPI(strings.Trim(rest, "/"))
		return c
	}
	segs := strings.Split(strings.Trim(p, "/"), "/")
	switch segs[0] {
	case "repos", "repositories", "rate_limit", "user":
		c.routeAPI(strings.Trim(p, "/"))
		return c
	}
	if service := gitService(r, segs); service != "" {
		c.endpoint, c.serve = "git."+service, (*call).serveGit
		c.args["owner"], c.args["repo"], c.args["path"] = segs[0], strings.TrimSuffix(segs[1], ".git"), strings.Join(segs[2:], "/")
		return c
	}
	c.routeWeb(segs)
	return c
}

// unescape gives the segments with their escapes undone; a bad escape stays.
func unescape(segs []string) []string {
	res := make([]string, len(segs))
	for i, s := range segs {
		if u, err := url.PathUnescape(s); err == nil {
			s = u
		}
		res[i] = s
	}
	return res
}

// findRepository by owner and name, letter case aside, former names too. renamed is true for those.
func (f *Forge) findRepository(owner, name string) (r *repository, renamed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.st.Repos {
		if !strings.EqualFold(r.Owner, owner) {
			continue
		}
		if strings.EqualFold(r.name(), name) {
			return r, false
		}
		for _, old := range r.Former {
			if strings.EqualFold(old, name) {
				return r, true
			}
		}
	}
	return nil, false
}

// Rename gives the main repository another name. The old one goes on to work through redirects, as on GitHub.
func (f *Forge) Rename(name string) error {
	if !validName(name) {
		return fmt.Errorf("rename repository to %q: not a name", name)
	}
	f.push.Lock()
	defer f.push.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.main.Former = append(f.main.Former, f.main.name())
	f.main.own.Lock()
	f.main.Name = name
	f.main.own.Unlock()
	f.saveLocked()
	return nil
}

// Recreate gives the main repository another numeric ID, as if it had been deleted and made anew with the same
// content, and gives the new ID.
func (f *Forge) Recreate() int64 {
	f.push.Lock()
	defer f.push.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.main.id()
	f.main.own.Lock()
	f.main.ID = f.id()
	f.main.own.Unlock()
	for _, p := range f.st.Pulls {
		if p.HeadRepo == old {
			p.HeadRepo = f.main.id()
		}
	}
	f.saveLocked()
	return f.main.id()
}

// drain reads the rest of the body, so that the server sees the client leave.
func drain(r *http.Request) { _, _ = io.Copy(io.Discard, io.LimitReader(r.Body, maxPack)) }
