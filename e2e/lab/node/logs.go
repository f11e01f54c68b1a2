package node

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/protobuf/types/known/emptypb"
)

// A node's logs are written out of what happened when somebody reads them: its events are the
// record, so that a lab of many nodes keeps nothing twice. etcd's is the member's own log.

// maxLogLines is how much of a log that is kept as text stays.
const maxLogLines = 300

// textLog is a log that is kept as lines.
type textLog struct {
	mu      sync.Mutex
	lines   [][]byte
	dropped int
	wake    chan struct{}
}

func newTextLog() *textLog { return &textLog{wake: make(chan struct{})} }

// Write implements io.Writer, one line a call.
func (t *textLog) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, bytes.Clone(p))
	if over := len(t.lines) - maxLogLines; over > 0 {
		t.lines = slices.Clone(t.lines[over:])
		t.dropped += over
	}
	close(t.wake)
	t.wake = make(chan struct{})
	return len(p), nil
}

// since returns the lines from a position on, the next position, and what to wait for.
func (t *textLog) since(pos int) ([][]byte, int, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	from := min(max(pos-t.dropped, 0), len(t.lines))
	return slices.Clone(t.lines[from:]), t.dropped + len(t.lines), t.wake
}

// etcdLogger writes etcd's log as its container's output has it: one JSON object a line.
func (b *boot) etcdLogger() *zap.Logger {
	enc := zapcore.NewJSONEncoder(zapcore.EncoderConfig{
		TimeKey: "ts", LevelKey: "level", CallerKey: "caller", MessageKey: "msg", LineEnding: "\n",
		EncodeLevel: zapcore.LowercaseLevelEncoder, EncodeDuration: zapcore.StringDurationEncoder, EncodeCaller: zapcore.ShortCallerEncoder,
		EncodeTime: zapcore.TimeEncoderOfLayout("2006-01-02T15:04:05.000000Z0700"),
	})
	return zap.New(zapcore.NewCore(enc, zapcore.AddSync(b.etcdLog), zapcore.InfoLevel), zap.AddCaller())
}

// banner is the kernel's part of the log.
func (b *boot) banner() []string {
	spec := b.node.Spec()
	lines := []string{
		"kern:  notice: Linux version " + kernelVersion + " (@buildkitsandbox) #1 SMP PREEMPT_DYNAMIC",
		"kern:    info: Command line: " + b.cmdline(),
		"kern:    info: DMI: QEMU lab, BIOS pc-i440fx-7.2",
		fmt.Sprintf("kern:    info: Memory: %dK/%dK available", memoryKiB-90000, memoryKiB),
		fmt.Sprintf("kern:    info: smp: Brought up 1 node, %d CPUs", cpuCount),
	}
	for _, d := range spec.Disks {
		lines = append(lines, fmt.Sprintf("kern:  notice: virtio_blk: [%s] %d 512-byte logical blocks", d.Name, d.Size/512))
	}
	return lines
}

// kmsg writes a line as Dmesg sends it: the record's prefix, the time and the message.
func kmsg(prefix string, at time.Time, msg string) []byte {
	return fmt.Appendf(nil, "%s: [%s]: %s\n", prefix, at.UTC().Format(time.RFC3339Nano), msg)
}

// machinedLine is what machined writes about an event; empty for those it doesn't write about.
func machinedLine(e event) string {
	switch p := e.payload.(type) {
	case *machine.SequenceEvent:
		switch {
		case p.Error != nil && p.Action == machine.SequenceEvent_NOOP:
			return fmt.Sprintf("%s sequence: failed: %s", p.Sequence, p.Error.Message)
		case p.Action == machine.SequenceEvent_START:
			return p.Sequence + " sequence: started"
		case p.Action == machine.SequenceEvent_STOP:
			return p.Sequence + " sequence: done"
		}
	case *machine.PhaseEvent:
		return "phase " + p.Phase + ": " + map[bool]string{true: "starting", false: "done"}[p.Action == machine.PhaseEvent_START]
	case *machine.TaskEvent:
		return "task " + p.Task + ": " + map[bool]string{true: "starting", false: "done"}[p.Action == machine.TaskEvent_START]
	case *machine.ServiceStateEvent:
		return fmt.Sprintf("service[%s](%s): %s", p.Service, stateOf(p.Action), p.Message)
	case *machine.MachineStatusEvent:
		if p.Stage == machine.MachineStatusEvent_RUNNING && p.Status.GetReady() {
			return `machine is running and ready {"component": "controller-runtime", "controller": "runtime.MachineStatusController"}`
		}
	}
	return ""
}

