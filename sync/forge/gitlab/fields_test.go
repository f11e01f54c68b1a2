package gitlab

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestFieldsAreTheDescriptions: what is read of answers and sent in requests has the names of GitLab's description; a
// name that is misspelt would read as nothing.
func TestFieldsAreTheDescriptions(t *testing.T) {
	data, err := os.ReadFile("testdata/gitlab-openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Components struct {
			Schemas map[string]struct {
				Properties map[string]any
			}
		}
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		of      any
		schemas []string
	}{
		{mergeRequest{}, []string{"APIEntitiesMergeRequestBasic"}},
		{project{}, []string{"APIEntitiesProjectsWithAccessAndCatalogSetting"}},
		{status{}, []string{"APIEntitiesCommitStatus", "postApiV4ProjectsIdStatusesSha"}},
	} {
		for i := range reflect.TypeOf(tc.of).NumField() {
			name, _, _ := strings.Cut(reflect.TypeOf(tc.of).Field(i).Tag.Get("json"), ",")
			found := false
			for _, s := range tc.schemas {
				_, ok := doc.Components.Schemas[s].Properties[name]
				found = found || ok
			}
			if !found {
				t.Errorf("%T: %q is no field of %v", tc.of, name, tc.schemas)
			}
		}
	}
}
