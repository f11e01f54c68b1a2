package fleet_test

import (
	"testing"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

func TestResolvePath(t *testing.T) {
	for _, c := range []struct{ manifest, ref, want string }{
		{"a/b/m.yaml", "x.yaml", "x.yaml"},
		{"a/b/m.yaml", "c/x.yaml", "c/x.yaml"},
		{"a/b/m.yaml", "./x.yaml", "a/b/x.yaml"},
		{"a/b/m.yaml", "../x.yaml", "a/x.yaml"},
		{"a/b/m.yaml", "../../x.yaml", "x.yaml"},
		{"a/b/m.yaml", "../../../x.yaml", ""},
		{"m.yaml", "./x.yaml", "x.yaml"},
		{"m.yaml", "../x.yaml", ""},
		{"m.yaml", "a/../x.yaml", "x.yaml"},
		{"m.yaml", "a/../../x.yaml", ""},
		{"m.yaml", "..x.yaml", "..x.yaml"},
		{"m.yaml", ".hidden", ".hidden"},
		{"m.yaml", "/x.yaml", ""},
		{"m.yaml", `a\x.yaml`, ""},
		{"m.yaml", "a\x00b", ""},
		{"m.yaml", "a\nb", ""},
		{"m.yaml", "", ""},
	} {
		got, err := fleet.ResolvePath(c.manifest, c.ref)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q from %q: %q, %v; want %q", c.ref, c.manifest, got, err, c.want)
		}
	}
}

func TestAtGivesTheFieldOrItsNearestParent(t *testing.T) {
	f, problems := mustLoad(t, repo("secrets.sops.yaml", "sops: {}\n", "c.yaml", clusterYAML, "p.yaml", `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosConfigPatch
metadata:
  name: p
  labels: {"a.b/c": x, "": y, "q\"uote": z}
spec:
  clusterRef: {name: prod}
  documents:
    - machine:
        sysctls:
          net.core.somaxconn: "1"
        list: [a, [b, c]]
`))
	if len(problems) > 0 {
		t.Fatal(say(problems))
	}
	p := f.Cluster("prod").Patches[0]
	for path, want := range map[string][2]int{
		"":                              {1, 1},
		"kind":                          {2, 1},
		"metadata.labels":               {5, 3},
		`metadata.labels["a.b/c"]`:      {5, 12},
		`metadata.labels[""]`:           {5, 24},
		`metadata.labels["q\"uote"]`:    {5, 31},
		`metadata.labels["none"]`:       {5, 3},
		"spec.documents":                {8, 3},
		"spec.documents[0]":             {9, 7},
		"spec.documents[1]":             {8, 3},
		"spec.documents[0].machine":     {9, 7},
		"spec.documents[0].machine.xxx": {9, 7},
		`spec.documents[0].machine.sysctls["net.core.somaxconn"]`: {11, 11},
		"spec.documents[0].machine.list[1][0]":                    {12, 20},
		"spec.selector.roles":                                     {6, 1},
		"nothing":                                                 {1, 1},
		"[x":                                                      {1, 1},
	} {
		if got := p.At(path); got != (fleet.Position{File: "p.yaml", Line: want[0], Column: want[1]}) {
			t.Errorf("%s: %s, want %v", path, got, want)
		}
	}
	pos := fleet.Position{File: "x", Line: 3}
	o := fleet.NewObject(v1alpha1.KindTalosMachine, "m", "c", pos)
	if o.At("spec.role") != pos || o.ID() != "TalosMachine/m" || pos.String() != "x:3" {
		t.Errorf("%+v", o)
	}
}

func TestIsUnknown(t *testing.T) {
	f := fleet.Fleet{Unknown: []fleet.Unknown{{Kind: "TalosMachine", Name: "a", Cluster: "c"}, {Kind: "TalosCluster", Cluster: "d"}}}
	for _, c := range []struct {
		kind, cluster, name string
		want                bool
	}{
		{"TalosMachine", "c", "a", true},
		{"TalosMachine", "c", "b", false},
		{"TalosMachine", "d", "a", false},
		{"TalosMachine", "", "a", true},
		{"TalosCluster", "d", "d", true},
		{"TalosCluster", "c", "c", false},
		{"", "", "", true},
	} {
		if got := f.IsUnknown(c.kind, c.cluster, c.name); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if (&fleet.Fleet{}).IsUnknown("", "", "") {
		t.Error("a fleet that was read whole has nothing unknown")
	}
}
