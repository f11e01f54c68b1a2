// Package webhook takes a forge's deliveries. A delivery means "look now" and nothing else: what is done is decided by
// what the repository holds, so a lost, repeated or forged one can't do harm.
package webhook

import (
	"container/list"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"ichor.maesh.dev/ichor/schemas/secret"
)

// Path at which the handler is served.
const Path = "/webhook"

// Options of New.
type Options struct {
	// SecretFile holds the shared secret; it is read again for each delivery. It must exist and not be empty.
	SecretFile string
	// Repository is owner/name that deliveries may be about, compared without case.
	Repository string
	// GitLab: deliveries are GitLab's, which carry the secret itself instead of a signature. Others are refused then, and
	// GitLab's are refused without it: the weaker proof must not be chosen by the caller.
	GitLab bool
	// Log may be nil.
	Log *slog.Logger
}

// Bounds.
const (
	maxBody       = 3 << 20
	maxDeliveries = 1000
	minSecret     = 8
	// maxAtOnce bodies are read at once: whoever reaches the port may send some before the signature can be looked at.
	maxAtOnce = 8
)

// events that are worth a look. Anything else with a good signature is answered and ignored.
var events = map[string]bool{
	"push": true, "pull_request": true, "merge_group": true, "create": true, "delete": true,
	"pull_request_sync": true, // Gitea's word for a new head
	"Push Hook":         true, "Merge Request Hook": true,
}

// Handler answers POST /webhook.
type Handler struct {
	o     Options
	nudge chan struct{}
	busy  chan struct{}

	mu    sync.Mutex
	order *list.List
	seen  map[string]*list.Element
	taken int64
}

// New makes a handler. Without a usable secret there is none: an unsigned webhook could be called by anyone.
func New(o Options) (*Handler, error) {
	if o.SecretFile == "" {
		return nil, errors.New("set up webhook: a secret file is required")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	h := &Handler{o: o, nudge: make(chan struct{}, 1), busy: make(chan struct{}, maxAtOnce), order: list.New(), seen: map[string]*list.Element{}}
	if _, err := h.secret(); err != nil {
		return nil, fmt.Errorf("set up webhook: %w", err)
	}
	return h, nil
}

// Nudges has one value when there was at least one delivery since the last read: a thousand make one look.
func (h *Handler) Nudges() <-chan struct{} { return h.nudge }

// Taken is how many deliveries led to a nudge, for a metric.
func (h *Handler) Taken() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.taken
}

func (h *Handler) secret() (secret.Bytes, error) {
	b, err := os.ReadFile(h.o.SecretFile)
	if err != nil {
		return secret.Bytes{}, fmt.Errorf("read webhook secret: %w", err)
	}
	s := strings.TrimSpace(string(b))
	if len(s) < minSecret {
		return secret.Bytes{}, fmt.Errorf("read webhook secret: %s holds fewer than %d characters", h.o.SecretFile, minSecret)
	}
	return secret.FromString(s), nil
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != Path {
		http.Error(w, "not found", http.StatusNotFound)
		return
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "only POST", http.StatusMethodNotAllowed)
		return
	}
	if r.ContentLength > maxBody {
		http.Error(w, "too large", http.StatusRequestEntityTooLarge)
		return
	}
	check := h.proof(r.Header)
	if check == nil {
		// Without a proof the body isn't even read.
		http.Error(w, h.wanted(), http.StatusUnauthorized)
		return
	}
	select {
	case h.busy <- struct{}{}:
		defer func() { <-h.busy }()
	default:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "busy", http.StatusServiceUnavailable)
		return
	}
	key, err := h.secret()
	if err != nil {
		h.o.Log.Error("refuse webhook delivery", "error", err)
		http.Error(w, "not available", http.StatusServiceUnavailable)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, "body can't be read", http.StatusRequestEntityTooLarge)
		return
	}
	if !check(key, body) {
		http.Error(w, "wrong signature", http.StatusUnauthorized)
		return
	}
	h.take(w, r, body)
}

func (h *Handler) wanted() string {
	if h.o.GitLab {
		return "the secret token is required"
	}
	return "a SHA-256 signature is required"
}

