package git_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"ichor.maesh.dev/ichor/schemas/secret"
	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/sync/git/gittest"
)

func open(t *testing.T, s *gittest.Server, change ...func(*git.Options)) *git.Mirror {
	t.Helper()
	o := git.Options{Dir: t.TempDir(), URL: s.URL, Timeout: 20 * time.Second}
	for _, c := range change {
		c(&o)
	}
	m, err := git.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func fetch(t *testing.T, m *git.Mirror, branch string) git.Move {
	t.Helper()
	mv, err := m.FetchBranch(t.Context(), branch)
	if err != nil {
		t.Fatal(err)
	}
	return mv
}

func read(t *testing.T, fsys fs.FS, name string) string {
	t.Helper()
	b, err := fs.ReadFile(fsys, name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func tree(t *testing.T, m *git.Mirror, commit string) fs.FS {
	t.Helper()
	fsys, err := m.FS(commit)
	if err != nil {
		t.Fatal(err)
	}
	return fsys
}

func wantClass(t *testing.T, err error, want git.Class) {
	t.Helper()
	if got := git.ClassOf(err); got != want {
		t.Fatalf("class of %v is %q, want %q", err, got, want)
	}
}

// The life of a watched branch: empty repository, first commit, fast-forward, rewind by three, deletion, another
// history under the same name.
func TestABranchMoves(t *testing.T) {
	s := gittest.Start(t)
	m := open(t, s)
	_, err := m.FetchBranch(t.Context(), "main")
	wantClass(t, err, git.ClassEmpty)

	c1 := s.Commit("one", "a.yaml", "1\n")
	s.Push("refs/heads/main")
	if mv := fetch(t, m, "main"); mv.Kind != git.MoveFirst || mv.New != c1 || mv.Old != "" || mv.Default != "main" {
		t.Fatalf("first: %+v", mv)
	}
	if mv := fetch(t, m, "main"); mv.Kind != git.MoveUnchanged || mv.New != c1 {
		t.Fatalf("unchanged: %+v", mv)
	}
	var last string
	for i := range 3 {
		last = s.Commit("more", "a.yaml", fmt.Sprint(i, "\n"))
	}
	s.Push("refs/heads/main")
	if mv := fetch(t, m, "main"); mv.Kind != git.MoveFastForward || mv.Old != c1 || mv.New != last {
		t.Fatalf("fast-forward: %+v", mv)
	}
	if got, err := m.FirstParents(last, 10); err != nil || len(got) != 4 || got[0] != last || got[3] != c1 {
		t.Fatalf("first parents: %v %v", got, err)
	}
	s.WorkGit("reset", "--hard", c1)
	s.Push("refs/heads/main", "--force")
	if mv := fetch(t, m, "main"); mv.Kind != git.MoveRewrite || mv.Old != last || mv.New != c1 {
		t.Fatalf("rewind: %+v", mv)
	}
	s.Git("update-ref", "-d", "refs/heads/main")
	if mv := fetch(t, m, "main"); mv.Kind != git.MoveGone || mv.Old != c1 || mv.New != "" {
		t.Fatalf("gone: %+v", mv)
	}
	s.WorkGit("checkout", "--quiet", "--orphan", "other")
	other := s.Commit("unrelated", "b.yaml", "x\n")
	s.Push("refs/heads/main", "--force")
	if mv := fetch(t, m, "main"); mv.Kind != git.MoveRewrite || mv.Old != c1 || mv.New != other {
		t.Fatalf("re-created: %+v", mv)
	}
	if info, err := m.CommitInfo(other); err != nil || info.Subject != "unrelated" || info.Author.Name != "A U Thor" || len(info.Parents) != 0 {
		t.Fatalf("%+v %v", info, err)
	}
	if _, err := m.FS(strings.Repeat("ab", 20)); !errors.Is(err, git.ErrUnknownRevision) {
		t.Fatalf("an unknown commit: %v", err)
	}
}

// What was seen survives a restart, and so does the knowledge that the branch was rewritten meanwhile.
func TestTipsSurviveARestart(t *testing.T) {
	s := gittest.Start(t)
	dir := t.TempDir()
	here := func(o *git.Options) { o.Dir = dir }
	c1 := s.Commit("one", "a", "1")
	c2 := s.Commit("two", "a", "2")
	s.Push("refs/heads/main")
	m := open(t, s, here)
	fetch(t, m, "main")
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	s.WorkGit("reset", "--hard", c1)
	s.Push("refs/heads/main", "--force")
	if mv := fetch(t, open(t, s, here), "main"); mv.Kind != git.MoveRewrite || mv.Old != c2 || mv.New != c1 {
		t.Fatalf("%+v", mv)
	}
}

func TestATreeIsAFileSystem(t *testing.T) {
	s := gittest.Start(t)
	s.Commit("one", "README.md", "hello\n", "clusters/a/cp1.yaml", strings.Repeat("x: 1\n", 100), "bin/run", "#!/bin/sh\n")
	if err := os.Chmod(filepath.Join(s.Work, "bin/run"), 0o755); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"clusters/link.yaml": "../README.md", "up": "../../../etc", "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(s.Work, link)); err != nil {
			t.Fatal(err)
		}
	}
	s.WorkGit("update-index", "--add", "--cacheinfo", "160000,"+strings.Repeat("12", 20)+",sub")
	s.WorkGit("add", "clusters", "bin", "up", "loop")
	s.WorkGit("commit", "--quiet", "-m", "links")
	s.Push("refs/heads/main")
	m := open(t, s)
	fsys := tree(t, m, fetch(t, m, "main").New)

	sub, err := fs.Sub(fsys, "clusters/a")
	if err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(sub, "cp1.yaml"); err != nil {
		t.Error(err)
	}
	if got := read(t, fsys, "README.md"); got != "hello\n" {
		t.Errorf("content %q", got)
	}
	modes := map[string]fs.FileMode{
		"clusters/link.yaml": fs.ModeSymlink, "up": fs.ModeSymlink, "sub": fs.ModeIrregular,
		"clusters": fs.ModeDir, "bin/run": 0,
	}
	for name, want := range modes {
		fi, err := fs.Stat(fsys, name)
		if err != nil || fi.Mode().Type() != want {
			t.Errorf("%s: %v %v, want type %v", name, fi, err, want)
		}
	}
	if fi, _ := fs.Stat(fsys, "clusters/a/cp1.yaml"); fi.Size() != 500 || len(fi.Sys().(string)) != 40 {
		t.Errorf("size %d, hash %v", fi.Size(), fi.Sys())
	}
	for _, name := range []string{"clusters/link.yaml", "up", "loop", "sub", "up/passwd", "sub/x", "nothing", "../x", "/README.md", "clusters/../README.md"} {
		if b, err := fs.ReadFile(fsys, name); err == nil {
			t.Errorf("%s could be read: %q", name, b)
		}
	}
	if to, err := fs.ReadLink(fsys, "up"); err != nil || to != "../../../etc" {
		t.Errorf("link text %q %v", to, err)
	}
}

// Trees that no honest Git writes are refused where they are read, and the name is in the error.
func TestMalformedTreesAreRefused(t *testing.T) {
	s := gittest.Start(t)
	s.Commit("one", "a", "1")
	blob := s.WorkGit("rev-parse", "HEAD:a")
	raw := func(names ...string) string {
		var b strings.Builder
		for _, n := range names {
			b.WriteString("100644 " + n + "\x00")
			for i := 0; i < 40; i += 2 {
				var x byte
				if _, err := fmt.Sscanf(blob[i:i+2], "%02x", &x); err != nil {
					t.Fatal(err)
				}
				b.WriteByte(x)
			}
		}
		f := filepath.Join(t.TempDir(), "tree")
		if err := os.WriteFile(f, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return s.WorkGit("hash-object", "-t", "tree", "-w", "--literally", f)
	}
	for i, names := range [][]string{{".."}, {".git"}, {".GIT"}, {`a\b`}, {"."}, {"x", "x"}} {
		t.Run(strings.Join(names, "+"), func(t *testing.T) {
			commit := s.WorkGit("commit-tree", "-m", "bad", raw(names...))
			ref := fmt.Sprintf("refs/heads/bad%d", i)
			s.WorkGit("push", "--quiet", "origin", commit+":"+ref)
			m := open(t, s)
			mv, err := m.FetchBranch(t.Context(), fmt.Sprintf("bad%d", i))
			if err == nil {
				_, err = fs.ReadDir(tree(t, m, mv.New), ".")
			}
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", names[0])) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

// A broken store is made anew once and the result is the same.
func TestABrokenStoreHeals(t *testing.T) {
	breaks := map[string]func(t *testing.T, store string){
		"zero-length ref": func(t *testing.T, store string) {
			each(t, filepath.Join(store, "refs/ichor/heads/main"), func(p string) error { return os.Truncate(p, 0) })
		},
		"cut index": func(t *testing.T, store string) {
			each(t, filepath.Join(store, "objects/pack/*.idx"), func(p string) error {
				_ = os.Chmod(p, 0o644)
				return os.Truncate(p, 200)
			})
		},
		"deleted pack": func(t *testing.T, store string) {
			each(t, filepath.Join(store, "objects/pack/*.pack"), os.Remove)
		},
		"no HEAD": func(t *testing.T, store string) { each(t, filepath.Join(store, "HEAD"), os.Remove) },
	}
	for name, hurt := range breaks {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/restart=%v", name, restart), func(t *testing.T) {
				s := gittest.Start(t)
				dir := t.TempDir()
				here := func(o *git.Options) { o.Dir = dir }
				s.Commit("one", "a", "1")
				s.Push("refs/heads/main")
				m := open(t, s, here)
				fetch(t, m, "main")
				if restart {
					_ = m.Close()
				}
				hurt(t, filepath.Join(dir, "mirror.git"))
				if restart {
					m = open(t, s, here)
				}
				c2 := s.Commit("two", "a", "2")
				s.Push("refs/heads/main")
				if mv := fetch(t, m, "main"); mv.New != c2 {
					t.Fatalf("%+v", mv)
				}
				if got := read(t, tree(t, m, c2), "a"); got != "2" {
					t.Fatalf("read %q", got)
				}
			})
		}
	}
}

func each(t *testing.T, pattern string, fn func(string) error) {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		t.Fatalf("nothing at %s: %v", pattern, err)
	}
	for _, p := range found {
		if err := fn(p); err != nil {
			t.Fatal(err)
		}
	}
}

// One pack comes with each fetch; they are joined, and everything stays readable.
func TestPacksAreJoined(t *testing.T) {
	s := gittest.Start(t)
	dir := t.TempDir()
	m := open(t, s, func(o *git.Options) { o.Dir = dir; o.Limits.Packs = 6 })
	var commits []string
	for i := range 25 {
		commits = append(commits, s.Commit("c", "a", fmt.Sprint(i)))
		s.Push("refs/heads/main")
		fetch(t, m, "main")
		packs, _ := filepath.Glob(filepath.Join(dir, "mirror.git/objects/pack/*.pack"))
		if len(packs) > 6 {
			t.Fatalf("%d packs after %d fetches", len(packs), i+1)
		}
	}
	for i, c := range commits {
		if got := read(t, tree(t, m, c), "a"); got != fmt.Sprint(i) {
			t.Fatalf("commit %d reads %q", i, got)
		}
	}
	s.WorkGit("clone", "--quiet", "--bare", filepath.Join(dir, "mirror.git"), filepath.Join(t.TempDir(), "x"))
	if out := s.WorkGit("-C", filepath.Join(dir, "mirror.git"), "fsck", "--full"); strings.Contains(out, "error") || strings.Contains(out, "missing") {
		t.Fatalf("git itself finds: %s", out)
	}
}

func TestPullRequests(t *testing.T) {
	s := gittest.Start(t)
	s.Commit("one", "a", "1")
	s.Push("refs/heads/main")
	pr := s.Commit("pr", "a", "2")
	s.Push("refs/pull/7/head")
	m := open(t, s)
	fetch(t, m, "main")
	if err := m.FetchPull(t.Context(), 7, pr); err != nil {
		t.Fatal(err)
	}
	if got := read(t, tree(t, m, pr), "a"); got != "2" {
		t.Fatal(got)
	}
	err := m.FetchPull(t.Context(), 7, strings.Repeat("0a", 20))
	wantClass(t, err, git.ClassRaced)
	err = m.FetchPull(t.Context(), 8, pr)
	wantClass(t, err, git.ClassGone)
	s.Requests()
	if err := m.FetchPull(t.Context(), 7, pr); err != nil || len(s.Requests()) != 0 {
		t.Fatalf("a head that is here must not be asked for again: %v", err)
	}
	if err := m.KeepPulls(nil); err != nil {
		t.Fatal(err)
	}
	deep := s.Commit("deep", "a", "3")
	s.Push("refs/heads/topic")
	if err := m.FetchCommit(t.Context(), deep); err != nil {
		t.Fatal(err)
	}
	if ok, err := m.IsAncestor(pr, deep); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if refs, err := m.LsRemote(t.Context()); err != nil || refs.Heads["topic"] != deep || refs.Default != "main" {
		t.Fatalf("%+v %v", refs, err)
	}
}

// A small pack with a huge blob is refused before it is inflated; the branch is not touched by it.
func TestAHugeBlobInAPullRequestIsRefused(t *testing.T) {
	s := gittest.Start(t)
	c1 := s.Commit("one", "a", "1")
	s.Push("refs/heads/main")
	big := filepath.Join(s.Work, "zeros")
	f, err := os.Create(big)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(200<<20), f.Close()); err != nil {
		t.Fatal(err)
	}
	pr := s.Commit("bomb")
	s.Push("refs/pull/1/head")
	m := open(t, s)
	fetch(t, m, "main")
	before, _ := m.StoreBytes()
	err = m.FetchPull(t.Context(), 1, pr)
	wantClass(t, err, git.ClassLimits)
	if after, _ := m.StoreBytes(); after > before+4096 {
		t.Fatalf("store grew from %d to %d", before, after)
	}
	if mv := fetch(t, m, "main"); mv.New != c1 {
		t.Fatalf("%+v", mv)
	}
}

func TestATokenIsSentAndReadAgain(t *testing.T) {
	s := gittest.Start(t)
	s.Commit("one", "a", "1")
	s.Push("refs/heads/main")
	valid := "first"
	var mu sync.Mutex
	s.Before(func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if user, pass, _ := r.BasicAuth(); pass != valid || user != "x-access-token" {
			w.Header().Set("WWW-Authenticate", "Basic")
			w.WriteHeader(http.StatusUnauthorized)
			return false
		}
		return true
	})
	file := filepath.Join(t.TempDir(), "token")
	put := func(v string) {
		if err := os.WriteFile(file, []byte(v+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("first")
	m := open(t, s, func(o *git.Options) { o.Auth.TokenFile = file })
	fetch(t, m, "main")
	mu.Lock()
	valid = "second"
	mu.Unlock()
	_, err := m.FetchBranch(t.Context(), "main")
	wantClass(t, err, git.ClassCredential)
	if strings.Contains(err.Error(), "first") {
		t.Fatal("the token is in the error")
	}
	put("second")
	fetch(t, m, "main")
	put("")
	_, err = m.FetchBranch(t.Context(), "main")
	wantClass(t, err, git.ClassCredential)
}

// A redirect to another host is refused and names both; the credential is not seen there.
func TestARedirectDoesNotTakeTheTokenAlong(t *testing.T) {
	var leaked []string
	var mu sync.Mutex
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		leaked = append(leaked, r.URL.Path, r.Header.Get("Authorization"))
	}))
	defer thief.Close()
	s := gittest.Start(t)
	s.Commit("one", "a", "1")
	s.Push("refs/heads/main")
	s.Before(func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, thief.URL+r.URL.RequestURI(), http.StatusMovedPermanently)
		return false
	})
	m := open(t, s, func(o *git.Options) { o.Auth.Token = secret.FromString("canary-token") })
	_, err := m.FetchBranch(t.Context(), "main")
	wantClass(t, err, git.ClassRedirect)
	mu.Lock()
	defer mu.Unlock()
	if len(leaked) != 0 {
		t.Fatalf("the other host was asked: %q", leaked)
	}
	if !strings.Contains(err.Error(), strings.TrimPrefix(thief.URL, "http://")) || strings.Contains(err.Error(), "canary") {
		t.Fatal(err)
	}
	// On the same host a moved repository is followed.
	s.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasPrefix(r.URL.Path, "/old/") {
			http.Redirect(w, r, strings.Replace(r.URL.RequestURI(), "/old/", "/o/", 1), http.StatusMovedPermanently)
			return false
		}
		return true
	})
	fetch(t, open(t, s, func(o *git.Options) { o.URL = strings.Replace(s.URL, "/o/", "/old/", 1) }), "main")
}

