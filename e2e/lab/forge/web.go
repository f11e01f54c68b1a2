package forge

import (
	"bytes"
	"fmt"
	"html/template"
	"net/http"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
)

var pages = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{.Title}}</title><style>
body{font:15px/1.5 sans-serif;max-width:70em;margin:1em auto;padding:0 1em;color:#1f2328;background:#fff}
pre{background:#f6f8fa;padding:1em;overflow:auto}table{border-collapse:collapse}td,th{border:1px solid #d0d7de;padding:.3em .8em;text-align:left}
.success{color:#116329}.failure,.error{color:#a40e26}.pending{color:#7d4e00}</style></head><body>
<p><a href="{{.Home}}">{{.Repo}}</a></p><h1>{{.Title}}</h1>
{{with .Lead}}<p>{{.}}</p>{{end}}
{{with .Statuses}}<h2>Commit statuses</h2><table><tr><th>context</th><th>state</th><th>description</th></tr>
{{range .}}<tr><td>{{if .TargetURL}}<a href="{{.TargetURL}}">{{.Context}}</a>{{else}}{{.Context}}{{end}}</td><td class="{{.State}}">{{.State}}</td><td>{{.Description}}</td></tr>{{end}}</table>{{end}}
{{with .Links}}<ul>{{range .}}<li><a href="{{.URL}}">{{.Text}}</a>{{with .Note}} {{.}}{{end}}</li>{{end}}</ul>{{end}}
{{with .Text}}<pre>{{.}}</pre>{{end}}{{.Rendered}}
</body></html>
`))

// webPage is what a page shows; empty parts are left out.
type webPage struct {
	Title, Home, Repo, Lead, Text string
	Statuses                      []Status
	Links                         []webLink
	// Rendered is Markdown as HTML; raw HTML in it was left out.
	Rendered template.HTML
}

type webLink struct{ URL, Text, Note string }

// routeWeb finds the page. Pages are for the person at this machine and need no token: the forge listens on
// loopback only, and a browser would have a session.
func (c *call) routeWeb(segs []string) {
	segs = unescape(segs)
	c.endpoint, c.serve = "web.unknown", (*call).noPage
	if len(segs) == 1 && segs[0] == "" {
		c.endpoint, c.serve = "web.home", func(c *call, w http.ResponseWriter) { http.Redirect(w, c.r, c.f.htmlURL(c.f.main), http.StatusFound) }
		return
	}
	if len(segs) < 2 {
		return
	}
	c.repo, _ = c.f.findRepository(segs[0], strings.TrimSuffix(segs[1], ".git"))
	if c.repo == nil || c.r.Method != http.MethodGet {
		return
	}
	c.args["rest"] = strings.Join(segs[min(3, len(segs)):], "/")
	kind := "repository"
	if len(segs) > 2 {
		kind = segs[2]
	}
	serve := map[string]func(*call, http.ResponseWriter){
		"repository": (*call).repositoryPage, "blob": (*call).blobPage, "raw": (*call).blobPage,
		"tree": (*call).treePage, "commit": (*call).commitPage, "pull": (*call).pullPage,
	}[kind]
	if serve != nil {
		c.endpoint, c.serve = "web."+kind, serve
	}
}

func (c *call) noPage(w http.ResponseWriter) { http.Error(w, "Not Found", http.StatusNotFound) }

func (c *call) show(w http.ResponseWriter, p webPage) {
	c.f.mu.Lock()
	p.Home, p.Repo = c.f.htmlURL(c.repo), c.repo.fullName()
	c.f.mu.Unlock()
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	if err := pages.Execute(w, p); err != nil {
		c.f.log.Warn("cannot write a page", "error", err)
	}
}

// splitRef finds the longest branch, tag or commit that the rest of a path begins with: branch names hold slashes.
func (c *call) splitRef() (ref, path, commit string) {
	parts := strings.Split(c.args["rest"], "/")
	for i := len(parts); i > 0; i-- {
		ref = strings.Join(parts[:i], "/")
		if sha := c.f.resolve(c.r.Context(), c.repo, ref); sha != "" {
			return ref, strings.Join(parts[i:], "/"), sha
		}
	}
	return "", "", ""
}

func (c *call) blobPage(w http.ResponseWriter) {
	ref, path, commit := c.splitRef()
	if commit == "" || path == "" {
		c.noPage(w)
		return
	}
	data, err := c.f.git(c.repo).raw(c.r.Context(), "cat-file", "blob", commit+":"+path)
	if err != nil {
		c.noPage(w)
		return
	}
	if c.endpoint == "web.raw" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(data)
		return
	}
	p := webPage{Title: path, Lead: "at " + ref + " (" + commit + ")"}
	if p.Rendered = markdown(path, data); p.Rendered == "" {
		p.Text = string(data)
	}
	c.show(w, p)
}

// renderer of GitHub's Markdown: tables, strikethrough, autolinks, task lists. It leaves raw HTML out.
var renderer = goldmark.New(goldmark.WithExtensions(extension.GFM))

// details are the two tags of raw HTML that reports use to fold long parts away; GitHub lets them through.
var details = strings.NewReplacer("<details>\n", "", "</details>\n", "", "<details>", "", "</details>", "", "<summary>", "**", "</summary>", "**\n")

// markdown renders a file that is Markdown; "" for any other. Folded parts are shown unfolded.
func markdown(path string, data []byte) template.HTML {
	if !strings.HasSuffix(strings.ToLower(path), ".md") {
		return ""
	}
	var b bytes.Buffer
	if err := renderer.Convert([]byte(details.Replace(string(data))), &b); err != nil {
		return ""
	}
	return template.HTML(b.String()) //nolint:gosec // the renderer escapes text and leaves raw HTML out
}

func (c *call) treePage(w http.ResponseWriter) {
	ref, path, commit := c.splitRef()
	if commit == "" {
		c.noPage(w)
		return
	}
	c.listFiles(w, webPage{Title: ref + "/" + path, Lead: commit, Statuses: c.f.statuses.latest(c.repo.id(), commit)}, ref, path, commit)
}

func (c *call) listFiles(w http.ResponseWriter, p webPage, ref, path, commit string) {
	out, err := c.f.git(c.repo).run(c.r.Context(), "ls-tree", "-z", commit+":"+path)
	if err != nil {
		c.noPage(w)
		return
	}
	for entry := range strings.SplitSeq(strings.TrimRight(out, "\x00"), "\x00") {
		meta, name, ok := strings.Cut(entry, "\t")
		if !ok {
			continue
		}
		kind := "blob"
		if strings.Contains(meta, " tree ") {
			kind = "tree"
		}
		p.Links = append(p.Links, webLink{URL: fmt.Sprintf("/%s/%s/%s/%s/%s", c.repo.Owner, c.repo.name(), kind, ref, strings.TrimPrefix(path+"/"+name, "/")), Text: name})
	}
	c.show(w, p)
}

func (c *call) repositoryPage(w http.ResponseWriter) {
	refs, err := c.f.refs(c.r.Context(), c.repo, "refs/heads")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	p := webPage{Title: c.repo.Owner + "/" + c.repo.name(), Lead: fmt.Sprintf("%d branches. A forge of ichor-lab.", len(refs))}
	if branches, err := c.f.Branches(); err == nil && c.repo == c.f.main {
		for _, b := range branches {
			p.Links = append(p.Links, webLink{URL: c.f.htmlURL(c.repo) + "/tree/" + b.Name, Text: b.Name, Note: b.SHA})
		}
		for _, pr := range c.f.Pulls() {
			p.Links = append(p.Links, webLink{URL: pr.URL, Text: fmt.Sprintf("#%d %s", pr.Number, pr.Title), Note: pr.State})
		}
	}
	c.show(w, p)
}

func (c *call) commitPage(w http.ResponseWriter) {
	_, _, commit := c.splitRef()
	if commit == "" {
		c.noPage(w)
		return
	}
	out, err := c.f.git(c.repo).run(c.r.Context(), "show", "--stat", "--patch", "--format=fuller", commit)
	if err != nil {
		c.noPage(w)
		return
	}
	c.show(w, webPage{Title: "Commit " + commit, Statuses: c.f.statuses.latest(c.repo.id(), commit), Text: out})
}

func (c *call) pullPage(w http.ResponseWriter) {
	for _, p := range c.f.Pulls() {
		if fmt.Sprint(p.Number) != c.args["rest"] || c.repo != c.f.main {
			continue
		}
		state := p.State
		if p.Merged {
			state = "merged as " + p.MergeCommit
		}
		c.show(w, webPage{
			Title: fmt.Sprintf("#%d %s", p.Number, p.Title), Lead: fmt.Sprintf("%s wants to merge %s into %s: %s", p.Author, p.Head, p.Base, state),
			Statuses: c.f.statuses.latest(c.repo.id(), p.HeadSHA), Links: []webLink{{URL: c.f.htmlURL(c.repo) + "/commit/" + p.HeadSHA, Text: p.HeadSHA}},
		})
		return
	}
	c.noPage(w)
}
