#!/bin/bash
# Writes the descriptors of the API's messages, which muster/_proto.py loads. Bazel does it by itself; run this once to use
# the package from the sources:
#
#   python/muster/make_protos.sh python/muster/_protos.bin
set -euo pipefail
output=$(realpath "$1")
cd "$(dirname "$0")/../.."
protoc -I. --include_imports --descriptor_set_out="$output" proto/muster/v1/checkpoint.proto \
  proto/muster/v1/coordinator.proto proto/third_party/google/rpc/error_details.proto
