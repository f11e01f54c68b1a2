package fleet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"ichor.maesh.dev/ichor/schemas/fleet"
)

// say writes problems in one line each.
func say(problems []fleet.Problem) string {
	var b strings.Builder
	for _, p := range problems {
		pos := fleet.Position{File: p.File, Line: p.Line, Column: p.Column}
		fmt.Fprintf(&b, "%s %s %s: %s\n", pos, p.Severity, p.Rule, p.Message)
	}
	return b.String()
}

func wantProblems(t *testing.T, problems []fleet.Problem, want ...string) {
	t.Helper()
	if got, want := say(problems), strings.Join(want, "\n"); strings.TrimSpace(got) != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}

func TestTooManyFiles(t *testing.T) {
	fsys := repo("cluster.yaml", clusterYAML, "secrets.sops.yaml", "sops: {}\n")
	for i := range 20_000 {
		fsys[fmt.Sprintf("z/%05d.txt", i)] = &fstest.MapFile{Data: []byte("x")}
	}
	f, problems := mustLoad(t, fsys)
	wantProblems(t, problems, "z/19998.txt error limits: more than 20000 text files; this one and the rest are not read")
	if len(f.Files) != fleet.DefaultMaxFiles || f.Cluster("prod") == nil {
		t.Errorf("%d files", len(f.Files))
	}
	if !f.IsUnknown("TalosMachine", "prod", "any") {
		t.Error("what was not read must be unknown")
	}
}

func TestFilesOverTheSizeLimits(t *testing.T) {
	big := bytes.Repeat([]byte("# x\n"), 300_000)
	fsys := repo("cluster.yaml", clusterYAML, "secrets.sops.yaml", "sops: {}\n")
	fsys["big.yaml"] = &fstest.MapFile{Data: append([]byte(machineYAML), big...)}
	fsys["big.txt"] = &fstest.MapFile{Data: big}
	// Other people's YAML is as foreign as text; our group may be named at the very end, or across two reads.
	fsys["crds.yaml"] = &fstest.MapFile{Data: append([]byte("apiVersion: apiextensions.k8s.io/v1\n"), big...)}
	fsys["crds-and-ours.yaml"] = &fstest.MapFile{Data: append(append([]byte("apiVersion: v1\n"), big...), "---\n"+machineYAML...)}
	const keep, step = len("ichor.maesh.dev") - 1, 64 << 10
	for name, at := range map[string]int{"across.yaml": 20*step + keep - 5, "across2.yaml": 20*(step+keep) - 5} {
		fsys[name] = &fstest.MapFile{Data: append(bytes.Repeat([]byte("#"), at), "ichor.maesh.dev\n"...)}
	}
	fsys["huge.yaml"] = &fstest.MapFile{Data: bytes.Repeat([]byte("# x\n"), 17<<18)}
	fsys["big.bin"] = &fstest.MapFile{Data: append([]byte{0}, big...)}
	fsys["latin1.txt"] = &fstest.MapFile{Data: []byte("\xe9t\xe9\n")}
	fsys["exact.txt"] = &fstest.MapFile{Data: bytes.Repeat([]byte("x"), fleet.DefaultMaxFileSize)}
	fsys["huge.iso"] = &fstest.MapFile{Data: make([]byte, 17<<20)}
	f, problems := mustLoad(t, fsys)
	wantProblems(t, problems,
		"across.yaml error limits: larger than 1 MiB; it is not read",
		"across2.yaml error limits: larger than 1 MiB; it is not read",
		"big.txt warning limits: larger than 1 MiB; it is not read",
		"big.yaml error limits: larger than 1 MiB; it is not read",
		"crds-and-ours.yaml error limits: larger than 1 MiB; it is not read",
		"crds.yaml warning limits: larger than 1 MiB; it is not read",
		"huge.iso warning limits: larger than 1 MiB; it is not read",
		"huge.yaml error limits: larger than 1 MiB; it is not read")
	var names []string
	for _, file := range f.Files {
		names = append(names, file.Path)
	}
	if got := strings.Join(names, " "); got != "cluster.yaml exact.txt latin1.txt secrets.sops.yaml" {
		t.Errorf("files: %s", got)
	}
	var unknown []string
	for _, u := range f.Unknown {
		unknown = append(unknown, u.File)
	}
	if !f.IsUnknown("TalosMachine", "prod", "cp1") || strings.Join(unknown, " ") != "across.yaml across2.yaml big.yaml crds-and-ours.yaml huge.yaml" {
		t.Errorf("unknown: %+v", f.Unknown)
	}

	_, problems, err := fleet.Load(context.Background(), fsys, fleet.Options{MaxTotalSize: 100_000})
	if err != nil || len(problems) == 0 || !strings.Contains(say(problems), "exact.txt error limits: the text files are larger than") {
		t.Errorf("%v\n%s", err, say(problems))
	}
}

