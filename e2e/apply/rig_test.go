// Package apply_test runs the edges of apply (talos, etcd, observe, act, journal) on the lab's nodes.
package apply_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/apply/act"
	"ichor.maesh.dev/ichor/apply/journal"
	"ichor.maesh.dev/ichor/apply/observe"
	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/e2e/lab"
	"ichor.maesh.dev/ichor/e2e/lab/node"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/schemas/secret"
	"ichor.maesh.dev/ichor/schemas/state"
)

// nextNet gives each test a loopback network that no other package uses.
var nextNet atomic.Int32

// made makes the two bundles once: an RSA key takes a second.
var made = [2]func() (*bundle.Bundle, error){sync.OnceValues(generateBundle), sync.OnceValues(generateBundle)}

func generateBundle() (*bundle.Bundle, error) {
	b, _, err := bundle.Generate("v1.13", secrets.NewFixedClock(time.Now().Add(-time.Hour)))
	return b, err
}

// rig is a lab with one cluster, an observer, and an actor with a real journal.
type rig struct {
	*testing.T
	ctx      context.Context
	lab      *lab.Lab
	net      int32
	bundle   *bundle.Bundle
	spec     *observe.Cluster
	desired  *plan.Desired
	observer *observe.Observer
	branch   *memoryBranch
	journal  *journal.Journal
	actor    *act.Actor
	dir      string
	log      *syncBuffer
	// said collects every message, for the canary.
	said *syncBuffer
}

// syncBuffer is a buffer for several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// memoryBranch is a status branch in memory.
type memoryBranch struct {
	mu   sync.Mutex
	data []byte
	tip  int
	down atomic.Bool
}

func (b *memoryBranch) Read(context.Context) ([]byte, string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.down.Load():
		return nil, "", fmt.Errorf("connection refused")
	case b.data == nil:
		return nil, "", journal.ErrAbsent
	}
	return bytes.Clone(b.data), fmt.Sprint(b.tip), nil
}

func (b *memoryBranch) Write(_ context.Context, data []byte, prev string) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down.Load() {
		return "", fmt.Errorf("connection refused")
	}
	if b.data != nil && prev != fmt.Sprint(b.tip) || b.data == nil && prev != "" {
		return "", journal.ErrMoved
	}
	b.data, b.tip = bytes.Clone(data), b.tip+1
	return fmt.Sprint(b.tip), nil
}

func newRig(t *testing.T) *rig {
	t.Parallel()
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	t.Cleanup(cancel)
	b, err := made[0]()
	must(t, err)
	l, err := lab.New(ctx, lab.Options{StateDir: t.TempDir()})
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	r := &rig{T: t, ctx: ctx, lab: l, net: nextNet.Add(1), bundle: b, branch: &memoryBranch{}, dir: t.TempDir(), log: &syncBuffer{}, said: &syncBuffer{}}
	r.spec = &observe.Cluster{Name: "lab", Bundle: b, Interval: 2 * time.Minute, Grace: time.Minute, Retry: 10 * time.Second, MaxIndexLag: 100, FingerprintKey: []byte("k")}
	r.desired = &plan.Desired{Name: "lab", Commit: "c1"}
	r.observer = observe.New(observe.Options{Timeout: 2 * time.Second})
	t.Cleanup(r.observer.Close)
	j, err := journal.Open(journal.Options{Store: r.branch, Dir: r.dir, Keys: [][]byte{[]byte("key")}})
	must(t, err)
	t.Cleanup(j.Close)
	must(t, j.Take(ctx, time.Now()))
	r.journal = j
	audit, err := act.OpenAudit(r.dir, slog.New(slog.NewJSONHandler(r.log, nil)), time.Now)
	must(t, err)
	t.Cleanup(func() { _ = audit.Close() })
	r.actor = &act.Actor{Observer: r.observer, Journal: j, Audit: audit, Now: time.Now}
	t.Cleanup(r.canary)
	return r
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 71, byte(r.net), byte(i)}) }

// config renders as the product does: generated, without comments.
func (r *rig) config(b *bundle.Bundle, typ mtype.Type, hostname string) []byte {
	r.Helper()
	in, err := generate.NewInput("lab", "https://"+r.addr(1).String()+":6443", "1.36.0",
		generate.WithSecretsBundle(b.Secrets()), generate.WithVersionContract(config.TalosVersion1_13), generate.WithInstallDisk("/dev/vda"))
	must(r, err)
	p, err := in.Config(typ)
	must(r, err)
	out, err := p.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	must(r, err)
	return []byte(strings.Replace(string(out), "auto: stable", "hostname: "+hostname, 1))
}

// add puts a blank machine into the lab and the cluster.
func (r *rig) add(name, role string) {
	r.Helper()
	_, err := r.lab.AddNode(node.Spec{Name: name, Address: r.addr(len(r.spec.Machines) + 1)})
	must(r, err)
	must(r, r.lab.WaitMaintenance(r.ctx, name))
	r.spec.Machines = append(r.spec.Machines, observe.Machine{Name: name, Role: role, Endpoint: r.lab.Node(name).Spec().Address.String()})
	typ := mtype.TypeControlPlane
	if role == plan.RoleWorker {
		typ = mtype.TypeWorker
	}
	r.wish(name, r.config(r.bundle, typ, name))
	r.desired.Machines = append(r.desired.Machines, plan.DesiredMachine{Name: name, Role: role, Hostname: name, Endpoint: r.addr(len(r.spec.Machines)).String()})
}

// machine gives the cluster's entry.
func (r *rig) machine(name string) *observe.Machine {
	for i := range r.spec.Machines {
		if r.spec.Machines[i].Name == name {
			return &r.spec.Machines[i]
		}
	}
	r.Fatalf("no machine %s", name)
	return nil
}

