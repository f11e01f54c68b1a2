// Package config is the configuration of the daemon: one YAML file, whose every key is also a flag and an ICHOR_*
// variable (SPEC section 8). A flag wins over a variable, a variable over the file, the file over the default.
// Secrets are given by file or environment, never by flag.
package config

import (
	"time"
)

// Config is everything that can be set. The tags are read by Keys: yaml gives the key, usage its documentation, alias
// further flag names.
type Config struct {
	// Repo is the Git repository.
	Repo string `yaml:"repo" usage:"URL of the Git repository: https, http or ssh (a local path only for trying out)"`
	// Branch is watched and applied.
	Branch string `yaml:"branch" usage:"branch that is watched and applied"`
	// Path narrows the folder.
	Path string `yaml:"path" usage:"folder of the repository that holds the manifests; empty: all of it"`
	// Username for Git over HTTP.
	Username string `yaml:"username" usage:"user name for Git over HTTP with a token (most forges take any)"`
	// TokenFile for Git and the forge.
	TokenFile string `yaml:"tokenFile" usage:"file with the token for Git and the forge; read again when it changes"`
	SSH       SSH    `yaml:"ssh"`
	// AllowInsecureAuth sends the token over plain http to hosts other than loopback.
	AllowInsecureAuth bool   `yaml:"allowInsecureAuth" usage:"send the token over plain http to hosts that are not loopback"`
	CAFile            string `yaml:"caFile" usage:"PEM file with further authorities for Git and the forge"`
	Proxy             string `yaml:"proxy" usage:"proxy URL for Git and the forge; default: HTTPS_PROXY and friends"`

	Forge Forge `yaml:"forge"`

	StatusBranch string `yaml:"statusBranch" usage:"branch that Ichor writes its reports and inventory to"`
	StateDir     string `yaml:"stateDir" usage:"folder for the Git mirror, the copy of the inventory and the queue of statuses"`
	Instance     string `yaml:"instance" usage:"name put in front of status contexts when several Ichors serve one repository"`

	Clusters []string      `yaml:"clusters" usage:"clusters that this instance serves; empty: all"`
	Mode     string        `yaml:"mode" usage:"apply, or observe: read and report everything, write to no node"`
	Interval time.Duration `yaml:"interval" usage:"how often the repository and the forge are looked at (100ms or more)"`

	Webhook Webhook `yaml:"webhook"`
	Metrics Metrics `yaml:"metrics"`

	Signatures  Signatures  `yaml:"signatures"`
	Limits      Limits      `yaml:"limits"`
	Concurrency Concurrency `yaml:"concurrency"`
	Nodes       Nodes       `yaml:"nodes"`
	Status      Status      `yaml:"status"`
	SecretScan  SecretScan  `yaml:"secretScan"`
	Takeover    Takeover    `yaml:"takeover"`
	Log         Log         `yaml:"log"`
}

// SSH credentials of the repository.
type SSH struct {
	KeyFile        string `yaml:"keyFile" usage:"private key for Git over SSH"`
	KnownHostsFile string `yaml:"knownHostsFile" usage:"known_hosts file for Git over SSH"`
}

// Forge is where pull requests and commit statuses are.
type Forge struct {
	Kind       string   `yaml:"kind" alias:"forge" usage:"github, gitea (Forgejo too), gitlab, or none for a plain Git server; default: github for github.com, gitlab for gitlab.com, gitea for codeberg.org, else none"`
	URL        string   `yaml:"url" usage:"web address of the forge; default: https and the host of repo"`
	Repository string   `yaml:"repository" alias:"forge-repo" usage:"owner/name on the forge (group/subgroup/name on GitLab); default: taken from repo"`
	TokenFile  string   `yaml:"tokenFile" usage:"file with the token for the forge alone; default: tokenFile"`
	App        ForgeApp `yaml:"app"`
}

// ForgeApp is a GitHub App.
type ForgeApp struct {
	ID             int64  `yaml:"id" usage:"GitHub App ID"`
	InstallationID int64  `yaml:"installationID" usage:"installation ID of the GitHub App"`
	KeyFile        string `yaml:"keyFile" usage:"private key file of the GitHub App"`
}

// Webhook receiver.
type Webhook struct {
	Listen     string `yaml:"listen" usage:"address to receive webhooks on, at /webhook; empty: none"`
	SecretFile string `yaml:"secretFile" usage:"file with the webhook's secret; required with webhook.listen"`
}

