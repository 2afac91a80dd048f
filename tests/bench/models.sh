#!/bin/bash
# Compares the training step (forward and backward) of Muster and PyTorch on this machine's CPU, in turns. The models are those of
# the zoo, and models that PyTorch exported as ONNX.
#
#   tests/bench/models.sh [ROUNDS]
#
# Needs PyTorch: on Debian 12 `apt-get install python3-torch`, or PYTHON=... for an interpreter with a newer one. The exported
# models also need torchvision and onnx (PyPI has all three); without them the script skips these models.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-3}
threads=$(nproc)
python=${PYTHON:-/usr/bin/python3}
"$python" -c 'import torch' 2>/dev/null || { echo "models.sh: no PyTorch for $python: apt-get install python3-torch" >&2; exit 69; }
muster=${MUSTER:-bazel-bin/cli/muster}
[ -n "${MUSTER:-}" ] || bazel build --noshow_progress //cli:muster 2>/dev/null

# name, batch, steps, Muster's arguments, PyTorch's arguments
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

"$python" -c 'import onnx, torchvision' 2>/dev/null || { echo "models.sh: the exported models need torchvision and onnx for $python" >&2; exit 0; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# name, batch, steps
compare_export() {
  local name=$1 batch=$2 steps=$3 round
  "$python" tests/bench/onnx_models.py --model "$name" --export "$folder/$name.onnx" 2>"$folder/log" || { cat "$folder/log" >&2; return 1; }
  for round in $(seq "$rounds"); do
    own=$($muster -o name bench model --onnx "$folder/$name.onnx" --batch "$batch" --steps "$steps" --threads "$threads")
    other=$("$python" tests/bench/onnx_models.py --model "$name" --batch "$batch" --steps "$steps" --threads "$threads")
    awk -v name="$name" -v batch="$batch" -v own="$own" -v other="$other" 'BEGIN {
      split(other, part, " ");
      printf "%-14s batch %-4d  muster %9.2f ms   pytorch %9.2f ms   ratio %.2f\n", name, batch, own * 1e3, part[1], part[1] / (own * 1e3) }'
  done
}

compare_export resnet18 8 10
compare_export convnext_tiny 4 5
compare_export vit_b_16 2 5
compare_export lstm 8 10
