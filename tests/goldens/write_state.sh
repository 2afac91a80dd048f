#!/bin/bash
# Lets the programs of one version write what tests/old_state_test.cc takes over.
#   write_state.sh PROGRAMS OUT
#     PROGRAMS   folder with coordinator, ps, worker and muster
#     OUT        new folder; gets state/ (a finished, a suspended and a queued job) and end/ (the last
#                checkpoint of the suspended job), from 0.3.0 on also backup.muster and etcd.json
set -eu
programs=$(realpath "$1")
mkdir "$2" && cd "$2"  # state/ has a relative path in the store
mkdir state logs
etcd=127.0.0.1:23790
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

write_job() {  # name, steps, workers, steps between checkpoints
  cat >"$1.yaml" <<Y
name: $1
model: {zoo: {name: mlp, args: {inputs: 8, hidden: "6", classes: 3}}}
data: {synthetic: {samples: 32768}, batch_size: 16384, seed: 3}
training: {steps: $2, optimizer: {sgd: {learning_rate: 0.05, momentum: 0.9}}, seed: 7}
resources: {workers: {min: $3, max: $3}, ps: 1}
checkpoint: {every_steps: $4, keep_last: 2}
Y
}

start_coordinator() {  # state folder, further flags
  rm -f address
  "$programs/coordinator" --listen=127.0.0.1:0 --metrics=127.0.0.1:0 --state_dir="$1" --address_file=address "${@:2}" \
    >>logs/coordinator 2>&1 &
  coordinator=$!
  until [ -s address ]; do sleep 0.1; done
}

start_members() {
  "$programs/ps" --coordinator="$(cat address)" --name=ps-0 --threads=1 --metrics=127.0.0.1:0 >>logs/ps 2>&1 &
  ps=$!
  "$programs/worker" --coordinator="$(cat address)" --name=worker-0 --threads_per_device=1 --metrics=127.0.0.1:0 \
    >>logs/worker 2>&1 &
  worker=$!
}

stop() {
  for process; do
    kill "$process"
    wait "$process" || true
  done
}

muster() { "$programs/muster" --server "$(cat address)" "$@"; }

write_job finished 20 1 10
write_job suspended 300 1 20
write_job queued 20 3 10
start_coordinator ./state
start_members
muster submit finished.yaml
muster wait finished-1
muster submit suspended.yaml
until [ "$(wc -l 2>/dev/null <state/jobs/suspended-2/metrics.jsonl || echo 0)" -ge 20 ]; do sleep 0.02; done
muster suspend suspended-2 --wait
muster submit queued.yaml  # needs more workers than there are
if "$programs/coordinator" --help=restore | grep -q -e --restore; then
  muster admin backup backup.muster
fi
stop $worker $ps $coordinator

cp -a state after
start_coordinator ./after
start_members
muster resume suspended-2
muster wait suspended-2
stop $worker $ps $coordinator
mkdir end && mv after/jobs/suspended-2/checkpoints/step-00000300 end

if [ -e backup.muster ]; then
  etcd --data-dir etcd --listen-client-urls "http://$etcd" --advertise-client-urls "http://$etcd" \
    --listen-peer-urls http://127.0.0.1:23791 >logs/etcd 2>&1 &
  until curl -sf "http://$etcd/health" >/dev/null; do sleep 0.1; done
  cp -a state etcd_state && rm etcd_state/coordinator.db  # the identity of the folder stays
  "$programs/coordinator" --store="etcd://$etcd" --state_dir=etcd_state --restore=backup.muster
  start_coordinator ./etcd_state --store="etcd://$etcd"  # from here on this store is its own
  until muster list; do sleep 0.1; done
  stop $coordinator
  curl -sf "http://$etcd/v3/kv/range" -d '{"key": "AA==", "range_end": "AA=="}' >etcd.json  # all keys
fi
rm -rf after etcd etcd_state logs address ./*.yaml state/*.lock
