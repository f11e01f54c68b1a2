package rehearse

import (
	"strings"
	"testing"
)

// TestManifestKeepsItsForm: only what the lab needs is changed; comments, quotes and order stay.
func TestManifestKeepsItsForm(t *testing.T) {
	a, err := newAddresses()
	if err != nil {
		t.Fatal(err)
	}
	a.n = 100
	c := &copier{addrs: a}
	got, err := c.manifest([]byte(`# a machine
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata: {name: cp1} # ü
spec: {clusterRef: {name: prod}, role: controlplane, endpoint: "10.1.2.11:50000", certFingerprint: abc=, hostname: x}
---
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
spec:
  endpoint: '10.1.2.12' # the second
  role: worker
---
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
spec:
  # behind a load balancer
  endpoint: {address: 10.1.3.11}
  discovery:
    addresses: [10.1.2.11, "10.1.2.99"]
    cidrs:
      - 10.1.2.0/25
  rollout:
    settle: 10m # long
    windows:
      - start: 0 2 * * 6
        duration: 4h
  reachability: {}
---
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosEtcdBackup
spec:
  schedule: x
---
apiVersion: v1
kind: ConfigMap
spec: {endpoint: 10.1.2.11}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := `# a machine
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata: {name: cp1} # ü
spec: {clusterRef: {name: prod}, role: controlplane, endpoint: 127.100.0.11, certFingerprint: "", hostname: x}
---
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
spec:
  endpoint: 127.100.0.12 # the second
  role: worker
---
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
spec:
  # behind a load balancer
  endpoint: {address: 127.100.1.11}
  discovery:
    addresses: [127.100.0.11, 127.100.0.99]
    cidrs:
      - 127.100.0.0/25
  rollout:
    settle: 1s # long
    windows:
      - start: "* * * * *"
        duration: 4h
  reachability: {interval: 2s, grace: 5s}
---
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosEtcdBackup
spec:
  suspend: true
  schedule: x
---
apiVersion: v1
kind: ConfigMap
spec: {endpoint: 10.1.2.11}
`
	if string(got) != want {
		t.Errorf("it became\n%s", diff(want, string(got)))
	}
}

// diff shows the first line that differs.
func diff(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return "want " + w[i] + "\ngot  " + g[i]
		}
	}
	return got
}

// TestAddresses: one for one, also where ports tell machines apart, and for v6.
func TestAddresses(t *testing.T) {
	a, err := newAddresses()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, e := range []string{"10.0.0.1", "10.0.0.1:50001", "10.0.0.2", "10.0.1.1", "fd00::1", "[fd00::1]:50001", "10.0.0.255", "10.0.0.0"} {
		m, ok := a.of(e)
		if !ok || seen[m.String()] != "" || !m.IsLoopback() {
			t.Errorf("%s became %s (%s)", e, m, seen[m.String()])
		}
		seen[m.String()] = e
	}
	same, _ := a.of("10.0.0.1:50000")
	if again, _ := a.of("10.0.0.1"); again != same {
		t.Errorf("10.0.0.1 became %s and %s", again, same)
	}
	if _, ok := a.of("cp1.example.com"); ok {
		t.Error("a name is no address")
	}
}
