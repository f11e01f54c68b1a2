package forge

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// maxBody of an API request.
const maxBody = 1 << 20

// operation answers an API call: a status code and a value for JSON, or an error (*Error for GitHub's own).
type operation func(c *call, h http.Header) (int, any, error)

// route of the API: how the segments below the repository go. A segment in braces is an argument; {ref…} takes
// as many segments as it can, since branch names hold slashes.
type route struct {
	method, form, endpoint string
	op                     operation
	// writes content, which has limits of its own.
	writes bool
}

var routes = []route{
	{"GET", "", "repos.get", getRepository, false},
	{"GET", "branches", "branches.list", listBranches, false},
	{"GET", "branches/{ref…}", "branches.get", getBranch, false},
	{"GET", "commits/{ref…}/status", "statuses.combined", combinedStatus, false},
	{"GET", "commits/{ref…}/statuses", "statuses.list", listStatuses, false},
	{"GET", "statuses/{ref…}", "statuses.list", listStatuses, false},
	{"GET", "commits/{sha}/pulls", "commits.pulls", pullsOfCommit, false},
	{"GET", "commits/{ref…}", "commits.get", getCommit, false},
	{"GET", "git/trees/{ref…}", "trees.get", getTree, false},
	{"POST", "statuses/{sha}", "statuses.create", createStatus, true},
	{"GET", "pulls", "pulls.list", listPulls, false},
	{"POST", "pulls", "pulls.create", createPull, true},
	{"GET", "pulls/{number}", "pulls.get", getPull, false},
	{"PATCH", "pulls/{number}", "pulls.update", updatePull, true},
	{"PUT", "pulls/{number}/merge", "pulls.merge", mergePull, true},
}

// routeAPI finds the operation for an escaped path below the API's root.
func (c *call) routeAPI(p string) {
	segs := unescape(strings.Split(p, "/"))
	unknown := func(c *call, h http.Header) (int, any, error) {
		c.f.log.Warn("the lab's forge has no such operation", "method", c.r.Method, "path", c.r.URL.Path)
		return 0, nil, notFound()
	}
	set := func(endpoint string, op operation, writes bool) {
		c.endpoint = endpoint
		c.serve = func(c *call, w http.ResponseWriter) { c.serveAPI(w, op, writes) }
	}
	var rest []string
	switch {
	case p == "rate_limit":
		set("rate_limit.get", getRateLimit, false)
		return
	case p == "user":
		set("user.get", getUser, false)
		return
	case segs[0] == "repos" && len(segs) >= 3:
		c.args["owner"], c.args["repo"], rest = segs[1], segs[2], segs[3:]
	case segs[0] == "repositories" && len(segs) >= 2:
		c.args["id"], rest = segs[1], segs[2:]
	default:
		set("api.unknown", unknown, false)
		return
	}
	for _, r := range routes {
		if r.method == c.r.Method && matchForm(r.form, rest, c.args) {
			set(r.endpoint, r.op, r.writes)
			return
		}
	}
	set("api.unknown", unknown, false)
}

// matchForm compares segments with a form and fills in the arguments.
func matchForm(form string, segs []string, args map[string]string) bool {
	if form == "" {
		return len(segs) == 0
	}
	parts := strings.Split(form, "/")
	found := map[string]string{}
	for i, part := range parts {
		if part == "{ref…}" {
			after := len(parts) - i - 1
			n := len(segs) - i - after
			if n < 1 {
				return false
			}
			found["ref"] = strings.Join(segs[i:i+n], "/")
			segs = append(append(append([]string(nil), segs[:i]...), "{ref…}"), segs[i+n:]...)
			continue
		}
		if i >= len(segs) {
			return false
		}
		if name, ok := strings.CutPrefix(part, "{"); ok {
			found[strings.TrimSuffix(name, "}")] = segs[i]
		} else if part != segs[i] {
			return false
		}
	}
	if len(segs) != len(parts) {
		return false
	}
	for k, v := range found {
		args[k] = v
	}
	return true
}

// serveAPI is what all operations share: token, limits, repository, renames, ETag, errors.
func (c *call) serveAPI(w http.ResponseWriter, op operation, writes bool) {
	h := w.Header()
	h.Set("X-GitHub-Media-Type", "github.v3; format=json")
	h.Set("X-GitHub-Api-Version-Selected", cmp.Or(c.r.Header.Get("X-GitHub-Api-Version"), "2022-11-28"))
	id, given, ok := c.f.who(c.r)
	if given && !ok {
		writeError(w, &Error{Status: http.StatusUnauthorized, Message: "Bad credentials"})
		return
	}
	c.who = id
	if c.endpoint != "rate_limit.get" {
		if err := c.f.limits.take(id.login, c.f.now(), h); err != nil {
			writeError(w, err)
			return
		}
	}
	if to, err := c.findRepo(); err != nil {
		writeError(w, err)
		return
	} else if to != "" {
		redirect(w, c.r, to)
		return
	}
	if writes {
		if err := c.f.limits.write(id.login, c.f.now(), h); err != nil {
			writeError(w, err)
			return
		}
	}
	status, value, err := op(c, h)
	if err != nil {
		writeError(w, err)
		return
	}
	c.answer(w, status, value)
}