func TestServerTroubleHasItsClass(t *testing.T) {
	s := gittest.Start(t)
	s.Commit("one", "a", "1")
	s.Push("refs/heads/main")
	for code, want := range map[int]git.Class{
		500: git.ClassTransient, 503: git.ClassTransient, 429: git.ClassRate, 403: git.ClassAccess,
		404: git.ClassAccess, 401: git.ClassCredential,
	} {
		s.Before(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(code); return false })
		_, err := open(t, s).FetchBranch(t.Context(), "main")
		if got := git.ClassOf(err); got != want {
			t.Errorf("%d: %q (%v), want %q", code, got, err, want)
		}
	}
	// A server that takes the request and says nothing.
	release := make(chan struct{})
	defer close(release)
	s.Before(func(_ http.ResponseWriter, r *http.Request) bool {
		select {
		case <-release:
		case <-r.Context().Done():
		}
		return false
	})
	begun := time.Now()
	_, err := open(t, s, func(o *git.Options) { o.Timeout = 200 * time.Millisecond }).FetchBranch(t.Context(), "main")
	wantClass(t, err, git.ClassTransient)
	if time.Since(begun) > 10*time.Second {
		t.Error("the deadline did not hold")
	}
	// An answer that is cut in the middle of the pack.
	s.Before(nil)
	s.After(func(r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "git-upload-pack") {
			panic(http.ErrAbortHandler)
		}
	})
	m := open(t, s)
	_, err = m.FetchBranch(t.Context(), "main")
	wantClass(t, err, git.ClassTransient)
	s.After(nil)
	fetch(t, m, "main")

	tls := httptest.NewTLSServer(http.NotFoundHandler())
	defer tls.Close()
	_, err = open(t, s, func(o *git.Options) { o.URL = tls.URL + "/o/fleet.git" }).FetchBranch(t.Context(), "main")
	wantClass(t, err, git.ClassTrust)
}

