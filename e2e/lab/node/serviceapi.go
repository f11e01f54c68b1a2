package node

import (
	"context"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
)

// running says whether a service was started and has not ended; unknown ones are an error.
func (b *boot) running(id string) (bool, error) {
	switch st, _, _ := b.svc.state(id); st {
	case "":
		return false, fmt.Errorf("service %q not defined", id)
	case stFinished, stFailed:
		return false, nil
	}
	return true, nil
}

// ServiceStart implements machine.MachineService; of Talos's services only the kubelet may be started.
func (a *api) ServiceStart(_ context.Context, in *machine.ServiceStartRequest) (*machine.ServiceStartResponse, error) {
	if err := a.boot.apiStart(in.Id); err != nil {
		return nil, err
	}
	return &machine.ServiceStartResponse{Messages: []*machine.ServiceStart{{Resp: fmt.Sprintf("Service %q started", in.Id)}}}, nil
}

func (b *boot) apiStart(id string) error {
	switch up, err := b.running(id); {
	case err != nil || up:
		return err
	case id != "kubelet":
		return fmt.Errorf("service %q doesn't support start operation via API", id)
	}
	b.goDo(b.restartKubelet)
	return nil
}

// ServiceStop implements machine.MachineService; no service of Talos may be stopped, and one that
// doesn't run is stopped already.
func (a *api) ServiceStop(_ context.Context, in *machine.ServiceStopRequest) (*machine.ServiceStopResponse, error) {
	switch up, err := a.boot.running(in.Id); {
	case err != nil:
		return nil, err
	case up:
		return nil, fmt.Errorf("service %q doesn't support stop operation via API", in.Id)
	}
	return &machine.ServiceStopResponse{Messages: []*machine.ServiceStop{{Resp: fmt.Sprintf("Service %q stopped", in.Id)}}}, nil
}

// ServiceRestart implements machine.MachineService; only the kubelet may be restarted.
func (a *api) ServiceRestart(_ context.Context, in *machine.ServiceRestartRequest) (*machine.ServiceRestartResponse, error) {
	b := a.boot
	up, err := b.running(in.Id)
	switch {
	case err != nil:
	case !up:
		err = b.apiStart(in.Id)
	case in.Id != "kubelet":
		err = fmt.Errorf("service %q doesn't support restart operation via API", in.Id)
	default:
		b.goDo(b.restartKubelet)
	}
	if err != nil {
		return nil, err
	}
	return &machine.ServiceRestartResponse{Messages: []*machine.ServiceRestart{{Resp: fmt.Sprintf("Service %q restarted", in.Id)}}}, nil
}
