"""Helpers of the Python package's tests: paths, skipped tests, and clusters."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

# Under Bazel the tree of the runfiles, which has _protos.bin. Python imports this file from where its link leads, but starts
# the test from the runfiles.
_STARTED = sys.argv[0] if "TEST_SRCDIR" in os.environ else __file__
ROOT = pathlib.Path(os.path.abspath(_STARTED)).parent.parent.parent
PATIENCE = 120
# tools/test.sh puts packages of PyPI there.
_PACKAGES = os.path.join(os.environ.get("PYTHONPATH", "").partition(":")[0] or "/nowhere", "clients")


def prepare():
    """Makes `import muster` work. Ends the program with a reason if grpcio, protobuf, numpy or PyYAML is not there."""
    # gRPC's own handlers of fork() would run between the fork and the exec of the programs that a test starts.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    sys.path[:0] = [str(ROOT / "python"), _PACKAGES]
    if "TEST_SRCDIR" not in os.environ:  # Bazel makes the file by itself
        subprocess.run([ROOT / "python/muster/make_protos.sh", ROOT / "python/muster/_protos.bin"], check=True)
    try:
        import google.protobuf.message_factory
        import grpc
        import numpy
        import yaml
    except ImportError as error:
        print(f"{os.path.relpath(sys.argv[0], ROOT)}:1: Skipped\n{error}: the Python package was not tested")
        sys.exit()


def import_torch():
    """Returns torch, or None if it is not there. Call it before prepare(): Debian's torch needs Debian's numpy, which is older."""
    try:
        import torch
        return torch
    except ImportError:
        return None


def main():
    """Runs the tests of the calling file, and lists skipped ones as tools/test.sh reads them."""
    program = unittest.main(module="__main__", exit=False)
    for why in sorted({why for _, why in program.result.skipped}):
        print(f"{os.path.relpath(sys.argv[0], ROOT)}:1: Skipped\n{why}")
    sys.exit(not program.result.wasSuccessful())


def program(role):
    """Returns the path of muster, coordinator, ps or worker."""
    path = "cli/muster" if role == "muster" else f"services/{role}/main"
    candidates = [ROOT / path, ROOT / "bazel-bin" / path]
    if folder := os.environ.get("MUSTER_BIN_DIR"):
        candidates.insert(0, pathlib.Path(folder, role))
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"no program {role} in {candidates}; build it, or set MUSTER_BIN_DIR")


@contextlib.contextmanager
def home():
    """Sets a new home folder without the user's settings, and restores the old environment at the end."""
    saved = dict(os.environ)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a short name: the paths of sockets have a limit
        for name in ("XDG_CONFIG_HOME", "MUSTER_SERVER", "MUSTER_TLS", "MUSTER_TOKEN_FILE", "MUSTER_CONTEXT"):
            os.environ.pop(name, None)
        os.environ["HOME"] = folder
        try:
            yield pathlib.Path(folder)
        finally:
            os.environ.clear()
            os.environ.update(saved)


def muster(*arguments, folder=None, check=True):
    """Runs the command line. Returns what it printed."""
    run = subprocess.run([program("muster"), *arguments], cwd=folder, check=False, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
    if check and run.returncode != 0:
        raise RuntimeError(f"muster {' '.join(arguments)}: {run.stderr}")
    return run.stdout


class LocalCluster:
    """The cluster of `muster local up`, in a home folder of its own."""

    def __init__(self, case):
        self.home = enter(case, home())
        muster("local", "up", "--ps", "1", "--workers", "1")
        case.addClassCleanup(muster, "local", "down")


def enter(case, context):
    """Enters a context until the end of a test, or of all tests of a class."""
    result = context.__enter__()
    add_cleanup = case.addClassCleanup if isinstance(case, type) else case.addCleanup
    add_cleanup(context.__exit__, None, None, None)
    return result


class SecureCluster:
    """A coordinator with TLS, a ps and a worker, each a process, and tokens for it."""

    def __init__(self, case):
        self.folder = enter(case, home())
        self._processes = {}
        case.addClassCleanup(self._close)
        for command in ("certs init", "certs issue coordinator --host 127.0.0.1", "certs issue ps", "certs issue worker",
                        "certs issue admin ann", "certs issue submitter bob"):
            muster(*command.split(), folder=self.folder)
        self.certificate = self.folder / "muster-ca/submitter-bob"
        self.authority = self.folder / "authority"  # the folder for clients without a certificate
        self.authority.mkdir()
        shutil.copy(self.folder / "muster-ca/ca.crt", self.authority)
        self.address = self.start_coordinator("127.0.0.1:0")
        for role in ("ps", "worker"):
            self._start(role, f"--tls=muster-ca/{role}", f"--coordinator={self.address}", "--metrics=127.0.0.1:0",
                        "--data_port=127.0.0.1:0")

    def token(self, scope):
        """Creates a token of this scope and returns a file that holds it."""
        secret = muster("--server", self.address, "--tls", "muster-ca/admin-ann", "token", "create", scope, "--scope", scope,
                        folder=self.folder)
        file = self.folder / f"{scope}.token"
        file.write_text(secret, encoding="utf-8")
        return file

    def start_coordinator(self, listen):
        file = self.folder / "address"
        file.unlink(missing_ok=True)
        self._start("coordinator", f"--listen={listen}", "--metrics=127.0.0.1:0", "--http=", f"--address_file={file}",
                    f"--state_dir={self.folder}/state", "--tls=muster-ca/coordinator")
        end = time.monotonic() + PATIENCE
        while not file.exists():
            if time.monotonic() > end or self._processes["coordinator"].poll() is not None:
                raise RuntimeError((self.folder / "coordinator.log").read_text(encoding="utf-8"))
            time.sleep(0.01)
        return file.read_text(encoding="utf-8").strip()

    def kill_coordinator(self):
        self._processes["coordinator"].kill()
        self._processes.pop("coordinator").wait(PATIENCE)

    def _start(self, role, *flags):
        with open(self.folder / f"{role}.log", "ab") as log:
            self._processes[role] = subprocess.Popen([program(role), *flags], stderr=log, cwd=self.folder)

    def _close(self):
        for process in self._processes.values():
            process.kill()
            process.wait(PATIENCE)
