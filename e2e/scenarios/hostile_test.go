package scenarios

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf16"

	"ichor.maesh.dev/ichor/e2e/harness"
	"ichor.maesh.dev/ichor/e2e/lab/cli"
)

// memoryLimit of the daemon, whatever strangers send (SPEC section 8).
const memoryLimit = 512 << 20

// entry of a Git tree, written as it is: no tool checks it.
type entry struct{ mode, name, hash string }

// stranger makes commits that no honest tool makes, and opens pull requests with them.
type stranger struct {
	*rig
	repo string
	base string
	root []entry
}

func newStranger(r *rig) *stranger {
	r.Helper()
	s := &stranger{rig: r, repo: filepath.Join(r.dir, "stranger")}
	r.must(r.lab.Clone(r.ctx, "main", s.repo))
	s.base = s.git(nil, "rev-parse", "HEAD")
	for line := range strings.SplitSeq(s.git(nil, "ls-tree", "HEAD"), "\n") {
		meta, name, _ := strings.Cut(line, "\t")
		f := strings.Fields(meta)
		s.root = append(s.root, entry{f[0], name, f[2]})
	}
	return s
}

func (s *stranger) git(stdin []byte, args ...string) string {
	s.Helper()
	cmd := exec.CommandContext(s.ctx, "git", args...)
	cmd.Dir, cmd.Stdin = s.repo, bytes.NewReader(stdin)
	cmd.Env = append(os.Environ(), "GIT_TERMINAL_PROMPT=0", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=Eve", "GIT_AUTHOR_EMAIL=eve@example.org", "GIT_COMMITTER_NAME=Eve", "GIT_COMMITTER_EMAIL=eve@example.org")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		s.Fatalf("git %s: %v: %s", strings.Join(args, " "), err, errs.String())
	}
	return strings.TrimSuffix(string(out), "\n")
}

func (s *stranger) blob(data string) string {
	s.Helper()
	return s.git([]byte(data), "hash-object", "-w", "--stdin")
}

// tree writes a tree with these entries in Git's order.
func (s *stranger) tree(entries ...entry) string {
	s.Helper()
	key := func(e entry) string {
		if e.mode == "040000" || e.mode == "40000" {
			return e.name + "/"
		}
		return e.name
	}
	sort.SliceStable(entries, func(i, j int) bool { return key(entries[i]) < key(entries[j]) })
	var b bytes.Buffer
	for _, e := range entries {
		fmt.Fprintf(&b, "%s %s\x00", strings.TrimPrefix(e.mode, "0"), e.name)
		for i := 0; i < 40; i += 2 {
			n, err := strconv.ParseUint(e.hash[i:i+2], 16, 8)
			s.must(err)
			b.WriteByte(byte(n))
		}
	}
	return s.git(b.Bytes(), "hash-object", "-t", "tree", "-w", "--literally", "--stdin")
}

// with is the base's tree with further entries.
func (s *stranger) with(entries ...entry) string {
	s.Helper()
	return s.tree(append(append([]entry{}, s.root...), entries...)...)
}

// files is the base's tree with a folder of these files.
func (s *stranger) files(files map[string]string) string {
	s.Helper()
	var list []entry
	for name, data := range files {
		list = append(list, entry{"100644", name, s.blob(data)})
	}
	return s.with(entry{"040000", "evil", s.tree(list...)})
}

func (s *stranger) commit(tree, message string) string {
	s.Helper()
	return s.git([]byte(message), "commit-tree", "-p", s.base, "-F", "-", tree)
}

// open puts a commit on a branch, past the checks that a good forge makes (not all do), and opens a pull request.
func (s *stranger) open(branch, sha string) int {
	s.Helper()
	s.git(nil, "update-ref", "refs/heads/"+branch, sha)
	s.git(nil, "-C", s.lab.GitDir(), "-c", "transfer.fsckObjects=false", "-c", "fetch.fsckObjects=false",
		"fetch", "-q", "--no-tags", s.repo, "+refs/heads/"+branch+":refs/heads/"+branch)
	p, err := s.lab.Pull(s.ctx, cli.PullRequest{Act: "open", Branch: branch, Title: "please merge " + branch, Author: "eve"})
	s.must(err)
	return p.Number
}

