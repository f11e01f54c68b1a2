package bundle_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"

	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
)

// TestSopsCommand holds Encrypt, Open and Keys.Open against the sops command itself, a tool of the module in the version
// of the library.
func TestSopsCommand(t *testing.T) {
	// Builds it once, into Go's build cache.
	path, err := exec.Command("go", "tool", "-n", "sops").Output()
	if err != nil {
		t.Fatal("build the sops command: ", err)
	}
	sops := strings.TrimSpace(string(path))
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	keys, err := bundle.ParseKeys([]byte(id.String()))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(args ...string) []byte {
		t.Helper()
		cmd := exec.Command(sops, args...)
		cmd.Dir, cmd.Env = dir, []string{"SOPS_AGE_KEY=" + id.String(), "HOME=" + dir, "PATH=/nonexistent"}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("sops %v: %v\n%s", args, err, stderr.String())
		}
		return out
	}
	b, plain, ours := sealed(t, keys)
	for name, data := range map[string][]byte{"plain.yaml": plain, "ours.yaml": ours} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	theirs := run("encrypt", "--age", id.Recipient().String(), "plain.yaml")
	opened, err := bundle.Open(theirs, "theirs.yaml", keys)
	if err != nil || opened.Fingerprint([]byte("k")) != b.Fingerprint([]byte("k")) {
		t.Error("sops encrypt, then Open:", err)
	}
	if back := run("decrypt", "ours.yaml"); !bytes.Equal(bytes.TrimSpace(back), bytes.TrimSpace(plain)) {
		// The command may indent otherwise; the content decides.
		if again, err := bundle.Encrypt(back, "x", keys.Recipients(), ""); err != nil {
			t.Error(err)
		} else if o, err := bundle.Open(again, "x", keys); err != nil || o.Fingerprint([]byte("k")) != b.Fingerprint([]byte("k")) {
			t.Error("Encrypt, then sops decrypt:", err)
		}
	}
	multi := "kind: A\nspec:\n  # note\n  documents:\n    # first\n    - machine: {token: secret-a, n: 3}\n    - other: secret-b\n---\nkind: B\nspec: {token: secret-c}\n"
	if err := os.WriteFile(filepath.Join(dir, "multi.yaml"), []byte(multi), 0o600); err != nil {
		t.Fatal(err)
	}
	rule := "creation_rules:\n  - age: " + id.Recipient().String() + "\n    encrypted_regex: ^(token|other|n)$\n    mac_only_encrypted: true\n"
	if err := os.WriteFile(filepath.Join(dir, "mac.yaml"), []byte(rule), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, extra := range [][]string{{}, {"--encrypted-regex", "^(token|other|n)$"}, {"--config", "mac.yaml"}} {
		args := append([]string{"encrypt", "--age", id.Recipient().String()}, extra...)
		if len(extra) > 0 && extra[0] == "--config" {
			args = append(extra, "encrypt") // a global flag; the rule names the recipient
		}
		out := run(append(args, "multi.yaml")...)
		values, err := keys.Open(&fleet.File{Path: "multi.yaml", Data: out})
		if err != nil {
			t.Fatalf("%v: %v\n%s", extra, err, out)
		}
		at := 0
		if len(extra) == 0 {
			at = 1 // the encrypted comment is the list's first element
		}
		first := "spec.documents[" + string(rune('0'+at)) + "].machine.token"
		if string(values[0][first].Reveal()) != "secret-a" || string(values[1]["spec.token"].Reveal()) != "secret-c" {
			t.Errorf("%v: %s", extra, out)
		}
	}
}
