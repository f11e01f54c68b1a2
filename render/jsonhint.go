package render

import (
	"slices"
	"strings"

	jsonpatch "github.com/evanphx/json-patch"
	"github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configdiff"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/container"

	"ichor.maesh.dev/ichor/schemas/fleet"
)

// jsonHint shows the sparse document that says the same as a JSON patch, where one can be computed: the patch is
// applied to the v1alpha1 document alone, and the difference is written as a strategic merge.
func (j *job) jsonHint(m *fleet.Machine, id identity, entries []*entry, guilty int) string {
	const plain = "Talos allows JSON patches up to contract v1.11 only: write it as a sparse document under spec.documents"
	text, err := j.sparse(m, id, entries, guilty)
	if err != nil {
		return plain
	}
	return plain + ":\n" + text
}

func (j *job) sparse(m *fleet.Machine, id identity, entries []*entry, guilty int) (string, error) {
	if j.real || guilty < 0 {
		return "", errNoHint
	}
	docs, err := j.base(m, id)
	if err != nil {
		return "", err
	}
	for _, e := range entries[:guilty] {
		if docs, _, err = apply(docs, e.loaded[first].patch); err != nil {
			return "", err
		}
	}
	p, ok := entries[guilty].loaded[first].patch.(jsonpatch.Patch)
	if !ok {
		return "", errNoHint
	}
	var alone []config.Document
	for _, d := range docs {
		if d.Kind() == v1alpha1Kind {
			alone = append(alone, d)
		}
	}
	before, err := container.New(alone...)
	if err != nil {
		return "", err
	}
	out, err := configpatcher.Apply(configpatcher.WithConfig(before.Clone()), []configpatcher.Patch{p})
	if err != nil {
		return "", err
	}
	after, err := out.Config()
	if err != nil {
		return "", err
	}
	patches, err := configdiff.Patch(before, after)
	if err != nil || len(patches) != 1 {
		return "", errNoHint
	}
	sm, ok := patches[0].(configpatcher.StrategicMergePatch)
	if !ok {
		return "", errNoHint
	}
	// The text that the patch was loaded from is sparse; encoding the decoded form would spell empty fields out.
	text, err := sm.Provider().Bytes()
	if err != nil {
		return "", err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	// A patch never has to repeat the version.
	lines = slices.DeleteFunc(lines, func(l string) bool { return l == "version: v1alpha1" })
	return strings.Join(lines, "\n"), nil
}