func stateOf(a machine.ServiceStateEvent_Action) string {
	for _, s := range []string{stStarting, stWaiting, stPreparing, stRunning, stStopping, stFinished, stFailed} {
		if actionOf(s) == a {
			return s
		}
	}
	return "Unknown"
}

// Dmesg implements machine.MachineService.
func (a *api) Dmesg(in *machine.DmesgRequest, srv machine.MachineService_DmesgServer) error {
	b := a.boot
	pos := 0
	if in.Tail {
		_, pos, _ = b.events.since(0)
	} else {
		for _, l := range b.banner() {
			prefix, msg, _ := strings.Cut(l[len("kern: "):], ": ")
			if err := srv.Send(&common.Data{Bytes: kmsg("kern: "+prefix, b.poweredOn, msg)}); err != nil {
				return err
			}
		}
	}
	return b.follow(srv.Context(), in.Follow, pos, func(e event) error {
		line := machinedLine(e)
		if line == "" {
			return nil
		}
		return srv.Send(&common.Data{Bytes: kmsg("user: warning", e.at, "[talos] "+line)})
	})
}

// follow gives the events from a position on, and if asked those that come, until the caller or the boot goes.
func (b *boot) follow(ctx context.Context, on bool, pos int, each func(event) error) error {
	for {
		list, next, wake := b.events.since(pos)
		pos = next
		for _, e := range list {
			if err := each(e); err != nil {
				return err
			}
		}
		if !on {
			return nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return nil
		case <-b.ctx.Done():
			return nil
		}
	}
}

// logIDs are the logs that the node has: of its services, and of machined's controllers.
func (b *boot) logIDs() []string {
	ids := []string{"controller-runtime", "dns-resolve-cache"}
	for _, s := range b.svc.list() {
		ids = append(ids, s.Id)
	}
	slices.Sort(ids)
	return ids
}

// LogsContainers implements machine.MachineService.
func (a *api) LogsContainers(context.Context, *emptypb.Empty) (*machine.LogsContainersResponse, error) {
	return &machine.LogsContainersResponse{Messages: []*machine.LogsContainer{{Ids: a.boot.logIDs()}}}, nil
}

// Logs implements machine.MachineService: a service's log, or a container's of the namespace k8s.io.
func (a *api) Logs(in *machine.LogsRequest, srv machine.MachineService_LogsServer) error {
	b := a.boot
	if in.Namespace != constants.SystemContainerdNamespace && in.Id != "kubelet" {
		return a.podLogs(in, srv)
	}
	if !slices.Contains(b.logIDs(), in.Id) {
		return fmt.Errorf("log %q was not registered", in.Id)
	}
	if in.Id == "etcd" {
		return b.textLogs(in, b.etcdLog, srv)
	}
	list, pos, _ := b.events.since(0)
	var lines [][]byte
	for _, e := range list {
		if line := b.logLine(in.Id, e); line != nil {
			lines = append(lines, line)
		}
	}
	if in.Id == "apid" {
		calls, _, _ := b.apidLog.since(0)
		lines = append(lines, calls...)
	}
	if err := sendLines(srv, tail(lines, in.TailLines)); err != nil || !in.Follow {
		return err
	}
	return b.follow(srv.Context(), true, pos, func(e event) error {
		if line := b.logLine(in.Id, e); line != nil {
			return srv.Send(&common.Data{Bytes: line})
		}
		return nil
	})
}

