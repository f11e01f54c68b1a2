package forge_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/e2e/lab/forge"
	"ichor.maesh.dev/ichor/schemas/secret"
	"ichor.maesh.dev/ichor/schemas/state"
	contract "ichor.maesh.dev/ichor/sync/forge"
	"ichor.maesh.dev/ichor/sync/forge/forgetest"
	"ichor.maesh.dev/ichor/sync/forge/github"
)

// ichor is Ichor's own client of the forge.
func ichor(t *testing.T, f *forge.Forge) *github.Client {
	t.Helper()
	c, err := github.New(github.Options{WebURL: f.URL(), Repository: "acme/fleet", Token: secret.FromString(token), Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestConformance runs the suite that Ichor's forges must pass on Ichor's client and this forge.
func TestConformance(t *testing.T) {
	forgetest.Run(t, func(t *testing.T) forgetest.Fixture {
		f := open(t, t.TempDir())
		push(t, f, "main", map[string]string{"a": "0"})
		push(t, f, "release", map[string]string{"a": "0"})
		n := 0
		return forgetest.Fixture{
			Forge: ichor(t, f),
			Commit: func() string {
				n++
				return push(t, f, fmt.Sprintf("c%d", n), map[string]string{"a": fmt.Sprint(n)})
			},
			Open: func(p forgetest.Pull) int {
				n++
				branch, owner := fmt.Sprintf("pull%d", n), fmt.Sprintf("owner%d", n)
				var err error
				if p.Fork {
					err = f.Fork(owner)
					mustGit(t, f.GitDir(), "push", strings.Replace(withToken(f, token), "/acme/", "/"+owner+"/", 1), p.Head+":refs/heads/"+branch)
					branch = owner + ":" + branch
				} else {
					err = f.SetBranch(t.Context(), branch, p.Head)
				}
				title := p.Title
				if title == "" {
					title = branch
				}
				number, openErr := f.OpenPull(forge.OpenOptions{Branch: branch, Base: p.Base, Title: title, Draft: p.Draft})
				if err = errors.Join(err, openErr); err == nil && p.Deleted {
					err = f.DeleteFork(owner)
				}
				if err != nil {
					t.Fatal(err)
				}
				return number
			},
			Close: func(n int) {
				if err := f.ClosePR(n); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

// TestIchorMeetsFaults: what Ichor's client makes of the faults that the lab plays.
func TestIchorMeetsFaults(t *testing.T) {
	f := open(t, t.TempDir())
	sha := push(t, f, "main", map[string]string{"a": "0"})
	good := state.CommitStatus{Context: "ichor/check", State: state.StateSuccess, Description: "fine"}
	kinds := map[contract.Kind]bool{}
	for _, x := range []forge.Fault{
		{Kind: forge.FaultStatus},
		{Kind: forge.FaultTooMany, RetryAfter: time.Second},
		{Kind: forge.FaultSecondaryLimit, RetryAfter: time.Second},
		{Kind: forge.FaultPrimaryLimit, RetryAfter: time.Second},
		{Kind: forge.FaultLostReply},
	} {
		x.Endpoint, x.Count = "statuses.create", 1
		if err := f.Fault(x); err != nil {
			t.Fatal(err)
		}
		err := ichor(t, f).PostStatus(t.Context(), sha, good)
		if err == nil {
			t.Fatalf("%s: no error", x.Kind)
		}
		kinds[contract.KindOf(err)] = true
		f.ClearFaults()
	}
	if len(kinds) < 2 {
		t.Errorf("limits and outages look the same: %v", kinds)
	}
	got, err := ichor(t, f).Statuses(t.Context(), sha)
	if err != nil || len(got) != 1 || got[0] != good {
		t.Fatalf("the status whose reply was lost: %v %v", got, err)
	}
	if n := len(f.Statuses(sha)); n != 1 {
		t.Fatalf("%d statuses were taken, want the one whose reply was lost", n)
	}
}
