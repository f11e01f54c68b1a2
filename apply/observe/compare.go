package observe

import (
	"bytes"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/render/diff"
	"ichor.maesh.dev/ichor/render/effect"
)

// Compare is the Comparer of render/diff and render/effect.
func Compare(minor int, running, wish []byte) (Compared, error) {
	if bytes.Equal(running, wish) {
		// What was applied last, byte for byte: Talos keeps the bytes.
		return Compared{Equal: true, Effect: string(effect.None)}, nil
	}
	changes, equal, err := diff.Configs(running, wish)
	if err != nil {
		return Compared{}, err
	}
	out := Compared{Equal: equal}
	var effects []effect.Effect
	for _, c := range changes {
		e, service := effectOf(minor, c.Document, c.Path)
		effects = append(effects, e)
		out.Paths = append(out.Paths, plan.PathFact{Document: c.Document, Path: c.Path, Effect: string(e), Service: service})
	}
	out.Effect = string(effect.Worst(effects...))
	return out, nil
}

// effectOf takes the worse of what the last two kinds of Talos do where the node's version is not known.
func effectOf(minor int, document, path string) (effect.Effect, string) {
	if minor > 0 {
		return effect.Of(minor, document, path)
	}
	e13, s13 := effect.Of(13, document, path)
	e14, s14 := effect.Of(14, document, path)
	if effect.Worst(e13, e14) == e13 {
		return e13, s13
	}
	return e14, s14
}
