package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// ackValue is what can be acknowledged: a digest, a commit, or a lost inventory at a commit.
var ackValue = regexp.MustCompile(`^(sha256:[0-9a-f]{64}|(inventory:|root:)?[0-9a-f]{40})$`)

// ackCommand writes an acknowledgement into a cluster's manifest.
func ackCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ack CLUSTER VALUE [DIR]",
		Short: "Acknowledge what Ichor holds for: writes the annotation into the cluster's manifest",
		Long: `Some things wait until a person says that they are meant: the difference of a cluster that Ichor has not seen before, a
render changed by a newer Ichor (their digest), a force push or a mass deletion (the commit), a lost inventory
(inventory:<commit>), a status branch that somebody else made (root:<commit>). The status ichor/apply/<cluster> and the
page of the cluster on the status branch say what to acknowledge.

This writes the annotation ichor.maesh.dev/ack into the cluster's manifest in DIR (default: this folder), beside what is
acknowledged there already. It commits nothing: the acknowledgement is reviewed like any change.`,
		Example: `  ichor ack prod sha256:4b325f92…          # a digest
  ichor ack prod 3f2a91c0…                 # a commit, as its full hash
  git commit -m "Acknowledge" -a && git push`,
		Args:              arguments(cobra.RangeArgs(2, 3)),
		ValidArgsFunction: completeCluster,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := "."
			if len(args) == 3 {
				dir = args[2]
			}
			if !ackValue.MatchString(args[1]) {
				return usagef("%q is no digest (sha256: and 64 hex digits), full commit hash, inventory:<commit> or root:<commit>", args[1])
			}
			file, err := acknowledge(cmd, dir, args[0], args[1])
			if err != nil {
				return err
			}
			return text(cmd.OutOrStdout(), fmt.Sprintf("%s: acknowledges %s; commit and push it\n", file, args[1]))
		},
	}
}

func acknowledge(cmd *cobra.Command, dir, cluster, value string) (string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", usagef("open folder %s: %w", dir, err)
	}
	defer root.Close()
	f, _, err := fleet.Load(cmd.Context(), root.FS(), fleet.Options{})
	if err != nil {
		return "", fmt.Errorf("load %s: %w", dir, err)
	}
	c := f.Cluster(cluster)
	if c == nil || c.Manifest == nil {
		return "", usagef("no readable TalosCluster %q in %s", cluster, dir)
	}
	path := filepath.Join(dir, filepath.FromSlash(c.Pos.File))
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	out, err := annotate(string(data), cluster, value)
	if err != nil {
		return "", fmt.Errorf("edit %s: %w", path, err)
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, []byte(out), 0o644); err != nil {
		return "", err
	}
	return path, os.Rename(tmp, path)
}

// annotate adds value to the annotation of a cluster's document and leaves every other byte as it is.
func annotate(src, cluster, value string) (string, error) {
	meta, err := metadataOf(src, cluster)
	if err != nil {
		return "", err
	}
	lines, end := strings.SplitAfter(src, "\n"), "\n"
	if strings.Contains(src, "\r\n") {
		end = "\r\n"
	}
	if notes := child(meta, "annotations"); notes != nil && len(notes.Content) > 0 {
		if notes.Style == yaml.FlowStyle {
			return "", fmt.Errorf("the annotations are written in one line; add %s: %q by hand", v1alpha1.AnnotationAck, value)
		}
		if old := child(notes, v1alpha1.AnnotationAck); old != nil {
			// Whole values: inventory:<commit> is no acknowledgement of the commit.
			if slices.Contains(strings.FieldsFunc(old.Value, func(r rune) bool { return strings.ContainsRune(", \n", r) }), value) {
				return src, nil
			}
			i := old.Line - 1
			key := notes.Content[indexOf(notes, v1alpha1.AnnotationAck)]
			if key.Line != old.Line || old.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 || !strings.Contains(lines[i], old.Value) {
				return "", fmt.Errorf("the annotation %s is written in several lines; add %q by hand", v1alpha1.AnnotationAck, value)
			}
			lines[i] = strings.Repeat(" ", key.Column-1) + fmt.Sprintf("%s: %q%s", v1alpha1.AnnotationAck, old.Value+","+value, end)
			return strings.Join(lines, ""), nil
		}
		first := notes.Content[0]
		return insert(lines, first.Line-1, first.Column-1, fmt.Sprintf("%s: %q%s", v1alpha1.AnnotationAck, value, end)), nil
	}
	if meta.Style == yaml.FlowStyle || child(meta, "annotations") != nil {
		return "", fmt.Errorf("add the annotation %s: %q by hand", v1alpha1.AnnotationAck, value)
	}
	first := meta.Content[0]
	indent := first.Column - 1
	return insert(lines, first.Line-1, indent, fmt.Sprintf("annotations:%s%s  %s: %q%s", end, strings.Repeat(" ", indent),
		v1alpha1.AnnotationAck, value, end)), nil
}

// insert puts text before line i.
func insert(lines []string, i, indent int, text string) string {
	return strings.Join(lines[:i], "") + strings.Repeat(" ", indent) + text + strings.Join(lines[i:], "")
}

// metadataOf finds the metadata of a cluster's document, with places in the whole file.
func metadataOf(src, cluster string) (*yaml.Node, error) {
	dec := yaml.NewDecoder(strings.NewReader(src))
	for {
		var doc yaml.Node
		if err := dec.Decode(&doc); err != nil {
			return nil, fmt.Errorf("find the TalosCluster %s: %w", cluster, err)
		}
		if len(doc.Content) == 0 {
			continue
		}
		kind, meta := child(doc.Content[0], "kind"), child(doc.Content[0], "metadata")
		if kind == nil || meta == nil || kind.Value != v1alpha1.KindTalosCluster || len(meta.Content) == 0 {
			continue
		}
		if name := child(meta, "name"); name != nil && name.Value == cluster {
			return meta, nil
		}
	}
}

func indexOf(m *yaml.Node, key string) int {
	if m.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(m.Content); i += 2 {
			if m.Content[i].Value == key {
				return i
			}
		}
	}
	return -1
}

func child(m *yaml.Node, key string) *yaml.Node {
	if i := indexOf(m, key); i >= 0 {
		return m.Content[i+1]
	}
	return nil
}
