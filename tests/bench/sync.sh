#!/bin/bash
# Measures gradients to ps and values back, without computation. Runs `muster bench sync` (real ps and coordinator, workers that only
# push) in turns with bare loops, which do the same work on the same substrate with one thread per side.
#
#   tests/bench/sync.sh [--turns 9] [--members 1,2] [--links shm,tcp] [--sizes 4K,64K,256K,1M,4M,16M,64M]
#   tests/bench/sync.sh --round-trip [--turns 9]     one 4 KiB message at a time: polling, sleeping, all on one core
#
# The host may move a virtual machine's processors, so they share a cache at one time and not at another: a round trip of 64 bytes takes
# 0.22 us or 1.1 us. The script measures this round trip before and after every run. If one took twice as long as the other or more, the
# run is repeated, at most twice. A run is "near" if both took less than twice the fastest of all, and "far" if neither did; other runs
# are dropped. Medians of near runs are compared with near ones, far with far.
#
# Goodput is payload in one direction in Gbit/s, all workers together. "peer" is the best of ps-lite and BytePS on such a machine (Unix
# sockets; TCP); they apply no optimizer. Muster waits as by default (--poll auto). The loops poll with one worker and one ps, and sleep
# with two of each, because two cores cannot run four pollers. A message has at most 4 MiB on both sides; larger tensors are split.
#
# Needs `bazel build //:coordinator //:ps //:muster //tests/bench:bare_loop`.
set -euo pipefail
cd "$(dirname "$0")/../.."

turns=9 members=1,2 links=shm,tcp sizes=4K,64K,256K,1M,4M,16M,64M what=goodput
while [ $# -gt 0 ]; do
  case $1 in
    --turns) turns=$2; shift ;;
    --members) members=$2; shift ;;
    --links) links=$2; shift ;;
    --sizes) sizes=$2; shift ;;
    --round-trip) what=round-trip ;;
    *) sed -n "5,6p" "$0" >&2; exit 64 ;;
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

# Prints the message size, messages in flight and steps of a round that `muster bench sync` chooses.
shape_of() { # bytes
  awk -v size="$1" 'BEGIN {
    tensors = int(8 * 2^20 / size); if (tensors < 2) tensors = 2; if (tensors > 64) tensors = 64
    message = size < 4 * 2^20 ? size : 4 * 2^20
    round = size * 16384; if (round < 64 * 2^20) round = 64 * 2^20; if (round > 256 * 2^20) round = 256 * 2^20
    steps = int(round / (size * tensors)); if (steps < 2) steps = 2
    print message, tensors * size / message, steps }'
}

# Prints the round trip of 64 bytes between two processors, in microseconds.
distance() { "$bin/tests/bench/bare_loop" --substrate=shm --bytes=64 --tensors=1 --steps=2000 --rounds=1 | cut -d ' ' -f 2; }

# Appends "program size figure distance-before distance-after" to the results. The command prints the figure.
measure() { # who, size, command...
  local who=$1 size=$2 before figure after attempt
  shift 2
  for attempt in 1 2 3; do
    before=$(distance)
    figure=$("$@")
    after=$(distance)
    if awk -v a="$before" -v b="$after" 'BEGIN { exit !(a < 2 * b && b < 2 * a) }'; then break; fi
  done
  echo "$who $size $figure $before $after" >>"$results"
}

muster_goodput() { # transport, members, poll, size
  "$bin/cli/muster" -o name bench sync --workers "$2" --ps "$2" --transport "$1" --poll "$3" --sizes "$4" --rounds 9 | cut -d ' ' -f 2
}
bare_goodput() { # substrate, members, poll, size
  local message tensors steps
  read -r message tensors steps <<<"$(shape_of "$(bytes_of "$4")")"
  "$bin/tests/bench/bare_loop" --substrate="$1" --workers="$2" --servers="$2" --bytes="$message" --tensors="$tensors" --steps="$steps" \
    --rounds=9 --poll="$3" | cut -d ' ' -f 1
}
muster_round_trip() { # link, poll, prefix
  $3 "$bin/cli/muster" -o name bench sync --transport "$1" --poll "$2" --sizes 4K --rounds 1 | cut -d ' ' -f 3
}
bare_round_trip() { # substrate, poll, prefix
  $3 "$bin/tests/bench/bare_loop" --substrate="$1" --bytes=4096 --tensors=64 --steps=100 --rounds=1 --poll="$2" | cut -d ' ' -f 2
}

