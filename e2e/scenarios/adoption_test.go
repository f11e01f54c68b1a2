package scenarios

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/ichor/e2e/harness"
	"ichor.maesh.dev/ichor/schemas/state"
)

var digest = regexp.MustCompile(`sha256:[0-9a-f]{64}`)

func digestIn(r *rig, text string) string {
	r.Helper()
	d := digest.FindString(text)
	if d == "" {
		r.Fatalf("no digest in %q", text)
	}
	return d
}

// acknowledge commits an acknowledgement as a person does, and gives the commit.
func (r *rig) acknowledge(value string) string {
	r.Helper()
	r.fleet.Annotations = map[string]string{"ichor.maesh.dev/ack": value}
	return r.push("Acknowledge " + value)
}

func TestAdoption(t *testing.T) {
	r := newRig(t, harness.Fleet{Net: "127.20.10", ControlPlanes: 1, Workers: 1, Somaxconn: "1024"}, true)
	before := r.writes()
	r.fleet.Somaxconn = "4096"
	commit := r.push("Raise it")
	r.start()
	message := r.held(commit, "AdoptionPending")
	r.waitSaying(commit, applyStatus, "failure", "2 configured machines differ")
	r.looks(6)
	r.unwritten(before)

	// An acknowledgement of something else changes nothing.
	other := r.acknowledge("sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")
	if again := r.held(other, "AdoptionPending"); digestIn(r, again) != digestIn(r, message) {
		t.Errorf("the digest moved though the difference did not: %q, before %q", again, message)
	}
	r.looks(3)
	r.unwritten(before)

	acked := r.acknowledge(digestIn(r, message))
	r.wait(acked, applyStatus, "success")
	for name, now := range r.writes() {
		if now.configurations == before[name].configurations || now.bootstraps != before[name].bootstraps {
			t.Errorf("%s took %+v, before %+v", name, now, before[name])
		}
	}
}

// TestAdoptionWithoutDifference: nothing has to be acknowledged, and nothing is written.
func TestAdoptionWithoutDifference(t *testing.T) {
	r := newRig(t, harness.Fleet{Net: "127.20.11", ControlPlanes: 1, Workers: 1}, true)
	before := r.writes()
	r.start()
	r.wait("main", applyStatus, "success")
	r.looks(4)
	r.unwritten(before)
}

// holder reads who holds the inventory.
func (r *rig) holder() string {
	r.Helper()
	text, err := r.lab.File(r.ctx, harness.StatusBranch, "inventory.yaml")
	r.must(err)
	var inv state.Inventory
	r.must(yaml.Unmarshal([]byte(text), &inv))
	return fmt.Sprintf("%s (epoch %d)", inv.Holder.ID, inv.Holder.Epoch)
}

// TestTwoIchors: with two on one cluster the holder alone acts and posts; when it dies the other takes over.
func TestTwoIchors(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.12", ControlPlanes: 1, Somaxconn: "1024"})
	second := filepath.Join(r.dir, "second")
	p := r.run(second, nil, "--takeover-after", "8s")
	defer func() {
		if err := p.Stop(); err != nil {
			t.Errorf("stop the second ichor: %v", err)
		}
	}()
	r.until("the second stands by", func() (bool, string) {
		return strings.Contains(p.Output(), "another Ichor holds it"), p.Output()
	})
	before := r.writes()
	r.fleet.Somaxconn = "2048"
	mark := r.events.Len()
	commit := r.push("Raise it")
	r.wait(commit, applyStatus, "success")
	holder := r.holder()
	// The holder lives on at rest for longer than the takeover time: nobody takes over from it.
	quiet := time.Now().Add(20 * time.Second)
	r.until("the holder lived at rest for twice the takeover time", func() (bool, string) {
		return time.Now().After(quiet), "too soon"
	})
	// A live change is a try and its confirmation.
	if got := r.writes()["cp1"].configurations - before["cp1"].configurations; got != 2 {
		t.Errorf("cp1 took %d configurations, want 2", got)
	}
	if now := r.holder(); now != holder {
		t.Errorf("the inventory went from holder %s to %s while the first lived", holder, now)
	}
	for _, context := range []string{checkStatus, nodesStatus} {
		if n := len(r.posted(mark, commit, context)); n != 1 {
			t.Errorf("%s was posted %d times", context, n)
		}
	}
	if n := len(actsIn(t, second)); n > 0 {
		t.Errorf("the second ichor acted %d times while the first lived", n)
	}

	// The first dies; the second, begun anew, asks whether it lives and gets no answer.
	r.ichor.Kill()
	r.ichor = nil
	if err := p.Stop(); err != nil {
		t.Errorf("stop the second ichor: %v", err)
	}
	p = r.run(second, nil, "--takeover-after", "8s")
	r.fleet.Somaxconn = "4096"
	commit = r.push("Raise it more")
	r.wait(commit, applyStatus, "success")
	if n := len(actsIn(t, second)); n == 0 {
		t.Error("the second ichor did not act")
	}
}
