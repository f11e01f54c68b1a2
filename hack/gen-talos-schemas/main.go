// Command gen-talos-schemas makes cmd/internal/editor/talos: the JSON Schemas that Talos's machinery module ships
// (config/schemas/config.schema.json), one a contract, without the copies of every description for two editors.
//
//	go run ./hack/gen-talos-schemas
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// versions of the machinery module by contract.
var versions = map[string]string{"v1.11": "v1.11.5", "v1.12": "v1.12.5", "v1.13": "v1.13.5", "v1.14": "v1.14.0-alpha.2"}

func main() {
	for contract, version := range versions {
		if err := generate(contract, version); err != nil {
			fmt.Fprintln(os.Stderr, "gen-talos-schemas:", err)
			os.Exit(1)
		}
	}
}

func generate(contract, version string) error {
	out, err := exec.CommandContext(context.Background(), "go", "mod", "download", "-json", "github.com/siderolabs/talos/pkg/machinery@"+version).Output()
	if err != nil {
		return fmt.Errorf("download machinery %s: %w", version, err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return fmt.Errorf("read what go mod download says: %w", err)
	}
	data, err := os.ReadFile(filepath.Join(module.Dir, "config/schemas/config.schema.json"))
	if err != nil {
		return err
	}
	var schema any
	if err := json.Unmarshal(data, &schema); err != nil {
		return fmt.Errorf("read schema of %s: %w", version, err)
	}
	strip(schema)
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(schema); err != nil {
		return err
	}
	return os.WriteFile("cmd/internal/editor/talos/"+contract+".json", b.Bytes(), 0o644)
}

// strip takes out what says a description a second and third time.
func strip(v any) {
	switch x := v.(type) {
	case map[string]any:
		delete(x, "markdownDescription")
		delete(x, "x-intellij-html-description")
		for _, child := range x {
			strip(child)
		}
	case []any:
		for _, child := range x {
			strip(child)
		}
	}
}
