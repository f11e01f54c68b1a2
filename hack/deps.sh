#!/usr/bin/env bash
# Makes sure that the programs which the build and the tests call are there, installing Debian's packages where one is
# missing. Safe to run again: what is there is left alone.
set -euo pipefail
say() { echo "hack/deps.sh: $*" >&2; }

need=()
command -v git >/dev/null || need+=(git)
command -v make >/dev/null || need+=(make)
command -v gcc >/dev/null || need+=(gcc libc6-dev)   # the race detector needs cgo
command -v ssh-keygen >/dev/null || need+=(openssh-client)   # signatures of commits
command -v gpg >/dev/null || need+=(gpg gpg-agent)
command -v flock >/dev/null || need+=(util-linux)
[ -e "$(git --exec-path 2>/dev/null)/git-http-backend" ] || need+=(git)

if [ ${#need[@]} -gt 0 ]; then
  if ! command -v apt-get >/dev/null; then
    say "missing: ${need[*]}; this is no Debian system, so install them by hand"; exit 1
  fi
  sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
  say "installing ${need[*]} with apt-get"
  $sudo apt-get update -q >/dev/null
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -q --no-install-recommends "${need[@]}" >/dev/null
fi

if ! command -v go >/dev/null; then
  say "Go 1.26 or newer is needed and not on the PATH; see the Go project's download page"; exit 1
fi
case $(go env GOVERSION) in
go1.2[6-9]*|go1.[3-9][0-9]*|go[2-9]*) ;;
*) say "Go 1.26 or newer is needed; this is $(go env GOVERSION)"; exit 1 ;;
esac

# The alert rules' tests need promtool. A machine without it is told at the test that needs it.
hack/tools.sh promtool >/dev/null || say "no promtool: the test of examples/prometheus will fail"
