// Package forge is the lab's forge: a real Git server over HTTP with pull requests and the part of GitHub's
// REST API that Ichor uses, on a loopback address. Repositories are bare ones on disk, served by Git's own
// http-backend; merges are made by Git. The API answers as api.github.com does, its limits, error texts and
// delays included, and is checked in tests against GitHub's published OpenAPI description. Faults can be put
// in front of it. All state is on disk and survives a kill.
package forge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Options say what New makes. Dir, Owner and Name are wanted; what is kept on disk from an earlier run wins
// over Addr and Private.
type Options struct {
	// Dir holds everything: bare repositories, pull requests, statuses.
	Dir string
	// Addr to listen on. Loopback only. Default: the address of the last run in Dir, else a free port of 127.0.0.1.
	Addr string
	// Token with full rights on every repository. It belongs to the user Login.
	Token string
	// Login of the token's user. Default: ichor-bot.
	Login string
	// Owner and Name of the repository.
	Owner, Name string
	// Public lets everybody read without a token.
	Public bool
	// Exclude are folders and files, as in .gitignore, that Push leaves out besides what the folder's own .gitignore
	// names and .ichor-lab/.
	Exclude []string
	// Limits of the API. The zero value has GitHub's own.
	Limits Limits
	// Log of the server. Default: none.
	Log *slog.Logger
	// OnEvent is told what happens (pushes, pull requests, statuses, faults), one call at a time. It must not
	// call back into the forge.
	OnEvent func(Event)
	// Now is the clock of everything that is stored or limited. Default: time.Now.
	Now func() time.Time
}

// Event is one thing that happened. Fields hold plain strings and numbers, never a token.
type Event struct {
	Time   time.Time      `json:"time"`
	Kind   string         `json:"event"`
	Fields map[string]any `json:"fields,omitempty"`
}

// Forge is a running forge.
type Forge struct {
	opt Options
	log *slog.Logger
	now func() time.Time
	url string

	srv    *http.Server
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	lock   *os.File

	// push is held while refs change, so that before and after can be compared. It is taken before mu.
	push sync.Mutex
	mu   sync.Mutex
	st   diskState
	// main is the repository that pull requests are against; it is an element of st.Repos.
	main     *repository
	statuses *statusStore
	users    []identity
	limits   limiter
	faults   []*Fault
	requests []Request
	counts   map[string]int
	compute  chan int
	hooks    *hookSender
	events   sync.Mutex
}

// New opens or makes the forge in o.Dir and serves it until Close. It gives an error when Git is not installed,
// the address is not a loopback one or is taken, or another forge runs in the folder.
func New(o Options) (*Forge, error) {
	if o.Dir == "" || !validName(o.Owner) || !validName(o.Name) {
		return nil, fmt.Errorf("open forge: a folder, an owner and a name are wanted (letters, digits, dot, dash, underscore)")
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("open forge: %w", err)
	}
	o.Dir = dir
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Login == "" {
		o.Login = "ichor-bot"
	}
	f := &Forge{opt: o, log: o.Log, now: o.Now, counts: map[string]int{}, compute: make(chan int, 1024)}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.limits = newLimiter(o.Limits)
	if o.Token != "" {
		f.users = append(f.users, newIdentity(o.Token, o.Login, Rights{Contents: true, Statuses: true, Pulls: true}))
	}
	if err := f.open(); err != nil {
		f.Close()
		return nil, err
	}
	if err := f.listen(); err != nil {
		f.Close()
		return nil, err
	}
	f.settle()
	return f, nil
}

// open loads or makes what is on disk.
func (f *Forge) open() error {
	if err := os.MkdirAll(f.opt.Dir, 0o700); err != nil {
		return fmt.Errorf("make forge folder: %w", err)
	}
	lock, err := lockFile(filepath.Join(f.opt.Dir, "lock"))
	if err != nil {
		return fmt.Errorf("lock forge folder %s: another forge runs in it: %w", f.opt.Dir, err)
	}
	f.lock = lock
	if err := f.loadState(); err != nil {
		return err
	}
	if f.statuses, err = openStatuses(filepath.Join(f.opt.Dir, "statuses.jsonl")); err != nil {
		return err
	}
	f.hooks = newHookSender(f)
	if err := f.openMain(); err != nil {
		return err
	}
	f.wg.Add(1)
	go f.computeLoop()
	f.wg.Add(1)
	go f.hooks.run()
	return nil
}

