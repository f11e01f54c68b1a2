package render_test

import (
	"bytes"
	"strings"
	"testing"

	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

const (
	fine      = "machine:\n  sysctls:\n    a: b\n"
	conflict  = "cluster:\n  apiServer:\n    extraArgs:\n      v: \"2\"\n"
	undo      = "cluster:\n  apiServer:\n    $patch: delete\n"
	scheduler = "cluster:\n  scheduler:\n    extraArgs:\n      v: \"2\"\n"
)

// TestGuiltyPatch is the table of who is to blame. Entries are named patch/entry; "" is no patch.
func TestGuiltyPatch(t *testing.T) {
	for name, tc := range map[string]struct {
		patches       [][]string
		contract      string
		noDisk        bool
		guilty        int
		entry         int
		talos, inHint string
	}{
		"the only one":           {patches: [][]string{{conflict}}, guilty: 0, talos: "kube-apiserver config is already set", inHint: "KubeAPIServerConfig"},
		"the last":               {patches: [][]string{{fine}, {fine}, {conflict}}, guilty: 2, talos: "kube-apiserver config"},
		"in the middle":          {patches: [][]string{{fine}, {conflict}, {fine}}, guilty: 1, talos: "kube-apiserver config"},
		"an entry":               {patches: [][]string{{fine}, {fine, conflict, fine}}, guilty: 1, entry: 1, talos: "kube-apiserver config"},
		"the first of two":       {patches: [][]string{{conflict}, {scheduler}}, guilty: 0, talos: "kube-scheduler config"},
		"settled by a later one": {patches: [][]string{{conflict}, {undo}, {scheduler}}, guilty: 2, talos: "kube-scheduler config"},
		"no disk":                {patches: [][]string{{fine}}, noDisk: true, guilty: -1, talos: "either install disk or diskSelector", inHint: "spec.install.disk"},
		"no disk and a conflict": {patches: [][]string{{conflict}}, noDisk: true, guilty: -1, talos: "kube-apiserver config"},
		"unknown key":            {patches: [][]string{{fine}, {"machine:\n  sysctl:\n    a: b\n"}}, guilty: 1, talos: "unknown keys found", inHint: "does not know this key"},
		"unknown kind":           {patches: [][]string{{"apiVersion: v1alpha1\nkind: NoSuchConfig\n"}}, guilty: 0, talos: "not registered"},
		"wrong type":             {patches: [][]string{{"machine:\n  sysctls: 3\n"}, {fine}}, guilty: 0, talos: "cannot construct"},
		"empty":                  {patches: [][]string{{fine, "{}\n"}}, guilty: 0, entry: 1, talos: "the patch entry is empty", inHint: "take it out"},
		"null":                   {patches: [][]string{{"null\n"}}, guilty: 0, talos: "the patch entry is empty"},
		"deletes what is not there": {
			patches: [][]string{{"machine:\n  time:\n    servers:\n      $patch: delete\n"}}, guilty: 0,
			talos: "patch delete: path 'machine.time.servers'",
		},
		"hostname by hand":  {patches: [][]string{{"machine:\n  network:\n    hostname: x\n"}}, contract: "v1.13", guilty: 0, talos: "static hostname is already set", inHint: "spec.hostname"},
		"broken, then more": {patches: [][]string{{scheduler}, {"machine: [\n"}}, guilty: 0, talos: "kube-scheduler config"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.contract == "" {
				tc.contract = "v1.14"
			}
			c := threeAndOne(tc.contract)
			if tc.noDisk {
				c.Manifest.Spec.Install.Disk = ""
			}
			var patches []*fleet.Patch
			for i, p := range tc.patches {
				patches = append(patches, addPatch(c, string(rune('a'+i)), i, controlPlanes, p...))
			}
			for _, r := range mustRender(t, render.Input{Cluster: c, Bundle: standIn(t, c), Machines: []string{"cp1", "cp2"}}) {
				e := r.Err
				if e == nil || !strings.Contains(e.Talos, tc.talos) || !strings.Contains(e.Hint, tc.inHint) {
					t.Fatalf("%+v", e)
				}
				if tc.guilty < 0 {
					if e.Patch != nil || e.Pos != r.Machine.Pos {
						t.Fatalf("%+v", e)
					}
					continue
				}
				want := patches[tc.guilty]
				if e.Patch != want || e.Entry != tc.entry || e.Pos != want.Entries[tc.entry].Pos {
					t.Fatalf("%+v", e)
				}
			}
		})
	}
}

