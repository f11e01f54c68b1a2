package node

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// What of a configuration takes effect only with the next boot is read here, once a boot; what is
// live is read when it is asked for. On 1.14 nothing tells the one from the other
// (talos-observed-114.md 1).

// takeEnvironment is the task setUserEnvVars: machine.env reaches machined, and the security profile
// decides whether sandboxd starts.
func (b *boot) takeEnvironment(context.Context) error {
	cfg, err := b.machineConfig()
	if err != nil {
		return err
	}
	raw := cfg.RawV1Alpha1()
	var env []string
	if raw != nil && raw.MachineConfig != nil {
		for k, v := range raw.MachineConfig.MachineEnv { //nolint:staticcheck // nodes take it
			env = append(env, k+"="+v)
		}
	}
	var profile fields
	newerDocument(cfg, "SecurityProfileConfig", &profile)
	b.mu.Lock()
	b.env, b.isolation = env, profile.WorkloadIsolation
	b.mu.Unlock()
	b.showEnvironment()
	return nil
}

// showEnvironment writes machined's environment: its own, what the boot found in machine.env, and
// the EnvironmentConfig documents as they are now.
func (b *boot) showEnvironment() {
	vars := map[string]string{
		"HOME": "/", "PATH": "/usr/bin:/usr/local/sbin:/usr/local/bin:/opt/cni/bin", "PLATFORM": "metal",
		"TALOSSKU": "2CPU-4096RAM", "TERM": "linux", "USERDATA": "",
	}
	b.mu.Lock()
	for _, kv := range b.env {
		k, v, _ := strings.Cut(kv, "=")
		vars[k] = v
	}
	b.mu.Unlock()
	for _, d := range documentsOf(b.config(), "EnvironmentConfig") {
		if e, ok := d.(interface{ Variables() map[string]string }); ok {
			maps.Copy(vars, e.Variables())
		}
	}
	var list []string
	for k, v := range vars {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	put(b, "runtime.EnvironmentController", runtime.NewEnvironment("machined"), func(r *runtime.Environment) {
		r.TypedSpec().Variables = list
	})
}

// takeFiles is the task writeUserFiles.
func (b *boot) takeFiles(context.Context) error {
	cfg, err := b.machineConfig()
	if err != nil {
		return err
	}
	list, err := cfg.Machine().Files()
	if err != nil {
		return err
	}
	files := map[string][]byte{}
	for _, f := range list {
		if f.Op() == "append" {
			files[f.Path()] = append(files[f.Path()], f.Content()...)
			continue
		}
		files[f.Path()] = []byte(f.Content())
	}
	b.mu.Lock()
	b.files = files
	b.mu.Unlock()
	return nil
}

// takeUdevRules is the task writeUdevRules.
func (b *boot) takeUdevRules(context.Context) error {
	rules := b.udevRules()
	b.mu.Lock()
	b.udev = rules
	b.mu.Unlock()
	return nil
}

func (b *boot) udevRules() string {
	cfg := b.config()
	if cfg == nil || cfg.Machine() == nil {
		return ""
	}
	rules := cfg.Machine().Udev().Rules()
	var doc struct {
		Rules []string `yaml:"rules"`
	}
	if newerDocument(cfg, "UdevRulesConfig", &doc) {
		rules = append(slices.Clone(rules), doc.Rules...)
	}
	if len(rules) == 0 {
		return ""
	}
	return strings.Join(rules, "\n") + "\n"
}

// udevPath is where Talos writes the configuration's udev rules.
const udevPath = "/usr/lib/udev/rules.d/99-talos.rules"

// ConfiguredFile is a file that the configuration makes on the node: machine.files as the boot found
// them, and the udev rules (since 1.14 rewritten at once). Not ok when there is none of this path.
func (b *boot) configuredFile(path string) ([]byte, bool) {
	if path == udevPath {
		if b.release.multiDoc {
			return []byte(b.udevRules()), true
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		return []byte(b.udev), true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for p, content := range b.files {
		if p == path || "/var"+p == path { // a file outside /var is written there and mounted over
			return content, true
		}
	}
	return nil, false
}