// sayDeprecated notes in apid's log that a call used one-to-many proxying, as 1.14 does.
func (b *boot) sayDeprecated(method string) {
	if b.release.minor >= 14 {
		fmt.Fprintf(b.apidLog, "%s request for method %q using deprecated nodes proxying\n", //nolint:errcheck // memory
			time.Now().UTC().Format("2006/01/02 15:04:05.000000"), method)
	}
}

// tail is the last n of the lines; all for a negative n.
func tail(lines [][]byte, n int32) [][]byte {
	if n < 0 {
		return lines
	}
	return lines[max(0, len(lines)-int(n)):]
}

// sendLines sends lines in chunks, as a node reads its log files.
func sendLines(srv machine.MachineService_LogsServer, lines [][]byte) error {
	var chunk []byte
	for _, l := range lines {
		chunk = append(chunk, l...)
		if len(chunk) >= 1024 {
			if err := srv.Send(&common.Data{Bytes: chunk}); err != nil {
				return err
			}
			chunk = nil
		}
	}
	if len(chunk) == 0 {
		return nil
	}
	return srv.Send(&common.Data{Bytes: chunk})
}

// textLogs sends a log that is kept as text.
func (b *boot) textLogs(in *machine.LogsRequest, log *textLog, srv machine.MachineService_LogsServer) error {
	lines, pos, wake := log.since(0)
	if err := sendLines(srv, tail(lines, in.TailLines)); err != nil {
		return err
	}
	for in.Follow {
		select {
		case <-wake:
		case <-srv.Context().Done():
			return nil
		case <-b.ctx.Done():
			return nil
		}
		lines, pos, wake = log.since(pos)
		if err := sendLines(srv, lines); err != nil {
			return err
		}
	}
	return nil
}

// logLine is what a service's own log says at an event; nil for nothing.
func (b *boot) logLine(id string, e event) []byte {
	const layout = "2006/01/02 15:04:05.000000"
	switch id {
	case "machined":
		if line := machinedLine(e); line != "" {
			return fmt.Appendf(nil, "%s [talos] %s\n", e.at.UTC().Format(layout), line)
		}
		return nil
	case "controller-runtime":
		if st, ok := e.payload.(*machine.MachineStatusEvent); ok {
			return fmt.Appendf(nil, "%s machine status {\"component\": \"controller-runtime\", \"controller\": \"runtime.MachineStatusController\", \"stage\": %q, \"ready\": %t}\n",
				e.at.UTC().Format(time.RFC3339), strings.ToLower(st.Stage.String()), st.Status.GetReady())
		}
		return nil
	}
	st, ok := e.payload.(*machine.ServiceStateEvent)
	if !ok || st.Service != id || st.Action != machine.ServiceStateEvent_RUNNING {
		return nil
	}
	switch id {
	case "kubelet":
		return fmt.Appendf(nil, "{\"ts\":%d.0,\"logger\":\"kubelet\",\"msg\":%q,\"v\":0}\n", e.at.UnixMilli(), st.Message)
	case "containerd", "cri":
		return fmt.Appendf(nil, "{\"level\":\"info\",\"msg\":%q,\"time\":%q}\n", st.Message, e.at.UTC().Format(time.RFC3339Nano))
	}
	return fmt.Appendf(nil, "%s %s: %s\n", e.at.UTC().Format(layout), id, st.Message)
}

// podLogs are the logs of a container that the inspector sees.
func (a *api) podLogs(in *machine.LogsRequest, srv machine.MachineService_LogsServer) error {
	list, err := a.boot.containers(in.Namespace, in.Driver)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(c task) bool { return c.id == in.Id || strings.HasPrefix(c.id, in.Id+":") || c.internal == in.Id })
	if i < 0 {
		return fmt.Errorf("container %q not found", in.Id)
	}
	at := a.boot.poweredOn.UTC().Format(time.RFC3339Nano)
	return sendLines(srv, tail([][]byte{fmt.Appendf(nil, "%s stderr F the lab runs no containers: %s has no output\n", at, list[i].name)}, in.TailLines))
}
