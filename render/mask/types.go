// Package mask replaces secret values in rendered configurations by a fixed marker, by path, so that the masked
// form and its digest are the same with stand-in and with real secrets.
package mask

// Marker stands for a secret value in masked renders.
const Marker = "<secret>"

// Render is a masked configuration: documents sorted by kind and name, v1alpha1 first.
type Render struct {
	Documents []Document `json:"documents"`
}

// Document is one masked document. ID is "v1alpha1", "Kind" or "Kind/name" as reports show it.
type Document struct {
	ID string `json:"id"`
	// Fields is the decoded document: map[string]any, []any, string, bool, int64, float64, nil.
	Fields map[string]any `json:"fields"`
}
