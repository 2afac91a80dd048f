#!/bin/bash
# The training step (forward and backward) of zoo models here and in PyTorch, taking turns in one run on this machine's CPU.
#
#   tests/bench/models.sh [ROUNDS]
#
# Needs a PyTorch: on Debian 12 `apt-get install python3-torch`, or PYTHON=... for one that has a newer one.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-3}
threads=$(nproc)
python=${PYTHON:-/usr/bin/python3}
"$python" -c 'import torch' 2>/dev/null || { echo "models.sh: no PyTorch for $python: apt-get install python3-torch" >&2; exit 69; }
muster=${MUSTER:-bazel-bin/cli/muster}
[ -n "${MUSTER:-}" ] || bazel build --noshow_progress //cli:muster 2>/dev/null

# name, batch, steps, our arguments, PyTorch's
compare() {
  local name=$1 batch=$2 steps=$3 ours=$4 theirs=$5 round
  for round in $(seq "$rounds"); do
    # shellcheck disable=SC2086
    own=$($muster -o name bench model --zoo "$name" $ours --batch "$batch" --steps "$steps" --threads "$threads")
    # shellcheck disable=SC2086
    other=$("$python" tests/bench/pytorch_models.py --zoo "$name" $theirs --batch "$batch" --steps "$steps" --threads "$threads")
    awk -v name="$name" -v batch="$batch" -v own="$own" -v other="$other" 'BEGIN {
      split(other, part, " ");
      printf "%-10s batch %-4d  muster %9.2f ms   pytorch %9.2f ms   ratio %.2f\n", name, batch, own * 1e3, part[1], part[1] / (own * 1e3) }'
  done
}

compare mlp 128 50 '--arg hidden=1024,1024,1024' ''
compare lstm_lm 20 10 '--arg context=35 --arg dropout=0' '--context 35'
compare gpt2 1 10 '--arg context=256 --arg dropout=0' '--context 256'
compare resnet50 8 5 '' ''
compare resnet50 8 5 '' '--channels-last'
