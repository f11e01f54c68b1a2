// Package rehearse lets people try a change of their own repository: it brings a copy of the repository up on the lab,
// rolls the change out with the real daemon, and says in plain words what happened. Nothing of the repository, of its
// nodes or of its secrets is touched.
package rehearse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"filippo.io/age"

	"ichor.maesh.dev/ichor/e2e/harness"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/status/report"
	"ichor.maesh.dev/ichor/validate/check"
)

// Options of a rehearsal.
type Options struct {
	// Dir is the folder with the manifests.
	Dir string
	// Base and Rev are Git revisions: what runs first, and what is rolled out. Defaults: HEAD and the folder's files;
	// with Rev its first parent.
	Base, Rev string
	// State is the folder to work in; "" makes one, which Keep keeps.
	State string
	Keep  bool
	// Ichor is the daemon's binary.
	Ichor string
	// Apply rolls clusters in mode observe out too.
	Apply bool
	// RealTime keeps settle, interval and grace of the manifests, and lets nodes take as long as real ones.
	RealTime bool
	// Patience is how long nothing may happen before a rollout counts as stuck.
	Patience time.Duration
	// Out gets what happens, for people.
	Out io.Writer
}

// ErrNotThrough: the rehearsal ended, and the change would not have gone through cleanly. What happened was printed.
var ErrNotThrough = errors.New("the rehearsal did not go through")

// Run rehearses. It gives ErrNotThrough when the change was refused, stuck or hurt the cluster, a UsageError when it
// was called wrongly, and another error when the rehearsal itself failed.
func Run(ctx context.Context, o Options) error {
	src, err := o.open()
	if err != nil {
		return err
	}
	if o.Ichor, err = findIchor(o.Ichor); err != nil {
		return err
	}
	// The rehearsal has a key of its own; a person's must neither be used nor shown to what runs in it.
	for _, name := range []string{bundle.EnvKey, bundle.EnvKeyFile} {
		if err := os.Unsetenv(name); err != nil {
			return err
		}
	}
	dir := o.State
	if dir == "" {
		if dir, err = os.MkdirTemp("", "ichor-rehearse-"); err != nil {
			return fmt.Errorf("make a folder to work in: %w", err)
		}
		if !o.Keep {
			defer os.RemoveAll(dir) //nolint:errcheck // temporary
		}
	} else if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return usagef("--state %s is not empty: a rehearsal begins anew; name another folder, or delete that one", dir)
	}
	s := &stage{opt: o, src: src, dir: dir, begun: time.Now()}
	defer s.end()
	return s.run(ctx)
}

// findIchor looks for the daemon: beside this program, then on the PATH.
func findIchor(given string) (string, error) {
	if given != "" {
		if info, err := os.Stat(given); err != nil || info.IsDir() {
			return "", usagef("--ichor %s is no program", given)
		}
		return filepath.Abs(given)
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "ichor")
		if info, err := os.Stat(beside); err == nil && !info.IsDir() {
			return beside, nil
		}
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if info, err := os.Stat(filepath.Join(dir, "ichor")); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return filepath.Join(dir, "ichor"), nil
		}
	}
	return "", usagef("the ichor program is neither beside ichor-lab nor on the PATH: \"make build\" builds both, or name it with --ichor")
}

// stage is where a rehearsal happens.
type stage struct {
	opt   Options
	src   source
	dir   string
	begun time.Time

	copier     *copier
	base, head *state
	lab        *harness.Lab
	ichor      *harness.Process
	writers    map[string]*harness.Writer
	said       map[string]string // statuses that were told
	heard      map[string]string // pending ones that were not
	audit      int64             // how much of the audit log was told
	lastNews   time.Time         // when anything happened
	told       time.Time         // when anything was told
	trouble    []string
	acts       []act
}

func (s *stage) say(format string, args ...any) { fmt.Fprintf(s.opt.Out, format+"\n", args...) }

