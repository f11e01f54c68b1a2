// Package observe reads the nodes of a cluster and says what is so: plan.MachineFacts. It changes nothing on a node,
// not even by a dry run, and decides nothing.
//
// An Observer keeps in memory what takes more than one read: since when a machine is reachable or not, since when it is
// well, the etcd indexes of the read before, and comparisons of configurations that did not change. Lost with the
// process, all of it comes back by reading again: the facts only begin later.
package observe