func TestURLsThatAreRefused(t *testing.T) {
	for url, ok := range map[string]bool{
		"https://forge.example/o/r.git": true, "ssh://git@forge.example:2222/o/r.git": true, "git@forge.example:o/r.git": true,
		"http://127.0.0.1:3000/o/r": true,
		"":                          false, "https://user:canary@forge.example/o/r": false, "https://canary@forge.example/o/r": false,
		"ssh://git:canary@forge.example/o/r": false, "ext::sh -c id": false, "git://forge.example/o/r": false,
		"file:///srv/r": false, "/srv/r": false, "./r": false, "-oProxyCommand=x": false, "https://": false,
		"https://forge.example/o/r?x=canary": false, "https://forge.example/\x00": false, "http://[::1": false,
	} {
		m, err := git.Open(t.Context(), git.Options{Dir: t.TempDir(), URL: url})
		if (err == nil) != ok {
			t.Errorf("%q: %v", url, err)
		}
		if err != nil && (git.ClassOf(err) != git.ClassConfig || strings.Contains(err.Error(), "canary")) {
			t.Errorf("%q: %q %v", url, git.ClassOf(err), err)
		}
		if m != nil {
			_ = m.Close()
		}
	}
	plain := git.Options{Dir: t.TempDir(), URL: "http://forge.example/o/r", Auth: git.Auth{Token: secret.FromString("x")}}
	if _, err := git.Open(t.Context(), plain); git.ClassOf(err) != git.ClassConfig {
		t.Errorf("a token over plain http: %v", err)
	}
	plain.AllowPlainHTTPAuth = true
	if m, err := git.Open(t.Context(), plain); err != nil {
		t.Error(err)
	} else {
		_ = m.Close()
	}
}

