package daemon

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"filippo.io/age"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

func TestInWindow(t *testing.T) {
	at := func(s string) time.Time {
		v, err := time.Parse(time.RFC3339, s)
		must(err)
		return v
	}
	night := v1alpha1.WindowSpec{Start: "0 2 * * 6", Duration: "4h"}
	paris, tokyo := night, night
	paris.TimeZone, tokyo.TimeZone = "Europe/Paris", "Asia/Tokyo"
	for _, tc := range []struct {
		name    string
		windows []v1alpha1.WindowSpec
		now     string
		want    bool
	}{
		{"no windows: always", nil, "2026-03-04T12:00:00Z", true},
		{"a moment before", []v1alpha1.WindowSpec{night}, "2026-03-07T01:59:59Z", false},
		{"at the beginning", []v1alpha1.WindowSpec{night}, "2026-03-07T02:00:00Z", true},
		{"inside", []v1alpha1.WindowSpec{night}, "2026-03-07T05:59:59Z", true},
		{"at the end", []v1alpha1.WindowSpec{night}, "2026-03-07T06:00:00Z", false},
		{"another day", []v1alpha1.WindowSpec{night}, "2026-03-08T03:00:00Z", false},
		{"in Paris it has begun (winter, UTC+1)", []v1alpha1.WindowSpec{paris}, "2026-03-07T01:00:00Z", true},
		{"in Paris it is over", []v1alpha1.WindowSpec{paris}, "2026-03-07T05:00:00Z", false},
		{"in Paris it has begun (summer, UTC+2)", []v1alpha1.WindowSpec{paris}, "2026-07-04T00:00:00Z", true},
		{"in Paris it has not begun (summer)", []v1alpha1.WindowSpec{paris}, "2026-07-03T23:59:00Z", false},
		{"Tokyo's Saturday is UTC's Friday", []v1alpha1.WindowSpec{tokyo}, "2026-03-06T17:30:00Z", true},
		{"the clock of the caller is in another zone", []v1alpha1.WindowSpec{night}, "2026-03-07T12:30:00+09:00", true},
		{"one of two", []v1alpha1.WindowSpec{night, {Start: "0 12 * * *", Duration: "1h"}}, "2026-03-04T12:30:00Z", true},
		{"longer than its period: always open", []v1alpha1.WindowSpec{{Start: "0 * * * *", Duration: "2h"}}, "2026-03-04T12:59:00Z", true},
		{"over midnight", []v1alpha1.WindowSpec{{Start: "0 23 * * *", Duration: "2h"}}, "2026-03-05T00:30:00Z", true},
		{"a zone in the schedule", []v1alpha1.WindowSpec{{Start: "CRON_TZ=Asia/Tokyo 0 2 * * 6", Duration: "1h"}}, "2026-03-06T17:30:00Z", true},
		{"no duration: shut", []v1alpha1.WindowSpec{{Start: "* * * * *"}}, "2026-03-04T12:30:30Z", false},
		{"no schedule: shut", []v1alpha1.WindowSpec{{Start: "soon", Duration: "1h"}}, "2026-03-04T12:30:00Z", false},
		{"no such zone: shut", []v1alpha1.WindowSpec{{Start: "* * * * *", Duration: "1h", TimeZone: "Mars/Base"}}, "2026-03-04T12:30:00Z", false},
	} {
		if got := inWindow(tc.windows, at(tc.now)); got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
}

// openable is the tree with a bundle that the keys open.
func openable(files fstest.MapFS) (fstest.MapFS, bundle.Keys) {
	data, keys := sealed()
	out := maps.Clone(files)
	out["secrets.sops.yaml"] = &fstest.MapFile{Data: data}
	return out, keys
}

// targetOfTree is the target of a repository that has one commit.
func targetOfTree(t *testing.T, files fstest.MapFS) *target {
	t.Helper()
	h := newHistory()
	return targetsAt(t, newCommits(h), h.commit("one", "", files), nil)["prod"]
}

func TestPrepareRendersWhatWasChecked(t *testing.T) {
	files, keys := openable(tree("cp1", "w1"))
	tg := targetOfTree(t, files)
	p := prepare(t.Context(), tg, keys)
	if len(p.holds) != 0 || p.bundle == nil || len(p.results) != 2 {
		t.Fatalf("holds %v, %d results", p.holds, len(p.results))
	}
	// What was checked is what is applied: the digest with the real secrets is the one with stand-ins.
	d := desired(p, nil, nil, false, t0)
	for _, m := range d.Machines {
		if m.Digest == "" || m.Digest != m.CheckedDigest {
			t.Errorf("%s: rendered %q, checked %q", m.Name, m.Digest, m.CheckedDigest)
		}
		if len(p.results[m.Name].Config.Reveal()) == 0 {
			t.Errorf("%s has no configuration to send", m.Name)
		}
	}
	if d.SecretsFingerprint == "" || d.WorkerMaxUnavailable != 1 || !d.InWindow || d.Settle != v1alpha1.DefaultSettle {
		t.Errorf("%+v", d)
	}
}

func TestPrepareHoldsWhatItCannotOpen(t *testing.T) {
	files, _ := openable(tree("cp1"))
	other, err := bundle.ParseKeys([]byte("AGE-SECRET-KEY-1" + strings.Repeat("Q", 58)))
	if err == nil {
		t.Fatalf("a made-up identity parses: %v", other.Recipients())
	}
	for name, tg := range map[string]*target{
		"no identity":    targetOfTree(t, files),
		"no bundle":      targetOfTree(t, without(files, "secrets.sops.yaml")),
		"another's keys": targetOfTree(t, tree("cp1")),
	} {
		keys := bundle.Keys{}
		if name == "another's keys" {
			_, keys = sealed()
		}
		p := prepare(t.Context(), tg, keys)
		if p.bundle != nil || len(p.holds) != 1 || p.holds[0].Reason != state.ReasonSecretsBundleUnavailable {
			t.Errorf("%s: %+v", name, p.holds)
			continue
		}
		if !strings.Contains(p.holds[0].Message, "secrets.sops.yaml") {
			t.Errorf("%s: the hold names no file: %s", name, p.holds[0].Message)
		}
	}
}

func without(files fstest.MapFS, path string) fstest.MapFS {
	out := maps.Clone(files)
	delete(out, path)
	return out
}

func TestDesiredCarriesHoldsAcksAndUnknowns(t *testing.T) {
	files := acking(tree("cp1", "w1"), sha("x"), "sha256:1")
	files["machines/w2.yaml"] = &fstest.MapFile{Data: []byte("apiVersion: ichor.maesh.dev/v1alpha1\nkind: TalosMachine\nmetadata: {name: w2}\n" +
		"spec: {clusterRef: {name: prod}, roll: worker}\n")}
	files, keys := openable(files)
	h := newHistory()
	c := newCommits(h)
	res, err := c.head(t.Context(), h.commit("one", "", files))
	if err != nil {
		t.Fatal(err)
	}
	tg := targetOf(res, res.detail.Head.Cluster("prod"), res.commit, false, "")
	tg.holds = []plan.Hold{{Reason: state.ReasonForcePush}}
	inv := inventory(sha("zero"), "cp1").Clusters["prod"]
	inv.Machines["cp1"].InForceCommit = sha("zero")
	baseline := func(commit string) map[string]string { return map[string]string{"cp1": "of " + short(commit)} }
	d := desired(prepare(t.Context(), tg, keys), inv, baseline, true, t0)
	if !d.Observe || d.CheckPassed || d.Holds[0].Reason != state.ReasonForcePush {
		t.Errorf("%+v", d)
	}
	if !slices.Contains(d.Acks, sha("x")) || !slices.Contains(d.Acks, "sha256:1") {
		t.Errorf("acks %v", d.Acks)
	}
	if !slices.Equal(d.UnknownMachines, []string{"w2"}) {
		t.Errorf("unknown %v", d.UnknownMachines)
	}
	if d.Machines[0].BaselineDigest != "of "+short(sha("zero")) || d.Machines[1].BaselineDigest != "" {
		t.Errorf("baselines %q and %q", d.Machines[0].BaselineDigest, d.Machines[1].BaselineDigest)
	}
}

func TestKnownPrefersTheFingerprintOfTheInventory(t *testing.T) {
	inv := &state.ClusterInventory{SecretsFingerprint: "old", EncryptedFingerprint: "oldvalues"}
	for _, tc := range []struct {
		fps    []string
		values bool
		want   string
	}{
		{[]string{"new", "old"}, false, "old"}, // the identity was rotated, the bundle was not
		{[]string{"new", "oldvalues"}, true, "oldvalues"},
		{[]string{"new", "other"}, false, "new"},
		{nil, false, ""},
	} {
		if got := known(tc.fps, inv, tc.values); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.fps, got, tc.want)
		}
	}
}

