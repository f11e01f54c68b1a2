package kube

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestFindToolsSaysWhatIsMissing: a folder that was named is the only place that is looked at.
func TestFindToolsSaysWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(EnvTools, dir)
	_, err := FindTools()
	if err == nil {
		t.Fatal("an empty folder has all programs")
	}
	for _, want := range []string{"kube-apiserver, kube-controller-manager, kube-scheduler missing", "hack/tools.sh kubernetes", EnvTools} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
	for i, name := range toolNames[:3] {
		mode := os.FileMode(0o755)
		if i == 2 {
			mode = 0o644 // cannot be run
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := FindTools(); err == nil || !strings.Contains(err.Error(), ": kube-scheduler missing") {
		t.Errorf("with a scheduler that can't be run: %v", err)
	}
	if err := os.Chmod(filepath.Join(dir, "kube-scheduler"), 0o755); err != nil {
		t.Fatal(err)
	}
	tools, err := FindTools()
	if err != nil || tools.APIServer != filepath.Join(dir, "kube-apiserver") || tools.Kubectl != "" {
		t.Errorf("found %+v, %v", tools, err)
	}
}

// TestTakeOver is Talos's way with what of a Node is whose (NodeApplyController).
func TestTakeOver(t *testing.T) {
	for _, c := range []struct {
		name             string
		have, want       map[string]string
		own              string
		patch, afterward string
	}{
		{"missing", nil, map[string]string{"a": "1"}, "", `{"a":"1"}`, `a`},
		{"same as somebody's", map[string]string{"a": "1"}, map[string]string{"a": "1"}, "", `{}`, `a`},
		{"somebody else's", map[string]string{"a": "2"}, map[string]string{"a": "1"}, "", `{}`, ``},
		{"its own, changed", map[string]string{"a": "2"}, map[string]string{"a": "1"}, `["a"]`, `{"a":"1"}`, `a`},
		{"its own, unwanted", map[string]string{"a": "2", "b": "3"}, nil, `["a"]`, `{"a":null}`, ``},
		{"its own, gone already", nil, nil, `["a"]`, `{}`, ``},
	} {
		patch := map[string]any{}
		keys := takeOver(c.have, c.want, owned(c.own), patch)
		got, _ := json.Marshal(patch)
		if string(got) != c.patch || strings.Join(keys, ",") != c.afterward {
			t.Errorf("%s: patch %s, owned %v; want %s, %s", c.name, got, keys, c.patch, c.afterward)
		}
	}
}

func TestMergeTaints(t *testing.T) {
	foreign := taint{Key: "node.kubernetes.io/unreachable", Effect: "NoExecute"}
	got, keys := mergeTaints([]taint{foreign, {Key: "old", Effect: "NoSchedule"}}, []taint{{Key: "new", Value: "x", Effect: "NoExecute"}}, map[string]bool{"old": true})
	if !slices.Equal(got, []taint{foreign, {Key: "new", Value: "x", Effect: "NoExecute"}}) || strings.Join(keys, ",") != "new" {
		t.Errorf("got %v, owned %v", got, keys)
	}
	got, keys = mergeTaints([]taint{{Key: "a", Value: "theirs", Effect: "NoSchedule"}}, []taint{{Key: "a", Value: "ours", Effect: "NoSchedule"}}, map[string]bool{})
	if got[0].Value != "theirs" || len(keys) != 0 {
		t.Errorf("somebody else's taint was taken: %v, %v", got, keys)
	}
}

func TestFlagsMergeAsTalosDoes(t *testing.T) {
	f := flags{"enable-admission-plugins": {"NodeRestriction"}, "profiling": {"false"}, "etcd-servers": {"https://x"}}
	err := f.merge(map[string][]string{"enable-admission-plugins": {"AlwaysPullImages"}, "profiling": {"true"}, "api-audiences": {"a", "b"}}, []string{"enable-admission-plugins"}, []string{"etcd-servers"})
	want := "--api-audiences=a --api-audiences=b --enable-admission-plugins=NodeRestriction,AlwaysPullImages --etcd-servers=https://x --profiling=true"
	if got := strings.Join(f.list(), " "); err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	if err := f.merge(map[string][]string{"etcd-servers": {"https://evil"}}, nil, []string{"etcd-servers"}); err == nil {
		t.Error("etcd-servers may be overridden")
	}
}

func TestGraceOf(t *testing.T) {
	five := int64(5)
	for _, c := range []struct {
		after string
		want  time.Duration
	}{{"", 5 * time.Second}, {"2s", 2 * time.Second}, {"1m", 5 * time.Second}, {"soon", 5 * time.Second}} {
		var p pod
		p.Metadata.DeletionGracePeriodSeconds = &five
		p.Metadata.Annotations = map[string]string{AnnotationStopAfter: c.after}
		if got := graceOf(p); got != c.want {
			t.Errorf("stop-after %q: %s, want %s", c.after, got, c.want)
		}
	}
}

func TestVersionOf(t *testing.T) {
	for image, want := range map[string]string{
		"example.com/kubelet:v1.36.0": "v1.36.0", "localhost:5000/kubelet": Version,
		"localhost:5000/kubelet:v1.35.1@sha256:00": "v1.35.1",
	} {
		if got := versionOf(image); got != want {
			t.Errorf("%s: %s, want %s", image, got, want)
		}
	}
}
