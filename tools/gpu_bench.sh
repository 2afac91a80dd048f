#!/bin/bash
# Tests and benchmarks of the CUDA device on a machine that has a GPU, CUDA 13's cuBLAS and cuDNN (the toolkit's or those of
# PyTorch's wheels) and PyTorch, but nothing of what builds Muster.
#
#   tools/gpu_bench.sh bundle FOLDER           where Muster is built: everything into FOLDER
#   FOLDER/gpu_bench.sh tests                  where the GPU is: every test that wants one
#   FOLDER/gpu_bench.sh models [ROUNDS]        training steps here and in PyTorch, as a table in Markdown
set -euo pipefail
here=$(dirname "$(realpath "$0")")
usage() { sed -n '2,7s/^# \?//p' "$0" >&2; exit 2; }

bundle() {
  local folder=$1 targets label programs=(bazel-bin/cli/muster)
  cd "$here/.."
  mapfile -t targets < <(bazel query --noshow_progress 'filter("_cuda_test$", tests(//lib/engine/...))' 2>/dev/null)
  bazel build --config=cuda --noshow_progress //cli:muster "${targets[@]}"
  for label in "${targets[@]}"; do
    label=${label#//}
    programs+=("bazel-bin/${label/://}")
  done
  tools/bundle.sh "$folder" "${programs[@]}"
  cp tools/gpu_bench.sh tests/bench/pytorch_models.py "$folder/"
}

# Where PyTorch's wheels keep CUDA's libraries; nothing where they do not.
wheel_libraries() {
  python3 -c 'import glob, os, sysconfig
print(":".join(glob.glob(os.path.join(sysconfig.get_path("purelib"), "nvidia", "*", "lib"))))' 2>/dev/null || true
}

tests() {
  local test failed=0
  for test in "$here"/*_cuda_test; do
    if MUSTER_DEVICE=cuda:0 "$test" --gtest_brief=1 >"$here/log" 2>&1; then
      echo "$(basename "$test"): $(grep -c . "$here/log") lines, $(tail -n 1 "$here/log")"
    else
      failed=1
      echo "$(basename "$test"): FAILED"
      tail -n 40 "$here/log"
    fi
  done
  return $failed
}

# title, unit, units of a sample, batch, our arguments, PyTorch's
compare() {
  local title=$1 unit=$2 per_sample=$3 batch=$4 ours=$5 theirs=$6 round
  for round in $(seq "$rounds"); do
    # shellcheck disable=SC2086
    "$here/muster" -o json bench model $ours --device cuda:0 --precision bf16 --batch "$batch" --steps 20 >"$here/own.$round"
    # shellcheck disable=SC2086
    python3 "$here/pytorch_models.py" $theirs --device cuda --precision bf16 --compile --batch "$batch" >"$here/other.$round"
  done
  python3 - "$here" "$rounds" "$title" "$unit" "$per_sample" "$batch" <<'PYTHON'
import json, statistics, sys
folder, rounds, title, unit, per_sample, batch = sys.argv[1:]
own = [json.load(open(f"{folder}/own.{r + 1}")) for r in range(int(rounds))]
theirs = statistics.median(float(open(f"{folder}/other.{r + 1}").read().split()[0]) / 1e3 for r in range(int(rounds)))
mine = statistics.median(run["step_seconds"] for run in own)
units = int(batch) * int(per_sample)
flops = own[0]["step_flops"] / mine
print(f"| {title} | {batch} | {mine * 1e3:.1f} ms | {theirs * 1e3:.1f} ms | {units / mine:,.0f} {unit}/s | "
      f"{units / theirs:,.0f} {unit}/s | {theirs / mine:.2f} | {flops / 1e12:.0f} |")
PYTHON
}

models() {
  rounds=${1:-3}
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  echo
  echo "| model, bf16 | batch | step here | step PyTorch | here | PyTorch (torch.compile) | ratio | TFLOP/s here |"
  echo "|---|---|---|---|---|---|---|---|"
  compare "GPT-2 124M, 1024 tokens" tokens 1024 32 "--zoo gpt2 --arg size=124m --arg context=1024" "--zoo gpt2 --context 1024"
  compare "ResNet-50, channels last" images 1 256 "--zoo resnet50" "--zoo resnet50 --channels-last"
  compare "BERT-large, 512 tokens" tokens 512 32 "--zoo bert --arg size=large --arg context=512" "--zoo bert --context 512"
}

case "${1:-}" in
  bundle) [ $# -eq 2 ] || usage; mkdir -p "$2"; bundle "$(realpath "$2")" ;;
  tests | models)
    wheels=$(wheel_libraries)
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$wheels
    "$@"
    ;;
  *) usage ;;
esac
