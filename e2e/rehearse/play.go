package rehearse

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/e2e/harness"
	"ichor.maesh.dev/ichor/e2e/lab/cli"
	"ichor.maesh.dev/ichor/e2e/lab/forge"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// baseWait is how long the daemon may need to take over the clusters as base has them.
const baseWait = 2 * time.Minute

// machinesOf lists all machines of a state.
func machinesOf(s *state) []*fleet.Machine {
	var out []*fleet.Machine
	for _, c := range s.fleet.Clusters {
		out = append(out, c.Machines...)
	}
	return out
}

// same tells whether two states hold the same files, folders such as .ichor-lab left out.
func same(a, b *state) bool {
	files := func(s *state) map[string]string {
		out := map[string]string{}
		for _, f := range s.fleet.Files {
			if !strings.HasPrefix(f.Path, ".") && !strings.Contains(f.Path, "/.") {
				out[f.Path] = string(f.Data)
			}
		}
		return out
	}
	return maps.Equal(files(a), files(b))
}

// begin starts the lab and the daemon, and waits until it has taken over what base has.
func (s *stage) begin(ctx context.Context) error {
	first := s.head
	if s.base != nil {
		first = s.base
	}
	s.intro(first)
	var err error
	s.lab, err = harness.StartLabOptions(cli.UpOptions{
		Repo: first.dir, Also: s.head.dir, State: filepath.Join(s.dir, "lab"), Configured: s.base != nil, Real: s.opt.RealTime,
	})
	if err != nil {
		return fmt.Errorf("start the lab: %w", err)
	}
	for _, kv := range os.Environ() { // a person's own settings are for their own daemon
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "ICHOR_") {
			_ = os.Unsetenv(name)
		}
	}
	args := []string{"run"}
	if !s.opt.RealTime {
		args = append(args, harness.FastFlags()...)
	}
	if s.ichor, err = harness.Start(s.opt.Ichor, s.lab.Env, nil, args...); err != nil {
		return fmt.Errorf("start ichor: %w", err)
	}
	if s.base == nil {
		return nil
	}
	s.tell("the clusters run as %s has them; Ichor takes them over", s.src.baseName)
	limited, cancel := context.WithTimeout(ctx, baseWait)
	defer cancel()
	for _, c := range s.base.fleet.Clusters {
		if c.Manifest == nil || c.Manifest.Spec.Suspend || len(c.Machines) == 0 {
			continue
		}
		st, err := s.lab.WaitStatus(limited, "main", "ichor/apply/"+c.Name, "success", "failure", "error")
		if err == nil && st.State != "success" {
			err = fmt.Errorf("%s", st.Description)
		}
		if err != nil {
			return fmt.Errorf("let Ichor take over cluster %s as it is on base: %w%s", c.Name, err, s.lastWords())
		}
	}
	s.tell("Ichor runs them")
	return nil
}

