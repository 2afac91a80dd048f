#!/bin/bash
# Collects programs with every shared library they need, C library and loader included, into one folder that runs on a
# machine without Debian's packages. A GPU's driver and CUDA's libraries, which programs load when they first need them,
# are that machine's own.
#
#   tools/bundle.sh DEST PROGRAM...        then, anywhere: DEST/PROGRAM [arguments]
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,6s/^# \?//p' "$0" >&2; exit 2; }
destination=$1
shift
mkdir -p "$destination/lib"
# The driver asks for these parts of the C library by name; they must be of the same version as the rest.
cp -Lu /lib/x86_64-linux-gnu/{libdl.so.2,librt.so.1,libpthread.so.0} "$destination/lib/"
for program in "$@"; do
  name=$(basename "$program")
  cp -L "$program" "$destination/lib/$name.bin"
  ldd "$program" | awk '/=> \//{print $3} /^[[:space:]]*\/.*ld-linux/{print $1}' |
    while read -r library; do cp -Lu "$library" "$destination/lib/"; done
  # UCX loads its transports at run time, so ldd does not see them.
  cp -rLu /usr/lib/x86_64-linux-gnu/ucx "$destination/lib/" 2>/dev/null || true
  cat >"$destination/$name" <<'RUN'
#!/bin/bash
lib=$(dirname "$(realpath "$0")")/lib
export UCX_MODULE_DIR=${UCX_MODULE_DIR:-$lib/ucx}
exec "$lib/ld-linux-x86-64.so.2" --library-path "$lib:${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64:/usr/local/nvidia/lib64" "$lib/$(basename "$0").bin" "$@"
RUN
  chmod +x "$destination/$name"
done
