package node

import (
	"fmt"
	"strings"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	timeres "github.com/siderolabs/talos/pkg/machinery/resources/time"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
)

// setStage moves the machine to a stage.
func (b *boot) setStage(s runtime.MachineStage) {
	b.thawed()
	b.mu.Lock()
	changed := b.stage != s
	b.stage = s
	b.mu.Unlock()
	if changed {
		b.node.emit("stage", s.String())
	}
	b.refresh()
}

// refresh works out the machine's status, writes the resource and, when it changed, publishes it.
// It is what Talos's MachineStatusController does: readiness is only looked at while booting and
// running, and every other stage is "ready".
func (b *boot) refresh() {
	b.statusMu.Lock()
	defer b.statusMu.Unlock()
	b.mu.Lock()
	stage := b.stage
	b.mu.Unlock()

	var unmet []runtime.UnmetCondition
	if stage == runtime.MachineStageBooting || stage == runtime.MachineStageRunning {
		unmet = b.unmet()
	}
	spec := runtime.MachineStatusSpec{
		Stage:  stage,
		Status: runtime.MachineStatusStatus{Ready: len(unmet) == 0, UnmetConditions: unmet},
	}
	if b.lastStatus == fmt.Sprint(spec) {
		return
	}
	b.lastStatus = fmt.Sprint(spec)
	put(b, "runtime.MachineStatusController", runtime.NewMachineStatus(), func(r *runtime.MachineStatus) {
		*r.TypedSpec() = spec
	})
	msg := &machine.MachineStatusEvent{
		Stage:  machine.MachineStatusEvent_MachineStage(stage),
		Status: &machine.MachineStatusEvent_MachineStatus{Ready: spec.Status.Ready},
	}
	for _, c := range unmet {
		msg.Status.UnmetConditions = append(msg.Status.UnmetConditions,
			&machine.MachineStatusEvent_MachineStatus_UnmetCondition{Name: c.Name, Reason: c.Reason})
	}
	b.events.publish("", msg)
}

// unmet runs the readiness checks, in Talos's order and words.
func (b *boot) unmet() []runtime.UnmetCondition {
	var out []runtime.UnmetCondition
	for _, c := range []struct {
		name  string
		check func() string
	}{
		{"time", b.checkTime},
		{"network", b.checkNetwork},
		{"services", b.checkServices},
		{"staticPods", b.checkStaticPods},
		{"nodeReady", b.checkNodeReady},
	} {
		if reason := c.check(); reason != "" {
			out = append(out, runtime.UnmetCondition{Name: c.name, Reason: reason})
		}
	}
	return out
}

func (b *boot) checkTime() string {
	st, err := safe.StateGet[*timeres.Status](b.ctx, b.state, timeres.NewStatus().Metadata())
	if err != nil {
		return err.Error()
	}
	if !st.TypedSpec().Synced {
		return "time is not synced"
	}
	return ""
}

func (b *boot) checkNetwork() string {
	st, err := safe.StateGet[*network.Status](b.ctx, b.state, network.NewStatus(network.NamespaceName, network.StatusID).Metadata())
	if err != nil {
		return err.Error()
	}
	var missing []string
	for _, c := range []struct {
		ok   bool
		name string
	}{
		{st.TypedSpec().AddressReady, "address"},
		{st.TypedSpec().ConnectivityReady, "connectivity"},
		{st.TypedSpec().EtcFilesReady, "etc-files"},
		{st.TypedSpec().HostnameReady, "hostname"},
	} {
		if !c.ok {
			missing = append(missing, c.name)
		}
	}
	if len(missing) == 0 {
		return ""
	}
	return "waiting on: " + strings.Join(missing, ", ")
}

func (b *boot) checkServices() string {
	required := []string{"apid", "machined"}
	if kubernetes(b.config()) {
		required = append(required, "kubelet")
	}
	if b.machineType().IsControlPlane() {
		if b.etcdConfigured() || !b.release.multiDoc {
			required = append(required, "etcd")
		}
		required = append(required, "trustd")
	}
	list, err := safe.StateListAll[*v1alpha1.Service](b.ctx, b.state)
	if err != nil {
		return err.Error()
	}
	var problems []string
	running := map[string]bool{}
	for s := range list.All() {
		running[s.Metadata().ID()] = true
		if !s.TypedSpec().Unknown && !s.TypedSpec().Healthy {
			problems = append(problems, s.Metadata().ID()+" not healthy")
		}
	}
	for _, id := range required {
		if !running[id] {
			problems = append(problems, id+" not running")
		}
	}
	return strings.Join(problems, ", ")
}

func (b *boot) checkStaticPods() string {
	list, err := safe.StateListAll[*k8s.StaticPodStatus](b.ctx, b.state)
	if err != nil {
		return err.Error()
	}
	var problems []string
	for p := range list.All() {
		phase, _ := p.TypedSpec().PodStatus["phase"].(string)
		switch phase {
		case "Running":
			if !podReady(p.TypedSpec().PodStatus) {
				problems = append(problems, p.Metadata().ID()+" not ready")
			}
		case "Succeeded":
		default:
			problems = append(problems, p.Metadata().ID()+" "+strings.ToLower(phase))
		}
	}
	return strings.Join(problems, ", ")
}

func podReady(status map[string]any) bool {
	conditions, _ := status["conditions"].([]any)
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && m["type"] == "Ready" {
			return m["status"] == "True"
		}
	}
	return false
}

func (b *boot) checkNodeReady() string {
	name, err := safe.StateGetByID[*k8s.Nodename](b.ctx, b.state, k8s.NodenameID)
	if state.IsNotFoundError(err) || (err == nil && name.TypedSpec().SkipNodeRegistration) {
		return ""
	}
	if err != nil {
		return err.Error()
	}
	st, err := safe.StateGetByID[*k8s.NodeStatus](b.ctx, b.state, name.TypedSpec().Nodename)
	if state.IsNotFoundError(err) {
		return fmt.Sprintf("node %q status is not available yet", name.TypedSpec().Nodename)
	}
	if err != nil {
		return err.Error()
	}
	if !st.TypedSpec().NodeReady {
		return fmt.Sprintf("node %q is not ready", name.TypedSpec().Nodename)
	}
	return ""
}

// machineType is what the active configuration makes of the machine.
func (b *boot) machineType() mtype.Type {
	return machineTypeOf(b.config())
}

func machineTypeOf(cfg config.Provider) mtype.Type {
	if cfg == nil || cfg.Machine() == nil {
		return mtype.TypeUnknown
	}
	return cfg.Machine().Type()
}