// attack is one kind of hostile pull request.
type attack struct {
	name string
	tree func(s *stranger) string
	// state of the check, and what its report says.
	state string
	says  []string
	// commit makes the commit where the tree alone is not it.
	commit func(s *stranger, tree string) string
	branch string
	long   bool
}

const api = "apiVersion: ichor.maesh.dev/v1alpha1\n"

func machine(name, spec string) string {
	return api + "kind: TalosMachine\nmetadata:\n  name: " + name + "\nspec:\n  clusterRef: {name: prod}\n  role: worker\n" +
		"  approvalState: approved\n" + spec
}

func patch(name, spec string) string {
	return api + "kind: TalosConfigPatch\nmetadata:\n  name: " + name + "\nspec:\n  clusterRef: {name: prod}\n" + spec
}

func one(name, data string) func(*stranger) string {
	return func(s *stranger) string { return s.files(map[string]string{name: data}) }
}

// bomb is YAML whose aliases unfold to 10^9 scalars.
func bomb() string {
	var b strings.Builder
	b.WriteString(api + "kind: TalosConfigPatch\nmetadata:\n  name: bomb\nspec:\n  clusterRef: {name: prod}\n  documents:\n  - machine:\n      env:\n")
	b.WriteString("        a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n")
	for i := 1; i < 10; i++ {
		fmt.Fprintf(&b, "        a%d: &a%d [%s*a%d]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 9), i-1)
	}
	return b.String()
}

func utf16le(text string) string {
	out := []byte{0xff, 0xfe}
	for _, u := range utf16.Encode([]rune(text)) {
		out = append(out, byte(u), byte(u>>8))
	}
	return string(out)
}

// attacks are at least 15 kinds; what they try lies in their names.
func attacks(honeypot string) []attack {
	return []attack{
		{name: "alias bomb", tree: one("bomb.yaml", bomb()), state: "failure", says: []string{"limits"}},
		{name: "blob of 64 MiB", tree: zeros(64 << 20), state: "error", says: []string{"over the limit"}},
		{name: "blob of 1 GiB", tree: zeros(1 << 30), state: "error", says: []string{"over the limit"}, long: true},
		{name: "delta bomb", tree: deltas, state: "error", says: []string{"over the limit"}, long: true},
		{name: "symlinks", tree: symlinks, state: "success", says: []string{"symlink"}},
		{name: "manifest is a symlink", tree: linkedPatch, state: "failure", says: []string{"evil/patch.yaml", "symlink"}},
		{name: "submodule", tree: submodule, state: "success", says: []string{"submodule"}},
		{name: "dot dot", tree: named(".."), state: "failure", says: []string{`".."`}},
		{name: "dot git", tree: named(".git"), state: "failure", says: []string{".git"}},
		{name: "dot GIT", tree: named(".GiT"), state: "failure", says: []string{".GiT"}},
		{name: "backslash", tree: named(`..\..\x`), state: "failure", says: []string{"is not allowed"}},
		{name: "newline", tree: namedFile("a\n::error::b.yaml"), state: "failure", says: []string{"control character"}},
		{name: "control characters", tree: namedFile("\x1b[31mred\x07.yaml"), state: "failure", says: []string{"control character"}},
		{name: "right to left", tree: namedFile("\u202elmay.txt.yaml"), state: "failure"},
		{name: "name twice", tree: twice, state: "failure", says: []string{"twice"}},
		{name: "mode of nothing", tree: oddMode, state: "success"},
		{name: "a million files", tree: million, state: "failure", says: []string{"more than"}},
		{name: "tree bomb", tree: treeBomb, state: "failure", says: []string{"more than"}},
		{name: "distinct files", tree: distinct(250_000), state: "error", says: []string{"over the limit"}, long: true},
		{name: "deep folders", tree: deep(200), state: "error", says: []string{"nest deeper"}},
		{name: "long message", tree: one("a.txt", "x"), state: "success", commit: func(s *stranger, tree string) string {
			return s.commit(tree, strings.Repeat("A very long message. ", 500_000))
		}},
		{name: "odd branch name", tree: one("a.txt", "x"), state: "success", branch: "$(touch${IFS}pwned);`id`|\u202e'\"&<script>"},
		{name: "CRLF", tree: one("a.yaml", strings.ReplaceAll(machine("w9", "  endpoint: 127.20.40.99\n"), "\n", "\r\n")), state: "success"},
		{name: "NUL", tree: one("a.yaml", machine("w\x009", "  endpoint: 127.20.40.99\n")), state: "failure"},
		{name: "UTF-16", tree: one("a.yaml", utf16le(machine("w9", "  endpoint: 127.20.40.99\n  hostnam: x\n"))), state: "failure"},
		{name: "bad UTF-8", tree: one("a.yaml", machine("w9", "  hostname: \"\xff\xfe\"\n")), state: "failure"},
		{name: "gigantic numbers", tree: one("a.yaml", patch("p", "  order: "+strings.Repeat("9", 10_000)+"\n  documents: [{machine: {sysctls: {a.b: \"1\"}}}]\n")), state: "failure", says: []string{"order"}},
		{name: "gigantic exponents", tree: one("a.yaml", patch("p", "  order: 1e999999999\n  documents: [{machine: {sysctls: {a.b: \"1\"}}}]\n")), state: "failure", says: []string{"order"}},
		{name: "huge line", tree: one("a.yaml", machine("w9", "  hostnam: "+strings.Repeat("x", 900_000)+"\n")), state: "failure", says: []string{"hostnam"}},
		{name: "deep YAML", tree: one("a.yaml", patch("p", "  documents: ["+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+"]\n")), state: "failure", says: []string{"limits"}},
		{name: "many documents", tree: one("a.yaml", strings.Repeat(api+"kind: TalosMachine\n---\n", 15_000)), state: "failure"},
		{name: "path outside", tree: one("a.yaml", patch("p", "  path: ../../../../../etc/passwd\n")), state: "failure", says: []string{"reference"}},
		{name: "absolute path", tree: one("a.yaml", patch("p", "  path: /etc/passwd\n")), state: "failure"},
		{name: "URL as a path", tree: one("a.yaml", patch("p", "  path: http://"+honeypot+"/patch.yaml\n")), state: "failure"},
		{name: "secretsRef to its own file", tree: ownSecrets, state: "failure", says: []string{"plaintext-secret"}},
		{name: "secrets that can't be decrypted", tree: brokenSecrets, state: "success"},
		{name: "stores, images and proxies elsewhere", tree: elsewhere(honeypot), state: "failure", says: []string{"backup"}},
		{name: "scan of the world", tree: scan, state: "failure", says: []string{"discovery"}},
		{name: "costly policy", tree: costly, state: "failure", says: []string{"policy"}},
		{name: "ten thousand machines", tree: crowd(10_000), state: "success"},
		{name: "hundred thousand machines", tree: crowd(100_000), state: "failure", says: []string{"values together"}},
		{name: "much text", tree: muchText, state: "failure", says: []string{"16 MiB together"}},
	}
}

func zeros(n int) func(*stranger) string {
	return func(s *stranger) string {
		cmd := exec.CommandContext(s.ctx, "git", "hash-object", "-w", "--stdin")
		cmd.Dir = s.repo
		cmd.Stdin = &zeroReader{n: n}
		out, err := cmd.Output()
		s.must(err)
		return s.with(entry{"100644", "zeros.yaml", strings.TrimSpace(string(out))})
	}
}

type zeroReader struct{ n int }

func (z *zeroReader) Read(p []byte) (int, error) {
	if z.n == 0 {
		return 0, io.EOF
	}
	k := min(len(p), z.n)
	clear(p[:k])
	z.n -= k
	return k, nil
}

// TestHostilePullRequests: whatever a stranger's pull request holds, it is refused with a report that says why or shown to
// be harmless; nothing is decrypted, connected to or run for it; the others' checks go on; and the daemon stays small.
func TestHostilePullRequests(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.40", ControlPlanes: 1})
	pot, err := net.Listen("tcp", r.fleet.Net+".200:0")
	r.must(err)
	var bitten atomic.Int64
	go func() {
		for {
			c, err := pot.Accept()
			if err != nil {
				return
			}
			bitten.Add(1)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = pot.Close() })
	s := newStranger(r)
	atRest := s.peak()
	// An honest one beside them, before and after.
	good := s.commit(s.files(map[string]string{"README.md": "hello\n"}), "honest")
	s.open("honest", good)
	r.wait(good, checkStatus, "success")
	kinds := 0
	for i, a := range attacks(pot.Addr().String()) {
		if a.long && !*long {
			continue
		}
		kinds++
		start := time.Now()
		branch := fmt.Sprintf("h%d", i)
		if a.branch != "" {
			branch = a.branch
		}
		tree := a.tree(s)
		sha := ""
		if a.commit != nil {
			sha = a.commit(s, tree)
		} else {
			sha = s.commit(tree, a.name)
		}
		s.open(branch, sha)
		made := time.Since(start)
		s.judged(a, sha)
		t.Logf("%-40s made in %5.1fs, judged in %5.1fs, peak %4d MiB", a.name, made.Seconds(), (time.Since(start) - made).Seconds(), s.peak()>>20)
	}
	if kinds < 15 {
		t.Errorf("only %d kinds were tried", kinds)
	}
	// The others go on: a new honest one is checked, and a broken one is still told from it.
	last := s.commit(s.files(map[string]string{"README.md": "hello again\n"}), "honest too")
	s.open("honest-too", last)
	r.wait(last, checkStatus, "success")
	broken := s.commit(s.files(map[string]string{"a.yaml": machine("w9", "  hostnam: x\n")}), "broken")
	s.open("broken", broken)
	r.wait(broken, checkStatus, "failure")
	// So does the branch.
	r.fleet.Annotations = map[string]string{"example.org/note": "after"}
	r.wait(r.push("After the attack"), applyStatus, "success")
	if peak := s.peak(); peak > memoryLimit && !race {
		t.Errorf("the daemon took %d MiB, more than %d", peak>>20, memoryLimit>>20)
	}
	t.Logf("%d kinds; at rest %d MiB, at most %d MiB", kinds, atRest>>20, s.peak()>>20)
	if n := bitten.Load(); n != 0 {
		t.Errorf("%d connections were made to an address that only pull requests name", n)
	}
	if found := s.pwned(); len(found) > 0 {
		t.Errorf("something was run: %v", found)
	}
}

// judged waits for the verdict and holds the report against what is expected.
func (s *stranger) judged(a attack, sha string) {
	s.Helper()
	var got string
	s.until(a.name+" is judged", func() (bool, string) {
		st, ok := s.lab.StatusOf(s.ctx, sha, checkStatus)
		got = st.State
		return ok && st.State != "pending", fmt.Sprintf("%q: %s", st.State, st.Description)
	})
	text := ""
	s.until(a.name+" has a report", func() (bool, string) {
		var err error
		text, err = s.lab.File(s.ctx, harness.StatusBranch, "checks/"+sha+".md")
		return err == nil, fmt.Sprint(err)
	})
	if got != a.state {
		s.Errorf("%s: %s, want %s\n%.1500s", a.name, got, a.state, text)
		return
	}
	for _, want := range a.says {
		if !strings.Contains(text, want) {
			s.Errorf("%s: the report does not say %q\n%.1500s", a.name, want, text)
		}
	}
	if len(text) > 70_000 {
		s.Errorf("%s: the report has %d bytes", a.name, len(text))
	}
}

// peak is the most memory that the daemon ever held.
func (s *stranger) peak() int64 {
	s.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.ichor.Pid()))
	s.must(err)
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			s.must(err)
			return kib << 10
		}
	}
	s.Fatal("the kernel does not say how much memory the daemon held")
	return 0
}

// pwned looks for the file that names and settings of the attacks would make if anything ran them.
func (s *stranger) pwned() []string {
	s.Helper()
	var found []string
	for _, dir := range append([]string{".", s.dir, os.TempDir()}, s.stateDirs...) {
		list, err := filepath.Glob(filepath.Join(dir, "pwned*"))
		s.must(err)
		found = append(found, list...)
	}
	return found
}
