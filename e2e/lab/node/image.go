package node

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// image is one that a container runtime of the node has.
type image struct {
	Name    string    `json:"name"`
	Digest  string    `json:"digest"`
	Size    int64     `json:"size"`
	Created time.Time `json:"created"`
}

// registries that the lab's nodes reach. What is in them: every image of other kinds, and the
// installers of the versions that the lab can simulate.
var registries = set("ghcr.io", "factory.talos.dev", "registry.k8s.io", "docker.io", "gcr.io", "quay.io")

// normalize completes an image reference as container runtimes do.
func normalize(ref string) (string, error) {
	bad := fmt.Errorf("failed to parse image reference %q: invalid reference format", ref)
	if ref == "" || ref != strings.ToLower(ref) || strings.ContainsAny(ref, " \t\n") {
		return "", bad
	}
	host, rest, ok := strings.Cut(ref, "/")
	if !ok || (!strings.ContainsAny(host, ".:") && host != "localhost") {
		host, rest = "docker.io", ref
		if !strings.Contains(rest, "/") {
			rest = "library/" + rest
		}
	}
	if rest == "" {
		return "", bad
	}
	name := rest[strings.LastIndexByte(rest, '/')+1:]
	if !strings.ContainsAny(name, ":@") {
		rest += ":latest"
	}
	return host + "/" + rest, nil
}

// resolve finds an image in its registry and returns its full reference.
func (b *boot) resolve(ref string) (string, error) {
	full, err := normalize(ref)
	if err != nil {
		return "", err
	}
	host, rest, _ := strings.Cut(full, "/")
	repo, tag, _ := strings.Cut(rest, ":")
	if !registries[host] {
		name, _, _ := strings.Cut(host, ":")
		return "", fmt.Errorf("failed to pull image %q: failed to resolve reference %q: failed to do request: Head %q: dial tcp: lookup %s: no such host",
			full, full, "https://"+host+"/v2/"+repo+"/manifests/"+tag, name)
	}
	if isInstaller(full) {
		if _, err := releaseOf(installerVersion(full)); err != nil {
			return "", status.Errorf(codes.NotFound, "error pulling image: failed to pull image %q: failed to resolve reference %q: %s: not found", full, full, full)
		}
	}
	return full, nil
}

// instance names a container runtime and its namespace, and checks what Talos checks
// (internal/app/internal/ctrhelper, v1.13.5).
func (b *boot) instance(c *common.ContainerdInstance) (string, error) {
	switch c.GetDriver() {
	case common.ContainerDriver_CONTAINERD, common.ContainerDriver_CRI:
	default:
		return "", status.Errorf(codes.InvalidArgument, "invalid containerd driver %s", c.GetDriver())
	}
	ns := "system"
	switch c.GetNamespace() {
	case common.ContainerdNamespace_NS_CRI:
		ns = "k8s.io"
	case common.ContainerdNamespace_NS_SYSTEM:
	default:
		return "", status.Errorf(codes.InvalidArgument, "invalid containerd namespace %s", c.GetNamespace())
	}
	if c.GetDriver() == common.ContainerDriver_CONTAINERD {
		if ns == "k8s.io" {
			return "", status.Error(codes.InvalidArgument, "cannot use CRI namespace with containerd driver")
		}
		return "containerd/" + ns, nil
	}
	if up, _ := b.svc.is("cri"); !up {
		return "", status.Error(codes.Unavailable, `error connecting to containerd: failed to dial "/run/containerd/containerd.sock": context deadline exceeded: connection error: desc = "transport: error while dialing: dial unix:///run/containerd/containerd.sock: timeout"`)
	}
	return "cri/" + ns, nil
}

