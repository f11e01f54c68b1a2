package node

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// The lab's members are all of one etcd version (3.7). What depends on the version of the etcd that a
// node's Talos brings is played here: the versions shown, and that 3.6 neither joins a cluster of 3.7
// nor starts on its data (talos-observed-114.md 5).

func (d disks) etcdStorage() string { return filepath.Join(d.ephemeral(), "lib", "etcd.storage") }

// member37 tells whether the node's etcd data were used by a cluster of 3.7: there is no way back.
func (d disks) member37() bool {
	b, err := os.ReadFile(d.etcdStorage())
	return err == nil && string(b) == "3.7" && !d.etcdEmpty()
}

// nodeAt is the lab's machine behind a peer URL of a member, nil when there is none.
func (b *boot) nodeAt(peerURL string) *Node {
	u, err := url.Parse(peerURL)
	if err != nil {
		return nil
	}
	for _, n := range b.node.opts.Peers() {
		if n.Spec().Address.String() == u.Hostname() {
			return n
		}
	}
	return nil
}

// clusterMinor is the minor version of the etcd cluster that the client asks: the lowest of its
// started members, and 7 for ever once it was that. The node's own member counts when it is in the list.
func (e *etcdService) clusterMinor(ctx context.Context, cl *clientv3.Client) (int, error) {
	list, err := cl.MemberList(ctx)
	if err != nil {
		return 0, err
	}
	lowest := 7
	for _, m := range list.Members {
		if m.Name == "" || len(m.PeerURLs) == 0 {
			continue
		}
		n := e.b.nodeAt(m.PeerURLs[0])
		if n == nil {
			continue
		}
		d := n.currentDisks()
		if d.member37() {
			return 7, nil
		}
		if rel, err := releaseOf(n.bootVersion(d)); err == nil {
			lowest = min(lowest, rel.etcdMinor())
		}
	}
	return lowest, nil
}

// noteStorage writes down that the cluster is one of 3.7 now, as etcd does in its storage version.
func (e *etcdService) noteStorage(ctx context.Context, cl *clientv3.Client) {
	d := e.b.disks
	if e.b.release.etcdMinor() < 7 || d.member37() {
		return
	}
	if minor, err := e.clusterMinor(ctx, cl); err == nil && minor == 7 {
		if err := d.write(d.etcdStorage(), []byte("3.7")); err != nil && e.b.ctx.Err() == nil {
			e.b.node.emit("error", err.Error())
		}
	}
}

// versions are those that the node's etcd says of itself: of its program and of its data.
func (e *etcdService) versions() (protocol, storage string) {
	storage = "3.6.0"
	if e.b.disks.member37() {
		storage = "3.7.0"
	}
	return strings.TrimPrefix(e.b.release.etcd, "v"), storage
}

// tooOld says why the node's etcd doesn't start: the cluster it was added to, or its own data, are
// of a later version. Empty when it starts.
func (e *etcdService) tooOld(ctx context.Context, joined bool) string {
	if e.b.disks.etcdEmpty() { // what is known is of data that are gone
		os.Remove(e.b.disks.etcdStorage())
	}
	if e.b.release.etcdMinor() >= 7 {
		return ""
	}
	if e.b.disks.member37() {
		return fmt.Sprintf("invalid downgrade; server version is lower than determined cluster version (%s, 3.7)", e.b.release.etcd)
	}
	if !joined {
		return ""
	}
	cl, err := e.clusterClient(ctx)
	if err != nil {
		return ""
	}
	defer cl.Close()
	if minor, err := e.clusterMinor(ctx, cl); err == nil && minor >= 7 {
		return "cluster version of remote member is not compatible; too high (remote 3.7.0, maximum 3.6.0): incompatible with current running cluster"
	}
	return ""
}

// failing shows a service that waits to be started again after an error: unhealthy, not unknown.
func (s *services) failing(id, msg string) {
	s.mu.Lock()
	svc := s.byID[id]
	if svc == nil {
		svc = &service{id: id}
		s.byID[id] = svc
	}
	svc.state, svc.unknown, svc.healthy, svc.message, svc.changed = stWaiting, false, false, "service not running", s.boot.node.now()
	s.note(svc, msg)
	s.mu.Unlock()
	s.show(id)
}
