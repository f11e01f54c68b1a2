#!/usr/bin/env bash
# Runs every fuzz target of the module for the given time each: hack/fuzz.sh 15s
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-15s}
grep -rlE '^func Fuzz' --include='*_test.go' . | while read -r file; do
  grep -oE '^func (Fuzz[A-Za-z0-9_]+)' "$file" | awk '{print $2}' | while read -r target; do
    echo "$(dirname "$file") $target"
  done
done | sort | while read -r dir target; do
  echo "fuzz $dir $target ($time)"
  go test "$dir" -run '^$' -fuzz "^$target\$" -fuzztime "$time" </dev/null
done
