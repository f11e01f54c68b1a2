package observe

import (
	"testing"
	"testing/synctest"
	"time"

	"ichor.maesh.dev/ichor/apply/plan"
)

// world runs reads whose results a test gives, on the fake clock of synctest.
type world struct {
	o    *Observer
	c    *cluster
	spec *Cluster
}

func newWorld() *world {
	spec := &Cluster{
		Name: "c", Interval: 2 * time.Minute, Grace: time.Minute, Retry: 10 * time.Second,
		Machines: []Machine{{Name: "w1", Role: plan.RoleWorker, Endpoint: "10.0.0.1"}},
	}
	o := New(Options{})
	c, _ := o.cluster(spec)
	return &world{o: o, c: c, spec: spec}
}

// look notes a read with these facts and gives what is kept.
func (w *world) look(f plan.MachineFacts) plan.MachineFacts {
	m := &w.spec.Machines[0]
	r := &read{observer: w.o, cluster: w.c, spec: w.spec, machine: m, before: w.c.known(m)}
	r.begin()
	f.At, f.Endpoint = r.facts.At, r.facts.Endpoint
	r.facts = f
	w.c.note(r)
	return w.c.facts(w.spec)["w1"]
}

func well(boot string) plan.MachineFacts {
	ready := true
	up := plan.ServiceFact{State: "Running", Running: true}
	return plan.MachineFacts{
		Reach: plan.ReachOK, Mode: plan.ModeConfigured, Stage: "running", Ready: &ready, BootID: boot,
		Services: map[string]plan.ServiceFact{"apid": up, "kubelet": up, "machined": up},
	}
}

var gone = plan.MachineFacts{Reach: plan.ReachUnreachable, Error: "no route to host"}

// TestReach is the story of SPEC section 4: when the failures began, how often a machine is read, when it is back.
func TestReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		if due, _ := w.o.Due(w.spec, time.Now()); len(due) != 1 {
			t.Fatal("a machine that was never read is due")
		}
		began := time.Now()
		if f := w.look(well("a")); !f.Since.Equal(began) || !f.WellSince.Equal(began) {
			t.Fatalf("first read: since %s, well since %s", f.Since, f.WellSince)
		}
		reads := func(span time.Duration, f plan.MachineFacts) (n int, last plan.MachineFacts) {
			for end := time.Now().Add(span); time.Now().Before(end); time.Sleep(time.Second) {
				if due, next := w.o.Due(w.spec, time.Now()); len(due) == 1 {
					n++
					last = w.look(f)
				} else if next.IsZero() || !next.After(time.Now()) {
					t.Fatalf("nothing is due, and the next is at %s", next)
				}
			}
			return n, last
		}
		n, f := reads(4*time.Minute, well("a"))
		if n != 1 || !f.Since.Equal(began) || !f.WellSince.Equal(began) {
			t.Fatalf("at rest: %d reads, %+v", n, f)
		}
		// It goes away. The first failed read is the transition; every ten seconds until the grace is over.
		if due, _ := w.o.Due(w.spec, time.Now()); len(due) != 1 {
			t.Fatal("not due after the interval")
		}
		failed := time.Now()
		f = w.look(gone)
		if f.Reach != plan.ReachUnreachable || !f.Since.Equal(failed) || !f.WellSince.IsZero() {
			t.Fatalf("first failure: %+v", f)
		}
		n, f = reads(61*time.Second, gone)
		if n != 6 || !f.Since.Equal(failed) {
			t.Fatalf("within the grace: %d reads, since %s", n, f.Since.Sub(failed))
		}
		if n, f = reads(4*time.Minute, gone); n != 2 || !f.Since.Equal(failed) {
			t.Fatalf("after the grace: %d reads", n)
		}
		// It is back: the first good read ends it.
		time.Sleep(time.Second)
		back := time.Now()
		if f = w.look(well("b")); !f.Since.Equal(back) || !f.WellSince.Equal(back) {
			t.Fatalf("back: %+v", f)
		}
		// A reboot that no read saw is a break all the same.
		time.Sleep(time.Minute)
		if f = w.look(well("c")); !f.Since.Equal(back) || !f.WellSince.Equal(time.Now()) {
			t.Fatalf("another boot: %+v", f)
		}
		// Another endpoint is another machine until it is read.
		w.spec.Machines[0].Endpoint = "10.0.0.2"
		if _, ok := w.c.facts(w.spec)["w1"]; ok {
			t.Fatal("facts of the old endpoint are given for the new one")
		}
		if due, _ := w.o.Due(w.spec, time.Now()); len(due) != 1 {
			t.Fatal("a new endpoint is due")
		}
	})
}

