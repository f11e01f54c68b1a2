package main

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/validate/check"
)

// source says what a command looks at: a folder as it is, or commits of the repository that it lies in.
type source struct {
	rev, base, path string
	// observed is a revision of the status branch, recipients are Ichor's own age public keys.
	observed   string
	recipients []string
	resolve    bool
	timeout    time.Duration
	// notes takes what a person should know beside the output.
	notes io.Writer
}

// flags adds the flags of a source to a command.
func (s *source) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.rev, "rev", "", "look at this `revision` of the Git repository instead of the folder's files")
	f.StringVar(&s.base, "base", "",
		"compare with this `revision` (default: HEAD for a folder, the first parent for --rev); what it has wrong already is excused")
	f.StringVar(&s.path, "path", "", "look at this `folder` below DIR only")
	f.StringVar(&s.observed, "observed", "",
		"warn of what this `revision` of the status branch (origin/ichor/status) says of the nodes; never part of the verdict")
	f.StringSliceVar(&s.recipients, "recipient", nil, "the `age1…` public key of the daemon, which must be able to open the secrets")
	f.DurationVar(&s.timeout, "timeout", check.DefaultTimeout, "give up after this `time`; then the check has failed")
}

// valid refuses flags that can't be meant. An empty revision is a script's variable that was not set: looking at the
// folder instead would check something else.
func (s *source) valid(cmd *cobra.Command) error {
	for _, f := range [][2]string{{"rev", s.rev}, {"base", s.base}, {"observed", s.observed}} {
		if f[1] == "" && cmd.Flags().Changed(f[0]) {
			return usagef("--%s is empty: name a revision, or leave the flag out", f[0])
		}
	}
	if s.path != "" && !fs.ValidPath(path.Clean(s.path)) {
		return usagef("--path %s is no folder within the repository", s.path)
	}
	for _, r := range s.recipients {
		if _, err := age.ParseRecipients(strings.NewReader(r)); err != nil || !strings.HasPrefix(r, "age1") {
			// Not quoted: it may be the private key, by mistake.
			return usagef("--recipient takes an age public key, which begins with age1")
		}
	}
	if s.timeout < 0 {
		return usagef("--timeout %s is negative", s.timeout)
	}
	return nil
}

// input opens what a check reads: DIR, or a commit, of the repository that DIR lies in. Paths in manifests and places in
// problems are relative to that repository's root; without a repository DIR itself is the root. done closes it.
func (s *source) input(dir string) (in check.Input, done func(), err error) {
	in = check.Input{
		Load: fleet.Options{Path: s.path}, Timeout: s.timeout, ExcuseBase: s.base != "", Recipients: s.recipients,
	}
	if s.resolve {
		in.Resolve = resolveHost
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return in, nil, usagef("%s is no folder", dir)
	}
	repo, err := s.repository(dir)
	if err != nil {
		return in, nil, err
	}
	root := dir
	if repo != nil {
		in.Load.Path = path.Join(repo.Prefix(), s.path)
		if root = repo.Root(); root == "" && s.rev == "" {
			return in, nil, usagef("%s is a bare Git repository, which has no files: name a commit with --rev", dir)
		}
	}
	done = func() {}
	if s.rev == "" {
		r, err := os.OpenRoot(root)
		if err != nil {
			return in, nil, fmt.Errorf("open folder %s: %w", root, err)
		}
		in.FS, done = r.FS(), func() { _ = r.Close() }
	}
	if repo != nil {
		if err := s.commits(&in, repo); err != nil {
			done()
			return in, nil, err
		}
	}
	return in, done, nil
}

// repository opens the one that dir lies in; nil where it lies in none and none is needed.
func (s *source) repository(dir string) (*git.Local, error) {
	repo, err := git.OpenLocal(dir)
	switch {
	case err == nil:
		return repo, nil
	case !errors.Is(err, git.ErrNoRepository):
		return nil, fmt.Errorf("open repository of %s: %w", dir, err)
	case s.rev == "" && s.base == "" && s.observed == "":
		return nil, nil
	}
	return nil, usagef("%s is in no Git repository: --rev, --base and --observed need one", dir)
}

