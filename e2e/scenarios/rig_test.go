package scenarios

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/apply/act"
	"ichor.maesh.dev/ichor/e2e/harness"
	"ichor.maesh.dev/ichor/e2e/lab/cli"
	"ichor.maesh.dev/ichor/e2e/lab/forge"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/fold"
)

// patience is how long anything may take on a slow machine. What succeeds doesn't wait for it.
const patience = 2 * time.Minute

const cluster = "prod"

// contexts of the commit statuses.
const (
	checkStatus = "ichor/check"
	applyStatus = "ichor/apply/" + cluster
	nodesStatus = "ichor/nodes/" + cluster
)

// rig is a lab with a repository, and the ichor that serves it.
type rig struct {
	*testing.T
	ctx    context.Context
	dir    string
	fleet  harness.Fleet
	lab    *harness.Lab
	events *harness.Events
	canary *harness.Canary

	ichor *harness.Process
	// ran are all processes that ever ran, stateDirs all their state folders.
	ran       []*harness.Process
	stateDirs []string
	// metrics is where ichor listens, "" not chosen yet.
	metrics string
	// scraped is all that /metrics ever said to a test.
	scraped bytes.Buffer
}

// newRig starts a lab for a fleet (Net is needed; the rest has defaults). configured: the cluster runs already.
// It waits for its turn: at most two labs run at once.
func newRig(t *testing.T, f harness.Fleet, configured bool) *rig {
	t.Helper()
	t.Parallel()
	slots <- struct{}{}
	t.Cleanup(func() { <-slots })
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	r := &rig{T: t, ctx: ctx, dir: t.TempDir(), fleet: f, events: &harness.Events{}, canary: harness.NewCanary()}
	r.fleet.Dir = filepath.Join(r.dir, "fleet")
	r.write()
	var err error
	r.lab, err = harness.StartLabWith(r.fleet.Dir, filepath.Join(r.dir, "lab"), configured, r.events)
	r.must(err)
	t.Cleanup(func() {
		if err := r.lab.Stop(); err != nil {
			t.Errorf("stop the lab: %v", err)
		}
	})
	r.knowSecrets()
	t.Cleanup(r.lookForCanaries)
	t.Cleanup(r.end)
	return r
}

// adopted is a rig whose cluster runs what the repository says, with an ichor that knows it.
func adopted(t *testing.T, f harness.Fleet) *rig {
	t.Helper()
	r := newRig(t, f, true)
	r.start()
	r.wait("main", applyStatus, "success")
	return r
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) write() {
	r.Helper()
	r.must(r.fleet.Write())
}

// knowSecrets tells the canary every secret of the lab.
func (r *rig) knowSecrets() {
	r.Helper()
	b, err := r.lab.Bundle(cluster)
	r.must(err)
	r.must(r.canary.AddBundle(cluster, b))
	for name, path := range map[string]string{"age identity": r.lab.Value("SOPS_AGE_KEY_FILE"), "token": r.lab.Value("ICHOR_TOKEN_FILE")} {
		data, err := os.ReadFile(path)
		r.must(err)
		for line := range strings.Lines(string(data)) {
			if !strings.HasPrefix(line, "#") {
				r.canary.Add(name, strings.TrimSpace(line))
			}
		}
	}
	if r.canary.Len() < 50 {
		r.Fatalf("the canary knows %d forms of secrets only", r.canary.Len())
	}
}

// end stops what runs; a failed test shows the end of the log.
func (r *rig) end() {
	if r.ichor != nil {
		if err := r.ichor.Stop(); err != nil {
			r.Errorf("stop ichor: %v", err)
		}
	}
	if r.Failed() {
		r.explain()
	}
}

func (r *rig) explain() {
	for i, p := range r.ran[max(0, len(r.ran)-2):] {
		lines := strings.Split(strings.TrimSpace(p.Output()), "\n")
		r.Logf("end of the log of process %d of the last two:\n%s", i+1, strings.Join(lines[max(0, len(lines)-40):], "\n"))
	}
	if text, err := r.lab.File(r.ctx, harness.StatusBranch, "clusters/"+cluster+"/README.md"); err == nil {
		r.Logf("page of the cluster:\n%s", text)
	}
	if text, err := r.lab.File(r.ctx, harness.StatusBranch, "README.md"); err == nil {
		r.Logf("page of the fleet:\n%s", text)
	}
	r.Logf("audit log:\n%s", strings.Join(r.auditLines(), "\n"))
}

// start runs ichor with further flags on the lab's own state folder.
func (r *rig) start(flags ...string) {
	r.Helper()
	r.ichor = r.run(r.stateDir(), nil, flags...)
}

func (r *rig) stateDir() string { return r.lab.Value("ICHOR_STATE_DIR") }

