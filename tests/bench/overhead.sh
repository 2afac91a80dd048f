#!/bin/bash
# Measures the overhead of training through a worker and a ps on one host, compared with a plain loop of forward and backward in
# one process. Both run in turns with the same number of compute threads. The plain loop does not apply an optimizer. The worker's
# exchange and the ps use the remaining cores; with as many compute threads as cores, they would compete.
#
#   tests/bench/overhead.sh [--rounds 3] [--steps 10] [--threads 1]
#
# Needs `bazel build //:coordinator //:ps //:worker //:muster`.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/bench/training_figures.sh

rounds=3 steps=10 threads=1
while [ $# -gt 0 ]; do
  case $1 in
    --rounds) rounds=$2; shift ;;
    --steps) steps=$2; shift ;;
    --threads) threads=$2; shift ;;
    *) echo "usage: ${0##*/} [--rounds N] [--steps N] [--threads N]" >&2; exit 64 ;;
  esac
  shift
done
bin=${BIN:-$(pwd)/bazel-bin}
die() { echo "${0##*/}: $*" >&2; exit 69; }
[ -x "$bin/cli/muster" ] || die "no $bin/cli/muster: bazel build //:coordinator //:ps //:worker //:muster (or BIN=...)"
work=$(mktemp -d)
trap 'kill "${started[@]}" 2>/dev/null; wait; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

# All processes run on this machine, without network namespaces.
network_hosts=() started=() worker_threads=$threads
coordinator_port=17070 coordinator_metrics_port=19400 ps_metrics_port=19401 worker_metrics_port=19402
add_host() { :; }
address_of() { echo 127.0.0.1; }
on_host() { shift; "$@"; }
start_on() {
  local log=$2
  shift 2
  "$@" >"$log" 2>&1 &
  started+=($!)
}

plain() { # zoo, arguments, batch
  # shellcheck disable=SC2086
  "$bin/cli/muster" -o name bench model --zoo "$1" $2 --batch "$3" --threads "$threads" --steps "$steps"
}

compare() { # name, arguments on a command line, arguments in a job, batch
  local round plain_seconds step
  cat >"$work/job.yaml" <<JOB
name: overhead
model: {zoo: {name: $1, args: {$3}}}
data: {synthetic: {samples: $((64 * $4))}, batch_size: $4}
training: {steps: 1000000, optimizer: {sgd: {learning_rate: 0.0001}}}
resources: {workers: {min: 1, max: 1}, ps: 1}
JOB
  for ((round = 1; round <= rounds; ++round)); do
    plain_seconds=$(plain "$1" "$2" "$4")
    step=$(steady_step "$work/job.yaml" "$steps")
    echo "$plain_seconds $step" >>"$work/$1"
  done
  awk -v name="$1" -v batch="$4" '
    function median(values, n) { asort_(values, n); return values[int((n + 1) / 2)] }
    function asort_(v, n,   i, j, t) { for (i = 2; i <= n; ++i) for (j = i; j > 1 && v[j] < v[j - 1]; --j) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t } }
    { plain[NR] = $1; job[NR] = $2; overhead[NR] = 100 * ($2 / $1 - 1) }
    END { n = NR; printf "%-10s %5d %12.3f %12.3f %11.1f %%   (rounds:", name, batch, median(plain, n), median(job, n), median(overhead, n)
          for (i = 1; i <= n; ++i) printf " %.1f", overhead[i]; print ")" }' "$work/$1"
}

worker_flags=() ps_flags=()
start_coordinator
start_members 1 1 no
printf '%-10s %5s %12s %12s %13s\n' model batch 'plain, s' 'job, s' overhead
compare resnet50 '' '' 8
compare gpt2 '--arg context=256 --arg dropout=0' 'context: 256, dropout: 0' 1
