package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	yaml "go.yaml.in/yaml/v3"
)

// mergeText merges a section into the v1alpha1 document of a configuration whose other documents
// the library may not know.
func mergeText(config, section string) ([]byte, error) {
	var add map[string]any
	if err := yaml.Unmarshal([]byte(section), &add); err != nil {
		return nil, fmt.Errorf("merge section: %w", err)
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	dec := yaml.NewDecoder(bytes.NewReader([]byte(config)))
	for {
		var doc map[string]any
		if err := dec.Decode(&doc); err != nil {
			if errors.Is(err, io.EOF) {
				return out.Bytes(), enc.Close()
			}
			return nil, fmt.Errorf("merge section: %w", err)
		}
		if doc["kind"] == nil {
			mergeMaps(doc, add)
		}
		if err := enc.Encode(doc); err != nil {
			return nil, fmt.Errorf("merge section: %w", err)
		}
	}
}

func mergeMaps(into, add map[string]any) {
	for k, v := range add {
		old, ok := into[k].(map[string]any)
		sub, isMap := v.(map[string]any)
		if ok && isMap {
			mergeMaps(old, sub)
			continue
		}
		into[k] = v
	}
}
