package fleet

import "testing"

// TestNearest: what shares nothing with a name is no likely meaning of it, however short both are.
func TestNearest(t *testing.T) {
	names := []string{"cp1", "cp2", "w2", "hostname", "role"}
	for got, want := range map[string]string{
		"w1": "w2", "w22": "w2", "cp3": "cp1", "hostnam": "hostname", "rloe": "role", "x": "", "zz": "", "11": "", "worker9": "",
	} {
		if near := nearest(got, names); near != want {
			t.Errorf("nearest to %q: %q, want %q", got, near, want)
		}
	}
	if near := nearest("w1", []string{"cp1"}); near != "" {
		t.Errorf("w1 is taken for %s", near)
	}
}
