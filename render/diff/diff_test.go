package diff_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"pgregory.net/rapid"

	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/render/diff"
	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

func masked(t *testing.T, text string) mask.Render {
	t.Helper()
	if text == "" {
		return mask.Render{}
	}
	r, err := mask.Raw([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func lines(changes []diff.Change) []string {
	var out []string
	for _, c := range changes {
		out = append(out, c.String())
	}
	return out
}

func TestBetween(t *testing.T) {
	for name, tc := range map[string]struct {
		before, after string
		want          []string
	}{
		"the same": {"machine: {a: 1}", "machine: {a: 1}", nil},
		"a leaf":   {"machine: {sysctls: {net.a: x}}", "machine: {sysctls: {net.a: y}}", []string{`v1alpha1 machine.sysctls["net.a"]: "x" -> "y"`}},
		"a type":   {"machine: {a: 1}", `machine: {a: "1"}`, []string{`v1alpha1 machine.a: "1" -> "1"`}},
		"came and went": {"machine: {a: 1, b: {c: true}}", "machine: {d: [x]}", []string{
			`v1alpha1 machine.a: removed "1"`, `v1alpha1 machine.b.c: removed "true"`, `v1alpha1 machine.d[0]: added "x"`,
		}},
		"put in front":      {"machine: {l: [b, c]}", "machine: {l: [a, b, c]}", []string{`v1alpha1 machine.l[0]: added "a"`}},
		"at the end":        {"machine: {l: [a]}", "machine: {l: [a, b]}", []string{`v1alpha1 machine.l[1]: added "b"`}},
		"out of the middle": {"machine: {l: [a, b, c]}", "machine: {l: [a, c]}", []string{`v1alpha1 machine.l[1]: removed "b"`}},
		"within an element": {"machine: {l: [{n: a, v: 1}, {n: b, v: 2}]}", "machine: {l: [{n: a, v: 1}, {n: b, v: 3}]}", []string{`v1alpha1 machine.l[1].v: "2" -> "3"`}},
		"ten elements": {
			"machine: {l: [a,b,c,d,e,f,g,h,i,j,k]}", "machine: {l: [a,b,C,d,e,f,g,h,i,J,k]}",
			[]string{`v1alpha1 machine.l[2]: "c" -> "C"`, `v1alpha1 machine.l[9]: "j" -> "J"`},
		},
		"documents": {"machine: {a: 1}\n---\nkind: A\nname: x\nv: 1", "kind: B\nv: 2\n---\nmachine: {a: 2}", []string{
			`v1alpha1 machine.a: "1" -> "2"`, `A/x kind: removed "A"`, `A/x name: removed "x"`, `A/x v: removed "1"`, `B kind: added "B"`, `B v: added "2"`,
		}},
		"empty ones":       {"machine: {a: {}, b: null, l: []}", "machine: {}", []string{`v1alpha1 machine.a: removed "{}"`, `v1alpha1 machine.b: removed "null"`, `v1alpha1 machine.l: removed "[]"`}},
		"nothing and null": {"machine: {a: {}}", "machine: {a: null}", []string{`v1alpha1 machine.a: "{}" -> "null"`}},
		"a new machine":    {"", "kind: A\nv: 1", []string{`A kind: added "A"`, `A v: added "1"`}},
		"a secret":         {"machine: {token: a}", "machine: {token: b}", nil},
	} {
		if got := lines(diff.Between(masked(t, tc.before), masked(t, tc.after))); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestBetweenIsComplete: applying all changes to the one gives the other; here, there is none exactly when equal, and
// turned round each added is removed.
func TestBetweenIsComplete(t *testing.T) {
	value := rapid.Custom(func(t *rapid.T) string {
		return rapid.SampledFrom([]string{"1", "x", "[a, b]", "[b]", "{c: 1}", "{c: [1, 2]}", "{}", "[]", "true", "[a, {d: 1}]"}).Draw(t, "v")
	})
	rapid.Check(t, func(rt *rapid.T) {
		text := func(n string) string {
			m := rapid.MapOfN(rapid.SampledFrom([]string{"p", "q", "a.b"}), value, 0, 3).Draw(rt, n)
			s := "machine:\n  z: 1\n"
			for _, k := range []string{"p", "q", "a.b"} {
				if v, ok := m[k]; ok {
					s += fmt.Sprintf("  %s: %s\n", k, v)
				}
			}
			return s
		}
		a, b := text("a"), text("b")
		there, back := diff.Between(masked(t, a), masked(t, b)), diff.Between(masked(t, b), masked(t, a))
		if (len(there) == 0) != (len(back) == 0) || (a == b) != (len(there) == 0) ||
			(masked(t, a).Digest() == masked(t, b).Digest()) != (len(there) == 0) {
			rt.Fatalf("%q\n%q\n%v\n%v", a, b, there, back)
		}
		for i, c := range there {
			if c.Added && c.Removed || len(back) == len(there) && back[i].Path != c.Path {
				rt.Fatalf("%v %v", there, back)
			}
		}
	})
}

func config(t testing.TB, contract string, keep ...func(*fleet.Cluster)) []byte {
	t.Helper()
	c := &fleet.Cluster{
		Object: fleet.NewObject(v1alpha1.KindTalosCluster, "prod", "prod", fleet.Position{}),
		Manifest: &v1alpha1.TalosCluster{Spec: v1alpha1.TalosClusterSpec{
			TalosVersion: contract + ".0", KubernetesVersion: "v1.34.1",
			Endpoint: v1alpha1.ClusterEndpoint{Address: "127.10.0.100"}, Install: v1alpha1.InstallSpec{Disk: "/dev/sda"},
		}},
	}
	c.Machines = []*fleet.Machine{{
		Object: fleet.NewObject(v1alpha1.KindTalosMachine, "cp1", "prod", fleet.Position{}),
		Manifest: &v1alpha1.TalosMachine{Spec: v1alpha1.TalosMachineSpec{
			Role: "controlplane", ApprovalState: "approved", Endpoint: "127.10.0.11", Hostname: "cp1",
		}},
	}}
	for _, f := range keep {
		f(c)
	}
	b, err := bundle.StandIn("prod", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := render.Cluster(context.Background(), render.Input{Cluster: c, Bundle: b})
	if err != nil || res[0].Err != nil {
		t.Fatal(err, res[0].Err)
	}
	return res[0].Config.Reveal()
}

// TestWhatWasAppliedNeverDiffers: in every form in which a node or talosctl may hold it.
func TestWhatWasAppliedNeverDiffers(t *testing.T) {
	for _, contract := range []string{"v1.11", "v1.12", "v1.13", "v1.14"} {
		wish := config(t, contract)
		p, err := configloader.NewFromBytes(wish)
		if err != nil {
			t.Fatal(err)
		}
		commented, err := p.EncodeBytes(encoder.WithComments(encoder.CommentsAll))
		if err != nil {
			t.Fatal(err)
		}
		sparse, err := p.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled), encoder.WithOmitEmpty(true))
		if err != nil {
			t.Fatal(err)
		}
		parts := strings.Split(string(wish), "---\n")
		for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
			parts[i], parts[j] = parts[j], parts[i]
		}
		unknown := "---\napiVersion: v1alpha1\nkind: BrandNewConfig\na: 1\n"
		for name, pair := range map[string][2]string{
			"the same bytes":      {string(wish), string(wish)},
			"with comments":       {string(commented), string(wish)},
			"omitted empties":     {string(sparse), string(wish)},
			"another order":       {strings.Join(parts, "---\n"), string(wish)},
			"an unknown kind":     {string(commented) + unknown, string(wish) + unknown},
			"spelled differently": {strings.Replace(string(wish), "debug: false", "debug: off", 1), string(wish)},
		} {
			changes, equal, err := diff.Configs([]byte(pair[0]), []byte(pair[1]))
			if err != nil || !equal || len(changes) > 0 {
				t.Errorf("%s %s: %v %v %v", contract, name, equal, lines(changes), err)
			}
		}
	}
}

func TestConfigsSeesSecretsAndShowsNone(t *testing.T) {
	wish := config(t, "v1.13")
	b, err := bundle.StandIn("prod", nil)
	if err != nil {
		t.Fatal(err)
	}
	token := b.Secrets().TrustdInfo.Token
	running := strings.Replace(string(wish), token, "canary.0123456789abcdef", 1)
	running = strings.Replace(running, "hostname: cp1", "hostname: cp2", 1) + "---\napiVersion: v1alpha1\nkind: BrandNewConfig\nclientSecret: canary-1\n"
	changes, equal, err := diff.Configs([]byte(running), wish)
	if err != nil || equal {
		t.Fatal(equal, err)
	}
	want := []string{
		`v1alpha1 machine.token: "<secret>" -> "<secret>"`,
		`BrandNewConfig apiVersion: removed "v1alpha1"`, `BrandNewConfig clientSecret: removed "<secret>"`, `BrandNewConfig kind: removed "BrandNewConfig"`,
		`HostnameConfig hostname: "cp2" -> "cp1"`,
	}
	if got := lines(changes); !reflect.DeepEqual(got, want) {
		t.Errorf("%q", got)
	}
	if text := fmt.Sprintf("%+v", changes); strings.Contains(text, "canary") || strings.Contains(text, token) {
		t.Error("a secret is shown")
	}
	for _, broken := range []string{"token: canary\n  x: {", "- canary"} {
		if _, _, err := diff.Configs([]byte(broken), wish); err == nil || strings.Contains(err.Error(), "canary") {
			t.Error(err)
		}
	}
}

func BenchmarkConfigs(b *testing.B) {
	wish := config(b, "v1.13")
	running := append([]byte("# touched\n"), wish...)
	for b.Loop() {
		if _, equal, err := diff.Configs(running, wish); err != nil || !equal {
			b.Fatal(err)
		}
	}
}
