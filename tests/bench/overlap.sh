#!/bin/bash
# Measures how much communication overlaps with computation. One worker and one ps have a network card each and train a perceptron
# of 25 equal layers (1024 x 1024). At the chosen rate, moving all gradients takes as long as computing them; serial would be 2 x.
# Repeats this without overlap, without priority, and without both, to show the gain of each.
#
#   tests/bench/overlap.sh [--batch 512] [--steps 8] [--chunk-bytes 131072]
#
# Needs root and `bazel build //:coordinator //:ps //:worker //:muster`.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/bench/network_namespaces.sh
. tests/bench/training_figures.sh

batch=512 steps=8 chunk_bytes=131072 ps_flags=()
while [ $# -gt 0 ]; do
  case $1 in
    --batch) batch=$2; shift ;;
    --steps) steps=$2; shift ;;
    --chunk-bytes) chunk_bytes=$2; shift ;;
    *) echo "usage: ${0##*/} [--batch N] [--steps N] [--chunk-bytes N]" >&2; exit 64 ;;
  esac
  shift
done
bin=${BIN:-$(pwd)/bazel-bin}
[ -x "$bin/cli/muster" ] || die "no $bin/cli/muster: bazel build //:coordinator //:ps //:worker //:muster (or BIN=...)"
work=$(mktemp -d)
hidden=$(printf '1024,%.0s' {1..24})1024
parameters=$((25 * (1024 * 1024 + 1024) + 1024 * 10 + 10))
payload_share=0.956  # share of a card's bits at MTU 1500: 1448 of 1514 bytes

cat >"$work/job.yaml" <<JOB
name: overlap
model: {zoo: {name: mlp, args: {inputs: 1024, hidden: "$hidden", classes: 10}}}
data: {synthetic: {samples: $((batch * 4))}, batch_size: $batch}
training: {steps: 1000000, optimizer: {sgd: {learning_rate: 0.0001}}}
resources: {workers: {min: 1, max: 1}, ps: 1}
chunk_bytes: $chunk_bytes
JOB

make_network
trap 'rm -rf "$work"; exec {network_guard}>&-; wait $network_cleaner' EXIT
start_coordinator
add_host w0 ""
add_host p0 ""

compute=$("$bin/cli/muster" -o name bench model --zoo mlp --arg inputs=1024 --arg hidden="$hidden" --arg classes=10 \
  --batch "$batch" --threads 1 --steps 5)
kilobits=$(awk -v m=$((4 * parameters)) -v c="$compute" -v share=$payload_share 'BEGIN { printf "%d", 8 * m / (c * share) / 1e3 }')
echo "M = $((4 * parameters)) bytes, batch $batch; computation alone $compute s; cards at $kilobits kbit/s, where communication alone takes as long"
set_rate w0 "${kilobits}kbit"
set_rate p0 "${kilobits}kbit"
printf '%-28s %10s %22s\n' worker 'step, s' 'of the larger (serial 2)'
for flags in '' --no-overlap --no-priority '--no-overlap --no-priority'; do
  read -ra worker_flags <<<"$flags"
  start_members 1 1 no
  step=$(steady_step "$work/job.yaml" "$steps")
  stop_members
  awk -v flags="${flags:-as it is}" -v step="$step" -v compute="$compute" 'BEGIN { printf "%-28s %10.3f %22.3f\n", flags, step, step / compute }'
done