func TestGuiltyLineOfAPatchFile(t *testing.T) {
	for raw, want := range map[string]int{
		"# comment\nmachine:\n  sysctls:\n    a: b\n  sysctl:\n    c: d\n":                                   5,
		"machine:\n  env:\n    A: b\n---\napiVersion: v1alpha1\nkind: HostnameConfig\nhostnam: x\n":          7,
		"machine:\n  env:\n    A: b\n---\n\napiVersion: v1alpha1\nkind: NoSuchConfig\n":                      6,
		"machine:\n  kubelet:\n    extraArgs: {v: \"2\"}\n    extraConfg: {}\n  network: {interfaces: []}\n": 4,
	} {
		c := threeAndOne("v1.13")
		p := addPatch(c, "file", 1, v1alpha1.Selector{}, raw)
		p.Manifest.Spec.Path = "patches/file.yaml"
		p.Entries[0].Pos = fleet.Position{File: "patches/file.yaml", Line: 1, Column: 1}
		e := mustRender(t, render.Input{Cluster: c, Bundle: standIn(t, c)})[0].Err
		if e == nil || e.Pos.File != "patches/file.yaml" || e.Pos.Line != want {
			t.Errorf("%q: %+v", raw, e)
		}
	}
}

func TestJSONPatch(t *testing.T) {
	const ops = "- op: add\n  path: /machine/sysctls\n  value:\n    a: b\n"
	for _, contract := range []string{"v1.11", "v1.12"} {
		c := threeAndOne(contract)
		p := addPatch(c, "json", 1, v1alpha1.Selector{}, ops)
		p.Entries[0].JSON = true
		for _, r := range mustRender(t, render.Input{Cluster: c, Bundle: standIn(t, c)}) {
			if contract == "v1.11" {
				if r.Err != nil || !strings.Contains(string(r.Config.Reveal()), "sysctls:\n        a: b") || !r.Patches[0].Changed {
					t.Fatalf("%v", r.Err)
				}
				continue
			}
			if r.Err == nil || r.Err.Patch != p || !strings.Contains(r.Err.Talos, "JSON6902 patches are not supported") ||
				!strings.Contains(r.Err.Hint, "document under spec.documents:\nmachine:\n  sysctls:\n    a: b") {
				t.Fatalf("%v\n%s", r.Err, r.Err.Hint)
			}
		}
	}
}

// TestBundleThatLacksSomething: a check must not pass on the strength of something invented.
func TestBundleThatLacksSomething(t *testing.T) {
	keys := testKeys(t)
	_, plain := realBundle(t, "v1.13")
	for name, tc := range map[string]struct{ from, to, talos string }{
		"no etcd CA":      {"    etcd:\n", "    etcd-old:\n", "certs.etcd is required"},
		"no trustd token": {"    token:", "    tok:", "trustdinfo.token is required"},
		"aescbc alone":    {"secretboxencryptionsecret", "aescbcencryptionsecret", ""},
	} {
		for _, contract := range []string{"v1.11", "v1.13", "v1.14"} {
			text := bytes.Replace(plain, []byte(tc.from), []byte(tc.to), 1)
			if bytes.Equal(text, plain) {
				t.Fatal("nothing replaced")
			}
			cipher, err := bundle.Encrypt(text, "s", keys.Recipients(), "")
			if err != nil {
				t.Fatal(err)
			}
			c := threeAndOne(contract)
			c.Secrets = &fleet.File{Path: "secrets.sops.yaml", Data: cipher}
			for _, r := range mustRender(t, render.Input{Cluster: c, Bundle: standIn(t, c)}) {
				if tc.talos == "" && r.Machine.Manifest.Spec.Role == "worker" {
					continue
				}
				if r.Err == nil || r.Err.Patch != nil || !strings.Contains(r.Err.Talos, tc.talos) || r.Err.Hint == "" {
					t.Errorf("%s %s %s: %+v", name, contract, r.Machine.Name, r.Err)
				}
			}
		}
	}
}

// TestEncryptedValueThatTalosRefuses: what only a stand-in breaks is a warning in a check; with the real value it
// is an error that does not quote it.
func TestEncryptedValueThatTalosRefuses(t *testing.T) {
	const canary = "canary-not-an-ip"
	keys := testKeys(t)
	c := threeAndOne("v1.13")
	// No stand-in has the form of this field, a list of "host:port" with a check of its own.
	p := sealedPatch(t, c, keys, "sealed", 3, "apiVersion: v1alpha1\nkind: WatchdogTimerConfig\ndevice: /dev/watchdog0\ntimeout: "+canary+"\n", "^(timeout|device)$")
	real, _ := realBundle(t, "v1.13")
	for _, r := range mustRender(t, render.Input{Cluster: c, Bundle: real, Values: keys}) {
		if r.Err == nil || r.Err.Patch != p || strings.Contains(r.Err.Error()+r.Err.Hint, canary) {
			t.Fatalf("%+v", r.Err)
		}
	}
	for _, r := range mustRender(t, render.Input{Cluster: c, Bundle: standIn(t, c)}) {
		if r.Err != nil {
			t.Fatalf("%+v", r.Err)
		}
	}
}

