package branch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// Trailers of our commits. They tell branches apart; they prove nothing: what must be proved (the inventory) has a MAC.
const (
	rootTrailer   = "Ichor-Status-Branch: v1"
	writerTrailer = "Ichor-Writer: "
)

// view is the branch as it was looked at, and what was found.
type view struct {
	tip state.BranchTip // zero when absent
	// old is the tip that our content is restored from, "" when there is nothing to restore.
	old string
	// shared: another Ichor wrote too, so what is new on the branch stays.
	shared bool
}

// history is what lies between the tip and what we know.
type history struct {
	reached        bool // the tip we pushed last is below
	foreign, other int  // commits without our trailer, and with another Ichor's
	last           state.CommitInfo
	root           state.CommitInfo
}

// look fetches the branch and compares it with what was pushed last.
func (w *Writer) look(ctx context.Context) (view, error) {
	w.mu.Lock()
	m := w.mem
	w.mu.Unlock()
	tip, err := w.git.Tip(ctx)
	if errors.Is(err, state.ErrBranchAbsent) {
		w.seen(state.BranchTip{})
		if m.Tip == "" {
			return view{}, nil
		}
		return view{old: m.Tip}, w.found(state.ReasonStatusBranchLost, "it was deleted; reports are put back, older history is lost")
	}
	if err != nil {
		return view{}, fmt.Errorf("read status branch: %w", err)
	}
	w.seen(tip)
	if tip.Hash == m.Tip {
		return view{tip: tip}, nil
	}
	h, err := w.between(ctx, tip.Hash, m)
	if err != nil {
		return view{}, fmt.Errorf("read status branch: %w", err)
	}
	return w.judge(ctx, tip, h, m)
}

func (w *Writer) seen(tip state.BranchTip) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.health.Tip, w.health.Commits, w.health.ForeignRoot = tip.Hash, tip.Commits, ""
}

// between walks the first parents from the tip to what we pushed last, or to the root.
func (w *Writer) between(ctx context.Context, tip string, m memory) (history, error) {
	h := history{}
	for at := tip; ; {
		if at == m.Tip {
			h.reached = true
			return h, nil
		}
		c, err := w.git.CommitInfo(ctx, at)
		if err != nil {
			return h, err
		}
		switch by := trailer(c.Message, writerTrailer); {
		case by == "" || len(c.Parents) > 1:
			h.foreign++
			if h.last.Hash == "" {
				h.last = c
			}
		case by != m.ID:
			h.other++
		}
		if len(c.Parents) == 0 {
			h.root = c
			return h, nil
		}
		at = c.Parents[0]
	}
}

// trailer gives the value of a trailer in the message's last paragraph, "" when there is none.
func trailer(message, name string) string {
	for line := range strings.Lines(message) {
		if v, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), name); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func (w *Writer) judge(ctx context.Context, tip state.BranchTip, h history, m memory) (view, error) {
	v := view{tip: tip, shared: h.other > 0}
	if !h.reached && !strings.Contains(h.root.Message, rootTrailer) && h.root.Hash != m.Acknowledged {
		w.mu.Lock()
		w.health.ForeignRoot = h.root.Hash
		w.mu.Unlock()
		detail := fmt.Sprintf("its root %s by %s is not Ichor's; nothing is written until it is acknowledged", short(h.root.Hash), h.root.Author)
		return v, errors.Join(fmt.Errorf("read status branch: %w: %s", ErrForeign, detail), w.found(state.ReasonStatusBranchTampered, detail))
	}
	if m.Tip == "" {
		if h.foreign > 0 && h.root.Hash != m.Acknowledged {
			return v, w.tampered(h)
		}
		return v, nil
	}
	if h.reached {
		if h.foreign > 0 {
			v.old = m.Tip
			return v, w.tampered(h)
		}
		return v, nil // ours, or another Ichor's: the journal decides who may act
	}
	// What we pushed is not below the tip: the history was replaced. An Ichor that compacts does that.
	if h.foreign == 0 && h.root.Hash != m.Root {
		return v, nil
	}
	if h.root.Hash == m.Acknowledged && m.Root != m.Acknowledged {
		return v, nil // a person has said that this history is to be gone on with
	}
	v.old = m.Tip
	if back, err := w.git.IsAncestor(ctx, tip.Hash, m.Tip); err == nil && back {
		return v, w.found(state.ReasonStatusBranchTampered, "it was set back to "+short(tip.Hash)+"; reports are put back")
	}
	if h.foreign > 0 {
		return v, w.tampered(h)
	}
	return v, w.found(state.ReasonStatusBranchTampered, "its history was rewritten; reports are put back")
}

func (w *Writer) tampered(h history) error {
	return w.found(state.ReasonStatusBranchTampered, fmt.Sprintf("%s by %s is not Ichor's; reports are put back", short(h.last.Hash), h.last.Author))
}

// found notes a finding, with the time it was first seen.
func (w *Writer) found(reason, detail string) error {
	w.mu.Lock()
	news := w.mem.Finding != reason || w.mem.Detail != detail
	w.mu.Unlock()
	if news {
		w.o.Log.Error("status branch is not as it was left", "reason", reason, "detail", detail)
	}
	return w.change(func(m *memory) {
		if news {
			m.Finding, m.Detail, m.FindingAt = reason, detail, time.Now().UTC()
		}
	})
}

// Acknowledge lets Ichor write on a branch with a foreign root.
func (w *Writer) Acknowledge(root string) error {
	return w.change(func(m *memory) { m.Acknowledged = root })
}

// Forgive ends a finding: a person has seen it.
func (w *Writer) Forgive() error {
	return w.change(func(m *memory) { m.Finding, m.Detail, m.FindingAt = "", "", time.Time{} })
}

// restore gives what brings our content back after somebody changed, set back or deleted the branch. The inventory is
// not touched: which one is right only the journal knows. What can't be read any more is lost, which costs history.
func (w *Writer) restore(ctx context.Context, v view) []state.FileChange {
	if v.old == "" {
		return nil
	}
	was, err := w.git.Files(ctx, v.old, "")
	if err != nil {
		w.o.Log.Warn("put reports back", "error", err)
		return nil
	}
	var out []state.FileChange
	mine := map[string]bool{}
	for _, path := range was {
		mine[path] = true
		if path == InventoryPath {
			continue
		}
		if v.tip.Hash != "" {
			a, errA := w.git.FileHash(ctx, v.old, path)
			b, errB := w.git.FileHash(ctx, v.tip.Hash, path)
			if (errA == nil && errB == nil && a == b) || (v.shared && errB == nil) {
				continue
			}
		}
		if data, err := w.git.ReadFile(ctx, v.old, path); err == nil {
			out = append(out, state.FileChange{Path: path, Data: data})
		}
	}
	if v.tip.Hash == "" || v.shared {
		return out
	}
	now, err := w.git.Files(ctx, v.tip.Hash, "")
	if err != nil {
		return out
	}
	for _, path := range now {
		if !mine[path] && path != InventoryPath {
			out = append(out, state.FileChange{Path: path, Delete: true})
		}
	}
	return out
}

func short(sha string) string { return sha[:min(12, len(sha))] }
