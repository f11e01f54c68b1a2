package conformance

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"google.golang.org/grpc/codes"
)

// kindsOf114 are documents of rc.1 that the library does not know; this one conflicts with nothing.
const rc1Doc = "---\napiVersion: v1alpha1\nkind: SecurityProfileConfig\nworkloadIsolation: true\n"

const notRegistered = `"SecurityProfileConfig" "v1alpha1": not registered`

func unknownDocuments(r *R) {
	b := r.own()
	var sent string
	a := r.up(b, firstName, r.s.Version, mtype.TypeControlPlane, func(data []byte) []byte {
		sent = string(data) + rc1Doc
		return []byte(sent)
	})
	r.bootstrap(a)
	r.waitReady(a)
	c := r.admin(a)
	says := func(what string, err error) {
		if err == nil || !strings.Contains(err.Error(), "error decoding document v1alpha1/SecurityProfileConfig/ (line ") || !strings.Contains(err.Error(), notRegistered) {
			r.Errorf("%s: %v", what, err)
		}
	}
	_, err := safe.StateGetByID[*config.MachineConfig](r.ctx, c.COSI, config.ActiveID)
	says("typed get", err)
	_, err = safe.StateListAll[*config.MachineConfig](r.ctx, c.COSI)
	says("typed list", err)
	_, err = c.COSI.Get(r.ctx, resource.NewMetadata(config.NamespaceName, config.MachineConfigType, config.ActiveID, resource.VersionUndefined))
	says("untyped get", err)
	r.same("what is there, undecoded", r.running(c), []byte(sent))
	_, err = r.status(c)
	r.ok("MachineStatus", err)
}

const installer114 = "ghcr.io/siderolabs/installer:" + version114

// upgradeByLifecycle does what talosctl 1.14 does: pull, upgrade, reboot.
func upgradeByLifecycle(r *R) {
	b := r.own()
	a := r.one(b, firstName, r.s.Version)
	c := r.admin(a)
	boot := r.bootOf(a)
	name := ""
	s, err := c.ImageClient.Pull(r.ctx, &machine.ImageServicePullRequest{Containerd: system(), ImageRef: installer114})
	for err == nil {
		var m *machine.ImageServicePullResponse
		if m, err = s.Recv(); err == nil && m.GetName() != "" {
			name = m.GetName()
		}
	}
	if name == "" {
		r.Fatalf("the pull ended with no name: %v", err)
	}
	up, err := c.LifecycleClient.Upgrade(r.ctx, upgradeTo(name))
	r.must(err)
	messages, exit := 0, int32(-1)
	for {
		m, err := up.Recv()
		if err != nil {
			break
		}
		switch p := m.GetProgress().GetResponse().(type) {
		case *machine.LifecycleServiceInstallProgress_Message:
			messages++
			want(r, "a message after the exit code", exit, -1)
		case *machine.LifecycleServiceInstallProgress_ExitCode:
			exit = p.ExitCode
		}
	}
	want(r, "exit code", exit, 0)
	if messages == 0 {
		r.Errorf("the installer said nothing")
	}
	r.pause(r.settle())
	want(r, "it does not reboot by itself: the boot", r.bootOf(a), boot)
	_, err = c.MachineClient.Reboot(r.ctx, &machine.RebootRequest{})
	r.must(err)
	r.waitBoot(a, boot)
	want(r, "version", r.versionOf(a), version114)
}

func (r *R) versionOf(a string) string {
	v, err := r.admin(a).MachineClient.Version(r.ctx, empty())
	r.must(err)
	return v.GetMessages()[0].GetVersion().GetTag()
}

func upgradeByLegacyCall(r *R) {
	b := r.own()
	a := r.one(b, firstName, r.s.Version)
	boot := r.bootOf(a)
	_, err := r.admin(a).MachineClient.Upgrade(r.brief(60*time.Second), &machine.UpgradeRequest{Image: installer114}) //nolint:staticcheck // asked
	r.must(err)
	r.waitBoot(a, boot)
	want(r, "version", r.versionOf(a), version114)
}