// TestLateRead: a slow read that began earlier does not overwrite a newer one.
func TestLateRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		m := &w.spec.Machines[0]
		slow := &read{observer: w.o, cluster: w.c, spec: w.spec, machine: m, before: w.c.known(m)}
		slow.begin()
		time.Sleep(time.Second)
		w.look(well("a"))
		slow.unreachable(errNoBundle)
		w.c.note(slow)
		if f := w.c.facts(w.spec)["w1"]; f.Reach != plan.ReachOK {
			t.Fatalf("got %+v", f)
		}
	})
}

func TestCaughtUp(t *testing.T) {
	s := func(applied, leader uint64) sample { return sample{applied: applied, leader: leader} }
	for _, c := range []struct {
		a, b sample
		want string
	}{
		{s(1000, 1000), s(1200, 1200), "yes"},
		{s(1000, 1100), s(1100, 1200), "yes"},
		{s(1000, 1101), s(1200, 1200), "no"},
		{s(1000, 1000), s(1000, 1101), "no"},
		{s(0, 1000), s(1000, 1000), "unknown"},
		{s(1000, 0), s(1000, 1000), "unknown"},
	} {
		got := "unknown"
		if v := caughtUp(c.a, c.b, 100); v != nil {
			got = map[bool]string{true: "yes", false: "no"}[*v]
		}
		if got != c.want {
			t.Errorf("%+v, %+v: %s", c.a, c.b, got)
		}
	}
}

func TestCompare(t *testing.T) {
	base := "version: v1alpha1\nmachine:\n  type: worker\n  token: aaaaaa.bbbbbbbbbbbbbbbb\n  sysctls: {net.core.somaxconn: \"1\"}\n"
	changed := "version: v1alpha1\nmachine:\n  type: worker\n  token: cccccc.bbbbbbbbbbbbbbbb\n  sysctls: {net.core.somaxconn: \"2\"}\n"
	got, err := Compare(13, []byte(base), []byte(changed))
	if err != nil || got.Equal || got.Effect != "reboot" || len(got.Paths) != 2 {
		t.Fatalf("got %+v, %v", got, err)
	}
	if got, err = Compare(13, []byte("# a comment\n"+base), []byte(base)); err != nil || !got.Equal || got.Effect != "none" {
		t.Fatalf("comments: %+v, %v", got, err)
	}
	// What a version that is not known does is the worse of what the known ones do.
	env := "machine:\n  type: worker\n  env: {A: b}\n"
	if got, err = Compare(0, []byte("machine:\n  type: worker\n"), []byte(env)); err != nil || got.Effect != "reboot" {
		t.Fatalf("unknown version: %+v, %v", got, err)
	}
	if _, err = Compare(13, []byte("{"), []byte(base)); err == nil {
		t.Fatal("a configuration that is not YAML compares")
	}
	for version, want := range map[string]int{"v1.13.5": 13, "v1.14.0-rc.1": 14, "": 0, "dev": 0, "v2.1.0": 0} {
		if got := minorOf(version); got != want {
			t.Errorf("%s: %d", version, got)
		}
	}
}

// TestSamples: what is read before counts only for the same member, at least a second and at most ten later.
func TestSamples(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := &read{facts: plan.MachineFacts{Etcd: &plan.EtcdFact{MemberID: "m", Leader: "l"}}}
	o := New(Options{})
	index := map[string]uint64{"m": 10, "l": 12}
	wait := func() time.Duration { return o.wait([]*read{r}, now) }
	if wait() != time.Second {
		t.Fatal("the first look needs a second one")
	}
	r.remember(now, index)
	now = now.Add(300 * time.Millisecond)
	if wait() != 700*time.Millisecond {
		t.Fatalf("wait %s for the rest of the second", wait())
	}
	now = now.Add(700 * time.Millisecond)
	if wait() != 0 || r.earlier(now).applied != 10 {
		t.Fatal("a second later the first sample serves")
	}
	for range 100 {
		r.remember(now, index)
		now = now.Add(200 * time.Millisecond)
	}
	if len(r.indexes) > 21 {
		t.Fatalf("%d samples are kept", len(r.indexes))
	}
	now = now.Add(11 * time.Second)
	if wait() != time.Second {
		t.Fatal("old samples don't count")
	}
	r.remember(now, index)
	now = now.Add(2 * time.Second)
	r.facts.Etcd.MemberID = "other"
	if wait() != time.Second {
		t.Fatal("another member's samples don't count")
	}
}
