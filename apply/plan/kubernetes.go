package plan

// runKubernetes has nothing to do in this stage: a change of the Kubernetes version is held (see runUpgrade), and the
// place in the order is kept.
func runKubernetes(*world) {}
