package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	yaml "go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Modes of ApplyConfiguration, shortened.
const (
	reboot   = machine.ApplyConfigurationRequest_REBOOT
	auto     = machine.ApplyConfigurationRequest_AUTO
	noReboot = machine.ApplyConfigurationRequest_NO_REBOOT
	staged   = machine.ApplyConfigurationRequest_STAGED
	try      = machine.ApplyConfigurationRequest_TRY
)

// Texts of answers to ApplyConfiguration.
const (
	textReboot   = "Applied configuration with a reboot"
	textNoReboot = "Applied configuration without a reboot"
	textStaged   = "Staged configuration to be applied after the next reboot"
	noChanges    = " (skipped in dry-run).\nConfig diff:\n\nNo changes."
)

// empty is what calls without arguments send.
func empty() *emptypb.Empty { return &emptypb.Empty{} }

// node and nodes send a call on to other nodes, which must be named too.
func (r *R) node(target string) context.Context {
	r.mayAsk(target)
	return client.WithNode(r.ctx, target)
}

func (r *R) nodes(targets ...string) context.Context {
	for _, a := range targets {
		r.mayAsk(a)
	}
	return client.WithNodes(r.ctx, targets...) //nolint:staticcheck // what nodes do with the deprecated way is asked
}

func (r *R) mayAsk(addr string) {
	if r.s.denied(addr) || (addr != r.s.Absent && !slices.Contains(r.s.named(), addr) && !slices.Contains(r.s.extra, addr)) {
		r.Fatalf("node %q was not named or is denied", addr)
	}
}

// status is the machine's stage, whether it is ready, and what is unmet by name.
type machineStatus struct {
	stage string
	ready bool
	unmet map[string]string
}

func (m machineStatus) String() string {
	return fmt.Sprintf("stage %s, ready %v, unmet %v", m.stage, m.ready, m.unmet)
}

func (r *R) status(c *client.Client) (machineStatus, error) {
	res, err := safe.StateGetByID[*runtime.MachineStatus](r.brief(5*time.Second), c.COSI, runtime.MachineStatusID)
	if err != nil {
		return machineStatus{}, err
	}
	out := machineStatus{stage: res.TypedSpec().Stage.String(), ready: res.TypedSpec().Status.Ready, unmet: map[string]string{}}
	for _, u := range res.TypedSpec().Status.UnmetConditions {
		out.unmet[u.Name] = u.Reason
	}
	return out, nil
}

// freshStatus asks over a new connection: an old one waits longer and longer between its attempts.
func (r *R) freshStatus(addr string) (machineStatus, error) {
	c, err := r.s.dial(r.ctx, addr, r.s.Talosconfig)
	if err != nil {
		return machineStatus{}, err
	}
	defer c.Close() //nolint:errcheck // nothing was written
	return r.status(c)
}

func (r *R) waitReady(addr string) {
	r.wait(addr+" to be running and ready", func() error {
		st, err := r.freshStatus(addr)
		if err == nil && (st.stage != "running" || !st.ready) {
			err = errors.New(st.String())
		}
		return err
	})
}

func (r *R) waitStage(addr string, stages ...string) machineStatus {
	var st machineStatus
	r.wait(fmt.Sprintf("%s to be %v", addr, stages), func() error {
		var err error
		st, err = r.freshStatus(addr)
		if err == nil && !slices.Contains(stages, st.stage) {
			err = errors.New(st.String())
		}
		return err
	})
	return st
}

// waitMaintenance waits until a node serves the maintenance API.
func (r *R) waitMaintenance(addr string) {
	r.wait(addr+" to be in maintenance", func() error {
		c, err := r.s.dial(r.ctx, addr, nil)
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // nothing was written
		st, err := r.status(c)
		if err == nil && st.stage != "maintenance" {
			err = errors.New(st.String())
		}
		return err
	})
}

// waitDown waits until a node does not answer any more.
func (r *R) waitDown(addr string) {
	r.wait(addr+" to go down", func() error {
		if st, err := r.freshStatus(addr); err == nil {
			return errors.New(st.String())
		}
		return nil
	})
}

// list returns the ids of a type, decoding nothing.
func (r *R) list(c *client.Client, namespace, typ string) ([]string, error) {
	l, err := c.COSI.List(r.brief(10*time.Second), resource.NewMetadata(namespace, typ, "", resource.VersionUndefined),
		state.WithListUnmarshalOptions(state.WithSkipProtobufUnmarshal()))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, it := range l.Items {
		out = append(out, it.Metadata().ID())
	}
	slices.Sort(out)
	return out, nil
}

// yamlOf returns a resource's contents as YAML, decoding nothing.
func (r *R) yamlOf(c *client.Client, namespace, typ, id string) (string, error) {
	res, err := c.COSI.Get(r.brief(10*time.Second), resource.NewMetadata(namespace, typ, id, resource.VersionUndefined),
		state.WithGetUnmarshalOptions(state.WithSkipProtobufUnmarshal()))
	if err != nil {
		return "", err
	}
	raw, ok := res.(*protobuf.Resource)
	if !ok {
		return "", fmt.Errorf("resource %s is a %T", id, res)
	}
	p, err := raw.Marshal()
	if err != nil {
		return "", err
	}
	return p.GetSpec().GetYamlSpec(), nil
}

