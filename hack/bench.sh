#!/usr/bin/env bash
# make bench: what the specification's figures say, and what this build needs. Times are of this machine and of what
# else runs on it: compare with care.
set -euo pipefail
failed=0
cd "$(dirname "$0")/.."
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
go build -o "$bin/ichor" ./cmd/ichor
go build -o "$bin/bench" ./hack/bench
echo "$(nproc) cores, $(go env GOVERSION), load $(cut -d' ' -f1 /proc/loadavg 2>/dev/null || echo '?')"
echo
"$bin/bench" -bin "$bin/ichor" -figures "$bin/figures"
echo
# The lab: 1,000 workers and 30 control planes in one process; a push to final status and idle passes on it.
go test ./e2e/scale -count=1 -v -timeout 20m -args -long -figures "$bin/figures" |
  sed -n 's/.*scale: /lab: /p; /figures_test.go/{s/.*go:[0-9]*: //;p}; /^\(FAIL\|---\)/p' || failed=1
echo
# The library's benchmarks: a check inside the daemon, what it consists of, the store, a pass over nodes.
go test -run '^$' -bench . -benchtime "${BENCHTIME:-3x}" -benchmem \
  ./hack/bench ./schemas/fleet ./render ./validate/check ./sync/git ./apply/plan/... ./e2e/apply |
  grep -E '^(pkg|Benchmark|ok|FAIL|---)' || failed=1
# SPEC 9 beside what was measured. Times are the lowest of several; on a busy machine the CPU says more.
echo
echo "Figures: $(nproc) cores, load now $(cut -d' ' -f1 /proc/loadavg 2>/dev/null || echo '?')"
"$bin/bench" -table "$bin/figures"
exit "$failed"
