#!/bin/bash
# Makes the root file system of an image: one stripped program, the libraries that it loads, and its user. It has no shell.
#
#   tools/image_root.sh DEST NAME=PROGRAM [--rdma]      then DEST/usr/bin/NAME
#
# --rdma adds UCX and the drivers of RDMA cards. usr/share/muster/packages.tsv lists the Debian packages that the libraries
# come from, with their versions. usr/share/doc has their licences. sbom.spdx.json beside the list is the bill of materials
# (tools/sbom.py).
set -euo pipefail
umask 022 # the user that runs the image must be able to read it
[ $# -ge 2 ] || { sed -n '2,8s/^# \?//p' "$0" >&2; exit 2; }
root=$1 name=${2%%=*} program=$(realpath "${2#*=}") rdma=${3:-}
here=$(cd "$(dirname "$0")/.." && pwd)
system=/usr/lib/x86_64-linux-gnu
mkdir -p "$root"/{usr/bin,etc,tmp,lib64,usr/share/muster,usr/share/doc/muster} "$root$system"
chmod 1777 "$root/tmp"
ln -sfn usr/lib "$root/lib"

libraries=() # their paths in Debian's packages
needed_by() { ldd "$1" | awk '/=> \//{print $3} /^[[:space:]]*\/.*ld-linux/{print $1}'; }
add() { # adds the libraries that a file loads
  local library missing
  missing=$(ldd "$1" | grep 'not found' || true)
  [ -z "$missing" ] || { echo "image_root: $1 needs what is not here: $missing" >&2; exit 1; }
  for library in $(needed_by "$1"); do
    [ -e "$root$system/$(basename "$library")" ] || { cp -L "$library" "$root$system/" && libraries+=("$(realpath "$library")"); }
  done
}

strip --strip-debug -o "$root/usr/bin/$name" "$program"
chmod 755 "$root/usr/bin/$name"
add "$program"
if [ "$rdma" = --rdma ]; then
  for library in "$system"/libucp.so.0 "$system"/ucx/*.so* "$system"/libibverbs/*.so; do
    [ -e "$library" ] || continue
    mkdir -p "$root$(dirname "$library")"
    cp -a "$library" "$root$library"
    [ -L "$library" ] || libraries+=("$library")
    cp -L "$(realpath "$library")" "$root$(dirname "$library")/"
    add "$library"
  done
  [ -e "$root$system/libucp.so.0" ] || { echo "image_root: --rdma: UCX is not installed here (apt-get install libucx0)" >&2; exit 1; }
  cp -r /etc/libibverbs.d "$root/etc/" 2>/dev/null || true
fi
ln -sfn "..$system/ld-linux-x86-64.so.2" "$root/lib64/ld-linux-x86-64.so.2"

# Kubernetes runs the program as this user. Names of hosts come from /etc/hosts, then from DNS.
echo "muster:x:65532:65532:Muster:/tmp:/usr/sbin/nologin" >"$root/etc/passwd"
echo "muster:x:65532:" >"$root/etc/group"
echo "hosts: files dns" >"$root/etc/nsswitch.conf"
install -m 644 "$here/LICENSE" "$root/usr/share/doc/muster/copyright"

# Some of Debian's packages list a file with /usr, others without it, because /lib was merged into /usr/lib.
packages=$({ dpkg-query -S "${libraries[@]}" "${libraries[@]#/usr}" 2>/dev/null || true; } | cut -d: -f1 | sort -u)
{ printf 'package\tversion\n'
  [ -z "$packages" ] || dpkg-query -W -f '${Package}\t${Version}\n' $packages | sort -u
} >"$root/usr/share/muster/packages.tsv"
for package in $packages; do
  mkdir -p "$root/usr/share/doc/$package" && cp -L "/usr/share/doc/$package/copyright" "$root/usr/share/doc/$package/"
done
"$here/tools/sbom.py" "$root" "$name=$program"
