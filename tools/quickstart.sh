#!/bin/bash
# Installs what is missing, builds, and trains a small character-level GPT on this machine: a coordinator, two parameter
# servers and two workers as processes on loopback. Arguments go to `muster run` (--set data.text.path=FOLDER, ...).
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
echo "quickstart: building (some minutes the first time)" >&2
bazel build --noshow_progress --ui_event_filters=-info //:coordinator //:ps //:worker //:muster
exec bazel-bin/cli/muster run examples/char_gpt.yaml "$@"
