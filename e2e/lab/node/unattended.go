package node

import (
	"context"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/cosi-project/runtime/pkg/resource/typed"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// Resource types of the final 1.14 that the lab's machinery library lacks. Their protobuf field
// numbers are the lab's own: nobody outside can decode them but as YAML.
const (
	unattendedType = resource.Type("UnattendedInstallStatuses.runtime.talos.dev")
	unattendedID   = resource.ID("unattended-install")
	rebootType     = resource.Type("RebootRequests.runtime.talos.dev")
	rebootID       = resource.ID("reboot-request")
)

type unattendedSpec struct {
	Image string `yaml:"image,omitempty" protobuf:"1"`
	Phase string `yaml:"phase" protobuf:"2"`
	Error string `yaml:"error,omitempty" protobuf:"3"`
}

// DeepCopy implements typed.DeepCopyable.
func (s unattendedSpec) DeepCopy() unattendedSpec { return s }

type unattendedExtension struct{}

// ResourceDefinition implements meta.ResourceDefinitionProvider.
func (unattendedExtension) ResourceDefinition() meta.ResourceDefinitionSpec {
	return meta.ResourceDefinitionSpec{
		Type: unattendedType, DefaultNamespace: runtime.NamespaceName,
		PrintColumns: []meta.PrintColumn{{Name: "Phase", JSONPath: "{.phase}"}},
	}
}

type unattendedStatus = typed.Resource[unattendedSpec, unattendedExtension]

func newUnattendedStatus() *unattendedStatus {
	return typed.NewResource[unattendedSpec, unattendedExtension](
		resource.NewMetadata(runtime.NamespaceName, unattendedType, unattendedID, resource.VersionUndefined), unattendedSpec{})
}

type rebootSpec struct{}

// DeepCopy implements typed.DeepCopyable.
func (s rebootSpec) DeepCopy() rebootSpec { return s }

type rebootExtension struct{}

// ResourceDefinition implements meta.ResourceDefinitionProvider.
func (rebootExtension) ResourceDefinition() meta.ResourceDefinitionSpec {
	return meta.ResourceDefinitionSpec{Type: rebootType, DefaultNamespace: runtime.NamespaceName}
}

type rebootRequest = typed.Resource[rebootSpec, rebootExtension]

func newRebootRequest() *rebootRequest {
	return typed.NewResource[rebootSpec, rebootExtension](
		resource.NewMetadata(runtime.NamespaceName, rebootType, rebootID, resource.VersionUndefined), rebootSpec{})
}

func init() {
	for _, err := range []error{
		protobuf.RegisterDynamic[unattendedSpec](unattendedType, &unattendedStatus{}),
		protobuf.RegisterDynamic[rebootSpec](rebootType, &rebootRequest{}),
	} {
		if err != nil {
			panic(err)
		}
	}
}

// unattended plays 1.14's UnattendedInstallConfig: the stage stays booting, not ready, while the
// status resource tells how far the installation is; then a reboot is requested. It returns true
// when it was the way to go: the boot goes no further. On an installed machine it shows that it is.
func (b *boot) unattended(ctx context.Context) bool {
	var doc struct {
		fields `yaml:",inline"`
		Reboot *bool `yaml:"reboot"`
	}
	if !newerDocument(b.config(), "UnattendedInstallConfig", &doc) {
		return false
	}
	show := func(phase, text string) {
		put(b, "runtime.UnattendedInstallController", newUnattendedStatus(), func(r *unattendedStatus) {
			*r.TypedSpec() = unattendedSpec{Image: doc.Installer.Image, Phase: phase, Error: text}
		})
	}
	if b.disks.installed() {
		show("installed", "")
		return false
	}
	b.sequence(seqInstall, "", false, nil)
	b.publishSequence(seqBoot, "", machine.SequenceEvent_START, nil)
	for b.ctx.Err() == nil {
		changed := b.configChanged()
		if _, err := b.installDisk(); err == nil {
			break
		}
		show("pending", "no disk matched the selector")
		select {
		case <-changed:
			newerDocument(b.config(), "UnattendedInstallConfig", &doc)
		case <-ctx.Done():
			return true
		}
	}
	show("installing", "")
	if !sleep(ctx, b.node.opts.Timings.Install) {
		return true
	}
	if doc.Installer.Image != "" {
		if _, err := b.resolve(doc.Installer.Image); err != nil {
			show("failed", err.Error())
			return true
		}
	}
	if code, out := b.installVersion(doc.Installer.Image, false); code != 0 {
		show("failed", out[len(out)-1])
		return true
	}
	if err := b.persistOnDisk(); err != nil {
		b.node.emit("error", err.Error())
	}
	b.showVolumes()
	show("waiting-for-reboot", "")
	put(b, "runtime.UnattendedInstallController", newRebootRequest(), func(*rebootRequest) {})
	if doc.Reboot != nil && !*doc.Reboot || doc.Reboot == nil && doc.Installer.Image == "" {
		return true // somebody else is to reboot it
	}
	if sleep(ctx, b.node.opts.Timings.RebootRequest) {
		b.sequence(seqReboot, "", false, b.rebootPhases(machine.RebootRequest_DEFAULT))
	}
	return true
}

// installing says whether an unattended installation waits for its reboot, or runs.
func (b *boot) installing() bool {
	var doc fields
	return newerDocument(b.config(), "UnattendedInstallConfig", &doc) && !b.startedServices()
}

func (b *boot) startedServices() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.started
}
