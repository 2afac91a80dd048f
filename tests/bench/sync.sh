#!/bin/bash
# Gradients to ps and values back, without computing: `muster bench sync` (real ps, real coordinator, workers that only push) in turns
# with bare loops that do the same work on the same substrate with one thread per side. Figures are medians of all turns; ratios are medians
# of the ratios of each turn, whose runs follow one another within seconds: a machine's processors may be near each other now and far in a minute.
#
#   tests/bench/sync.sh [--turns 5] [--members 1,2] [--links shm,tcp] [--sizes 4K,64K,256K,1M,4M,16M,64M]
#   tests/bench/sync.sh --round-trip [--turns 5]     one 4 KiB message at a time: polling, sleeping, all on one core
#
# Goodput is in Gb/s of payload one way, all workers together; "peer" is the best of ps-lite and BytePS on such a machine (Unix sockets;
# TCP), which apply no optimizer. Muster waits as it does by default (--poll auto); the loops poll with one worker and one ps, and sleep
# with two of each, as two cores do not do for four pollers. Messages are at most 4 MiB on both sides: a larger tensor travels as several.
#
# Needs `bazel build //:coordinator //:ps //:muster //tests/bench:bare_loop`.
set -euo pipefail
cd "$(dirname "$0")/../.."

turns=5 members=1,2 links=shm,tcp sizes=4K,64K,256K,1M,4M,16M,64M what=goodput
while [ $# -gt 0 ]; do
  case $1 in
    --turns) turns=$2; shift ;;
    --members) members=$2; shift ;;
    --links) links=$2; shift ;;
    --sizes) sizes=$2; shift ;;
    --round-trip) what=round-trip ;;
    *) sed -n "6,7p" "$0" >&2; exit 64 ;;
  esac
  shift
done
bin=${BIN:-$(pwd)/bazel-bin}
for program in cli/muster tests/bench/bare_loop; do
  [ -x "$bin/$program" ] || { echo "${0##*/}: no $bin/$program: bazel build //:coordinator //:ps //:muster //tests/bench:bare_loop (or BIN=...)" >&2; exit 69; }
done
results=$(mktemp)
trap 'rm -f "$results"' EXIT

bytes_of() { numfmt --from=iec "$1"; }

# As `muster bench sync` chooses them: message, messages together, steps of a round.
shape_of() { # bytes
  awk -v size="$1" 'BEGIN {
    tensors = int(8 * 2^20 / size); if (tensors < 2) tensors = 2; if (tensors > 64) tensors = 64
    message = size < 4 * 2^20 ? size : 4 * 2^20
    round = size * 16384; if (round < 64 * 2^20) round = 64 * 2^20; if (round > 256 * 2^20) round = 256 * 2^20
    steps = int(round / (size * tensors)); if (steps < 2) steps = 2
    print message, tensors * size / message, steps }'
}

# "who bytes goodput round-trip", appended to the results.
run_muster() { # transport, members, poll, size
  "$bin/cli/muster" -o name bench sync --workers "$2" --ps "$2" --transport "$1" --poll "$3" --sizes "$4" --rounds 9 |
    awk -v who="muster" '{ print who, $1, $2, $3 }' >>"$results"
}
run_bare() { # substrate, members, poll, size
  local message tensors steps
  read -r message tensors steps <<<"$(shape_of "$(bytes_of "$4")")"
  echo "$1 $(bytes_of "$4") $("$bin/tests/bench/bare_loop" --substrate="$1" --workers="$2" --servers="$2" --bytes="$message" \
    --tensors="$tensors" --steps="$steps" --rounds=9 --poll="$3")" >>"$results"
}

# median(list): of numbers with spaces between. ratio(a, b): of two such lists, number by number.
medians='
  function median(numbers,   n, list, i, j, t) {
    n = split(numbers, list, " ")
    for (i = 2; i <= n; ++i) for (j = i; j > 1 && list[j] + 0 < list[j - 1] + 0; --j) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
    return list[int((n + 1) / 2)] + 0
  }
  function ratio(a, b,   n, as, bs, i, ratios) {
    n = split(a, as, " "); split(b, bs, " ")
    for (i = 1; i <= n; ++i) ratios = ratios " " as[i] / bs[i]
    return median(ratios)
  }'

