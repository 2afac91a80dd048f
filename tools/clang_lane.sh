#!/bin/bash
# Compiles everything except tests and //proto with clang: thread-safety analysis, and no transitive includes (layering_check).
#
#   tools/clang_lane.sh          compiles each source and each header of changed packages alone, other packages in groups
#   tools/clang_lane.sh --all    compiles each source and each header of every package alone, as at night
#
# A group hides an include that a source lacks, because an earlier source of the group has it. CHANGED_SINCE is the commit
# that changes count from. By default it is the one where HEAD left origin/main, or on main itself the last one that is a
# day older than HEAD. BAZEL_FLAGS go to bazel.
set -uo pipefail
cd "$(dirname "$0")/.."
case ${1-} in
  "") all=0 ;;
  --all) all=1 ;;
  *) sed -n '2,/^set/{/^#/s/^# \?//p}' "$0" >&2; exit 2 ;;
esac
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Tests are left out, because they are half of the sources. A source for several instruction sets is compiled once.
bazel query --ui_event_filters=-info --noshow_progress --repo_env=MUSTER_CUDA=0 'kind("cc_(library|binary) rule", //...)
  except attr(testonly, 1, //...) except //proto/... except filter("_(avx2|avx512)$", //...)' | sort >"$folder/targets" || exit 1
[ -s "$folder/targets" ] || { echo "clang_lane: bazel query names no targets; see the message above" >&2; exit 1; }

since=${CHANGED_SINCE-}
if [ -z "$since" ]; then
  head=$(git rev-parse HEAD 2>/dev/null)
  since=$(git merge-base HEAD origin/main 2>/dev/null)
  if [ -z "$since" ] || [ "$since" = "$head" ]; then
    since=$(git rev-list -1 --before="$(($(git log -1 --format=%ct 2>/dev/null || echo 0) - 86400))" HEAD 2>/dev/null)
  fi
fi
# Every package counts as changed if there is no history, or if the build rules themselves have changed.
if [ $all = 1 ] || [ -z "$since" ] || ! git diff --quiet "$since" -- bazel ':!bazel/system.BUILD' .bazelrc 2>/dev/null; then
  cp "$folder/targets" "$folder/changed"
else
  git diff --name-only "$since" -- '*.cc' '*.h' '*BUILD.bazel' | while read -r file; do
    package=$(dirname "$file")
    while [ "$package" != . ] && [ ! -f "$package/BUILD.bazel" ]; do package=$(dirname "$package"); done
    echo "//$package"
  done | sort -u >"$folder/packages"
  awk -F : 'NR == FNR { changed[$1] = 1; next } $1 in changed' "$folder/packages" "$folder/targets" >"$folder/changed"
fi
comm -23 "$folder/targets" "$folder/changed" >"$folder/rest"

status=0
build() { # CONFIG FILE
  [ -s "$2" ] || return 0
  # The result is not run, so clang stops before it makes machine code.
  # shellcheck disable=SC2086
  bazel build ${BAZEL_FLAGS-} --config=clang $1 --cxxopt=-emit-llvm --output_groups=compilation_outputs \
    --show_progress_rate_limit=30 --keep_going --target_pattern_file="$2" || status=1
}
echo "clang_lane: $(wc -l <"$folder/changed") libraries alone, $(wc -l <"$folder/rest") in groups" >&2
build --config=alone "$folder/changed"
build "" "$folder/rest"
exit $status