// Metrics listener.
type Metrics struct {
	Listen string `yaml:"listen" usage:"address for /metrics, /healthz and /readyz; empty: none"`
}

// Signatures of commits on the watched branch.
type Signatures struct {
	Mode               string `yaml:"mode" usage:"off; warn: a head without a good signature is said; require: it fails its check and is not applied"`
	AllowedSignersFile string `yaml:"allowedSignersFile" usage:"file with SSH keys that may sign, in the form of ssh-keygen's allowed_signers; read again when it changes"`
	PGPKeysFile        string `yaml:"pgpKeysFile" usage:"file with armored PGP public keys that may sign; read again when it changes"`
}

// Limits on what is read (rule limits).
type Limits struct {
	Files    int           `yaml:"files" usage:"most files that are read of one commit"`
	FileSize int64         `yaml:"fileSize" usage:"largest file that is read, in bytes"`
	Check    time.Duration `yaml:"check" usage:"longest time for one check"`
}

// Concurrency of the work.
type Concurrency struct {
	Nodes int `yaml:"nodes" usage:"nodes of one cluster that are read at once"`
}

// Nodes has the numbers of the rollout's rules (docs/running.md lists them).
type Nodes struct {
	FactMaxAge       time.Duration `yaml:"factMaxAge" usage:"oldest fact that a gate may use"`
	RetryInterval    time.Duration `yaml:"retryInterval" usage:"pause before an act that failed is tried again"`
	UnreachableRetry time.Duration `yaml:"unreachableRetry" usage:"how often a silent machine is read within its grace"`
	RebootTimeout    time.Duration `yaml:"rebootTimeout" usage:"a reboot that was not seen to end by then has failed"`
	JoinTimeout      time.Duration `yaml:"joinTimeout" usage:"a machine that has not joined by then has failed"`
	ConfigTimeout    time.Duration `yaml:"configTimeout" usage:"a machine that took a configuration and is not well with it by then has failed"`
	Poll             time.Duration `yaml:"poll" usage:"how soon to look again while something is under way"`
}

// Status posting.
type Status struct {
	Pace    time.Duration `yaml:"pace" usage:"shortest time between two posted statuses"`
	PerHour int           `yaml:"perHour" usage:"most statuses posted in an hour"`
	// KeepClosed of reports.
	KeepClosed time.Duration `yaml:"keepClosed" usage:"how long the report of a pull request stays after its end"`
	BatchTime  time.Duration `yaml:"batchTime" usage:"reports are pushed to the status branch at most this often, unless a status waits for one"`
}

// SecretScan exceptions.
type SecretScan struct {
	Exclude []string `yaml:"exclude" usage:"files (globs) left out of the secret scan; each use is reported"`
}

// Takeover of a repository from another holder.
type Takeover struct {
	Now   bool          `yaml:"now" usage:"take over from whoever holds the inventory: this is the one Ichor"`
	After time.Duration `yaml:"after" usage:"take over when the recorded holder left a question unanswered for this long (and at least for three of its intervals)"`
}

// Log output.
type Log struct {
	Level  string `yaml:"level" usage:"debug, info, warn or error"`
	Format string `yaml:"format" usage:"auto (text on a terminal, JSON elsewhere), text or json"`
}

// Default gives the documented defaults.
func Default() Config {
	return Config{
		Branch:       "main",
		Username:     "ichor",
		StatusBranch: "ichor/status",
		StateDir:     "/var/lib/ichor",
		Mode:         "apply",
		Interval:     60 * time.Second,
		Signatures:   Signatures{Mode: "off"},
		Limits:       Limits{Files: 20000, FileSize: 1 << 20, Check: 5 * time.Minute},
		Concurrency:  Concurrency{Nodes: 64},
		Nodes: Nodes{
			FactMaxAge: 10 * time.Second, RetryInterval: 30 * time.Second, UnreachableRetry: 10 * time.Second,
			RebootTimeout: 15 * time.Minute, JoinTimeout: 30 * time.Minute, ConfigTimeout: 5 * time.Minute, Poll: time.Second,
		},
		Status:   Status{Pace: time.Second, PerHour: 400, BatchTime: 10 * time.Second, KeepClosed: 7 * 24 * time.Hour},
		Takeover: Takeover{After: 30 * time.Second},
		Log:      Log{Level: "info", Format: "auto"},
	}
}
