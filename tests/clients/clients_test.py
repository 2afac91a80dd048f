#!/usr/bin/env python3
"""Tests the clients of docs/api_clients.md: each runs against a real cluster, and the page shows the files that run.

Skips a client whose tools are missing: Python's packages (tools/test.sh gets them by pip), Debian's packages of Go, grpcurl.
After a change of a file in examples/clients: tests/clients/clients_test.py --write-page
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(os.path.abspath(__file__)).parent.parent.parent
CLIENTS = ROOT / "examples" / "clients"
PAGE = ROOT / "docs" / "api_clients.md"
PROTOS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "proto/muster/v1").glob("*.proto"))
# Folder of the packages of PyPI that the page names. It has another protobuf than the system, so it is separate.
PYTHON_PACKAGES = os.path.join(os.environ.get("PYTHONPATH", "").partition(":")[0] or "/nowhere", "clients")
GO_PACKAGES = "/usr/share/gocode"  # sources of Debian's Go packages, without modules
BLOCK = re.compile(r"(<!-- (examples/clients/\S+) -->\n```\w+\n)(.*?)(^```$)", re.M | re.S)
PATIENCE = 120


def page_with_files():
    return BLOCK.sub(lambda block: block[1] + (ROOT / block[2]).read_text(encoding="utf-8") + block[4], PAGE.read_text(encoding="utf-8"))


class PageTest(unittest.TestCase):
    def test_the_page_shows_the_files_that_are_tested(self):
        page = PAGE.read_text(encoding="utf-8")
        shown = {block[1] for block in BLOCK.findall(page)}
        self.assertEqual(shown, {f"examples/clients/{path.name}" for path in CLIENTS.iterdir()})
        self.assertEqual(page, page_with_files(), "stale: run tests/clients/clients_test.py --write-page")


class Cluster:
    """A coordinator with TLS, a ps and a worker, each a process."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.processes = {}
        for command in ("certs init", "certs issue coordinator --host 127.0.0.1", "certs issue ps", "certs issue worker", "certs issue admin ann",
                        "certs issue submitter bob"):
            self.muster(*command.split())
        self.authority = self.folder / "authority"  # the folder that clients without a certificate use as --tls
        self.authority.mkdir()
        shutil.copy(self.folder / "muster-ca/ca.crt", self.authority)
        self.address = self.start_coordinator("127.0.0.1:0")
        self.tokens = {}
        for scope in ("read", "submit"):
            secret = self.muster("--server", self.address, "--tls", "muster-ca/admin-ann", "token", "create", scope, "--scope", scope)
            self.tokens[scope] = self.folder / f"{scope}.token"
            self.tokens[scope].write_text(secret, encoding="utf-8")
        for role in ("ps", "worker"):
            self.start(role, f"--tls=muster-ca/{role}", f"--coordinator={self.address}", "--metrics=127.0.0.1:0", "--data_port=127.0.0.1:0")

    def muster(self, *arguments):
        environment = {**os.environ, "HOME": str(self.folder)}
        return subprocess.run([ROOT / "cli/muster", *arguments], cwd=self.folder, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    def start(self, role, *flags, name=None):
        name = name or role
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen([ROOT / f"services/{role}/main", *flags], stderr=log, cwd=self.folder)

    def start_coordinator(self, listen, name="coordinator", security=("--tls=muster-ca/coordinator",)):
        file = self.folder / f"{name}.address"
        file.unlink(missing_ok=True)
        self.start("coordinator", f"--listen={listen}", "--metrics=127.0.0.1:0", "--http=", f"--address_file={file}", f"--state_dir={self.folder}/{name}",
                   *security, name=name)
        end = time.monotonic() + PATIENCE
        while not file.exists():
            if time.monotonic() > end or self.processes[name].poll() is not None:
                raise RuntimeError((self.folder / f"{name}.log").read_text(encoding="utf-8"))
            time.sleep(0.01)
        return file.read_text(encoding="utf-8").strip()

    def stop(self, *roles):
        for role in roles:
            self.processes[role].terminate()
            self.processes.pop(role).wait(PATIENCE)

    def close(self):
        for process in self.processes.values():
            process.kill()
            process.wait(PATIENCE)


class ClientTest:
    """The tests of every client. A subclass has command(), which takes the same options as watch_job.py, and make()."""

    UNKNOWN = "NO_CREDENTIALS"  # printed by a client without credentials

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(dir="/tmp")  # a short name: the paths of sockets have a limit
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        cls.make()
        cls.cluster = Cluster(cls.folder)
        cls.addClassCleanup(cls.cluster.close)

    def run_client(self, tls, token=None, name="linear", address=None):
        return subprocess.run(self.command(address or self.cluster.address, tls, token, name), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.environment(), timeout=PATIENCE,
                              text=True, check=False)

    def environment(self):
        return dict(os.environ)

    def test_creates_a_job_with_a_token_and_watches_it(self):
        ended = self.run_client(self.cluster.authority, self.cluster.tokens["submit"])
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertRegex(ended.stdout, r"created jobs/linear-\d+\n")
        self.assertIn("SUCCEEDED", ended.stdout)

    def test_creates_a_job_with_a_certificate(self):
        ended = self.run_client(self.folder / "muster-ca/submitter-bob")
        self.assertEqual(ended.returncode, 0, ended.stdout)

    def test_says_why_it_is_refused(self):
        for token, reason in ((None, self.UNKNOWN), (self.cluster.tokens["read"], "NOT_ALLOWED")):
            ended = self.run_client(self.cluster.authority, token)
            self.assertNotEqual(ended.returncode, 0, ended.stdout)
            self.assertIn(reason, ended.stdout)


class RetryingClientTest(ClientTest):
    def test_names_every_fault_of_a_request(self):
        plain = self.cluster.start_coordinator("127.0.0.1:0", name="plain", security=())
        for ended in (self.run_client(self.cluster.authority, self.cluster.tokens["submit"], name="No Name"),
                      self.run_client("", name="No Name", address=plain)):
            self.assertNotEqual(ended.returncode, 0, ended.stdout)
            self.assertIn("reason: INVALID_SPEC", ended.stdout)
            self.assertIn("field name: ", ended.stdout)

    def test_waits_for_a_coordinator_that_is_away(self):
        self.cluster.stop("coordinator")
        command = self.command(self.cluster.address, self.cluster.authority, self.cluster.tokens["submit"], "linear")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.environment(), text=True) as client:
            said = ""
            while "trying again" not in said:
                line = client.stdout.readline()
                self.assertNotEqual(line, "", said)
                said += line
            self.cluster.start_coordinator(self.cluster.address)
            said += client.communicate(timeout=PATIENCE)[0]
        self.assertEqual(client.returncode, 0, said)
        self.assertEqual(said.count("created jobs/"), 1, said)


