package cli

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"

	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
)

// adminLife is how long the certificate in the lab's talosconfig is good for. Each start makes a new one.
const adminLife = 30 * 24 * time.Hour

// ageKeyFile is where the lab keeps an age key that it made itself.
func ageKeyFile(state string) string { return filepath.Join(state, "age.key") }

// findKeys gives the age keys: those of the environment, else the one that the lab made. The text tells where
// SOPS finds them, "" where there are none.
func findKeys(state string) (bundle.Keys, string, error) {
	keys, err := bundle.LoadKeys(os.Getenv)
	if err == nil {
		return keys, os.Getenv(bundle.EnvKeyFile), nil
	}
	if !errors.Is(err, bundle.ErrNoKeys) {
		return keys, "", err
	}
	text, err := os.ReadFile(ageKeyFile(state))
	if errors.Is(err, os.ErrNotExist) {
		return bundle.Keys{}, "", nil
	}
	if err != nil {
		return bundle.Keys{}, "", fmt.Errorf("read the lab's age key: %w", err)
	}
	keys, err = bundle.ParseKeys(text)
	return keys, ageKeyFile(state), err
}

// makeSecrets writes a secrets bundle for every cluster whose secretsRef names a file that is not there, with an
// age key of the lab's own where the environment has none. It gives the files that it wrote.
func makeSecrets(fl *fleet.Fleet, dir, state string, now time.Time) ([]string, error) {
	keys, _, err := findKeys(state)
	if err != nil {
		return nil, err
	}
	missing := missingSecrets(fl)
	wrote := make([]string, len(missing))
	for i, c := range missing {
		if wrote[i], err = secretsPath(c); err != nil {
			return nil, err
		}
	}
	if len(missing) > 0 && keys.Empty() {
		if keys, err = makeAgeKey(state); err != nil {
			return nil, err
		}
	}
	// An RSA key is searched for in each, which takes seconds.
	g := &errgroup.Group{}
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, c := range missing {
		g.Go(func() error {
			if err := writeBundle(c, filepath.Join(dir, filepath.FromSlash(wrote[i])), keys, now); err != nil {
				return fmt.Errorf("make secrets of cluster %s: %w", c.Name, err)
			}
			return nil
		})
	}
	return wrote, g.Wait()
}

// missingSecrets lists the clusters whose bundle is not in the repository.
func missingSecrets(fl *fleet.Fleet) []*fleet.Cluster {
	var res []*fleet.Cluster
	for _, c := range fl.Clusters {
		if c.Manifest != nil && c.Secrets == nil && c.Manifest.Spec.SecretsRef.Path != "" {
			res = append(res, c)
		}
	}
	return res
}

func makeAgeKey(state string) (bundle.Keys, error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return bundle.Keys{}, fmt.Errorf("make age key: %w", err)
	}
	text := fmt.Sprintf("# made by ichor-lab\n# public key: %s\n%s\n", id.Recipient(), id)
	if err := writeFile(ageKeyFile(state), []byte(text), 0o600); err != nil {
		return bundle.Keys{}, fmt.Errorf("write age key: %w", err)
	}
	return bundle.ParseKeys([]byte(text))
}

func writeBundle(c *fleet.Cluster, path string, keys bundle.Keys, now time.Time) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s is there, but it could not be read as this cluster's secrets", path)
	}
	// the clock is set back so that certificates are good on machines whose clock is behind
	_, plain, err := bundle.Generate(contract(c), secrets.NewFixedClock(now.Add(-time.Hour)))
	if err != nil {
		return err
	}
	sealed, err := bundle.Encrypt(plain, filepath.Base(path), keys.Recipients(), "")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return writeFile(path, sealed, 0o644)
}

// contract of a cluster: the one it names, else the minor version of its Talos.
func contract(c *fleet.Cluster) string {
	if v := c.Manifest.Spec.Contract; v != "" {
		return v
	}
	parts := strings.SplitN(strings.TrimPrefix(c.Manifest.Spec.TalosVersion, "v"), ".", 3)
	if len(parts) < 2 {
		return c.Manifest.Spec.TalosVersion
	}
	return "v" + parts[0] + "." + parts[1]
}

// openBundles opens the secrets of every cluster that the keys open. The texts say what could not be opened.
func openBundles(fl *fleet.Fleet, keys bundle.Keys) (map[string]*bundle.Bundle, []string) {
	res := map[string]*bundle.Bundle{}
	var said []string
	for _, c := range fl.Clusters {
		switch {
		case c.Manifest == nil:
			said = append(said, fmt.Sprintf("cluster %s: its manifest is not there or can't be read", c.Name))
		case c.Secrets == nil:
			said = append(said, fmt.Sprintf("cluster %s: its secrets bundle is not in the repository; --make-secrets makes one", c.Name))
		case keys.Empty():
			said = append(said, fmt.Sprintf("cluster %s: no age key to open its secrets with; set %s or %s", c.Name, bundle.EnvKey, bundle.EnvKeyFile))
		default:
			b, err := bundle.Open(c.Secrets.Data, c.Secrets.Path, keys)
			if err != nil {
				said = append(said, fmt.Sprintf("cluster %s: %v", c.Name, err))
				continue
			}
			res[c.Name] = b
		}
	}
	return res, said
}

// talosconfig has a context for every cluster whose secrets were opened; nil where there is none.
func talosconfig(fl *fleet.Fleet, all []Machine, bundles map[string]*bundle.Bundle) ([]byte, error) {
	cfg := &config.Config{Contexts: map[string]*config.Context{}}
	for _, c := range fl.Clusters {
		b := bundles[c.Name]
		if b == nil {
			continue
		}
		sb := b.Secrets()
		cert, err := sb.GenerateTalosAPIClientCertificateWithTTL(role.MakeSet(role.Admin), adminLife)
		if err != nil {
			return nil, fmt.Errorf("make client certificate for cluster %s: %w", c.Name, err)
		}
		cfg.Contexts[c.Name] = config.NewConfig(c.Name, controlPlanes(all, c.Name), sb.Certs.OS.Crt, cert).Contexts[c.Name]
		cfg.Contexts[c.Name].Nodes = addresses(all, c.Name)
		if cfg.Context == "" {
			cfg.Context = c.Name
		}
	}
	if len(cfg.Contexts) == 0 {
		return nil, nil
	}
	return cfg.Bytes()
}

// kubeconfig names the API endpoints. The lab has no Kubernetes: nothing answers there, and there are no users.
func kubeconfig(fl *fleet.Fleet) ([]byte, error) {
	type named map[string]any
	clusters, contexts, current := []named{}, []named{}, ""
	for _, c := range fl.Clusters {
		if c.Manifest == nil {
			continue
		}
		port := c.Manifest.Spec.Endpoint.Port
		if port == 0 {
			port = 6443
		}
		server := "https://" + net.JoinHostPort(c.Manifest.Spec.Endpoint.Address, strconv.Itoa(port))
		clusters = append(clusters, named{"name": c.Name, "cluster": named{"server": server}})
		contexts = append(contexts, named{"name": c.Name, "context": named{"cluster": c.Name, "user": ""}})
		if current == "" {
			current = c.Name
		}
	}
	data, err := yaml.Marshal(named{"apiVersion": "v1", "kind": "Config", "clusters": clusters, "contexts": contexts, "users": []named{}, "current-context": current})
	if err != nil {
		return nil, fmt.Errorf("write kubeconfig: %w", err)
	}
	return append([]byte("# The lab runs no Kubernetes: nothing answers at these addresses. The file is here for tools that want one.\n"), data...), nil
}