// pull brings an image into a container runtime; it says whether it was there.
func (b *boot) pull(ctx context.Context, instance, ref string) (image, bool, error) {
	full, err := normalize(ref)
	if err != nil {
		return image{}, false, err
	}
	if img, ok := b.findImage(instance, full); ok {
		return img, true, nil
	}
	if _, err := b.resolve(ref); err != nil {
		return image{}, false, err
	}
	if !sleep(ctx, b.node.opts.Timings.Pull) {
		return image{}, false, ctx.Err()
	}
	sum := sha256.Sum256([]byte(full))
	img := image{Name: full, Digest: fmt.Sprintf("sha256:%x", sum), Size: 90<<20 + int64(sum[0])<<16, Created: time.Now().UTC()}
	name, _, _ := strings.Cut(full, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	config := sha256.Sum256(sum[:])
	aliases := []string{full, name + "@" + img.Digest, fmt.Sprintf("sha256:%x", config)}
	err = b.changeImages(instance, func(all map[string]image) {
		for _, alias := range aliases {
			one := img
			one.Name = alias
			all[alias] = one
		}
	})
	b.node.emit("image", full)
	return img, false, err
}

// pinned is an image's reference by digest, as Pull answers it.
func (i image) pinned() string {
	name, _, _ := strings.Cut(i.Name, "@")
	if j := strings.LastIndexByte(name, ':'); j > strings.LastIndexByte(name, '/') {
		name = name[:j]
	}
	return name + "@" + i.Digest
}

// tagged is the reference with a tag that an image was pulled by: of an installer it tells the version.
func (b *boot) tagged(instance string, img image) string {
	for _, other := range b.images(instance) {
		if other.Digest == img.Digest && installerVersion(other.Name) != "" {
			return other.Name
		}
	}
	return img.Name
}

// images are those of an instance: the CRI's are on EPHEMERAL, the system's in memory.
func (b *boot) images(instance string) map[string]image {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.loadImages()[instance]
}

// loadImages reads them all; b.mu is held.
func (b *boot) loadImages() map[string]map[string]image {
	all := map[string]map[string]image{}
	data, err := os.ReadFile(b.disks.images())
	if err == nil {
		_ = json.Unmarshal(data, &all)
	} else if !errors.Is(err, fs.ErrNotExist) {
		b.node.emit("error", err.Error())
	}
	if len(b.pulled) > 0 {
		all["containerd/system"] = b.pulled
	}
	return all
}

func (b *boot) findImage(instance, ref string) (image, bool) {
	img, ok := b.images(instance)[ref]
	return img, ok
}

func (b *boot) changeImages(instance string, f func(map[string]image)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if instance == "containerd/system" {
		f(b.pulled)
		return nil
	}
	all := b.loadImages()
	delete(all, "containerd/system")
	if all[instance] == nil {
		all[instance] = map[string]image{}
	}
	f(all[instance])
	data, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return b.disks.write(b.disks.images(), data)
}

// pullInstaller is what the deprecated Upgrade call does before it answers.
func (b *boot) pullInstaller(ctx context.Context, ref string) error {
	img, _, err := b.pull(ctx, "containerd/system", ref)
	if err != nil {
		return err
	}
	if !isInstaller(b.tagged("containerd/system", img)) {
		return errors.New(`failed to create "validate" task: exec: "/bin/installer": stat /bin/installer: no such file or directory`)
	}
	return nil
}

type imageAPI struct {
	machine.UnimplementedImageServiceServer
	boot *boot
}

// List implements machine.ImageService.
func (s *imageAPI) List(in *machine.ImageServiceListRequest, srv machine.ImageService_ListServer) error {
	instance, err := s.boot.instance(in.Containerd)
	if err != nil {
		return err
	}
	for _, img := range sorted(s.boot.images(instance)) {
		if err := srv.Send(&machine.ImageServiceListResponse{
			Name: img.Name, Digest: img.Digest, Size: img.Size, CreatedAt: timestamppb.New(img.Created),
		}); err != nil {
			return err
		}
	}
	return nil
}

func sorted(all map[string]image) []image {
	out := make([]image, 0, len(all))
	for _, img := range all {
		out = append(out, img)
	}
	slices.SortFunc(out, func(a, b image) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Pull implements machine.ImageService: the layers' progress, then the reference by digest.
func (s *imageAPI) Pull(in *machine.ImageServicePullRequest, srv machine.ImageService_PullServer) error {
	instance, err := s.boot.instance(in.Containerd)
	if err != nil {
		return err
	}
	began := time.Now()
	img, there, err := s.boot.pull(srv.Context(), instance, in.ImageRef)
	if err != nil {
		return err
	}
	layer := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("layer "+img.Digest)))
	for _, st := range []machine.ImageServicePullLayerProgress_Status{
		machine.ImageServicePullLayerProgress_DOWNLOADING, machine.ImageServicePullLayerProgress_DOWNLOAD_COMPLETE,
		machine.ImageServicePullLayerProgress_EXTRACTING, machine.ImageServicePullLayerProgress_EXTRACT_COMPLETE,
	} {
		if there {
			break
		}
		if err := srv.Send(&machine.ImageServicePullResponse{Response: &machine.ImageServicePullResponse_PullProgress{
			PullProgress: &machine.ImageServicePullProgress{LayerId: layer, Progress: &machine.ImageServicePullLayerProgress{
				Status: st, Elapsed: durationpb.New(time.Since(began)), Offset: img.Size, Total: img.Size,
			}},
		}}); err != nil {
			return err
		}
	}
	return srv.Send(&machine.ImageServicePullResponse{Response: &machine.ImageServicePullResponse_Name{Name: img.pinned()}})
}

// Remove implements machine.ImageService.
func (s *imageAPI) Remove(_ context.Context, in *machine.ImageServiceRemoveRequest) (*emptypb.Empty, error) {
	instance, err := s.boot.instance(in.Containerd)
	if err != nil {
		return nil, err
	}
	if _, ok := s.boot.findImage(instance, in.ImageRef); !ok {
		return nil, status.Errorf(codes.NotFound, "image %s not found", in.ImageRef)
	}
	return &emptypb.Empty{}, s.boot.changeImages(instance, func(all map[string]image) { delete(all, in.ImageRef) })
}

// Verify implements machine.ImageService: the lab's nodes have no rules for images.
func (s *imageAPI) Verify(context.Context, *machine.ImageServiceVerifyRequest) (*machine.ImageServiceVerifyResponse, error) {
	return &machine.ImageServiceVerifyResponse{Message: "no matched rule"}, nil
}

// ImageList implements machine.MachineService: the older call, for the CRI's images.
func (a *api) ImageList(in *machine.ImageListRequest, srv machine.MachineService_ImageListServer) error {
	instance, err := a.boot.instance(&common.ContainerdInstance{Driver: common.ContainerDriver_CRI, Namespace: in.Namespace})
	if err != nil {
		return err
	}
	for _, img := range sorted(a.boot.images(instance)) {
		if err := srv.Send(&machine.ImageListResponse{Name: img.Name, Digest: img.Digest, Size: img.Size, CreatedAt: timestamppb.New(img.Created)}); err != nil {
			return err
		}
	}
	return nil
}

// ImagePull implements machine.MachineService.
func (a *api) ImagePull(ctx context.Context, in *machine.ImagePullRequest) (*machine.ImagePullResponse, error) {
	instance, err := a.boot.instance(&common.ContainerdInstance{Driver: common.ContainerDriver_CRI, Namespace: in.Namespace})
	if err != nil {
		return nil, err
	}
	if _, _, err := a.boot.pull(ctx, instance, in.Reference); err != nil {
		return nil, err
	}
	return &machine.ImagePullResponse{Messages: []*machine.ImagePull{{}}}, nil
}
