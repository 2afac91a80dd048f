# Sourced after network_namespaces.sh, or by a script that defines its functions itself (overhead.sh). Runs a coordinator, ps and
# workers on separate hosts, and measures a training job there.
#
#   start_members WORKERS SEPARATE COLOCATED   hosts w0, w1, ... (also with a ps if COLOCATED is yes), p0, p1, ...
#   stop_members
#   steady_step JOBFILE STEPS   runs the job, cancels it, and prints the mean seconds of at least STEPS steps of worker w0 in steady state
#
# Uses: bin (folder of the built programs), work (a folder), worker_flags and ps_flags (arrays), worker_threads (default 1).

coordinator_port=7070
coordinator_metrics_port=9400
ps_metrics_port=9401
worker_metrics_port=9402

muster() { on_host coordinator "$bin/cli/muster" --server "127.0.0.1:$coordinator_port" "$@"; }

start_coordinator() {
  add_host coordinator ""
  start_on coordinator "$work/coordinator.log" "$bin/services/coordinator/main" --insecure --listen=0.0.0.0:$coordinator_port \
    --state_dir="$work/state" --metrics=127.0.0.1:$coordinator_metrics_port
}

start_members() {
  local workers=$1 separate=$2 colocated=$3 i coordinator
  coordinator=$(address_of coordinator):$coordinator_port
  for ((i = 0; i < workers; ++i)); do
    start_on "w$i" "$work/worker-$i.log" "$bin/services/worker/main" --insecure --coordinator="$coordinator" --name="worker-$i" \
      --threads_per_device="${worker_threads:-1}" --metrics=127.0.0.1:$worker_metrics_port "${worker_flags[@]}"
    [ "$colocated" = no ] || start_on "w$i" "$work/ps-w$i.log" "$bin/services/ps/main" --insecure --coordinator="$coordinator" \
      --name="ps-w$i" --threads=1 --metrics=127.0.0.1:$ps_metrics_port "${ps_flags[@]}"
  done
  for ((i = 0; i < separate; ++i)); do
    start_on "p$i" "$work/ps-$i.log" "$bin/services/ps/main" --insecure --coordinator="$coordinator" --name="ps-$i" --threads=1 \
      --metrics=127.0.0.1:$ps_metrics_port "${ps_flags[@]}"
  done
  local members=$((workers + separate)) tries=0
  [ "$colocated" = no ] || members=$((members + workers))
  while [ "$(muster -o name members 2>/dev/null | wc -l)" -lt $members ]; do
    tries=$((tries + 1))
    [ $tries -lt 150 ] || { tail -n 5 "$work"/*.log >&2; die "only $(muster -o name members | wc -l) of $members members came up"; }
    sleep 0.2
  done
}

stop_members() {
  local host
  for host in "${network_hosts[@]}"; do
    [ "$host" = coordinator ] || stop_on "$host"
  done
  while [ "$(muster -o name members 2>/dev/null | wc -l)" -gt 0 ]; do sleep 0.2; done
}

# Prints /metrics of a member on a host, without any tool.
metrics_of() {
  on_host "$1" bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1" && printf "GET /metrics HTTP/1.0\r\n\r\n" >&3 && cat <&3' sh "$2"
}

# Prints "steps seconds", the totals of a worker since its start.
worker_totals() {
  metrics_of "$1" $worker_metrics_port 2>/dev/null | awk '
    /^muster_worker_step_duration_seconds_sum/ { sum = $2 }
    /^muster_worker_step_duration_seconds_count/ { count = $2 }
    END { print count + 0, sum + 0 }'
}

steady_step() {
  local job_file=$1 steps=$2 job begin first='' last tries=0
  last=$(worker_totals w0)
  begin=${last%% *}
  job=$(muster -o name submit "$job_file") || die "the job was refused"
  # The first two steps fill buffers and open TCP windows.
  while :; do
    last=$(worker_totals w0)
    [ -n "$first" ] || [ "${last%% *}" -lt $((begin + 2)) ] || first=$last
    [ -z "$first" ] || [ "${last%% *}" -lt $((${first%% *} + steps)) ] || break
    tries=$((tries + 1))
    [ $tries -lt 6000 ] || die "$job makes no steps"
    if [ $((tries % 50)) = 0 ]; then
      if muster get "$job" 2>/dev/null | grep -qE 'FAILED|CANCELLED'; then
        muster describe "$job" | tail -n 5 >&2
        die "$job failed"
      fi
    fi
    sleep 0.1
  done
  muster cancel "$job" >/dev/null 2>&1 || true
  while ! muster get "$job" 2>/dev/null | grep -qE 'CANCELLED|FAILED|SUCCEEDED'; do sleep 0.1; done
  echo "$first $last" | awk '{ printf "%.4f\n", ($4 - $2) / ($3 - $1) }'
}
