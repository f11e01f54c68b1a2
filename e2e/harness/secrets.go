package harness

import (
	"fmt"
	"os"
	"path/filepath"

	yaml4 "go.yaml.in/yaml/v4"

	"ichor.maesh.dev/ichor/render/bundle"
)

// WriteStandInSecrets writes the stand-in bundle of a name, which no real node ever has, as a file that SOPS encrypted
// to the keys: labs can run with it, and it costs no search for an RSA key.
func WriteStandInSecrets(path, name string, keys bundle.Keys) error {
	b, err := bundle.StandIn(name, nil)
	if err != nil {
		return err
	}
	plain, err := yaml4.Marshal(b.Secrets())
	if err != nil {
		return fmt.Errorf("write stand-in secrets %s: %w", path, err)
	}
	sealed, err := bundle.Encrypt(plain, filepath.Base(path), keys.Recipients(), "")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, sealed, 0o644)
}
