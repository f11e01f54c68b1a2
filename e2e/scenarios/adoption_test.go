package scenarios

import (
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/e2e/harness"
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
	before := r.writes()
	r.fleet.Somaxconn = "2048"
	mark := r.events.Len()
	commit := r.push("Raise it")
	r.wait(commit, applyStatus, "success")
	// The holder lives on at rest for longer than the takeover time: nobody takes over from it.
	quiet := time.Now().Add(20 * time.Second)
	r.until("the holder lived at rest for twice the takeover time", func() (bool, string) {
		return time.Now().After(quiet), "too soon"
	})
	if got := r.writes()["cp1"].configurations - before["cp1"].configurations; got != 1 {
		t.Errorf("cp1 took %d configurations, want 1", got)
	}
	for _, context := range []string{checkStatus, nodesStatus} {
		if n := len(r.posted(mark, commit, context)); n != 1 {
			t.Errorf("%s was posted %d times", context, n)
		}
	}
	if n := len(actsIn(t, second)); n > 0 {
		t.Errorf("the second ichor acted %d times while the first lived", n)
	}

	r.ichor.Kill()
	r.ichor = nil
	r.fleet.Somaxconn = "4096"
	commit = r.push("Raise it more")
	r.wait(commit, applyStatus, "success")
	if n := len(actsIn(t, second)); n == 0 {
		t.Error("the second ichor did not act")
	}
}
