// Package doctor tries each part of the configuration on its own and says what to do about what fails. It writes nothing
// to a node, a branch or a forge; the state folder is the one thing that it touches.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/apply/talos"
	"ichor.maesh.dev/ichor/cmd/internal/config"
	"ichor.maesh.dev/ichor/cmd/internal/daemon"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
	"ichor.maesh.dev/ichor/sync/forge"
	"ichor.maesh.dev/ichor/sync/git"
)

// Level of a finding.
type Level string

// Levels. Skipped could not be tried, because of another finding or because there is nothing to try.
const (
	OK      Level = "ok"
	Warning Level = "warning"
	Failed  Level = "failed"
	Skipped Level = "skipped"
)

// Finding is what trying one part found. Hint says what to do.
type Finding struct {
	Part    string
	Level   Level
	Message string
	Hint    string
}

// Examine tries the parts in order and tells each finding as it comes. env looks up the age identity.
func Examine(ctx context.Context, c config.Config, env func(string) string, tell func(Finding)) {
	d := &examination{ctx: ctx, c: c, tell: tell}
	d.state()
	d.keys(env)
	d.forge()
	d.repository()
	if d.mirror != nil {
		defer d.mirror.Close()
	}
	d.statusBranch()
	d.commit()
	d.secrets()
	d.nodes()
	d.webhook()
}

type examination struct {
	ctx  context.Context
	c    config.Config
	tell func(Finding)

	identities bundle.Keys
	client     forge.Forge
	mirror     *git.Mirror
	refs       git.Refs
	head       string
	fleet      *fleet.Fleet
	bundles    map[string]*bundle.Bundle
}

func (d *examination) found(part string, level Level, hint, format string, args ...any) {
	d.tell(Finding{Part: part, Level: level, Message: fmt.Sprintf(format, args...), Hint: hint})
}

func (d *examination) state() {
	const part = "state folder"
	if err := os.MkdirAll(d.c.StateDir, 0o700); err != nil {
		d.found(part, Failed, "make it, or set stateDir to a folder that Ichor may write", "%v", err)
		return
	}
	f, err := os.CreateTemp(d.c.StateDir, ".doctor-")
	if err != nil {
		d.found(part, Failed, "give Ichor the right to write there", "%v", err)
		return
	}
	_ = f.Close()
	_ = os.Remove(f.Name())
	d.found(part, OK, "", "%s can be written", d.c.StateDir)
}

func (d *examination) keys(env func(string) string) {
	const part = "age identity"
	keys, err := bundle.LoadKeys(env)
	switch {
	case errors.Is(err, bundle.ErrNoKeys):
		d.found(part, Failed, "set SOPS_AGE_KEY or SOPS_AGE_KEY_FILE; without it commits are checked, but nothing is applied", "none is set")
	case err != nil:
		d.found(part, Failed, "the file must be an age key file, as age-keygen writes it", "%v", err)
	default:
		d.identities = keys
		d.found(part, OK, "", "%s", strings.Join(keys.Recipients(), ", "))
	}
}

func (d *examination) forge() {
	const part = "forge"
	f, err := daemon.OpenForge(d.c)
	if err != nil {
		d.found(part, Failed, "see forge and tokenFile in docs/configuration.md", "%v", err)
		return
	}
	if d.c.Forge.Kind == "none" {
		d.client = f
		d.found(part, Skipped, "set forge to get pull requests checked and commit statuses posted", "none is configured")
		return
	}
	r, err := f.Repository(d.ctx)
	if err != nil {
		d.found(part, Failed, forgeHint(err), "%v", err)
		return
	}
	d.client = f
	d.found(part, OK, "", "%s answers: repository %s, ID %s", d.c.Forge.URL, r.FullName, r.ID)
	pulls, err := f.PullRequests(d.ctx, d.c.Branch)
	if err != nil {
		d.found("pull requests", Failed, forgeHint(err), "%v", err)
		return
	}
	d.found("pull requests", OK, "", "%d open against %s", len(pulls), d.c.Branch)
}