func TestAManifestInAnotherEncodingIsUnknown(t *testing.T) {
	utf16 := []byte{0xff, 0xfe}
	for _, c := range []byte(machineYAML) {
		utf16 = append(utf16, c, 0)
	}
	f, problems := mustLoad(t, repo("utf16.yaml", string(utf16), "latin1.yaml", strings.Replace(machineYAML, "cp1", "cp\xe9", 1), "b.yaml", "a\x00"))
	wantProblems(t, problems, "latin1.yaml:4:3 error schema: the file does not parse as YAML: invalid trailing UTF-8 octet",
		"utf16.yaml:1:1 error schema: the file is no UTF-8 text")
	if len(f.Unknown) != 2 || len(f.Clusters) != 0 {
		t.Errorf("unknown: %+v", f.Unknown)
	}
}

func TestSymlinksAndOddNamesOfATree(t *testing.T) {
	fsys := repo("cluster.yaml", strings.Replace(clusterYAML, "secrets.sops.yaml", "link/s.yaml", 1), "real/s.yaml", "sops: {}\n",
		".git/config", "[core]\n", "sub/.git", "gitdir: x\n", `a\b.yaml`, machineYAML)
	fsys["link"] = &fstest.MapFile{Data: []byte("real"), Mode: fs.ModeSymlink | 0o777}
	fsys["m.yaml"] = &fstest.MapFile{Data: []byte("cluster.yaml"), Mode: fs.ModeSymlink | 0o777}
	fsys["module"] = &fstest.MapFile{Mode: fs.ModeIrregular}
	fsys["pipe"] = &fstest.MapFile{Mode: fs.ModeNamedPipe}
	f, problems := mustLoad(t, fsys)
	wantProblems(t, problems,
		`a\b.yaml error limits: the name holds a backslash or a control character; it is not read`,
		`cluster.yaml:14:5 error reference: file "link/s.yaml" passes through a symlink or submodule`,
		"link warning limits: this is a symlink; it is left alone",
		"m.yaml warning limits: this is a symlink; it is left alone",
		"module warning limits: this is a submodule; it is left alone",
		"pipe warning limits: this is no regular file; it is left alone")
	if len(f.Files) != 2 || f.Cluster("prod").Secrets != nil {
		t.Errorf("files: %+v", f.Files)
	}
}

