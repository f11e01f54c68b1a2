// Package cli is what the ichor-lab command does: a session holds the simulated nodes and the forge of one
// repository, and answers other commands over a Unix socket in its state folder.
package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"ichor.maesh.dev/ichor/e2e/lab/forge"
	"ichor.maesh.dev/ichor/e2e/lab/kube"
	"ichor.maesh.dev/ichor/e2e/lab/s3"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
)

// UpOptions are the flags of "ichor-lab up".
type UpOptions struct {
	// Repo is the folder with the manifests.
	Repo string
	// Also is a folder with a later state of the manifests: its machines that Repo does not have are switched on too, in
	// maintenance mode.
	Also string
	// State folder.
	State string
	// Configured begins with running clusters instead of machines in maintenance mode.
	Configured bool
	// MakeSecrets writes the secrets bundles that are missing into Repo.
	MakeSecrets bool
	// ForgeAddr to listen on. Default: a free port, kept in the state folder.
	ForgeAddr string
	// ForgeRepo is owner/name on the forge. Default: lab/fleet.
	ForgeRepo string
	// Real makes nodes as slow as real ones.
	Real bool
	// Kubernetes runs real Kubernetes on the control planes.
	Kubernetes bool
	// S3 is S3Auto, S3On or S3Off (also when empty).
	S3 string
	// Events gets JSON lines, Said what a person should know.
	Events, Said io.Writer
	// Log of the parts.
	Log *slog.Logger
	// Nodes makes the simulated machines.
	Nodes func(ctx context.Context, o NodesOptions) (Nodes, error)
}

// NodesOptions are what the session gives the nodes.
type NodesOptions struct {
	Dir     string
	Real    bool
	Log     *slog.Logger
	OnEvent func(kind string, fields map[string]any)
	// Kubernetes are its programs; nil: none runs.
	Kubernetes *kube.Tools
}

// ErrStopped says that the lab was told to end before it was up.
var ErrStopped = errors.New("stopped before the lab was up; the same command goes on from here")

// Session is a running lab.
type Session struct {
	opt      UpOptions
	forge    *forge.Forge
	nodes    Nodes
	store    *s3.Store // nil when there is none
	machines []Machine
	events   sync.Mutex
	down     chan struct{}
	once     sync.Once
	ready    bool // it came up: commands are answered
	// kubernetes are its programs; nil: none runs.
	kubernetes *kube.Tools
}

// Up runs a lab until the context is done or "ichor-lab down" asks for its end.
func Up(ctx context.Context, o UpOptions) (err error) {
	if o.Repo, err = filepath.Abs(o.Repo); err == nil {
		o.State, err = filepath.Abs(o.State)
	}
	if err != nil {
		return fmt.Errorf("start the lab: %w", err)
	}
	tools, err := o.findKubernetes()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.State, 0o700); err != nil {
		return fmt.Errorf("make state folder: %w", err)
	}
	lock, err := lockState(o.State)
	if err != nil {
		return err
	}
	defer lock.Close()
	s := &Session{opt: o, kubernetes: tools, down: make(chan struct{})}
	defer func() {
		// What was under way when somebody pressed Ctrl-C is no news.
		if err != nil && !s.ready && ctx.Err() != nil {
			err = ErrStopped
		}
	}()
	fl, err := s.prepare(ctx)
	if err != nil {
		return err
	}
	if err := s.startForge(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.forge.Close()) }()
	if err := s.startStore(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.closeStore()) }()
	if err := s.startNodes(ctx, fl); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.nodes.Close()) }()
	return s.serve(ctx)
}

// lockState takes the state folder for this process; the kernel lets go when it dies, however that is.
func lockState(state string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(state, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock state folder: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("start the lab: one runs in %s already; stop it with \"ichor-lab down --state %s\", or give another --state", state, state)
	}
	return lock, nil
}

// prepare reads the repository, makes secrets when it is told to, and finds out which nodes there are.
func (s *Session) prepare(ctx context.Context) (*fleet.Fleet, error) {
	fl, problems, err := readFleet(ctx, s.opt.Repo, s.opt.State)
	if err != nil {
		return nil, err
	}
	if s.opt.MakeSecrets {
		wrote, err := makeSecrets(fl, s.opt.Repo, s.opt.State, time.Now())
		if err != nil {
			return nil, err
		}
		for _, w := range wrote {
			s.say("wrote the secrets bundle %s", w)
		}
		if fl, problems, err = readFleet(ctx, s.opt.Repo, s.opt.State); err != nil {
			return nil, err
		}
	} else if missing := missingSecrets(fl); len(missing) > 0 && s.opt.Configured {
		return nil, fmt.Errorf("start configured clusters: the secrets bundle of cluster %s is not in the repository; --make-secrets makes one", missing[0].Name)
	}
	for _, p := range problems {
		s.say("%s", p)
	}
	if s.machines, err = machines(fl); err != nil || s.opt.Also == "" {
		return fl, err
	}
	later, _, err := readFleet(ctx, s.opt.Also, s.opt.State)
	if err != nil {
		return nil, err
	}
	more, err := machines(later)
	if err != nil {
		return nil, err
	}
	s.machines = together(s.machines, more)
	return fl, nil
}

