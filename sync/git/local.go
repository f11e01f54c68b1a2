package git

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/osfs"
	gogit "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/storage"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// Local is a repository on a person's disk, read-only: `ichor check --rev` looks at its objects, never at its files.
type Local struct {
	repo   *gogit.Repository
	store  *store
	prefix string
	root   string
}

// OpenLocal finds the repository that dir lies in: dir or a folder above it has .git, a folder or (in worktrees and
// submodules) a file; or dir is a bare repository. ErrNoRepository when there is none.
func OpenLocal(dir string) (*Local, error) {
	op := opf("open repository of %s", dir)
	abs, err := filepath.Abs(dir)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return nil, failAs(op, ClassConfig, err)
	}
	repo, err := gogit.PlainOpenWithOptions(abs, &gogit.PlainOpenOptions{DetectDotGit: true, EnableDotGitCommonDir: true})
	if errors.Is(err, gogit.ErrRepositoryNotExists) {
		// A bare one: the folder is the repository.
		repo, err = gogit.PlainOpen(abs)
	}
	if errors.Is(err, gogit.ErrRepositoryNotExists) {
		return nil, failAs(op, ClassConfig, ErrNoRepository)
	}
	if err != nil {
		return nil, failAs(op, ClassUnsupported, err)
	}
	if repo, err = withAlternates(repo); err != nil {
		return nil, failAs(op, ClassUnsupported, err)
	}
	l := &Local{repo: repo, store: &store{st: repo.Storer}}
	if wt, err := repo.Worktree(); err == nil {
		root, err := filepath.EvalSymlinks(wt.Filesystem.Root())
		if err != nil {
			return nil, failAs(op, ClassConfig, err)
		}
		l.root = root
		rel, err := filepath.Rel(root, abs)
		if err != nil {
			return nil, failAs(op, ClassConfig, err)
		}
		if l.prefix = filepath.ToSlash(rel); l.prefix == "." {
			l.prefix = ""
		}
	}
	return l, nil
}

// withAlternates opens the repository again where it borrows objects from another one (git clone --shared): go-git looks
// for those below .git only unless told.
func withAlternates(repo *gogit.Repository) (*gogit.Repository, error) {
	st, ok := repo.Storer.(*filesystem.Storage)
	if !ok {
		return repo, nil
	}
	if _, err := st.Filesystem().Stat("objects/info/alternates"); err != nil {
		return repo, nil //nolint:nilerr // it borrows none
	}
	var files billy.Filesystem
	if wt, err := repo.Worktree(); err == nil {
		files = wt.Filesystem
	}
	return gogit.Open(filesystem.NewStorageWithOptions(st.Filesystem(), cache.NewObjectLRU(cacheBytes),
		filesystem.Options{AlternatesFS: osfs.New("/")}), files)
}

// Prefix is dir's place in the repository with slashes, "" at its root.
func (l *Local) Prefix() string { return l.prefix }

// Root is the folder of the checkout, "" for a bare repository.
func (l *Local) Root() string { return l.root }

// Resolve turns a revision as people write it (HEAD, a branch, a tag, HEAD~2, a short hash) into a full commit hash.
// ErrUnknownRevision when there is no such commit.
func (l *Local) Resolve(rev string) (string, error) {
	op := opf("resolve revision %q", clip(rev, 60))
	if i := strings.IndexByte(rev, ':'); i > 0 || strings.HasSuffix(rev, "^{tree}") || strings.HasSuffix(rev, "^{blob}") {
		// go-git looks at what stands before and gives the commit: HEAD:file would pass for HEAD.
		return "", failAs(op, ClassUnknownRevision, fmt.Errorf("%w: it is not a commit", ErrUnknownRevision))
	}
	var out string
	err := l.store.view(op, func(storage.Storer) error {
		h, err := l.repo.ResolveRevision(plumbing.Revision(rev))
		if err != nil {
			return fmt.Errorf("%w: %w", ErrUnknownRevision, err)
		}
		if _, err := l.repo.CommitObject(*h); err != nil {
			return fmt.Errorf("%w: it is not a commit", ErrUnknownRevision)
		}
		out = h.String()
		return nil
	})
	return out, l.explain(err)
}

// Unborn tells a repository whose HEAD names a branch that has no commit yet, as git init leaves it. False where HEAD
// names a commit, there or missing, and where HEAD itself can't be read.
func (l *Local) Unborn() bool {
	head, err := l.repo.Reference(plumbing.HEAD, false)
	if err != nil || head.Type() != plumbing.SymbolicReference {
		return false
	}
	_, err = l.repo.Reference(head.Target(), true)
	return errors.Is(err, plumbing.ErrReferenceNotFound)
}

// FS gives the tree of a commit.
func (l *Local) FS(commit string) (fs.FS, error) {
	fsys, err := newTreeFS(l.store, commit)
	return fsys, l.explain(err)
}

// explain adds the usual reason why a commit that history names isn't there.
func (l *Local) explain(err error) error {
	var e *Error
	if !errors.As(err, &e) || e.Class != ClassUnknownRevision {
		return err
	}
	if cut, serr := l.repo.Storer.Shallow(); serr == nil && len(cut) > 0 {
		out := *e
		out.Hint = "this clone is shallow: fetch more history, with git fetch --unshallow or fetch-depth: 0 in CI"
		return &out
	}
	return err
}

// FirstParent gives the first parent, "" for a root commit.
func (l *Local) FirstParent(commit string) (string, error) { return firstParent(l.store, commit) }

// CommitInfo reads a commit.
func (l *Local) CommitInfo(commit string) (CommitInfo, error) { return commitInfo(l.store, commit) }
