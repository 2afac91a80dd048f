#!/bin/bash
# Measures the synchronization of 100 MB of parameters when every member has a network card of limited rate, and compares it with
# the theoretical optimum. The coordinator, ps and workers are real, each in a network namespace. The model is a perceptron of
# 25 layers of 1000 x 1000 with one sample per worker, so that computation is small.
#
#   tests/bench/shaped_network.sh [--rates 1gbit,200mbit] [--workers 2,4] [--ps 1,2,4] [--colocated] [--allreduce] [--steps 4] [--mtu 1500]
#                                 [--chunk-bytes 131072] [--worker-flag --inflight_bytes=N]...
#
# The bounds, for n workers, k ps, M bytes and rate B:
#   default       n workers and k ps on separate hosts: max(M/B, nM/(kB)) for each direction of every card. A worker sends and
#                 receives M; a ps receives and sends nM/k.
#   --colocated   each worker's host also has a ps. Shares are those of Theorem 1 of the BytePS paper:
#                 2n(n-1)M / ((n^2 + kn - 2k)B), or M/B for k >= n.
#   --allreduce   no ps: 2(n-1)M/(nB).
#
# The step is the mean of a worker's steps in steady state. "compute" is one forward and backward of the same model without a
# network; it can never overlap completely. B is the rate of the card in bits of whole frames; at MTU 1500 TCP gets 95.6 % of it.
#
# Needs root and `bazel build //:coordinator //:ps //:worker //:muster`.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/bench/network_namespaces.sh
. tests/bench/training_figures.sh

rates=1gbit,200mbit workers=2,4 separate=1,2,4 mode=separate steps=4 network_mtu=1500 chunk_bytes=131072 worker_flags=() ps_flags=()
while [ $# -gt 0 ]; do
  case $1 in
    --rates) rates=$2; shift ;;
    --workers) workers=$2; shift ;;
    --ps) separate=$2; shift ;;
    --steps) steps=$2; shift ;;
    --mtu) network_mtu=$2; shift ;;
    --chunk-bytes) chunk_bytes=$2; shift ;;
    --worker-flag) worker_flags+=("$2"); shift ;;
    --colocated) mode=colocated ;;
    --allreduce) mode=allreduce ;;
    *) echo "usage: ${0##*/} [--rates R,...] [--workers N,...] [--ps K,...] [--colocated] [--allreduce] [--steps N] [--mtu N] [--chunk-bytes N] [--worker-flag FLAG]..." >&2; exit 64 ;;
  esac
  shift
done
bin=${BIN:-$(pwd)/bazel-bin}
for program in services/coordinator/main services/ps/main services/worker/main cli/muster; do
  [ -x "$bin/$program" ] || die "no $bin/$program: bazel build //:coordinator //:ps //:worker //:muster (or BIN=...)"
done
work=$(mktemp -d)
parameters=$((25 * (1000 * 1000 + 1000) + 1000 * 10 + 10))

job_file() { # workers, ps
  local n=$1 ps=$2 sync="mode: bsp"
  [ "$mode" != allreduce ] || sync="mode: allreduce"
  cat >"$work/job.yaml" <<JOB
name: shaped
model: {zoo: {name: mlp, args: {inputs: 1000, hidden: "$(printf '1000,%.0s' {1..24})1000", classes: 10}}}
data: {synthetic: {samples: $((n * 64))}, batch_size: $n}
training: {steps: 1000000, optimizer: {sgd: {learning_rate: 0.0001}}}
sync: {$sync}
resources: {workers: {min: $n, max: $n}, ps: $ps}
chunk_bytes: $chunk_bytes
JOB
}

# Prints the seconds that the busiest direction of the busiest card needs. Rates are in bits per second.
optimum() { # n, k, rate
  awk -v n="$1" -v k="$2" -v rate="$3" -v bytes=$((4 * parameters)) -v mode=$mode 'BEGIN {
    t = 8 * bytes / rate
    if (mode == "separate") t *= (n > k ? n / k : 1)
    else if (mode == "allreduce" || k == 0) t *= 2 * (n - 1) / n
    else if (k < n) t *= 2 * n * (n - 1) / (n * n + k * n - 2 * k)
    printf "%.4f\n", t }'
}

bits() { echo "$1" | awk '{ v = $1 + 0; if ($1 ~ /gbit$/) v *= 1e9; else if ($1 ~ /mbit$/) v *= 1e6; print v }'; }

compute=$("$bin/cli/muster" -o name bench model --zoo mlp --arg inputs=1000 --arg hidden="$(printf '1000,%.0s' {1..24})1000" --arg classes=10 \
  --batch 1 --threads 1 --steps 10)
echo "M = $((4 * parameters)) bytes; compute alone: $compute s"
printf '%-10s %-8s %2s %2s %10s %10s %10s %7s %16s\n' mode rate n k optimum step 'step-comp.' ratio 'ratio of comm.'

measure() { # n, k
  local n=$1 k=$2 i rate ps=$2 colocated=no
  if [ $mode = colocated ]; then colocated=yes ps=$((n + k)); fi
  [ $mode != allreduce ] || ps=0
  start_members "$n" "$k" $colocated
  job_file "$n" "$ps"
  for rate in ${rates//,/ }; do
    for ((i = 0; i < n; ++i)); do set_rate "w$i" "$rate"; done
    for ((i = 0; i < k; ++i)); do set_rate "p$i" "$rate"; done
    step=$(steady_step "$work/job.yaml" "$steps")
    best=$(optimum "$n" "$k" "$(bits "$rate")")
    awk -v mode=$mode -v rate="$rate" -v n="$n" -v k="$k" -v best="$best" -v step="$step" -v compute="$compute" 'BEGIN {
      printf "%-10s %-8s %2d %2d %10.3f %10.3f %10.3f %7.3f %16.3f\n", mode, rate, n, k, best, step, step - compute, step / best, (step - compute) / best }'
  done
  stop_members
}

make_network
trap 'rm -rf "$work"; exec {network_guard}>&-; wait $network_cleaner' EXIT
start_coordinator
largest() { echo "${1//,/ }" | tr ' ' '\n' | sort -n | tail -1; }
for ((i = 0; i < $(largest "$workers"); ++i)); do add_host "w$i" ""; done
[ $mode = allreduce ] || for ((i = 0; i < $(largest "$separate"); ++i)); do add_host "p$i" ""; done
for n in ${workers//,/ }; do
  if [ $mode = allreduce ]; then
    measure "$n" 0
  else
    for k in ${separate//,/ }; do measure "$n" "$k"; done
  fi
done