// startForge starts the forge and, the first time, gives it the repository's content.
func (s *Session) startForge(ctx context.Context) error {
	token, err := s.token()
	if err != nil {
		return err
	}
	owner, name, ok := strings.Cut(s.opt.ForgeRepo, "/")
	if !ok {
		return fmt.Errorf("start the forge: --forge-repo %q: want owner/name", s.opt.ForgeRepo)
	}
	var exclude []string
	if in := stateIn(s.opt.Repo, s.opt.State); in != "" {
		s.say("the state folder lies in the repository: leave it out of commits (a line /%s/ in .gitignore), or give a --state elsewhere", in)
		exclude = []string{"/" + in + "/"}
	}
	s.forge, err = forge.New(forge.Options{
		Exclude: exclude, Dir: filepath.Join(s.opt.State, "forge"), Addr: s.opt.ForgeAddr, Token: token, Owner: owner, Name: name, Log: s.opt.Log,
		OnEvent: func(e forge.Event) { s.emit(e.Kind, e.Fields) },
	})
	if err != nil {
		return err
	}
	if s.forge.Tip("main") != "" {
		s.sayOtherRepo()
		return nil
	}
	if err := s.seed(ctx); err != nil {
		return errors.Join(err, s.forge.Close())
	}
	if err := writeFile(s.repoFile(), []byte(s.opt.Repo+"\n"), 0o600); err != nil {
		return errors.Join(fmt.Errorf("note the repository: %w", err), s.forge.Close())
	}
	return nil
}

// repoFile notes which folder the state folder was begun with.
func (s *Session) repoFile() string { return filepath.Join(s.opt.State, "repository") }

// sayOtherRepo says so when the state folder was begun with another folder than the one that is named now.
func (s *Session) sayOtherRepo() {
	data, err := os.ReadFile(s.repoFile())
	if first := strings.TrimSuffix(string(data), "\n"); err == nil && first != s.opt.Repo {
		s.say("the state folder was begun with %s: its nodes go on, and the forge has the files from there until \"ichor-lab push\" brings those of %s; for a lab of its own give another --state", first, s.opt.Repo)
	}
}

// seed takes over the history of a Git repository, and in any case the files as they are now.
func (s *Session) seed(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(s.opt.Repo, ".git")); err == nil {
		if _, err := s.forge.Import(ctx, s.opt.Repo, "main"); err != nil {
			s.say("the history of %s is not taken over, its files are: %v", s.opt.Repo, err)
		}
	}
	_, err := s.forge.Push(ctx, forge.PushOptions{Dir: s.opt.Repo, Branch: "main", Message: "Files of " + filepath.Base(s.opt.Repo)})
	return err
}

