package node

import "time"

// Timings says how long things take on a node.
type Timings struct {
	// Transition is how long port 50000 is refused between maintenance and configured.
	Transition time.Duration
	// Install is how long the installer runs.
	Install time.Duration
	// Upgrade is how long the installer of an upgrade runs, Pull how long an image takes to come.
	Upgrade, Pull time.Duration
	// RebootRequest is the time between the end of an unattended installation and its reboot.
	RebootRequest time.Duration
	// MemberCheck is how long the deprecated Upgrade call waits for each etcd member's answer.
	MemberCheck time.Duration
	// Stop is how long services take to stop in a reboot, reset or shutdown.
	Stop time.Duration
	// Down is how long a rebooting machine is away.
	Down time.Duration
	// CRI is how long after the start of the boot the container runtime is up; Bootstrap is refused until then.
	CRI time.Duration
	// Kubelet is how long after CRI the kubelet and the static pods take.
	Kubelet time.Duration
	// JoinRetry and PromoteRetry pace the attempts to join etcd and to be promoted.
	JoinRetry, PromoteRetry time.Duration
	// HealthDelay and HealthPeriod pace the health check of etcd.
	HealthDelay, HealthPeriod time.Duration
	// Trustd is how often a worker asks for its certificate.
	Trustd time.Duration
	// BootstrapWait is how long Bootstrap waits for CRI before it refuses.
	BootstrapWait time.Duration
	// FailurePause is the time between a failed sequence and the reboot after it.
	FailurePause time.Duration
	// TickMs and ElectionMs are etcd's; NoFsync makes it fast and unsafe against power loss of the host.
	TickMs, ElectionMs uint
	NoFsync            bool
}

// Fast is the profile for tests and demonstrations: everything happens, quickly.
func Fast() Timings {
	return Timings{
		Transition: 100 * time.Millisecond, Install: 400 * time.Millisecond,
		Upgrade: 200 * time.Millisecond, Pull: 50 * time.Millisecond,
		RebootRequest: 300 * time.Millisecond, MemberCheck: 2 * time.Second,
		Stop: 150 * time.Millisecond, Down: 500 * time.Millisecond,
		CRI: 250 * time.Millisecond, Kubelet: 150 * time.Millisecond,
		JoinRetry: 200 * time.Millisecond, PromoteRetry: 300 * time.Millisecond,
		HealthDelay: 100 * time.Millisecond, HealthPeriod: 500 * time.Millisecond,
		Trustd: 150 * time.Millisecond, BootstrapWait: 100 * time.Millisecond,
		FailurePause: 300 * time.Millisecond,
		TickMs:       50, ElectionMs: 500, NoFsync: true,
	}
}

// Real is near what was seen on real virtual machines.
func Real() Timings {
	return Timings{
		Transition: 3 * time.Second, Install: 30 * time.Second,
		Upgrade: 20 * time.Second, Pull: 10 * time.Second,
		RebootRequest: 5 * time.Second, MemberCheck: 15 * time.Second,
		Stop: 15 * time.Second, Down: 25 * time.Second,
		CRI: 15 * time.Second, Kubelet: 10 * time.Second,
		JoinRetry: 3 * time.Second, PromoteRetry: 15 * time.Second,
		HealthDelay: 5 * time.Second, HealthPeriod: 20 * time.Second,
		Trustd: 5 * time.Second, BootstrapWait: time.Second,
		FailurePause: 10 * time.Second,
		TickMs:       100, ElectionMs: 1000,
	}
}
