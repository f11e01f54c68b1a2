package rehearse

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// ichorBin is the daemon that the tests run.
var ichorBin string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "ichor-rehearse-test-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	ichorBin = filepath.Join(dir, "ichor")
	if out, err := exec.Command("go", "build", "-o", ichorBin, "ichor.maesh.dev/ichor/cmd/ichor").CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build ichor: %w\n%s", err, out)
	}
	return m.Run(), nil
}

// repo is a Git repository with the content of an example.
type repo struct {
	*testing.T
	dir string
}

func newRepo(t *testing.T, example string) repo {
	t.Helper()
	r := repo{t, t.TempDir()}
	r.must(os.CopyFS(r.dir, os.DirFS(filepath.Join("../../examples", example))))
	r.git("init", "-q", "-b", "main", ".")
	r.commit()
	return r
}

func (r repo) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r repo) git(args ...string) {
	r.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	if out, err := cmd.CombinedOutput(); err != nil {
		r.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

func (r repo) commit() {
	r.Helper()
	r.git("add", "-A")
	r.git("commit", "-q", "-m", "A change")
}

// edit replaces a text in a file, which must be there.
func (r repo) edit(name, old, now string) {
	r.Helper()
	path := filepath.Join(r.dir, name)
	data, err := os.ReadFile(path)
	r.must(err)
	if !bytes.Contains(data, []byte(old)) {
		r.Fatalf("%s does not hold %q", name, old)
	}
	r.must(os.WriteFile(path, bytes.Replace(data, []byte(old), []byte(now), 1), 0o644))
}

// digest of all files, Git's own too.
func (r repo) digest() string {
	r.Helper()
	h := sha256.New()
	r.must(filepath.WalkDir(r.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		fmt.Fprintf(h, "%s %d\n%s", path, len(data), data)
		return err
	}))
	return fmt.Sprintf("%x", h.Sum(nil))
}

// rehearse runs one and gives what it printed. The repository must be the same afterwards.
func (r repo) rehearse(o Options) (string, error) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 4*time.Minute)
	defer cancel()
	before := r.digest()
	var out strings.Builder
	o.Dir, o.Ichor, o.Out = r.dir, ichorBin, &out
	if o.Patience == 0 {
		o.Patience = 90 * time.Second
	}
	err := Run(ctx, o)
	r.Logf("%s", out.String())
	if r.digest() != before {
		r.Error("the repository was changed")
	}
	return out.String(), err
}

func (r repo) wants(out string, patterns ...string) {
	r.Helper()
	for _, p := range patterns {
		if !regexp.MustCompile(p).MatchString(out) {
			r.Errorf("it does not say %q", p)
		}
	}
}

// TestThrough: a change that reboots five machines of a repository with real addresses, windows, a disk selector, an
// encrypted bundle and an encrypted patch value, none of which anything here can open.
func TestThrough(t *testing.T) {
	r := newRepo(t, "prod")
	r.edit("clusters/prod/patches/base.yaml", "    - apiVersion: v1alpha1\n      kind: TimeSyncConfig", `    - machine:
        udev:
          rules:
            - SUBSYSTEM=="drm", GROUP="44"
    - apiVersion: v1alpha1
      kind: TimeSyncConfig`)
	out, err := r.rehearse(Options{})
	r.must(err)
	r.wants(out, `Rehearsing the files in .* on clusters that run as HEAD \(\w{8}\) has them`, "maintenance windows are taken as open",
		`touched in this order: cp\d, cp\d, cp\d, w\d, w\d`, `5 reboots: cp`, `a client wrote to etcd of prod all the time: \d{2,} writes, 0 failed`,
		`It would go through\.`)
}

// TestNew: blank machines are brought up, from a folder that Git knows nothing of.
func TestNew(t *testing.T) {
	r := repo{t, t.TempDir()}
	r.must(os.CopyFS(r.dir, os.DirFS("../../examples/minimal")))
	out, err := r.rehearse(Options{})
	r.must(err)
	r.wants(out, "all machines begin blank", "etcd is bootstrapped on cp1", `touched in this order: cp1\n`, `It would go through\.`)
}

// TestHeld: what Ichor holds is not through, and says why. HEAD is rehearsed on its parent, for nothing is changed.
func TestHeld(t *testing.T) {
	r := newRepo(t, "minimal")
	r.edit("cluster.yaml", "v1.36.1", "v1.36.2")
	r.commit()
	out, err := r.rehearse(Options{})
	if !errors.Is(err, ErrNotThrough) {
		t.Fatalf("it gave %v", err)
	}
	r.wants(out, "HEAD itself is rehearsed, on its parent", `It would not go through:\n  ichor/apply/home: .*not supported`, "no machine was touched")
}

// TestRefused: what fails its check is never rolled out.
func TestRefused(t *testing.T) {
	r := newRepo(t, "prod")
	r.git("checkout", "-q", "-b", "broken")
	r.edit("clusters/prod/patches/base.yaml", "sysctls:", "sysctl:")
	r.commit()
	out, err := r.rehearse(Options{Rev: "broken", Base: "main"})
	if !errors.Is(err, ErrNotThrough) {
		t.Fatalf("it gave %v", err)
	}
	r.wants(out, "The check refuses it", `base\.yaml:\d+:\d+: error`, "sysctl")
}

func TestUsedWrongly(t *testing.T) {
	r := newRepo(t, "minimal")
	plain := repo{t, t.TempDir()}
	for want, call := range map[string]func() (string, error){
		"unknown revision":           func() (string, error) { return r.rehearse(Options{Rev: "nope"}) },
		"in no Git repository":       func() (string, error) { return plain.rehearse(Options{Rev: "main"}) },
		"has no TalosMachine":        func() (string, error) { return plain.rehearse(Options{}) },
		"is not empty":               func() (string, error) { return r.rehearse(Options{State: r.dir}) },
		"is no folder: name the one": func() (string, error) { return repo{t, plain.dir}.rehearseAt("none") },
	} {
		_, err := call()
		if _, ok := errors.AsType[UsageError](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("want a usage error with %q, got %v", want, err)
		}
	}
	if out, err := r.rehearse(Options{Rev: "main", Base: "main"}); err != nil || !strings.Contains(out, "nothing to rehearse") {
		t.Errorf("the same on both sides: %v %s", err, out)
	}
}

func (r repo) rehearseAt(sub string) (string, error) {
	return "", Run(r.Context(), Options{Dir: filepath.Join(r.dir, sub), Ichor: ichorBin, Out: &strings.Builder{}})
}
