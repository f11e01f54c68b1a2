package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/e2e/harness"
	"ichor.maesh.dev/ichor/e2e/lab/cli"
)

// story is the state of the demo.
type story struct {
	ctx      context.Context
	bin, dir string
	begun    time.Time
	chapter  int

	fleet  harness.Fleet
	lab    *harness.Lab
	labRun *harness.Process
	ichor  *harness.Process
	writer *harness.Writer
}

const metricsAddr = "127.10.77.1:9464"

// title begins a chapter.
func (s *story) title(format string, args ...any) {
	s.chapter++
	fmt.Printf("\n\033[1m%d. %s\033[0m  \033[2m[%ds]\033[0m\n", s.chapter, fmt.Sprintf(format, args...), int(time.Since(s.begun).Seconds()))
}

func (s *story) say(format string, args ...any) { fmt.Printf("   "+format+"\n", args...) }

// command shows what a person would type for what happens next.
func (s *story) command(format string, args ...any) {
	fmt.Printf("   \033[36m$ %s\033[0m\n", fmt.Sprintf(format, args...))
}

// quote shows somebody else's words.
func (s *story) quote(text string, max int) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, line := range lines {
		if i == max {
			fmt.Printf("   \033[2m│ … %d more lines\033[0m\n", len(lines)-max)
			break
		}
		fmt.Printf("   \033[2m│\033[0m %s\n", line)
	}
}

func (s *story) status(ref, context, state string) error {
	limited, cancel := contextFor(s.ctx, 90*time.Second)
	defer cancel()
	st, err := s.lab.WaitStatus(limited, ref, context, state)
	if err != nil {
		return err
	}
	mark := map[string]string{"success": "✔", "failure": "✘", "error": "!", "pending": "…"}[st.State]
	s.say("%s %s: %s — %s", mark, context, st.State, st.Description)
	return nil
}

func contextFor(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

func (s *story) startLab() error {
	s.title("A repository, and four simulated Talos machines that wait in maintenance mode")
	s.fleet = harness.Fleet{
		Dir: filepath.Join(s.dir, "fleet"), Net: "127.10.77", ControlPlanes: 3, Workers: 1, Somaxconn: "1024",
		Settle: "1s", Interval: "1s", Grace: "2s",
	}
	if err := s.fleet.Write(); err != nil {
		return err
	}
	s.command("ichor-lab up --repo fleet --make-secrets")
	state := filepath.Join(s.dir, "lab")
	var err error
	s.labRun, err = harness.Start(filepath.Join(s.bin, "ichor-lab"), nil, nil, "up", "--repo", s.fleet.Dir, "--state", state,
		"--make-secrets")
	if err != nil {
		return err
	}
	if s.lab, err = harness.AttachLab(s.ctx, s.fleet.Dir, state); err != nil {
		return fmt.Errorf("%w\n%s", err, s.labRun.Output())
	}
	limited, cancel := contextFor(s.ctx, 30*time.Second)
	defer cancel()
	if err := harness.Wait(limited, func() bool { return s.allIn(limited, "maintenance") }); err != nil {
		return fmt.Errorf("wait for the machines to start: %w", err)
	}
	s.say("prod/: one TalosCluster, four TalosMachines, a patch, and the Talos secrets encrypted with SOPS")
	return s.nodes()
}

// allIn tells whether every node is in a stage.
func (s *story) allIn(ctx context.Context, stage string) bool {
	nodes, err := s.lab.Nodes(ctx)
	for _, n := range nodes {
		if n.Stage != stage {
			return false
		}
	}
	return err == nil && len(nodes) > 0
}

func (s *story) nodes() error {
	nodes, err := s.lab.Nodes(s.ctx)
	if err != nil {
		return err
	}
	var parts []string
	for _, n := range nodes {
		parts = append(parts, fmt.Sprintf("%s (%s) %s", n.Name, n.Address, n.Stage))
	}
	s.say("%s", strings.Join(parts, ", "))
	return nil
}

func (s *story) startIchor() error {
	s.title("Ichor watches the repository and checks its first commit")
	s.command(". lab/env && ichor run --metrics-listen %s …", metricsAddr)
	args := append([]string{"run", "--metrics-listen", metricsAddr}, harness.FastFlags()...)
	var err error
	s.ichor, err = harness.Start(filepath.Join(s.bin, "ichor"), s.lab.Env, nil, args...)
	if err != nil {
		return err
	}
	return s.status("main", "ichor/check", "success")
}

func (s *story) bringUp() error {
	s.title("It brings the machines up: installs, bootstraps etcd once, lets the others join one by one")
	if err := s.status("main", "ichor/apply/prod", "success"); err != nil {
		return err
	}
	if err := s.status("main", "ichor/nodes/prod", "success"); err != nil {
		return err
	}
	for _, a := range s.acts("") {
		s.say("· %s", a)
	}
	return s.nodes()
}

// acts reads Ichor's audit log: the acts on nodes that were announced for a commit ("" all).
func (s *story) acts(commit string) []string {
	data, err := os.ReadFile(filepath.Join(s.lab.Value("ICHOR_STATE_DIR"), "audit.log"))
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		var e struct{ Act, Machine, Send, Outcome, Commit string }
		if json.Unmarshal([]byte(line), &e) != nil || e.Outcome != "done" || (commit != "" && e.Commit != commit) {
			continue
		}
		out = append(out, strings.TrimSpace(e.Act+" "+e.Machine+" "+sendNote(e.Send)))
	}
	return out
}

