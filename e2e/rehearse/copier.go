package rehearse

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	yaml4 "go.yaml.in/yaml/v4"

	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// maxFile is the largest file that is copied, in bytes; Ichor reads none that is larger.
const maxFile = 1 << 20

// copier makes private copies of a repository's states that can run on the lab: endpoints are loopback addresses, and
// secrets are made up and encrypted to a key of the rehearsal's own. The user's files are only read.
type copier struct {
	opt   Options
	addrs *addresses
	keys  bundle.Keys
	notes []string
	base  *state // what came first, nil at first
	// sealed are files that were encrypted, by name and plain text: what is the same on base and in the change must
	// be the same file, for a bundle that is encrypted anew counts as another.
	sealed map[string][]byte
}

// state is one state of the repository.
type state struct {
	files fs.FS
	fleet *fleet.Fleet
	dir   string
	// sealed are the ciphertexts in it.
	sealed map[string]bool
	// seeds say which stand-in bundle a cluster has.
	seeds map[string]string
}

// note keeps what a person should know, once.
func (c *copier) note(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); !slices.Contains(c.notes, s) {
		c.notes = append(c.notes, s)
	}
}

// load reads a state.
func load(ctx context.Context, files fs.FS) (*state, error) {
	fl, _, err := fleet.Load(ctx, files, fleet.Options{})
	if err != nil {
		return nil, fmt.Errorf("read repository: %w", err)
	}
	return &state{files: files, fleet: fl, sealed: map[string]bool{}, seeds: map[string]string{}}, nil
}

// copy writes a state for the lab into dir.
func (c *copier) copy(ctx context.Context, s *state, dir string) error {
	s.dir = dir
	standIns := map[string][2]string{}
	bundles := map[string]*fleet.Cluster{} // by file
	for _, cl := range s.fleet.Clusters {
		if cl.Secrets != nil {
			bundles[cl.Secrets.Path] = cl
		}
		if cl.Manifest == nil {
			continue
		}
		b, err := bundle.StandIn(cl.Name, nil)
		if err != nil {
			return err
		}
		// a cluster whose patches can't be read is refused by the check, with the reason
		found, _ := render.StandIns(render.Input{Cluster: cl, Bundle: b})
		for sealed, values := range found {
			standIns[sealed] = values
		}
	}
	err := fs.WalkDir(s.files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if d.IsDir() {
			if d.Name() == ".git" {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil // as in a check: links are not followed
		}
		if info, err := d.Info(); err != nil || info.Size() > maxFile {
			return err
		}
		data, err := fs.ReadFile(s.files, name)
		if err != nil {
			return err
		}
		if data, err = c.file(s, name, data, bundles[name], standIns); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return write(dir, name, data)
	})
	if err != nil {
		return fmt.Errorf("copy repository: %w", err)
	}
	return c.missing(s)
}

// file gives what the copy has of a file.
func (c *copier) file(s *state, name string, data []byte, of *fleet.Cluster, standIns map[string][2]string) ([]byte, error) {
	ext := path.Ext(name)
	if ext != ".yaml" && ext != ".yml" {
		return data, nil
	}
	if _, err := bundle.Shape(data); err == nil {
		if of != nil {
			return c.secrets(s, of)
		}
		return c.reseal(s, name, data, standIns)
	}
	if bytes.Contains(data, []byte(v1alpha1.Group)) {
		return c.manifest(data)
	}
	return data, nil
}

// secrets is a stand-in bundle with just the keys of the real one, of the same seed while the real one is the same.
func (c *copier) secrets(s *state, cl *fleet.Cluster) ([]byte, error) {
	seed := cl.Name
	for _, v := range ciphertexts(cl.Secrets.Data) {
		s.sealed[v] = true
		if c.base != nil && c.base.fleet.Cluster(cl.Name) != nil && c.base.fleet.Cluster(cl.Name).Secrets != nil && !c.base.sealed[v] {
			seed = cl.Name + " changed"
		}
	}
	s.seeds[cl.Name] = seed
	return c.standIn(cl.Secrets.Path, seed, cl.Secrets.Data)
}

func (c *copier) standIn(name, seed string, ciphertext []byte) ([]byte, error) {
	b, err := bundle.StandIn(seed, ciphertext)
	if err != nil {
		return nil, err
	}
	plain, err := yaml4.Marshal(b.Secrets())
	if err != nil {
		return nil, fmt.Errorf("write stand-in bundle: %w", err)
	}
	return c.seal(name, plain, "")
}

// seal encrypts a file to the rehearsal's key, once.
func (c *copier) seal(name string, plain []byte, pattern string) ([]byte, error) {
	key := name + "\x00" + string(plain)
	if data, ok := c.sealed[key]; ok {
		return data, nil
	}
	data, err := bundle.Encrypt(plain, path.Base(name), c.keys.Recipients(), pattern)
	if err != nil {
		return nil, err
	}
	if c.sealed == nil {
		c.sealed = map[string][]byte{}
	}
	c.sealed[key] = data
	return data, nil
}

// missing makes up what manifests refer to and the repository does not have.
func (c *copier) missing(s *state) error {
	for _, cl := range s.fleet.Clusters {
		if cl.Manifest == nil {
			continue
		}
		if name := resolve(cl.Pos.File, cl.Manifest.Spec.SecretsRef.Path); cl.Secrets == nil && name != "" {
			data, err := c.standIn(name, cl.Name, nil)
			if err != nil {
				return err
			}
			c.note("%s is not there: the secrets of cluster %s are made up", name, cl.Name)
			if err := write(s.dir, name, data); err != nil {
				return err
			}
		}
		for _, b := range cl.Backups {
			if b.Manifest == nil || b.Credentials != nil {
				continue
			}
			name := resolve(b.Pos.File, b.Manifest.Spec.S3.CredentialsRef.Path)
			if name == "" {
				continue
			}
			data, err := c.seal(name, []byte("accessKeyID: stand-in\nsecretAccessKey: stand-in\n"), "")
			if err != nil {
				return err
			}
			c.note("%s is not there: the credentials of backup %s are made up", name, b.Name)
			if err := write(s.dir, name, data); err != nil {
				return err
			}
		}
	}
	return nil
}

// resolve a path of a manifest; "" where it leaves the repository or is none.
func resolve(manifest, p string) string {
	if strings.HasPrefix(p, "./") || strings.HasPrefix(p, "../") {
		p = path.Join(path.Dir(manifest), p)
	}
	if p = path.Clean(p); !fs.ValidPath(p) || p == "." {
		return ""
	}
	return p
}

func write(dir, name string, data []byte) error {
	to := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o600)
}
