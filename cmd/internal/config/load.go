package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// ErrUsage marks a configuration that a person has to correct.
var ErrUsage = errors.New("configuration")

// Load puts defaults, file, environment and flags together and checks the result. environ is os.Environ's form.
// Errors are ErrUsage and name the key, and for the file its line.
func Load(flags *pflag.FlagSet, environ []string) (Config, error) {
	env := map[string]string{}
	for _, kv := range environ {
		if name, value, ok := strings.Cut(kv, "="); ok {
			env[name] = value
		}
	}
	c := Default()
	file := env["ICHOR_CONFIG"]
	if f := flags.Lookup("config"); f != nil && f.Changed {
		file = f.Value.String()
	}
	if file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return c, fmt.Errorf("%w: read the configuration file: %w", ErrUsage, err)
		}
		if err := decode(data, &c); err != nil {
			return c, fmt.Errorf("%w: %s: %w", ErrUsage, file, err)
		}
	}
	for _, k := range Keys() {
		if err := k.load(&c, env, flags); err != nil {
			return c, err
		}
	}
	if err := unknownVariables(env); err != nil {
		return c, err
	}
	return c, c.check()
}

// load takes the key's variables, then its flags.
func (k Key) load(c *Config, env map[string]string, flags *pflag.FlagSet) error {
	for _, name := range k.Env {
		if s, ok := env[name]; ok && s != "" {
			if err := k.set(c, s); err != nil {
				return fmt.Errorf("%w: $%s: %w", ErrUsage, name, err)
			}
		}
	}
	for _, name := range k.Flags {
		if f := flags.Lookup(name); f != nil && f.Changed {
			if err := k.set(c, f.Value.String()); err != nil {
				return fmt.Errorf("%w: --%s: %w", ErrUsage, name, err)
			}
		}
	}
	return nil
}

func decode(data []byte, c *Config) error {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s (docs/configuration.md lists the keys)",
			strings.ReplaceAll(strings.TrimPrefix(err.Error(), "yaml: "), " in type config.", " in "))
	}
	return nil
}

// own lists the ICHOR_ variables that are no keys.
var own = []string{"ICHOR_CONFIG", "ICHOR_ONCE", "ICHOR_TOOLS_DIR", "ICHOR_LAB_STATE", "ICHOR_TALOSCTL", "ICHOR_NODES"}

