package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"ichor.maesh.dev/ichor/e2e/lab/forge"
)

// maxSocketPath is what a Unix socket's path may be long, with room to spare (Linux: 107 bytes).
const maxSocketPath = 100

// Info is what a running lab says about itself.
type Info struct {
	PID        int    `json:"pid"`
	Repo       string `json:"repo"`
	State      string `json:"state"`
	Forge      string `json:"forge"`
	Repository string `json:"repository"`
	Clone      string `json:"clone"`
	Main       string `json:"main"`
}

// PullRequest is a wish about a pull request.
type PullRequest struct {
	// Act: open, push, merge or close.
	Act    string `json:"act"`
	Number int    `json:"number,omitempty"`
	// Branch to open it from; owner:branch for a fork, which is made when it is not there.
	Branch string `json:"branch,omitempty"`
	Base   string `json:"base,omitempty"`
	Title  string `json:"title,omitempty"`
	Draft  bool   `json:"draft,omitempty"`
	Squash bool   `json:"squash,omitempty"`
	// Dir whose files are committed on the branch first; "" takes the branch as it is.
	Dir     string `json:"dir,omitempty"`
	Message string `json:"message,omitempty"`
	Force   bool   `json:"force,omitempty"`
	Author  string `json:"author,omitempty"`
}

// PullResult is the pull request afterwards, and the commit that was made.
type PullResult struct {
	forge.Pull
	Commit string `json:"commit,omitempty"`
}

// CommitStatus is what "ichor-lab status" shows.
type CommitStatus struct {
	SHA      string         `json:"sha"`
	Statuses []forge.Status `json:"statuses"`
}

// listen opens the control socket and says in the state folder where it is.
func (s *Session) listen() (stop func(), err error) {
	socket, remove := filepath.Join(s.opt.State, "control.sock"), func() {}
	if len(socket) > maxSocketPath {
		dir, err := os.MkdirTemp("", "ichor-lab-")
		if err != nil {
			return nil, fmt.Errorf("make folder for the control socket: %w", err)
		}
		socket, remove = filepath.Join(dir, "control.sock"), func() { _ = os.RemoveAll(dir) }
	}
	// the lock of the state folder is held, so a socket that is there is a dead lab's
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove old control socket: %w", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("open control socket: %w", err)
	}
	if err := writeFile(filepath.Join(s.opt.State, "control"), []byte(socket+"\n"), 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("write where the control socket is: %w", err)
	}
	srv := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.opt.Log.Error("control socket closed", "error", err)
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = srv.Shutdown(ctx)
		<-done
		remove()
	}, nil
}

// handle makes a handler of a function from one JSON value to another. Errors are sent as text.
func handle[In, Out any](f func(ctx context.Context, in In) (Out, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in In
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, "read command: "+err.Error(), http.StatusBadRequest)
			return
		}
		out, err := f(r.Context(), in)
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out)
	}
}

// none is an empty answer or question.
type none struct{}

func (s *Session) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /info", handle(func(context.Context, none) (Info, error) {
		return Info{PID: os.Getpid(), Repo: s.opt.Repo, State: s.opt.State, Forge: s.forge.URL(), Repository: s.opt.ForgeRepo, Clone: s.forge.CloneURL(), Main: s.forge.Tip("main")}, nil
	}))
	mux.Handle("POST /nodes", handle(func(context.Context, none) ([]NodeInfo, error) { return s.nodes.List(), nil }))
	mux.Handle("POST /node", handle(s.actOnNode))
	mux.Handle("POST /s3", handle(s.actOnStore))
	mux.Handle("POST /pulls", handle(func(context.Context, none) ([]forge.Pull, error) { return s.forge.Pulls(), nil }))
	mux.Handle("POST /pull", handle(s.pull))
	mux.Handle("POST /push", handle(s.push))
	mux.Handle("POST /status", handle(s.status))
	mux.Handle("POST /requests", handle(func(context.Context, none) (map[string]int, error) { return s.forge.Counts(), nil }))
	mux.Handle("POST /fault", handle(func(_ context.Context, x forge.Fault) (none, error) { return none{}, s.forge.Fault(x) }))
	mux.Handle("POST /recreate", handle(func(context.Context, none) (int64, error) { return s.forge.Recreate(), nil }))
	mux.Handle("POST /heal", handle(func(context.Context, none) (none, error) { s.forge.ClearFaults(); return none{}, nil }))
	mux.Handle("POST /webhook", handle(func(_ context.Context, in Webhook) (none, error) {
		s.forge.SetWebhook(in.URL, in.Secret)
		return none{}, nil
	}))
	mux.Handle("POST /down", handle(func(context.Context, none) (none, error) {
		s.once.Do(func() { close(s.down) })
		return none{}, nil
	}))
	return mux
}

// Webhook of the forge; an empty URL takes it away.
type Webhook struct {
	URL    string `json:"url"`
	Secret string `json:"secret"`
}

func (s *Session) actOnNode(ctx context.Context, a NodeAct) (none, error) {
	if err := a.check(); err != nil {
		return none{}, err
	}
	list := s.nodes.List()
	if !slices.ContainsFunc(list, func(n NodeInfo) bool { return n.Name == a.Name }) {
		return none{}, fmt.Errorf("%s node %s: there is none; ichor-lab node list has the names", a.Act, a.Name)
	}
	return none{}, s.nodes.Act(ctx, a)
}

// push commits a folder; without one, the lab's repository.
func (s *Session) push(ctx context.Context, o forge.PushOptions) (forge.Branch, error) {
	if o.Dir == "" {
		o.Dir = s.opt.Repo
	}
	sha, err := s.forge.Push(ctx, o)
	return forge.Branch{Name: o.Branch, SHA: sha}, err
}

func (s *Session) status(_ context.Context, ref string) (CommitStatus, error) {
	sha := s.forge.Commit(ref)
	if sha == "" {
		return CommitStatus{}, fmt.Errorf("show status of %q: no such commit or branch on the forge", ref)
	}
	return CommitStatus{SHA: sha, Statuses: s.forge.LatestStatuses(sha)}, nil
}
