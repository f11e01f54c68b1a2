package forge

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
)

// hookTimeout is how long GitHub waits for an answer.
const hookTimeout = 10 * time.Second

// maxDeliveries are remembered.
const maxDeliveries = 1000

// hook is the one webhook of the main repository.
type hook struct {
	ID     int64  `json:"id"`
	URL    string `json:"url"`
	Secret string `json:"secret"`
}

// Delivery is one webhook call. GitHub never repeats one by itself, and so it is here.
type Delivery struct {
	ID     string    `json:"id"`
	Event  string    `json:"event"`
	Action string    `json:"action,omitempty"`
	Time   time.Time `json:"time"`
	// Status of the answer; 0 where none came.
	Status int    `json:"status"`
	Error  string `json:"error,omitempty"`
	// Payload that was sent.
	Payload []byte `json:"-"`
}

// hookSender delivers in the order of the events, one at a time.
type hookSender struct {
	f     *Forge
	queue chan Delivery
	mu    sync.Mutex
	sent  []Delivery
}

func newHookSender(f *Forge) *hookSender { return &hookSender{f: f, queue: make(chan Delivery, 4096)} }

// SetWebhook sends push and pull_request events to a URL from now on, beginning with a ping; "" stops it. The
// secret signs them; an empty one leaves the signature out, as on GitHub.
func (f *Forge) SetWebhook(url, secret string) {
	f.mu.Lock()
	if url == "" {
		f.st.Hook = nil
	} else {
		f.st.Hook = &hook{ID: f.id(), URL: url, Secret: secret}
	}
	f.saveLocked()
	f.mu.Unlock()
	if url != "" {
		f.hooks.send("ping", "", obj{"zen": "Keep it logically awesome.", "hook": obj{"type": "Repository", "active": true, "events": []string{"push", "pull_request"}}}, f.opt.Login)
	}
}

// Deliveries gives the newest webhook calls, oldest first.
func (f *Forge) Deliveries() []Delivery {
	f.hooks.mu.Lock()
	defer f.hooks.mu.Unlock()
	return append([]Delivery(nil), f.hooks.sent...)
}

// Redeliver sends a delivery again, with the same ID, as GitHub's page does.
func (f *Forge) Redeliver(id string) error {
	for _, d := range f.Deliveries() {
		if d.ID == id {
			f.hooks.enqueue(d)
			return nil
		}
	}
	return fmt.Errorf("deliver %s again: no such delivery", id)
}

func (s *hookSender) enqueue(d Delivery) {
	select {
	case s.queue <- d:
	default:
		s.f.log.Warn("webhook queue is full, a delivery is lost", "event", d.Event)
	}
}

// send queues an event when there is a webhook.
func (s *hookSender) send(event, action string, payload obj, actor string) {
	f := s.f
	f.mu.Lock()
	if f.st.Hook == nil {
		f.mu.Unlock()
		return
	}
	payload["repository"], payload["sender"] = f.repositoryJSON(f.main), f.userJSON(actor)
	if action != "" {
		payload["action"] = action
	}
	data, err := json.Marshal(payload)
	f.mu.Unlock()
	if err != nil {
		f.log.Error("cannot make a webhook payload", "event", event, "error", err)
		return
	}
	s.enqueue(Delivery{ID: uuid.NewString(), Event: event, Action: action, Payload: data})
}

// push is the event of a branch that moved.
func (s *hookSender) push(r *repository, actor string, c refChange) {
	f := s.f
	forced := c.Old != Zero && c.New != Zero && !f.isAncestor(f.ctx, r, c.Old, c.New)
	payload := obj{
		"ref": "refs/heads/" + c.Branch, "before": c.Old, "after": c.New, "created": c.Old == Zero, "deleted": c.New == Zero, "forced": forced,
		"base_ref": nil, "compare": f.htmlURL(r) + "/compare/" + c.Old + "..." + c.New, "commits": []obj{}, "head_commit": nil,
		"pusher": obj{"name": actor, "email": actor + "@users.noreply.localhost"},
	}
	if c.New != Zero {
		if o, err := f.commitJSON(f.ctx, r, c.New); err == nil {
			commit := o["commit"].(obj)
			payload["head_commit"] = obj{
				"id": c.New, "tree_id": commit["tree"].(obj)["sha"], "distinct": true, "message": commit["message"],
				"timestamp": commit["committer"].(obj)["date"], "url": o["html_url"], "author": commit["author"], "committer": commit["committer"],
				"added": []string{}, "removed": []string{}, "modified": []string{},
			}
		}
	}
	s.send("push", "", payload, actor)
}

// pull is an event of a pull request.
func (s *hookSender) pull(p *pull, actor, action string, more obj) {
	s.f.mu.Lock()
	payload := obj{"number": p.Number, "pull_request": s.f.fullPullJSON(p)}
	s.f.mu.Unlock()
	for k, v := range more {
		payload[k] = v
	}
	s.send("pull_request", action, payload, actor)
}

func (s *hookSender) run() {
	defer s.f.wg.Done()
	client := &http.Client{Timeout: hookTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for {
		select {
		case <-s.f.ctx.Done():
			return
		case d := <-s.queue:
			s.deliver(s.f.ctx, client, d)
		}
	}
}

func (s *hookSender) deliver(ctx context.Context, client *http.Client, d Delivery) {
	s.f.mu.Lock()
	h := s.f.st.Hook
	s.f.mu.Unlock()
	if h == nil {
		return
	}
	d.Time, d.Status, d.Error = s.f.now().UTC(), 0, ""
	if err := s.post(ctx, client, h, &d); err != nil {
		d.Error = err.Error()
	}
	s.mu.Lock()
	if s.sent = append(s.sent, d); len(s.sent) > maxDeliveries {
		s.sent = append([]Delivery(nil), s.sent[maxDeliveries/2:]...)
	}
	s.mu.Unlock()
	s.f.emit("forge.webhook", map[string]any{"event": d.Event, "action": d.Action, "status": d.Status, "error": d.Error})
}

func (s *hookSender) post(ctx context.Context, client *http.Client, h *hook, d *Delivery) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(d.Payload))
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	for k, v := range map[string]string{
		"Content-Type": "application/json", "User-Agent": "GitHub-Hookshot/1c0ffee", "Accept": "*/*",
		"X-GitHub-Event": d.Event, "X-GitHub-Delivery": d.ID, "X-GitHub-Hook-ID": fmt.Sprint(h.ID),
		"X-GitHub-Hook-Installation-Target-Type": "repository", "X-GitHub-Hook-Installation-Target-ID": fmt.Sprint(s.f.main.id()),
	} {
		req.Header.Set(k, v)
	}
	if h.Secret != "" {
		mac := hmac.New(sha256.New, []byte(h.Secret))
		mac.Write(d.Payload)
		req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
		old := hmac.New(sha1.New, []byte(h.Secret))
		old.Write(d.Payload)
		req.Header.Set("X-Hub-Signature", "sha1="+hex.EncodeToString(old.Sum(nil)))
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	d.Status = resp.StatusCode
	return nil
}
