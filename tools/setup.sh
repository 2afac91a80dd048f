#!/bin/bash
# Installs the Debian 12 packages that building Muster needs, and with --tests those that testing needs. Only this file
# lists their names. It is quick and silent if nothing is missing.
set -euo pipefail

machine=$(uname -m)
if [ "$machine" != x86_64 ]; then
  echo "setup: Muster is built on and for x86-64 alone (its kernels are of SSE to AVX-512), and this machine is $machine: use one of x86-64, or a virtual machine of it" >&2
  exit 1
fi

packages=(
  # build; Python for tools/build_progress.py, patchelf for the wheel
  bazel-bootstrap bazel-rules-java bazel-rules-proto bazel-platforms g++ git patchelf protobuf-compiler protobuf-compiler-grpc python3
  # libraries; the build needs only the headers of UCX, whose library is loaded on machines with RDMA
  libgrpc++-dev libprotobuf-dev libabsl-dev prometheus-cpp-dev libcivetweb-dev libgoogle-glog-dev libgtest-dev libgmock-dev libbenchmark-dev
  libdnnl-dev libucx-dev libsqlite3-dev libyaml-cpp-dev libcli11-dev nlohmann-json3-dev libssl-dev zlib1g-dev libzstd-dev libjpeg62-turbo-dev libpng-dev libwebp-dev libjs-dygraphs
)
# Packages that only tests use: clang and its checks, a faster AES-GCM, promtool, ucx_perftest, etcd for the coordinator's other
# store, and Python for tests that open Muster's files with third-party libraries or train with PyTorch.
if [ "${1:-}" = --tests ]; then packages+=(clang clang-format clang-tidy libclang-rt-14-dev libipsec-mb1 prometheus etcd-server ucx-utils procps python3-numpy python3-pip python3-torch python3-venv python3-yaml iproute2 nftables); fi

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
  command -v sudo >/dev/null || { echo "setup: ${#missing[@]} packages are missing and installing them needs root or sudo: ${missing[*]}" >&2; exit 1; }
  sudo=sudo
fi
echo "setup: Muster needs ${#missing[@]} Debian packages that this machine lacks (compiler, Bazel, libraries); apt installs them now" >&2
echo "setup: the packages: ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() { $sudo env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get install --no-install-recommends "$@" "${missing[@]}"; }
# Refreshes the package list first, because it may be old or missing. A failure matters only if the install then fails.
$sudo apt-get update >"$log" 2>&1 || true
size=$(install --assume-no 2>/dev/null | sed -nE 's/^Need to get ([0-9.,]+ [kMG]?B).*/\1/p') || true
echo "setup: downloading ${size:-the packages} with everything they depend on, and installing; this takes a minute or two" >&2
SECONDS=0
install -y >"$log" 2>&1 || {
  tail -n 20 "$log" >&2
  echo "setup: apt-get install failed; the lines above are the end of its output" >&2
  echo "setup: check the network and apt's sources (/etc/apt/sources.list.d), then run the same command again" >&2
  exit 1
}
echo "setup: installed in $((SECONDS / 60)):$(printf %02d $((SECONDS % 60))) min" >&2
