package scenarios

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ichor.maesh.dev/ichor/e2e/harness"
)

// harm is something that somebody does to the status branch.
type harm struct {
	name string
	do   func(r *rig)
	// finding is what is said of it.
	finding string
}

func (r *rig) scratch() string {
	r.Helper()
	dir, err := os.MkdirTemp(r.dir, "clone-")
	r.must(err)
	return filepath.Join(dir, "c")
}

// edit replaces a text in a file of the status branch as somebody else.
func (r *rig) edit(file, old, now string) {
	r.Helper()
	_, err := r.lab.EditBranch(r.ctx, harness.StatusBranch, r.scratch(), func(dir string) error {
		path := filepath.Join(dir, file)
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !strings.Contains(string(data), old) {
			return fmt.Errorf("%s does not hold %q", file, old)
		}
		return os.WriteFile(path, []byte(strings.Replace(string(data), old, now, 1)), 0o644)
	})
	r.must(err)
}

var harms = []harm{
	{"deleted", func(r *rig) { r.must(r.lab.DeleteBranch(r.ctx, harness.StatusBranch)) }, "StatusBranchLost"},
	{"inventory edited", func(r *rig) { r.edit("inventory.yaml", "adopted: true", "adopted: false") }, "StatusBranchTampered"},
	{"page edited", func(r *rig) { r.edit("clusters/prod/README.md", "prod", "mine") }, "StatusBranchTampered"},
}

// TestStatusBranchIsHarmed does all sorts of harm to the status branch, while ichor runs and while it doesn't: it is
// found out and said, made anew, and no node is written; the next commit is applied as ever.
func TestStatusBranchIsHarmed(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.5", ControlPlanes: 1, Workers: 1, Somaxconn: "1024"})
	before := r.writes()
	for _, running := range []bool{true, false} {
		for _, h := range harms {
			r.Logf("%s, running: %v", h.name, running)
			if !running {
				r.stop()
			}
			h.do(r)
			if !running {
				r.start()
			}
			r.repaired(h.finding)
			r.unwritten(before)
		}
	}
	r.goesOn(before)
}

// repaired waits until the branch is as it should be and the finding is said.
func (r *rig) repaired(finding string) {
	r.Helper()
	r.until("the status branch is made anew and says "+finding, func() (bool, string) {
		readme, err := r.lab.File(r.ctx, harness.StatusBranch, "README.md")
		if err != nil {
			return false, err.Error()
		}
		page, err := r.lab.File(r.ctx, harness.StatusBranch, "clusters/prod/README.md")
		if err != nil {
			return false, err.Error()
		}
		inv, err := r.lab.File(r.ctx, harness.StatusBranch, "inventory.yaml")
		if err != nil {
			return false, err.Error()
		}
		return strings.Contains(readme, finding) && strings.Contains(page, "prod") && !strings.Contains(page, "mine") &&
			strings.Contains(inv, "adopted: true"), "README: " + readme
	})
	if !strings.Contains(r.ran[len(r.ran)-1].Output(), finding) {
		r.Errorf("the log does not say %s", finding)
	}
	problem := map[string]string{"StatusBranchLost": "lost", "StatusBranchTampered": "tampered"}[finding]
	r.metric(fmt.Sprintf("ichor_status_branch_problem{kind=%q} 1", problem))
}

// goesOn pushes a change and fails unless it is applied, once on each node.
func (r *rig) goesOn(before map[string]writes) {
	r.Helper()
	r.fleet.Somaxconn = r.fleet.Somaxconn + "0"
	commit := r.push("Raise it")
	r.wait(commit, applyStatus, "success")
	for name, now := range r.writes() {
		if now.configurations == before[name].configurations || now.bootstraps != before[name].bootstraps || now.reboots != before[name].reboots {
			r.Errorf("%s took %+v, before %+v", name, now, before[name])
		}
	}
}

