package kube

import (
	"fmt"
	"time"
)

// timing says how often things happen in Kubernetes.
type timing struct {
	// lease is how often a kubelet renews its lease, status how often it looks at its Node, heartbeat how old an unchanged
	// status may get.
	lease, status, heartbeat time.Duration
	// monitorPeriod and monitorGrace are the controller manager's: how often it looks at leases, and how old one may be.
	monitorPeriod, monitorGrace time.Duration
	// election of the controller manager and the scheduler.
	electionLease, electionRenew, electionRetry time.Duration
	// retry after a refusal, probe of the API server.
	retry, probe time.Duration
	// podStart is how long a pod takes to run, podRun how long one that ends by itself runs.
	podStart, podRun time.Duration
	// pings of the controller manager's connections, in seconds; 0 leaves the defaults. Kubernetes wants the grace of a
	// node to be longer than both together.
	pingIdle, pingTimeout int
}

// real are the defaults of Kubernetes 1.37.
var real = timing{
	lease: 10 * time.Second, status: 10 * time.Second, heartbeat: 5 * time.Minute,
	monitorPeriod: 5 * time.Second, monitorGrace: 50 * time.Second,
	electionLease: 15 * time.Second, electionRenew: 10 * time.Second, electionRetry: 2 * time.Second,
	retry: 2 * time.Second, probe: 2 * time.Second,
	podStart: 3 * time.Second, podRun: 10 * time.Second,
}

// fast is for tests and demonstrations.
var fast = timing{
	lease: time.Second, status: 2 * time.Second, heartbeat: 5 * time.Minute,
	monitorPeriod: time.Second, monitorGrace: 10 * time.Second,
	electionLease: 6 * time.Second, electionRenew: 4 * time.Second, electionRetry: time.Second,
	retry: 300 * time.Millisecond, probe: 300 * time.Millisecond,
	podStart: 300 * time.Millisecond, podRun: time.Second,
	pingIdle: 3, pingTimeout: 3,
}

func (t timing) env() []string {
	if t.pingIdle == 0 {
		return nil
	}
	return []string{
		fmt.Sprintf("HTTP2_READ_IDLE_TIMEOUT_SECONDS=%d", t.pingIdle), fmt.Sprintf("HTTP2_PING_TIMEOUT_SECONDS=%d", t.pingTimeout),
	}
}
