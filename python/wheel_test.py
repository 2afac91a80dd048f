#!/usr/bin/env python3
"""Checks that the wheel installs into a fresh environment without a network and trains there with its own libraries. Also checks its
files, metadata and licences."""

import base64
import csv
import glob
import hashlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

HERE = pathlib.Path(__file__).absolute().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import build_wheel  # noqa: E402

(WHEEL,) = glob.glob(str(HERE / "wheel" / "*.whl"))
# A user's environment: without the variables of Bazel's tests, by which programs are found too (cli/local).
ENVIRONMENT = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          env={**ENVIRONMENT, **options.pop("environment", {})}, **options)
    return done.returncode, done.stdout


class InstalledTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        ENVIRONMENT["HOME"] = str(cls.folder)
        cls.bin = cls.folder / "venv" / "bin"
        for command in [(sys.executable, "-m", "venv", cls.folder / "venv"),
                        (cls.bin / "pip", "install", "--quiet", "--no-deps", "--no-index", WHEEL)]:
            status, output = run(*command)
            if status:
                raise AssertionError(f"{' '.join(map(str, command))} ended with {status}:\n{output}")
        (cls.package,) = cls.folder.glob("venv/lib/python*/site-packages/muster")

    def test_a_user_trains_an_example(self):
        status, output = run(self.bin / "python", "-m", "muster.examples", cwd=self.folder)
        self.assertEqual(status, 0, output)
        self.assertIn("muster run examples/char_gpt.yaml", output)
        for job in ["examples/linear.yaml", "examples/mnist_lenet.yaml"]:
            status, output = run(self.bin / "muster", "run", job, "--set", "training.epochs=1", cwd=self.folder)
            self.assertEqual(status, 0, output)
            self.assertIn("SUCCEEDED", output)
        self.assertTrue((self.folder / "examples/python/numpy_linear.py").is_file())
        # The second call must not replace the user's changes.
        status, output = run(self.bin / "python", "-m", "muster.examples", cwd=self.folder)
        self.assertEqual(status, 1)
        self.assertIn("examples exists already; remove it", output)

    def test_launch_finds_the_wheels_daemons(self):
        script = "test -S $MUSTER_PROGRAM_SOCKET && echo the socket is there"
        status, output = run(self.bin / "muster", "launch", "--", "sh", "-c", script, cwd=self.folder)
        self.assertEqual(status, 0, output)
        self.assertIn("the socket is there", output)

    def test_package_and_programs_have_the_wheels_version(self):
        version = pathlib.Path(WHEEL).name.split("-")[1]
        status, output = run(self.bin / "muster", "version")
        self.assertEqual((status, output.splitlines()[0]), (0, f"muster {version}"))
        for daemon in ["coordinator", "ps", "worker"]:
            status, output = run(self.bin / f"muster-{daemon}", "--version")
            self.assertEqual((status, output.splitlines()[0]), (0, f"muster {version}"), daemon)
        status, output = run(self.bin / "python", "-c", "import muster; print(muster.__version__)")
        self.assertEqual((status, output), (0, version + "\n"))

    def test_libraries_come_from_the_wheel_or_belong_to_every_system(self):
        wrong = self.folder / "wrong"
        wrong.mkdir()
        (wrong / "libglog.so.1").write_text("no library", encoding="utf-8")
        for program in (self.package / "bin").iterdir():
            status, output = run("ldd", program, environment={"LD_LIBRARY_PATH": str(wrong)})
            self.assertEqual(status, 0, output)
            libraries = re.findall(r"^\s(\S+) => (.*) \(", output, re.M)
            self.assertIn("libglog.so.1", dict(libraries))
            for name, path in libraries:
                if build_wheel.HOST_LIBRARIES.fullmatch(name):
                    self.assertNotIn(str(self.package), path)
                else:
                    self.assertEqual(pathlib.Path(path).resolve().parent, self.package / "lib", name)

    def test_a_missing_program_is_named(self):
        script = "import sys; sys.argv[0] = 'muster'; from muster import _programs; _programs.muster()"
        bare = self.folder / "bare" / "muster"
        shutil.copytree(self.package, bare, ignore=shutil.ignore_patterns("bin", "lib"))
        status, output = run(sys.executable, "-c", script, environment={"PYTHONPATH": str(bare.parent)})
        self.assertEqual(status, 1)
        self.assertRegex(output, "^muster: cannot find the program muster in /.*/bare/muster/bin; install the wheel muster-train, or set MUSTER_BIN_DIR")
        status, output = run(sys.executable, "-c", script, "version",
                             environment={"PYTHONPATH": str(bare.parent), "MUSTER_BIN_DIR": str(self.package / "bin")})
        self.assertEqual(status, 0, output)