// findRepo fills in c.repo, or tells where a renamed repository is now. A private one is as good as absent
// without a token.
func (c *call) findRepo() (string, *Error) {
	if c.args["owner"] == "" && c.args["id"] == "" {
		return "", nil
	}
	var renamed bool
	if s := c.args["id"]; s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err == nil {
			c.repo = c.f.repositoryByID(n)
		}
	} else {
		c.repo, renamed = c.f.findRepository(c.args["owner"], c.args["repo"])
	}
	if c.repo == nil || c.who.login == "" && !c.f.isPublic(c.repo) {
		return "", notFound()
	}
	if !renamed {
		return "", nil
	}
	prefix, tail, _ := strings.Cut(c.r.URL.EscapedPath(), "/repos/")
	parts := strings.SplitN(tail, "/", 3)
	to := fmt.Sprintf("%s%s/repositories/%d", c.f.url, prefix, c.repo.id())
	if len(parts) == 3 {
		to += "/" + parts[2]
	}
	if c.r.URL.RawQuery != "" {
		to += "?" + c.r.URL.RawQuery
	}
	return to, nil
}

func (f *Forge) repositoryByID(id int64) *repository {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.st.Repos {
		if r.id() == id {
			return r
		}
	}
	return nil
}

// redirect as GitHub does for a renamed repository: 301 for reads, 307 for writes.
func redirect(w http.ResponseWriter, r *http.Request, to string) {
	status, message := http.StatusMovedPermanently, "Moved Permanently"
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		status, message = http.StatusTemporaryRedirect, "Temporary Redirect"
	}
	w.Header().Set("Location", to)
	writeJSON(w, status, obj{"message": message, "url": to, "documentation_url": "https://docs.github.com/rest/guides/best-practices-for-using-the-rest-api#follow-redirects"})
}

// text is an answer that is no JSON: the commit ID for the "sha" media type.
type text string

// answer writes a value with its ETag, or 304 where the client has it.
func (c *call) answer(w http.ResponseWriter, status int, value any) {
	h := w.Header()
	body, tag := []byte(nil), ""
	if t, ok := value.(text); ok {
		body, tag = []byte(t), `"`+string(t)+`"`
		h.Set("Content-Type", "application/vnd.github.v3.sha; charset=utf-8")
	} else {
		data, err := json.Marshal(value)
		if err != nil {
			writeError(w, err)
			return
		}
		// who asks is part of the tag: an answer to one token is none to another
		sum := sha256.Sum256([]byte(c.who.login + "\n" + c.r.Header.Get("Accept") + "\n" + h.Get("Link") + "\n" + string(data)))
		body, tag = data, `W/"`+hex.EncodeToString(sum[:])+`"`
		h.Set("Content-Type", "application/json; charset=utf-8")
	}
	if c.r.Method == http.MethodGet && status == http.StatusOK {
		h.Set("ETag", tag)
		h.Set("Cache-Control", "private, max-age=60, s-maxage=60")
		h.Set("Vary", "Accept, Authorization, Cookie, X-GitHub-OTP,Accept-Encoding, Accept, X-Requested-With")
		if matchesTag(c.r.Header.Get("If-None-Match"), tag) {
			c.f.limits.giveBack(c.who.login, c.f.now(), h)
			h.Del("Content-Type")
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

func matchesTag(header, tag string) bool {
	for part := range strings.SplitSeq(header, ",") {
		if strings.TrimPrefix(strings.TrimSpace(part), "W/") == strings.TrimPrefix(tag, "W/") {
			return true
		}
	}
	return false
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	data, err := json.Marshal(value)
	if err != nil {
		status, data = http.StatusInternalServerError, []byte(`{"message":"Server Error"}`)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(data)
}

// writeError in GitHub's form. An error of another kind is a 500.
func writeError(w http.ResponseWriter, err error) {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		e = &Error{Status: http.StatusInternalServerError, Message: "Server Error: " + err.Error()}
	}
	body := obj{"message": e.Message, "documentation_url": cmp.Or(e.Doc, "https://docs.github.com/rest"), "status": strconv.Itoa(e.Status)}
	if len(e.Details) > 0 {
		body["errors"] = e.Details
	}
	writeJSON(w, e.Status, body)
}

// decode reads the JSON body.
func (c *call) decode(into any) error {
	data, err := io.ReadAll(io.LimitReader(c.r.Body, maxBody))
	if err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return &Error{Status: http.StatusBadRequest, Message: "Problems parsing JSON"}
	}
	return nil
}

// page cuts a list as per_page (default 30, at most 100) and page say, and sets the Link header.
func page[T any](c *call, h http.Header, all []T) []T {
	q := c.r.URL.Query()
	per, n := number(q, "per_page", 30), number(q, "page", 1)
	per = min(per, 100)
	last := max(1, (len(all)+per-1)/per)
	link := func(to int, rel string) string {
		u := *c.r.URL
		q.Set("page", strconv.Itoa(to))
		u.RawQuery = q.Encode()
		return fmt.Sprintf(`<%s%s>; rel="%s"`, c.f.url, u.RequestURI(), rel)
	}
	var links []string
	if n > 1 {
		links = append(links, link(n-1, "prev"))
	}
	if n < last {
		links = append(links, link(n+1, "next"), link(last, "last"))
	}
	if n > 1 {
		links = append(links, link(1, "first"))
	}
	if len(links) > 0 {
		h.Set("Link", strings.Join(links, ", "))
	}
	from := min(len(all), (n-1)*per)
	return all[from:min(len(all), from+per)]
}

func number(q url.Values, key string, def int) int {
	if n, err := strconv.Atoi(q.Get(key)); err == nil && n > 0 {
		return n
	}
	return def
}
