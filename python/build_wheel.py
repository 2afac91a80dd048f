#!/usr/bin/env python3
"""Builds the wheel muster-train: the Python package, the programs, their libraries with licences, and the example jobs.

    python/build_wheel.py --to FOLDER --programs muster=FILE coordinator=FILE ps=FILE worker=FILE --files FILE=NAME...

`bazel build //python:wheel` calls it. The wheel has the version that the program `muster` prints. NAME is a path in the wheel. Equal
inputs give equal bytes. Needs the Debian 12 that built the programs, for their libraries with licences, and patchelf."""

import argparse
import base64
import collections
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).absolute().parent
DISTRIBUTION = "muster_train"
TAG = "py3-none-manylinux_2_34_x86_64"

# The newest symbol versions that every system of the wheel's platform tag has: RHEL 9 has glibc 2.34 and libstdc++ 11.
SYMBOLS_MAX = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (12,)}

# Libraries that every system of the platform tag has. The C++ runtime is one of them, and is not bundled: Debian's needs a newer glibc.
HOST_LIBRARIES = re.compile(r"(ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so\.\d+")
HOST_PACKAGES = {"libc6", "libstdc++6", "libgcc-s1"}

SIZE_MAX = 60_000_000

# PEP 440: what follows a + is the local part.
VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.dev\d+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?")

METADATA = """\
Metadata-Version: 2.1
Name: muster-train
Version: {version}
Summary: Distributed training that survives: kill any process, get the same bits
License: Apache-2.0
Classifier: Development Status :: 4 - Beta
Classifier: License :: OSI Approved :: Apache Software License
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3 :: Only
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Requires-Python: >=3.9
Requires-Dist: grpcio>=1.51
Requires-Dist: numpy>=1.22
Requires-Dist: protobuf>=4.22
Requires-Dist: PyYAML>=5.4
Provides-Extra: torch
Requires-Dist: torch>=2.1; extra == "torch"
Provides-Extra: tqdm
Requires-Dist: tqdm; extra == "tqdm"
Description-Content-Type: text/markdown

Muster trains neural networks with parameter servers. This wheel has the programs (command line, coordinator, parameter server, worker on
CPUs), their libraries, and example jobs. It needs no compiler.

    python -m muster.examples
    muster run examples/char_gpt.yaml
"""

WHEEL = f"""\
Wheel-Version: 1.0
Generator: muster-build-wheel
Root-Is-Purelib: false
Tag: {TAG}
"""

ENTRY_POINTS = """\
[console_scripts]
muster = muster._programs:muster
muster-coordinator = muster._programs:coordinator
muster-ps = muster._programs:ps
muster-worker = muster._programs:worker
"""

Member = collections.namedtuple("Member", "content is_program")


def fail(text):
    sys.exit(f"build_wheel: {text}")


def run(*command):
    try:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    except FileNotFoundError:
        fail(f"{command[0]} is not installed; tools/setup.sh installs it")
    except subprocess.CalledProcessError as error:
        fail(f"{' '.join(map(str, command))} ended with {error.returncode}")


def too_new_symbols(file):
    """Returns the symbol versions that an ELF file imports and that a system of the tag may lack."""
    versions = set()
    for prefix, number in re.findall(r"Name: ([A-Z]+)_([0-9.]+) ", run("readelf", "--version-info", "--wide", file)):
        limit = SYMBOLS_MAX.get(prefix)
        if limit and tuple(map(int, number.split("."))) > limit:
            versions.add(f"{prefix}_{number}")
    return sorted(versions)


