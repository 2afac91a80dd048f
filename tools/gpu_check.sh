#!/bin/bash
# Packs every check that needs a GPU into one file, and runs it: tests, NCCL, training steps compared with PyTorch, whole
# jobs. The GPU machine needs a driver, CUDA 13's cuBLAS, cuDNN and NCCL (the toolkit's or those of PyTorch's wheels),
# Python 3 and, for comparisons, PyTorch. It needs none of the tools that build Muster.
#
#   tools/gpu_check.sh pack FILE                             where Muster is built: everything into FILE, 40 MiB at most
#   FILE run STAGE [MODEL] RESULTS [--rounds N] [--seconds N]    where the GPU is; docs/benchmarks.md describes the stages
#   tools/gpu_check.sh run STAGE ...                         both, on one machine
#
# Stages: tests, nccl, models [MODEL], profile [MODEL], ranks, job [MODEL], all. `FILE run --help` says more.
set -euo pipefail
payload_line=0 # in a packed file: the line where its archive begins

usage() { sed -n '2,10s/^# \?//p' "$0" >&2; exit 2; }
die() { echo "gpu_check: $*" >&2; exit 1; }

pack() {
  local file=$1 here
  here=$(dirname "$(realpath "$0")")
  [ "$payload_line" = 0 ] || die "this file is packed already"
  (cd "$here/.." && bazel build --config=cuda --noshow_progress //tools:gpu_check_file) ||
    die "the build failed; CUDA's toolkit is needed here"
  cp "$here/../bazel-bin/tools/gpu_check.run" "$file"
  chmod 755 "$file"
  echo "gpu_check: $file, $(($(stat -c %s "$file") >> 20)) MiB" >&2
}

# Runs the stages in a folder that is removed at the end.
run() {
  local command status=0
  for command in python3 tail realpath; do
    command -v "$command" >/dev/null || die "there is no $command on this machine"
  done
  folder=$(mktemp -d "${TMPDIR:-/tmp}/gpu_check.XXXXXX")
  trap 'rm -rf "$folder" "$folder.error"' EXIT
  if [ "$payload_line" = 0 ]; then
    pack "$folder/gpu_check"
    "$folder/gpu_check" run "$@" || status=$?
    exit $status
  fi
  tail -n "+$payload_line" "$0" | python3 -c '
import lzma, sys, tarfile
with lzma.open(sys.stdin.buffer) as file, tarfile.open(fileobj=file, mode="r|") as archive:
    archive.extractall(sys.argv[1])' "$folder" 2>"$folder.error" || die "$0 is damaged: copy it again ($(tail -n 1 "$folder.error"))"
  # The program runs in the background, because bash runs a trap only after a foreground command has ended.
  python3 "$folder/stages.py" "$@" &
  trap 'kill -TERM $! 2>/dev/null' TERM INT HUP
  wait $! || status=$?
  while kill -0 $! 2>/dev/null; do wait $! || status=$?; done # a signal ends the first wait
  exit $status
}

case "${1:-}" in
  pack) [ $# -eq 2 ] || usage; pack "$2" ;;
  run) [ $# -ge 2 ] || usage; shift; run "$@" ;;
  *) usage ;;
esac
exit
