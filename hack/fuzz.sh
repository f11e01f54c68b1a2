#!/usr/bin/env bash
# Runs the fuzz targets of the module for the given time each: hack/fuzz.sh 15s [all]
#
# Fuzzing builds every dependency anew with coverage counters. Packages that link SOPS bring its cloud SDKs, which takes
# a quarter of an hour to build; their targets run only with "all" (make test-all). Their seeds run in every make test.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-15s}
heavy=${2:-}
grep -rlE '^func Fuzz' --include='*_test.go' . | while read -r file; do
  grep -oE '^func (Fuzz[A-Za-z0-9_]+)' "$file" | awk '{print $2}' | while read -r target; do
    echo "$(dirname "$file") $target"
  done
done | sort | while read -r dir target; do
  deps=$(go list -deps -test "$dir")
  if [ "$heavy" != all ] && grep -q '^github.com/getsops/sops' <<<"$deps"; then
    echo "fuzz $dir $target: left to make test-all (it links SOPS)"
    continue
  fi
  echo "fuzz $dir $target ($time)"
  log=$(mktemp)
  if ! go test "$dir" -run '^$' -fuzz "^$target\$" -fuzztime "$time" </dev/null 2>&1 | tee "$log"; then
    # Go's own fault (golang/go#75804): when the time ends while a worker is between two inputs, the run may say FAIL
    # with nothing but "context deadline exceeded". A real finding always names the input that it has written.
    if grep -q '^    context deadline exceeded$' "$log" && ! grep -qE 'Failing input written|panic|DATA RACE|_test\.go:' "$log"; then
      echo "fuzz $dir $target: ended by its time, no finding (golang/go#75804)"
    else
      rm -f "$log"
      exit 1
    fi
  fi
  rm -f "$log"
done