// A local path works when it is allowed: for trying Ichor out.
func TestALocalPath(t *testing.T) {
	s := gittest.Start(t)
	c := s.Commit("one", "a", "1")
	s.Push("refs/heads/main")
	for _, url := range []string{s.Dir, "file://" + s.Dir} {
		m := open(t, s, func(o *git.Options) { o.URL = url; o.AllowLocal = true })
		if mv := fetch(t, m, "main"); mv.New != c {
			t.Fatalf("%+v", mv)
		}
		b, err := m.Branch("ichor/status", git.BranchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		h, err := b.Commit(t.Context(), tipOf(t, b), []git.Change{{Path: "x", Data: []byte(url)}}, "m", time.Unix(0, 0))
		if err != nil || s.Git("rev-parse", "ichor/status") != h {
			t.Fatal(h, err)
		}
	}
}

// What a killed process leaves is swept at the next start.
func TestDebrisIsSwept(t *testing.T) {
	s := gittest.Start(t)
	s.Commit("one", "a", "1")
	s.Push("refs/heads/main")
	dir := t.TempDir()
	here := func(o *git.Options) { o.Dir = dir }
	m := open(t, s, here)
	fetch(t, m, "main")
	clean, _ := m.StoreBytes()
	_ = m.Close()
	for _, name := range []string{"tmp_fetch_1", "objects/pack/tmp_pack_2", "objects/pack/tmp_idx_3"} {
		if err := os.WriteFile(filepath.Join(dir, "mirror.git", name), make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m = open(t, s, here)
	fetch(t, m, "main")
	if n, _ := m.StoreBytes(); n > clean+1000 {
		t.Fatalf("%d bytes, clean is %d", n, clean)
	}
}

// Checks read trees while the loop fetches and the status branch is written.
func TestReadersAndFetchesTogether(t *testing.T) {
	s := gittest.Start(t)
	s.Commit("one", "a", "0", "b/c", "x")
	s.Push("refs/heads/main")
	m := open(t, s, func(o *git.Options) { o.Limits.Packs = 3 })
	fsys := tree(t, m, fetch(t, m, "main").New)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
					if err == nil && !d.IsDir() {
						_, err = fs.ReadFile(fsys, p)
					}
					return err
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range 8 {
		s.Commit("c", "a", fmt.Sprint(i))
		s.Push("refs/heads/main")
		fetch(t, m, "main")
	}
	close(stop)
	wg.Wait()
}

func TestOpenedFilesReadLikeFiles(t *testing.T) {
	s := gittest.Start(t)
	s.Commit("one", "d/a", "abc")
	s.Push("refs/heads/main")
	m := open(t, s)
	f, err := tree(t, m, fetch(t, m, "main").New).Open("d/a")
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err != nil || string(b) != "abc" || f.Close() != nil {
		t.Fatal(string(b), err)
	}
}

// A server replaces branch a by a/b, and the other way round.
func TestABranchBecomesAFolder(t *testing.T) {
	s := gittest.Start(t)
	s.Commit("one", "a", "1")
	s.Push("refs/heads/queue")
	m := open(t, s)
	fetch(t, m, "queue")
	s.Git("update-ref", "-d", "refs/heads/queue")
	c := s.Commit("two", "a", "2")
	s.Push("refs/heads/queue/b")
	if mv := fetch(t, m, "queue/b"); mv.New != c || mv.Kind != git.MoveFirst {
		t.Fatalf("%+v", mv)
	}
	if mv := fetch(t, m, "queue"); mv.Kind != git.MoveGone {
		t.Fatalf("%+v", mv)
	}
	if err := m.KeepBranches([]string{"queue/b"}); err != nil {
		t.Fatal(err)
	}
	if mv := fetch(t, m, "queue"); mv.Old != "" {
		t.Fatalf("forgotten and yet known: %+v", mv)
	}
	_, err := m.FetchBranch(t.Context(), "../x")
	wantClass(t, err, git.ClassConfig)
}
