package plan

// index keeps what would else be looked for once per machine, so that a decision costs the same per machine whatever
// the size of the cluster.
type index struct {
	// nodeIDs and goneUUIDs are pinned identities: of every machine, and of those that are gone from the head.
	nodeIDs, goneUUIDs map[string][]*machine
	// wantUUIDs are the machines of the head by UUID.
	wantUUIDs map[string][]*machine
	// failed are the approved machines whose wish has failed.
	failed []*machine
	// toolDigest and workers are counted when they are first needed.
	toolDigest string
	workers    *workerTally
}

func newIndex(w *world) index {
	x := index{nodeIDs: map[string][]*machine{}, goneUUIDs: map[string][]*machine{}, wantUUIDs: map[string][]*machine{}}
	for _, m := range w.ms {
		if m.inv != nil && m.inv.Identity.NodeID != "" {
			x.nodeIDs[m.inv.Identity.NodeID] = append(x.nodeIDs[m.inv.Identity.NodeID], m)
			if m.want == nil {
				x.goneUUIDs[m.inv.Identity.UUID] = append(x.goneUUIDs[m.inv.Identity.UUID], m)
			}
		}
		if m.want != nil && m.want.UUID != "" {
			x.wantUUIDs[m.want.UUID] = append(x.wantUUIDs[m.want.UUID], m)
		}
		if m.approved() && m.failed() {
			x.failed = append(x.failed, m)
		}
	}
	return x
}

// other is the first machine of a list that is not m, nil none.
func other(list []*machine, m *machine) *machine {
	for _, o := range list {
		if o != m {
			return o
		}
	}
	return nil
}

// workerTally counts the workers that are being changed (busy), those that were begun and wait for the next act, and
// those that are not available (lost).
type workerTally struct {
	busy, begun, lost int
	// of a machine: its part in the sums.
	of map[*machine]workerState
}

type workerState int

const (
	workerFree workerState = iota
	workerIsBusy
	workerIsBegun
	workerIsLost
)

// tally counts once per decision; acts keeps it true.
func (w *world) tally() *workerTally {
	if w.index.workers != nil {
		return w.index.workers
	}
	t := &workerTally{of: make(map[*machine]workerState, len(w.workers))}
	for _, m := range w.workers {
		switch {
		case w.workerBusy(m):
			t.of[m] = workerIsBusy
			t.busy++
		case w.begun(m):
			t.of[m] = workerIsBegun
			t.begun++
		case w.workerDown(m):
			t.of[m] = workerIsLost
			t.lost++
		default:
			t.of[m] = workerFree
		}
	}
	w.index.workers = t
	return t
}

// without gives the sums without one machine. Those that were begun count as being changed for one that was not; among
// themselves they would wait for each other for ever.
func (t *workerTally) without(m *machine) (busy, lost int) {
	busy, lost = t.busy+t.begun, t.lost
	switch t.of[m] {
	case workerIsBusy:
		busy--
	case workerIsBegun:
		busy = t.busy
	case workerIsLost:
		lost--
	}
	return busy, lost
}

// acts makes a worker one that is being changed.
func (t *workerTally) acts(m *machine) {
	was, ok := t.of[m]
	if !ok || was == workerIsBusy {
		return
	}
	switch was {
	case workerIsLost:
		t.lost--
	case workerIsBegun:
		t.begun--
	}
	t.of[m] = workerIsBusy
	t.busy++
}