// TestAnIdentityCanBeRotated begins with an inventory of the old identity, adds a new one in front, applies, and takes the
// old one away: the secrets never count as changed.
func TestAnIdentityCanBeRotated(t *testing.T) {
	made := func() string {
		id, err := age.GenerateX25519Identity()
		must(err)
		return id.String()
	}
	oldID, newID := made(), made()
	old, both, renewed := parsed(oldID), parsed(newID+"\n"+oldID), parsed(newID)
	_, plain, err := bundle.Generate("v1.13", secrets.NewClock())
	must(err)
	fingerprints := func(keys bundle.Keys) plan.Desired {
		t.Helper()
		data, err := bundle.Encrypt(plain, "secrets.sops.yaml", keys.Recipients(), "") // sops updatekeys
		must(err)
		files := tree("cp1")
		files["secrets.sops.yaml"] = &fstest.MapFile{Data: data}
		return desired(prepare(t.Context(), targetOfTree(t, files), keys), nil, nil, false, t0)
	}
	inv := &state.ClusterInventory{SecretsFingerprint: fingerprints(old).SecretsFingerprint}
	files := tree("cp1")
	data, err := bundle.Encrypt(plain, "secrets.sops.yaml", both.Recipients(), "")
	must(err)
	files["secrets.sops.yaml"] = &fstest.MapFile{Data: data}
	d := desired(prepare(t.Context(), targetOfTree(t, files), both), inv, nil, false, t0)
	if d.SecretsFingerprint != inv.SecretsFingerprint || d.RenewedSecrets == inv.SecretsFingerprint {
		t.Fatalf("with both identities: %q, renewed %q, in the inventory %q", d.SecretsFingerprint, d.RenewedSecrets, inv.SecretsFingerprint)
	}
	inv.SecretsFingerprint = d.RenewedSecrets // RecordApplied
	if d := fingerprints(renewed); d.SecretsFingerprint != inv.SecretsFingerprint {
		t.Errorf("with the new identity alone: %q, in the inventory %q", d.SecretsFingerprint, inv.SecretsFingerprint)
	}
}

