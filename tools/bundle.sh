#!/bin/bash
# Collects programs, stripped, with every shared library they need, C library and loader included and each once, into one
# folder that runs on a machine without Debian's packages. A GPU's driver, CUDA's libraries and UCX (for RDMA), which
# programs load when they first need them, are that machine's own.
#
#   tools/bundle.sh DEST [NAME=]PROGRAM...        then, anywhere: DEST/NAME [arguments]
set -euo pipefail
umask 022 # others run it
[ $# -ge 2 ] || { sed -n '2,6s/^# \?//p' "$0" >&2; exit 2; }
destination=$1
shift
mkdir -p "$destination/lib"
add_library() { [ -e "$destination/lib/$(basename "$1")" ] || { cp -L "$1" "$destination/lib/" && chmod u+w "$destination/lib/$(basename "$1")"; }; }

# What started a program finds it again by argv[0] (lib/program/program_path.h): /proc/self/exe is the loader.
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
# The driver asks for these parts of the C library by name; they must be of the same version as the rest.
for library in libdl.so.2 librt.so.1 libpthread.so.0; do add_library "/lib/x86_64-linux-gnu/$library"; done
