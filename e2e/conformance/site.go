package conformance

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
)

// site is a target and what was learnt of it.
type site struct {
	Target
	tag    string // such as "v1.13.5"
	minor  int
	mode   string // "metal" or "container", as the nodes say
	bench  Bench
	reader *clientconfig.Config
	// bootstrapped: Bootstrap was accepted while it was asked too early.
	bootstrapped bool
	extra        []string // machines of a bench that belong to one case
}

// benchNames are the machines of the lab's own cluster.
const (
	firstName  = "cp1"
	secondName = "cp2"
	workerName = "w1"
)

// prepareBench makes the blank machine with which the scenes begin.
func (s *site) prepareBench(t *testing.T) {
	s.bench = s.NewBench(t, "scenes")
	s.Maintenance = s.bench.Add(firstName, s.Version)
	s.Talosconfig, s.reader = s.bench.Talosconfig(), s.bench.Reader()
	s.Destructive, s.Absent = true, s.bench.Absent()
	deadline := time.Now().Add(s.Patience)
	for s.learn(t.Context(), s.Maintenance) != nil && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
	}
	s.Target.Config = s.bench.Config(mtype.TypeControlPlane, firstName, s.minorFor())
}

// learn asks a node for its version and form.
func (s *site) learn(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	cfg := s.Talosconfig
	if addr == s.Maintenance {
		cfg = nil
	}
	c, err := s.dial(ctx, addr, cfg)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // nothing was written
	tag, mode, err := describe(ctx, c)
	if err != nil {
		return err
	}
	parts := strings.Split(strings.TrimPrefix(tag, "v"), ".")
	if len(parts) < 3 || parts[0] != "1" {
		return fmt.Errorf("it says it is Talos %q, and the suite knows 1.x only", tag)
	}
	minor, err := strconv.Atoi(parts[1])
	if err != nil {
		return fmt.Errorf("it says it is Talos %q: %w", tag, err)
	}
	if s.tag != "" && (s.minor != minor || s.mode != mode) {
		return fmt.Errorf("it is %s (%s), another node is %s (%s): give nodes of one kind", tag, mode, s.tag, s.mode)
	}
	s.tag, s.minor, s.mode = tag, minor, mode
	return nil
}

// describe asks a node for its version and form. The maintenance server of 1.12 has no Version
// call for strangers; its resources say the same.
func describe(ctx context.Context, c *client.Client) (tag, mode string, err error) {
	resp, err := c.MachineClient.Version(ctx, &emptypb.Empty{})
	if err == nil {
		v := resp.GetMessages()[0]
		return v.GetVersion().GetTag(), v.GetPlatform().GetMode(), nil
	}
	if status.Code(err) != codes.Unimplemented {
		return "", "", err
	}
	version, err := safe.StateGetByID[*runtime.Version](ctx, c.COSI, "version")
	if err != nil {
		return "", "", err
	}
	platform, err := safe.StateGetByID[*runtime.PlatformMetadata](ctx, c.COSI, runtime.PlatformMetadataID)
	if err != nil {
		return "", "", err
	}
	if mode = platform.TypedSpec().Platform; mode != "container" {
		mode = "metal"
	}
	return version.TypedSpec().Version, mode, nil
}

// dial makes a client of a node that may be asked; cfg nil means without a certificate.
func (s *site) dial(ctx context.Context, addr string, cfg *clientconfig.Config) (*client.Client, error) {
	if s.denied(addr) {
		return nil, fmt.Errorf("node %s is on the deny list", addr)
	}
	if !slices.Contains(s.named(), addr) && !slices.Contains(s.extra, addr) {
		return nil, fmt.Errorf("node %q was not named", addr)
	}
	if cfg == nil {
		return client.New(ctx, client.WithTLSConfig(&tls.Config{InsecureSkipVerify: true}), client.WithEndpoints(addr))
	}
	return client.New(ctx, client.WithConfig(cfg), client.WithEndpoints(addr))
}

// readerConfig returns a credential of os:reader, which a control plane makes.
func (s *site) readerConfig(ctx context.Context) (*clientconfig.Config, error) {
	if s.reader != nil {
		return s.reader, nil
	}
	if s.ControlPlane == "" {
		return nil, errors.New("no control plane to make a reader's credential")
	}
	c, err := s.dial(ctx, s.ControlPlane, s.Talosconfig)
	if err != nil {
		return nil, err
	}
	defer c.Close() //nolint:errcheck // nothing was written
	resp, err := c.MachineClient.GenerateClientConfiguration(ctx, &machine.GenerateClientConfigurationRequest{
		Roles: []string{"os:reader"}, CrtTtl: durationpb.New(time.Hour),
	})
	if err != nil {
		return nil, fmt.Errorf("make a reader's credential: %w", err)
	}
	s.reader, err = clientconfig.FromBytes(resp.GetMessages()[0].GetTalosconfig())
	return s.reader, err
}
