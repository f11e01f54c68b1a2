package scenarios

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"flag"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/e2e/harness"
	"ichor.maesh.dev/ichor/e2e/lab/forge"
)

var seed = flag.Uint64("seed", 0, "seed of what is random (0: another each time; it is printed)")

const udevPatch = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosConfigPatch
metadata:
  name: udev
spec:
  clusterRef:
    name: prod
  documents:
    - machine:
        udev:
          rules:
            - SUBSYSTEM=="drm", KERNEL=="renderD*", GROUP="44", MODE="%s"
`

// rebootChange sets what a 1.13 node needs a reboot for; another mode is another change.
func (r *rig) rebootChange(mode string) {
	r.fleet.Extra = map[string]string{"prod/udev.yaml": fmt.Sprintf(udevPatch, mode)}
}

func (r *rig) etcdEndpoints() []string {
	var out []string
	for i := range r.fleet.ControlPlanes {
		out = append(out, fmt.Sprintf("https://%s.%d:2379", r.fleet.Net, 11+i))
	}
	return out
}

func (r *rig) startWriter() *harness.Writer {
	r.Helper()
	b, err := r.lab.Bundle(cluster)
	r.must(err)
	w, err := harness.StartWriter(b, r.etcdEndpoints())
	r.must(err)
	return w
}

// noWriteFailed ends the writer and fails where a write failed.
func (r *rig) noWriteFailed(w *harness.Writer) {
	r.Helper()
	counts := w.Stop()
	r.Logf("etcd: %s", counts)
	if counts.Writes == 0 || counts.Failed > 0 {
		r.Errorf("writes to etcd: %s (%s)", counts, counts.LastError)
	}
}

// leader names the control plane whose etcd leads.
func (r *rig) leader() string {
	r.Helper()
	b, err := r.lab.Bundle(cluster)
	r.must(err)
	client, err := harness.EtcdClient(b, r.etcdEndpoints())
	r.must(err)
	defer client.Close() //nolint:errcheck // only read
	var name string
	r.until("etcd has a leader", func() (bool, string) {
		for i, endpoint := range r.etcdEndpoints() {
			limited, cancel := context.WithTimeout(r.ctx, 2*time.Second)
			s, err := client.Status(limited, endpoint)
			cancel()
			if err == nil && s.Leader != 0 && s.Leader == s.Header.MemberId {
				name = fmt.Sprintf("cp%d", i+1)
				return true, ""
			}
		}
		return false, "without one"
	})
	return name
}

// span is when a control plane was down or its etcd or API server was restarting.
type span struct {
	node     string
	from, to time.Time
}

// downs are the spans in which control planes were not running, from the lab's events. A restart of a static pod is a
// moment.
func downs(t *testing.T, events []forge.Event) []span {
	t.Helper()
	open := map[string]time.Time{}
	var out []span
	for _, e := range events {
		node := harness.Field(e, "node")
		if len(node) < 2 || node[:2] != "cp" {
			continue
		}
		detail := harness.Field(e, "detail")
		running := e.Kind == "node.stage" && detail == "running"
		switch {
		case e.Kind == "node.stage" && !running, e.Kind == "node.kill", e.Kind == "node.reboot":
			if _, down := open[node]; !down {
				open[node] = e.Time
			}
		case running:
			if from, down := open[node]; down {
				out = append(out, span{node, from, e.Time})
				delete(open, node)
			}
		case e.Kind == "node.restart":
			out = append(out, span{node, e.Time, e.Time})
		}
	}
	for node, from := range open {
		t.Errorf("%s is down since %s", node, from)
	}
	slices.SortFunc(out, func(a, b span) int { return a.from.Compare(b.from) })
	return out
}

// oneAtATime fails where two control planes were down together.
func oneAtATime(t *testing.T, spans []span) {
	t.Helper()
	for i, a := range spans {
		for _, b := range spans[i+1:] {
			if a.node != b.node && b.from.Before(a.to) {
				t.Errorf("%s (from %s to %s) and %s (from %s) were down together", a.node, a.from, a.to, b.node, b.from)
			}
		}
	}
}

// order is in which order the nodes first took a configuration.
func order(events []forge.Event) []string {
	var out []string
	for _, e := range events {
		if node := harness.Field(e, "node"); e.Kind == "node.apply" && !slices.Contains(out, node) {
			out = append(out, node)
		}
	}
	return out
}

func TestRolloutKeepsQuorum(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.1", ControlPlanes: 3, Workers: 1, Somaxconn: "1024"})
	before := r.writes()
	w := r.startWriter()
	defer w.Stop()

	for _, step := range []struct {
		name    string
		change  func()
		reboots int
	}{
		{"restart the API servers", func() { r.fleet.APIServerVerbosity = "2" }, 0},
		{"reboot", func() { r.rebootChange("0660") }, 1},
	} {
		mark, leader := r.events.Len(), r.leader()
		step.change()
		commit := r.push(step.name)
		r.wait(commit, checkStatus, "success")
		r.wait(commit, applyStatus, "success")
		r.wait(commit, nodesStatus, "success")

		happened := r.events.Since(mark)
		oneAtATime(t, downs(t, happened))
		cps := slices.DeleteFunc(order(happened), func(n string) bool { return n == "w1" })
		if len(cps) != 3 || cps[2] != leader {
			t.Errorf("%s: control planes took it in the order %v; the leader was %s", step.name, cps, leader)
		}
		if all := order(happened); slices.Contains(all, "w1") && all[len(all)-1] != "w1" {
			t.Errorf("%s: the worker was written before the control planes were done: %v", step.name, all)
		}
		now := r.writes()
		for _, cp := range []string{"cp1", "cp2", "cp3"} {
			if got := now[cp].reboots - before[cp].reboots; got != step.reboots {
				t.Errorf("%s: %s was rebooted %d times, want %d", step.name, cp, got, step.reboots)
			}
			if got := now[cp].configurations - before[cp].configurations; got != 1 {
				t.Errorf("%s: %s took %d configurations, want 1", step.name, cp, got)
			}
		}
		r.audited(commit)
		before = now
	}
	r.noWriteFailed(w)
	r.metric(`ichor_machine_converged{cluster="prod",machine="cp1"} 1`)
}

// audited fails unless the audit log says who merged what each control plane took.
func (r *rig) audited(commit string) {
	r.Helper()
	seen := map[string]bool{}
	for _, a := range r.acts(commit) {
		if a.MergedBy == "" {
			r.Errorf("the audit log does not say who merged: %+v", a)
		}
		if a.Act == "configure" && a.Outcome == "done" {
			seen[a.Machine] = true
		}
	}
	for i := range r.fleet.ControlPlanes {
		if name := fmt.Sprintf("cp%d", i+1); !seen[name] {
			r.Errorf("the audit log has no configure of %s for %s", name, commit)
		}
	}
}

func randomness(t *testing.T) *mathrand.Rand {
	t.Helper()
	s := *seed
	if s == 0 {
		var b [8]byte
		_, _ = rand.Read(b[:]) // it never fails
		s = binary.LittleEndian.Uint64(b[:])
	}
	t.Logf("again with: -args -seed %d", s)
	return mathrand.New(mathrand.NewPCG(s, 1))
}

// TestRolloutSurvivesKills kills ichor at random moments until the wanted number is reached, with as many changes as
// that takes. Each change reboots every control plane once and writes each once: a kill repeats nothing.
func TestRolloutSurvivesKills(t *testing.T) {
	kills := 6
	if *long {
		kills = 20
	}
	r := adopted(t, harness.Fleet{Net: "127.20.2", ControlPlanes: 3, Somaxconn: "1024"})
	random := randomness(t)
	w := r.startWriter()
	defer w.Stop()
	before, mark := r.writes(), r.events.Len()
	changes := 0
	for done := 0; done < kills; {
		changes++
		mode := []string{"0660", "0600"}[changes%2]
		r.rebootChange(mode)
		commit := r.push("Set the mode to " + mode)
		for done < kills && !r.applied(commit) {
			limited, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond+time.Duration(random.Int64N(int64(3*time.Second))))
			// The rollout goes on until a random moment, unless it is over before.
			err := harness.Wait(limited, func() bool { return r.applied(commit) })
			cancel()
			if err == nil {
				break
			}
			r.alive()
			r.ichor.Kill()
			done++
			r.start()
		}
		r.wait(commit, applyStatus, "success")
		r.convergedWrites(before, changes)
	}
	t.Logf("%d kills over %d changes", kills, changes)
	r.noWriteFailed(w)
	oneAtATime(t, downs(t, r.events.Since(mark)))
	now := r.writes()
	r.looks(6)
	r.unwritten(now)
}

func (r *rig) applied(commit string) bool {
	s, ok := r.lab.StatusOf(r.ctx, commit, applyStatus)
	return ok && s.State == "success"
}

// convergedWrites fails unless each node took one configuration and one reboot a change.
func (r *rig) convergedWrites(before map[string]writes, changes int) {
	r.Helper()
	for name, now := range r.writes() {
		want := writes{before[name].configurations + changes, before[name].bootstraps, before[name].reboots + changes}
		if now != want {
			r.Errorf("after %d changes %s took %+v, want %+v", changes, name, now, want)
		}
	}
}