func sendNote(send string) string {
	switch send {
	case "staged":
		return "(staged: it comes into force with the reboot)"
	case "try":
		return "(on trial: the node takes it back by itself if it cuts Ichor off)"
	}
	return ""
}

func (s *story) writeAllTheTime() error {
	s.title("From now on a client writes to etcd every 20 ms and counts what fails")
	b, err := s.lab.Bundle("prod")
	if err != nil {
		return err
	}
	s.writer, err = harness.StartWriter(b, []string{
		"https://127.10.77.11:2379", "https://127.10.77.12:2379", "https://127.10.77.13:2379",
	})
	return err
}

// pullRequest opens one with the fleet's files and those given.
func (s *story) pullRequest(branch, title string, f harness.Fleet) (cli.PullResult, error) {
	f.Dir = filepath.Join(s.dir, branch)
	if err := os.CopyFS(f.Dir, os.DirFS(s.fleet.Dir)); err != nil {
		return cli.PullResult{}, err
	}
	if err := f.Write(); err != nil {
		return cli.PullResult{}, err
	}
	s.command("ichor-lab pr open --branch %s --dir %s --title %q", branch, branch, title)
	return s.lab.Pull(s.ctx, cli.PullRequest{Act: "open", Branch: branch, Title: title, Dir: f.Dir, Message: title, Author: "you"})
}

func (s *story) brokenPullRequest() error {
	s.title("A pull request that can't render: a field that Talos does not know")
	f := s.fleet
	f.Extra = map[string]string{"prod/broken.yaml": `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosConfigPatch
metadata:
  name: more-files
spec:
  clusterRef:
    name: prod
  documents:
    - machine:
        sysctl:
          fs.file-max: "100000"
`}
	pr, err := s.pullRequest("broken", "Raise fs.file-max", f)
	if err != nil {
		return err
	}
	if err := s.status(pr.Commit, "ichor/check", "failure"); err != nil {
		return err
	}
	s.say("the report behind it, on the branch ichor/status:")
	page, err := s.lab.StatusFile(s.ctx, "checks/"+pr.Commit+".md")
	if err != nil {
		return err
	}
	if !strings.Contains(page, "broken.yaml") {
		return errors.New("the report does not name the file")
	}
	s.quote(page, 12)
	return nil
}

func (s *story) backupInside() error {
	s.title("A pull request with a backup store inside the cluster that it backs up")
	f := s.fleet
	f.Extra = map[string]string{"prod/backup.yaml": `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosEtcdBackup
metadata:
  name: nightly
spec:
  clusterRef:
    name: prod
  schedule: "15 3 * * *"
  s3:
    endpoint: http://minio.backup.svc.cluster.local:9000
    bucket: etcd
    credentialsRef:
      path: ./secrets.sops.yaml
`}
	pr, err := s.pullRequest("backup", "Back etcd up", f)
	if err != nil {
		return err
	}
	return s.status(pr.Commit, "ichor/check", "failure")
}

