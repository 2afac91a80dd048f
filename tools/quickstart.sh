#!/bin/bash
# Installs what is missing, builds, and trains a small character-level GPT on this machine: a coordinator, two parameter
# servers and two workers as processes on loopback.
#
#   tools/quickstart.sh [--cuda] [arguments of `muster run`: --set data.text.path=FOLDER, ...]
#
# CUDA code is built if this machine has a GPU and the toolkit. With --cuda, a missing toolkit is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
config=(--config=nocuda)
compgen -G '/dev/nvidia[0-9]*' >/dev/null && config=()
if [ "${1:-}" = --cuda ]; then
  config=(--config=cuda)
  shift
fi
tools/setup.sh
[ -x bazel-bin/cli/muster ] || echo "quickstart: compiling the four programs; the first time takes about five minutes on two cores" >&2
tools/build_progress.py quickstart "${config[@]}" //:coordinator //:ps //:worker //:muster
exec bazel-bin/cli/muster run examples/char_gpt.yaml "$@"