# figures["near" or "far", who, size] is a list separated by spaces. Sizes are in the order of their first run.
figures='
  function median(numbers,   n, list, i, j, t) {
    n = split(numbers, list, " ")
    for (i = 2; i <= n; ++i) for (j = i; j > 1 && list[j] + 0 < list[j - 1] + 0; --j) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
    return list[int((n + 1) / 2)] + 0
  }
  function count(numbers,   list) { return split(numbers, list, " ") }
  NR == FNR { if (!fastest || $4 < fastest) fastest = $4; if ($5 < fastest) fastest = $5; next }
  {
    if (!(($2, "seen") in seen)) { seen[$2, "seen"] = 1; order[++sizes] = $2 }
    is_near = ($4 < 2 * fastest) + ($5 < 2 * fastest)
    if (is_near == 1) next
    where = is_near ? "near" : "far"; ++runs[where]
    figures[where, $1, $2] = figures[where, $1, $2] " " $3
  }'

goodput() { # link, transport of muster, substrates, members, poll of muster, of the loops
  local turn substrate size
  : >"$results"
  for ((turn = 0; turn < turns; ++turn)); do
    for size in ${sizes//,/ }; do
      measure muster "$size" muster_goodput "$2" "$4" "$5" "$size"
      for substrate in $3; do measure "$substrate" "$size" bare_goodput "$substrate" "$4" "$6" "$size"; done
    done
  done
  awk -v substrates="$3" -v link="$1" -v title="$4 workers, $4 ps, $1, poll $5: Gbit/s, medians (runs)" "$figures"'
    function cell(where, who, size) {
      return count(figures[where, who, size]) ? sprintf("%.2f (%d)", median(figures[where, who, size]), count(figures[where, who, size])) : ""
    }
    function table(where,   i, s, size, own, other) {
      if (!runs[where]) return
      printf "\n%s, processors %s\n| size | Muster |", title, where
      for (i = 1; i <= n; ++i) printf " bare %s | ratio |", names[i]
      printf " peer | ratio |\n|---:|---:|"; for (i = 1; i <= n; ++i) printf "---:|---:|"; print "---:|---:|"
      for (s = 1; s <= sizes; ++s) {
        size = order[s]; own = median(figures[where, "muster", size])
        printf "| %siB | %s |", substr(size, 1, length(size) - 1) " " substr(size, length(size)), cell(where, "muster", size)
        for (i = 1; i <= n; ++i) {
          other = median(figures[where, names[i], size])
          printf " %s | %s |", cell(where, names[i], size), own && other ? sprintf("%.2f", own / other) : ""
        }
        if (own && size in peer) printf " %g | %.2f |\n", peer[size], own / peer[size]; else print " | |"
      }
    }
    BEGIN {
      n = split(substrates, names, " ")
      split(link == "shm" ? "3.4 10 13 21 21 20 9" : "2 7 8 10 13 16 7", best, " ")
      split("4K 64K 256K 1M 4M 16M 64M", at, " ")
      for (i in at) peer[at[i]] = best[i]
    }
    END { table("near"); table("far") }' "$results" "$results"
}

round_trip() { # what, link of muster, substrate, poll of muster, of the loop, prefix of both commands
  local turn
  : >"$results"
  for ((turn = 0; turn < turns; ++turn)); do
    measure muster 4K muster_round_trip "$2" "$4" "$6"
    measure bare 4K bare_round_trip "$3" "$5" "$6"
  done
  awk -v what="$1" "$figures"'
    function row(where,   own, other) {
      own = figures[where, "muster", "4K"]; other = figures[where, "bare", "4K"]
      if (!count(own) || !count(other)) return
      printf "| %s | %s | %.2f us (%d) | %.2f us (%d) | %.2f |\n", what, where, median(own), count(own), median(other), count(other), median(own) / median(other)
    }
    END { row("near"); row("far") }' "$results" "$results"
}

if [ $what = round-trip ]; then
  echo "| 4 KiB push -> sum -> apply -> value, medians (runs) | processors | Muster | bare loop | ratio |"
  echo "|---|---|---:|---:|---:|"
  round_trip "shared memory, both poll" shm shm always true ''
  round_trip "shared memory, both sleep" shm shm never false ''
  round_trip "shared memory, all on one core" shm shm auto false 'taskset -c 0'
  round_trip "TCP, both poll" tcp tcp always true ''
  round_trip "TCP, both sleep" tcp tcp never false ''
  round_trip "TCP, all on one core" tcp tcp auto false 'taskset -c 0'
  exit
fi
for count in ${members//,/ }; do
  poll=auto bare_poll=true
  if [ "$count" -gt 1 ]; then bare_poll=false; fi
  for link in ${links//,/ }; do
    case $link in
      shm) goodput shm shm "shm ucx-shm" "$count" $poll $bare_poll ;;
      tcp) goodput tcp tcp "tcp ucx-tcp" "$count" $poll $bare_poll ;;
      *) echo "${0##*/}: --links: unknown '$link'; there are shm and tcp" >&2; exit 64 ;;
    esac
  done
done
