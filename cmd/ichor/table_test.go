package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/validate/check"
)

var update = flag.Bool("update", false, "write what the checks say into the want sections of testdata/check")

// wrong is one way to be wrong: a small repository, made of the common one (validate/check/testdata/common) by the
// directives in the archive's comment and by its files, and what the check must say of it.
//
//	base                          there is a base: the common repository, with the files under base/
//	edit FILE: "OLD" => "NEW"     change a file of head (base/FILE: of base); a missing OLD is an error
//	remove FILE                   of head
//	grow FILE BYTES               make it longer, by a comment
//	cut FILE TEXT                 drop everything from TEXT on
//	symlink NAME TARGET
//	verdict passed|failed
//	expect SEVERITY RULE FILE[:LINE] TEXT
//
// The line is the one that holds "# here", where FILE has such a line and no line is given. The expectations are
// written by hand and hold whatever -update does.
type wrong struct {
	head, base map[string][]byte
	links      map[string]string
	verdict    string
	expect     []expectation
	archive    *txtar.Archive
}

type expectation struct {
	severity, rule, file string
	line                 int
	text                 string
}

func readWrong(t *testing.T, file string, common map[string][]byte) *wrong {
	t.Helper()
	a, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w := &wrong{head: map[string][]byte{}, links: map[string]string{}, archive: a}
	base := map[string][]byte{}
	for name, data := range common {
		w.head[name], base[name] = data, data
	}
	for _, f := range a.Files {
		if name, ok := strings.CutPrefix(f.Name, "base/"); ok {
			base[name] = f.Data
		} else if !strings.HasPrefix(f.Name, "want.") {
			w.head[f.Name] = f.Data
		}
	}
	var expect [][]string
	for line := range strings.Lines(string(a.Comment)) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		switch words[0] {
		case "base":
			w.base = base
		case "edit":
			edit(t, w.head, base, strings.TrimSpace(strings.TrimPrefix(line, "edit ")))
		case "remove":
			delete(w.head, words[1])
		case "grow":
			n, err := strconv.Atoi(words[2])
			if err != nil {
				t.Fatal(err)
			}
			w.head[words[1]] = append(slices.Clone(w.head[words[1]]), bytes.Repeat([]byte("# xxxxxxxxxxxxx\n"), n/16)...)
		case "cut":
			w.head[words[1]], _, _ = bytes.Cut(w.head[words[1]], []byte(words[2]))
		case "symlink":
			w.links[words[1]] = words[2]
		case "verdict":
			w.verdict = words[1]
		case "expect":
			expect = append(expect, strings.SplitN(strings.TrimSpace(line), " ", 5))
		}
	}
	for _, e := range expect {
		w.expect = append(w.expect, w.expectation(e))
	}
	return w
}

func edit(t *testing.T, head, base map[string][]byte, directive string) {
	t.Helper()
	name, change, _ := strings.Cut(directive, ": ")
	from, to, ok := strings.Cut(change, " => ")
	before, err1 := strconv.Unquote(from)
	after, err2 := strconv.Unquote(to)
	files := head
	if inBase, is := strings.CutPrefix(name, "base/"); is {
		files, name = base, inBase
	}
	if !ok || err1 != nil || err2 != nil || !bytes.Contains(files[name], []byte(before)) {
		t.Fatalf("%q edits nothing", directive)
	}
	files[name] = bytes.Replace(files[name], []byte(before), []byte(after), 1)
}

func (w *wrong) expectation(words []string) expectation {
	e := expectation{severity: words[1], rule: words[2]}
	if len(words) == 5 {
		e.text = words[4]
	}
	file, line, given := strings.Cut(words[3], ":")
	e.file = file
	if given {
		e.line, _ = strconv.Atoi(line)
		return e
	}
	for i, l := range strings.Split(string(w.head[file]), "\n") {
		if strings.Contains(l, "# here") {
			e.line = i + 1
		}
	}
	return e
}

