package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"ichor.maesh.dev/ichor/cmd/internal/config"
)

func load(t *testing.T, file string, env []string, args ...string) (config.Config, error) {
	t.Helper()
	flags := pflag.NewFlagSet("run", pflag.ContinueOnError)
	config.AddFlags(flags)
	if file != "" {
		path := filepath.Join(t.TempDir(), "ichor.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return config.Load(flags, env)
}

func TestTheDaemonOfTheSpecification(t *testing.T) {
	c, err := load(t, "", nil, strings.Fields("--repo http://127.0.0.1:3000/o/r.git --branch main --forge github"+
		" --forge-url http://127.0.0.1:3000 --forge-repo o/r --token-file F --state-dir D --interval 10s"+
		" --metrics-listen 127.0.0.1:9464")...)
	if err != nil {
		t.Fatal(err)
	}
	if c.Forge.Kind != "github" || c.Forge.Repository != "o/r" || c.Forge.TokenFile != "F" ||
		c.Interval != 10*time.Second || c.Metrics.Listen != "127.0.0.1:9464" || c.StateDir != "D" {
		t.Fatalf("got %+v", c)
	}
}

func TestFlagBeatsVariableBeatsFileBeatsDefault(t *testing.T) {
	file := "repo: https://git.example.com/o/r\ninterval: 3s\nstateDir: file\nbranch: file\nforge: {kind: none}\n"
	env := []string{"ICHOR_STATE_DIR=env", "ICHOR_BRANCH=env", "ICHOR_CLUSTERS=a, b"}
	c, err := load(t, file, env, "--branch", "flag")
	if err != nil {
		t.Fatal(err)
	}
	if c.Branch != "flag" || c.StateDir != "env" || c.Interval != 3*time.Second || c.StatusBranch != "ichor/status" {
		t.Fatalf("got %+v", c)
	}
	if len(c.Clusters) != 2 || c.Clusters[1] != "b" {
		t.Fatalf("clusters: %q", c.Clusters)
	}
}

func TestEveryKeyIsAlsoAFlagAndAVariable(t *testing.T) {
	flags := pflag.NewFlagSet("run", pflag.ContinueOnError)
	config.AddFlags(flags)
	seen := map[string]bool{}
	for _, k := range config.Keys() {
		if k.Usage == "" {
			t.Errorf("key %s has no usage", k.Path)
		}
		for i, name := range k.Flags {
			if flags.Lookup(name) == nil || seen[name] {
				t.Errorf("key %s: flag %s is missing or twice", k.Path, name)
			}
			seen[name] = true
			if !strings.HasPrefix(k.Env[i], "ICHOR_") {
				t.Errorf("key %s: variable %s", k.Path, k.Env[i])
			}
		}
	}
	for _, name := range []string{"webhook-listen", "webhook-secret-file", "status-branch", "forge-app-installation-id"} {
		if !seen[name] {
			t.Errorf("flag %s is missing", name)
		}
	}
}

func TestBadConfigurationSaysWhatToDo(t *testing.T) {
	const ok = "repo: https://git.example.com/o/r\nforge: {kind: none}\n"
	for name, tc := range map[string]struct {
		file string
		env  []string
		args []string
		want string
	}{
		"no repo":            {want: "repo: is required"},
		"unknown key":        {file: ok + "brnach: x\n", want: "line 3: field brnach not found"},
		"unknown variable":   {file: ok, env: []string{"ICHOR_BRANHC=x"}, want: "$ICHOR_BRANHC: no such key"},
		"duration":           {file: ok, args: []string{"--interval", "10"}, want: `--interval: "10" is not a duration`},
		"too short":          {file: ok, args: []string{"--interval", "1ms"}, want: "at least 100ms"},
		"same branch":        {file: ok, args: []string{"--status-branch", "main"}, want: "must be a branch of its own"},
		"webhook secret":     {file: ok, args: []string{"--webhook-listen", ":1"}, want: "webhook.secretFile: is required"},
		"github token":       {args: []string{"--repo", "https://github.com/o/r"}, want: "tokenFile: is required"},
		"gitea without URL":  {file: "repo: /srv/x\n", args: []string{"--forge", "gitea"}, want: "forge.url: is required"},
		"gitlab token":       {args: []string{"--repo", "https://gitlab.com/a/b/c"}, want: "tokenFile: is required"},
		"app on gitlab":      {args: strings.Fields("--repo https://gitlab.com/a/b --forge-app-id 1 --forge-app-installation-id 2 --forge-app-key-file k"), want: "forge.app: is for github alone"},
		"subgroup on github": {args: []string{"--repo", "https://github.com/o/r", "--forge-repo", "a/b/c"}, want: "is not owner/name"},
		"misspelt forge":     {file: ok, args: []string{"--forge", "githbu"}, want: `"githbu" is not one of`},
		"signatures":         {file: ok, args: []string{"--signatures-mode", "require"}, want: "needs to know who may sign"},
		"signature mode":     {file: ok, args: []string{"--signatures-mode", "enforce"}, want: `"enforce" is not one of off, warn, require`},
		"mode":               {file: ok, args: []string{"--mode", "dry"}, want: `mode: "dry" is not one of`},
		"missing file":       {args: []string{"--config", "/nonexistent"}, want: "read the configuration file"},
		"number in variable": {file: ok, env: []string{"ICHOR_LIMITS_FILES=many"}, want: "$ICHOR_LIMITS_FILES"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, tc.file, tc.env, tc.args...)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestTheForgeIsTakenFromTheRepository(t *testing.T) {
	for _, tc := range []struct{ args, kind, url, repo string }{
		{"--repo https://github.com/o/r.git", "github", "https://github.com", "o/r"},
		{"--repo git@github.com:o/r.git", "github", "https://github.com", "o/r"},
		{"--repo https://gitlab.com/a/b/c.git", "gitlab", "https://gitlab.com", "a/b/c"},
		{"--repo ssh://git@gitlab.example:2222/a/b/c --forge gitlab", "gitlab", "https://gitlab.example", "a/b/c"},
		{"--repo https://codeberg.org/o/r", "gitea", "https://codeberg.org", "o/r"},
		{"--repo https://git.example/o/r --forge forgejo", "gitea", "https://git.example", "o/r"},
		{"--repo https://ghe.example/o/r --forge github", "github", "https://ghe.example", "o/r"},
		{"--repo https://git.example/o/r", "none", "", ""},
	} {
		c, err := load(t, "", nil, strings.Fields(tc.args+" --token-file t")...)
		if err != nil || c.Forge.Kind != tc.kind || c.Forge.URL != tc.url || c.Forge.Repository != tc.repo {
			t.Errorf("%s: %+v %v", tc.args, c.Forge, err)
		}
	}
}
