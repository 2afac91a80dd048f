#!/bin/bash
# Bazel's --workspace_status_command: what //lib/version:build stamps into the programs. Prints "unknown" where this is not
# a checkout of Git (a tarball, also one that was unpacked somewhere inside another checkout).
commit=unknown
if [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$(pwd -P)" ]; then
  commit=$(git describe --always --dirty --abbrev=12 --exclude '*' 2>/dev/null) || commit=unknown
fi
# The key that reaches the compiler (of STABLE_ ones none does): a value that changes links the stamped programs again.
echo "BUILD_EMBED_LABEL $commit"
# Constant, so that who built where makes no difference.
echo "BUILD_HOST any"
echo "BUILD_USER any"
