package lab_test

import (
	"strings"
	"testing"

	"github.com/cosi-project/runtime/pkg/safe"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
)

// TestAutomaticHostname: what talosctl gen config writes names the machine by its identity, and a blank machine has none
// before its disk is set up. From then on it has a name, and becomes ready without another boot.
func TestAutomaticHostname(t *testing.T) {
	r := newRig(t)
	r.add("cp1", 1)
	must(t, r.lab.WaitMaintenance(r.ctx, "cp1"))
	data := strings.Replace(string(r.config(mtype.TypeControlPlane, "HERE")), "hostname: HERE", "auto: stable", 1)
	if !strings.Contains(data, "auto: stable") {
		t.Fatal("the configuration has no automatic hostname")
	}
	r.apply(r.insecure("cp1"), []byte(data), auto)
	r.bootstrap("cp1")
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
	c := r.secure("cp1")
	host, err := safe.StateGetByID[*network.HostnameStatus](r.ctx, c.COSI, network.HostnameID)
	must(t, err)
	if !strings.HasPrefix(host.TypedSpec().Hostname, "talos-") {
		t.Errorf("hostname %q, want talos-xxx-xxx", host.TypedSpec().Hostname)
	}
	name, err := safe.StateGetByID[*k8s.Nodename](r.ctx, c.COSI, k8s.NodenameID)
	must(t, err)
	if name.TypedSpec().Nodename != host.TypedSpec().Hostname {
		t.Errorf("node name %q, want the hostname %q", name.TypedSpec().Nodename, host.TypedSpec().Hostname)
	}
}
