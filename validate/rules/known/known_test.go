package known

import (
	"fmt"
	"testing"
)

func TestNewerThan(t *testing.T) {
	for _, c := range []struct {
		minor  uint64
		kind   string
		fields map[string]any
		want   string
	}{
		{11, "HostnameConfig", map[string]any{"hostname": "a"}, "[document HostnameConfig]"},
		{12, "HostnameConfig", map[string]any{"hostname": "a"}, "[]"},
		{13, "KubeAPIServerConfig", nil, "[document KubeAPIServerConfig]"},
		{12, "UserVolumeConfig", map[string]any{"mount": map[string]any{"secure": true}}, "[field mount of document UserVolumeConfig]"},
		{13, "UserVolumeConfig", map[string]any{"mount": map[string]any{}, "trim": nil}, "[]"},
		{13, "ResolverConfig", map[string]any{"nameservers": []any{map[string]any{"address": "a"}, map[string]any{"protocol": "dot"}}}, "[field nameservers.protocol of document ResolverConfig]"},
		{11, "v1alpha1", map[string]any{"machine": map[string]any{"install": map[string]any{"grubUseUKICmdline": true}}}, "[machine.install.grubUseUKICmdline]"},
		{11, "v1alpha1", map[string]any{"machine": map[string]any{"install": map[string]any{"disk": "a"}}}, "[]"},
		{9, "NobodyKnowsConfig", nil, "[]"},
	} {
		if got := fmt.Sprint(NewerThan(c.minor, c.kind, c.fields)); got != c.want {
			t.Errorf("1.%d %s: %s, want %s", c.minor, c.kind, got, c.want)
		}
	}
}

// TestEveryLineIsRead: no line of the data is passed over.
func TestEveryLineIsRead(t *testing.T) {
	n := 0
	for _, fields := range byKind() {
		for _, f := range fields {
			n++
			if f.Minor < 12 || f.Minor > 14 || f.Kind == "" {
				t.Errorf("%+v", f)
			}
		}
	}
	if n < 60 {
		t.Errorf("%d fields", n)
	}
}
