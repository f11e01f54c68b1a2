package git

import (
	"bytes"
	"sort"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage"
	"github.com/go-git/go-git/v5/storage/memory"
)

// fresh is a commit that was built, with the objects that are new in it.
type fresh struct {
	hash    plumbing.Hash
	objects *memory.Storage
}

func newFresh() *fresh { return &fresh{objects: memory.NewStorage()} }

func (n *fresh) add(t plumbing.ObjectType, data []byte) (plumbing.Hash, error) {
	o := n.objects.NewEncodedObject()
	o.SetType(t)
	w, err := o.Writer()
	if err != nil {
		return plumbing.ZeroHash, err
	}
	if _, err := w.Write(data); err != nil {
		return plumbing.ZeroHash, err
	}
	return n.objects.SetEncodedObject(o)
}

func (n *fresh) commit(c *object.Commit) error {
	o := n.objects.NewEncodedObject()
	if err := c.Encode(o); err != nil {
		return err
	}
	h, err := n.objects.SetEncodedObject(o)
	n.hash = h
	return err
}

// pack of all new objects. The server has the rest: they are in parent's tree.
func (n *fresh) pack() ([]byte, error) {
	var hashes []plumbing.Hash
	for h := range n.objects.Objects {
		hashes = append(hashes, h)
	}
	plumbing.HashesSort(hashes)
	var buf bytes.Buffer
	err := writePack(&buf, n.objects, hashes)
	return buf.Bytes(), err
}

func (b *Branch) build(op, parent string, changes []Change, message string, when time.Time) (*fresh, error) {
	n := newFresh()
	var base plumbing.Hash
	var parents []plumbing.Hash
	if parent != "" {
		c, err := commitOf(b.store, op, parent)
		if err != nil {
			return nil, err
		}
		base, parents = c.TreeHash, []plumbing.Hash{c.Hash}
	}
	err := b.store.view(op, func(st storage.Storer) error {
		root, err := n.edit(st, base, changes)
		if err != nil {
			return err
		}
		if parent != "" && root == base {
			n.hash = parents[0]
			return nil
		}
		return n.commit(b.commitOf(root, parents, message, when))
	})
	return n, err
}

func (b *Branch) commitOf(tree plumbing.Hash, parents []plumbing.Hash, message string, when time.Time) *object.Commit {
	sig := object.Signature{Name: b.author.Name, Email: b.author.Email, When: when.UTC().Truncate(time.Second)}
	return &object.Commit{Author: sig, Committer: sig, Message: message, TreeHash: tree, ParentHashes: parents}
}

// edit applies changes to a tree (zero: empty) and gives the new one. Parts that stay are not written again.
func (n *fresh) edit(st storage.Storer, tree plumbing.Hash, changes []Change) (plumbing.Hash, error) {
	entries := map[string]object.TreeEntry{}
	if !tree.IsZero() {
		t, err := object.GetTree(st, tree)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		for _, e := range t.Entries {
			entries[e.Name] = e
		}
	}
	below := map[string][]Change{}
	for _, c := range changes {
		name, rest, nested := strings.Cut(c.Path, "/")
		if err := checkName(name); err != nil {
			return plumbing.ZeroHash, err
		}
		switch {
		case nested:
			below[name] = append(below[name], Change{Path: rest, Data: c.Data, Delete: c.Delete})
		case c.Delete:
			delete(entries, name)
		default:
			h, err := n.add(plumbing.BlobObject, c.Data)
			if err != nil {
				return plumbing.ZeroHash, err
			}
			entries[name] = object.TreeEntry{Name: name, Mode: filemode.Regular, Hash: h}
		}
	}
	for name, cs := range below {
		var sub plumbing.Hash
		if e, ok := entries[name]; ok && e.Mode == filemode.Dir {
			sub = e.Hash
		}
		h, err := n.edit(st, sub, cs)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		if h == emptyTree {
			delete(entries, name)
			continue
		}
		entries[name] = object.TreeEntry{Name: name, Mode: filemode.Dir, Hash: h}
	}
	return n.tree(entries)
}

// emptyTree is the hash of the tree without entries.
var emptyTree = plumbing.NewHash("4b825dc642cb6eb9a060e54bf8d69288fbee4904")

func (n *fresh) tree(entries map[string]object.TreeEntry) (plumbing.Hash, error) {
	t := &object.Tree{}
	for _, e := range entries {
		t.Entries = append(t.Entries, e)
	}
	sort.Sort(object.TreeEntrySorter(t.Entries))
	o := n.objects.NewEncodedObject()
	if err := t.Encode(o); err != nil {
		return plumbing.ZeroHash, err
	}
	return n.objects.SetEncodedObject(o)
}

func (b *Branch) buildCompact(op, tip string, keep func(string) bool, message string, when time.Time) (*fresh, error) {
	c, err := commitOf(b.store, op, tip)
	if err != nil {
		return nil, err
	}
	n := newFresh()
	err = b.store.view(op, func(st storage.Storer) error {
		t, err := object.GetTree(st, c.TreeHash)
		if err != nil {
			return err
		}
		var drop []Change
		err = t.Files().ForEach(func(f *object.File) error {
			if keep != nil && !keep(f.Name) {
				drop = append(drop, Change{Path: f.Name, Delete: true})
			}
			return nil
		})
		if err != nil {
			return err
		}
		root, err := n.edit(st, c.TreeHash, drop)
		if err != nil {
			return err
		}
		return n.commit(b.commitOf(root, nil, message, when))
	})
	return n, err
}
