// Package branch says what the status branch holds, and writes it: reports in batches, the inventory at once, both by
// compare-and-swap over a narrow interface that sync/git satisfies. It finds out when somebody else wrote, rewrote or
// deleted the branch.
package branch

// Files of the status branch.
const (
	// ReadmePath is the fleet at a glance.
	ReadmePath = "README.md"
	// InventoryPath is what Ichor last did; only the journal changes it.
	InventoryPath = "inventory.yaml"
	// indexPath says which report belongs to what, so that reports can expire.
	indexPath = "checks/index.json"
)

// ClusterReadme is a cluster's page.
func ClusterReadme(cluster string) string { return "clusters/" + cluster + "/README.md" }

// ClusterStatus is a cluster's status for programs.
func ClusterStatus(cluster string) string { return "clusters/" + cluster + "/status.yaml" }

// ClusterDir holds all of a cluster.
func ClusterDir(cluster string) string { return "clusters/" + cluster }

// CheckMarkdown is a commit's report for people.
func CheckMarkdown(commit string) string { return "checks/" + commit + ".md" }

// CheckJSON is a commit's report for programs.
func CheckJSON(commit string) string { return "checks/" + commit + ".json" }

// Discovered is a ready-to-commit manifest of a machine that was found.
func Discovered(cluster, name string) string { return "discovered/" + cluster + "/" + name + ".yaml" }

// Operation is the result of an operation.
func Operation(cluster, name string) string { return "operations/" + cluster + "/" + name + ".yaml" }
