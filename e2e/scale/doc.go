// Package scale measures the lab with many nodes: seconds until all are there, and memory.
package scale
