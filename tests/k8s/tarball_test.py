#!/usr/bin/env python3
"""Checks tools/tarball.sh. The packed programs run in another folder with an empty environment. The systemd units start programs that
exist, with flags that they have, confined as the pods are."""

import configparser
import glob
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True

import manifests  # noqa: E402

ROLES = ("coordinator", "ps", "worker")
HARDENED = {
    "NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "ProtectSystem": "strict", "PrivateTmp": "yes", "User": "muster",
    "RestrictNamespaces": "yes", "SystemCallFilter": "@system-service", "ProtectKernelModules": "yes", "LockPersonality": "yes",
}
PERMANENT = {"64", "65", "77", "78"}  # exit codes that a restart does not fix


class Tarball(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        packed = os.path.join(cls.folder, "muster.tar.gz")
        umask = os.umask(0o077)  # as of a strict user; the packed files must be readable all the same
        subprocess.run([os.path.join(ROOT, "tools", "tarball.sh"), packed, ROOT], check=True)
        os.umask(umask)
        with tarfile.open(packed) as archive:
            cls.members = archive.getmembers()
        place = os.path.join(cls.folder, "another place")
        os.mkdir(place)
        subprocess.run(["tar", "-xzf", packed, "-C", place], check=True)
        cls.muster = os.path.join(place, "muster")

    def run_packed(self, program, *arguments):
        return subprocess.run([os.path.join(self.muster, program), *arguments], cwd=self.muster, capture_output=True, text=True,
                              check=False, env={"PATH": "/usr/bin:/bin", "HOME": self.folder})

    def unit(self, role):
        parser = configparser.RawConfigParser(strict=True)
        parser.optionxform = str
        parser.read(os.path.join(self.muster, "systemd", f"muster-{role}.service"), encoding="utf-8")
        return parser

    def test_trains_a_job_where_it_was_unpacked(self):
        told = self.run_packed("muster", "run", "examples/linear.yaml")
        self.assertEqual(told.returncode, 0, told.stdout + told.stderr)
        self.assertIn("SUCCEEDED", told.stdout + told.stderr)

    def test_others_than_who_unpacks_it_may_run_it(self):
        for member in self.members:
            self.assertEqual(member.mode & 0o066, 0o044, f"{member.name}: {member.mode:o}")
            if member.isdir() or member.name in [f"muster/{program}" for program in ROLES]:
                self.assertEqual(member.mode & 0o011, 0o011, f"{member.name}: {member.mode:o}")

    def test_what_the_document_installs_is_there(self):
        with open(os.path.join(self.muster, "docs", "operations", "run.md"), encoding="utf-8") as file:
            section = re.search(r"^## On bare machines\n(.*?)^## ", file.read(), re.MULTILINE | re.DOTALL)[1]
        named = {path.replace("$role", role) for path in re.findall(r"/opt/(muster/[\w./$-]+)", section) for role in ROLES}
        self.assertGreater(len(named), 2 * len(ROLES))
        for path in named:
            self.assertTrue(os.path.exists(os.path.join(os.path.dirname(self.muster), path)), path)

    def test_units_start_what_is_there_with_flags_that_it_has(self):
        for role in ROLES:
            start = self.unit(role)["Service"]["ExecStart"]
            match = re.fullmatch(r"/opt/muster/(\w+) --flagfile=/etc/muster/(\w+\.flags)", start)
            self.assertIsNotNone(match, start)
            self.assertEqual(match[1], role)
            accepted = set(re.findall(r"^ +--([a-z_]+) \(", self.run_packed(role, "--helpfull").stdout, re.MULTILINE))
            self.assertIn("metrics", accepted)
            with open(os.path.join(self.muster, "systemd", "flags", match[2]), encoding="utf-8") as file:
                flags = dict(re.findall(r"^--([a-z_]+)=(.*)$", file.read(), re.MULTILINE))
            self.assertLessEqual(set(flags), accepted, role)
            if "drain_timeout" in flags:
                self.assertGreaterEqual(int(self.unit(role)["Service"]["TimeoutStopSec"]),
                                        manifests.seconds(flags["drain_timeout"]) + manifests.HEADROOM_S, role)
            if "state_dir" in flags:
                self.assertEqual(flags["state_dir"], "/var/lib/" + self.unit(role)["Service"]["StateDirectory"])

    def test_units_confine_as_pods_are_confined(self):
        for role in ROLES:
            service = self.unit(role)["Service"]
            for setting, value in HARDENED.items():
                self.assertEqual(service.get(setting), value, f"{role}: {setting}")

    def test_units_are_started_again_for_as_long_as_it_takes(self):
        for role in ROLES:
            unit = self.unit(role)
            self.assertEqual(unit["Unit"].get("StartLimitIntervalSec"), "0", f"{role}: systemd would give up after five starts")
            self.assertEqual(unit["Service"]["Restart"], "on-failure", role)
            self.assertEqual(set(unit["Service"]["RestartPreventExitStatus"].split()), PERMANENT, role)

    def test_units_are_what_systemd_understands(self):
        analyze = shutil.which("systemd-analyze")
        if analyze is None:
            print("tests/k8s/tarball_test.py:1: Skipped\nsystemd units are not verified: there is no systemd-analyze")
            self.skipTest("there is no systemd-analyze")
        self.assertEqual(len(glob.glob(os.path.join(self.muster, "systemd", "*.service"))), len(ROLES))
        for role in ROLES:
            # On this machine the program is not in /opt, and there is no user muster.
            with open(os.path.join(self.muster, "systemd", f"muster-{role}.service"), encoding="utf-8") as file:
                text = file.read().replace(f"/opt/muster/{role}", "/bin/true")
            path = os.path.join(self.folder, f"muster-{role}.service")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            told = subprocess.run([analyze, "verify", path], capture_output=True, text=True, check=False)
            self.assertEqual((told.returncode, told.stdout + told.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
