package examples_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/ichor/status/metrics"
)

// loadDashboard decodes the dashboard as Grafana's own schema has it: an unknown field of it, of a panel's options or of a
// query is an error.
func loadDashboard(t *testing.T) dashboard.Dashboard {
	t.Helper()
	plugins.RegisterDefaultPlugins()
	data, err := os.ReadFile("grafana/ichor.json")
	if err != nil {
		t.Fatal(err)
	}
	// v0.0.22 gives an empty list of errors where it found none, and then leaves the panels out: they are read once more
	var strict, d dashboard.Dashboard
	if err := strict.UnmarshalJSONStrict(data); err != nil && err.Error() != "" {
		t.Fatalf("the dashboard does not fit Grafana's schema: %v", err)
	}
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	if err := d.Validate(); err != nil && err.Error() != "" {
		t.Fatalf("the dashboard breaks a rule of Grafana's schema: %v", err)
	}
	return d
}

func panels(d dashboard.Dashboard) []dashboard.Panel {
	var out []dashboard.Panel
	for _, p := range d.Panels {
		if p.Panel != nil {
			out = append(out, *p.Panel)
		}
		if p.RowPanel != nil {
			out = append(out, p.RowPanel.Panels...)
		}
	}
	return out
}

// TestDashboardLoads: it fits Grafana's schema, panels lie beside one another, and each query parses and names metrics and
// labels that exist.
func TestDashboardLoads(t *testing.T) {
	d := loadDashboard(t)
	list := panels(d)
	if len(list) < 20 {
		t.Fatalf("only %d panels were read", len(list))
	}
	known := map[string][]string{}
	for _, m := range metrics.New("test").Descs() {
		known[m.Name] = m.Labels
	}
	shown := map[string]bool{}
	var exprs []string
	taken := map[[2]uint32]string{}
	for _, p := range list {
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q leaves the grid", *p.Title)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]uint32{x, y}]; other != "" {
					t.Fatalf("panels %q and %q overlap", *p.Title, other)
				}
				taken[[2]uint32{x, y}] = *p.Title
			}
		}
		for _, target := range p.Targets {
			q, ok := target.(*prometheus.Dataquery)
			if !ok {
				t.Fatalf("panel %q: a query is no query of Prometheus but %T", *p.Title, target)
			}
			exprs = append(exprs, q.Expr)
			for _, name := range names(t, *p.Title, q.Expr, known) {
				shown[name] = true
			}
		}
	}
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			names(t, v.Name, *v.Definition, known)
		}
	}
	parse(t, exprs)
	for name := range known {
		if !shown[name] && !slices.Contains(notShown, name) {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// notShown are metrics that are for alerts or for telling versions apart.
var notShown = []string{"ichor_build_info", "ichor_status_branch_problem", "ichor_apply_last_failed_timestamp_seconds"}

// names checks the metrics and labels of an expression, and gives the names.
func names(t *testing.T, where, expr string, known map[string][]string) []string {
	t.Helper()
	var names []string
	for _, m := range regexp.MustCompile(`(ichor_[a-z_]+)(?:\{([^}]*)\})?`).FindAllStringSubmatch(expr, -1) {
		name := strings.TrimSuffix(m[1], "_bucket")
		labels, ok := known[name]
		if !ok {
			t.Errorf("%s looks at %s, which Ichor does not have", where, m[1])
			continue
		}
		names = append(names, name)
		for _, l := range regexp.MustCompile(`(\w+)\s*[=!]`).FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(labels, l[1]) {
				t.Errorf("%s asks %s for the label %s, which it does not have", where, name, l[1])
			}
		}
	}
	return names
}

// parse asks Prometheus' own parser: each expression is a rule of a file that promtool checks.
func parse(t *testing.T, exprs []string) {
	t.Helper()
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []rule
	for i, e := range exprs {
		e = strings.NewReplacer("$cluster", "prod", "$machine", "cp1").Replace(e)
		rules = append(rules, rule{fmt.Sprintf("dashboard:query:%d", i), e})
	}
	data, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), promtool(t), "check", "rules", "--lint=none", file).CombinedOutput()
	if err != nil || !strings.Contains(string(out), fmt.Sprintf("%d rules found", len(exprs))) {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}
