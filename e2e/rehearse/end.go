package rehearse

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/e2e/lab/forge"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// quiet is how long a refusal must have stood, without anything happening, to be the end: some pass by themselves.
const quiet = 10 * time.Second

// watch tells what happens until nothing more will.
func (s *stage) watch(ctx context.Context, commit string) error {
	s.said, s.heard = map[string]string{}, map[string]string{}
	s.lastNews = time.Now()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ichor.Done():
			return fmt.Errorf("ichor ended by itself%s", s.lastWords())
		case <-tick.C:
		}
		s.news(false)
		st, err := s.lab.Status(ctx, commit)
		if err != nil {
			return err
		}
		by := map[string]forge.Status{}
		for _, x := range st.Statuses {
			by[x.Context] = x
			s.status(x)
		}
		still := time.Since(s.lastNews)
		switch open, bad := s.open(by); {
		case open == 0 && bad == 0 && still > 2*time.Second, open == 0 && still > quiet:
			return nil
		case still > s.opt.Patience:
			s.tell("nothing has happened for %s: it is stuck", s.opt.Patience)
			s.trouble = append(s.trouble, "it did not end: "+s.waiting(by))
			return nil
		}
	}
}

// waits is how long nothing must have been told before it is told what is waited for.
const waits = 4 * time.Second

// status tells a status that is new. What is pending changes all the time: it is told when nothing else is.
func (s *stage) status(x forge.Status) {
	text := x.State + ": " + s.real(x.Description)
	if s.said[x.Context] == text {
		return
	}
	if x.State == "pending" && time.Since(s.told) < waits {
		if s.heard[x.Context] != text { // something moves, though nothing is said
			s.heard[x.Context], s.lastNews = text, time.Now()
		}
		return
	}
	s.said[x.Context] = text
	s.tell("%s: %s", x.Context, text)
}

// contexts are the statuses that the end of the rollout shows.
func (s *stage) contexts() []string {
	out := []string{"ichor/check"}
	for _, c := range s.head.fleet.Clusters {
		approved := false
		for _, m := range c.Machines {
			approved = approved || m.Manifest != nil && m.Manifest.Spec.ApprovalState == v1alpha1.ApprovalApproved
		}
		if c.Manifest != nil && !c.Manifest.Spec.Suspend && approved {
			out = append(out, "ichor/apply/"+c.Name, "ichor/nodes/"+c.Name)
		}
	}
	return out
}

// open counts the statuses that are not final, and those that are bad.
func (s *stage) open(by map[string]forge.Status) (open, bad int) {
	names := s.contexts()
	for name := range by { // removals
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		switch by[name].State {
		case "success":
		case "failure", "error":
			bad++
		default:
			open++
		}
	}
	if by["ichor/check"].State == "failure" || by["ichor/check"].State == "error" {
		open = 0 // nothing follows
	}
	return open, bad
}

// waiting says what is open.
func (s *stage) waiting(by map[string]forge.Status) string {
	var out []string
	for _, name := range s.contexts() {
		switch st, ok := by[name]; {
		case !ok:
			out = append(out, name+" was never posted")
		case st.State == "pending":
			out = append(out, name+": "+st.Description)
		}
	}
	return strings.Join(out, "; ")
}

// sum says what it came to.
func (s *stage) sum(ctx context.Context, commit string) error {
	st, err := s.lab.Status(ctx, commit)
	if err != nil {
		return err
	}
	s.say("\nWhat happened:")
	slices.SortFunc(st.Statuses, func(a, b forge.Status) int { return strings.Compare(a.Context, b.Context) })
	for _, x := range st.Statuses {
		if x.State == "failure" || x.State == "error" {
			s.trouble = append(s.trouble, x.Context+": "+x.Description)
		}
	}
	s.order()
	for _, c := range s.head.fleet.Clusters {
		s.cluster(ctx, c.Name)
	}
	s.etcd()
	s.trouble = unique(s.trouble)
	if len(s.trouble) == 0 {
		s.say("\nIt would go through.")
		return nil
	}
	s.say("\nIt would not go through:")
	for _, t := range s.trouble {
		s.say("  %s", t)
	}
	return ErrNotThrough
}

// order says in which order machines were touched, and which rebooted.
func (s *stage) order() {
	var touched, reboots []string
	for _, a := range s.acts {
		if a.Outcome != "done" {
			continue
		}
		name := s.name(a)
		if a.Act == "reboot" {
			reboots = append(reboots, name)
		}
		if (a.Act == "configure" || a.Act == "install") && !slices.Contains(touched, name) {
			touched = append(touched, name)
		}
	}
	if len(touched) == 0 {
		s.say("  no machine was touched")
		return
	}
	s.say("  touched in this order: %s", strings.Join(touched, ", "))
	if len(reboots) == 0 {
		s.say("  no reboot")
	} else {
		s.say("  %s: %s", count(len(reboots), "reboot"), strings.Join(reboots, ", "))
	}
}

// cluster says of each machine that is not as wanted why.
func (s *stage) cluster(ctx context.Context, name string) {
	c, err := s.lab.ClusterStatus(ctx, name)
	if err != nil {
		return // nothing was ever written of it: its statuses say why
	}
	for _, m := range c.Machines {
		if !m.Converged && m.Approval == v1alpha1.ApprovalApproved {
			s.say("  %s/%s is not as wanted: %s: %s", name, m.Name, m.Reason, s.real(m.Message))
		}
	}
}

// etcd says how the clients of etcd fared.
func (s *stage) etcd() {
	for _, c := range s.head.fleet.Clusters {
		w := s.writers[c.Name]
		if w == nil {
			continue
		}
		counts := w.Counts()
		s.say("  a client wrote to etcd of %s all the time: %s", c.Name, counts)
		planes := 0
		for _, m := range c.Machines {
			if m.Manifest != nil && m.Manifest.Spec.Role == v1alpha1.RoleControlPlane {
				planes++
			}
		}
		if counts.Failed > 0 && planes > 2 {
			s.trouble = append(s.trouble, fmt.Sprintf("%d writes to etcd of %s failed", counts.Failed, c.Name))
		} else if counts.Failed > 0 {
			s.say("  (with %s an outage is to be expected)", count(planes, "control plane"))
		}
	}
}

// real puts the user's own addresses back into a text.
func (s *stage) real(text string) string {
	var pairs []string
	for addr, label := range s.copier.addrs.labels {
		pairs = append(pairs, addr.String(), label)
	}
	// longer ones first, so that .11 is not taken for .1
	type pair struct{ from, to string }
	var list []pair
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, pair{pairs[i], pairs[i+1]})
	}
	slices.SortFunc(list, func(a, b pair) int { return len(b.from) - len(a.from) })
	for _, p := range list {
		text = strings.ReplaceAll(text, p.from, p.to)
	}
	return text
}

func unique(list []string) []string {
	var out []string
	for _, x := range list {
		if !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}