// tell is something that happens now.
func (s *stage) tell(format string, args ...any) {
	s.lastNews, s.told = time.Now(), time.Now()
	s.say("%6.1fs  %s", time.Since(s.begun).Seconds(), fmt.Sprintf(format, args...))
}

func (s *stage) run(ctx context.Context) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	if s.base != nil && same(s.base, s.head) {
		s.say("Nothing differs between %s and %s: there is nothing to rehearse.", s.src.baseName, s.src.headName)
		return nil
	}
	if err := s.check(ctx); err != nil {
		return err
	}
	if err := s.begin(ctx); err != nil {
		return err
	}
	commit, err := s.merge(ctx)
	if err != nil {
		return err
	}
	if err := s.watch(ctx, commit); err != nil {
		return err
	}
	return s.sum(ctx, commit)
}

// prepare makes the copies.
func (s *stage) prepare(ctx context.Context) error {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return fmt.Errorf("make an age key: %w", err)
	}
	if err := write(s.dir, "lab/age.key", []byte(id.String()+"\n")); err != nil {
		return fmt.Errorf("write the rehearsal's age key: %w", err)
	}
	keys, err := bundle.ParseKeys([]byte(id.String()))
	if err != nil {
		return err
	}
	addrs, err := newAddresses()
	if err != nil {
		return err
	}
	s.copier = &copier{opt: s.opt, addrs: addrs, keys: keys}
	if s.head, err = load(ctx, s.src.head); err != nil {
		return err
	}
	if len(machinesOf(s.head)) == 0 {
		return usagef("%s has no TalosMachine: name the folder with the manifests", s.opt.Dir)
	}
	if s.src.base != nil {
		if err := s.copyBase(ctx, s.src.base); err != nil {
			return err
		}
	}
	addrs.machines(s.head.fleet)
	if err := s.copier.copy(ctx, s.head, filepath.Join(s.dir, "head")); err != nil {
		return err
	}
	if s.base == nil || s.src.parent == nil || !same(s.base, s.head) {
		return nil
	}
	// Nothing is changed in the folder: the last commit is what people mean.
	s.say("Nothing is changed in %s since HEAD: HEAD itself is rehearsed, on its parent.", s.opt.Dir)
	s.src.base, s.src.baseName, s.src.headName = s.src.parent, "HEAD's parent", "HEAD"
	s.copier.base, s.copier.notes = nil, nil
	if err := errors.Join(os.RemoveAll(s.base.dir), os.RemoveAll(s.head.dir)); err != nil {
		return err
	}
	if err := s.copyBase(ctx, s.src.base); err != nil {
		return err
	}
	return s.copier.copy(ctx, s.head, filepath.Join(s.dir, "head"))
}

// copyBase copies base, unless it has no machines: then all is new.
func (s *stage) copyBase(ctx context.Context, files fs.FS) error {
	base, err := load(ctx, files)
	if err != nil {
		return err
	}
	if len(machinesOf(base)) == 0 {
		s.say("%s has no machines yet: all begin blank.", s.src.baseName)
		s.base = nil
		return nil
	}
	s.copier.addrs.machines(base.fleet)
	if err := s.copier.copy(ctx, base, filepath.Join(s.dir, "base")); err != nil {
		return err
	}
	s.base, s.copier.base = base, base
	return nil
}

// check says what the check says of the change; a rollout of what fails it does not happen.
func (s *stage) check(ctx context.Context) error {
	in := check.Input{FS: os.DirFS(s.head.dir)}
	if s.base != nil {
		in.BaseFS = os.DirFS(s.base.dir)
	}
	r, _, err := check.Run(ctx, in)
	if err != nil {
		return fmt.Errorf("check the change: %w", err)
	}
	if r.Verdict == check.Passed {
		return nil
	}
	s.say("The check refuses it, so nothing would be rolled out:\n\n%s", strings.TrimSpace(report.Text(r)))
	return ErrNotThrough
}