// unknownVariables refuses ICHOR_* variables that no key has: a misspelt one must not be silently without effect.
func unknownVariables(env map[string]string) error {
	known := slices.Clone(own)
	for _, k := range Keys() {
		known = append(known, k.Env...)
	}
	var unknown []string
	for name := range env {
		if strings.HasPrefix(name, "ICHOR_") && !strings.HasPrefix(name, "ICHOR_E2E_") &&
			!strings.HasPrefix(name, "ICHOR_LAB_") && !slices.Contains(known, name) {
			unknown = append(unknown, "$"+name)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	return fmt.Errorf("%w: %s: no such key; docs/configuration.md lists them", ErrUsage, strings.Join(unknown, ", "))
}

// check refuses what can't work, each with what to do, all at once.
func (c *Config) check() error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	if c.Repo == "" {
		bad("repo", "is required: the URL of the Git repository (--repo)")
	}
	if c.Branch == "" {
		bad("branch", "is empty")
	}
	if c.StatusBranch == "" || c.StatusBranch == c.Branch {
		bad("statusBranch", "must be a branch of its own, not the watched branch %q", c.Branch)
	}
	if c.StateDir == "" {
		bad("stateDir", "is required")
	}
	oneOf(bad, "mode", c.Mode, "apply", "observe")
	oneOf(bad, "log.level", c.Log.Level, "debug", "info", "warn", "error")
	oneOf(bad, "log.format", c.Log.Format, "auto", "text", "json")
	oneOf(bad, "signatures.mode", c.Signatures.Mode, "off", "warn", "require")
	if c.Signatures.Mode != "off" && c.Signatures.AllowedSignersFile == "" && c.Signatures.PGPKeysFile == "" {
		bad("signatures", "mode %s needs to know who may sign: set allowedSignersFile (SSH) or pgpKeysFile", c.Signatures.Mode)
	}
	c.checkForge(bad)
	atLeast(bad, "interval", c.Interval, 100*time.Millisecond)
	// A read of a silent machine takes up to its 5 s; facts of the others must still be young enough after it.
	atLeast(bad, "nodes.factMaxAge", c.Nodes.FactMaxAge, 6*time.Second)
	atLeast(bad, "nodes.retryInterval", c.Nodes.RetryInterval, 10*time.Millisecond)
	atLeast(bad, "nodes.unreachableRetry", c.Nodes.UnreachableRetry, 10*time.Millisecond)
	atLeast(bad, "limits.check", c.Limits.Check, time.Second)
	if c.Limits.Files < 1 || c.Limits.FileSize < 1 {
		bad("limits", "files and fileSize must be positive")
	}
	if c.Concurrency.Nodes < 1 {
		bad("concurrency.nodes", "must be at least 1")
	}
	if c.Webhook.Listen != "" && c.Webhook.SecretFile == "" {
		bad("webhook.secretFile", "is required with webhook.listen: deliveries without a signature are never accepted")
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrUsage, errors.Join(errs...))
}

// hosts whose forge is known.
var hosts = map[string]string{"github.com": "github", "gitlab.com": "gitlab", "codeberg.org": "gitea"}

func (c *Config) checkForge(bad func(key, format string, args ...any)) {
	host := hostOf(c.Repo)
	if c.Forge.Kind == "" {
		if c.Forge.Kind = hosts[host]; c.Forge.Kind == "" {
			c.Forge.Kind = "none"
		}
	}
	switch c.Forge.Kind {
	case "none":
		return
	case "forgejo":
		c.Forge.Kind = "gitea"
	case "github", "gitea", "gitlab":
	default:
		oneOf(bad, "forge.kind", c.Forge.Kind, "github", "gitea", "gitlab", "none")
		return
	}
	c.checkForgeAddress(bad, host)
	app := c.Forge.App
	if app.ID != 0 && (app.InstallationID == 0 || app.KeyFile == "") {
		bad("forge.app", "id, installationID and keyFile belong together")
	}
	if app.ID != 0 && c.Forge.Kind != "github" {
		bad("forge.app", "is for github alone; use a token (forge.tokenFile) for %s", c.Forge.Kind)
	}
	if c.Forge.TokenFile == "" {
		c.Forge.TokenFile = c.TokenFile
	}
	if c.Forge.TokenFile == "" && app.ID == 0 {
		bad("tokenFile", "is required to post statuses to %s (--token-file), or forge.app", c.Forge.URL)
	}
}

func (c *Config) checkForgeAddress(bad func(key, format string, args ...any), host string) {
	if c.Forge.URL == "" {
		switch {
		case host != "":
			c.Forge.URL = "https://" + host
		case c.Forge.Kind == "github":
			c.Forge.URL = "https://github.com"
		default:
			bad("forge.url", "is required: the web address of the %s server (--forge-url)", c.Forge.Kind)
		}
	}
	deep := c.Forge.Kind == "gitlab" // its projects lie in groups of groups
	if c.Forge.Repository == "" {
		c.Forge.Repository = repositoryOf(c.Repo, deep)
	}
	parts := strings.Split(c.Forge.Repository, "/")
	if len(parts) < 2 || (len(parts) > 2 && !deep) || slices.Contains(parts, "") {
		bad("forge.repository", "%q is not owner/name (--forge-repo)", c.Forge.Repository)
	}
}

// hostOf is the host of a Git URL, https, ssh or user@host:path; "" where there is none.
func hostOf(repo string) string {
	if u, err := url.Parse(repo); err == nil && u.Host != "" {
		return strings.ToLower(u.Hostname())
	}
	if before, _, ok := strings.Cut(repo, ":"); ok && !strings.Contains(before, "/") {
		_, host, at := strings.Cut(before, "@")
		if at {
			return strings.ToLower(host)
		}
	}
	return ""
}

// repositoryOf takes owner/name off the end of a Git URL, or, deep, its whole path; "" where there is none.
func repositoryOf(repo string, deep bool) string {
	repo = strings.TrimSuffix(strings.TrimSuffix(repo, "/"), ".git")
	if u, err := url.Parse(repo); err == nil && u.Host != "" {
		repo = u.Path
	} else if _, path, ok := strings.Cut(repo, ":"); ok {
		repo = path
	}
	parts := strings.FieldsFunc(repo, func(r rune) bool { return r == '/' })
	if len(parts) < 2 {
		return ""
	}
	if deep {
		return strings.Join(parts, "/")
	}
	return strings.Join(parts[len(parts)-2:], "/")
}

func oneOf(bad func(key, format string, args ...any), key, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		bad(key, "%q is not one of %s", value, strings.Join(allowed, ", "))
	}
}

func atLeast(bad func(key, format string, args ...any), key string, d, least time.Duration) {
	if d < least {
		bad(key, "%s is too short; at least %s", d, least)
	}
}
