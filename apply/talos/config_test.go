package talos

import (
	"strings"
	"testing"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	configpb "github.com/siderolabs/talos/pkg/machinery/api/resource/config"
	"github.com/siderolabs/talos/pkg/machinery/proto"
	"go.yaml.in/yaml/v3"
)

// TestConfigBody: documents that this library does not know (a node of 1.14 has them) don't hide the configuration, in
// neither form of the resource, and the bytes are those that were applied.
func TestConfigBody(t *testing.T) {
	const cfg = "# a comment\nversion: v1alpha1\nmachine: {token: verysecret}\n---\napiVersion: v1alpha1\nkind: DiscoveryIdentityConfig\nid: x\n"
	pb, err := proto.Marshal(&configpb.MachineConfigSpec{YamlMarshalled: []byte(cfg)})
	if err != nil {
		t.Fatal(err)
	}
	asString, err := yaml.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for name, spec := range map[string]*cosi.Spec{
		"protobuf":        {ProtoSpec: pb, YamlSpec: string(asString)},
		"YAML":            {YamlSpec: string(asString)},
		"broken protobuf": {ProtoSpec: []byte{0xff}, YamlSpec: string(asString)},
	} {
		got, err := configBody(spec)
		if err != nil || string(got) != cfg {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for name, spec := range map[string]*cosi.Spec{"nothing": {}, "no string": {YamlSpec: "machine: {token: verysecret}"}, "no YAML": {YamlSpec: "{verysecret"}} {
		if _, err := configBody(spec); err == nil || strings.Contains(err.Error(), "verysecret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
