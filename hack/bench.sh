#!/usr/bin/env bash
# make bench: what the specification's figures say, and what this build needs. Times are of this machine and of what
# else runs on it: compare with care.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
go build -o "$bin/ichor" ./cmd/ichor
go build -o "$bin/bench" ./hack/bench
echo "$(nproc) cores, $(go env GOVERSION), load $(cut -d' ' -f1 /proc/loadavg 2>/dev/null || echo '?')"
echo
"$bin/bench" -bin "$bin/ichor"
echo
# The lab: 1,000 workers and 30 control planes in one process.
go test ./e2e/scale -count=1 -v -args -long | sed -n 's/.*scale: /lab: /p; /^\(FAIL\|---\)/p'
echo
# The library's benchmarks: a check inside the daemon, what it consists of, the store, a pass over nodes.
go test -run '^$' -bench . -benchtime "${BENCHTIME:-3x}" -benchmem \
  ./hack/bench ./schemas/fleet ./render ./validate/check ./sync/git ./apply/plan/... ./e2e/apply |
  grep -E '^(pkg|Benchmark|ok|FAIL|---)'