func (e expectation) met(problems []fleet.Problem) bool {
	return slices.ContainsFunc(problems, func(p fleet.Problem) bool {
		return string(p.Severity) == e.severity && p.Rule == e.rule && p.File == e.file && (p.Line == e.line || e.line == 0 && strings.HasPrefix(p.Message, "the file does not parse")) &&
			strings.Contains(p.Message, e.text)
	})
}

// lay writes the repository into a folder; with a base it is a Git repository whose HEAD is base.
func (w *wrong) lay(t *testing.T, dir string) []string {
	t.Helper()
	if w.base == nil {
		writeAll(t, dir, w.head, w.links)
		return []string{dir}
	}
	writeAll(t, dir, w.base, nil)
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"add", "-A"}, {"commit", "-q", "-m", "base"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_DATE=2026-01-01T00:00:00Z",
			"GIT_COMMITTER_DATE=2026-01-01T00:00:00Z", "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.com")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v %s", args, err, out)
		}
	}
	for name := range w.base {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	writeAll(t, dir, w.head, w.links)
	return []string{dir, "--base", "HEAD"}
}

func writeAll(t *testing.T, dir string, files map[string][]byte, links map[string]string) {
	t.Helper()
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// reversed is a folder that lists its entries from the last to the first.
type reversed struct{ fs.FS }

func (r reversed) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(r.FS, name)
	slices.Reverse(entries)
	return entries, err
}

func (r reversed) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(r.FS, name) }
func (r reversed) ReadLink(name string) (string, error)   { return fs.ReadLink(r.FS, name) }
func (r reversed) Stat(name string) (fs.FileInfo, error)  { return fs.Stat(r.FS, name) }
func commonFiles(t *testing.T) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	files, err := filepath.Glob("../../validate/check/testdata/common/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no common files: %v", err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(f)] = data
	}
	return out
}

// TestTable runs ichor check on a repository for each way to be wrong, in every output.
func TestTable(t *testing.T) {
	files, err := filepath.Glob("testdata/check/*.txtar")
	if err != nil || len(files) < 150 {
		t.Fatalf("%d archives, %v", len(files), err)
	}
	common := commonFiles(t)
	schema := reportSchema(t)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			w := readWrong(t, file, common)
			args := w.lay(t, t.TempDir())
			r := w.check(t, args, schema)
			if string(r.Verdict) != w.verdict {
				t.Errorf("verdict %s, want %s", r.Verdict, w.verdict)
			}
			for _, e := range w.expect {
				if !e.met(r.Problems) {
					t.Errorf("no problem %+v", e)
				}
			}
			for _, p := range r.Problems {
				if p.Hint == "" {
					t.Errorf("%s: %s: no hint what to do", p.Rule, p.Message)
				}
			}
			if t.Failed() {
				b, _ := json.MarshalIndent(r.Problems, "", " ")
				t.Logf("%s", b)
			}
			w.compare(t, file)
			w.otherOrder(t, args[0])
		})
	}
}

// wants are the outputs, with the section that holds what is wanted of each.
var wants = map[string]string{"text": "want.txt", "json": "want.json", "markdown": "want.md", "github": "want.github"}

// check runs the command once for each output, puts what it says into the archive's want sections, and gives the
// report.
func (w *wrong) check(t *testing.T, args []string, schema *jsonschema.Schema) *check.Report {
	t.Helper()
	report := &check.Report{}
	for _, o := range outputs {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"check", "-o", o.name}, args...), &out, &errs)
		if want := map[string]int{"passed": exitOK, "failed": exitFailed}[w.verdict]; code != want {
			t.Errorf("-o %s: exit code %d, want %d: %s", o.name, code, want, errs.String())
		}
		got := out.Bytes()
		if o.name == "json" {
			var doc any
			if err := json.Unmarshal(got, &doc); err != nil {
				t.Fatal(err)
			}
			if err := schema.Validate(doc); err != nil {
				t.Errorf("the report does not fit its schema: %v", err)
			}
			if err := json.Unmarshal(got, report); err != nil {
				t.Fatal(err)
			}
			got = problemsJSON(t, report)
		}
		w.put(wants[o.name], steady(got, report))
	}
	return report
}