// versions are the versions of the MachineConfig resources by id.
func (r *R) versions(c *client.Client) map[string]string {
	l, err := c.COSI.List(r.brief(10*time.Second), resource.NewMetadata(config.NamespaceName, config.MachineConfigType, "", resource.VersionUndefined),
		state.WithListUnmarshalOptions(state.WithSkipProtobufUnmarshal()))
	r.must(err)
	out := map[string]string{}
	for _, it := range l.Items {
		out[it.Metadata().ID()] = it.Metadata().Version().String()
	}
	return out
}

// moved says which of the two MachineConfig resources got another version.
func moved(before, after map[string]string) string {
	var out []string
	for _, id := range []string{config.PersistentID, config.ActiveID} {
		if before[id] != after[id] {
			out = append(out, id)
		}
	}
	return strings.Join(out, " ")
}

// running is the node's active configuration, byte for byte.
func (r *R) running(c *client.Client) []byte { return r.configOf(c, config.ActiveID) }

func (r *R) configOf(c *client.Client, id string) []byte {
	y, err := r.yamlOf(c, config.NamespaceName, config.MachineConfigType, id)
	r.must(err)
	var text string // the resource's contents are one string
	r.must(yaml.Unmarshal([]byte(y), &text))
	return []byte(text)
}

// patched is a configuration with a strategic merge patch.
func (r *R) patched(base []byte, patch string) []byte {
	p, err := configpatcher.LoadPatch([]byte(patch))
	r.must(err)
	out, err := configpatcher.Apply(configpatcher.WithBytes(base), []configpatcher.Patch{p})
	r.must(err)
	b, err := out.Bytes()
	r.must(err)
	return b
}

func (r *R) tryApply(c *client.Client, data []byte, mode machine.ApplyConfigurationRequest_Mode) (*machine.ApplyConfiguration, error) {
	return r.send(c, &machine.ApplyConfigurationRequest{Data: data, Mode: mode})
}

func (r *R) dry(c *client.Client, data []byte, mode machine.ApplyConfigurationRequest_Mode) (*machine.ApplyConfiguration, error) {
	return r.send(c, &machine.ApplyConfigurationRequest{Data: data, Mode: mode, DryRun: true})
}

// trial applies in try mode.
func (r *R) trial(c *client.Client, data []byte, d time.Duration) (*machine.ApplyConfiguration, error) {
	return r.send(c, &machine.ApplyConfigurationRequest{Data: data, Mode: try, TryModeTimeout: durationpb.New(d)})
}

func (r *R) send(c *client.Client, req *machine.ApplyConfigurationRequest) (*machine.ApplyConfiguration, error) {
	resp, err := c.MachineClient.ApplyConfiguration(r.brief(20*time.Second), req)
	if err != nil {
		return nil, err
	}
	return resp.GetMessages()[0], nil
}

func (r *R) apply(c *client.Client, data []byte, mode machine.ApplyConfigurationRequest_Mode) *machine.ApplyConfiguration {
	m, err := r.tryApply(c, data, mode)
	if err != nil {
		r.Fatalf("apply in mode %s: %v", mode, err)
	}
	return m
}

// services are the states of the services by id, and their health as talosctl shows it.
func (r *R) services(c *client.Client) map[string]*machine.ServiceInfo {
	resp, err := c.MachineClient.ServiceList(r.brief(10*time.Second), empty())
	r.must(err)
	out := map[string]*machine.ServiceInfo{}
	for _, s := range resp.GetMessages()[0].GetServices() {
		out[s.GetId()] = s
	}
	return out
}

func ids[V any](m map[string]V) string {
	var out []string
	for id := range m {
		out = append(out, id)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (r *R) members(c *client.Client, local bool) ([]*machine.EtcdMember, error) {
	resp, err := c.MachineClient.EtcdMemberList(r.brief(10*time.Second), &machine.EtcdMemberListRequest{QueryLocal: local})
	if err != nil {
		return nil, err
	}
	return resp.GetMessages()[0].GetMembers(), nil
}

// rawCOSI asks past the client's own wrapping of errors.
func rawCOSI(c *client.Client) cosi.StateClient { return cosi.NewStateClient(c.Conn()) }

func (r *R) rawList(c *client.Client, ctx context.Context, namespace, typ string) error { //nolint:revive // as the calls do
	s, err := rawCOSI(c).List(ctx, &cosi.ListRequest{Namespace: namespace, Type: typ})
	if err != nil {
		return err
	}
	for {
		if _, err := s.Recv(); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// bootstrap calls Bootstrap until it is accepted, as a client does.
func (r *R) bootstrap(addr string) {
	r.wait("Bootstrap of "+addr+" to be accepted", func() error {
		c, err := r.s.dial(r.ctx, addr, r.s.Talosconfig)
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // nothing is buffered
		_, err = c.MachineClient.Bootstrap(r.brief(5*time.Second), &machine.BootstrapRequest{})
		return err
	})
}

// read returns a file of a node.
func (r *R) read(c *client.Client, path string) (string, error) {
	s, err := c.MachineClient.Read(r.brief(10*time.Second), &machine.ReadRequest{Path: path})
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for {
		d, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return out.String(), nil
		}
		if err != nil {
			return "", err
		}
		out.Write(d.GetBytes())
	}
}
