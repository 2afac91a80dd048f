# Sourced by other scripts. Runs members of a cluster as processes of this machine, each in its own network namespace behind a
# network card of a chosen rate. Needs root, iproute2 and a kernel with tbf.
#
#   make_network            creates the switch that connects all hosts
#   add_host NAME RATE      creates a namespace with eth0 at 10.77.0.N, sending and receiving at RATE ("1gbit"; "" for no limit)
#   set_rate NAME RATE      changes the rate
#   on_host NAME COMMAND... runs a command in the namespace, with NAME as its host name
#   start_on NAME LOG COMMAND...  does this in the background
#   stop_on NAME            ends all processes of the namespace
#   address_of NAME         prints its IP address
#
# A second process waits for the end of the script, even by a signal, and removes all namespaces and processes.

network_prefix=mb$$
network_mtu=${network_mtu:-1500}
network_congestion_control=${network_congestion_control:-reno}
network_hosts=()

die() { echo "${0##*/}: $*" >&2; exit 69; }

require_network() {
  [ "$(id -u)" = 0 ] || die "needs root: it makes network namespaces (try sudo)"
  local tool
  for tool in ip tc unshare; do
    command -v $tool >/dev/null || die "needs $tool: apt-get install iproute2 util-linux"
  done
  ip netns add "$network_prefix-probe" 2>/dev/null || die "cannot make a network namespace here (a container without CAP_SYS_ADMIN?)"
  if ! ip netns exec "$network_prefix-probe" tc qdisc add dev lo root tbf rate 1mbit burst 16kb latency 50ms 2>/dev/null; then
    ip netns del "$network_prefix-probe"
    die "this kernel has no tbf (module sch_tbf)"
  fi
  ip netns del "$network_prefix-probe"
}

# Only our own processes can run in our namespaces, so it is safe to kill all of them.
remove_network() {
  local name signal
  for signal in TERM KILL; do
    for name in $(ip netns list | awk -v p="^$network_prefix-" '$1 ~ p { print $1 }'); do
      ip netns pids "$name" | xargs -r kill -$signal 2>/dev/null
    done
    [ $signal = KILL ] || sleep 0.5
  done
  for name in $(ip netns list | awk -v p="^$network_prefix-" '$1 ~ p { print $1 }'); do ip netns del "$name"; done
  return 0
}

make_network() {
  require_network
  # The cleaner reads a pipe whose other end only this script holds. The pipe closes when the script ends, even by SIGKILL.
  exec {network_guard}> >(trap '' INT TERM HUP; cat >/dev/null; remove_network)
  network_cleaner=$!
  trap 'exec {network_guard}>&-; wait $network_cleaner' EXIT
  trap 'exit 130' INT TERM HUP
  ip netns add "$network_prefix-switch"
  ip -n "$network_prefix-switch" link add bridge type bridge
  ip -n "$network_prefix-switch" link set bridge up
}

namespace_of() { echo "$network_prefix-$1"; }

address_of() {
  local i
  for i in "${!network_hosts[@]}"; do
    if [ "${network_hosts[$i]}" = "$1" ]; then echo "10.77.0.$((i + 1))"; fi
  done
}

add_host() {
  local name=$1 rate=$2 namespace switch=$network_prefix-switch
  namespace=$(namespace_of "$name")
  network_hosts+=("$name")
  ip netns add "$namespace"
  ip -n "$namespace" link set lo up
  ip -n "$switch" link add "to-$name" mtu "$network_mtu" type veth peer name eth0 mtu "$network_mtu" netns "$namespace"
  ip -n "$switch" link set "to-$name" master bridge up
  ip -n "$namespace" addr add "$(address_of "$name")/24" dev eth0
  ip -n "$namespace" link set eth0 up
  # A namespace may choose its congestion control on every kernel. Flows of bbr share a card very unevenly.
  ip netns exec "$namespace" sh -c 'echo "$0" > /proc/sys/net/ipv4/tcp_congestion_control' "$network_congestion_control"
  set_rate "$name" "$rate"
}

# Limits both directions, like a full-duplex card: sending at the host's end, receiving at the switch's end.
set_rate() {
  local name=$1 rate=$2
  shape "$(namespace_of "$name")" eth0 "$rate"
  shape "$network_prefix-switch" "to-$name" "$rate"
}

shape() {
  local namespace=$1 device=$2 rate=$3
  ip netns exec "$namespace" tc qdisc del dev "$device" root 2>/dev/null || true
  [ -z "$rate" ] || ip netns exec "$namespace" tc qdisc add dev "$device" root tbf rate "$rate" burst 256kb latency 50ms
}

on_host() {
  local name=$1
  shift
  ip netns exec "$(namespace_of "$name")" unshare --uts sh -c 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"' "$name" \
    "$@" {network_guard}>&-
}

start_on() {
  local name=$1 log=$2
  shift 2
  (exec {network_guard}>&-; on_host "$name" "$@") >"$log" 2>&1 &
}

stop_on() {
  local pids tries=0
  pids=$(ip netns pids "$(namespace_of "$1")")
  [ -n "$pids" ] || return 0
  kill $pids 2>/dev/null || true
  while [ -n "$(ip netns pids "$(namespace_of "$1")")" ]; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { ip netns pids "$(namespace_of "$1")" | xargs -r kill -9 2>/dev/null; }
    sleep 0.1
  done
}
