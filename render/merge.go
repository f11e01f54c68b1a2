package render

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	jsonpatch "github.com/evanphx/json-patch"
	"github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/merge"
	"github.com/siderolabs/talos/pkg/machinery/config/validation"
)

// metal is the mode that configurations are validated for: nodes that are installed to a disk.
type metal struct{}

func (metal) String() string        { return "metal" }
func (metal) RequiresInstall() bool { return true }
func (metal) InContainer() bool     { return false }

// validate runs Talos's own validation. Whether Talos supports the Kubernetes version is not its matter: the library
// would compare with the Talos version that it was built for, not the cluster's (rule versions does that).
func validate(docs []config.Document) (warnings []string, err error) {
	defer recovered(&err)
	c, err := container.New(docs...)
	if err != nil {
		return nil, err
	}
	return c.ValidateAsClient(metal{}, validation.WithLocal())
}

// recovered turns a panic of the library into an error: a null in a list of a patch, say, makes its validation fall
// over, and a stranger's pull request must not take the daemon down.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the configuration makes Talos's library panic: %v", p)
	}
}

// apply puts one patch onto documents in place and tells whether it changed them.
//
// A strategic merge is what configpatcher.Apply does, but without cloning the whole configuration for each patch: it
// is the patch's documents that are cloned, so that the two share nothing. TestApplyIsTheLibrarys holds them equal.
func apply(left []config.Document, patch configpatcher.Patch) (docs []config.Document, changed bool, err error) {
	defer recovered(&err)
	switch p := patch.(type) {
	case jsonpatch.Patch:
		return applyJSON(left, p)
	case configpatcher.StrategicMergePatch:
		return applyStrategic(left, p)
	}
	return nil, false, errors.New("unknown kind of patch")
}

func applyJSON(left []config.Document, p jsonpatch.Patch) ([]config.Document, bool, error) {
	c, err := container.New(left...)
	if err != nil {
		return nil, false, err
	}
	in := configpatcher.WithConfig(c)
	before, err := encodeDocs(left)
	if err != nil {
		return nil, false, err
	}
	out, err := configpatcher.Apply(in, []configpatcher.Patch{p})
	if err != nil {
		return nil, false, err
	}
	cfg, err := out.Config()
	if err != nil {
		return nil, false, err
	}
	docs := cfg.Clone().Documents()
	after, err := encodeDocs(docs)
	if err != nil {
		return nil, false, err
	}
	return docs, string(before) != string(after), nil
}

func applyStrategic(left []config.Document, p configpatcher.StrategicMergePatch) ([]config.Document, bool, error) {
	index := make(map[string]config.Document, len(left))
	for _, d := range left {
		index[mergeID(d)] = d
	}
	changed := false
	for _, right := range p.Documents() {
		id := mergeID(right)
		sel, isSel := right.(configloader.Selector)
		old, there := index[id]
		if !there {
			if !isSel {
				left, changed = append(left, right.Clone()), true
			}
			continue
		}
		before := old.Clone()
		if !isSel {
			if err := merge.Merge(old, right.Clone()); err != nil {
				return nil, false, err
			}
		} else if err := sel.ApplyTo(old); err != nil {
			if !errors.Is(err, configloader.ErrZeroedDocument) {
				return nil, false, err
			}
			delete(index, id)
			i := slices.Index(left, old)
			left, changed = slices.Delete(left, i, i+1), true
			continue
		}
		changed = changed || !reflect.DeepEqual(before, old)
	}
	// The constructor refuses documents that exclude each other.
	if _, err := container.New(left...); err != nil {
		return nil, false, err
	}
	return left, changed, nil
}

// mergeID is what strategic merge matches documents by.
func mergeID(d config.Document) string {
	id := d.APIVersion() + "/" + d.Kind()
	if named, ok := d.(config.NamedDocument); ok {
		id += "/" + named.Name()
	}
	return id
}

// sortDocs orders documents: v1alpha1 first, then by kind and name.
func sortDocs(docs []config.Document) []config.Document {
	out := slices.Clone(docs)
	slices.SortStableFunc(out, func(a, b config.Document) int {
		av, bv := a.Kind() == v1alpha1Kind, b.Kind() == v1alpha1Kind
		switch {
		case av && !bv:
			return -1
		case bv && !av:
			return 1
		}
		return strings.Compare(shownID(a), shownID(b))
	})
	return out
}

// v1alpha1Kind is what the library calls the kind of the document that has none.
const v1alpha1Kind = "v1alpha1"

// shownID is the document's ID in reports: Kind or Kind/name.
func shownID(d config.Document) string {
	id := d.Kind()
	if named, ok := d.(config.NamedDocument); ok && named.Name() != "" {
		id += "/" + named.Name()
	}
	return id
}
