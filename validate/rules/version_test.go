package rules

import (
	"fmt"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"
)

// TestSupportIsTheLibrarys: the rows are read as the library's own functions read them, for every pair of versions around
// the bounds, and none of the library's newer minors is missing.
func TestSupportIsTheLibrarys(t *testing.T) {
	for talos := 2; talos <= 20; talos++ {
		text := fmt.Sprintf("v1.%d.3", talos)
		theirs, err := compatibility.ParseTalosVersion(&machine.VersionInfo{Tag: text})
		if err != nil {
			t.Fatal(err)
		}
		ours, ok := parseVersion(text)
		if !ok {
			t.Fatal(text)
		}
		row, known := supportOf(ours)
		for k8s := 20; k8s <= 45; k8s++ {
			for _, patch := range []string{"0", "7", "99", "0-rc.1"} {
				kv := fmt.Sprintf("1.%d.%s", k8s, patch)
				v, err := compatibility.ParseKubernetesVersion(kv)
				if err != nil {
					t.Fatal(err)
				}
				k, _ := parseVersion(kv)
				err = v.SupportedWith(theirs)
				if !known {
					if talos > 5 && err == nil {
						t.Fatalf("the library knows Talos 1.%d, the table does not", talos)
					}
					continue
				}
				if row.has(k) != (err == nil) {
					t.Errorf("Talos %s, Kubernetes %s: %t, the library says %v", text, kv, row.has(k), err)
				}
			}
		}
	}
}