func forgeHint(err error) string {
	switch forge.KindOf(err) {
	case forge.KindAuth:
		return "the token must be valid and may need: contents, pull requests and commit statuses"
	case forge.KindRate:
		return "the forge asks to wait"
	case forge.KindPermanent:
		return "is forge.repository right, and may the token see it?"
	}
	return "is forge.url right, and reachable from here?"
}

func (d *examination) repository() {
	const part = "repository"
	m, err := daemon.OpenMirror(d.ctx, d.c, d.client)
	if err != nil {
		d.found(part, Failed, "see repo in docs/configuration.md", "%v", err)
		return
	}
	d.mirror = m
	d.refs, err = m.LsRemote(d.ctx)
	if err != nil {
		d.found(part, Failed, gitHint(err), "%v", err)
		return
	}
	d.head = d.refs.Heads[d.c.Branch]
	if d.head == "" {
		hint := "push a first commit"
		if d.refs.Default != "" && d.refs.Default != d.c.Branch {
			hint = "its default branch is " + d.refs.Default + ": set branch"
		}
		d.found(part, Failed, hint, "%s has no branch %s", d.c.Repo, d.c.Branch)
		return
	}
	d.found(part, OK, "", "%s answers: %s is at %.12s", d.c.Repo, d.c.Branch, d.head)
}

func gitHint(err error) string {
	switch git.ClassOf(err) {
	case git.ClassCredential:
		return "the credential is refused: see tokenFile or ssh"
	case git.ClassAccess:
		return "no such repository, or the credential may not see it"
	case git.ClassTrust:
		return "the server's certificate or host key is not trusted: see caFile and ssh.knownHostsFile"
	case git.ClassTransient:
		return "is the address right, and reachable from here?"
	}
	return ""
}

func (d *examination) statusBranch() {
	const part = "status branch"
	if d.mirror == nil || d.refs.Heads == nil {
		d.found(part, Skipped, "", "the repository has to be reached first")
		return
	}
	if d.refs.Heads[d.c.StatusBranch] == "" {
		d.found(part, OK, "whether the credential may push to it shows at the first run", "%s is not there yet; it is made", d.c.StatusBranch)
		return
	}
	b, err := d.mirror.Branch(d.c.StatusBranch, git.BranchOptions{})
	if err != nil {
		d.found(part, Failed, "", "%v", err)
		return
	}
	defer b.Close()
	tip, err := b.Tip(d.ctx)
	if err != nil {
		d.found(part, Failed, gitHint(err), "%v", err)
		return
	}
	d.found(part, OK, "", "%s is at %.12s", d.c.StatusBranch, tip.Hash)
}

// commit loads the head.
func (d *examination) commit() {
	const part = "manifests"
	if d.head == "" {
		d.found(part, Skipped, "", "there is no head to read")
		return
	}
	if _, err := d.mirror.FetchBranch(d.ctx, d.c.Branch); err != nil {
		d.found(part, Failed, gitHint(err), "%v", err)
		return
	}
	files, err := d.mirror.FS(d.head)
	if err != nil {
		d.found(part, Failed, "the branch moved meanwhile? try again", "%v", err)
		return
	}
	f, problems, err := fleet.Load(d.ctx, files, daemon.LoadOptions(d.c))
	if err != nil {
		d.found(part, Failed, "", "%v", err)
		return
	}
	d.fleet = f
	machines := 0
	for _, c := range f.Clusters {
		machines += len(c.Machines)
	}
	errs := slices.DeleteFunc(problems, func(p fleet.Problem) bool { return p.Severity != fleet.Error })
	if len(errs) > 0 {
		d.found(part, Warning, "ichor check shows them all", "%d clusters, %d machines, %d errors, the first at %s:%d: %s",
			len(f.Clusters), machines, len(errs), errs[0].File, errs[0].Line, errs[0].Message)
		return
	}
	hint := ""
	if machines == 0 {
		hint = "is path right? it narrows where manifests are looked for"
	}
	d.found(part, OK, hint, "%d clusters, %d machines", len(f.Clusters), machines)
}

