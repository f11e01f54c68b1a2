package git_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/sync/git/gittest"
)

// signing is a repository whose commits are signed by real tools.
type signing struct {
	t    *testing.T
	s    *gittest.Server
	m    *git.Mirror
	dir  string
	home string
}

func startSigning(t *testing.T) *signing {
	t.Helper()
	for _, tool := range []string{"ssh-keygen", "gpg"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s is not installed: hack/deps.sh", tool)
		}
	}
	// The agent's socket must have a short path.
	home, err := os.MkdirTemp("", "gpg")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("GNUPGHOME", home)
	k := &signing{t: t, s: gittest.Start(t), dir: t.TempDir(), home: home}
	t.Cleanup(func() {
		_ = exec.Command("gpgconf", "--kill", "all").Run()
		_ = os.RemoveAll(home)
	})
	k.m, err = git.Open(t.Context(), git.Options{Dir: t.TempDir(), URL: k.s.URL, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.m.Close() })
	return k
}

func (k *signing) run(name string, args ...string) string {
	k.t.Helper()
	out, err := exec.CommandContext(k.t.Context(), name, args...).CombinedOutput()
	if err != nil {
		k.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// sshKey makes a key and gives the paths of both halves, and the public one.
func (k *signing) sshKey(name string, args ...string) (file, public string) {
	k.t.Helper()
	file = filepath.Join(k.dir, name)
	k.run("ssh-keygen", append([]string{"-q", "-N", "", "-C", name, "-f", file}, args...)...)
	b, err := os.ReadFile(file + ".pub")
	if err != nil {
		k.t.Fatal(err)
	}
	return file, strings.TrimSpace(string(b))
}

// pgpKey makes a key and gives its armored public half.
func (k *signing) pgpKey(id, algorithm, expires string) string {
	k.t.Helper()
	k.run("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", id, algorithm, "sign", expires)
	return k.run("gpg", "--armor", "--export", id)
}

// commit makes and fetches a commit with options of git and of git commit.
func (k *signing) commit(name string, config []string, flags ...string) string {
	k.t.Helper()
	k.s.Write("file", name)
	k.s.WorkGit("add", "-A")
	var args []string
	for _, c := range config {
		args = append(args, "-c", c)
	}
	k.s.WorkGit(append(append(args, "commit", "--quiet", "-m", name), flags...)...)
	return k.pushed()
}

func (k *signing) pushed() string {
	k.t.Helper()
	k.s.Push("refs/heads/main", "--force")
	if _, err := k.m.FetchBranch(k.t.Context(), "main"); err != nil {
		k.t.Fatal(err)
	}
	return k.s.WorkGit("rev-parse", "HEAD")
}

func (k *signing) withSSH(name, file string, flags ...string) string {
	k.t.Helper()
	return k.commit(name, []string{"gpg.format=ssh", "user.signingkey=" + file}, append([]string{"-S"}, flags...)...)
}

func (k *signing) file(name, content string) string {
	k.t.Helper()
	p := filepath.Join(k.dir, name)
	if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
		k.t.Fatal(err)
	}
	return p
}

// verdict is "good <signer>" or the problem.
func (k *signing) verdict(sha string, by *git.Signers) string {
	k.t.Helper()
	v, err := k.m.Signature(sha, by)
	if err != nil {
		k.t.Fatal(err)
	}
	if v.Problem != "" {
		if v.Signer != "" {
			k.t.Errorf("a bad signature names a signer: %+v", v)
		}
		return v.Problem
	}
	return "good " + v.Signer
}

func (k *signing) want(what, sha string, by *git.Signers, want string) {
	k.t.Helper()
	if got := k.verdict(sha, by); !strings.Contains(got, want) || (strings.HasPrefix(got, "good") != strings.HasPrefix(want, "good")) {
		k.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func (k *signing) signers(ssh, pgp string) *git.Signers {
	k.t.Helper()
	s, err := git.LoadSigners(ssh, pgp)
	if err != nil {
		k.t.Fatal(err)
	}
	return s
}

func TestSSHSignatures(t *testing.T) {
	k := startSigning(t)
	ed, edPub := k.sshKey("ed", "-t", "ed25519")
	ec, ecPub := k.sshKey("ec", "-t", "ecdsa")
	rsa, rsaPub := k.sshKey("rsa", "-t", "rsa", "-b", "2048")
	other, _ := k.sshKey("other", "-t", "ed25519")
	late, latePub := k.sshKey("late", "-t", "ed25519")
	mail, mailPub := k.sshKey("mail", "-t", "ed25519")
	by := k.signers(k.file("allowed", strings.Join([]string{
		"# who may sign",
		"ed@example.org " + edPub,
		`"ec@example.org,ec2@example.org" namespaces="git,file" ` + ecPub,
		"rsa@example.org " + rsaPub,
		`late@example.org valid-after="20300101Z" ` + latePub,
		`late@example.org valid-before="20200101" ` + latePub,
		`mail@example.org namespaces="email" ` + mailPub,
	}, "\n")), "")

	k.want("ed25519", k.withSSH("a", ed), by, "good ed@example.org")
	k.want("ecdsa", k.withSSH("b", ec), by, "good ec@example.org,ec2@example.org")
	k.want("rsa", k.withSSH("c", rsa), by, "good rsa@example.org")
	k.want("an unknown key", k.withSSH("d", other), by, "not one of those that may sign (SSH key SHA256:")
	k.want("outside the key's time", k.withSSH("e", late), by, "not valid any more when it was committed")
	k.want("a key for mails", k.withSSH("f", mail), by, "not one of those that may sign")
	k.want("none", k.commit("g", nil), by, "it is not signed")

	// Git itself agrees on the good one and the bad one.
	good := k.withSSH("h", ed)
	if out := k.s.WorkGit("-c", "gpg.ssh.allowedSignersFile="+filepath.Join(k.dir, "allowed"), "verify-commit", "-v", good); !strings.Contains(out, "Good") {
		t.Errorf("git says %s", out)
	}

	// The same signature over another content, and one that is for something else.
	raw := k.s.WorkGit("cat-file", "commit", good)
	k.want("changed", k.raw(strings.Replace(raw, "\n\nh", "\n\nhacked", 1)), by, "does not fit its content")
	k.want("two", k.raw(strings.Replace(raw, "gpgsig ", "gpgsig "+k.armor(raw)+"\ngpgsig ", 1)), by, "more than one signature")
	k.want("one hidden in the other", k.raw(strings.Replace(raw, "\n -----END SSH SIGNATURE-----", "\n -----END SSH SIGNATURE-----\n"+k.armorLines(raw), 1)), by, "more than one signature")
	k.want("broken", k.raw(strings.Replace(raw, "U1NIU0lH", "U1NIU0lX", 1)), by, "can't be read")
	k.want("in the message", k.raw(strings.Replace(k.unsigned(raw), "\n\nh", "\n\nh\ngpgsig "+k.armor(raw), 1)), by, "it is not signed")
	payload := k.file("payload", k.unsigned(raw)+"\n")
	k.run("ssh-keygen", "-q", "-Y", "sign", "-n", "file", "-f", ed, payload)
	sig, err := os.ReadFile(payload + ".sig")
	if err != nil {
		t.Fatal(err)
	}
	k.want("for a file", k.raw(k.signedBy(raw, string(sig))), by, `is for "file", not for commits`)
	k.run("ssh-keygen", "-q", "-Y", "sign", "-n", "git", "-f", ed, k.file("payload2", k.unsigned(raw)+"\n"))
	if sig, err = os.ReadFile(filepath.Join(k.dir, "payload2.sig")); err != nil {
		t.Fatal(err)
	}
	k.want("made by hand for git", k.raw(k.signedBy(raw, string(sig))), by, "good ed@example.org")
}

// raw stores a commit as it is given, and fetches it.
func (k *signing) raw(text string) string {
	k.t.Helper()
	sha := k.s.WorkGit("hash-object", "-t", "commit", "-w", "--literally", k.file("raw", text+"\n"))
	k.s.WorkGit("reset", "--quiet", "--soft", sha)
	return k.pushed()
}

func (k *signing) armor(raw string) string {
	i, j := strings.Index(raw, "-----BEGIN"), strings.Index(raw, "-----END SSH SIGNATURE-----")
	return raw[i:j] + "-----END SSH SIGNATURE-----"
}

func (k *signing) armorLines(raw string) string { return " " + k.armor(raw) }

// unsigned is a commit without its signature.
func (k *signing) unsigned(raw string) string {
	var out []string
	for line := range strings.SplitSeq(raw, "\n") {
		if !strings.HasPrefix(line, "gpgsig") && (!strings.HasPrefix(line, " ") || strings.Contains(raw[strings.Index(raw, "\n\n"):], line)) {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

func (k *signing) signedBy(raw, sig string) string {
	head, body, _ := strings.Cut(k.unsigned(raw), "\n\n")
	return head + "\ngpgsig " + strings.ReplaceAll(strings.TrimSpace(sig), "\n", "\n ") + "\n\n" + body
}

func TestPGPSignatures(t *testing.T) {
	k := startSigning(t)
	pubs := k.pgpKey("Ed <ed@example.org>", "ed25519", "never") + k.pgpKey("Rsa <rsa@example.org>", "rsa2048", "never")
	k.pgpKey("Other <other@example.org>", "ed25519", "never")
	by := k.signers("", k.file("keys.asc", pubs))
	with := func(name, id string) string {
		return k.commit(name, []string{"gpg.format=openpgp", "user.signingkey=" + id}, "-S")
	}
	k.want("ed25519", with("a", "ed@example.org"), by, "good Ed <ed@example.org>")
	k.want("rsa", with("b", "rsa@example.org"), by, "good Rsa <rsa@example.org>")
	k.want("an unknown key", with("c", "other@example.org"), by, "not one of those that may sign (PGP key ")
	k.want("none", k.commit("d", nil), by, "it is not signed")
	good := k.s.WorkGit("cat-file", "commit", with("e", "ed@example.org"))
	k.want("changed", k.raw(strings.Replace(good, "\n\ne", "\n\nevil", 1)), by, "does not fit its content")

	// A key that expires, and one that is revoked.
	short := k.pgpKey("Short <short@example.org>", "ed25519", "seconds=6") // time enough to sign on a busy machine
	made := time.Now()
	sha := with("f", "short@example.org")
	time.Sleep(time.Until(made.Add(7500 * time.Millisecond))) // the library counts whole seconds, and the last one is not yet too late
	k.want("an expired key", sha, k.signers("", k.file("short.asc", short)), "expired")
	k.pgpKey("Gone <gone@example.org>", "ed25519", "never")
	sha = with("g", "gone@example.org")
	fpr := ""
	for line := range strings.Lines(k.run("gpg", "--with-colons", "--list-keys", "gone@example.org")) {
		if f := strings.Split(line, ":"); f[0] == "fpr" && fpr == "" {
			fpr = f[9]
		}
	}
	rev, err := os.ReadFile(filepath.Join(k.home, "openpgp-revocs.d", fpr+".rev"))
	if err != nil {
		t.Fatal(err)
	}
	k.run("gpg", "--batch", "--import", k.file("rev", strings.Replace(string(rev), ":-----BEGIN", "-----BEGIN", 1)))
	k.want("a revoked key", sha, k.signers("", k.file("gone.asc", k.run("gpg", "--armor", "--export", "gone@example.org"))), "revoked")

	// An SSH key does not make PGP signatures good, nor the other way round.
	_, pub := k.sshKey("ed", "-t", "ed25519")
	k.want("another kind of key", with("h", "ed@example.org"), k.signers(k.file("allowed", "x "+pub), ""), "not one of those that may sign")
}

func TestSignersThatAreRefused(t *testing.T) {
	k := startSigning(t)
	_, ed := k.sshKey("ed", "-t", "ed25519")
	_, weak := k.sshKey("weak", "-t", "rsa", "-b", "1024")
	for name, tc := range map[string]struct{ ssh, pgp, want string }{
		"missing":        {ssh: "/nonexistent", want: "read allowed signers"},
		"empty":          {ssh: k.file("1", "# none\n"), want: "holds no key"},
		"other use":      {ssh: k.file("2", `x namespaces="email" `+ed), want: "holds no key"},
		"authority":      {ssh: k.file("3", "\nx cert-authority "+ed), want: "line 2: option cert-authority is not supported"},
		"short RSA":      {ssh: k.file("4", "x "+weak), want: "too short"},
		"no key":         {ssh: k.file("5", "x ssh-ed25519"), want: "line 1: is not"},
		"time":           {ssh: k.file("6", `x valid-before="soon" `+ed), want: `valid-before: "soon" is no time`},
		"no PGP key":     {pgp: k.file("7", "hello"), want: "holds no armored public key"},
		"a private key":  {pgp: k.file("8", "-----BEGIN PGP PRIVATE KEY BLOCK-----"), want: "holds a private key"},
		"broken PGP key": {pgp: k.file("9", "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nxx\n"), want: "read PGP keys"},
	} {
		if _, err := git.LoadSigners(tc.ssh, tc.pgp); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