// problemsJSON is the part of the JSON that the table is about; the machines and the plan are the same nearly everywhere.
func problemsJSON(t *testing.T, r *check.Report) []byte {
	t.Helper()
	b, err := json.MarshalIndent(struct {
		Verdict  check.Verdict   `json:"verdict"`
		Problems []fleet.Problem `json:"problems"`
	}{r.Verdict, r.Problems}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}

// steady takes out what hangs on Git's version: nothing does, but the name of the base commit.
func steady(b []byte, r *check.Report) []byte {
	if r.Base != "" {
		b = bytes.ReplaceAll(b, []byte(r.Base), []byte("BASE"))
	}
	return b
}

// put sets a section; those that are there already are what is wanted.
func (w *wrong) put(name string, got []byte) {
	w.archive.Files = append(w.archive.Files, txtar.File{Name: "got." + name, Data: got})
}

// compare holds the outputs against the want sections, or writes them.
func (w *wrong) compare(t *testing.T, file string) {
	t.Helper()
	var kept []txtar.File
	want, got := map[string][]byte{}, map[string][]byte{}
	for _, f := range w.archive.Files {
		if name, ok := strings.CutPrefix(f.Name, "got."); ok {
			got[name] = f.Data
		} else if strings.HasPrefix(f.Name, "want.") {
			want[f.Name] = f.Data
		} else {
			kept = append(kept, f)
		}
	}
	if *update {
		for _, name := range []string{"want.txt", "want.json", "want.md", "want.github"} {
			kept = append(kept, txtar.File{Name: name, Data: got[name]})
		}
		if err := os.WriteFile(file, txtar.Format(&txtar.Archive{Comment: w.archive.Comment, Files: kept}), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for name, data := range got {
		// txtar ends every file with a line break.
		if strings.TrimRight(string(want[name]), "\n") != strings.TrimRight(string(data), "\n") {
			t.Errorf("%s: got:\n%s\nwant:\n%s", name, data, want[name])
		}
	}
}

// otherOrder checks once more, with every folder read from its end: each output has the same bytes.
func (w *wrong) otherOrder(t *testing.T, dir string) {
	t.Helper()
	in := check.Input{}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	if w.base != nil {
		baseDir := t.TempDir()
		writeAll(t, baseDir, w.base, nil)
		in.BaseFS, in.Base, in.ExcuseBase = reversed{os.DirFS(baseDir)}, "BASE", true
	}
	var all [2][]byte
	for i, head := range []fs.FS{root.FS(), reversed{root.FS()}} {
		in.FS = head
		r, _, err := check.Run(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		for _, o := range outputs {
			if err := o.write(&b, r); err != nil {
				t.Fatal(err)
			}
		}
		all[i] = b.Bytes()
	}
	if !bytes.Equal(all[0], all[1]) {
		t.Errorf("another order of files gives other bytes:\n%s\n%s", all[0], all[1])
	}
}

func reportSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile("../../schemas/report.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTableNamesEveryRule: no rule is without a way to break it.
func TestTableNamesEveryRule(t *testing.T) {
	files, err := filepath.Glob("testdata/check/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			if words := strings.Fields(line); len(words) > 2 && words[0] == "expect" {
				seen[words[2]]++
			}
		}
	}
	pages, err := filepath.Glob("../../docs/rules/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		rule := strings.TrimSuffix(filepath.Base(p), ".md")
		if rule != "running-version" && seen[rule] == 0 { // which needs a status branch: testdata/script/check-git.txtar
			t.Errorf("no repository breaks rule %s", rule)
		}
	}
	fmt.Fprintln(os.Stderr, len(files), "ways to be wrong;", cmp.Or(seen["schema"], 0), "of rule schema")
}