func (d *examination) secrets() {
	d.bundles = map[string]*bundle.Bundle{}
	for _, c := range d.clusters() {
		part := "secrets of " + c.Name
		switch {
		case c.Secrets == nil:
			d.found(part, Failed, "make it with talosctl gen secrets and encrypt it with sops", "%s is not in the repository",
				c.Manifest.Spec.SecretsRef.Path)
		case d.identities.Empty():
			d.found(part, Skipped, "", "there is no age identity to open them")
		default:
			b, err := bundle.Open(c.Secrets.Data, c.Secrets.Path, d.identities)
			if err != nil {
				d.found(part, Failed, "is the bundle encrypted to "+strings.Join(d.identities.Recipients(), " or ")+"?", "%v", err)
				continue
			}
			d.bundles[c.Name] = b
			d.found(part, OK, "", "%s opens", c.Secrets.Path)
		}
	}
}

// clusters of the head that this instance serves.
func (d *examination) clusters() []*fleet.Cluster {
	if d.fleet == nil {
		return nil
	}
	var out []*fleet.Cluster
	for _, c := range d.fleet.Clusters {
		if c.Manifest != nil && (len(d.c.Clusters) == 0 || slices.Contains(d.c.Clusters, c.Name)) {
			out = append(out, c)
		}
	}
	return out
}

func (d *examination) nodes() {
	for _, c := range d.clusters() {
		b := d.bundles[c.Name]
		if b == nil || c.Manifest.Spec.Suspend {
			continue
		}
		dialer, err := talos.NewDialer(b, talos.Options{})
		if err != nil {
			d.found("nodes of "+c.Name, Failed, "", "%v", err)
			continue
		}
		for _, m := range c.Machines {
			if m.Manifest.Spec.ApprovalState == v1alpha1.ApprovalApproved {
				d.node(dialer, c, m)
			}
		}
		dialer.Close()
	}
}

func (d *examination) node(dialer *talos.Dialer, c *fleet.Cluster, m *fleet.Machine) {
	part := "node " + c.Name + "/" + m.Name
	ctx, cancel := context.WithTimeout(d.ctx, 5*time.Second)
	defer cancel()
	p, err := dialer.Probe(ctx, m.Manifest.Spec.Endpoint)
	if err != nil {
		d.found(part, Warning, "is it on, is spec.endpoint right, and may this machine reach port 50000?", "%v", err)
		return
	}
	switch p.Mode {
	case plan.ModeMaintenance:
		d.found(part, OK, "", "waits in maintenance mode at %s, fingerprint %s", m.Manifest.Spec.Endpoint, p.Fingerprint)
	case plan.ModeConfigured:
		d.configured(ctx, part, dialer, m)
	default:
		d.found(part, Failed, "it belongs to another cluster, or this is not its secrets bundle",
			"%s presents a certificate that is not of this cluster", m.Manifest.Spec.Endpoint)
	}
}

func (d *examination) configured(ctx context.Context, part string, dialer *talos.Dialer, m *fleet.Machine) {
	client, err := dialer.Secure(m.Manifest.Spec.Endpoint, talos.Reader)
	if err != nil {
		d.found(part, Failed, "", "%v", err)
		return
	}
	version, err := client.Version(ctx)
	if err != nil {
		d.found(part, Failed, "it presents the cluster's certificate but refuses ours: are its clock and this one's right?", "%v", err)
		return
	}
	d.found(part, OK, "", "answers at %s: Talos %s", m.Manifest.Spec.Endpoint, version)
}

func (d *examination) webhook() {
	if d.c.Webhook.Listen == "" {
		return
	}
	data, err := os.ReadFile(filepath.Clean(d.c.Webhook.SecretFile))
	switch {
	case err != nil:
		d.found("webhook", Failed, "see webhook.secretFile", "%v", err)
	case strings.TrimSpace(string(data)) == "":
		d.found("webhook", Failed, "write a long random secret into it, and give it to the forge", "%s is empty", d.c.Webhook.SecretFile)
	default:
		d.found("webhook", OK, "", "has a secret; it will listen on %s", d.c.Webhook.Listen)
	}
}
