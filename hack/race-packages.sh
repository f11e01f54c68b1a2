#!/usr/bin/env bash
# Lists the packages whose tests run under the race detector in make verify: those with tests where goroutines meet.
# make test-all runs the detector over all.
set -euo pipefail
cd "$(dirname "$0")/.."
go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' \
  ./schemas/... ./render/... ./validate/... ./sync/... ./status/... ./apply/... ./cmd/...