def add_program(members, work, name, program):
    """Adds a program, the libraries that it loads, and their licences."""
    root = work / name
    run(HERE.parent / "tools" / "image_root.sh", root, f"{name}={program}")
    built = root / "usr" / "bin" / name
    # RPATH instead of RUNPATH: it also applies to libraries of libraries, and LD_LIBRARY_PATH cannot override it.
    run("patchelf", "--force-rpath", "--set-rpath", "$ORIGIN/../lib", built)
    members[f"muster/bin/{name}"] = Member(built.read_bytes(), True)
    files = [built]
    for library in (root / "usr" / "lib" / "x86_64-linux-gnu").iterdir():
        if not HOST_LIBRARIES.fullmatch(library.name):
            members[f"muster/lib/{library.name}"] = Member(library.read_bytes(), False)
            files.append(library)
    for file in files:
        if too_new := too_new_symbols(file):
            fail(f"{file.name} imports symbols of {', '.join(too_new)}, which systems of {TAG} lack; replace the function that "
                 f"needs them (objdump -T {program} names it)")


def licences(work):
    """Returns the licences of the bundled libraries by package, and the list of these packages with their versions."""
    texts, versions = {}, {}
    for listed in sorted(work.glob("*/usr/share/muster/packages.tsv")):
        for line in listed.read_text(encoding="utf-8").splitlines()[1:]:
            package, version = line.split("\t")
            if package not in HOST_PACKAGES:
                versions[package] = version
                copyright = listed.parents[1] / "doc" / package / "copyright"
                if not copyright.exists():
                    fail(f"Debian's package {package} has no licence in {copyright}")
                texts[package] = copyright.read_bytes()
    table = "package\tversion\n" + "".join(f"{package}\t{versions[package]}\n" for package in sorted(versions))
    return texts, table


def write(path, members, record):
    """Writes the members in this order, and last the RECORD of them."""
    lines = []
    for name, member in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(member.content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(member.content)}\n")
    lines.append(f"{record},,\n")
    with zipfile.ZipFile(path, "w") as archive:
        for name, member in [*members.items(), (record, Member("".join(lines).encode(), False))]:
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system = 3  # Unix, whose file modes external_attr holds
            info.external_attr = (0o100755 if member.is_program else 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, member.content, compresslevel=6)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", required=True, type=pathlib.Path)
    parser.add_argument("--programs", required=True, nargs="+")
    parser.add_argument("--files", required=True, nargs="+")
    arguments = parser.parse_args()
    programs = dict(program.split("=", 1) for program in arguments.programs)
    told = run(os.path.abspath(programs["muster"]), "version")
    version = told.split()[1]
    if not VERSION.fullmatch(version):
        fail(f"'{version}', which the program muster prints, is no version in the sense of PEP 440; the file VERSION sets it")
    info = f"{DISTRIBUTION}-{version}.dist-info"

    members = {}
    work = pathlib.Path(tempfile.mkdtemp(prefix="muster-wheel."))
    try:
        for name, program in programs.items():
            add_program(members, work, name, program)
        texts, packages = licences(work)
    finally:
        shutil.rmtree(work)
    for file in arguments.files:
        source, name = file.split("=", 1)
        members[name] = Member(pathlib.Path(source).read_bytes(), False)
    members = dict(sorted(members.items()))
    for name, content in [("METADATA", METADATA.format(version=version)), ("WHEEL", WHEEL), ("entry_points.txt", ENTRY_POINTS)]:
        members[f"{info}/{name}"] = Member(content.encode(), False)
    members[f"{info}/licenses/LICENSE"] = Member((HERE.parent / "LICENSE").read_bytes(), False)
    members[f"{info}/licenses/packages.tsv"] = Member(packages.encode(), False)
    for package, text in sorted(texts.items()):
        members[f"{info}/licenses/{package}/copyright"] = Member(text, False)

    arguments.to.mkdir(parents=True, exist_ok=True)
    wheel = arguments.to / f"{DISTRIBUTION}-{version}-{TAG}.whl"
    write(wheel, members, f"{info}/RECORD")
    size = wheel.stat().st_size
    if size > SIZE_MAX:
        fail(f"{wheel} has {size} bytes, at most {SIZE_MAX} are allowed")


if __name__ == "__main__":
    main()
