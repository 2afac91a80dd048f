"""Finds and runs the programs that the wheel contains: the command line `muster`, coordinator, ps and worker."""

import os
import pathlib
import sys

# Where `bazel build` leaves each program, below bazel-bin.
_BUILT = {"muster": "cli/muster", "coordinator": "services/coordinator/main", "ps": "services/ps/main", "worker": "services/worker/main"}


def path(name: str) -> str:
    """Returns the absolute path of a program. Raises FileNotFoundError if the program is missing.

    The folder MUSTER_BIN_DIR, which may be a bazel-bin, has priority over the wheel, as in the programs themselves."""
    folders = [pathlib.Path(__file__).resolve().parent / "bin"]
    if os.environ.get("MUSTER_BIN_DIR"):
        folders.insert(0, pathlib.Path(os.environ["MUSTER_BIN_DIR"]).absolute())
    for folder in folders:
        for file in (folder / name, folder / _BUILT[name]):
            if file.is_file() and os.access(file, os.X_OK):
                return str(file)
    raise FileNotFoundError(
        f"cannot find the program {name} in {', '.join(map(str, folders))}; install the wheel muster-train, "
        "or set MUSTER_BIN_DIR to the bazel-bin of a clone in which `bazel build //:coordinator //:ps //:worker //:muster` ran"
    )


def _become(name: str) -> None:
    try:
        program = path(name)
    except FileNotFoundError as error:
        sys.exit(f"muster: {error}")
    # The command line finds the other three by the absolute path in argv[0] (lib/program/program_path.h).
    os.execv(program, [program, *sys.argv[1:]])


# The console scripts. Each becomes its program.


def muster() -> None:
    _become("muster")


def coordinator() -> None:
    _become("coordinator")


def ps() -> None:
    _become("ps")


def worker() -> None:
    _become("worker")
