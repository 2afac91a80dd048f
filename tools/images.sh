#!/bin/bash
# Builds the container images with the first of docker, podman and buildah that is installed.
#
#   tools/images.sh [OPTIONS] [TARGET...]      targets: coordinator ps worker cli ps-rdma worker-cuda; default: the first four
#
#   --programs DIR     takes the programs from DIR, a bazel-bin built on Debian 12, instead of building them in a container
#   --base IMAGE       Debian 12, to build in (default debian:12-slim); not used with --programs
#   --debootstrap      makes that base from Debian's packages, without a registry: needs root, debootstrap and buildah
#   --prefix PREFIX    before the names: registry.example.com/team/
#   --tool TOOL        docker, podman or buildah
#   --save DIR         also writes NAME.tar.gz there, for docker load or ctr images import, and prints the sizes; with --programs
#                      NAME.spdx.json as well, the bill of materials, which is in every image
#   --roots BIN DEST   makes no image: only the roots of all of them, from the programs in BIN
set -euo pipefail
usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d' >&2; exit 2; }
cd "$(dirname "$(realpath "$0")")/.."
say() { echo "images: $*" >&2; }

roots() { # bin, destination
  # All builds of a commit have the same date.
  SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
  export SOURCE_DATE_EPOCH
  tools/image_root.sh "$2/coordinator" muster-coordinator="$1/services/coordinator/main"
  tools/image_root.sh "$2/ps" muster-ps="$1/services/ps/main"
  tools/image_root.sh "$2/worker" muster-worker="$1/services/worker/main"
  tools/image_root.sh "$2/cli" muster="$1/cli/muster"
  if [ -e /usr/lib/x86_64-linux-gnu/libucp.so.0 ]; then
    tools/image_root.sh "$2/ps-rdma" muster-ps="$1/services/ps/main" --rdma
  else
    say "no root of ps-rdma: UCX is not installed here (apt-get install libucx0 ibverbs-providers)"
  fi
  # This root has its own loader and libraries, because the base image may not be Debian.
  tools/bundle.sh "$2/worker-cuda" muster-worker="$1/services/worker/main"
  # The document lists the same libraries as that of the image `worker`, and omits those of the base image.
  tools/sbom.py "$2/worker-cuda" muster-worker="$1/services/worker/main" --packages "$2/worker/usr/share/muster/packages.tsv" \
    --to "$2/worker-cuda/sbom.spdx.json"
}

# Prints a Dockerfile with only the stage of the target, whose context is the root of the image. A builder without BuildKit
# would run every stage before the target.
stage_of() { # target
  awk -v target="$1" '
    $1 == "FROM" { stages = 1; is_target = $NF == target }
    is_target || (!stages && $1 == "ARG")' Dockerfile | sed -E 's|^COPY --from=build /roots/[^ ]+|COPY .|'
}

programs='' base='' debootstrap='' prefix='' tool='' save=''
targets=()
while [ $# -gt 0 ]; do
  case $1 in
    --roots) [ $# -eq 3 ] || usage; roots "$2" "$3"; exit ;;
    --programs) programs=$(realpath "$2"); shift 2 ;;
    --base) base=$2; shift 2 ;;
    --debootstrap) debootstrap=1; shift ;;
    --prefix) prefix=$2; shift 2 ;;
    --tool) tool=$2; shift 2 ;;
    --save) save=$(realpath -m "$2"); shift 2 ;;
    -*) usage ;;
    *) targets+=("$1"); shift ;;
  esac
done
[ ${#targets[@]} -gt 0 ] || targets=(coordinator ps worker cli)
if [ -z "$tool" ]; then
  # A docker command without its daemon cannot build.
  for candidate in docker podman buildah; do
    if command -v $candidate >/dev/null && { [ $candidate != docker ] || docker info >/dev/null 2>&1; }; then tool=$candidate; break; fi
  done
  [ -n "$tool" ] || { say "none of docker (with its daemon), podman and buildah is here; Debian has podman and buildah"; exit 69; }
fi
version=$(cat VERSION)
commit=$(git describe --always --dirty --abbrev=12 --exclude '*' 2>/dev/null) || commit=unknown
work=$(mktemp -d "${TMPDIR:-/tmp}/muster-images.XXXXXX")
trap 'rm -rf "$work"' EXIT

if [ -n "$debootstrap" ] && [ -z "$programs" ]; then
  [ "$tool" = buildah ] || { say "--debootstrap goes with --tool buildah"; exit 2; }
  base=localhost/muster-debian:12
  if ! buildah inspect $base >/dev/null 2>&1; then
    say "making $base by debootstrap"
    debootstrap --variant=minbase bookworm "$work/debian" >"$work/log" 2>&1 || { tail -n 5 "$work/log" >&2; exit 1; }
    # The base uses this machine's package sources.
    cp -a /etc/apt/sources.list* /etc/apt/apt.conf.d "$work/debian/etc/apt/"
    rm -rf "$work/debian/var/cache/apt/archives" "$work/debian/var/lib/apt/lists"
    mkdir -p "$work/debian/var/cache/apt/archives/partial" "$work/debian/var/lib/apt/lists/partial"
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$work/debian" / >/dev/null
    buildah config --cmd bash "$container"
    buildah commit --quiet --rm "$container" $base >/dev/null
    rm -rf "$work/debian"
  fi
fi

if [ -n "$programs" ]; then
  say "taking the programs from $programs"
  roots "$programs" "$work/roots"
else
  # Only committed files, so that the stamped commit describes the programs.
  git clone --quiet . "$work/context"
fi
build=("$tool" build)
if [ "$tool" = buildah ]; then build=(buildah build --isolation "${BUILDAH_ISOLATION:-chroot}" --layers); fi
[ -z "$save" ] || mkdir -p "$save"
for target in "${targets[@]}"; do
  image=${prefix}muster-$target:$version
  say "building $image with $tool"
  if [ -n "$programs" ]; then
    [ -d "$work/roots/$target" ] || { say "$target: no root was made of it; --help lists the targets"; exit 69; }
    stage_of "$target" >"$work/Dockerfile"
    source=(--file "$work/Dockerfile" "$work/roots/$target")
  else
    source=(--build-arg "BASE=${base:-debian:12-slim}" "$work/context")
  fi
  "${build[@]}" --target "$target" --tag "$image" --build-arg VERSION="$version" --build-arg COMMIT="$commit" \
    "${source[@]}" >"$work/log" 2>&1 || { tail -n 30 "$work/log" >&2; exit 1; }
  [ -n "$save" ] || continue
  case $tool in
    buildah) buildah push --quiet "$image" "docker-archive:$work/image.tar:$image" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; } ;;
    *) $tool save -o "$work/image.tar" "$image" ;;
  esac
  gzip -c "$work/image.tar" >"$save/muster-$target.tar.gz"
  rm -f "$work/image.tar"
  # Without --programs the document is only inside the image.
  for sbom in "$work/roots/$target"/{usr/share/muster/,}sbom.spdx.json; do
    [ ! -e "$sbom" ] || cp "$sbom" "$save/muster-$target.spdx.json"
  done
  echo "$image $(stat -c %s "$save/muster-$target.tar.gz") bytes compressed"
done
