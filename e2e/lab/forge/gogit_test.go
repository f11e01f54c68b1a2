package forge_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	gogit "github.com/go-git/go-git/v5"
	gitconfig "github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/storage/memory"

	"ichor.maesh.dev/ichor/e2e/lab/forge"
)

// TestGoGit: the client that Ichor has, against the forge: pull request refs, compare-and-swap, errors.
func TestGoGit(t *testing.T) {
	f := open(t, t.TempDir())
	main := push(t, f, "main", map[string]string{"a": "1"})
	head := push(t, f, "b", map[string]string{"a": "2"})
	if _, err := f.OpenPR("b", "", "b"); err != nil {
		t.Fatal(err)
	}
	auth := &http.BasicAuth{Username: "ichor", Password: token}
	store := memory.NewStorage()
	remote := git5(t, store, f.CloneURL())
	err := remote.FetchContext(t.Context(), &gogit.FetchOptions{Auth: auth, Tags: gogit.NoTags, RefSpecs: []gitconfig.RefSpec{"+refs/heads/main:refs/x/main", "+refs/pull/1/head:refs/x/1"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[plumbing.ReferenceName]string{"refs/x/main": main, "refs/x/1": head} {
		if ref, err := store.Reference(name); err != nil || ref.Hash().String() != want {
			t.Errorf("%s: %v %v", name, ref, err)
		}
	}
	for name, c := range map[string]struct {
		auth transport.AuthMethod
		want error
	}{"nobody": {nil, transport.ErrAuthenticationRequired}, "wrong": {&http.BasicAuth{Username: "x", Password: "no"}, transport.ErrAuthenticationRequired}} {
		if _, err := remote.ListContext(t.Context(), &gogit.ListOptions{Auth: c.auth}); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	f.AddToken("reader", "reader", forge.Rights{})
	one := commit(t, store, "one", plumbing.ZeroHash)
	to := func(hash plumbing.Hash) []gitconfig.RefSpec {
		return []gitconfig.RefSpec{gitconfig.RefSpec(hash.String() + ":refs/heads/ichor/status")}
	}
	if err := remote.PushContext(t.Context(), &gogit.PushOptions{Auth: &http.BasicAuth{Username: "x", Password: "reader"}, RefSpecs: to(one)}); !errors.Is(err, transport.ErrAuthorizationFailed) {
		t.Errorf("push with a reader's token: %v", err)
	}
	if err := remote.PushContext(t.Context(), &gogit.PushOptions{Auth: auth, RefSpecs: to(one)}); err != nil || f.Tip("ichor/status") != one.String() {
		t.Fatalf("first push: %v", err)
	}
	if err := remote.PushContext(t.Context(), &gogit.PushOptions{Auth: auth, RefSpecs: to(commit(t, store, "rival", plumbing.ZeroHash))}); err == nil {
		t.Error("a push that is no fast-forward was taken")
	}
	if err := remote.PushContext(t.Context(), &gogit.PushOptions{Auth: auth, RefSpecs: to(commit(t, store, "two", one))}); err != nil {
		t.Error(err)
	}
}

func git5(t *testing.T, store *memory.Storage, url string) *gogit.Remote {
	t.Helper()
	return gogit.NewRemote(store, &gitconfig.RemoteConfig{Name: "origin", URLs: []string{url}})
}

// commit makes an empty commit.
func commit(t *testing.T, store *memory.Storage, message string, parent plumbing.Hash) plumbing.Hash {
	t.Helper()
	save := func(o interface {
		Encode(plumbing.EncodedObject) error
	},
	) plumbing.Hash {
		enc := store.NewEncodedObject()
		if err := o.Encode(enc); err != nil {
			t.Fatal(err)
		}
		h, err := store.SetEncodedObject(enc)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	who := object.Signature{Name: "ichor", Email: "ichor@localhost", When: time.Now()}
	c := &object.Commit{Author: who, Committer: who, Message: message, TreeHash: save(&object.Tree{})}
	if !parent.IsZero() {
		c.ParentHashes = []plumbing.Hash{parent}
	}
	return save(c)
}

// TestManyAtOnce: pushes, pull requests, statuses and reads at the same time; run with -race.
func TestManyAtOnce(t *testing.T) {
	f := open(t, t.TempDir())
	push(t, f, "main", map[string]string{"a": "0"})
	gh, _ := client(t, f, token)
	work := t.TempDir()
	mustGit(t, work, "clone", withToken(f, token), "fleet")
	dir := folder(t, map[string]string{"a": "1"})
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			branch := fmt.Sprintf("b%d", i)
			sha, err := f.Push(t.Context(), forge.PushOptions{Dir: dir, Branch: branch, Message: branch, AllowEmpty: true})
			if err != nil {
				t.Error(err)
				return
			}
			n, err := f.OpenPR(branch, "", branch)
			if err != nil {
				t.Error(err)
				return
			}
			if err := f.SetDraft(n, i%2 == 0); err != nil {
				t.Error(err)
			}
			if _, _, err := gh.PullRequests.Get(t.Context(), "acme", "fleet", n); err != nil {
				t.Error(err)
			}
			if _, _, err := gh.Repositories.GetCombinedStatus(t.Context(), "acme", "fleet", sha, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Go(func() {
		dir := filepath.Join(work, "fleet")
		for i := range 4 {
			if out, err := git0(dir, "commit", "--allow-empty", "-m", fmt.Sprint(i)); err != nil {
				t.Error(out, err)
			}
			if out, err := git0(dir, "push", "origin", "HEAD:real"); err != nil {
				t.Error(out, err)
			}
		}
	})
	wg.Go(func() {
		if err := f.Rename("ships"); err != nil {
			t.Error(err)
		}
		f.Recreate()
	})
	wg.Wait()
	if p := f.Pulls(); len(p) != 6 {
		t.Fatalf("%d pull requests", len(p))
	}
	if b, err := f.Branches(); err != nil || len(b) != 8 {
		t.Fatalf("branches: %v %v", b, err)
	}
}
