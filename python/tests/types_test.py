#!/usr/bin/env python3
"""Checks that mypy --strict finds nothing in python/muster, and that `import muster` needs no other package."""

import os
import subprocess
import sys
import tempfile
import unittest

import support

# tools/test.sh puts mypy and the stubs there.
_PACKAGES = os.path.join(os.environ.get("PYTHONPATH", "").partition(":")[0] or "/nowhere", "mypy")
_ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([_PACKAGES, os.environ.get("PYTHONPATH", "")])}


def has_mypy():
    needs = ("mypy", "numpy", "grpc-stubs", "types-protobuf", "types-PyYAML")
    code = f"import importlib.metadata\nfor name in {needs}: importlib.metadata.version(name)"
    return subprocess.run([sys.executable, "-c", code], env=_ENVIRONMENT, stderr=subprocess.DEVNULL,
                          check=False).returncode == 0


class TypesTest(unittest.TestCase):
    @unittest.skipUnless(has_mypy(), "mypy, numpy or the stubs are not there: the types of the Python package were not checked")
    def test_the_package_is_strictly_typed(self):
        with tempfile.TemporaryDirectory() as cache:
            run = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, "muster"],
                                 cwd=support.ROOT / "python", env=_ENVIRONMENT, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(run.returncode, 0, run.stdout)


class ImportTest(unittest.TestCase):
    def test_an_import_needs_no_other_package(self):
        code = "import muster, sys; assert not {'grpc', 'numpy', 'yaml', 'google'} & set(sys.modules)"
        subprocess.run([sys.executable, "-S", "-c", code], cwd=support.ROOT / "python", check=True)


if __name__ == "__main__":
    support.main()