// TestNoStandInIsQuoted: Talos quotes what it refuses, and a stand-in is nothing that a reader could find.
func TestNoStandInIsQuoted(t *testing.T) {
	keys := testKeys(t)
	c := threeAndOne("v1.13")
	sealedPatch(t, c, keys, "sealed", 1,
		"machine:\n  logging:\n    destinations:\n      - endpoint: tcp://192.0.2.9:55/\n        format: canary-format\n", "^format$")
	for _, r := range mustRender(t, render.Input{Cluster: c, Bundle: standIn(t, c)}) {
		if r.Err != nil || len(r.Warnings) != 1 {
			t.Fatalf("%+v %+v", r.Err, r.Warnings)
		}
		if got := r.Warnings[0].Talos; !strings.HasPrefix(got, "not checked: encrypted") ||
			!strings.Contains(got, `unknown logging format "[redacted]"`) || strings.Contains(got, "stand-in") {
			t.Errorf("%s: %s", r.Machine.Name, got)
		}
	}
}

// TestPlainErrorBesideEncryptedValues: an error that has nothing to do with encrypted values stays one.
func TestPlainErrorBesideEncryptedValues(t *testing.T) {
	keys := testKeys(t)
	c := threeAndOne("v1.14")
	sealedPatch(t, c, keys, "sealed", 1, "machine:\n  sysctls:\n    a: canary-value\n", "^a$")
	p := addPatch(c, "bad", 2, controlPlanes, conflict)
	real, _ := realBundle(t, "v1.14")
	for _, in := range []render.Input{{Cluster: c, Bundle: standIn(t, c)}, {Cluster: c, Bundle: real, Values: keys}} {
		r := mustRender(t, in)[0]
		if r.Err == nil || r.Err.Patch != p || !strings.Contains(r.Err.Talos, "kube-apiserver config is already set") {
			t.Fatalf("%+v", r.Err)
		}
	}
}

func TestPatchThatChangesNothing(t *testing.T) {
	c := threeAndOne("v1.13")
	addPatch(c, "a", 1, v1alpha1.Selector{}, fine)
	addPatch(c, "b", 2, v1alpha1.Selector{}, fine)
	addPatch(c, "c", 3, v1alpha1.Selector{Machines: []string{"nobody"}}, fine)
	for _, r := range mustRender(t, render.Input{Cluster: c, Bundle: standIn(t, c)}) {
		if len(r.Patches) != 2 || !r.Patches[0].Changed || r.Patches[1].Changed {
			t.Errorf("%s: %+v", r.Machine.Name, r.Patches)
		}
	}
}

func TestOrderOfPatches(t *testing.T) {
	c := threeAndOne("v1.13")
	addPatch(c, "z", 1, v1alpha1.Selector{}, "machine:\n  sysctls:\n    a: first\n")
	addPatch(c, "b", 2, v1alpha1.Selector{}, "machine:\n  sysctls:\n    a: last\n")
	addPatch(c, "a", 2, v1alpha1.Selector{}, "machine:\n  sysctls:\n    a: middle\n")
	r := mustRender(t, render.Input{Cluster: c, Bundle: standIn(t, c)})[0]
	if !strings.Contains(string(r.Config.Reveal()), "a: last") || r.Patches[1].Patch.Name != "a" {
		t.Error("order, then name")
	}
}

func FuzzPatch(f *testing.F) {
	for _, s := range append(snippets, fine, conflict, undo, "- op: add\n  path: /x\n", "{}", "machine: &a\n  x: *a\n") {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, sops bool) {
		c := newCluster("v1.13")
		addMachine(c, "a", "controlplane", "10.0.0.1", "a")
		p := addPatch(c, "p", 1, v1alpha1.Selector{}, string(raw))
		if sops {
			p.Entries[0].Sops = &fleet.File{Path: "x", Data: raw}
		}
		r := mustRender(t, render.Input{Cluster: c, Bundle: standIn(t, c)})[0]
		if r.Err == nil && len(r.Warnings) == 0 && r.Digest == "" {
			t.Fatal("neither a render nor an error")
		}
	})
}
