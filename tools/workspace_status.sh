#!/bin/bash
# Bazel's --workspace_status_command: prints the stamp that //lib/version:build puts into the programs. It is one line:
#
#   377e52365fbe                                  the commit that set the file VERSION: a release
#   4c2cb4b35a01 +14.g4c2cb4b35a01                14 commits later
#   4c2cb4b35a01-dirty +14.g4c2cb4b35a01.dirty    with changes that are not committed
#   unknown                                       not a checkout of Git: a tarball, also one inside another checkout
#
# The second word is build metadata of Semantic Versioning. It distinguishes builds and has no order.
stamp=unknown
if [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$(pwd -P)" ] &&
    commit=$(git describe --always --dirty --abbrev=12 --exclude '*' 2>/dev/null); then
  release=$(git log -1 --format=%H -- VERSION)
  commits=$(git rev-list --count "${release:+$release..}HEAD").
  # A shallow clone does not have all commits, so the count is left out.
  [ "$(git rev-parse --is-shallow-repository)" = false ] || commits=
  stamp="$commit +${commits}g${commit/-/.}"
  [ "$stamp" != "$commit +0.g$commit" ] || stamp=$commit
fi
# This key reaches the compiler; keys with STABLE_ do not. A changed value links the stamped programs again.
echo "BUILD_EMBED_LABEL $stamp"
# Constant, so that builds do not depend on the user or the machine.
echo "BUILD_HOST any"
echo "BUILD_USER any"
