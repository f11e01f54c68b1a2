// Package metrics has what Ichor exports to Prometheus. Labels are cluster and machine, never a commit. Only the
// daemon imports it; other packages take small recorder interfaces. docs/metrics.md lists each (generated from here).
package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics is one registry with all of Ichor's metrics.
type Metrics struct {
	registry *prometheus.Registry
	descs    []Desc

	nodeReachable, nodeUnreachableSeconds, machineConverged, rebootPending *prometheus.GaugeVec
	checkTotal                                                             *prometheus.CounterVec
	checkDuration                                                          prometheus.Histogram
	checkHeadPassed                                                        prometheus.Gauge
	checkHeadProblems                                                      *prometheus.GaugeVec
	applyState, applyMachines, applyConverged                              *prometheus.GaugeVec
	applyActions                                                           *prometheus.CounterVec
	applyLastDone                                                          *prometheus.GaugeVec
	applyLastFailed                                                        *prometheus.GaugeVec
	etcdMembers, etcdHealthy, etcdMargin, etcdDead                         *prometheus.GaugeVec
	removalState, removalSteps, removalChanged                             *prometheus.GaugeVec
	drainSeconds, drainBlocked, discovered                                 *prometheus.GaugeVec
	gitErrors, forgeErrors                                                 *prometheus.CounterVec
	gitLastSuccess                                                         prometheus.Gauge
	outboxPending                                                          prometheus.Gauge
	statusBranch, inventory                                                *prometheus.GaugeVec
	build                                                                  *prometheus.GaugeVec
}

// Desc describes one metric, for docs/metrics.md.
type Desc struct {
	Name, Type, Help string
	Labels           []string
}

// ApplyStates are the values of the state label of ichor_apply_state.
var ApplyStates = []string{"done", "progressing", "waiting", "held", "failed"}

// RemovalStates are the values of the state label of ichor_removal_state.
var RemovalStates = []string{"refused", "waiting", "progressing", "failed", "done"}

// New makes a registry; version is for ichor_build_info.
func New(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.nodes()
	m.checks()
	m.applying()
	m.members()
	m.surroundings()
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	m.build.WithLabelValues(version).Set(1)
	return m
}

func (m *Metrics) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(g)
	m.descs = append(m.descs, Desc{name, "gauge", help, labels})
	return g
}

func (m *Metrics) single(name, help string) prometheus.Gauge {
	return m.gauge(name, help).WithLabelValues()
}

// Descs lists every metric of Ichor's own, in the order of the reference page.
func (m *Metrics) Descs() []Desc { return m.descs }

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(c)
	m.descs = append(m.descs, Desc{name, "counter", help, labels})
	return c
}

func (m *Metrics) nodes() {
	m.nodeReachable = m.gauge("ichor_node_reachable",
		"1 if the machine's Talos API answered the last read, else 0.", "cluster", "machine")
	m.nodeUnreachableSeconds = m.gauge("ichor_node_unreachable_seconds",
		"Seconds since the machine's failed reads began; 0 while it answers.", "cluster", "machine")
	m.machineConverged = m.gauge("ichor_machine_converged",
		"1 if the machine runs the configuration of the watched branch, else 0.", "cluster", "machine")
	m.rebootPending = m.gauge("ichor_machine_reboot_pending",
		"1 if an accepted configuration waits for a reboot, else 0.", "cluster", "machine")
}

func (m *Metrics) checks() {
	m.checkTotal = m.counter("ichor_check_total", "Checks done, by verdict (passed, failed, error).", "verdict")
	m.descs = append(m.descs, Desc{"ichor_check_duration_seconds", "histogram", "How long checks took.", nil})
	m.checkDuration = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "ichor_check_duration_seconds", Help: "How long checks took.",
		Buckets: []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
	})
	m.checkHeadPassed = m.single("ichor_check_head_passed", "1 if the check of the watched branch's head passed, else 0.")
	m.checkHeadProblems = m.gauge("ichor_check_head_problems",
		"Problems of the watched branch's head, by severity.", "severity")
	m.registry.MustRegister(m.checkDuration)
}

func (m *Metrics) applying() {
	m.applyState = m.gauge("ichor_apply_state",
		"1 for the state that the cluster's rollout is in (done, progressing, waiting, held, failed), else 0.",
		"cluster", "state")
	m.applyMachines = m.gauge("ichor_apply_machines", "Approved machines of the cluster.", "cluster")
	m.applyConverged = m.gauge("ichor_apply_machines_converged",
		"Approved machines that run the configuration of the watched branch.", "cluster")
	m.applyActions = m.counter("ichor_apply_actions_total",
		"Acts on nodes, by act and outcome (done, not-done, unknown).", "cluster", "action", "outcome")
	m.applyLastDone = m.gauge("ichor_apply_last_done_timestamp_seconds",
		"Unix time at which the cluster was last seen converged with the watched branch.", "cluster")
	m.applyLastFailed = m.gauge("ichor_apply_last_failed_timestamp_seconds",
		"Unix time at which the cluster's rollout was last seen stopped by a failure.", "cluster")
}