// TestStatusBranchIsReplaced: an unrelated history in its place is left alone, nothing is written to nodes, and it is
// said; when it is gone again, or a person acknowledges its root, all goes on.
func TestStatusBranchIsReplaced(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.6", ControlPlanes: 1, Somaxconn: "1024"})
	before := r.writes()
	root, err := r.lab.ReplaceBranch(r.ctx, harness.StatusBranch, r.scratch())
	r.must(err)
	r.until("the log says StatusBranchTampered", func() (bool, string) {
		return strings.Contains(r.ichor.Output(), "StatusBranchTampered"), "silent"
	})
	r.metric(`ichor_status_branch_problem{kind="tampered"} 1`)
	r.fleet.Somaxconn = "4096"
	commit := r.push("Raise it")
	r.wait(commit, applyStatus, "error")
	r.looks(6)
	r.unwritten(before)
	if tip := r.lab.Tip(r.ctx, harness.StatusBranch); tip != root {
		t.Errorf("the foreign branch was moved to %s", tip)
	}

	// Stopped and started on it: the same.
	r.stop()
	r.start()
	r.looks(6)
	r.unwritten(before)
	if tip := r.lab.Tip(r.ctx, harness.StatusBranch); tip != root {
		t.Errorf("the foreign branch was moved to %s after a restart", tip)
	}

	// A person takes the foreign branch away: the copy is put back, and all goes on.
	r.must(r.lab.DeleteBranch(r.ctx, harness.StatusBranch))
	r.wait(commit, applyStatus, "success")
	if now := r.writes()["cp1"]; now.configurations == before["cp1"].configurations || now.bootstraps != before["cp1"].bootstraps {
		t.Errorf("cp1 took %+v, before %+v", now, before["cp1"])
	}

	// The next one is acknowledged: Ichor goes on from it.
	before = r.writes()
	root, err = r.lab.ReplaceBranch(r.ctx, harness.StatusBranch, r.scratch())
	r.must(err)
	r.until("the log names the root", func() (bool, string) {
		return strings.Contains(r.ichor.Output(), root[:12]), "silent"
	})
	r.looks(4)
	r.unwritten(before)
	commit = r.acknowledge("root:" + root)
	r.wait(commit, applyStatus, "success")
	r.unwritten(before)
	r.until("reports are on the branch again", func() (bool, string) {
		_, err := r.lab.File(r.ctx, harness.StatusBranch, "checks/"+commit+".md")
		return err == nil, fmt.Sprint(err)
	})
	if _, err := r.lab.Git(r.ctx, r.clone(), "merge-base", "--is-ancestor", root, "HEAD"); err != nil {
		t.Errorf("the acknowledged history was thrown away: %v", err)
	}
}

// clone clones the status branch.
func (r *rig) clone() string {
	r.Helper()
	dir := r.scratch()
	r.must(r.lab.Clone(r.ctx, harness.StatusBranch, dir))
	return dir
}

// TestStateFolderIsLost: the branch is the truth, so nothing is lost.
func TestStateFolderIsLost(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.7", ControlPlanes: 1, Somaxconn: "1024"})
	before := r.writes()
	for _, crash := range []bool{false, true} {
		if crash {
			r.ichor.Kill() // the dead holder is not known to the new folder: it waits for the takeover
			r.ichor = nil
		} else {
			r.stop()
		}
		r.must(os.RemoveAll(r.stateDir()))
		r.start()
		r.looks(6)
		r.unwritten(before)
		r.goesOn(before)
		before = r.writes()
	}
}

// TestBranchAndFolderAreLost: nothing is known any more. A cluster that runs what the head says is taken up again by
// adoption; one that differs waits for a person.
func TestBranchAndFolderAreLost(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.8", ControlPlanes: 1, Somaxconn: "1024"})
	before := r.writes()
	r.stop()
	r.must(os.RemoveAll(r.stateDir()))
	r.must(r.lab.DeleteBranch(r.ctx, harness.StatusBranch))
	r.fleet.Somaxconn = "4096"
	commit := r.push("Raise it")
	r.start()
	message := r.held(commit, "AdoptionPending")
	r.wait(commit, applyStatus, "failure")
	r.looks(6)
	r.unwritten(before)
	r.acknowledge(digestIn(r, message))
	r.wait("main", applyStatus, "success")
	if now := r.writes()["cp1"]; now.configurations == before["cp1"].configurations || now.bootstraps != before["cp1"].bootstraps {
		t.Errorf("cp1 took %+v, before %+v", now, before["cp1"])
	}
}

// TestInventoryIsGone: reports are there, the inventory and its copy are not. Nothing is written until a person
// acknowledges that very loss.
func TestInventoryIsGone(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.9", ControlPlanes: 1, Somaxconn: "1024"})
	before := r.writes()
	r.stop()
	r.must(os.RemoveAll(r.stateDir()))
	_, err := r.lab.EditBranch(r.ctx, harness.StatusBranch, r.scratch(), func(dir string) error {
		return os.Remove(filepath.Join(dir, "inventory.yaml"))
	})
	r.must(err)
	r.fleet.Somaxconn = "4096"
	commit := r.push("Raise it")
	r.start()
	r.wait(commit, applyStatus, "error")
	var readme string
	r.until("the fleet's page says InventoryUnknown and what to do", func() (bool, string) {
		readme, err = r.lab.File(r.ctx, harness.StatusBranch, "README.md")
		return err == nil && strings.Contains(readme, "InventoryUnknown") && strings.Contains(readme, "inventory:"+commit), readme
	})
	r.looks(6)
	r.unwritten(before)
	r.acknowledge("inventory:" + commit)
	message := r.held("", "AdoptionPending")
	r.looks(3)
	r.unwritten(before)
	r.acknowledge(digestIn(r, message))
	r.wait("main", applyStatus, "success")
	if now := r.writes()["cp1"]; now.bootstraps != before["cp1"].bootstraps {
		t.Errorf("cp1 took %+v, before %+v", now, before["cp1"])
	}
}