// metricsAddr is an address of the test's own network with a port that was free when it was first asked for.
func (r *rig) metricsAddr() string {
	r.Helper()
	if r.metrics == "" {
		l, err := net.Listen("tcp", r.fleet.Net+".1:0")
		r.must(err)
		r.metrics = l.Addr().String()
		r.must(l.Close())
	}
	return r.metrics
}

// run runs an ichor with a state folder; env comes on top of the lab's.
func (r *rig) run(stateDir string, env []string, flags ...string) *harness.Process {
	r.Helper()
	args := append([]string{"run", "--state-dir", stateDir}, harness.FastFlags()...)
	if stateDir == r.stateDir() {
		args = append(args, "--metrics-listen", r.metricsAddr())
	}
	p, err := harness.Start(ichorBin, append(append([]string{}, r.lab.Env...), env...), nil, append(args, flags...)...)
	r.must(err)
	r.ran, r.stateDirs = append(r.ran, p), append(r.stateDirs, stateDir)
	return p
}

// stop ends ichor as an orderly shutdown does.
func (r *rig) stop() {
	r.Helper()
	if r.ichor == nil {
		return
	}
	if err := r.ichor.Stop(); err != nil {
		r.Errorf("stop ichor: %v", err)
	}
	r.ichor = nil
}

// push commits the fleet as it is now on main and gives the commit.
func (r *rig) push(message string) string {
	r.Helper()
	r.write()
	b, err := r.lab.Push(r.ctx, forge.PushOptions{Branch: "main", Message: message, Author: "you"})
	r.must(err)
	return b.SHA
}

// until polls until cond is true. On failure it tells what the condition last said.
func (r *rig) until(what string, cond func() (bool, string)) {
	r.Helper()
	limited, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	var last string
	err := harness.Wait(limited, func() bool {
		r.alive()
		ok, now := cond()
		last = now
		return ok
	})
	if err != nil {
		r.Fatalf("wait until %s: it is %s", what, last)
	}
}

// alive fails the test when ichor ended by itself.
func (r *rig) alive() {
	r.Helper()
	if r.ichor == nil {
		return
	}
	select {
	case <-r.ichor.Done():
		r.Fatal("ichor ended by itself")
	default:
	}
}

// wait waits until a status of a commit has one of the states.
func (r *rig) wait(ref, context string, states ...string) forge.Status {
	r.Helper()
	var got forge.Status
	r.until(fmt.Sprintf("%s of %s is %s", context, ref, strings.Join(states, " or ")), func() (bool, string) {
		s, ok := r.lab.StatusOf(r.ctx, ref, context)
		got = s
		for _, want := range states {
			if ok && s.State == want {
				return true, ""
			}
		}
		return false, fmt.Sprintf("%q: %s", s.State, s.Description)
	})
	return got
}

// waitSaying waits until a status has a state and its description holds a text.
func (r *rig) waitSaying(ref, context, state, text string) forge.Status {
	r.Helper()
	var got forge.Status
	r.until(fmt.Sprintf("%s of %s is %s and says %q", context, ref, state, text), func() (bool, string) {
		s, ok := r.lab.StatusOf(r.ctx, ref, context)
		got = s
		return ok && s.State == state && strings.Contains(s.Description, text), fmt.Sprintf("%q: %s", s.State, s.Description)
	})
	return got
}

// clusterWhere waits until status.yaml of the cluster fulfils cond, which says what it saw.
func (r *rig) clusterWhere(what string, cond func(c fold.Cluster) (bool, string)) fold.Cluster {
	r.Helper()
	var got fold.Cluster
	r.until("status.yaml shows "+what, func() (bool, string) {
		c, err := r.lab.ClusterStatus(r.ctx, cluster)
		if err != nil {
			return false, err.Error()
		}
		got = c
		return cond(c)
	})
	return got
}

// held waits until the cluster is held for a reason at a commit, and gives the message.
func (r *rig) held(commit, reason string) string {
	r.Helper()
	var message string
	r.clusterWhere("Held "+reason, func(c fold.Cluster) (bool, string) {
		var seen []string
		for _, cond := range c.Conditions {
			seen = append(seen, fmt.Sprintf("%s=%s %s %s (%s)", cond.Type, cond.Status, cond.Reason, cond.Message, cond.ObservedCommit))
			if cond.Type == state.CondHeld && cond.Status == state.True && cond.Reason == reason &&
				(commit == "" || cond.ObservedCommit == commit) {
				message = cond.Message
				return true, ""
			}
		}
		return false, strings.Join(seen, "; ")
	})
	return message
}

