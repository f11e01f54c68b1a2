package branch

import (
	"context"
	"crypto/sha1" //nolint:gosec // Git's own hash
	"encoding/hex"
	"errors"
	"fmt"

	"ichor.maesh.dev/ichor/schemas/state"
)

// Inventory is inventory.yaml on the status branch, by compare-and-swap over its content: pushes of reports don't
// count as a move, any change of the file by anybody else does. The revision is Git's hash of the content.
type Inventory struct{ w *Writer }

// Inventory gives the store for the journal.
func (w *Writer) Inventory() *Inventory { return &Inventory{w} }

// noFile is the revision of a branch without the file.
const noFile = "none"

// Read gives the content and its revision. ErrAbsent: there is no branch, or it never held an inventory. ErrNoFile: it
// held one, which is gone. ErrForeign: the branch isn't Ichor's.
func (i *Inventory) Read(ctx context.Context) ([]byte, string, error) {
	i.w.push.Lock()
	defer i.w.push.Unlock()
	v, err := i.w.look(ctx)
	if err != nil {
		return nil, "", i.w.note(err)
	}
	rev, err := i.rev(ctx, v)
	if err != nil {
		return nil, "", i.w.note(err)
	}
	if rev == "" || rev == noFile {
		return nil, rev, i.missing(ctx, v)
	}
	data, err := i.w.git.ReadFile(ctx, v.tip.Hash, InventoryPath)
	if err != nil {
		return nil, "", fmt.Errorf("read inventory: %w", err)
	}
	return data, rev, i.w.change(func(m *memory) { m.HadInventory = true })
}

// rev is the file's hash, "" without a branch, noFile without the file.
func (i *Inventory) rev(ctx context.Context, v view) (string, error) {
	if v.tip.Hash == "" {
		return "", nil
	}
	rev, err := i.w.git.FileHash(ctx, v.tip.Hash, InventoryPath)
	if errors.Is(err, state.ErrNoFile) {
		return noFile, nil
	}
	if err != nil {
		return "", fmt.Errorf("read inventory: %w", err)
	}
	return rev, nil
}

// missing tells a branch on which only reports were ever written from one that lost its inventory.
func (i *Inventory) missing(ctx context.Context, v view) error {
	if v.tip.Hash == "" {
		return ErrAbsent
	}
	i.w.mu.Lock()
	had := i.w.mem.HadInventory
	i.w.mu.Unlock()
	if !had {
		var err error
		if had, err = i.w.git.EverHad(ctx, v.tip.Hash, InventoryPath); err != nil {
			return fmt.Errorf("read inventory: %w", err)
		}
	}
	if had {
		return ErrNoFile
	}
	return ErrAbsent
}

// Write replaces the content where its revision still is prev, and gives the new revision. It returns only when the
// server lists the commit. ErrMoved: somebody else changed it. ErrForeign: the branch isn't Ichor's. Any other error
// leaves open whether the write arrived; writing the same content again settles it.
func (i *Inventory) Write(ctx context.Context, data []byte, prev string) (string, error) {
	i.w.push.Lock()
	defer i.w.push.Unlock()
	rev, err := i.write(ctx, data, prev)
	return rev, i.w.note(err)
}

func (i *Inventory) write(ctx context.Context, data []byte, prev string) (string, error) {
	want := blobHash(data)
	for try := range tries {
		v, err := i.w.look(ctx)
		if err != nil {
			return "", err
		}
		cur, err := i.rev(ctx, v)
		if err != nil {
			return "", err
		}
		if cur == want {
			return want, nil // there already: an earlier push whose reply was lost
		}
		if cur != prev && (!without(cur) || !without(prev)) {
			return "", fmt.Errorf("write inventory: %w", ErrMoved)
		}
		changes := append(i.w.restore(ctx, v), state.FileChange{Path: InventoryPath, Data: data})
		_, err = i.w.commit(ctx, v, changes, "Record")
		if errors.Is(err, state.ErrBranchMoved) {
			wait(ctx, try)
			continue
		}
		if err != nil {
			return "", fmt.Errorf("write inventory: %w", err)
		}
		return want, i.w.change(func(m *memory) { m.HadInventory = true })
	}
	return "", fmt.Errorf("write inventory: %w, %d times in a row", ErrMoved, tries)
}

// without tells the revisions of a missing file. Whether the branch is there matters not for the comparison: a report
// of ours may have made it meanwhile.
func without(rev string) bool { return rev == "" || rev == noFile }

// blobHash is Git's hash of a file's content.
func blobHash(data []byte) string {
	h := sha1.New() //nolint:gosec // see above
	fmt.Fprintf(h, "blob %d\x00", len(data))
	h.Write(data)
	return hex.EncodeToString(h.Sum(nil))
}