// proof gives what compares a delivery's proof with the secret, nil where it carries none.
func (h *Handler) proof(hdr http.Header) func(key secret.Bytes, body []byte) bool {
	if h.o.GitLab {
		token := hdr.Get("X-Gitlab-Token")
		if token == "" {
			return nil
		}
		return func(key secret.Bytes, _ []byte) bool {
			// Of equal length, so that the time tells nothing of the secret's.
			got, want := sha256.Sum256([]byte(token)), sha256.Sum256(key.Reveal())
			return hmac.Equal(got[:], want[:])
		}
	}
	sig := signature(hdr)
	if sig == nil {
		return nil
	}
	return func(key secret.Bytes, body []byte) bool { return signed(key, body, sig) }
}

// take answers a delivery whose signature is right.
func (h *Handler) take(w http.ResponseWriter, r *http.Request, body []byte) {
	event := header(r.Header, "X-GitHub-Event", "X-Gitea-Event", "X-Forgejo-Event", "X-Gitlab-Event")
	switch repo, err := repository(r.Header.Get("Content-Type"), body); {
	case event == "ping":
		w.WriteHeader(http.StatusOK)
		return
	case err != nil:
		http.Error(w, "payload can't be read", http.StatusBadRequest)
		return
	case !strings.EqualFold(repo, h.o.Repository):
		http.Error(w, "another repository", http.StatusForbidden)
		return
	case events[event] && h.first(header(r.Header, "X-GitHub-Delivery", "X-Gitea-Delivery", "X-Forgejo-Delivery", "Idempotency-Key", "X-Gitlab-Event-UUID")):
		select {
		case h.nudge <- struct{}{}:
		default:
		}
	}
	w.WriteHeader(http.StatusAccepted)
}

// first tells whether a delivery is new. One without an ID always is.
func (h *Handler) first(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if id != "" {
		if len(id) > 100 {
			return false
		}
		if e, ok := h.seen[id]; ok {
			h.order.MoveToFront(e)
			return false
		}
		h.seen[id] = h.order.PushFront(id)
		if h.order.Len() > maxDeliveries {
			last := h.order.Back()
			h.order.Remove(last)
			delete(h.seen, last.Value.(string))
		}
	}
	h.taken++
	return true
}

// signature reads the SHA-256 signature: "sha256=<hex>" from GitHub, bare hex from Gitea. SHA-1 is not looked at.
func signature(hdr http.Header) []byte {
	v, ok := strings.CutPrefix(hdr.Get("X-Hub-Signature-256"), "sha256=")
	if !ok {
		if v = hdr.Get("X-Gitea-Signature"); v == "" {
			return nil
		}
	}
	b, err := hex.DecodeString(v)
	if err != nil || len(b) != sha256.Size {
		return nil
	}
	return b
}

func signed(key secret.Bytes, body, sig []byte) bool {
	m := hmac.New(sha256.New, key.Reveal())
	m.Write(body)
	return hmac.Equal(m.Sum(nil), sig)
}

func header(h http.Header, names ...string) string {
	for _, n := range names {
		if v := h.Get(n); v != "" {
			return v
		}
	}
	return ""
}

// repository reads the payload's repository from JSON or from a form's payload field.
func repository(contentType string, body []byte) (string, error) {
	if kind, _, err := mime.ParseMediaType(contentType); err == nil && kind == "application/x-www-form-urlencoded" {
		form, err := url.ParseQuery(string(body))
		if err != nil {
			return "", err
		}
		body = []byte(form.Get("payload"))
	}
	var p struct {
		Repository struct {
			FullName string `json:"full_name"`
		} `json:"repository"`
		Project struct {
			Path string `json:"path_with_namespace"`
		} `json:"project"` // GitLab
	}
	if err := json.Unmarshal(body, &p); err != nil {
		return "", err
	}
	if p.Repository.FullName == "" {
		return p.Project.Path, nil
	}
	return p.Repository.FullName, nil
}

// Serve answers on l until ctx ends, with limits against slow and large requests.
func Serve(ctx context.Context, l net.Listener, h *Handler) error {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 20 * time.Second,
		WriteTimeout: 20 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
	}
	down := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(down)
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = srv.Shutdown(limit)
	})
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve webhooks: %w", err)
	}
	<-down
	return nil
}