class FilesTest(unittest.TestCase):
    def setUp(self):
        self.archive = zipfile.ZipFile(WHEEL)
        self.addCleanup(self.archive.close)
        self.info = "-".join(pathlib.Path(WHEEL).name.split("-")[:2]) + ".dist-info"

    def test_its_size_and_name(self):
        self.assertRegex(pathlib.Path(WHEEL).name, r"^muster_train-\d+\.\d+\.\d+\S*-py3-none-manylinux_2_34_x86_64\.whl$")
        self.assertLess(os.path.getsize(WHEEL), 60_000_000)

    def test_the_record_has_every_file(self):
        rows = list(csv.reader(io.StringIO(self.archive.read(f"{self.info}/RECORD").decode())))
        self.assertEqual([row[0] for row in rows], self.archive.namelist())
        for name, digest, size in rows[:-1]:
            content = self.archive.read(name)
            self.assertEqual(digest, "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode(), name)
            self.assertEqual(int(size), len(content), name)

    def test_nothing_depends_on_when_it_was_built(self):
        self.assertEqual({info.date_time for info in self.archive.infolist()}, {(1980, 1, 1, 0, 0, 0)})
        members = {"b": build_wheel.Member(b"text", False), "a": build_wheel.Member(b"program", True)}
        with tempfile.TemporaryDirectory() as folder:
            for name in ["one", "two"]:
                build_wheel.write(os.path.join(folder, name), members, "RECORD")
            self.assertEqual(*(pathlib.Path(folder, name).read_bytes() for name in ["one", "two"]))

    def test_every_package_of_a_library_has_its_licence(self):
        packages = self.archive.read(f"{self.info}/licenses/packages.tsv").decode().splitlines()[1:]
        self.assertGreater(len(packages), 10)
        for package in [line.split("\t")[0] for line in packages]:
            self.assertIn(f"{self.info}/licenses/{package}/copyright", self.archive.namelist())
        self.assertIn(f"{self.info}/licenses/LICENSE", self.archive.namelist())
        self.assertIn("muster/share/examples/data/README.md", self.archive.namelist())  # the licences of the data
        for name in ("muster/client.py", "muster/py.typed", "muster/_protos.bin"):
            self.assertIn(name, self.archive.namelist())


class SymbolsTest(unittest.TestCase):
    def test_a_symbol_of_a_newer_system_is_found(self):
        # Debian's C++ runtime needs arc4random() of its own glibc.
        self.assertEqual(build_wheel.too_new_symbols("/usr/lib/x86_64-linux-gnu/libstdc++.so.6"), ["GLIBC_2.36"])

    def test_versions_are_those_of_pep_440(self):
        for version in ["0.2.0", "0.3.0+12.gabc1234", "1.0rc1", "0.3.0.dev1"]:
            self.assertTrue(build_wheel.VERSION.fullmatch(version), version)
        for version in ["0.2.0-dirty", "v0.2.0", "0.3.0+12-gabc", "unknown"]:
            self.assertFalse(build_wheel.VERSION.fullmatch(version), version)


if __name__ == "__main__":
    unittest.main()
