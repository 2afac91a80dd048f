#!/bin/bash
# Training throughput of the examples with one and two workers on this machine: tokens/s of char_gpt, images/s of
# mnist_lenet. Each figure is steps x batch over the time from the first to the last step, evaluations included.
#
#   tests/benchmarks/examples.sh [STEPS]       default 400; needs `bazel build //:coordinator //:ps //:worker //:muster`
set -euo pipefail
cd "$(dirname "$0")/../.."
steps=${1:-400}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

run() { # example, workers, unit, units per sample, further arguments
  local dir=$work/$1-$2
  bazel-bin/cli/muster run "examples/$1.yaml" --dir "$dir" --set resources.workers.min="$2" --set resources.workers.max="$2" \
    --set training.steps="$steps" --set training.evaluate_every_steps=0 "${@:5}" >"$dir.out" 2>&1 || { cat "$dir.out" >&2; exit 1; }
  # The mean rate over steps is batch / mean step time; samples_per_second is per step, so average its inverse.
  awk -v name="$1" -v workers="$2" -v unit="$3" -v scale="$4" '
    match($0, /"samples_per_second":[0-9.e+-]+/) { rate = substr($0, RSTART + 21, RLENGTH - 21); if (rate > 0 && ++n > 20) { inverse += 1 / rate; ++used } }
    END { printf "%-12s %d workers  %10.0f %s\n", name, workers, scale * used / inverse, unit }' "$dir"/state/jobs/*/metrics.jsonl
}

for workers in 1 2; do run char_gpt $workers tokens/s 64; done
for workers in 1 2; do run mnist_lenet $workers images/s 1; done