func (s *story) goodChange() error {
	s.title("A good change: udev rules, which Talos needs a reboot for, on every machine")
	f := s.fleet
	f.Somaxconn = "4096"
	f.Extra = map[string]string{"prod/udev.yaml": `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosConfigPatch
metadata:
  name: udev
spec:
  clusterRef:
    name: prod
  documents:
    - machine:
        udev:
          rules:
            - SUBSYSTEM=="drm", KERNEL=="renderD*", GROUP="44", MODE="0660"
`}
	pr, err := s.pullRequest("udev", "Let containers use the GPU", f)
	if err != nil {
		return err
	}
	if err := s.status(pr.Commit, "ichor/check", "success"); err != nil {
		return err
	}
	page, err := s.lab.StatusFile(s.ctx, "checks/"+pr.Commit+".md")
	if err != nil {
		return err
	}
	s.quote(page, 24)
	s.command("ichor-lab pr merge %d", pr.Number)
	merged, err := s.lab.Pull(s.ctx, cli.PullRequest{Act: "merge", Number: pr.Number, Author: "you"})
	if err != nil {
		return err
	}
	if err := s.status(merged.Commit, "ichor/apply/prod", "success"); err != nil {
		return err
	}
	acts := s.acts(merged.Commit)
	for _, a := range acts {
		s.say("· %s", a)
	}
	counts := s.writer.Counts()
	s.say("the client that writes to etcd: %s", counts)
	if counts.Failed > 0 {
		return fmt.Errorf("%d writes to etcd failed during the rollout: %s", counts.Failed, counts.LastError)
	}
	reboots := 0
	for _, a := range acts {
		if strings.HasPrefix(a, "reboot cp") {
			reboots++
		}
	}
	if reboots != 3 {
		return fmt.Errorf("%d control planes were rebooted, want 3", reboots)
	}
	return nil
}

func (s *story) cutOff() error {
	s.title("The worker is cut off, and comes back")
	s.command("ichor-lab node cut w1")
	if err := s.lab.Node(s.ctx, cli.NodeAct{Act: "cut", Name: "w1"}); err != nil {
		return err
	}
	if err := s.status("main", "ichor/nodes/prod", "failure"); err != nil {
		return err
	}
	if err := s.metric(`ichor_node_reachable{cluster="prod",machine="w1"} 0`); err != nil {
		return err
	}
	s.command("ichor-lab node heal w1")
	if err := s.lab.Node(s.ctx, cli.NodeAct{Act: "heal", Name: "w1"}); err != nil {
		return err
	}
	if err := s.status("main", "ichor/nodes/prod", "success"); err != nil {
		return err
	}
	return s.metric(`ichor_node_reachable{cluster="prod",machine="w1"} 1`)
}

// metric waits for a line of /metrics.
func (s *story) metric(line string) error {
	limited, cancel := contextFor(s.ctx, 20*time.Second)
	defer cancel()
	err := harness.Wait(limited, func() bool {
		resp, err := http.Get("http://" + metricsAddr + "/metrics")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return err == nil && strings.Contains(string(body), "\n"+line+"\n")
	})
	if err != nil {
		return fmt.Errorf("wait for the metric %s: %w", line, err)
	}
	s.say("%s", line)
	return nil
}

func (s *story) finish() error {
	counts := s.writer.Stop()
	s.writer = nil
	s.title("Done in %d s", int(time.Since(s.begun).Seconds()))
	s.say("etcd, all the time: %s", counts)
	if counts.Failed > 0 {
		return fmt.Errorf("%d writes to etcd failed: %s", counts.Failed, counts.LastError)
	}
	s.say("the files are in %s: fleet/ (the repository), lab/ (nodes, forge), lab/ichor/ (Ichor's state, audit.log)", s.dir)
	s.say("look around: bin/ichor-lab up --repo %s/fleet --state %s/lab, then the branch ichor/status at %s", s.dir, s.dir,
		s.lab.Value("ICHOR_FORGE_URL")+"/lab/fleet")
	return nil
}

// explain shows the end of Ichor's log when the story stopped.
func (s *story) explain() {
	if s.ichor == nil {
		return
	}
	lines := strings.Split(strings.TrimSpace(s.ichor.Output()), "\n")
	fmt.Fprintln(os.Stderr, "\nThe end of Ichor's log:")
	for _, line := range lines[max(0, len(lines)-25):] {
		fmt.Fprintln(os.Stderr, "  "+line)
	}
}

// end stops what runs.
func (s *story) end() {
	if s.writer != nil {
		s.writer.Stop()
	}
	if s.ichor != nil {
		if err := s.ichor.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop ichor:", err)
		}
	}
	if s.labRun != nil {
		if err := s.labRun.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the lab:", err)
		}
	}
}