func (m *Metrics) members() {
	m.etcdMembers = m.gauge("ichor_etcd_members",
		"Members that etcd lists (the longest list that a control plane gave), by kind (voter, learner). Absent where none gave a list.",
		"cluster", "kind")
	m.etcdHealthy = m.gauge("ichor_etcd_members_healthy",
		"Voters that were seen healthy at their last read: they answer, have no alarm, see the leader and keep up with it.", "cluster")
	m.etcdMargin = m.gauge("ichor_etcd_quorum_margin",
		"Healthy voters beyond the quorum of those listed: at 0 the next failure stops etcd, below 0 it has no quorum.", "cluster")
	m.etcdDead = m.gauge("ichor_etcd_member_dead",
		"1 if the control plane is proved dead, so that it may be removed below the declared count, else 0.", "cluster", "machine")
	m.removalState = m.gauge("ichor_removal_state",
		"1 for the state that a machine's removal is in (refused, waiting, progressing, failed, done), else 0. Absent where none is wished.",
		"cluster", "machine", "state")
	m.removalSteps = m.gauge("ichor_removal_steps_over",
		"Steps of a machine's removal that are done or skipped.", "cluster", "machine")
	m.removalChanged = m.gauge("ichor_removal_changed_timestamp_seconds",
		"Unix time of the last step of a machine's removal; of its beginning before the first; 0 before that.", "cluster", "machine")
	m.drainSeconds = m.gauge("ichor_drain_seconds",
		"Seconds since the drain of a machine's Kubernetes node began. Absent while there is none.", "cluster", "machine")
	m.drainBlocked = m.gauge("ichor_drain_blocked_pods",
		"Pods whose eviction was refused at the last try of a drain. Absent while there is none.", "cluster", "machine")
	m.discovered = m.gauge("ichor_discovered_machines",
		"Nodes found in maintenance mode that no manifest of the watched branch names.", "cluster")
}

func (m *Metrics) surroundings() {
	m.gitErrors = m.counter("ichor_git_errors_total", "Failed Git operations, by class.", "class")
	m.gitLastSuccess = m.single("ichor_git_last_success_timestamp_seconds", "Unix time of the last successful look at the repository.")
	m.forgeErrors = m.counter("ichor_forge_errors_total", "Failed calls of the forge, by class.", "class")
	m.outboxPending = m.single("ichor_outbox_pending", "Commit statuses that wait to be posted.")
	m.statusBranch = m.gauge("ichor_status_branch_problem",
		"1 while the status branch is lost or tampered with, by kind (lost, tampered).", "kind")
	m.inventory = m.gauge("ichor_inventory_known", "1 if the inventory is known and this Ichor holds it, else 0.")
	m.build = m.gauge("ichor_build_info", "Always 1; the version as a label.", "version")
}

// Handler serves the registry.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Registry gives the registry, for tests and for the reference page.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

