#!/bin/bash
# Makes the certificates of this component in this folder, and admin/ for administrators (muster --tls=admin). The authority is in
# ca/, which is made if it is missing; keep it in a safe place. To renew the certificates, run it and apply again.
#
#   k8s/components/tls-static/make.sh [--lifetime 90d]
#
# MUSTER names another muster than the one in PATH.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")"
muster=${MUSTER:-muster}
umask 077
[ -e ca/ca.key ] || "$muster" certs init --dir ca >/dev/null
hosts=(muster-coordinator muster-coordinator.muster muster-coordinator.muster.svc muster-coordinator.muster.svc.cluster.local localhost 127.0.0.1)
# The names of the three coordinators of the overlay ha, to which members connect.
for i in 0 1 2; do hosts+=("muster-coordinator-$i.muster-coordinator-pods"); done
issue() { # role, more arguments
  rm -rf "$1.new"
  "$muster" certs issue --ca ca --out "$1.new" "$@" >/dev/null
  mkdir -p "$1"
  mv "$1.new"/* "$1"
  rmdir "$1.new"
  echo "$1: $("$muster" certs show "$1" | sed -n 's/^Ends: *//p')"
}
issue coordinator "${hosts[@]/#/--host=}" "$@"
issue ps "$@"
issue worker "$@"
issue admin operator "$@"
