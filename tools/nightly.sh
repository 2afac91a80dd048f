#!/bin/bash
# Runs the tests that take too long for CI. `tools/nightly.sh` runs every lane, `tools/nightly.sh fuzz chaos` those two.
# The output ends with a table of the lanes and their results. The status is 0 if all passed. The lanes:
#
#   asan tsan        the tests under sanitizers; NIGHTLY_TARGETS: others than docs/testing.md names
#   alone            every source and every header compiled by itself with clang
#   fuzz             every libFuzzer target for FUZZ_SECONDS (600); FUZZERS: only these
#   disk             DISK_FAULTS (20,000) calls to the disk that fail, POWER_CUTS (20,000) of the power
#   long             whole-system tests with TEST_LENGTH (3) times the steps and epochs of CI
#   chaos            CHAOS_STRIKES (1,000) members killed, CHAOS_STOPS (100) stopped beyond their lease. LOGICAL_SCHEDULES (50): jobs with
#                    logical workers that lose members and are scaled
#   simulation       SEEDS (100,000) fleets in simulated time
#   hostile          HOSTILE_TIME (10m) of floods, SIEGE_STEPS (50,000), STRANGERS (100,000), REQUESTS (100,000)
#   soak             SOAK_MINUTES (60), one member killed every SOAK_KILL_SECONDS (60)
#   page             the status page in a headless Chromium; skipped where there is none (Debian: chromium-headless-shell, or chromium)
# The seeds CHAOS_SEED, LOGICAL_SEED, POWER_SEED, SOAK_SEED and FIRST_SEED are made from the number NIGHT (by default today's date: two digits
# of the year and the day of the year). NIGHT=26331 repeats that night.
# `--dry-run` prints the commands. BAZEL_FLAGS go to bazel ("--config=nocuda --jobs=2"), BAZEL_STARTUP before its command.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
lanes=(asan tsan alone fuzz disk long chaos simulation hostile soak page)
fuzzers=(//tests/fuzz:{checkpoint,csv,directive,image,job_file,npz,onnx,tar,tfrecord}_fuzzer //lib/codec:decoder_fuzzer //lib/transport/tcp:tcp_fuzzer)
tsan_targets=(//lib/concurrency/... //lib/collective/... //lib/exchange:{version_board,communication_thread}_test
  //lib/transport/... //lib/shard/core:parameter_shard_test)

night=${NIGHT:-$(date +%y%j)}
[[ $night =~ ^[1-9][0-9]{0,4}$ ]] || { echo "NIGHT='$night' is no number of up to five digits" >&2; exit 2; }
dry="" chosen=()
for argument in "$@"; do
  case $argument in
    --help | -h) sed -n '2,/^set/{/^#/s/^# \?//p}' "$0"; exit ;;
    --dry-run) dry=yes ;;
    *)
      if [[ " ${lanes[*]} " != *" $argument "* ]]; then
        echo "no lane '$argument'; there are: ${lanes[*]}" >&2
        exit 2
      fi
      chosen+=("$argument") ;;
  esac
