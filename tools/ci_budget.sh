#!/bin/bash
# Measures the lanes of .ci/run and compares them with their budgets, the table under "Budget" in docs/testing.md.
#
#   tools/ci_budget.sh begin FOLDER         measures the yardstick and starts the first lane. FOLDER is empty.
#   tools/ci_budget.sh lap FOLDER LANE      ends LANE and starts the next one.
#   tools/ci_budget.sh check FOLDER         measures the yardstick again, reports the lanes and adds them to the log.
#
# The exit status of `check` is the number of lanes that failed: those over their budget by more than a quarter, and those
# without a budget. A lane that is over its budget by less gets a warning. The status is 100 if a command could not measure.
#
# The unit is the yardstick: the processor time (user and system) that compiling tools/yardstick.cc and running it takes on
# this machine while all cores do it. The cost of a lane is its own processor time in yardsticks. So neither the speed of
# the machine nor its number of cores matters. Other programs matter little, because they slow down both the yardstick and
# the lane. `begin` and `check` both measure; the median of all measurements counts.
#
# Time in which a test only waits is not counted. The log has each lane's time by the clock as well. A warm cache makes a
# lane cheaper, never dearer: a budget is a ceiling, for a cold run.
#
# The processor time of a lane is that of the caller's children and of the Bazel server with its children.
#
# MUSTER_CI_BUDGET_LOG is the log; by default ci_budget.log in ${XDG_CACHE_HOME:-~/.cache}/muster.
# CI_BUDGET_CLOCK is for tests: a file that holds "CLOCK PROCESSOR", in seconds, in place of this machine's times.
set -uo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 100
usage() { sed -n '2,/^set/{/^#/s/^# \?//p}' "$0" >&2; exit 100; }
[ $# -ge 2 ] || usage
folder=$2
log=${MUSTER_CI_BUDGET_LOG:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/muster/ci_budget.log}
caller=$PPID

# Prints the sum of some fields of /proc/PID/stat in seconds. Field 1 is the one after the program's name. 12 and 13 are the
# times of the process itself, 14 and 15 those of its ended children.
processor_seconds() { # PID FIELD...
  local stat fields field ticks=0
  read -r stat 2>/dev/null <"/proc/$1/stat" || { echo 0; return; }
  read -ra fields <<<"${stat##*) }"
  for field in "${@:2}"; do ticks=$((ticks + fields[field - 1])); done
  awk -v ticks="$ticks" -v second="$(getconf CLK_TCK)" 'BEGIN { printf "%.2f\n", ticks / second }'
}

# Prints "CLOCK CHILDREN SERVER SERVER_PID". CHILDREN includes this script, although its caller has not waited for it yet.
times_now() {
  if [ -n "${CI_BUDGET_CLOCK:-}" ]; then
    echo "$(<"$CI_BUDGET_CLOCK") 0 0"
    return
  fi
  local server
  server=$(bazel info --ui_event_filters=-info server_pid 2>/dev/null)
  [[ $server =~ ^[0-9]+$ ]] || server=0
  awk -v clock="$EPOCHREALTIME" -v caller="$(processor_seconds "$caller" 14 15)" -v this="$(processor_seconds $$ 12 13 14 15)" \
    -v server="$(processor_seconds "$server" 12 13 14 15)" -v pid="$server" \
    'BEGIN { printf "%.2f %.2f %.2f %d\n", clock, caller + this, server, pid }'
}

yardstick_seconds() { # processor time of this script's children
  if [ -n "${CI_BUDGET_CLOCK:-}" ]; then cut -d ' ' -f 2 "$CI_BUDGET_CLOCK"; else processor_seconds $$ 14 15; fi
}

# Adds two measurements of the yardstick. Each is the mean of copies that run on all cores at once, as Bazel's compilers do:
# cores that share caches and units are slower together.
measure_yardstick() {
  local before after round copy copies
  copies=$(nproc)
  for round in 1 2; do
    before=$(yardstick_seconds)
    for ((copy = 0; copy < copies; copy++)); do
      { g++ -std=c++20 -O2 -o "$folder/yardstick.$copy" tools/yardstick.cc && "$folder/yardstick.$copy" >/dev/null && : >"$folder/ran.$round.$copy"; } &
    done
    wait
    after=$(yardstick_seconds)
    for ((copy = 0; copy < copies; copy++)); do
      rm "$folder/ran.$round.$copy" 2>/dev/null || {
        echo "budget: tools/yardstick.cc cannot be compiled or run, so nothing is measured; see the message above, and tools/setup.sh" >&2
        return 1
      }
    done
    awk -v before="$before" -v after="$after" -v copies="$copies" 'BEGIN { printf "%.2f\n", (after - before) / copies }' >>"$folder/yardsticks"
  done
}

# Prints the budgets of docs/testing.md, a line "LANE YARDSTICKS" each.
budgets() {
  awk -F '|' '/^## / { here = $0 == "## Budget" } here && $2 ~ /^ `[a-z]+` $/ && $3 ~ /^ *[0-9]+ $/ { gsub(/[ `]/, "", $2); print $2, $3 + 0 }' docs/testing.md
}

case $1 in
  begin)
    measure_yardstick || exit 100
    times_now >"$folder/mark"
    ;;
  lap)
    [ $# -eq 3 ] || usage
    [ -s "$folder/mark" ] || exit 100
    now=$(times_now)
    # If the Bazel server was started during the lane, its time at the beginning is 0.
    awk -v lane="$3" '
      NR == 1 { clock = $1; children = $2; server = $3; pid = $4 }
      NR == 2 { printf "%s %.2f %.2f\n", lane, $1 - clock, $2 - children + $3 - ($4 == pid ? server : 0) }
    ' "$folder/mark" - <<<"$now" >>"$folder/laps"
    echo "$now" >"$folder/mark"
    ;;
  check)
    [ -s "$folder/laps" ] || { echo "budget: no lane was measured; the messages above say why" >&2; exit 100; }
    measure_yardstick || exit 100
    yardstick=$(sort -n "$folder/yardsticks" | awk '{ all[NR] = $1 } END { printf "%.2f", (all[int((NR + 1) / 2)] + all[int(NR / 2) + 1]) / 2 }')
    echo "budget: one yardstick is $yardstick s of processor time here (measured: $(sort -n "$folder/yardsticks" | paste -sd ' '))" >&2
    # Prints one line for the log for each lane, and tells people on standard error.
    lines=$(awk -v yardstick="$yardstick" -v date="$(date -u +%FT%TZ)" -v commit="$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)" '
      FNR == NR { budget[$1] = $2; next }  # the table, which ends with an empty line so that it is never an empty file
      {
        cost = $3 / yardstick
        limit = budget[$1] + 0
        over = limit ? 100 * (cost / limit - 1) : 0
        verdict = !limit ? "no-budget" : over > 25 ? "FAILED" : over > 0 ? "warning" : "ok"
        text = sprintf("budget: %-7s %6.1f of %d yardsticks (%.0f s of processor time, %.0f s by the clock)", $1, cost, limit, $3, $2)
        if (verdict == "no-budget") text = text ": FAILED, because docs/testing.md (Budget) has no row for it; add one"
        if (verdict == "FAILED") text = text sprintf(": FAILED, %.0f %% over; find what became slower, or raise the row in docs/testing.md (Budget) and say why in the commit", over)
        if (verdict == "warning") text = text sprintf(": warning, %.0f %% over; the lane fails at 25 %%", over)
        print text >"/dev/stderr"
        printf "%s %s %s %.1f %.1f %.2f %.1f %d %s\n", date, commit, $1, $3, $2, yardstick, cost, limit, verdict
      }
    ' <(budgets; echo) "$folder/laps")
    {
      mkdir -p "$(dirname "$log")" &&
        { [ -s "$log" ] || echo "date commit lane processor_seconds clock_seconds yardstick_seconds yardsticks budget verdict" >>"$log"; } &&
        echo "$lines" >>"$log"
    } 2>/dev/null || echo "budget: $log cannot be written; the lanes above are in no log (MUSTER_CI_BUDGET_LOG names another file)" >&2
    exit "$(grep -cE ' (FAILED|no-budget)$' <<<"$lines")"
    ;;
  *) usage ;;
esac
