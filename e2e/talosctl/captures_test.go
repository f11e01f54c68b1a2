package talosctl

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// captureDir is the folder of the raw captures of real nodes; with it, TestTakeCaptures writes
// testdata/captures anew.
var captureDir = flag.String("captures", "", "folder of the raw captures of real nodes, to take testdata/captures from")

// capture is what talosctl printed and how it ended at a real node of Talos v1.13.5, masked.
type capture struct {
	out string
	rc  int
}

// masks replace what differs between any two clusters or runs: addresses, names, times, versions of
// resources, sizes, identities. They are applied in order, to captures and to what the lab says.
var masks = []struct {
	find *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`\b(10\.5\.0|10\.99\.0|127\.0\.90)\.\d+\b`), "ADDR"},
	{regexp.MustCompile(`fe80::[0-9a-f:]+`), "LINKLOCAL"},
	{regexp.MustCompile(`enx[0-9a-f]{12}`), "enxMAC"},
	{regexp.MustCompile(`\b02(:[0-9a-f]{2}){5}\b`), "MAC"},
	{regexp.MustCompile(`(?m)^(\s+hardwareAddr: )[0-9a-f]{2}(:[0-9a-f]{2}){4}:[1-9a-f][0-9a-f]$`), "${1}MAC"},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UUID"},
	{regexp.MustCompile(`\b[0-9a-f]{16}\b`), "MEMBER"},
	{regexp.MustCompile(`nodeId: \S+`), "nodeId: ID"},
	{regexp.MustCompile(`version: \d+\n`), "version: N\n"},
	{regexp.MustCompile(`(\d+[hms])+ ago`), "AGO"},
	{regexp.MustCompile(`[\d.]+ [kMG]?B\b`), "SIZE"},
	{regexp.MustCompile(`size: \d{5,}`), "size: SIZE"},
	{regexp.MustCompile(`6\.\d+\.\d+-\S+`), "KERNEL"},
	{regexp.MustCompile(`(kubelet|installer):v[\d.]+`), "${1}:VERSION"},
	{regexp.MustCompile(`(http://127.0.0.1):\d+`), "${1}:PORT"},
	{regexp.MustCompile(`(secret|token|key|crt): \S{16,}`), "${1}: SECRET"},
	{regexp.MustCompile(`@@ -\d+,\d+ \+\d+,\d+ @@`), "@@"},
	{regexp.MustCompile(`"(ADDR)(:\d+)?->`), `"${1}->`},
	{regexp.MustCompile(`\b(n[123]|vm[123]|cp[123]|w1)\b`), "HOST"},
	{regexp.MustCompile(`/dev/[sv]da\b`), "/dev/DISK"},
	{regexp.MustCompile(`SHA:\s+\S+`), "SHA: HASH"},
	{regexp.MustCompile(`\(\d+\.\d+%\)`), "(N%)"},
	{regexp.MustCompile(`[ \t]+`), " "},
	{regexp.MustCompile(`MEMBER \d+ \d+ \d+ (true|false)`), "MEMBER N N N ${1}"},
	{regexp.MustCompile(`(?m) +$`), ""},
	{regexp.MustCompile(`(?m)^((?:ADDR)? [a-z]\S* [A-Z]\S* \S+) \d+`), "${1} N"},
	{regexp.MustCompile(`\n+$`), "\n"},
}

func mask(s string) string {
	for _, m := range masks {
		s = m.find.ReplaceAllString(s, m.with)
	}
	return s
}

var captureEnd = regexp.MustCompile(`\n?\[rc=(\d+) in [\d.]+s\]\n*$`)

// parseCapture takes a raw capture apart: the command, its output and its exit code.
func parseCapture(t *testing.T, raw string) capture {
	t.Helper()
	end := captureEnd.FindStringSubmatch(raw)
	_, rest, ok := strings.Cut(raw, "\n")
	if end == nil || !ok {
		t.Fatalf("not a capture of one command: %.200s", raw)
	}
	rc, err := strconv.Atoi(end[1])
	if err != nil {
		t.Fatal(err)
	}
	out := captureEnd.ReplaceAllString(rest, "")
	if strings.HasPrefix(rest, "[rc=") {
		out = ""
	}
	if out != "" {
		out += "\n"
	}
	return capture{mask(out), rc}
}

// readCapture reads a masked capture: its source, its exit code, and the output.
func readCapture(t *testing.T, name string) capture {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "captures", name+".txt"))
	if err != nil {
		t.Fatalf("read a capture (TestTakeCaptures writes them): %v", err)
	}
	head, out, _ := strings.Cut(string(b), "\n---\n")
	_, code, ok := strings.Cut(head, "exit code: ")
	rc, err := strconv.Atoi(strings.TrimSpace(code))
	if !ok || err != nil {
		t.Fatalf("capture %s has no exit code", name)
	}
	return capture{out, rc}
}

// TestTakeCaptures writes the captures that the story compares with, masked, from the raw ones.
func TestTakeCaptures(t *testing.T) {
	if *captureDir == "" {
		t.Skip("only with -captures DIR: it writes testdata/captures anew")
	}
	for _, name := range compared {
		raw, err := os.ReadFile(filepath.Join(*captureDir, name+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		c := parseCapture(t, string(raw))
		text := "source: captures/" + name + ".txt of a real node of Talos v1.13.5, masked\nexit code: " + strconv.Itoa(c.rc) + "\n---\n" + c.out
		path := filepath.Join("testdata", "captures", name+".txt")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCapturesHoldNoSecrets looks for anything in the captures that could be key material, an
// address or a path of the machine they were taken on.
func TestCapturesHoldNoSecrets(t *testing.T) {
	long := regexp.MustCompile(`[A-Za-z0-9+/]{40,}|LS0t|BEGIN |/(home|root|tmp)/`)
	for _, name := range compared {
		c := readCapture(t, name)
		if found := long.FindString(c.out); found != "" {
			t.Errorf("capture %s holds %.12q…", name, found)
		}
	}
	if mask("node: 127.0.90.1\n    version: 12\n") != mask("node: 10.5.0.21\n version: 3\n") || mask("ready: true") == mask("ready: false") {
		t.Error("the masks hide too little or too much")
	}
}

// same runs talosctl and wants the exit code and, masked, the whole output that a real node gave.
func (s *story) same(name string, args ...string) string {
	s.t.Helper()
	return s.sameAs("admin", name, args...)
}

func (s *story) sameAs(who, name string, args ...string) string {
	s.t.Helper()
	out, rc := s.runAs(who, args...)
	want := readCapture(s.t, name)
	s.compared[name] = true
	s.note(same, args)
	if rc != want.rc {
		s.t.Errorf("talosctl %v exited with %d, a real node with %d (%s)\n%s", args, rc, want.rc, name, out)
	}
	if got := mask(out); got != want.out {
		s.t.Errorf("talosctl %v printed, masked, what a real node did not (%s):\n%s", args, name, lineDiff(want.out, got))
	}
	return out
}

// lineDiff shows the lines that only one of two texts has, at their places.
func lineDiff(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	var out strings.Builder
	for i := 0; i < max(len(w), len(g)); i++ {
		var a, b string
		if i < len(w) {
			a = w[i]
		}
		if i < len(g) {
			b = g[i]
		}
		if a != b {
			out.WriteString("  line " + strconv.Itoa(i+1) + " real: " + a + "\n          lab:  " + b + "\n")
		}
	}
	return out.String()
}
