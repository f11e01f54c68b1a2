package daemon

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ichor.maesh.dev/ichor/cmd/internal/config"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/outbox"
	"ichor.maesh.dev/ichor/sync/forge"
	"ichor.maesh.dev/ichor/sync/forge/forgetest"
	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/sync/git/gittest"
)

// askable is a forge of which only the repository is asked.
type askable struct {
	forge.Forge
	repo  forge.Repository
	err   error
	asked int
}

func (a *askable) Repository(context.Context) (forge.Repository, error) {
	a.asked++
	return a.repo, a.err
}

func identityOf(t *testing.T, c config.Config, f forge.Forge, log *bytes.Buffer) *repoIdentity {
	t.Helper()
	i, err := openIdentity(c, f, slog.New(slog.NewTextHandler(log, nil)), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestWhoTheRepositoryIs(t *testing.T) {
	c := local(t)
	c.Forge = config.Forge{Kind: "gitlab", URL: "https://forge.example", Repository: "acme/fleet"}
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := &askable{err: errors.New("down")}
		i := identityOf(t, c, f, &log)
		check := func(what string, held bool, asked int) {
			t.Helper()
			f.asked = 0
			if err := i.check(t.Context()); (err != nil) != held || f.asked != asked {
				t.Errorf("%s: %v, asked %d times", what, err, f.asked)
			}
		}
		check("a forge that is silent", false, 1)
		check("again", false, 0)
		time.Sleep(identityPause)
		f.repo, f.err = forge.Repository{ID: "7", FullName: "Acme/Fleet"}, nil
		check("the first answer", false, 1)
		check("at once again", false, 0)
		if i.id() != "7" || strings.Contains(log.String(), "another name") {
			t.Error(i.id(), log.String())
		}
		time.Sleep(identityHolds)
		f.repo.FullName = "acme/ships"
		check("renamed", false, 1)
		if n := strings.Count(log.String(), "has another name now"); n != 1 {
			t.Errorf("said %d times: %s", n, log.String())
		}
		time.Sleep(identityHolds)
		f.repo = forge.Repository{ID: "8", FullName: "acme/fleet"}
		check("replaced", true, 1)
		check("at once again", true, 0)
		time.Sleep(identityHolds)
		f.err = errors.New("down")
		check("replaced, and a forge that is silent", true, 1)
		if i.id() != "7" {
			t.Error("the other one's number was taken on")
		}

		// A restart knows it still; another repository in the configuration is another beginning.
		f.err = nil
		if err := identityOf(t, c, f, &log).check(t.Context()); err == nil || !strings.Contains(err.Error(), "7") || !strings.Contains(err.Error(), "8") {
			t.Errorf("after a restart: %v", err)
		}
		other := c
		other.Forge.Repository = "acme/else"
		if err := identityOf(t, other, f, &log).check(t.Context()); err != nil {
			t.Errorf("another repository: %v", err)
		}
		other.Forge.Repository = c.Forge.Repository

		time.Sleep(identityPause)
		f.repo.ID = "7"
		check("back", false, 1)
	})
	if err := os.WriteFile(filepath.Join(c.StateDir, "repository.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openIdentity(c, &askable{}, quiet(), time.Now); err == nil || !strings.Contains(err.Error(), "repository.json") {
		t.Errorf("a broken file: %v", err)
	}
	c.Forge.Kind = "none"
	if i, err := openIdentity(c, nil, quiet(), time.Now); i != nil || err != nil || i.check(t.Context()) != nil || i.id() != "" || i.guard() != nil {
		t.Error("without a forge there is nobody to ask")
	}
}

// TestAReplacedRepositoryIsHeld has the real parts: a Git server and a GitLab whose project is replaced under the same name
// while Ichor runs. Not one request reaches the other's Git server, no status is posted, and pull requests count as before.
func TestAReplacedRepositoryIsHeld(t *testing.T) {
	srv, gl := gittest.Start(t), forgetest.StartGitLab(t)
	head := srv.Commit("one", "a", "1")
	gl.Know(head)
	srv.Push("refs/heads/main")
	c := local(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Repo = srv.URL
	c.Forge = config.Forge{Kind: "gitlab", URL: gl.HTTP.URL, Repository: forgetest.GitLabRepo, TokenFile: token}
	offset := time.Duration(0)
	open := func() *Parts {
		t.Helper()
		p, err := Open(t.Context(), c, quiet(), noEnv)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		p.identity.now = func() time.Time { return time.Now().Add(offset) }
		return p
	}
	p := open()
	n := gl.Open(forgetest.Pull{Head: gl.Commit(), Base: "main"})
	w := p.Looker.Look(t.Context())
	if w.GitErr != nil || w.Head != head || len(w.Open) != 1 {
		t.Fatalf("%+v", w)
	}
	if err := p.before(t.Context(), head, state.CommitStatus{}); err != nil {
		t.Fatal(err)
	}

	gl.Replace()
	gl.Close(n)
	srv.WorkGit("checkout", "--quiet", "--orphan", "other")
	srv.Commit("other", "a", "2")
	srv.Push("refs/heads/main", "--force")
	offset = time.Hour
	srv.Requests()
	look := func(p *Parts, want string) {
		t.Helper()
		w := p.Looker.Look(t.Context())
		if git.ClassOf(w.GitErr) != git.ClassReplaced || w.ForgeErr == nil || w.Head != want || len(w.Closed) != 0 {
			t.Errorf("%+v", w)
		}
		if err := p.before(t.Context(), head, state.CommitStatus{}); err == nil || !strings.Contains(err.Error(), "another repository") {
			t.Errorf("a status: %v", err)
		}
		p.Say.pages.Put("README.md", []byte("x"))
		if err := p.Say.flush(t.Context()); err == nil {
			t.Error("the status branch was pushed")
		}
		if asked := srv.Requests(); len(asked) != 0 {
			t.Errorf("the other's Git server was asked: %v", asked)
		}
	}
	look(p, head)
	if err := p.Say.statuses.Set(head, state.CommitStatus{Context: "ichor/check", State: state.StateSuccess}, outbox.High); err != nil {
		t.Fatal(err)
	}
	limited, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := p.Post(limited); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if posts := gl.Posts(); len(posts) != 0 || p.Queued() != 1 {
		t.Errorf("%d posted, %d queued", len(posts), p.Queued())
	}

	// A restart while the forge does not answer, and one while the other is there, know it.
	p.Close()
	again := open()
	look(again, "")
	again.Close()
	gl.Before(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusBadGateway); return false })
	third := open()
	look(third, "")

	// The right one is back: what was queued goes out, and the look goes on from where it was.
	third.Close()
	gl.Before(nil)
	gl.Restore()
	srv.WorkGit("checkout", "--quiet", "--detach", head)
	srv.Push("refs/heads/main", "--force")
	last := open()
	if w := last.Looker.Look(t.Context()); w.GitErr != nil || w.Head != head {
		t.Errorf("%+v", w)
	}
	limited, cancel = context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() { _ = last.Post(limited) }()
	for last.Queued() > 0 && limited.Err() == nil {
		time.Sleep(20 * time.Millisecond)
	}
	if posts := gl.Posts(); len(posts) != 1 {
		t.Errorf("%d posted in the end", len(posts))
	}
}