// TestSymlinksOfARealFolder does the same on a disk, where a link could be followed.
func TestSymlinksOfARealFolder(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(filepath.Join(outside, "s.yaml"), []byte("sops: {}\n"), 0o600))
	must(os.WriteFile(filepath.Join(outside, "m.yaml"), []byte(machineYAML), 0o600))
	must(os.Symlink(outside, filepath.Join(dir, "out")))
	must(os.Symlink(filepath.Join(outside, "m.yaml"), filepath.Join(dir, "m.yaml")))
	must(os.Symlink(".", filepath.Join(dir, "loop")))
	must(os.WriteFile(filepath.Join(dir, "cluster.yaml"), []byte(strings.Replace(clusterYAML, "secrets.sops.yaml", "./out/s.yaml", 1)), 0o600))
	r, err := os.OpenRoot(dir)
	must(err)
	defer func() { _ = r.Close() }()
	for name, fsys := range map[string]fs.FS{"os.DirFS": os.DirFS(dir), "os.Root": r.FS()} {
		t.Run(name, func(t *testing.T) {
			f, problems, err := fleet.Load(context.Background(), fsys, fleet.Options{})
			must(err)
			wantProblems(t, problems,
				`cluster.yaml:14:5 error reference: file "out/s.yaml" passes through a symlink or submodule`,
				"loop warning limits: this is a symlink; it is left alone",
				"m.yaml warning limits: this is a symlink; it is left alone",
				"out warning limits: this is a symlink; it is left alone")
			if c := f.Cluster("prod"); len(f.Files) != 1 || c.Secrets != nil || len(c.Machines) != 0 {
				t.Errorf("files: %+v", f.Files)
			}
		})
	}
}

// craftedFS is a Git tree as an attacker can make it: one folder that holds itself, and an entry named "..".
type craftedFS struct {
	fstest.MapFS
	bad string
}

type craftedEntry struct {
	name string
	dir  bool
}

func (e craftedEntry) Name() string               { return e.name }
func (e craftedEntry) IsDir() bool                { return e.dir }
func (e craftedEntry) Type() fs.FileMode          { return map[bool]fs.FileMode{true: fs.ModeDir}[e.dir] }
func (e craftedEntry) Info() (fs.FileInfo, error) { return nil, errors.New("not asked for") }

func (c craftedFS) ReadDir(string) ([]fs.DirEntry, error) {
	return []fs.DirEntry{craftedEntry{c.bad, true}, craftedEntry{c.bad + "2", true}}, nil
}

func TestATreeThatHoldsItselfEnds(t *testing.T) {
	for bad, want := range map[string]string{
		"a":  "error limits: more than 200 files and folders",
		"..": `error limits: the folder holds an entry named ".."`,
		".":  `error limits: the folder holds an entry named "."`,
		"":   `error limits: the folder holds an entry named ""`,
	} {
		_, problems, err := fleet.Load(context.Background(), craftedFS{fstest.MapFS{}, bad}, fleet.Options{MaxFiles: 20})
		if err != nil || !strings.Contains(say(problems), want) {
			t.Errorf("%q: %v\n%s", bad, err, say(problems[:min(3, len(problems))]))
		}
	}
}

func TestFoldersNestedTooDeep(t *testing.T) {
	f, problems := mustLoad(t, repo(strings.Repeat("d/", 200)+"m.yaml", machineYAML, "a", "x"))
	if len(f.Files) != 1 || len(problems) != 1 || !strings.HasSuffix(problems[0].Message, "folders are nested more than 100 deep") {
		t.Errorf("%s", say(problems))
	}
}

func TestTheValuesOfAllManifestsTogetherAreBounded(t *testing.T) {
	fsys := repo("cluster.yaml", clusterYAML, "secrets.sops.yaml", "sops: {}\n")
	list := "    - a: &a [" + strings.Repeat("x,", 99) + "x]\n      b:\n" + strings.Repeat("      - *a\n", 9)
	for i := range 30 {
		fsys[fmt.Sprintf("p%02d.yaml", i)] = &fstest.MapFile{Data: []byte(strings.Replace(
			patchYAML(fmt.Sprintf("p%d", i), 1), "    - machine:\n        sysctls:\n          net.core.somaxconn: \"4096\"\n", list, 1))}
	}
	f, problems, err := fleet.Load(context.Background(), fsys, fleet.Options{MaxValues: 20_000})
	if err != nil {
		t.Fatal(err)
	}
	refused := strings.Count(say(problems), "limits: the manifests hold more than 20000 values together")
	// Each patch has 1,000 values in its lists and a few dozen around them.
	if used := len(f.Cluster("prod").Patches); used < 18 || used > 19 || refused != 30-used || len(f.Unknown) != refused {
		t.Errorf("%d patches, unknown %v\n%s", used, f.Unknown, say(problems))
	}
	if _, problems := mustLoad(t, fsys); len(problems) > 0 {
		t.Errorf("they are within the default limit\n%s", say(problems))
	}
}

