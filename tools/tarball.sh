#!/bin/bash
# Makes a relocatable tarball for machines without containers: the four programs with their libraries, examples, documents,
# systemd units, alerts and dashboards. The units need it unpacked as /opt/muster (docs/operations/run.md, "On bare
# machines"). Without systemd any folder works.
#
#   tools/tarball.sh FILE.tar.gz [BIN]        BIN: where the built programs are (bazel-bin)
set -euo pipefail
[ $# -ge 1 ] && [ $# -le 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d' >&2; exit 2; }
file=$(realpath -m "$1")
here=$(cd "$(dirname "$0")/.." && pwd)
bin=$(realpath "${2:-$here/bazel-bin}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$here/tools/bundle.sh" "$work/muster" muster="$bin/cli/muster" coordinator="$bin/services/coordinator/main" \
  ps="$bin/services/ps/main" worker="$bin/services/worker/main"
mkdir -p "$work/muster/docs/operations"
cp -rL "$here/examples" "$here/LICENSE" "$here/VERSION" "$work/muster/"
cp -L "$here"/docs/*.md "$work/muster/docs/"
cp -L "$here"/docs/operations/*.md "$work/muster/docs/operations/"
cp -rL "$here/tools/systemd" "$work/muster/systemd"
mkdir -p "$work"/muster/k8s/{alerts,dashboards} # where the documents name them
cp -L "$here/k8s/alerts/muster.rules.yaml" "$work/muster/k8s/alerts/"
cp -L "$here"/k8s/dashboards/*.json "$work/muster/k8s/dashboards/"
find "$work/muster" -name BUILD.bazel -delete
# The working tree may have a stricter umask, and the services run as another user than the one that unpacks it.
tar -czf "$file" --owner=0 --group=0 --mode=u+rwX,go+rX,go-w --sort=name -C "$work" muster
echo "$file: $(stat -c %s "$file") bytes"