done
[ ${#chosen[@]} -gt 0 ] || chosen=("${lanes[@]}")

run() {
  if [ -n "$dry" ]; then printf '%q ' "$@"; echo; else "$@"; fi
}
# BAZEL_STARTUP and BAZEL_FLAGS may have several words, so they are not quoted.
# shellcheck disable=SC2086
bazel_with() { run bazel ${BAZEL_STARTUP-} "$1" ${BAZEL_FLAGS-} "${@:2}"; }
tests() { bazel_with test --keep_going --test_output=errors "$@"; }
# Runs `tests` with variables that the tests read. A variable of the environment replaces the value given here.
sized() { # NAME=VALUE... -- ARGUMENT...
  local flags=()
  while [ "$1" != -- ]; do
    local name=${1%%=*}
    flags+=("--test_env=$name=${!name-${1#*=}}")
    shift
  done
  tests --nocache_test_results --test_timeout=36000 "${flags[@]}" "${@:2}"
}

# Returns whether the test would find a Chromium.
has_chromium() {
  (cd services/coordinator/status_page && python3 -Bc 'import browser, sys; sys.exit(browser.program() is None)')
}

lane() {
  local targets=() status=0
  read -ra targets <<<"${NIGHTLY_TARGETS-}"
  case $1 in
    asan) tests --config=asan "${targets[@]-}" ;;
    tsan) tests --config=tsan "${targets[@]-}" ;;
    alone) run tools/clang_lane.sh --all ;;
    fuzz)
      local fuzzer corpus some=() options=()
      read -ra some <<<"${FUZZERS-${fuzzers[*]}}"
      for fuzzer in "${some[@]}"; do
        corpus=${NIGHTLY_CORPUS:-${XDG_CACHE_HOME:-$HOME/.cache}/muster/corpus}/${fuzzer##*:}
        run mkdir -p "$corpus" || status=1
        # gRPC's threads free memory later, so only the check for leaks at the end is reliable, not the one after each input.
        options=("-max_total_time=${FUZZ_SECONDS-600}")
        [ "${fuzzer##*:}" != directive_fuzzer ] || options+=(-detect_leaks=0)
        bazel_with run --config=clang --copt=-O1 --copt=-fsanitize=fuzzer-no-link,address,undefined \
          --copt=-fno-sanitize=vptr --copt=-fno-sanitize-recover=undefined --linkopt=-fsanitize=address,undefined --linkopt=-fsanitize-link-c++-runtime \
          "$fuzzer" -- "$corpus" "${options[@]}" || status=1
      done
      return $status ;;
    disk)
      sized DISK_FAULTS=20000 POWER_CUTS=20000 POWER_SEED="$night" -- \
        --test_filter='Failing*:*WhateverOf*' //services/coordinator:power_cut_test ;;
    long)
      sized TEST_LENGTH=3 -- \
        //tests:{allreduce,consistency,learning,mode_recovery,recovery,resume,two_jobs}_test ;;
    chaos)
      sized CHAOS_STRIKES=1000 CHAOS_SEED="$night" -- --test_filter='*Killed*' //tests/chaos:chaos_test || status=1
      CHAOS_STRIKES=${CHAOS_STOPS-100} sized CHAOS_STRIKES= CHAOS_SEED="$night" -- --test_filter='*StandsStill*' //tests/chaos:chaos_test || status=1
      CHAOS_STRIKES=12 sized CHAOS_STRIKES= CHAOS_SEED="$night" -- --test_filter='*EveryCheckpoint*' //tests/chaos:chaos_test || status=1
      sized LOGICAL_SCHEDULES=50 LOGICAL_SEED="$night" -- --test_filter='*Random*' //tests:logical_workers_test || status=1
      return $status ;;
    simulation) sized SEEDS=100000 FIRST_SEED=$((night * 100000)) -- //tests/sim:fleet_simulation_test ;;
    hostile)
      sized HOSTILE_TIME=10m SIEGE_STEPS=50000 STRANGERS=100000 REQUESTS=100000 -- \
        //services/coordinator:{hostile_calls,mutated_requests}_test //tests:{siege,unauthenticated_peer}_test ;;
    soak) sized SOAK_MINUTES=60 SOAK_KILL_SECONDS=60 SOAK_SEED="$night" -- //tests/chaos:soak_test ;;
    page)
      # Without a Chromium the test passes, and Bazel would reuse that result when there is one.
      if [ -z "$dry" ] && ! has_chromium; then
        echo "there is no Chromium: apt-get install chromium-headless-shell" >&2
        result=skipped
        return
      fi
      tests --nocache_test_results --test_env=PATH //services/coordinator/status_page:browser_test ;;
  esac
}

echo "NIGHT=$night"
table="" failed=0
for name in "${chosen[@]}"; do
  start=$SECONDS result=passed
  case $name in
    asan) NIGHTLY_TARGETS=${NIGHTLY_TARGETS:-//lib/... //kernels/... //services/...} lane asan ;;
    tsan) NIGHTLY_TARGETS=${NIGHTLY_TARGETS:-${tsan_targets[*]}} lane tsan ;;
    *) lane "$name" ;;
  esac || { result=FAILED failed=1; }
  table+=$(printf '%-12s %-7s %6d s' "$name" "$result" $((SECONDS - start)))$'\n'
done
[ -n "$dry" ] || printf '\n%sNIGHT=%s\n' "$table" "$night"
exit $failed
