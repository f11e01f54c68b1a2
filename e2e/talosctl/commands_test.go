package talosctl

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var updateTable = flag.Bool("update", false, "write docs/lab-talosctl.md anew")

// verdict is how a command behaves at the lab, compared with a real node of v1.13.5.
type verdict string

const (
	same        verdict = "same as real"         // compared in the story with captures of a real node
	source      verdict = "as in Talos's source" // runs in the story; no capture of a real node exists
	differs     verdict = "differs"
	unsimulated verdict = "not simulated"
	client      verdict = "client only" // asks no node
)

// command is one row of the table.
type command struct {
	name    string
	verdict verdict
	note    string
}

// commands are all of talosctl v1.13.5. TestCommandTable checks that they are; the story checks that
// each which it claims to run was run, and was compared with a capture where it says so.
var commands = []command{
	{"apply-config", same, "all modes, dry runs, certificate fingerprint; 1.13's reboot rule"},
	{"bootstrap", same, "early, right, again, as a reader, at a machine in maintenance"},
	{"cgroups", source, "the groups of the services and static pods, with figures made up from them"},
	{"cluster create dev", client, "makes local clusters"},
	{"cluster create docker", client, "makes local clusters"},
	{"cluster create qemu", client, "makes local clusters"},
	{"cluster destroy", client, ""},
	{"cluster show", client, ""},
	{"completion bash", client, ""},
	{"completion fish", client, ""},
	{"completion powershell", client, ""},
	{"completion zsh", client, ""},
	{"config add", client, ""},
	{"config context", client, ""},
	{"config contexts", client, ""},
	{"config endpoint", client, ""},
	{"config info", client, ""},
	{"config merge", client, ""},
	{"config new", same, "the certificate is signed by the node's machine CA and works, with its roles"},
	{"config node", client, ""},
	{"config remove", client, ""},
	{"conformance kubernetes", unsimulated, "runs pods"},
	{"containers", source, "the system's; with `-k` the static pods. Pods of a lab with Kubernetes are not listed"},
	{"copy", source, "of the simulated file tree; /var/lib/etcd and /system/state are the machine's own"},
	{"dashboard", differs, "needs a terminal; the calls that it makes are answered"},
	{"debug", differs, "pulls the image and asks for the container, which the lab can't run: it says so"},
	{"dmesg", differs, "a short kernel banner, then what machined writes of sequences, phases, tasks, services"},
	{"edit", differs, "needs an editor; the same calls as patch"},
	{"etcd alarm disarm", source, ""},
	{"etcd alarm list", source, ""},
	{"etcd defrag", source, ""},
	{"etcd downgrade cancel", source, ""},
	{"etcd downgrade enable", source, ""},
	{"etcd downgrade validate", source, ""},
	{"etcd forfeit-leadership", source, ""},
	{"etcd leave", source, ""},
	{"etcd members", same, "also over several nodes with one that is away"},
	{"etcd remove-member", source, ""},
	{"etcd snapshot", source, "the member's own database"},
	{"etcd status", same, ""},
	{"events", source, ""},
	{"gen ca", client, ""},
	{"gen config", client, ""},
	{"gen crt", client, ""},
	{"gen csr", client, ""},
	{"gen key", client, ""},
	{"gen keypair", client, ""},
	{"gen secrets", client, ""},
	{"gen secureboot database", client, ""},
	{"gen secureboot pcr", client, ""},
	{"gen secureboot uki", client, ""},
	{"get", same, "all types are registered; contents of some 110 types"},
	{"health", differs, "as real up to Kubernetes; without Kubernetes in the lab it ends there and says so (`--server=false`: the client asks for the API server and fails)"},
	{"image cache-cert-gen", client, ""},
	{"image cache-create", client, ""},
	{"image cache-serve", client, ""},
	{"image k8s-bundle", client, ""},
	{"image list", source, ""},
	{"image pull", source, "from simulated registries"},
	{"image remove", source, ""},
	{"image talos-bundle", client, ""},
	{"inject serviceaccount", client, ""},
	{"inspect dependencies", differs, "the controllers that own the node's resources, with the inputs of a few; a real node has some 150 controllers"},
	{"kubeconfig", source, "an admin's, signed by the cluster's Kubernetes CA; works with Kubernetes in the lab"},
	{"list", source, "of the simulated file tree"},
	{"logs", differs, "etcd's is the member's own; the others are written from the node's events. Pods have none"},
	{"machineconfig gen", client, ""},
	{"machineconfig patch", client, ""},
	{"memory", source, "figures of a machine of 4 GiB that follow what runs"},
	{"meta delete", source, ""},
	{"meta write", source, "kept in META, over reboots"},
	{"mounts", source, ""},
	{"netstat", source, "the services' sockets; none of pods' namespaces"},
	{"patch", source, ""},
	{"pcap", differs, "knows the interfaces, then is refused a raw socket (`operation not permitted`)"},
	{"processes", source, "the services' and static pods'"},
	{"read", source, "of the simulated file tree"},
	{"reboot", source, ""},
	{"reset", same, "the call; what follows is tested in e2e/lab"},
	{"restart", source, ""},
	{"rollback", source, ""},
	{"rotate-ca", differs, "needs Kubernetes for its second half"},
	{"service", same, ""},
	{"shutdown", source, ""},
	{"stats", source, ""},
	{"support", source, ""},
	{"time", differs, "no NTP server is asked: its time is the right one, the node's is the node's clock"},
	{"upgrade", source, "with `--drain=false`, or Kubernetes in the lab"},
	{"upgrade-k8s", differs, "needs Kubernetes in the lab, and pods that it does not run"},
	{"usage", source, "of the simulated file tree"},
	{"validate", client, ""},
	{"version", same, ""},
	{"wipe disk", source, "refusals as real; a disk that may be wiped has nothing on it"},
}