// openMain finds or makes the main repository.
func (f *Forge) openMain() error {
	for _, r := range f.st.Repos {
		if !r.Fork {
			f.main = r
		}
	}
	if f.main == nil {
		r, err := f.addRepository(f.opt.Owner, f.opt.Name, "", f.opt.Public)
		if err != nil {
			return err
		}
		f.main = r
		return nil
	}
	if f.main.Owner != f.opt.Owner || (f.main.name() != f.opt.Name && !contains(f.main.Former, f.opt.Name)) {
		return fmt.Errorf("open forge in %s: it holds %s/%s, not %s/%s; take another folder or those names",
			f.opt.Dir, f.main.Owner, f.main.name(), f.opt.Owner, f.opt.Name)
	}
	return f.configureRepository(f.main)
}

// settle brings the pull requests in line with the refs as they are: the last run may have been killed between
// a push and what follows from it.
func (f *Forge) settle() {
	f.push.Lock()
	defer f.push.Unlock()
	f.mu.Lock()
	open := make([]*pull, 0)
	for _, p := range f.st.Pulls {
		if p.State == "open" {
			open = append(open, p)
		}
	}
	f.mu.Unlock()
	for _, p := range open {
		f.followHead(p, f.opt.Login)
	}
	f.save()
}

// listen binds the address and starts to serve.
func (f *Forge) listen() error {
	addr := f.opt.Addr
	if addr == "" {
		addr = f.st.Addr
	}
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("listen on %q: want ip:port: %w", addr, err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("listen on %q: the forge is for loopback addresses only (127.0.0.0/8)", addr)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen for the forge: %w", err)
	}
	f.url = "http://" + l.Addr().String()
	f.mu.Lock()
	f.st.Addr = l.Addr().String()
	f.mu.Unlock()
	f.save()
	f.srv = &http.Server{
		Handler: f, ReadHeaderTimeout: 30 * time.Second, BaseContext: func(net.Listener) context.Context { return f.ctx },
		ErrorLog: slog.NewLogLogger(f.log.Handler(), slog.LevelWarn),
	}
	f.wg.Add(1)
	go func() {
		defer f.wg.Done()
		if err := f.srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			f.log.Error("forge stopped serving", "error", err)
		}
	}()
	return nil
}

// Close stops serving and waits for what is under way. What is on disk stays.
func (f *Forge) Close() error {
	f.cancel()
	var err error
	if f.srv != nil {
		err = f.srv.Close()
	}
	f.wg.Wait()
	if f.statuses != nil {
		err = errors.Join(err, f.statuses.close())
	}
	if f.lock != nil {
		err = errors.Join(err, f.lock.Close())
	}
	return err
}

// URL is the web address, without a slash at the end; links on pages and in statuses begin with it.
func (f *Forge) URL() string { return f.url }

// APIURL is the address of the REST API as a GitHub Enterprise Server has it, with a slash at the end.
func (f *Forge) APIURL() string { return f.url + "/api/v3/" }

// CloneURL of the main repository.
func (f *Forge) CloneURL() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cloneURL(f.main)
}

// GitDir is the bare repository behind CloneURL, for tests that damage it or look into it.
func (f *Forge) GitDir() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gitDir(f.main)
}

func (f *Forge) cloneURL(r *repository) string { return f.url + "/" + r.fullName() + ".git" }

// emit tells the listener. The lock keeps events in one order.
func (f *Forge) emit(kind string, fields map[string]any) {
	f.log.Info(kind, "fields", fields)
	if f.opt.OnEvent == nil {
		return
	}
	f.events.Lock()
	defer f.events.Unlock()
	f.opt.OnEvent(Event{Time: f.now().UTC(), Kind: kind, Fields: fields})
}