func TestWhatAFileAndAFleetSayIsBounded(t *testing.T) {
	fsys := fstest.MapFS{}
	for i := range 60 {
		fsys[fmt.Sprintf("%02d.yaml", i)] = &fstest.MapFile{Data: []byte(strings.Repeat("apiVersion: ichor.maesh.dev/v2\nkind: X\n---\n", 1000))}
	}
	f, problems := mustLoad(t, fsys)
	if n := len(problems); n != 10_001 || problems[0].Message != "more than 10000 problems; the rest is left out" {
		t.Errorf("%d problems, the first: %+v", n, problems[0])
	}
	if len(f.Unknown) != 60 {
		t.Errorf("%d unknown", len(f.Unknown))
	}
}

func TestPathNarrows(t *testing.T) {
	fsys := repo(
		"clusters/prod/cluster.yaml", strings.Replace(clusterYAML, "path: secrets.sops.yaml", "path: shared/s.yaml", 1),
		"clusters/prod/m.yaml", strings.Replace(machineYAML, "role", "rol", 1), "shared/s.yaml", "sops: {}\n", "other/cluster.yaml", clusterYAML)
	f, problems, err := fleet.Load(context.Background(), fsys, fleet.Options{Path: "clusters/", SecretScanExclude: []string{"shared/**", "clusters/*/m.yaml"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(problems) != 2 || problems[0].File != "clusters/prod/m.yaml" || problems[1].File != "clusters/prod/m.yaml" {
		t.Errorf("%s", say(problems))
	}
	if c := f.Cluster("prod"); len(f.Clusters) != 1 || c.Secrets == nil || c.Secrets.Path != "shared/s.yaml" {
		t.Errorf("%+v", f.Clusters)
	}
	skip := map[string]bool{}
	for _, file := range f.Files {
		skip[file.Path] = file.SkipScan
	}
	want := map[string]bool{"clusters/prod/cluster.yaml": false, "clusters/prod/m.yaml": true, "shared/s.yaml": true}
	if !reflect.DeepEqual(skip, want) {
		t.Errorf("files and whether they are skipped: %v", skip)
	}

	f, problems, err = fleet.Load(context.Background(), fsys, fleet.Options{Path: "gone"})
	if err != nil || len(problems) != 1 || problems[0].Rule != "reference" || !f.IsUnknown("", "", "") {
		t.Errorf("%v %s", err, say(problems))
	}
	if _, _, err := fleet.Load(context.Background(), fsys, fleet.Options{Path: "../x"}); err == nil {
		t.Error("a path out of the repository must be refused")
	}
}

// faultyFS fails to read one file.
type faultyFS struct{ fstest.MapFS }

func (f faultyFS) Open(name string) (fs.File, error) {
	if name == "cluster.yaml" {
		return nil, fs.ErrPermission
	}
	return f.MapFS.Open(name)
}

func TestAFileThatCantBeReadIsAnError(t *testing.T) {
	_, _, err := fleet.Load(context.Background(), faultyFS{repo("cluster.yaml", clusterYAML)}, fleet.Options{})
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "cluster.yaml") {
		t.Errorf("error: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := fleet.Load(ctx, repo("cluster.yaml", clusterYAML), fleet.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v", err)
	}
}

// shuffledFS lists folders in a random order.
type shuffledFS struct {
	fstest.MapFS
	rnd *rand.Rand
}

func (s shuffledFS) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := s.MapFS.ReadDir(name)
	s.rnd.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
	return entries, err
}

func TestTheSameFilesGiveTheSameFleetInAnyOrder(t *testing.T) {
	fsys := repo("secrets.sops.yaml", "sops: {}\n", "broken.yaml", "apiVersion: ichor.maesh.dev/v1alpha1\nkind: [\n")
	for i := range 300 {
		c := fmt.Sprintf("c%d", i%7)
		fsys[fmt.Sprintf("%c/%d/m.yaml", 'a'+i%26, i)] = &fstest.MapFile{Data: []byte(
			strings.ReplaceAll(strings.ReplaceAll(machineYAML, "prod", c), "cp1", fmt.Sprintf("m%d", i%50)))}
	}
	for i := range 5 {
		fsys[fmt.Sprintf("c%d.yaml", i)] = &fstest.MapFile{Data: []byte(strings.ReplaceAll(clusterYAML, "prod", fmt.Sprintf("c%d", i)))}
	}
	want := ""
	for seed := range int64(5) {
		f, problems, err := fleet.Load(context.Background(), shuffledFS{fsys, rand.New(rand.NewSource(seed))}, fleet.Options{})
		if err != nil {
			t.Fatal(err)
		}
		got := describe(f, problems)
		if want == "" {
			want = got
		}
		if got != want {
			t.Fatalf("seed %d gives another fleet", seed)
		}
	}
	if !strings.Contains(want, `there is no TalosCluster "c6"`) && !strings.Contains(want, "no manifest of cluster c6") {
		t.Error("the fleet is not what was meant")
	}
}

// TestHostileYAMLIsReadInTime gives the parser shapes on which YAML libraries have been slow.
func TestHostileYAMLIsReadInTime(t *testing.T) {
	const head = "apiVersion: ichor.maesh.dev/v1alpha1\nkind: TalosConfigPatch\nmetadata: {name: x}\nspec:\n  clusterRef: {name: prod}\n  documents:\n"
	n := 200_000
	for name, body := range map[string]string{
		"entries":  strings.Repeat("  - a: 1\n", n/9),
		"machines": "  - a: 1\n" + strings.Repeat("---\n"+machineYAML, n/200),
		"flow":     "  - a: " + strings.Repeat("[", n),
		"mappings": "  - a: " + strings.Repeat("{a: ", n/4),
		"lists":    "  " + strings.Repeat("- ", n/2),
		"keys":     "  - " + strings.Repeat("? ", n/2),
		"comments": "  - a: 1\n" + strings.Repeat("    # c\n", n/8) + "    b: 2\n",
		"blank":    "  - a: 1\n" + strings.Repeat("\n", n) + "    b: 2\n",
		"fields":   "  - a: 1\n" + manyFields(n/16),
		"unknown":  "  - a: 1\n" + strings.ReplaceAll(manyFields(n/16), "    ", "  "),
		"anchors":  "  - a: 1\n" + strings.ReplaceAll(manyFields(n/24), ": ", ": &a "),
		"docs":     "  - a: 1\n" + strings.Repeat("---\n", n/4),
		"tags":     "  - " + strings.Repeat("!a ", n/3),
		"broken":   "  - a: 1\n" + strings.Repeat("---\na: [\n", n/9),
		"plain":    "  - a: " + strings.Repeat("x ", n/2),
		"quoted":   "  - a: \"" + strings.Repeat("\\n", n/2) + "\"",
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			fsys := repo("cluster.yaml", clusterYAML, "secrets.sops.yaml", "sops: {}\n", "p.yaml", head+body)
			_, problems := mustLoad(t, fsys)
			took := time.Since(start)
			t.Logf("%v, %d problems", took, len(problems))
			if took > 2*time.Minute {
				t.Errorf("it took %v", took)
			}
			if len(problems) > 60 {
				t.Errorf("%d problems", len(problems))
			}
		})
	}
}

func manyFields(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "    f%08d: 1\n", i)
	}
	return b.String()
}

func TestSuggestionsAreSorted(t *testing.T) {
	_, problems := mustLoad(t, repo("b.yaml", machineYAML+"zz: 1\n", "a.yaml", machineYAML+"zz: 1\n"))
	if !slices.IsSortedFunc(problems, func(a, b fleet.Problem) int { return strings.Compare(a.File, b.File) }) {
		t.Errorf("%s", say(problems))
	}
}
