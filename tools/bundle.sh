#!/bin/bash
# Collects programs with every shared library they need, C library and loader included, into one folder that runs on a
# machine without Debian's packages. CUDA's own libraries are left out: the machine with the GPU has its own.
#
#   tools/bundle.sh DEST PROGRAM...        then, anywhere: DEST/PROGRAM [arguments]
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,5s/^# \?//p' "$0" >&2; exit 2; }
destination=$1
shift
mkdir -p "$destination/lib"
for program in "$@"; do
  name=$(basename "$program")
  cp -L "$program" "$destination/lib/$name.bin"
  ldd "$program" | awk '/=> \//{print $3} /^[[:space:]]*\/.*ld-linux/{print $1}' | grep -vE '/lib(cuda|cudart|cublas|cublasLt|nccl|cudnn)[.-]' |
    while read -r library; do cp -Lu "$library" "$destination/lib/"; done
  # UCX loads its transports at run time, so ldd does not see them.
  cp -rLu /usr/lib/x86_64-linux-gnu/ucx "$destination/lib/" 2>/dev/null || true
  cat >"$destination/$name" <<'RUN'
#!/bin/bash
lib=$(dirname "$(realpath "$0")")/lib
export UCX_MODULE_DIR=${UCX_MODULE_DIR:-$lib/ucx}
exec "$lib/ld-linux-x86-64.so.2" --library-path "$lib:/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}" "$lib/$(basename "$0").bin" "$@"
RUN
  chmod +x "$destination/$name"
done