// token of the forge, made once and kept for the owner of the state folder alone.
func (s *Session) token() (string, error) {
	path := filepath.Join(s.opt.State, "token")
	data, err := os.ReadFile(path)
	if err == nil && len(bytes.TrimSpace(data)) > 0 {
		return string(bytes.TrimSpace(data)), nil
	}
	raw := make([]byte, 20)
	if _, err := rand.Read(raw); err != nil {
		return "", fmt.Errorf("make token: %w", err)
	}
	token := "lab_" + hex.EncodeToString(raw)
	if err := writeFile(path, []byte(token+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write token: %w", err)
	}
	return token, nil
}

func (s *Session) startNodes(ctx context.Context, fl *fleet.Fleet) error {
	keys, keyFile, err := findKeys(s.opt.State)
	if err != nil {
		return err
	}
	bundles, closed := openBundles(fl, keys)
	var conf *Configured
	if s.opt.Configured {
		if len(closed) > 0 {
			return fmt.Errorf("start configured clusters: %s", closed[0])
		}
		conf = &Configured{Fleet: fl, Bundles: bundles, Keys: keys}
	}
	if err := freePorts(ctx, s.machines); err != nil {
		return err
	}
	s.nodes, err = s.opt.Nodes(ctx, NodesOptions{Dir: filepath.Join(s.opt.State, "nodes"), Real: s.opt.Real, Log: s.opt.Log, OnEvent: s.emit, Kubernetes: s.kubernetes})
	if err != nil {
		return err
	}
	if err := s.nodes.Start(ctx, s.machines, conf); err != nil {
		return errors.Join(err, s.nodes.Close())
	}
	if err := s.writeFiles(fl, bundles, keyFile); err != nil {
		return errors.Join(err, s.nodes.Close())
	}
	for _, c := range closed {
		s.say("not in talosconfig: %s", c)
	}
	return nil
}

// writeFiles writes talosconfig, kubeconfig and env into the state folder.
func (s *Session) writeFiles(fl *fleet.Fleet, bundles map[string]*bundle.Bundle, keyFile string) error {
	path := func(name string) string { return filepath.Join(s.opt.State, name) }
	talos, err := talosconfig(fl, s.machines, bundles)
	if err != nil {
		return err
	}
	kubeFile, err := kubeconfig(fl)
	if s.kubernetes != nil {
		kubeFile, err = adminKubeconfig(fl, s.machines, bundles)
	}
	if err != nil {
		return err
	}
	vars := []variable{
		{"ICHOR_REPO", s.forge.CloneURL()},
		{"ICHOR_BRANCH", "main"},
		{"ICHOR_FORGE", "github"},
		{"ICHOR_FORGE_URL", s.forge.URL()},
		{"ICHOR_FORGE_REPO", s.opt.ForgeRepo},
		{"ICHOR_TOKEN_FILE", path("token")},
		{"ICHOR_STATE_DIR", path("ichor")},
		{"ICHOR_LAB_STATE", s.opt.State},
		{"KUBECONFIG", path("kubeconfig")},
		{"SOPS_AGE_KEY_FILE", keyFile},
	}
	vars = append(vars, s.storeVariables()...)
	if talos != nil {
		vars = append(vars, variable{"TALOSCONFIG", path("talosconfig")})
	} else if err := os.Remove(path("talosconfig")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove old talosconfig: %w", err)
	}
	for name, data := range map[string][]byte{"talosconfig": talos, "kubeconfig": kubeFile, "env": envFile(vars)} {
		if data == nil {
			continue
		}
		if err := writeFile(path(name), data, 0o600); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}

// serve answers commands until the end.
func (s *Session) serve(ctx context.Context) error {
	stop, err := s.listen()
	if err != nil {
		return err
	}
	defer stop()
	s.ready = true
	s.say("forge: %s (token in %s)", s.forge.URL()+"/"+s.opt.ForgeRepo, filepath.Join(s.opt.State, "token"))
	if s.kubernetes != nil {
		s.say("Kubernetes %s: it comes up on each control plane once its etcd runs; kubectl --kubeconfig %s get nodes", kube.Version, filepath.Join(s.opt.State, "kubeconfig"))
	} else {
		s.say("no Kubernetes (--with-kubernetes): the kubeconfig names endpoints where nothing answers")
	}
	if s.store != nil {
		s.say("S3 store: %s, bucket %s (keys in %s)", s.store.Endpoint(), s.store.Bucket(), filepath.Join(s.opt.State, "env"))
	}
	s.say("in another terminal: . %s && ichor run", quote(filepath.Join(s.opt.State, "env")))
	s.emit("lab.ready", map[string]any{
		"forge": s.forge.URL(), "repository": s.opt.ForgeRepo, "clone": s.forge.CloneURL(), "main": s.forge.Tip("main"),
		"nodes": len(s.machines), "env": filepath.Join(s.opt.State, "env"),
	})
	select {
	case <-ctx.Done():
	case <-s.down:
	}
	s.emit("lab.down", nil)
	return nil
}

// say tells a person something.
func (s *Session) say(format string, args ...any) {
	fmt.Fprintf(s.opt.Said, format+"\n", args...)
}

// emit writes one event as a JSON line.
func (s *Session) emit(kind string, fields map[string]any) {
	line, err := json.Marshal(forge.Event{Time: time.Now().UTC(), Kind: kind, Fields: fields})
	if err != nil {
		s.opt.Log.Error("cannot write an event", "kind", kind, "error", err)
		return
	}
	s.events.Lock()
	defer s.events.Unlock()
	if _, err := s.opt.Events.Write(append(line, '\n')); err != nil {
		s.opt.Log.Warn("cannot write an event", "kind", kind, "error", err)
	}
}
