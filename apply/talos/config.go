package talos

import (
	"context"
	"errors"
	"time"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	configpb "github.com/siderolabs/talos/pkg/machinery/api/resource/config"
	"github.com/siderolabs/talos/pkg/machinery/proto"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"ichor.maesh.dev/ichor/schemas/secret"
)

// Config is a node's configuration as it was applied, byte for byte. Secret material.
type Config struct {
	// Running is what is in force. Stored is what the node takes at its next boot; nil where it shows none, which
	// after a reboot is the usual state.
	Running secret.Bytes
	Stored  *secret.Bytes
}

// MachineConfig reads both configurations raw. It needs the role Admin. A node without one gives NotFound.
func (c *Client) MachineConfig(ctx context.Context) (*Config, error) {
	running, ok, err := c.configResource(ctx, config.ActiveID)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, &Error{Kind: NotFound, Op: "reading the machine configuration", Endpoint: c.endpoint, Text: "the node has none"}
	}
	out := &Config{Running: running}
	stored, ok, err := c.configResource(ctx, config.PersistentID)
	if err != nil {
		return nil, err
	}
	if ok {
		out.Stored = &stored
	}
	return out, nil
}

// errShape is for a resource that is not built as Talos builds it.
var errShape = errors.New("the resource is not built as expected")

func (c *Client) configResource(ctx context.Context, id string) (secret.Bytes, bool, error) {
	var out []byte
	found := false
	err := c.call(ctx, options{op: "reading the machine configuration"}, func(ctx context.Context) error {
		reply, err := c.rawState().Get(ctx, &cosi.GetRequest{Namespace: config.NamespaceName, Type: configType, Id: id, Options: &cosi.GetOptions{}})
		if status.Code(err) == codes.NotFound {
			return nil
		}
		if err != nil {
			return err
		}
		out, err = configBody(reply.GetResource().GetSpec())
		found = err == nil
		return err
	})
	return secret.New(out), found, err
}

// configBody takes the bytes out of the resource: the protobuf form where there is one, else the YAML form, which is
// one string. Errors hold nothing of the content.
func configBody(spec *cosi.Spec) ([]byte, error) {
	if len(spec.GetProtoSpec()) > 0 {
		var pb configpb.MachineConfigSpec
		if proto.Unmarshal(spec.GetProtoSpec(), &pb) == nil && len(pb.GetYamlMarshalled()) > 0 {
			return pb.GetYamlMarshalled(), nil
		}
	}
	var body string
	if yaml.Unmarshal([]byte(spec.GetYamlSpec()), &body) != nil || body == "" {
		return nil, errShape
	}
	return []byte(body), nil
}

// ApplyMode is how a configuration is applied.
type ApplyMode string

// Modes. REBOOT is not among them: Ichor reboots by an act of its own.
const (
	NoReboot ApplyMode = "no-reboot"
	Staged   ApplyMode = "staged"
	Try      ApplyMode = "try"
	// Auto is for maintenance mode of Talos 1.12, which knows no other.
	Auto ApplyMode = "auto"
)

var applyModes = map[ApplyMode]machine.ApplyConfigurationRequest_Mode{
	NoReboot: machine.ApplyConfigurationRequest_NO_REBOOT,
	Staged:   machine.ApplyConfigurationRequest_STAGED,
	Try:      machine.ApplyConfigurationRequest_TRY,
	Auto:     machine.ApplyConfigurationRequest_AUTO,
}

// Apply is a configuration to be sent.
type Apply struct {
	Config secret.Bytes
	Mode   ApplyMode
	// DryRun asks the node whether it would accept. Any apply but a try ends a try that is pending, a dry run too.
	DryRun bool
	// TryTimeout after which a try is taken back.
	TryTimeout time.Duration
	// Scrub knows the secret values of Config. nil: those of the bundle.
	Scrub *Scrubber
}

// Applied is what the node answered. The details of the answer hold configurations and are dropped.
type Applied struct {
	// Reboots: the node says that it reboots for this.
	Reboots  bool
	Warnings []string
}

// Apply sends a configuration. Kinds: NeedsReboot, Busy, InvalidConfig (with the node's text), NotSupported (the mode,
// in maintenance mode of 1.12), PermissionDenied, NotMaintenance, Unreachable, Timeout.
func (c *Client) Apply(ctx context.Context, a Apply) (*Applied, error) {
	op := "applying the configuration"
	if a.DryRun {
		op = "trying the configuration (dry run)"
	}
	scrub := a.Scrub
	if scrub == nil {
		scrub = c.scrub
	}
	out := &Applied{}
	err := c.call(ctx, options{op: op, write: !a.DryRun, scrub: scrub, timeout: 4 * c.timeout}, func(ctx context.Context) error {
		req := &machine.ApplyConfigurationRequest{Data: a.Config.Reveal(), Mode: applyModes[a.Mode], DryRun: a.DryRun}
		if a.Mode == Try {
			req.TryModeTimeout = durationpb.New(a.TryTimeout)
		}
		reply, err := c.api.ApplyConfiguration(ctx, req)
		if err != nil {
			return err
		}
		for _, m := range reply.GetMessages() {
			out.Reboots = out.Reboots || a.Mode == Auto && m.GetMode() == machine.ApplyConfigurationRequest_REBOOT
			for _, w := range m.GetWarnings() {
				out.Warnings = append(out.Warnings, scrub.Clean(w))
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
