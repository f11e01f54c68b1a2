#!/usr/bin/env bash
# Builds a pinned tool once into a cache outside the tree and prints the path of its binary.
#
#   hack/tools.sh talosctl      the real Talos client, for tests against the lab
#   hack/tools.sh versitygw     a real S3 server, for the lab's store (2 minutes to build)
#   hack/tools.sh gofumpt       formatter        hack/tools.sh staticcheck    linter
#   hack/tools.sh kubernetes    API server, controller manager, scheduler and kubectl, for ichor-lab up --with-kubernetes and
#                               its tests: some minutes the first time. Prints their folder; each also by its own name.
#                               hack/tools.sh --built kubernetes builds nothing and says by its exit code whether they are there
#   hack/tools.sh gitea         a real forge, for the conformance suite (5 minutes to build, so only make test-all builds it)
#   hack/tools.sh promtool      Prometheus' checker of alert rules: the one on the PATH, else out of Debian's package,
#                               unpacked and not installed (installing it would start a server)
#
# Each tool's versions are pinned by the go.mod and go.sum of its folder under hack/tools; the cache is keyed by
# those, so a second run costs nothing. ICHOR_TOOLS_DIR moves the cache (default: the user's cache folder).
set -euo pipefail
cd "$(dirname "$0")/tools"
built=false; if [ "${1-}" = --built ]; then built=true; shift; fi
name=${1:?usage: hack/tools.sh talosctl|versitygw|gitea|gofumpt|staticcheck|promtool|kubernetes}
cache=${ICHOR_TOOLS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/ichor-tools}
if [ "$name" = promtool ]; then
  if command -v promtool; then exit 0; fi
  bin=$cache/promtool/promtool
  mkdir -p "$cache"
  exec 9>"$cache/promtool.lock"
  flock 9
  if [ ! -x "$bin" ]; then
    command -v apt-get >/dev/null || { echo "hack/tools.sh: promtool is missing and this is no Debian system: install Prometheus" >&2; exit 1; }
    tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
    sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
    echo "hack/tools.sh: unpacking promtool (once; into $cache)" >&2
    (cd "$tmp" && { apt-get download -q prometheus >/dev/null 2>&1 ||
      { $sudo apt-get update -q >/dev/null && apt-get download -q prometheus >/dev/null; } } && dpkg-deb -x prometheus_*.deb .)
    mkdir -p "$cache/promtool"
    mv "$tmp/usr/bin/promtool" "$bin"
  fi
  echo "$bin"
  exit 0
fi
ldflags= pkg= tags=
case $name in
kubernetes | kube-apiserver | kube-controller-manager | kube-scheduler | kubectl)
  dir=kubernetes
  v=k8s.io/component-base/version
  ldflags="-s -w -X $v.gitVersion=v1.37.2 -X $v.gitMajor=1 -X $v.gitMinor=37" ;;
talosctl)
  dir=talosctl pkg=github.com/siderolabs/talos/cmd/talosctl
  ldflags="-X github.com/siderolabs/talos/pkg/machinery/version.Tag=v1.13.5" ;;
versitygw) dir=versitygw pkg=github.com/versity/versitygw/cmd/versitygw ;;
gitea) dir=gitea pkg=code.gitea.io/gitea tags=sqlite,sqlite_unlock_notify ;;
gofumpt) dir=lint pkg=mvdan.cc/gofumpt ;;
staticcheck) dir=lint pkg=honnef.co/go/tools/cmd/staticcheck ;;
*) echo "hack/tools.sh: unknown tool $name; there are talosctl, versitygw, gitea, gofumpt, staticcheck, promtool and kubernetes" >&2; exit 2 ;;
esac
key=$( (cat "$dir/go.mod" "$dir/go.sum"; go env GOVERSION; echo "$ldflags$tags") | sha256sum | cut -c1-16)
if [ "$dir" = kubernetes ]; then
  # One folder for the four; the link is where the lab looks for them.
  home=$cache/kubernetes-$key
  names=$name; [ "$name" != kubernetes ] || names="kube-apiserver kube-controller-manager kube-scheduler kubectl"
  mkdir -p "$home"
  exec 9>"$cache/kubernetes.lock"
  $built || flock 9
  missing=()
  for n in $names; do [ -x "$home/$n" ] || missing+=("k8s.io/kubernetes/cmd/$n"); done
  if $built; then [ ${#missing[@]} -eq 0 ]; exit; fi
  if [ ${#missing[@]} -gt 0 ]; then
    echo "hack/tools.sh: building Kubernetes' ${missing[*]##*/} (once, some minutes; into $cache)" >&2
    tmp=$(mktemp -d "$home/.build-XXXXXX"); trap 'rm -rf "$tmp"' EXIT
    (cd "$dir" && GOFLAGS=-mod=readonly go build -ldflags "$ldflags" -o "$tmp/" "${missing[@]}" >&2)
    mv "$tmp"/* "$home/"
  fi
  ln -sfn "kubernetes-$key" "$cache/kubernetes"
  if [ "$name" = kubernetes ]; then echo "$home"; else echo "$home/$name"; fi
  exit 0
fi
bin=$cache/$name-$key/$name
if [ ! -x "$bin" ]; then
  if $built; then exit 3; fi
  mkdir -p "$(dirname "$bin")"
  # One build at a time, so that parallel test packages don't build the same tool twice.
  exec 9>"$cache/$name.lock"
  flock 9
  if [ ! -x "$bin" ]; then
    echo "hack/tools.sh: building $name (once; into $cache)" >&2
    (cd "$dir" && GOFLAGS=-mod=readonly go build -tags "$tags" -ldflags "$ldflags" -o "$bin.tmp$$" "$pkg" >&2)
    mv "$bin.tmp$$" "$bin"
  fi
fi
echo "$bin"