// commandOf finds the command that arguments call, "" for none.
func commandOf(args []string) string {
	alias := map[string]string{"services": "service", "cp": "copy", "ls": "list", "du": "usage", "ps": "processes", "c": "containers"}
	best := ""
	words := slices.Clone(args)
	if a, ok := alias[words[0]]; ok {
		words[0] = a
	}
	for _, c := range commands {
		parts := strings.Fields(c.name)
		if len(words) >= len(parts) && slices.Equal(words[:len(parts)], parts) && len(c.name) > len(best) {
			best = c.name
		}
	}
	return best
}

// note records that the story ran a command, with or without a capture to compare with.
func (s *story) note(kind verdict, args []string) {
	name := commandOf(args)
	if name == "" {
		s.t.Errorf("talosctl %v is no command of the table", args)
		return
	}
	if s.used[name] == nil {
		s.used[name] = map[verdict]int{}
	}
	s.used[name][kind]++
}

// checkTable wants every command that the table says the story runs to have been run.
func (s *story) checkTable() {
	s.t.Helper()
	total := 0
	for _, c := range commands {
		u := s.used[c.name]
		total += u[same] + u[source]
		switch {
		case c.verdict == same && u[same] == 0:
			s.t.Errorf("the table says that %q is as real, but the story compares it with no capture", c.name)
		case c.verdict == source && u[same]+u[source] == 0:
			s.t.Errorf("the table says that %q works, but the story never runs it", c.name)
		}
	}
	for _, name := range compared {
		if !s.compared[name] {
			s.t.Errorf("capture %s is compared with nothing", name)
		}
	}
	s.t.Logf("the story ran %d commands, %d of them compared with captures of real nodes", total, len(s.compared))
	if total < 60 {
		s.t.Errorf("the story has %d commands, want at least 60", total)
	}
}

// TestCommandTable checks that the table has exactly the client's commands, and that the page shows it.
func TestCommandTable(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), binary(t), "docs", dir, "--cli").CombinedOutput(); err != nil {
		t.Fatalf("list the client's commands: %v: %s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	var real []string
	for _, m := range regexp.MustCompile(`(?m)^## talosctl (\S.*)$`).FindAllStringSubmatch(string(text), -1) {
		if !slices.Contains(real, m[1]) {
			real = append(real, m[1])
		}
	}
	var leaves, have []string
	for _, name := range real {
		if !slices.ContainsFunc(real, func(o string) bool { return strings.HasPrefix(o, name+" ") }) {
			leaves = append(leaves, name)
		}
	}
	for _, c := range commands {
		have = append(have, c.name)
	}
	slices.Sort(leaves)
	if !slices.Equal(leaves, have) {
		t.Errorf("the table's commands are not the client's:\n client %q\n table  %q", leaves, have)
	}
	checkPage(t)
}

const page = "../../docs/lab-talosctl.md"

func checkPage(t *testing.T) {
	t.Helper()
	var b strings.Builder
	b.WriteString(`# talosctl at the lab

Every command of talosctl v1.13.5 and how it behaves at a node of the lab that runs Talos v1.13.5. *Same as real*: the
story in ` + "`e2e/talosctl`" + ` compares its output, with what varies masked, and its exit code with captures of real nodes.
*As in Talos's source*: the story runs it; its texts and codes are those of Talos's source, and no capture exists. Where a
row says *differs*, the rest is as real. This page is written from the table in ` + "`e2e/talosctl/commands_test.go`" + ` by
` + "`go test ./e2e/talosctl -run TestCommandTable -args -update`" + `, and a test keeps the two together.

| command | at the lab | remarks |
| --- | --- | --- |
`)
	for _, c := range commands {
		b.WriteString("| `" + c.name + "` | " + string(c.verdict) + " | " + c.note + " |\n")
	}
	if *updateTable {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil || string(got) != b.String() {
		t.Errorf("docs/lab-talosctl.md is not what the table says; write it with -args -update (%v)", err)
	}
}
