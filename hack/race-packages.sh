#!/usr/bin/env bash
# Lists the packages whose tests run under the race detector in make verify: those where goroutines meet. make test-all
# runs the detector over all.
set -euo pipefail
cd "$(dirname "$0")/.."
go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' \
  ./schemas/fleet ./render ./sync/... ./status/outbox ./status/branch ./apply/act ./apply/journal ./apply/observe \
  ./apply/talos ./cmd/internal/daemon ./validate/check ./e2e/lab/wire ./e2e/apply
