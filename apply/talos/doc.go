// Package talos is the edge to the Talos API of one node, and the only importer of the Talos client.
//
// A node is always talked to by its own address, never through the cluster's endpoint and never with the node or
// nodes metadata (with nodes a refusal arrives as a success that holds an error). Every call has a deadline, because
// some of them hang on a healthy node (etcd calls before bootstrap). Every error is an *Error whose Kind callers
// test; its text holds nothing that is secret: a dry-run reply holds the whole configuration, so texts of replies
// are never passed on, and what a node says of a configuration passes a comparison with the secret values first.
package talos
