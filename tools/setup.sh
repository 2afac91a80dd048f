#!/bin/bash
# Installs what building and testing Muster needs, on Debian 12. The one place that knows package names.
# Quick and silent when nothing is missing.
set -euo pipefail

machine=$(uname -m)
if [ "$machine" != x86_64 ]; then
  echo "setup: Muster is built on and for x86-64 alone (its kernels are of SSE to AVX-512), and this machine is $machine: use one of x86-64, or a virtual machine of it" >&2
  exit 1
fi

packages=(
  # build
  bazel-bootstrap bazel-rules-java bazel-rules-proto bazel-platforms g++ git protobuf-compiler protobuf-compiler-grpc
  # libraries; of UCX the build needs the headers, the library is loaded where there is RDMA
  libgrpc++-dev libprotobuf-dev libabsl-dev prometheus-cpp-dev libcivetweb-dev libgoogle-glog-dev libgtest-dev libgmock-dev libbenchmark-dev
  libdnnl-dev libucx-dev libsqlite3-dev libyaml-cpp-dev libcli11-dev nlohmann-json3-dev libssl-dev zlib1g-dev libjs-dygraphs
)
# What only tests use: the second compiler with its checks, the faster AES-GCM, promtool, ucx_perftest, etcd for the coordinator's other
# store, Python for the tests that open our files with other people's libraries.
if [ "${1:-}" = --tests ]; then packages+=(clang clang-format clang-tidy libclang-rt-14-dev libipsec-mb1 prometheus etcd-server ucx-utils procps python3 python3-numpy python3-pip python3-yaml iproute2 nftables); fi

if [ ! -r /etc/debian_version ]; then
  echo "setup: this is not Debian; install the equivalents of: ${packages[*]}" >&2
  exit 1
fi
missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "setup: ${#missing[@]} packages are missing and neither root nor sudo is at hand: ${missing[*]}" >&2; exit 1; }
  sudo=sudo
fi
echo "setup: installing ${#missing[@]} packages: ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() { $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1; }
# The list may be old or absent: refresh it first; an unreachable mirror matters only if the install then fails.
$sudo apt-get update >"$log" 2>&1 || true
install || { tail -n 20 "$log" >&2; echo "setup: apt-get install failed; the lines above say why" >&2; exit 1; }