func parsed(text string) bundle.Keys {
	keys, err := bundle.ParseKeys([]byte(text))
	must(err)
	return keys
}

func TestNodesAreThoseOfTheHeadAndOfTheInventory(t *testing.T) {
	files, keys := openable(edit(tree("cp1", "w1", "w2", "w3"), "machines/w2.yaml", "approved", "pending"))
	inv := inventory(sha("zero"), "cp1", "gone", "left").Clusters["prod"]
	inv.Machines["left"].RemovedAt = t0
	inv.Machines["cp1"].NodeReadySeen = true
	p := prepare(t.Context(), targetOfTree(t, files), keys)
	d := desired(p, inv, func(string) map[string]string { return nil }, false, t0)
	spec := nodes(p, &d, inv, plan.DefaultPolicy(), []byte("key"))
	var names []string
	for _, m := range spec.Machines {
		names = append(names, m.Name)
		if has := len(m.Wish.Reveal()) > 0; has != (m.Name != "gone") {
			t.Errorf("%s has a wish: %t", m.Name, has)
		}
		if m.NodeReadySeen != (m.Name == "cp1") {
			t.Errorf("%s: NodeReadySeen %t", m.Name, m.NodeReadySeen)
		}
	}
	if want := []string{"cp1", "gone", "w1", "w3"}; !slices.Equal(names, want) {
		t.Errorf("reads %v, want %v", names, want)
	}
}