// machineSays waits until a machine's condition has a reason, and gives its message.
func (r *rig) machineSays(name, kind, reason string) string {
	r.Helper()
	var message string
	r.clusterWhere(fmt.Sprintf("%s: %s %s", name, kind, reason), func(c fold.Cluster) (bool, string) {
		for _, m := range c.Machines {
			if m.Name != name {
				continue
			}
			for _, cond := range m.Conditions {
				if cond.Type == kind && cond.Reason == reason {
					message = cond.Message
					return true, ""
				}
			}
			return false, fmt.Sprintf("%+v", m.Conditions)
		}
		return false, "no such machine"
	})
	return message
}

// writes counts what each node took.
type writes struct{ configurations, bootstraps, reboots int }

func (r *rig) writes() map[string]writes {
	r.Helper()
	nodes, err := r.lab.Nodes(r.ctx)
	r.must(err)
	out := map[string]writes{}
	for _, n := range nodes {
		out[n.Name] = writes{n.Configurations, n.Bootstraps, n.Reboots}
	}
	return out
}

// unwritten fails where a node took anything since before. With names, those nodes alone are compared.
func (r *rig) unwritten(before map[string]writes, names ...string) {
	r.Helper()
	now := r.writes()
	if len(names) == 0 {
		for name := range before {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if now[name] != before[name] {
			r.Errorf("node %s was written: %+v, before it was %+v", name, now[name], before[name])
		}
	}
}

// looks waits until ichor looked at the repository n times more: what it would do wrong, it has had the time to do.
func (r *rig) looks(n int) {
	r.Helper()
	count := func() int {
		all, err := r.lab.Requests(r.ctx)
		r.must(err)
		return all["pulls.list"]
	}
	from := count()
	r.until(fmt.Sprintf("ichor looked %d times more", n), func() (bool, string) {
		now := count()
		return now >= from+n, fmt.Sprint(now-from, " times")
	})
}

// node does something to a node of the lab.
func (r *rig) node(a cli.NodeAct) {
	r.Helper()
	r.must(r.lab.Node(r.ctx, a))
}

// line of the audit log.
type line struct{ Phase, Act, Machine, Send, Outcome, Commit, MergedBy, Message string }

func (r *rig) auditLines() []string {
	data, err := os.ReadFile(filepath.Join(r.stateDir(), act.AuditFile))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// acts of the audit log that ended, of a commit ("" all).
func (r *rig) acts(commit string) []line {
	r.Helper()
	var out []line
	for _, a := range actsIn(r.T, r.stateDir()) {
		if commit == "" || a.Commit == commit {
			out = append(out, a)
		}
	}
	return out
}

// actsIn reads the acts that ended from the audit log of a state folder.
func actsIn(t *testing.T, dir string) []line {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, act.AuditFile))
	if err != nil {
		t.Fatal(err)
	}
	var out []line
	for text := range strings.Lines(string(data)) {
		var a line
		if err := json.Unmarshal([]byte(text), &a); err != nil {
			t.Fatalf("read a line of the audit log: %v", err)
		}
		if a.Phase == "end" {
			out = append(out, a)
		}
	}
	return out
}

// metric waits for a line of /metrics.
func (r *rig) metric(line string) {
	r.Helper()
	r.until("/metrics has "+line, func() (bool, string) {
		text, err := r.scrape()
		return err == nil && strings.Contains(text, "\n"+line+"\n"), fmt.Sprint("without it (", err, ")")
	})
}

func (r *rig) scrape() (string, error) {
	resp, err := http.Get("http://" + r.metricsAddr() + "/metrics")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	r.scraped.Write(body)
	return string(body), err
}

// posted gives each time that a status was taken since a mark, oldest first.
func (r *rig) posted(mark int, sha, context string) []forge.Event {
	var out []forge.Event
	for _, e := range r.events.Since(mark, "forge.status") {
		if harness.Field(e, "sha") == sha && harness.Field(e, "context") == context {
			out = append(out, e)
		}
	}
	return out
}

// lookForCanaries looks for every secret wherever ichor wrote: its output, its state folders, all that it ever pushed,
// the statuses, the metrics.
func (r *rig) lookForCanaries() {
	for i, p := range r.ran {
		r.noCanary(fmt.Sprintf("the output of process %d", i+1), []byte(p.Output()))
	}
	for _, dir := range r.stateDirs {
		found, err := r.canary.FindInFolder(context.Background(), dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			r.Errorf("look for secrets in %s: %v", dir, err)
		}
		for _, f := range found {
			r.Error(f)
		}
	}
	objects, err := r.lab.Objects(context.Background())
	if err != nil {
		r.Error(err)
	}
	r.noCanary("the objects of the repository", objects)
	for _, e := range r.events.Since(0, "forge.status") {
		r.noCanary("a commit status", []byte(fmt.Sprint(e.Fields)))
	}
	r.noCanary("/metrics", r.scraped.Bytes())
}

func (r *rig) noCanary(place string, data []byte) {
	for _, f := range r.canary.Find(place, data) {
		r.Error(f)
	}
}
