#!/bin/bash
# Creates a job with grpcurl and watches it until it ends. Exits with 0 if the job has succeeded.
#
#   watch_job.sh HOST:PORT [OPTION OF GRPCURL...]
#   watch_job.sh 127.0.0.1:7070 -plaintext
#   watch_job.sh HOST:7070 -cacert ca.crt -H "authorization: Bearer $(cat TOKEN_FILE)"
#   watch_job.sh HOST:7070 -cacert ca.crt -cert tls.crt -key tls.key
set -euo pipefail
server=$1
options=("${@:2}")
call() { grpcurl "${options[@]}" -d "$2" "$server" "muster.v1.JobService/$1"; }

# The server describes the fields of a job.
grpcurl "${options[@]}" "$server" describe muster.v1.JobSpec

# With the request id, a retry returns the job that an earlier attempt has created.
job=$(call CreateJob "$(cat <<JSON
{
  "request_id": "$(cat /proc/sys/kernel/random/uuid)",
  "spec": {
    "name": "linear",
    "model": {"zoo": {"name": "linear"}},
    "data": {"linear": {"slope": 3, "intercept": -1, "samples": 4096}, "batch_size": 64},
    "training": {"epochs": 10, "optimizer": {"sgd": {"learning_rate": 0.1}}},
    "resources": {"workers": {"min": 1, "max": 1}, "ps": 1}
  }
}
JSON
)" | sed -n 's/^  "name": "\(.*\)",$/\1/p')
echo "created $job"

# Prints the job at every change and about once a second, until the job has ended.
call WatchJob "{\"name\": \"$job\"}"

call GetJob "{\"name\": \"$job\"}" | grep -q '^  "state": "SUCCEEDED"'