def python_is_there():
    check = subprocess.run([sys.executable, "-c", "import grpc_tools, grpc_status, google.rpc"], env={**os.environ, "PYTHONPATH": PYTHON_PACKAGES},
                           stderr=subprocess.DEVNULL, check=False)
    return check.returncode == 0


@unittest.skipUnless(python_is_there(), "grpcio, grpcio-tools and grpcio-status are not there: the Python client did not run")
class PythonTest(RetryingClientTest, unittest.TestCase):
    @classmethod
    def make(cls):
        cls.stubs = cls.folder / "stubs"
        cls.stubs.mkdir()
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={cls.stubs}", f"--grpc_python_out={cls.stubs}", *PROTOS], cwd=ROOT,
                       env={**os.environ, "PYTHONPATH": PYTHON_PACKAGES}, check=True)

    def environment(self):
        return {**os.environ, "PYTHONPATH": f"{self.stubs}:{PYTHON_PACKAGES}", "PYTHONUNBUFFERED": "1"}

    def command(self, address, tls, token, name):
        return [sys.executable, CLIENTS / "watch_job.py", "--server", address, "--tls", tls, "--name", name,
                *(["--token-file", token] if token else [])]


GO_IS_THERE = all(map(shutil.which, ("go", "protoc", "protoc-gen-go", "protoc-gen-go-grpc"))) and os.path.isdir(f"{GO_PACKAGES}/src/google.golang.org/grpc")


@unittest.skipUnless(GO_IS_THERE, "Debian's packages of Go are not there (golang-go, protoc-gen-go, protoc-gen-go-grpc, golang-google-grpc-dev): the Go client did not run")
class GoTest(RetryingClientTest, unittest.TestCase):
    @classmethod
    def make(cls):
        sources = cls.folder / "go" / "src"
        program = sources / "muster.io" / "watch_job"
        program.mkdir(parents=True)
        shutil.copy(CLIENTS / "watch_job.go", program)
        subprocess.run(["protoc", "-I.", f"--go_out={sources}", f"--go-grpc_out={sources}", *PROTOS], cwd=ROOT, check=True)
        cls.client = cls.folder / "watch_job"
        environment = {**os.environ, "HOME": str(cls.folder), "GO111MODULE": "off", "GOPATH": f"{cls.folder}/go:{GO_PACKAGES}", "GOFLAGS": "-p=2"}
        subprocess.run(["go", "vet", "muster.io/watch_job"], env=environment, check=True)
        subprocess.run(["go", "build", "-o", cls.client, "muster.io/watch_job"], env=environment, check=True)

    def command(self, address, tls, token, name):
        return [self.client, "-server", address, "-tls", tls, "-name", name, *(["-token-file", token] if token else [])]


@unittest.skipUnless(shutil.which("grpcurl"), "grpcurl is not there: its client did not run")
class GrpcurlTest(ClientTest, unittest.TestCase):
    UNKNOWN = "Unauthenticated"  # reflection, the first call, already fails

    @classmethod
    def make(cls):
        pass

    def command(self, address, tls, token, name):
        del name
        options = ["-cacert", tls / "ca.crt"]
        if (tls / "tls.crt").exists():
            options += ["-cert", tls / "tls.crt", "-key", tls / "tls.key"]
        if token:
            options += ["-H", f"authorization: Bearer {token.read_text(encoding='utf-8').strip()}"]
        return [CLIENTS / "watch_job.sh", address, *options]


if __name__ == "__main__":
    if "--write-page" in sys.argv:
        PAGE.write_text(page_with_files(), encoding="utf-8")
        sys.exit()
    program = unittest.main(exit=False)
    for why in sorted({why for _, why in program.result.skipped}):
        print(f"{os.path.relpath(__file__, ROOT)}:1: Skipped\n{why}")
    sys.exit(not program.result.wasSuccessful())