func num(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Machine notes what was seen of a machine; since is when its failed reads began.
func (m *Metrics) Machine(cluster, machine string, reachable, converged, rebootPending bool, silent time.Duration) {
	m.nodeReachable.WithLabelValues(cluster, machine).Set(num(reachable))
	m.nodeUnreachableSeconds.WithLabelValues(cluster, machine).Set(silent.Seconds())
	m.machineConverged.WithLabelValues(cluster, machine).Set(num(converged))
	m.rebootPending.WithLabelValues(cluster, machine).Set(num(rebootPending))
}

// perMachine are the series that go with a machine.
func (m *Metrics) perMachine() []*prometheus.GaugeVec {
	return []*prometheus.GaugeVec{
		m.nodeReachable, m.nodeUnreachableSeconds, m.machineConverged, m.rebootPending, m.etcdDead, m.removalState,
		m.removalSteps, m.removalChanged, m.drainSeconds, m.drainBlocked,
	}
}

// ForgetMachine drops the series of a machine that is gone from the repository and from the inventory.
func (m *Metrics) ForgetMachine(cluster, machine string) {
	labels := prometheus.Labels{"cluster": cluster, "machine": machine}
	for _, g := range m.perMachine() {
		g.DeletePartialMatch(labels)
	}
}

// ForgetCluster drops every series of a cluster that is gone from the repository.
func (m *Metrics) ForgetCluster(cluster string) {
	labels := prometheus.Labels{"cluster": cluster}
	for _, g := range append(m.perMachine(), m.applyState, m.applyMachines, m.applyConverged, m.applyLastDone,
		m.applyLastFailed, m.etcdMembers, m.etcdHealthy, m.etcdMargin, m.discovered) {
		g.DeletePartialMatch(labels)
	}
}

// Etcd is what was seen of a cluster's etcd.
type Etcd struct {
	// Voters and Learners as listed; both 0: no control plane gave a list.
	Voters, Learners int
	// Healthy voters.
	Healthy int
}

// Etcd notes what was seen of a cluster's etcd. Without a list its series are dropped: unknown is not zero.
func (m *Metrics) Etcd(cluster string, e Etcd) {
	if e.Voters+e.Learners == 0 {
		labels := prometheus.Labels{"cluster": cluster}
		for _, g := range []*prometheus.GaugeVec{m.etcdMembers, m.etcdHealthy, m.etcdMargin} {
			g.DeletePartialMatch(labels)
		}
		return
	}
	m.etcdMembers.WithLabelValues(cluster, "voter").Set(float64(e.Voters))
	m.etcdMembers.WithLabelValues(cluster, "learner").Set(float64(e.Learners))
	m.etcdHealthy.WithLabelValues(cluster).Set(float64(e.Healthy))
	m.etcdMargin.WithLabelValues(cluster).Set(float64(e.Healthy - (e.Voters/2 + 1)))
}

// Dead notes whether a control plane is proved dead.
func (m *Metrics) Dead(cluster, machine string, dead bool) {
	m.etcdDead.WithLabelValues(cluster, machine).Set(num(dead))
}

// Removal notes where a machine's removal is; state "": none is wished. changed is when its last step was over.
func (m *Metrics) Removal(cluster, machine, state string, steps int, changed time.Time) {
	if state == "" {
		labels := prometheus.Labels{"cluster": cluster, "machine": machine}
		for _, g := range []*prometheus.GaugeVec{m.removalState, m.removalSteps, m.removalChanged} {
			g.DeletePartialMatch(labels)
		}
		return
	}
	for _, s := range RemovalStates {
		m.removalState.WithLabelValues(cluster, machine, s).Set(num(s == state))
	}
	m.removalSteps.WithLabelValues(cluster, machine).Set(float64(steps))
	at := 0.0
	if !changed.IsZero() {
		at = float64(changed.Unix())
	}
	m.removalChanged.WithLabelValues(cluster, machine).Set(at)
}

// Drain notes a drain that is under way: for how long, and how many pods may not be evicted. Negative: there is none.
func (m *Metrics) Drain(cluster, machine string, since time.Duration, blocked int) {
	if since < 0 {
		m.drainSeconds.DeleteLabelValues(cluster, machine)
		m.drainBlocked.DeleteLabelValues(cluster, machine)
		return
	}
	m.drainSeconds.WithLabelValues(cluster, machine).Set(since.Seconds())
	m.drainBlocked.WithLabelValues(cluster, machine).Set(float64(blocked))
}

// Discovered notes how many nodes wait to be approved.
func (m *Metrics) Discovered(cluster string, n int) {
	m.discovered.WithLabelValues(cluster).Set(float64(n))
}

// Check notes a check.
func (m *Metrics) Check(verdict string, took time.Duration) {
	m.checkTotal.WithLabelValues(verdict).Inc()
	m.checkDuration.Observe(took.Seconds())
}

// CheckHead notes the verdict of the head.
func (m *Metrics) CheckHead(passed bool, errors, warnings int) {
	m.checkHeadPassed.Set(num(passed))
	m.checkHeadProblems.WithLabelValues("error").Set(float64(errors))
	m.checkHeadProblems.WithLabelValues("warning").Set(float64(warnings))
}

// Apply notes how far a rollout is.
func (m *Metrics) Apply(cluster, state string, converged, total int, now time.Time) {
	for _, s := range ApplyStates {
		m.applyState.WithLabelValues(cluster, s).Set(num(s == state))
	}
	m.applyMachines.WithLabelValues(cluster).Set(float64(total))
	m.applyConverged.WithLabelValues(cluster).Set(float64(converged))
	switch state {
	case "done":
		m.applyLastDone.WithLabelValues(cluster).Set(float64(now.Unix()))
	case "failed":
		m.applyLastFailed.WithLabelValues(cluster).Set(float64(now.Unix()))
	}
}

// Action counts an act on a node.
func (m *Metrics) Action(cluster, action, outcome string) {
	m.applyActions.WithLabelValues(cluster, action, outcome).Inc()
}

// Git notes a look at the repository: class "" is success.
func (m *Metrics) Git(class string, now time.Time) {
	if class == "" {
		m.gitLastSuccess.Set(float64(now.Unix()))
		return
	}
	m.gitErrors.WithLabelValues(class).Inc()
}

// Forge counts a failed call.
func (m *Metrics) Forge(class string) { m.forgeErrors.WithLabelValues(class).Inc() }

// Outbox notes how many statuses wait.
func (m *Metrics) Outbox(pending int) { m.outboxPending.Set(float64(pending)) }

// StatusBranch notes whether the status branch is lost or tampered with.
func (m *Metrics) StatusBranch(lost, tampered bool) {
	m.statusBranch.WithLabelValues("lost").Set(num(lost))
	m.statusBranch.WithLabelValues("tampered").Set(num(tampered))
}

// Inventory notes whether the inventory is known and held.
func (m *Metrics) Inventory(known bool) { m.inventory.WithLabelValues().Set(num(known)) }