// oldIntoNew: a 1.13 control plane can't join etcd 3.7, and leaves its learner behind.
func oldIntoNew(r *R) {
	b := r.own()
	one := r.one(b, firstName, version114)
	a := r.add(b, secondName, version113)
	data := b.Config(mtype.TypeControlPlane, secondName, 13)
	_, err := r.dry(r.insecure(a), []byte(string(data)+rc1Doc), auto)
	r.has("1.14 documents", err, codes.InvalidArgument, notRegistered)
	r.apply(r.insecure(a), data, auto)
	id := uint64(0)
	r.wait("the learner that never starts, and the service that fails", func() error {
		members, err := r.members(r.admin(one), true)
		if err != nil {
			return err
		}
		for _, m := range members {
			if m.GetHostname() == "" && m.GetIsLearner() {
				id = m.GetId()
			}
			if m.GetHostname() == secondName {
				r.Fatalf("it joined: %v", m)
			}
		}
		c, err := r.s.dial(r.ctx, a, r.s.Talosconfig)
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // nothing was written
		if _, err := r.status(c); err != nil {
			return err
		}
		etcd := r.services(c)["etcd"]
		ev := etcd.GetEvents().GetEvents()
		if id == 0 || etcd.GetState() != "Waiting" || len(ev) == 0 || !strings.Contains(ev[len(ev)-1].GetMsg(), "going to restart forever") {
			return fmt.Errorf("members %v, etcd %s %v", members, etcd.GetState(), ev)
		}
		return nil
	})
	r.pause(r.settle())
	members, err := r.members(r.admin(one), true)
	r.must(err)
	want(r, "members later", len(members), 2)
	// Routing works both ways all the same.
	for from, to := range map[string]string{one: a, a: one} {
		_, err := r.admin(from).MachineClient.Version(r.node(to), empty())
		r.ok("Version through "+from, err)
	}
	_, err = r.admin(one).MachineClient.EtcdRemoveMemberByID(r.brief(10*time.Second), &machine.EtcdRemoveMemberByIDRequest{MemberId: id})
	r.ok("removal of the dead learner", err)
}

// newIntoOld: a 1.14 control plane joins etcd 3.6; when all are 1.14 the storage version rises, one way.
func newIntoOld(r *R) {
	b := r.own()
	one := r.one(b, firstName, version113)
	// Their configurations hold no 1.14 documents, as during a rollout.
	a := r.add(b, secondName, version114)
	r.apply(r.insecure(a), b.Config(mtype.TypeControlPlane, secondName, 13), auto)
	r.wait("the second member to vote", func() error {
		members, err := r.members(r.admin(one), true)
		if err != nil {
			return err
		}
		if len(members) != 2 || members[0].GetIsLearner() || members[1].GetIsLearner() || members[0].GetHostname() == "" || members[1].GetHostname() == "" {
			return fmt.Errorf("members are %v", members)
		}
		return nil
	})
	storage := func(a string) (string, error) {
		resp, err := r.admin(a).MachineClient.EtcdStatus(r.brief(5*time.Second), empty())
		if err != nil {
			return "", err
		}
		st := resp.GetMessages()[0].GetMemberStatus()
		return st.GetStorageVersion() + " by " + st.GetProtocolVersion(), nil
	}
	for who, wanted := range map[string]string{one: "3.6.0 by 3.6.", a: "3.6.0 by 3.7."} {
		r.wait("etcd's versions at "+who, func() error {
			got, err := storage(who)
			if err == nil && !strings.HasPrefix(got, wanted) {
				err = errors.New(got)
			}
			return err
		})
	}
	before := string(r.running(r.admin(one)))
	b.Reinstall(firstName, version114)
	r.waitReady(one)
	m, err := r.dry(r.admin(one), []byte(before), auto)
	r.must(err)
	want(r, "its configuration in place", m.GetModeDetails(), "Dry run summary:\n"+textNoReboot+noChanges)
	for _, who := range []string{one, a} {
		r.wait("the storage version to rise at "+who, func() error {
			got, err := storage(who)
			if err == nil && !strings.HasPrefix(got, "3.7.0 by 3.7.") {
				err = errors.New(got)
			}
			return err
		})
	}
	// One-way: back on 1.13, its etcd does not come up on the data any more.
	b.Reinstall(firstName, version113)
	up := 0
	r.wait("etcd 3.6 to stay down on data of 3.7", func() error {
		c, err := r.s.dial(r.ctx, one, r.s.Talosconfig)
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // nothing was written
		if _, err := r.status(c); err != nil {
			return err
		}
		if s := r.services(c)["etcd"]; s.GetState() == "Running" && s.GetHealth().GetHealthy() {
			r.Fatalf("it is up")
		}
		if up++; up < 20 {
			return errSame
		}
		return nil
	})
}

func oldOnNewDocuments(r *R) {
	b := r.own()
	a := r.up(b, firstName, version114, mtype.TypeControlPlane, func(data []byte) []byte { return []byte(string(data) + rc1Doc) })
	r.bootstrap(a)
	r.waitReady(a)
	b.Reinstall(firstName, version113)
	refused := 0
	r.wait("the port to stay refused", func() error {
		_, err := r.freshStatus(a)
		_, ierr := r.insecure(a).MachineClient.Version(r.brief(5*time.Second), empty())
		if !strings.Contains(msgOf(err), "connect: connection refused") || !strings.Contains(msgOf(ierr), "connect: connection refused") {
			r.Fatalf("secure %v, insecure %v", err, ierr)
		}
		if refused++; refused < 40 {
			return errSame
		}
		return nil
	})
}
