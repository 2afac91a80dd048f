#!/bin/bash
# Makes the file of gpu_check from the built programs: tools/gpu_check.sh, followed by a compressed archive.
#
#   tools/gpu_check/assemble.sh OUT BYTES_MAX gpu_check.sh bundle.sh NAME=PROGRAM... -- FILE...
set -euo pipefail
out=$1 bytes_max=$2 script=$3 bundle=$4
shift 4
programs=()
while [ "$1" != -- ]; do programs+=("$1"); shift; done
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$bundle" "$folder" "${programs[@]}"
cp -L "$@" "$folder/"
# Python's xz is available wherever the file can be used. The window is large, so that parts that programs share are stored
# once. The same input makes the same file.
lines=$(wc -l <"$script")
{
  sed "s/^payload_line=0 .*/payload_line=$((lines + 1))/" "$script"
  tar -c --sort=name --owner=0 --group=0 --mtime=@0 -C "$folder" . | python3 -c '
import lzma, shutil, sys
with lzma.open(sys.stdout.buffer, "wb", filters=[{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 256 << 20}]) as file:
    shutil.copyfileobj(sys.stdin.buffer, file)'
} >"$out"
bytes=$(stat -c %s "$out")
if [ "$bytes" -gt "$bytes_max" ]; then
  echo "gpu_check: the file has $bytes bytes, more than the $bytes_max that it may have; the largest parts:" >&2
  (cd "$folder" && du -ab --apparent-size . | sort -rn | sed -n '2,12p') >&2
  rm "$out"
  exit 1
fi
chmod 755 "$out"