goodput() { # link, transport of muster, substrates, members, poll of muster, of the loops
  local turn substrate size
  : >"$results"
  for ((turn = 0; turn < turns; ++turn)); do
    for size in ${sizes//,/ }; do
      run_muster "$2" "$4" "$5" "$size"
      for substrate in $3; do run_bare "$substrate" "$4" "$6" "$size"; done
    done
  done
  echo
  echo "$4 workers, $4 ps, $1, poll $5: Gb/s, medians of $turns turns"
  awk -v substrates="$3" -v link="$1" "$medians"'
    BEGIN {
      n = split(substrates, names, " ")
      split(link == "shm" ? "3.4 10 13 21 21 20 9" : "2 7 8 10 13 16 7", best, " ")
      split("4096 65536 262144 1048576 4194304 16777216 67108864", at, " ")
      for (i in at) peer[at[i]] = best[i]
      printf "| size | Muster |"; for (i = 1; i <= n; ++i) printf " bare %s | ratio |", names[i]; print " peer | ratio |"
      printf "|---:|---:|"; for (i = 1; i <= n; ++i) printf "---:|---:|"; print "---:|---:|"
    }
    { if (!($2 in seen)) { seen[$2] = 1; order[++sizes] = $2 } values[$1 " " $2] = values[$1 " " $2] " " $3 }
    END { for (s = 1; s <= sizes; ++s) {
      size = order[s]; runs = values["muster " size]; own = median(runs)
      printf "| %s | %.2f |", (size >= 2^20 ? size / 2^20 " MiB" : size / 2^10 " KiB"), own
      for (i = 1; i <= n; ++i) { other = values[names[i] " " size]; printf " %.2f | %.2f |", median(other), ratio(runs, other) }
      if (size in peer) printf " %g | %.2f |\n", peer[size], own / peer[size]; else print " | |"
    } }' "$results"
}

round_trip() { # what, links of muster, substrate, poll of muster, of the loop, prefix of both commands
  local turn
  : >"$results"
  for ((turn = 0; turn < turns; ++turn)); do
    $6 "$bin/cli/muster" -o name bench sync --transport "$2" --poll "$4" --sizes 4K --rounds 1 | awk '{ print "muster", $3 }' >>"$results"
    $6 "$bin/tests/bench/bare_loop" --substrate="$3" --bytes=4096 --tensors=64 --steps=100 --rounds=1 --poll="$5" | awk '{ print "bare", $2 }' >>"$results"
  done
  awk -v what="$1" "$medians"'
    { values[$1] = values[$1] " " $2 }
    END { printf "| %s | %.2f us | %.2f us | %.2f |\n", what, median(values["muster"]), median(values["bare"]), ratio(values["muster"], values["bare"]) }' "$results"
}

if [ $what = round-trip ]; then
  echo "| 4 KiB push -> sum -> apply -> value, medians of $turns turns | Muster | bare loop | ratio |"
  echo "|---|---:|---:|---:|"
  round_trip "shared memory, both poll" shm shm always true ''
  round_trip "shared memory, both sleep" shm shm never false ''
  round_trip "shared memory, all on one core" shm shm auto false 'taskset -c 0'
  round_trip "TCP, both poll" ucx tcp always true ''
  round_trip "TCP, both sleep" ucx tcp never false ''
  round_trip "TCP, all on one core" ucx tcp auto false 'taskset -c 0'
  exit
fi
for count in ${members//,/ }; do
  poll=auto bare_poll=true
  if [ "$count" -gt 1 ]; then bare_poll=false; fi
  for link in ${links//,/ }; do
    case $link in
      shm) goodput shm shm "shm ucx-shm" "$count" $poll $bare_poll ;;
      tcp) goodput tcp ucx "tcp ucx-tcp" "$count" $poll $bare_poll ;;
      *) echo "${0##*/}: --links: unknown '$link'; there are shm and tcp" >&2; exit 64 ;;
    esac
  done
done
