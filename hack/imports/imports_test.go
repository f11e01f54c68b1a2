// Package imports holds the arrows of ARCHITECTURE.md: who may import whom. A new arrow is a decision, so it fails here
// first.
package imports

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "ichor.maesh.dev/ichor/"

type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Imports,Deps"}, args...)...)
	cmd.Dir = "../.."
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(out); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(pkgs) == 0 {
		t.Fatalf("go list %v found no package", args)
	}
	return pkgs
}

// arrows says which folders of this module a folder may import; the longest matching key counts.
var arrows = map[string][]string{
	"schemas":              {"schemas"},
	"render":               {"render", "schemas"},
	"validate":             {"validate", "schemas", "render", "apply/plan"},
	"sync":                 {"sync", "schemas"},
	"apply":                {"apply", "schemas", "render"},
	"apply/plan":           {"apply/plan", "schemas"},
	"status":               {"status", "schemas", "validate/check", "apply/plan"},
	"cmd/ichor":            {"cmd", "schemas", "render", "validate", "sync", "apply", "status"},
	"cmd/internal":         {"cmd/internal", "schemas", "render", "validate", "sync", "apply", "status"},
	"cmd/ichor-lab":        {"cmd", "e2e", "schemas", "render", "validate", "sync", "apply", "status"},
	"e2e":                  {"e2e", "cmd", "schemas", "render", "validate", "sync", "apply", "status"},
	"examples":             {"examples", "schemas", "render", "validate"},
	"hack":                 {"hack", "cmd", "schemas", "render", "validate", "sync", "apply", "status", "e2e"},
	"status/metrics":       {"schemas"},
	"apply/observe":        {"apply", "schemas", "render"},
	"schemas/secret":       {},
	"sync/git":             {"schemas", "sync/git"},
	"sync/forge":           {"schemas", "sync/forge"},
	"validate/check":       {"validate", "schemas", "render", "apply/plan"},
	"cmd/internal/daemon":  {"cmd/internal", "schemas", "render", "validate", "sync", "apply", "status"},
	"cmd/internal/config":  {"schemas"},
	"cmd/internal/version": {},
	"e2e/lab":              {"e2e/lab", "schemas", "render"},
	"e2e/lab/forge":        {"e2e/lab/forge", "schemas"},
	"status/outbox":        {"schemas", "status/outbox"},
	"status/branch":        {"schemas", "status", "validate/check", "apply/plan"},
	"apply/journal":        {"schemas", "apply/journal"},
	"apply/etcd":           {"schemas", "render", "apply/plan", "apply/etcd"},
	"apply/talos":          {"schemas", "render", "apply/plan", "apply/talos"},
	"apply/act":            {"apply", "schemas", "render"},
	"apply/plan/quorum":    {},
}

func under(path, folder string) bool { return path == folder || strings.HasPrefix(path, folder+"/") }

func TestEachFolderImportsOnlyWhatItsArrowAllows(t *testing.T) {
	for _, p := range list(t, "./...") {
		from := strings.TrimPrefix(p.ImportPath, module)
		best := ""
		for folder := range arrows {
			if under(from, folder) && len(folder) > len(best) {
				best = folder
			}
		}
		if best == "" {
			t.Errorf("%s lies in no known folder", from)
			continue
		}
		for _, imp := range p.Imports {
			to, ours := strings.CutPrefix(imp, module)
			if ours && !slices.ContainsFunc(arrows[best], func(a string) bool { return under(to, a) }) {
				t.Errorf("%s may not import %s (folder %s may import %v)", from, to, best, arrows[best])
			}
		}
	}
}

// only lists libraries that a single folder may import directly.
var only = map[string][]string{
	"github.com/go-git/go-git/v5":                      {"sync/git", "e2e", "cmd/ichor-lab"},
	"github.com/google/go-github/v62":                  {"sync/forge/github", "e2e"},
	"github.com/siderolabs/talos/pkg/machinery/client": {"apply/talos", "e2e"},
	"github.com/siderolabs/talos/pkg/machinery/api":    {"apply/talos", "e2e"},
	"go.etcd.io/etcd/client/v3":                        {"apply/etcd", "e2e"},
	"go.etcd.io/etcd/server/v3":                        {"e2e"},
	"github.com/getsops/sops/v3":                       {"render/bundle"},
	"github.com/prometheus/client_golang":              {"status/metrics"},
	"k8s.io/client-go":                                 {"apply/kube", "e2e"},
	"github.com/minio/minio-go/v7":                     {"apply/backup", "e2e"},
	module + "status/metrics":                          {"cmd/internal/daemon", "hack", "status/metrics"},
}

func TestLibrariesHaveOneImporter(t *testing.T) {
	for _, p := range list(t, "./...") {
		from := strings.TrimPrefix(p.ImportPath, module)
		for _, imp := range p.Imports {
			for lib, folders := range only {
				if under(imp, lib) && !slices.ContainsFunc(folders, func(f string) bool { return under(from, f) }) {
					t.Errorf("%s imports %s, which only %v may", from, imp, folders)
				}
			}
		}
	}
}

func TestTheCheckLinksNoClient(t *testing.T) {
	banned := []string{
		"github.com/siderolabs/talos/pkg/machinery/client", "k8s.io/client-go", "github.com/minio/minio-go",
		"go.etcd.io/etcd/client", "github.com/go-git/go-git",
	}
	for _, p := range list(t, "./validate/check", "./status/report") {
		for _, dep := range p.Deps {
			// machinery/client/config has the types of a talosconfig, no client; the bundle's package imports it.
			if strings.HasSuffix(dep, "machinery/client/config") {
				continue
			}
			for _, b := range banned {
				if under(dep, b) || strings.HasPrefix(dep, b) {
					t.Errorf("%s links %s", p.ImportPath, dep)
				}
			}
		}
	}
}

// The decision core is pure: these would let it read a clock, a file, the network, chance or the environment, or run
// beside itself.
func TestTheDecisionCoreIsPure(t *testing.T) {
	banned := []string{
		"os", "io", "net", "context", "log", "sync", "math/rand", "crypto/rand", "syscall", "unsafe", "runtime",
		"io/fs", "bufio", "database/sql",
	}
	for _, p := range list(t, "./apply/plan", "./apply/plan/quorum") {
		for _, imp := range p.Imports {
			if slices.ContainsFunc(banned, func(b string) bool { return under(imp, b) }) {
				t.Errorf("%s imports %s", p.ImportPath, imp)
			}
			if strings.Contains(strings.Split(imp, "/")[0], ".") && !strings.HasPrefix(imp, module) {
				t.Errorf("%s imports %s: only this module's schemas and the standard library", p.ImportPath, imp)
			}
		}
	}
}
