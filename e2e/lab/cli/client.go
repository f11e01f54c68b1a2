package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"ichor.maesh.dev/ichor/e2e/lab/forge"
)

// Client speaks to the lab that runs in a state folder.
type Client struct {
	state string
	http  *http.Client
}

// NewClient for a state folder. Whether a lab runs there turns out with the first command.
func NewClient(state string) *Client {
	c := &Client{state: state}
	c.http = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		where, err := os.ReadFile(filepath.Join(state, "control"))
		if err != nil {
			return nil, err
		}
		return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimSpace(string(where)))
	}}}
	return c
}

// ErrNoLab says that no lab runs in the state folder.
var ErrNoLab = errors.New("no lab runs there")

// ErrNotUp says that the lab of the state folder can't answer yet, or no more.
var ErrNotUp = errors.New("it does not answer")

// ask sends one command. Errors of the lab come back as they are worded there.
func ask[Out any](ctx context.Context, c *Client, path string, in any) (Out, error) {
	var out Out
	body, err := json.Marshal(in)
	if err != nil {
		return out, fmt.Errorf("write command: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://lab"+path, bytes.NewReader(body))
	if err != nil {
		return out, fmt.Errorf("write command: %w", err)
	}
	resp, err := c.http.Do(req)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		if lock, err := os.Open(filepath.Join(c.state, "lock")); err == nil {
			defer lock.Close()
			if syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil {
				return out, fmt.Errorf("reach the lab in %s: %w, it is still starting (or ending): try again in a moment", c.state, ErrNotUp)
			}
		}
		return out, fmt.Errorf("reach the lab in %s: %w; start it with \"ichor-lab up\", or name its folder with --state or $ICHOR_LAB_STATE", c.state, ErrNoLab)
	}
	if err != nil {
		return out, fmt.Errorf("reach the lab in %s: %w", c.state, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return out, fmt.Errorf("read the lab's answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return out, errors.New(strings.TrimSpace(string(data)))
	}
	if err := json.Unmarshal(data, &out); err != nil {
		return out, fmt.Errorf("read the lab's answer: %w", err)
	}
	return out, nil
}

// Info about the lab.
func (c *Client) Info(ctx context.Context) (Info, error) { return ask[Info](ctx, c, "/info", none{}) }

// Nodes of the lab.
func (c *Client) Nodes(ctx context.Context) ([]NodeInfo, error) {
	return ask[[]NodeInfo](ctx, c, "/nodes", none{})
}

// Node does something to a node.
func (c *Client) Node(ctx context.Context, a NodeAct) error {
	_, err := ask[none](ctx, c, "/node", a)
	return err
}

// Pulls lists the pull requests.
func (c *Client) Pulls(ctx context.Context) ([]forge.Pull, error) {
	return ask[[]forge.Pull](ctx, c, "/pulls", none{})
}

// Pull does something about a pull request.
func (c *Client) Pull(ctx context.Context, in PullRequest) (PullResult, error) {
	return ask[PullResult](ctx, c, "/pull", in)
}

// Push commits a folder on a branch.
func (c *Client) Push(ctx context.Context, o forge.PushOptions) (forge.Branch, error) {
	return ask[forge.Branch](ctx, c, "/push", o)
}

// Status of a commit, branch or tag.
func (c *Client) Status(ctx context.Context, ref string) (CommitStatus, error) {
	return ask[CommitStatus](ctx, c, "/status", ref)
}

// Requests counts the forge's requests by endpoint.
func (c *Client) Requests(ctx context.Context) (map[string]int, error) {
	return ask[map[string]int](ctx, c, "/requests", none{})
}

// Fault puts a fault in front of the forge.
func (c *Client) Fault(ctx context.Context, x forge.Fault) error {
	_, err := ask[none](ctx, c, "/fault", x)
	return err
}

// RecreateForge gives the repository another number, as if it had been deleted and made anew with the same content.
func (c *Client) RecreateForge(ctx context.Context) (int64, error) {
	return ask[int64](ctx, c, "/recreate", none{})
}

// HealForge takes the forge's faults away.
func (c *Client) HealForge(ctx context.Context) error {
	_, err := ask[none](ctx, c, "/heal", none{})
	return err
}

// Webhook sets the forge's webhook.
func (c *Client) Webhook(ctx context.Context, w Webhook) error {
	_, err := ask[none](ctx, c, "/webhook", w)
	return err
}

// Down ends the lab and waits until it has let go of its state folder.
func (c *Client) Down(ctx context.Context) error {
	if _, err := ask[none](ctx, c, "/down", none{}); err != nil {
		return err
	}
	for {
		lock, err := lockState(c.state)
		if err == nil {
			return lock.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the lab to end: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