// intro says what is about to be seen.
func (s *stage) intro(first *state) {
	switch s.base {
	case nil:
		s.say("Rehearsing %s from nothing: all machines begin blank.", s.src.headName)
	default:
		s.say("Rehearsing %s on clusters that run as %s has them.", s.src.headName, s.src.baseName)
	}
	for _, c := range s.head.fleet.Clusters {
		planes, workers := 0, 0
		for _, m := range c.Machines {
			if m.Manifest != nil && m.Manifest.Spec.Role == v1alpha1.RoleControlPlane {
				planes++
			} else {
				workers++
			}
		}
		s.say("  cluster %s: %s, %s", c.Name, count(planes, "control plane"), count(workers, "worker"))
		if c.Manifest == nil {
			continue
		}
		if r := c.Manifest.Spec.Rollout; r.Mode == "observe" && !s.opt.Apply {
			s.say("  cluster %s is in mode observe: Ichor writes to none of its nodes (--apply rehearses it in mode apply)", c.Name)
		}
		if c.Manifest.Spec.Suspend {
			s.say("  cluster %s is suspended: Ichor leaves it alone", c.Name)
		}
	}
	for _, n := range s.copier.notes {
		s.say("  %s", n)
	}
	if !s.opt.RealTime {
		s.say("  settle is %s instead of minutes, and machines boot in seconds (--real-time keeps both real)", labSettle)
	}
	s.say("  simulated nodes, secrets made up: nothing of yours is touched. No Kubernetes: drains are not rehearsed")
	s.say("")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// merge puts the change on the watched branch, and gives its commit.
func (s *stage) merge(ctx context.Context) (string, error) {
	if s.base == nil {
		info, err := s.lab.Info(ctx)
		if err != nil {
			return "", err
		}
		s.tell("the machines wait in maintenance mode; Ichor brings them up")
		return info.Main, nil
	}
	if err := s.moves(ctx); err != nil {
		return "", err
	}
	s.writers = map[string]*harness.Writer{}
	for _, c := range s.base.fleet.Clusters {
		if err := s.write(c); err != nil {
			return "", err
		}
	}
	s.news(true)
	b, err := s.lab.Push(ctx, forge.PushOptions{Dir: s.head.dir, Branch: "main", Message: "The change"})
	if err != nil {
		return "", fmt.Errorf("merge the change in the lab: %w", err)
	}
	s.tell("the change is merged")
	return b.SHA, nil
}

// moves brings machines to the endpoint that the change gives them: whoever changes one has moved the machine.
func (s *stage) moves(ctx context.Context) error {
	taken := map[string]bool{}
	for _, m := range machinesOf(s.base) {
		taken[m.Manifest.Spec.Endpoint] = true
	}
	nodes, err := s.lab.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, m := range machinesOf(s.base) {
		c := s.head.fleet.Cluster(m.Cluster)
		if c == nil {
			continue
		}
		i := slices.IndexFunc(c.Machines, func(x *fleet.Machine) bool { return x.Name == m.Name })
		if i < 0 || c.Machines[i].Manifest.Spec.Endpoint == m.Manifest.Spec.Endpoint || taken[c.Machines[i].Manifest.Spec.Endpoint] {
			continue
		}
		from, _ := s.copier.addrs.of(m.Manifest.Spec.Endpoint)
		to, ok := s.copier.addrs.of(c.Machines[i].Manifest.Spec.Endpoint)
		at := slices.IndexFunc(nodes, func(n cli.NodeInfo) bool { return n.Address == from.String() })
		if !ok || at < 0 || from == to {
			continue
		}
		if err := s.lab.Node(ctx, cli.NodeAct{Act: "move", Name: nodes[at].Name, Address: to.String()}); err != nil {
			return err
		}
		s.tell("%s/%s is moved to %s, as the change says", m.Cluster, m.Name, c.Machines[i].Manifest.Spec.Endpoint)
	}
	return nil
}

// write starts a client that writes to the cluster's etcd all the time.
func (s *stage) write(c *fleet.Cluster) error {
	var endpoints []string
	for _, m := range c.Machines {
		if m.Manifest.Spec.Role != v1alpha1.RoleControlPlane || m.Manifest.Spec.ApprovalState != v1alpha1.ApprovalApproved {
			continue
		}
		if a, ok := s.copier.addrs.of(m.Manifest.Spec.Endpoint); ok {
			endpoints = append(endpoints, fmt.Sprintf("https://%s:2379", a))
		}
	}
	if len(endpoints) == 0 {
		return nil
	}
	seed := s.base.seeds[c.Name]
	if seed == "" {
		seed = c.Name
	}
	b, err := bundle.StandIn(seed, nil)
	if err != nil {
		return err
	}
	s.writers[c.Name], err = harness.StartWriter(b, endpoints)
	return err
}

// act is a line of Ichor's audit log.
type act struct {
	Phase, Cluster, Machine, Act, Send, Outcome, Kind, Message string
	At                                                         time.Time
}

// name of the machine with its cluster where there are several.
func (s *stage) name(a act) string {
	if len(s.head.fleet.Clusters) > 1 {
		return a.Cluster + "/" + a.Machine
	}
	return a.Machine
}

// news reads on in the audit log and tells what is new; quiet only marks it as told.
func (s *stage) news(quiet bool) {
	f, err := os.Open(filepath.Join(s.lab.Value("ICHOR_STATE_DIR"), "audit.log"))
	if err != nil {
		return
	}
	defer f.Close() //nolint:errcheck // only read
	if _, err := f.Seek(s.audit, io.SeekStart); err != nil {
		return
	}
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return // half a line is read when it is whole
		}
		s.audit += int64(len(line))
		var a act
		if quiet || json.Unmarshal(bytes.TrimSpace(line), &a) != nil || a.Phase != "end" {
			continue
		}
		s.acts = append(s.acts, a)
		s.tell("%s", s.words(a))
	}
}

// words for an act.
func (s *stage) words(a act) string {
	m := s.name(a)
	text := map[string]string{
		"install":            m + " gets its first configuration",
		"bootstrap":          "etcd is bootstrapped on " + m,
		"configure":          m + " takes its configuration",
		"confirm":            m + " is well with it: made permanent",
		"forfeit-leadership": m + " hands etcd's leadership on",
		"reboot":             m + " reboots",
	}[a.Act]
	if text == "" {
		text = a.Act + " " + m
	}
	switch a.Send {
	case "staged":
		text += ", which comes into force with a reboot"
	case "try":
		text += " on trial: it takes it back by itself if it cuts Ichor off"
	}
	switch {
	case a.Outcome == "done":
		return text
	case a.Kind == "refused":
		s.trouble = append(s.trouble, fmt.Sprintf("%s refused (%s): %s", m, a.Act, a.Message))
		return fmt.Sprintf("REFUSED by %s (%s): %s", m, a.Act, a.Message)
	}
	return fmt.Sprintf("%s: %s: %s", text, strings.ReplaceAll(a.Outcome, "-", " "), a.Message)
}

// lastWords is the end of Ichor's log, for errors.
func (s *stage) lastWords() string {
	if s.ichor == nil {
		return ""
	}
	var out []string
	for line := range strings.Lines(s.ichor.Output()) {
		if strings.Contains(line, `"level":"WARN"`) || strings.Contains(line, `"level":"ERROR"`) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	if len(out) == 0 {
		return ""
	}
	return "\nIchor's last warnings:\n" + strings.Join(out[max(0, len(out)-5):], "\n")
}

// end stops what runs.
func (s *stage) end() {
	for _, w := range s.writers {
		w.Stop()
	}
	s.writers = nil
	if s.ichor != nil {
		_ = s.ichor.Stop()
	}
	if s.lab != nil {
		_ = s.lab.Stop()
	}
}
