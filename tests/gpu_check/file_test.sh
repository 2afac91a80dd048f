#!/bin/bash
# Tests the file gpu_check.run as a user gets it: its size, its error without a GPU, stages with --rehearse on a CPU, and that it
# needs nothing that only builds of Muster need. Does not test a GPU.
set -uo pipefail
built=$PWD/tools/gpu_check.run
assemble=$PWD/tools/gpu_check/assemble.sh
sources=$PWD/tools
work=$(mktemp -d "${TEST_TMPDIR:-/tmp}/gpu_check_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }
# The file runs in another folder, under another name, with only PATH and TMPDIR in the environment.
mkdir "$work/user" "$work/user/tmp" && cd "$work/user" && cp -L "$built" check && chmod u+w check
python=$(PATH=/usr/bin:/bin command -v python3) || { echo "python3 is not here" >&2; exit 1; }
check() { env -i TMPDIR="$work/user/tmp" PATH="${python%/*}:/usr/bin:/bin" "$@" >out 2>err; }
has() { grep -qF -- "$1" out err || { fail "no '$1' in:"; cat out err >&2; }; }

echo "== size"
bytes=$(stat -c %s check)
echo "$bytes bytes"
[ "$bytes" -le $((40 << 20)) ] || fail "$bytes bytes are more than 40 MiB"
"$assemble" "$work/large" 1000000 "$sources/gpu_check.sh" "$sources/bundle.sh" true=/bin/true -- "$built" >out 2>err && fail "a file that is too large was made"
has "more than the 1000000 that it may have; the largest parts:"
has "./gpu_check.run"
[ ! -e "$work/large" ] || fail "the file that is too large was left"

echo "== usage"
check ./check; [ $? = 2 ] || fail "no command is no usage error"
check ./check pack x; [ $? = 1 ] || fail "a packed file packs itself"
has "packed already"
check ./check run nothing results; [ $? = 2 ] || fail "a stage that there is not"
head -c 3000000 check >damaged
check bash ./damaged run tests results; [ $? = 1 ] || fail "a file that was cut off runs"
has "copy it again"

echo "== no GPU"
if [ -e /dev/nvidiactl ]; then
  echo "not tested: there is one"
else
  for stage in tests all; do # each first unpacks the whole file
    check ./check run $stage results
    [ $? = 69 ] || fail "$stage: another exit code than 69"
    has "gpu_check: $stage: no GPU: "
  done
fi

echo "== rehearsal of every stage"
check ./check run tests results --rehearse || { fail tests; cat out err >&2; }
has "10 passed"
check ./check run job results --rehearse || { fail job; cat out err >&2; }
has "| toy GPT, 2 | "
has "| toy of images, 4 | "
check ./check run models gpt2 results --rehearse # without PyTorch it fails, but Muster's rows are there
grep -qE '^\| Muster \| deterministic, streamed \| [0-9.]+ \|' out || { fail models; cat out err >&2; }
grep -q '^| PyTorch | eager | ' out || fail "models: no row of PyTorch"
check ./check run ranks results --rehearse || { fail ranks; cat out err >&2; }
grep -qE '^\| 2 \| [0-9.]+ \|' out || fail "ranks: no row of two ranks"
check ./check run profile gpt2 results --rehearse
grep -qE '^\| SelfAttention \| 1 \|' out || { fail profile; cat out err >&2; }
for pattern in 'tests-*-tests.json' 'job-*-gpt2.json' 'models-gpt2-*-gpt2-muster-*.json' 'profile-gpt2-*-gpt2-muster.json' '*-logs.tar.gz' '*.md'; do
  compgen -G "results/$pattern" >/dev/null || fail "no results/$pattern"
done
if "$python" -c 'import json, glob; [json.load(open(path)) for path in glob.glob("results/*.json")]'; then :; else fail "a result is no JSON"; fi
env -i TMPDIR="$work/user/tmp" PATH="${python%/*}:/usr/bin:/bin" ./check run job results --rehearse >out 2>err &
until compgen -G "tmp/*/work-*/logs-*/*.out" >/dev/null || ! kill -0 $! 2>/dev/null; do sleep 0.05; done
kill -TERM $!
wait $!
[ $? = 143 ] || fail "a signal did not end it"
leftovers=$(ls -A tmp)
[ -z "$leftovers" ] || fail "left behind: $leftovers"

echo "== a bare root"
# The root has only bash, some coreutils and python3, with the libraries that they need.
root=$work/root
mkdir -p "$root"/{proc,dev,tmp,bin,usr/lib,lib64}
copy() { mkdir -p "$root$(dirname "$1")" && cp -rL "$1" "$root$1"; }
for program in bash rm cat ls mkdir mktemp realpath stat tail env sleep; do
  path=$(PATH=/usr/bin:/bin command -v $program)
  cp -L "$path" "$root/bin/$program"
  ldd "$path" | grep -oE '/[^ ]+' | while read -r library; do [ -e "$root$library" ] || copy "$library"; done
done
ln -s bash "$root/bin/sh"
version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
cp -L "$python" "$root/bin/python3"
ldd "$python" | grep -oE '/[^ ]+' | while read -r library; do [ -e "$root$library" ] || copy "$library"; done
if [ -d "/usr/lib/$version" ]; then
  (cd "/usr/lib/$version" && tar -ch --exclude=test --exclude=__pycache__ --exclude='config-*' --exclude=idlelib . 2>/dev/null) |
    { mkdir -p "$root/usr/lib/$version" && tar -x -C "$root/usr/lib/$version"; }
  ldd "/usr/lib/$version"/lib-dynload/_lzma*.so | grep -oE '/[^ ]+' | while read -r library; do [ -e "$root$library" ] || copy "$library"; done
fi
cp check "$root/check"
cat >"$work/enter" <<ENTER
mount -t proc proc "$root/proc" && touch "$root"/dev/{null,urandom} &&
mount --bind /dev/null "$root/dev/null" && mount --bind /dev/urandom "$root/dev/urandom" || exit 99
exec /usr/sbin/chroot "$root" /bin/env -i PATH=/bin PYTHONHOME=/usr /bin/bash -c "\$1"
ENTER
in_root() { unshare --map-root-user --mount --pid --fork bash "$work/enter" "$1" >out 2>err; }
if in_root 'exit 0'; then
  in_root 'ls /lib/x86_64-linux-gnu /usr/lib 2>/dev/null | grep -c grpc; [ ! -e /usr/lib/x86_64-linux-gnu/libgrpc.so.29 ]' || fail "the root is not bare"
  in_root './check run job /results --rehearse' || { fail "a job in a bare root"; cat out err >&2; }
  has "| toy GPT, 2 | "
  # The command that a user would try first.
  in_root 'n=0; while IFS= read -r line; do n=$((n + 1)); case $line in payload_line=*) first=${line#*=}; first=${first%% *}; break ;; esac; done <check
    mkdir /unpacked && tail -n +$first check | python3 -c "import lzma, sys, tarfile; tarfile.open(fileobj=lzma.open(sys.stdin.buffer), mode=\"r|\").extractall(\"/unpacked\")" && /unpacked/muster -o json bench model --zoo mlp --batch 2 --steps 2 --device cpu' ||
    { fail "muster bench model in a bare root"; cat out err >&2; }
  has '"step_seconds"'
else
  echo "not tested: no bare root can be entered here ($(tail -n 1 err)); what ran above had an empty environment, but this machine's libraries"
fi

[ $failures = 0 ] && echo "all passed"
[ $failures = 0 ]
