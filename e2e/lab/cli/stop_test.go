package cli

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
)

// TestStoppedWhileItStarts: Ctrl-C before the lab is up is told as that, not as the failure of what was under way.
func TestStoppedWhileItStarts(t *testing.T) {
	_, dir := fleetOf(t, "stopped")
	ctx, cancel := context.WithCancel(t.Context())
	nodes := func(context.Context, NodesOptions) (Nodes, error) {
		cancel()
		return nil, errors.New("killed in the middle")
	}
	o := UpOptions{Repo: dir, State: t.TempDir(), ForgeRepo: "lab/fleet", Events: io.Discard, Said: io.Discard, Log: slog.New(slog.DiscardHandler), Nodes: nodes}
	if err := Up(ctx, o); !errors.Is(err, ErrStopped) {
		t.Errorf("got %v, want %v", err, ErrStopped)
	}
	o.Nodes = func(context.Context, NodesOptions) (Nodes, error) { return nil, errors.New("no disk") }
	if err := Up(t.Context(), o); err == nil || err.Error() != "no disk" {
		t.Errorf("got %v, want what went wrong", err)
	}
}

// TestLabThatStarts: a lab that holds its folder and does not answer yet is not "no lab".
func TestLabThatStarts(t *testing.T) {
	state := t.TempDir()
	if _, err := NewClient(state).Info(t.Context()); !errors.Is(err, ErrNoLab) {
		t.Errorf("got %v, want %v", err, ErrNoLab)
	}
	lock, err := lockState(state)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewClient(state).Info(t.Context()); !errors.Is(err, ErrNotUp) {
		t.Errorf("while the lab starts: got %v, want %v", err, ErrNotUp)
	}
	lock.Close()
	if _, err := NewClient(state).Info(t.Context()); !errors.Is(err, ErrNoLab) {
		t.Errorf("afterwards: got %v, want %v", err, ErrNoLab)
	}
}
