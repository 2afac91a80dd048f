#!/bin/bash
# Bazel's --workspace_status_command: what //lib/version:build stamps into the programs. The stamp is one line:
#
#   377e52365fbe                                  the commit that set the file VERSION: a release
#   4c2cb4b35a01 +14.g4c2cb4b35a01                14 commits later
#   4c2cb4b35a01-dirty +14.g4c2cb4b35a01.dirty    with changes that are not committed
#   unknown                                       not a checkout of Git: a tarball, also one inside another checkout
#
# The second word is build metadata of Semantic Versioning: it tells builds apart and has no order.
stamp=unknown
if [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$(pwd -P)" ] &&
    commit=$(git describe --always --dirty --abbrev=12 --exclude '*' 2>/dev/null); then
  release=$(git log -1 --format=%H -- VERSION)
  commits=$(git rev-list --count "${release:+$release..}HEAD").
  # A shallow clone lacks the commits to count.
  [ "$(git rev-parse --is-shallow-repository)" = false ] || commits=
  stamp="$commit +${commits}g${commit/-/.}"
  [ "$stamp" != "$commit +0.g$commit" ] || stamp=$commit
fi
# The key that reaches the compiler (of STABLE_ ones none does): a value that changes links the stamped programs again.
echo "BUILD_EMBED_LABEL $stamp"
# Constant, so that who built where makes no difference.
echo "BUILD_HOST any"
echo "BUILD_USER any"
