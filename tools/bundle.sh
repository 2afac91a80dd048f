#!/bin/bash
# Collects stripped programs and every shared library that they need, with the C library and the loader, into one folder. It
# runs on a machine without Debian's packages. A GPU's driver, CUDA's libraries and UCX (for RDMA) are not in it: programs
# load them from that machine when they first need them.
#
#   tools/bundle.sh DEST [NAME=]PROGRAM...        then, anywhere: DEST/NAME [arguments]
set -euo pipefail
umask 022 # other users run the programs
[ $# -ge 2 ] || { sed -n '2,6s/^# \?//p' "$0" >&2; exit 2; }
destination=$1
shift
mkdir -p "$destination/lib"
add_library() { [ -e "$destination/lib/$(basename "$1")" ] || { cp -L "$1" "$destination/lib/" && chmod u+w "$destination/lib/$(basename "$1")"; }; }

# A program finds its own path in argv[0] (lib/program/program_path.h), because /proc/self/exe is the loader.
cat >"$destination/lib/run" <<'RUN'
#!/bin/sh
program=$(realpath "$0")
folder=${program%/*}
exec "$folder/lib/ld-linux-x86-64.so.2" --argv0 "$program" \
  --library-path "$folder/lib:${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64:/usr/local/nvidia/lib64:/usr/lib64" \
  "$folder/lib/${program##*/}.bin" "$@"
RUN

for argument in "$@"; do
  program=${argument#*=}
  name=$(basename "${argument%%=*}")
  strip --strip-debug -o "$destination/lib/$name.bin" "$(realpath "$program")"
  chmod 755 "$destination/lib/$name.bin"
  missing=$(ldd "$program" | grep 'not found' || true)
  [ -z "$missing" ] || { echo "bundle: $program needs what is not here: $missing" >&2; exit 1; }
  ldd "$program" | awk '/=> \//{print $3} /^[[:space:]]*\/.*ld-linux/{print $1}' |
    while read -r library; do add_library "$library"; done
  cp "$destination/lib/run" "$destination/$name"
  chmod 755 "$destination/$name"
done
rm "$destination/lib/run"
# The GPU's driver loads these parts of the C library by name. They must have the version of the bundled C library.
for library in libdl.so.2 librt.so.1 libpthread.so.0; do add_library "/lib/x86_64-linux-gnu/$library"; done
