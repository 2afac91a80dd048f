#!/bin/bash
# Formats every C++ file with clang-format 14 (.clang-format), as CI demands.
#
#   tools/format.sh                       formats.
#   tools/format.sh --check               names files that differ, and comments and paragraphs that break a rule of tools/prose.py.
#                                         Runs clang-tidy (.clang-tidy) over the changed files. Exit code 1: a check failed.
#   tools/format.sh --check --since REV   counts changes since REV. Default: since HEAD left origin/main; on main itself, the
#                                         last commit. Uncommitted changes always count. `--since ''`: no clang-tidy.
#   tools/format.sh --check --most N      clang-tidy over the N files with the most changed lines. A file takes seven seconds
#                                         of a core. The script says how many files it leaves out.
set -uo pipefail
cd "$(dirname "$0")/.."
usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
check=0
most=0
unset since
while [ $# -gt 0 ]; do
  case $1 in
    --check) check=1 ;;
    --since) [ $# -gt 1 ] || usage; since=$2; shift ;;
    --most) [ $# -gt 1 ] && [[ $2 =~ ^[1-9][0-9]*$ ]] || usage; most=$2; shift ;;
    *) usage ;;
  esac
  shift
done
[[ "$(clang-format --version)" == *"version 14."* ]] || { echo "format: clang-format 14 is needed (tools/setup.sh --tests); others format otherwise" >&2; exit 2; }

sources() { # existing files, separated by zeros; a tarball has no Git, so find lists them
  { git ls-files -z --cached --others --exclude-standard -- '*.cc' '*.h' '*.cu' '*.cuh' 2>/dev/null ||
    find . -name 'bazel-*' -prune -o \( -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -printf '%P\0'; } |
    while read -rd '' file; do [ -f "$file" ] && printf '%s\0' "$file"; done
}
each() { xargs -0 -r -n "$1" -P "$(nproc)" "${@:2}"; }

if [ $check = 0 ]; then
  sources | each 16 clang-format -i
  exit
fi

status=0
differ=$(sources | each 16 clang-format --dry-run 2>&1 | sed -nE 's/^([^:]+):[0-9]+:[0-9]+: .*/\1/p' | sort -u)
if [ -n "$differ" ]; then
  printf 'format: %s differs from what clang-format makes of it\n' $differ >&2
  echo "format: run tools/format.sh" >&2
  status=1
fi

if [ -z "${since+set}" ]; then
  since=$(git merge-base HEAD origin/main 2>/dev/null) || since=
  if [ -z "$since" ] || [ "$since" = "$(git rev-parse HEAD 2>/dev/null)" ]; then since=$(git rev-parse --verify -q HEAD~1 2>/dev/null) || since=; fi
fi
# In a tarball there is no Git, so tools/prose.py cannot list the files.
if git rev-parse -q --verify HEAD >/dev/null 2>&1 && ! tools/prose.py --check ${since:+--since "$since"} >&2; then
  echo "format: write these in plain words (tools/prose.py --help)" >&2
  status=1
fi
if [ -z "$since" ]; then
  echo "format: clang-tidy was not asked: nothing to tell changed files by" >&2
  exit $status
fi
# A changed header is checked through its source, which includes it. Files with the most changed lines come first.
changed=$({ git diff --numstat --no-renames "$since" -- '*.cc' '*.h' | cut -f 1,3
            git ls-files --others --exclude-standard -- '*.cc' '*.h' | sed 's/^/1000000\t/'; } |
  awk -F '\t' '{ sub(/\.h$/, ".cc", $2); lines[$2] += $1 } END { for (file in lines) print lines[file] "\t" file }' |
  sort -k1,1nr -k2 | cut -f 2 | while read -r file; do [ -f "$file" ] && echo "$file"; done)
all=$(grep -c . <<<"$changed")
if [ "$most" -gt 0 ] && [ "$all" -gt "$most" ]; then
  changed=$(head -n "$most" <<<"$changed")
  echo "format: $((all - most)) of $all changed files are left out; tools/format.sh --check looks at all of them" >&2
fi
if [ -n "$changed" ]; then
  echo "format: clang-tidy over $(wc -l <<<"$changed") files changed since $(git describe --always "$since")" >&2
  tools/compile_commands.sh || exit 2
  tr '\n' '\0' <<<"$changed" | each 1 clang-tidy -p . --quiet --warnings-as-errors='*' 2> >(grep -vE 'warnings? generated|^$' >&2) || status=1
fi
exit $status
