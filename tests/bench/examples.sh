#!/bin/bash
# Measures the training throughput of the examples with one and two workers on this machine: tokens/s of char_gpt, images/s of
# mnist_lenet. The figure is steps x batch over the time that `muster run` reports (whole seconds). The time includes the last
# evaluation and checkpoint.
#
#   tests/bench/examples.sh       needs `bazel build //:coordinator //:ps //:worker //:muster`
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

run() { # example, workers, steps, units per step, unit
  local out=$work/$1-$2.out
  bazel-bin/cli/muster run "examples/$1.yaml" --dir "$work/$1-$2" --set resources.workers.min="$2" --set resources.workers.max="$2" \
    --set training.steps="$3" --set training.evaluate_every_steps=0 --set checkpoint.every_steps=0 >"$out" 2>&1 || { cat "$out" >&2; exit 1; }
  sed -nE 's/^SUCCEEDED .* ([0-9]+) steps in ([0-9]+):([0-9]+):([0-9]+)$/\1 \2 \3 \4/p' "$out" |
    awk -v name="$1" -v workers="$2" -v per_step="$4" -v unit="$5" '{ printf "%-12s %d workers %8.0f %s\n", name, workers, $1 * per_step / ($2 * 3600 + $3 * 60 + $4), unit }'
}

for workers in 1 2; do run char_gpt $workers 500 $((16 * 64)) tokens/s; done
for workers in 1 2; do run mnist_lenet $workers 1200 64 images/s; done
