package scenarios

import (
	"fmt"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/e2e/harness"
	"ichor.maesh.dev/ichor/e2e/lab/forge"
)

// nextCommit pushes a commit that changes no machine: its statuses come at once.
func (r *rig) nextCommit(n int) string {
	r.Helper()
	r.fleet.Annotations = map[string]string{"example.org/note": fmt.Sprint(n)}
	return r.push(fmt.Sprintf("Note %d", n))
}

// posts fails unless the statuses of a context at a commit were posted in order and none twice in a row; the last is want.
func (r *rig) posts(sha, context, want string) {
	r.Helper()
	last, seen := "", false
	for _, e := range r.posted(0, sha, context) {
		now := harness.Field(e, "state") + " " + harness.Field(e, "description")
		if now == last {
			r.Errorf("%s of %s was posted twice: %s", context, sha, now)
		}
		if seen && harness.Field(e, "state") == "pending" {
			r.Errorf("%s of %s: pending came after a final state", context, sha)
		}
		seen = seen || harness.Field(e, "state") != "pending"
		last = now
	}
	if s, ok := r.lab.StatusOf(r.ctx, sha, context); !ok || s.State != want {
		r.Errorf("%s of %s is %q in the end, want %q", context, sha, s.State, want)
	}
}

// TestForgeFails: whatever the forge answers, every final status arrives, in order, and none twice where a read-back
// can tell.
func TestForgeFails(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.26", ControlPlanes: 1})
	contexts := []string{checkStatus, applyStatus, nodesStatus}
	const create = "statuses.create"
	n := 0
	for _, f := range []struct {
		name  string
		fault forge.Fault
	}{
		{"500", forge.Fault{Endpoint: create, Kind: forge.FaultStatus, Status: 500, Count: 3}},
		{"502 and nothing done", forge.Fault{Endpoint: "*", Kind: forge.FaultStatus, Status: 502, Count: 4}},
		{"primary limit", forge.Fault{Endpoint: create, Kind: forge.FaultPrimaryLimit, Count: 1, RetryAfter: 2 * time.Second}},
		{"secondary limit", forge.Fault{Endpoint: create, Kind: forge.FaultSecondaryLimit, Count: 2, RetryAfter: 2 * time.Second}},
		{"429", forge.Fault{Endpoint: create, Kind: forge.FaultTooMany, Count: 1, RetryAfter: 2 * time.Second}},
		{"reply lost", forge.Fault{Endpoint: create, Kind: forge.FaultLostReply, Count: 3, Delay: 200 * time.Millisecond}},
		{"cut", forge.Fault{Endpoint: create, Kind: forge.FaultCut, Count: 2}},
	} {
		r.Log(f.name)
		mark := r.events.Len()
		r.must(r.lab.Fault(r.ctx, f.fault))
		n++
		commit := r.nextCommit(n)
		for _, c := range contexts {
			r.wait(commit, c, "success")
		}
		r.looks(2)
		for _, c := range contexts {
			r.posts(commit, c, "success")
		}
		if len(r.events.Since(mark, "forge.fault")) == 0 {
			t.Errorf("%s: nobody met the fault", f.name)
		}
		r.must(r.lab.HealForge(r.ctx))
	}
	r.lostReplyAndKill(n + 1)
	r.outage(n + 2)
}

// lostReplyAndKill kills ichor while the reply to a status is lost: the next process reads back what was taken.
func (r *rig) lostReplyAndKill(n int) {
	r.Helper()
	mark := r.events.Len()
	r.must(r.lab.Fault(r.ctx, forge.Fault{Endpoint: "statuses.create", Kind: forge.FaultLostReply, Count: 1, Delay: 5 * time.Second}))
	commit := r.nextCommit(n)
	r.until("a status was taken and its reply is lost", func() (bool, string) {
		return len(r.events.Since(mark, "forge.status")) > 0, "not yet"
	})
	r.ichor.Kill()
	r.start()
	for _, c := range []string{checkStatus, applyStatus, nodesStatus} {
		r.wait(commit, c, "success")
		r.posts(commit, c, "success")
	}
}

// outage: the forge is gone while commits come; after it the newest has its statuses, and the older ones their verdict.
func (r *rig) outage(n int) {
	r.Helper()
	r.must(r.lab.Fault(r.ctx, forge.Fault{Endpoint: "*", Kind: forge.FaultCut}))
	var commits []string
	for i := range 3 {
		commits = append(commits, r.nextCommit(n+i))
	}
	r.fleet.MachineSpec = map[string]string{"cp1": "hostnam: x"}
	broken := r.push("Broken")
	count := func() int { return len(r.events.Since(0, "forge.fault")) }
	from := count()
	r.until("ichor tried during the outage", func() (bool, string) { return count() >= from+5, fmt.Sprint(count()-from, " times") })
	r.must(r.lab.HealForge(r.ctx))
	for _, c := range commits {
		r.wait(c, checkStatus, "success")
	}
	r.wait(broken, checkStatus, "failure")
	r.wait(broken, applyStatus, "failure")
	r.wait(broken, nodesStatus, "success")
	for _, c := range commits {
		r.posts(c, checkStatus, "success")
	}
	r.posts(broken, checkStatus, "failure")
}
