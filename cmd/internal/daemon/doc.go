// Package daemon is the wiring of `ichor run`: one loop for the repository (fetch, check, report, status) and one for
// each cluster (desired → observe → plan → act → fold). It decides nothing about nodes: apply/plan does.
package daemon
