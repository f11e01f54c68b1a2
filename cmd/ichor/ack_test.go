package main

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

func TestAnnotateChangesNothingElse(t *testing.T) {
	const value = "sha256:" + "ab"
	for name, tc := range map[string]struct{ src, want string }{
		"no annotations": {
			"kind: TalosCluster\nmetadata:\n  # the one\n  name: prod # here\nspec: {}\n",
			"kind: TalosCluster\nmetadata:\n  # the one\n  annotations:\n    ichor.maesh.dev/ack: \"sha256:ab\"\n  name: prod # here\nspec: {}\n",
		},
		"others": {
			"kind: TalosCluster\nmetadata:\n  name: prod\n  annotations:\n      a: b\n",
			"kind: TalosCluster\nmetadata:\n  name: prod\n  annotations:\n      ichor.maesh.dev/ack: \"sha256:ab\"\n      a: b\n",
		},
		"one more": {
			"kind: TalosCluster\nmetadata:\n  name: prod\n  annotations:\n    ichor.maesh.dev/ack: sha256:cd\n    a: b\n",
			"kind: TalosCluster\nmetadata:\n  name: prod\n  annotations:\n    ichor.maesh.dev/ack: \"sha256:cd,sha256:ab\"\n    a: b\n",
		},
		"a lost inventory at the same digits": {
			"kind: TalosCluster\nmetadata:\n  name: prod\n  annotations:\n    ichor.maesh.dev/ack: inventory:sha256:ab\n",
			"kind: TalosCluster\nmetadata:\n  name: prod\n  annotations:\n    ichor.maesh.dev/ack: \"inventory:sha256:ab,sha256:ab\"\n",
		},
		"line ends of Windows": {
			"kind: TalosCluster\r\nmetadata:\r\n  name: prod\r\n",
			"kind: TalosCluster\r\nmetadata:\r\n  annotations:\r\n    ichor.maesh.dev/ack: \"sha256:ab\"\r\n  name: prod\r\n",
		},
		"the second document": {
			"kind: TalosCluster\nmetadata:\n  name: lab\n---\nkind: TalosCluster\nmetadata:\n  name: prod\n",
			"kind: TalosCluster\nmetadata:\n  name: lab\n---\nkind: TalosCluster\nmetadata:\n  annotations:\n" +
				"    ichor.maesh.dev/ack: \"sha256:ab\"\n  name: prod\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := annotate(tc.src, "prod", value)
			if err != nil || got != tc.want {
				t.Fatalf("got %v\n%s\nwant\n%s", err, got, tc.want)
			}
			docs := strings.Split(got, "---\n")
			var c v1alpha1.TalosCluster
			if err := yaml.Unmarshal([]byte(docs[len(docs)-1]), &c); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(c.Metadata.Annotations[v1alpha1.AnnotationAck], value) {
				t.Fatalf("annotations %v", c.Metadata.Annotations)
			}
			again, err := annotate(got, "prod", value)
			if err != nil || again != got {
				t.Fatalf("acknowledging twice changed the file: %v\n%s", err, again)
			}
		})
	}
	if _, err := annotate("kind: TalosCluster\nmetadata: {name: prod, annotations: {a: b}}\n", "prod", value); err == nil {
		t.Fatal("a manifest in one line was edited")
	}
	for _, ack := range []string{">-\n      sha256:cd", "|\n      sha256:cd", "\n      sha256:cd", "\"sha256:cd,\n      sha256:ef\""} {
		src := "kind: TalosCluster\nmetadata:\n  name: prod\n  annotations:\n    ichor.maesh.dev/ack: " + ack + "\n"
		if got, err := annotate(src, "prod", value); err == nil {
			t.Fatalf("an annotation in several lines was edited:\n%s", got)
		}
	}
}
