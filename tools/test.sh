#!/bin/bash
# Installs what is missing, builds everything and runs every test. Ends with one line: N passed, N failed, N skipped.
# `--fast`: only unit tests that take seconds, and builds only what they need. It leaves out tests with the tags "cluster"
# (starts a cluster), "exclusive" (must run alone) and "slow" (takes longer); see docs/testing.md.
# Other arguments go to `bazel test` (--config=asan, a target, ...).
set -uo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh --tests || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }

# Debian lacks Python's safetensors and onnxruntime, with which tests open Muster's checkpoints and models. If they cannot be
# installed, those tests are skipped. Both use Debian's numpy.
python=$PWD/.test-python
PYTHONPATH=$python python3 -c 'import safetensors, onnxruntime' 2>/dev/null ||
  python3 -m pip install --quiet --no-deps --target "$python" safetensors onnxruntime >/dev/null 2>&1 || true
# TensorBoard's reader of event files, without the packages of its web server.
PYTHONPATH=$python python3 -c 'import tensorboard.backend.event_processing.event_accumulator' 2>/dev/null ||
  python3 -m pip install --quiet --no-deps --target "$python" tensorboard protobuf absl-py packaging >/dev/null 2>&1 || true
# mkdocs builds the site of the documents.
PYTHONPATH=$python python3 -c 'import mkdocs' 2>/dev/null ||
  python3 -m pip install --quiet --target "$python" 'mkdocs>=1.6,<2' >/dev/null 2>&1 || true
# The packages of the Python client in docs/api_clients.md and of python/muster are in their own folder, because they bring
# another version of protobuf.
PYTHONPATH=$python/clients python3 -c 'import grpc_tools, grpc_status, numpy, yaml' 2>/dev/null ||
  python3 -m pip install --quiet --target "$python/clients" grpcio grpcio-tools grpcio-status numpy pyyaml >/dev/null 2>&1 || true
# mypy checks the types of python/muster.
PYTHONPATH=$python/mypy python3 -c 'import mypy' 2>/dev/null ||
  python3 -m pip install --quiet --target "$python/mypy" mypy grpc-stubs types-protobuf types-PyYAML numpy >/dev/null 2>&1 || true
# kubectl renders the manifests; Debian's is too old.
kubectl=$(tools/kubectl.sh 2>/dev/null) || kubectl=kubectl

targets=(//...)
arguments=()
for argument in "$@"; do
  case $argument in
    --fast) arguments+=(--test_tag_filters=-cluster,-exclusive,-slow --build_tests_only) ;;
    //*) targets=() ; arguments+=("$argument") ;;
    *) arguments+=("$argument") ;;
  esac
done
log=$(mktemp)
trap 'rm -f "$log" "$log.ran"' EXIT
bazel test --show_progress_rate_limit=30 --keep_going --test_output=errors --test_env=PYTHONPATH="$python" --test_env=MUSTER_KUBECTL="$kubectl" "${targets[@]}" ${arguments[@]+"${arguments[@]}"} 2>&1 | tee "$log"
status=${PIPESTATUS[0]}

# Counts test cases, not targets, from the XML that every gtest binary writes. A target that did not build has an old XML file,
# so it is left out.
testlogs=$(bazel info --ui_event_filters=-info bazel-testlogs 2>/dev/null)
grep -E '^//[^ ]+ +(\(cached\) )?(PASSED|FAILED|TIMEOUT|FLAKY)' "$log" | grep -v 'FAILED TO BUILD' | grep -oE '^//[^ ]+' | sort -u |
  while read -r label; do path=${label#//}; echo "$testlogs/${path/://}"; done >"$log.ran"
xmls() { while read -r folder; do find "$folder" -maxdepth 2 -name test.xml 2>/dev/null; done <"$log.ran"; }
count() { # pattern
  xmls | tr '\n' '\0' | xargs -0 -r cat | grep -cE "$1" || true
}
total=$(count '<testcase ')
skipped=$(count '<skipped')
failed=$(count '<failure|<error ')
# A test that is a script counts as one case. Its log says whether it was skipped.
while read -r xml; do
  if ! grep -qE '<skipped|<failure|<error ' "$xml" && grep -qs ': Skipped$' "${xml%xml}log"; then skipped=$((skipped + 1)); fi
done < <(xmls)
# A target that failed without a failed case (did not build, timed out) counts as one.
silent=$(grep -cE '^//[^ ]+ +(FAILED TO BUILD|TIMEOUT|NO STATUS)' "$log" || true)
if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ] && [ "$silent" -eq 0 ]; then silent=1; fi
# gtest prints "FILE:LINE: Skipped" and the reason below it.
tr '\n' '\0' <"$log.ran" | xargs -0 -r grep -rhA1 --include=test.log ': Skipped$' 2>/dev/null | grep -vE ': Skipped$|^--$' | sort -u | sed 's/^/skipped: /'
echo "$((total - skipped - failed)) passed, $((failed + silent)) failed, $skipped skipped"
[ "$status" -eq 0 ]
