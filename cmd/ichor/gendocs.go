package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"ichor.maesh.dev/ichor/cmd/internal/config"
)

// genDocsCommand writes the generated pages of docs/ (make generate).
func genDocsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "gen-docs DIR", Hidden: true, Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := filepath.Join(args[0], "commands")
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			if err := doc.GenMarkdownTree(root, dir); err != nil {
				return fmt.Errorf("write the pages of the commands: %w", err)
			}
			return os.WriteFile(filepath.Join(args[0], "configuration.md"), configurationPage(), 0o644)
		},
	}
}

func configurationPage() []byte {
	var b bytes.Buffer
	b.WriteString(`# Configuration

<!-- Made by make generate from cmd/internal/config. -->

One YAML file (` + "`ichor run --config FILE`" + ` or ` + "`$ICHOR_CONFIG`" + `); each key is also a flag and a variable. A flag wins over a variable, a variable over
the file, the file over the default. Lists are separated by commas in flags and variables. An unknown key or ` + "`ICHOR_*`" + ` variable is an error.
Secrets come from files and from the environment, never from flags: the age identities from ` + "`SOPS_AGE_KEY`" + ` or ` + "`SOPS_AGE_KEY_FILE`" + `.

` + "```yaml" + `
repo: https://github.com/you/fleet
tokenFile: /etc/ichor/token
stateDir: /var/lib/ichor
metrics:
  listen: :9464
` + "```" + `

A GitHub App, a Gitea or Forgejo server, a GitLab with webhooks, and signatures that are required ([security.md](security.md) says what each token needs):

` + "```yaml" + `
repo: https://github.com/you/fleet
forge:
  app: {id: 12345, installationID: 678, keyFile: /etc/ichor/app.pem}
signatures:
  mode: require
  allowedSignersFile: /etc/ichor/allowed_signers   # lines "you@example.org ssh-ed25519 AAAA…"
` + "```" + `

` + "```yaml" + `
repo: https://git.example.org/you/fleet
tokenFile: /etc/ichor/token
forge: {kind: gitea}
` + "```" + `

` + "```yaml" + `
repo: https://gitlab.example.org/infra/talos/fleet.git
tokenFile: /etc/ichor/token
forge: {kind: gitlab}
webhook: {listen: ":9000", secretFile: /etc/ichor/webhook-secret}
` + "```" + `

| key | flag | variable | default | what |
| --- | --- | --- | --- | --- |
`)
	for _, k := range config.Keys() {
		def := k.Default
		if def != "" {
			def = "`" + def + "`"
		}
		last := len(k.Flags) - 1
		fmt.Fprintf(&b, "| `%s` | `--%s` | `%s` | %s | %s |\n", k.Path, k.Flags[last], k.Env[last], def, strings.ReplaceAll(k.Usage, "|", `\|`))
	}
	return b.Bytes()
}
