package fleet

import (
	"reflect"
	"testing"

	yaml4 "go.yaml.in/yaml/v4"
)

// TestEntriesReadTheSameInTalosParser compares with the YAML library that Talos's decoder uses, which is a version
// ahead of the one here.
func TestEntriesReadTheSameInTalosParser(t *testing.T) {
	for _, seed := range emitSeeds {
		nodes, err := decodeNodes([]byte(seed))
		if err != nil || len(nodes) != 1 {
			t.Fatalf("%q: %v", seed, err)
		}
		var want, got any
		errWant := yaml4.Unmarshal([]byte(seed), &want)
		raw := emit(nodes[0])
		errGot := yaml4.Unmarshal(raw, &got)
		if (errWant == nil) != (errGot == nil) || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is written as %q: %v (%v), want %v (%v)", seed, raw, got, errGot, want, errWant)
		}
	}
}