// wish makes config what the head wants for the machine, and gives its digest.
func (r *rig) wish(name string, cfg []byte) string {
	r.Helper()
	masked, err := mask.Config(cfg, nil)
	must(r, err)
	m := r.machine(name)
	m.Wish, m.Masked, m.Digest = secret.New(cfg), masked, masked.Digest()
	return m.Digest
}

// edit changes the wish in one place.
func (r *rig) edit(name string, edit func(doc map[string]any)) string {
	r.Helper()
	docs := strings.SplitN(string(r.machine(name).Wish.Reveal()), "\n---\n", 2)
	var doc map[string]any
	must(r, yaml.Unmarshal([]byte(docs[0]), &doc))
	edit(doc)
	out, err := yaml.Marshal(doc)
	must(r, err)
	return r.wish(name, []byte(string(out)+"---\n"+docs[1]))
}

// look reads machines and keeps what was said.
func (r *rig) look(names ...string) map[string]plan.MachineFacts {
	r.Helper()
	facts, err := r.observer.Observe(r.ctx, r.spec, names)
	must(r, err)
	fmt.Fprintf(r.said, "%+v\n", facts)
	for _, f := range facts {
		fmt.Fprintf(r.said, "%+v %+v\n", f.Config, f.Etcd)
	}
	return facts
}

// until looks at one machine until it is as wanted.
func (r *rig) until(name, what string, ok func(plan.MachineFacts) bool) plan.MachineFacts {
	r.Helper()
	for {
		f := r.look(name)[name]
		if ok(f) {
			return f
		}
		select {
		case <-r.ctx.Done():
			r.Fatalf("%s was never %s: %+v etcd %+v config %+v", name, what, f, f.Etcd, f.Config)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// do carries out one action.
func (r *rig) do(a plan.Action) act.Result {
	r.Helper()
	if a.Digest == "" && a.Machine != "" {
		a.Digest = r.machine(a.Machine).Digest
	}
	a.Commit = "c1"
	res, err := r.actor.Do(r.ctx, &act.Cluster{Nodes: r.spec, Desired: r.desired, MergedBy: "alice"}, []plan.Action{a})
	must(r, err)
	fmt.Fprintf(r.said, "%+v\n", res)
	return res[0]
}

func (r *rig) wantOutcome(res act.Result, o act.Outcome, k act.Kind) {
	r.Helper()
	if res.Outcome != o || res.Kind != k {
		r.Fatalf("%s on %s: %s %s: %s; want %s %s", res.Action.Kind, res.Action.Machine, res.Outcome, res.Kind, res.Message, o, k)
	}
}

func (r *rig) done(a plan.Action) {
	r.Helper()
	r.wantOutcome(r.do(a), act.Done, "")
}

func (r *rig) inventory() *state.ClusterInventory { return r.journal.Cluster("lab") }

func (r *rig) closeIntents(outcome string) {
	r.Helper()
	for _, in := range r.inventory().Intents {
		_, err := r.actor.Do(r.ctx, &act.Cluster{Nodes: r.spec, Desired: r.desired}, []plan.Action{{Kind: plan.CloseIntent, Machine: in.Machine, IntentID: in.ID, Outcome: outcome}})
		must(r, err)
	}
}

func well(name string, role string) func(plan.MachineFacts) bool {
	return func(f plan.MachineFacts) bool { return plan.SeenWell(f, role, false) }
}

// bringUp installs all machines, bootstraps the first and waits until all are well.
func (r *rig) bringUp() {
	r.Helper()
	var cps []string
	for _, m := range r.spec.Machines {
		r.done(plan.Action{Kind: plan.DoInstall, Machine: m.Name, Expect: plan.Expect{Mode: plan.ModeMaintenance}})
		if m.Role == plan.RoleControlPlane {
			cps = append(cps, m.Name)
		}
	}
	for _, name := range cps {
		r.until(name, "waiting for bootstrap", func(f plan.MachineFacts) bool {
			return f.Mode == plan.ModeConfigured && f.Etcd != nil && f.Etcd.State == "Preparing"
		})
	}
	r.closeIntents(plan.OutcomeDone)
	for {
		res := r.do(plan.Action{Kind: plan.DoBootstrap, Machine: cps[0], Expect: plan.Expect{EtcdEmptyOn: cps}})
		if res.Outcome == act.Done {
			break
		}
		if res.Kind != "not-available-yet" && res.Kind != act.KindPrecondition {
			r.Fatalf("bootstrap: %+v", res)
		}
	}
	for _, m := range r.spec.Machines {
		r.until(m.Name, "well", well(m.Name, m.Role))
	}
	r.closeIntents(plan.OutcomeDone)
}

// canary: nothing secret in what was said, logged, or written by the product.
func (r *rig) canary() {
	data, err := yaml.Marshal(r.bundle.Secrets())
	must(r, err)
	var tree any
	must(r, yaml.Unmarshal(data, &tree))
	var values []string
	var walk func(any)
	walk = func(v any) {
		switch x := v.(type) {
		case map[string]any:
			for _, e := range x {
				walk(e)
			}
		case string:
			if len(x) > 8 {
				values = append(values, x)
			}
		}
	}
	walk(tree)
	if len(values) < 10 {
		r.Errorf("the bundle shows only %d values", len(values))
	}
	values = append(values, "canary-env-value")
	places := map[string]string{"messages": r.said.String(), "log": r.log.String(), "branch": string(r.branch.data)}
	must(r, filepath.WalkDir(r.dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			b, err := os.ReadFile(p)
			places[p] = string(b)
			return err
		}
		return err
	}))
	for place, text := range places {
		for _, v := range values {
			if strings.Contains(text, v) {
				r.Errorf("a secret value is in the %s", place)
			}
		}
	}
}