// commits opens the commits that are looked at or compared with.
func (s *source) commits(in *check.Input, repo *git.Local) error {
	var err error
	if s.observed != "" {
		if in.Observed, err = observation(repo, s.observed, time.Now()); err != nil {
			return err
		}
	}
	base := s.base
	if s.rev != "" {
		if in.Commit, in.FS, err = s.commit(repo, s.rev); err != nil {
			return err
		}
		if base == "" {
			if base, err = repo.FirstParent(in.Commit); err != nil {
				return fmt.Errorf("find the parent of %s: %w", s.rev, err)
			}
		}
	} else if base == "" {
		if base, err = repo.Resolve("HEAD"); err != nil {
			if !repo.Unborn() {
				// Without base nothing would be a deletion or a change: a damaged repository must not pass for a new one.
				return fmt.Errorf("HEAD can't be read, so there is nothing to compare with: the repository is damaged; "+
					"git fsck says what is missing, a fresh clone mends it: %w", err)
			}
			fmt.Fprintf(s.notes, "ichor: HEAD is no commit: nothing to compare with\n")
			return nil
		}
	}
	if base == "" {
		return nil
	}
	if in.Base, in.BaseFS, err = s.commit(repo, base); err != nil {
		return err
	}
	if _, err := fs.Stat(in.BaseFS, cmp.Or(in.Load.Path, ".")); errors.Is(err, fs.ErrNotExist) {
		// The folder is new: base has nothing of it.
		in.BaseFS = newFolder{in.Load.Path}
	}
	return nil
}

// commit opens the tree of a revision.
func (s *source) commit(repo *git.Local, rev string) (string, fs.FS, error) {
	sha, err := repo.Resolve(rev)
	if errors.Is(err, git.ErrUnknownRevision) {
		hint := ""
		if e := (*git.Error)(nil); errors.As(err, &e) && e.Hint != "" {
			hint = "; " + e.Hint
		}
		return "", nil, usagef("unknown revision %q%s", rev, hint)
	}
	if err != nil {
		return "", nil, fmt.Errorf("find revision %s: %w", rev, err)
	}
	tree, err := repo.FS(sha)
	if err != nil {
		return "", nil, fmt.Errorf("open the tree of %s: %w", rev, err)
	}
	return sha, tree, nil
}

// newFolder is a tree without any file in which one folder is there, empty.
type newFolder struct{ path string }

func (f newFolder) Open(name string) (fs.File, error) {
	if name == f.path {
		return embed.FS{}.Open(".")
	}
	return embed.FS{}.Open(name)
}

// run checks what the source says.
func (s *source) run(cmd *cobra.Command, args []string, keepRenders bool) (*check.Report, *check.Detail, error) {
	s.notes = cmd.ErrOrStderr()
	dir := "."
	if len(args) > 0 {
		dir = args[0]
	}
	if err := s.valid(cmd); err != nil {
		return nil, nil, err
	}
	in, done, err := s.input(dir)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	in.KeepRenders = keepRenders
	report, detail, err := check.Run(cmd.Context(), in)
	if err == nil && len(report.Problems) == 0 && detail.Head != nil && len(detail.Head.Clusters)+len(detail.Head.Policies) == 0 {
		// It passes, but hardly anybody means to check nothing.
		fmt.Fprintf(s.notes, "ichor: %s holds no manifest of %s\n", cmp.Or(s.path, dir), v1alpha1.Group)
	}
	return report, detail, err
}

// resolveTimeout bounds one look-up.
const resolveTimeout = 5 * time.Second

func resolveHost(ctx context.Context, host string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	return net.DefaultResolver.LookupHost(ctx, host)
}
