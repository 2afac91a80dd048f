#!/bin/bash
# Renders the overlays into k8s/rendered/*.yaml, which are committed and tested, and can be applied without kustomize. Also renders
# tests/k8s/everything.yaml, with the components together, and scaled.yaml and scaled_hpa.yaml, for components that exclude others.
#
#   k8s/render.sh [ROOT]       ROOT: another folder than the repository
#
# Needs kubectl of 1.27 or later; MUSTER_KUBECTL names another than the one in PATH. Exit code 69: there is none.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")"
root=$PWD/..
destination=$(realpath "${1:-$root}")
kubectl=${MUSTER_KUBECTL:-kubectl}
version=$("$kubectl" version --client 2>/dev/null | sed -n 's/^Kustomize Version: v//p') || version=
case $version in
  5.* | [6-9].*) ;;
  *) echo "render: needs kubectl with kustomize 5 or later; $kubectl has ${version:-none}" >&2; exit 69 ;;
esac
render() { # overlay, file
  mkdir -p "$(dirname "$destination/$2")"
  "$kubectl" kustomize "$1" >"$destination/$2.new"
  mv "$destination/$2.new" "$destination/$2"
}
for overlay in overlays/*/; do render "$overlay" "k8s/rendered/$(basename "$overlay").yaml"; done
for all in everything scaled scaled_hpa; do render "../tests/k8s/$all" "tests/k8s/$all.yaml"; done
