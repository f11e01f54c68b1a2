package scenarios

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"ichor.maesh.dev/ichor/e2e/harness"
)

// TestSignaturesAreRequired: a head that is not signed by an allowed key turns red and is not applied, the last good commit
// stays in force; a signed one on top of it is applied; and a key that is allowed later counts without a restart.
func TestSignaturesAreRequired(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Fatal("ssh-keygen is not installed: hack/deps.sh")
	}
	r := newRig(t, harness.Fleet{Net: "127.20.43", ControlPlanes: 1, Somaxconn: "1024"}, true)
	r.start()
	r.wait("main", applyStatus, "success")
	r.stop()
	key := func(name string) (file, line string) {
		t.Helper()
		file = filepath.Join(r.dir, name)
		if out, err := exec.CommandContext(r.ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", file).CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		b, err := os.ReadFile(file + ".pub")
		r.must(err)
		return file, name + "@example.org " + strings.TrimSpace(string(b)) + "\n"
	}
	ann, annLine := key("ann")
	bob, bobLine := key("bob")
	allowed := filepath.Join(r.dir, "allowed_signers")
	r.must(os.WriteFile(allowed, []byte(annLine), 0o600))
	clone := filepath.Join(r.dir, "clone")
	r.must(r.lab.Clone(r.ctx, "main", clone))
	commit := func(somaxconn, signer string) string {
		t.Helper()
		f := r.fleet
		f.Dir, f.Somaxconn = clone, somaxconn
		r.must(f.Write())
		_, err := r.lab.Git(r.ctx, clone, "add", "-A")
		r.must(err)
		args := []string{"commit", "-q", "-m", "somaxconn " + somaxconn}
		if signer != "" {
			args = append([]string{"-c", "gpg.format=ssh", "-c", "user.signingkey=" + signer}, append(args, "-S")...)
		}
		_, err = r.lab.Git(r.ctx, clone, args...)
		r.must(err)
		_, err = r.lab.Git(r.ctx, clone, "push", "-q", "origin", "HEAD:main")
		r.must(err)
		sha, err := r.lab.Git(r.ctx, clone, "rev-parse", "HEAD")
		r.must(err)
		return sha
	}
	signed := commit("2048", ann)
	r.start("--signatures-mode", "require", "--signatures-allowed-signers-file", allowed)
	r.wait(signed, checkStatus, "success")
	r.wait(signed, applyStatus, "success")

	before := r.writes()
	unsigned := commit("3072", "")
	r.wait(unsigned, checkStatus, "failure")
	r.looks(3)
	r.unwritten(before)
	if s, ok := r.lab.StatusOf(r.ctx, unsigned, applyStatus); ok && s.State == "success" {
		t.Errorf("an unsigned commit is said to be applied: %+v", s)
	}
	text, err := r.lab.File(r.ctx, harness.StatusBranch, "checks/"+unsigned+".md")
	r.must(err)
	if !strings.Contains(text, "it is not signed") || !strings.Contains(text, "allowedSignersFile") {
		t.Errorf("the report says\n%s", text)
	}

	stranger := commit("4096", bob)
	r.wait(stranger, checkStatus, "failure")
	r.looks(2)
	r.unwritten(before)
	r.must(os.WriteFile(allowed, []byte(annLine+bobLine), 0o600))
	r.wait(stranger, checkStatus, "success")
	r.wait(stranger, applyStatus, "success")
	if now := r.writes(); now["cp1"] == before["cp1"] {
		t.Error("the commit of the allowed key was not applied")
	}
}
