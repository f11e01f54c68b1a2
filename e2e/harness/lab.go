package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/e2e/lab/cli"
	"ichor.maesh.dev/ichor/e2e/lab/forge"
	"ichor.maesh.dev/ichor/render/bundle"
)

// Lab is a lab that runs in this process, with what `ichor run` needs to know of it.
type Lab struct {
	*cli.Client
	Repo, State string
	// Env is the lab's env file.
	Env  []string
	done chan error
	end  context.CancelFunc
}

// StartLab starts a lab for the repository in repo. Its state folder may be that of an earlier one.
func StartLab(repo, state string, configured bool) (*Lab, error) {
	return StartLabWith(repo, state, configured, io.Discard)
}

// StartLabWith is StartLab with a listener that gets the lab's events as JSON lines.
func StartLabWith(repo, state string, configured bool, events io.Writer) (*Lab, error) {
	return StartLabOptions(cli.UpOptions{Repo: repo, State: state, Configured: configured, MakeSecrets: true, Events: events})
}

// StartLabOptions is StartLab with all options; what is not given is as it is there.
func StartLabOptions(o cli.UpOptions) (*Lab, error) {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Lab{Client: cli.NewClient(o.State), Repo: o.Repo, State: o.State, done: make(chan error, 1), end: cancel}
	if o.ForgeRepo == "" {
		o.ForgeRepo = "lab/fleet"
	}
	if o.Events == nil {
		o.Events = io.Discard
	}
	if o.Said == nil {
		o.Said = io.Discard
	}
	o.Log, o.Nodes = slog.New(slog.DiscardHandler), cli.NewNodes
	go func() { l.done <- cli.Up(ctx, o) }()
	if err := l.ready(ctx); err != nil {
		// Nobody else can end it, and etcd ends the whole process when its folder is taken away under it.
		return nil, errors.Join(err, l.Stop())
	}
	return l, nil
}

// AttachLab waits for a lab that another process runs.
func AttachLab(ctx context.Context, repo, state string) (*Lab, error) {
	l := &Lab{Client: cli.NewClient(state), Repo: repo, State: state, done: make(chan error, 1), end: func() {}}
	return l, l.ready(ctx)
}

func (l *Lab) ready(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var last error
	for {
		if _, last = l.Info(limited); last == nil {
			break
		}
		select {
		case err := <-l.done:
			l.done <- err // for Stop
			return fmt.Errorf("the lab ended: %w", err)
		case <-limited.Done():
			return fmt.Errorf("the lab does not answer: %w", last)
		case <-time.After(50 * time.Millisecond):
		}
	}
	var err error
	l.Env, err = Env(filepath.Join(l.State, "env"))
	return err
}

// Stop ends a lab of this process.
func (l *Lab) Stop() error {
	l.end()
	select {
	case err := <-l.done:
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	case <-time.After(30 * time.Second):
		return errors.New("the lab did not end within 30 s")
	}
}

// Value of a variable in the env file.
func (l *Lab) Value(name string) string {
	for _, kv := range l.Env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// Bundle opens the secrets bundle of a cluster that Fleet wrote.
func (l *Lab) Bundle(cluster string) (*bundle.Bundle, error) {
	path := filepath.Join(l.Repo, cluster, "secrets.sops.yaml")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	keys, err := bundle.LoadKeys(func(name string) string {
		if v := l.Value(name); v != "" {
			return v
		}
		return os.Getenv(name)
	})
	if err != nil {
		return nil, err
	}
	return bundle.Open(data, path, keys)
}

// StatusOf gives a status of a commit by context; false where there is none.
func (l *Lab) StatusOf(ctx context.Context, ref, context string) (forge.Status, bool) {
	s, err := l.Status(ctx, ref)
	if err != nil {
		return forge.Status{}, false
	}
	for _, st := range s.Statuses {
		if st.Context == context {
			return st, true
		}
	}
	return forge.Status{}, false
}

// WaitStatus waits until a status of a commit has one of the states.
func (l *Lab) WaitStatus(ctx context.Context, ref, context string, states ...string) (forge.Status, error) {
	var last forge.Status
	err := Wait(ctx, func() bool {
		s, ok := l.StatusOf(ctx, ref, context)
		last = s
		for _, want := range states {
			if ok && s.State == want {
				return true
			}
		}
		return false
	})
	if err != nil {
		return last, fmt.Errorf("wait for %s of %s to be %s (it is %q %q): %w", context, ref, strings.Join(states, " or "),
			last.State, last.Description, err)
	}
	return last, nil
}

// Wait polls until cond holds or ctx ends.
func Wait(ctx context.Context, cond func() bool) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// StatusFile reads a file of the status branch as anybody would: by cloning it.
func (l *Lab) StatusFile(ctx context.Context, path string) (string, error) {
	token, err := os.ReadFile(l.Value("ICHOR_TOKEN_FILE"))
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "ichor-status-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	url := strings.Replace(l.Value("ICHOR_REPO"), "://", "://x-access-token:"+strings.TrimSpace(string(token))+"@", 1)
	out, code, err := Run(ctx, "git", []string{"GIT_TERMINAL_PROMPT=0"}, "clone", "-q", "--depth", "1", "-b", "ichor/status", url, dir)
	if err != nil || code != 0 {
		return "", fmt.Errorf("clone the status branch: %s %w", strings.ReplaceAll(out, strings.TrimSpace(string(token)), "…"), err)
	}
	data, err := os.ReadFile(filepath.Join(dir, path))
	return string(data), err
}
