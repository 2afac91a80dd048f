#!/usr/bin/env python3
"""Tests the counts of tools/test.sh, .ci/run after a failed lane, and the seeds of tools/nightly.sh, with a Bazel that only prints."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

TREE = pathlib.Path(__file__).parent.parent  # the files that Bazel makes visible
# A fake Bazel with recorded logs, output and status.
BAZEL = """#!/bin/bash
case $1 in
  info) echo "$TESTLOGS" ;;
  test) cat "$TESTLOGS/printed"; exit "$TEST_STATUS" ;;
  *) exit "${OTHER_STATUS:-0}" ;;
esac
"""
# A fake ci_budget.sh that records its calls. `check` ends with the status that a test sets.
CI_BUDGET = """#!/bin/bash
echo "$1 ${*:3}" >>budget_calls
[ "$1" != check ] || exit "${CHECK_STATUS:-0}"
"""
GTEST = '<testcase name="A" />\n<testcase name="B">\n<skipped message="no" />\n</testcase>'
FAILED = '<testcase name="A">\n<failure message="no" />\n</testcase>'
SCRIPT = '<testcase name="script" />'


class LanesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for script in ("tools/test.sh", "tools/nightly.sh", ".ci/run"):
            (self.root / script).parent.mkdir(exist_ok=True)
            shutil.copy(TREE / script, self.root / script)
        for program in ("tools/setup.sh", "tools/kubectl.sh", "tools/format.sh", "bin/python3"):
            self.program(program, "#!/bin/bash\n")
        self.program("bin/bazel", BAZEL)
        self.program("tools/ci_budget.sh", CI_BUDGET)
        self.program("tools/clang_lane.sh", '#!/bin/bash\nexit "${OTHER_STATUS:-0}"\n')
        (self.root / "testlogs").mkdir()
        self.printed = ""

    def program(self, name, text):
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def ran(self, name, told, cases, log=""):
        """Adds the output and logs of a target that was tested, now or earlier."""
        self.printed += f"//a:{name}    {told}\n"
        folder = self.root / "testlogs/a" / name
        folder.mkdir(parents=True)
        (folder / "test.xml").write_text(cases, encoding="utf-8")
        (folder / "test.log").write_text(log, encoding="utf-8")

    def run_(self, *command, **environment):
        (self.root / "testlogs/printed").write_text(self.printed, encoding="utf-8")
        return subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False, env={
            "PATH": f"{self.root}/bin:{os.environ['PATH']}", "TESTLOGS": f"{self.root}/testlogs", "TEST_STATUS": "0", "HOME": str(self.root),
            **environment})

    def last_line(self, *command, **environment):
        return self.run_(*command, **environment).stdout.splitlines()[-1]

    def test_cases_are_counted(self):
        self.ran("gtest", "(cached) PASSED in 1.0s", GTEST, "a_test.cc:1: Skipped\nno\n")
        self.ran("script", "PASSED in 1.0s", SCRIPT)
        self.assertEqual(self.last_line("tools/test.sh"), "2 passed, 0 failed, 1 skipped")

    def test_a_script_that_did_not_try_is_skipped(self):
        self.ran("script", "PASSED in 1.0s", SCRIPT, "a/script.py:1: Skipped\nthere is no tool\n")
        ran = self.run_("tools/test.sh")
        self.assertEqual(ran.stdout.splitlines()[-2:], ["skipped: there is no tool", "0 passed, 0 failed, 1 skipped"])

    def test_what_did_not_build_has_no_results(self):
        self.ran("old", "FAILED TO BUILD", SCRIPT)
        self.ran("new", "FAILED in 1.0s", FAILED)
        self.assertEqual(self.last_line("tools/test.sh", TEST_STATUS="1"), "0 passed, 2 failed, 0 skipped")

    def test_a_lane_that_failed_is_one_failed(self):
        self.ran("script", "PASSED in 1.0s", SCRIPT)
        self.assertEqual(self.last_line(".ci/run"), "1 passed, 0 failed, 0 skipped")
        self.program("tools/format.sh", "#!/bin/bash\nexit 1\n")
        ran = self.run_(".ci/run", OTHER_STATUS="1")  # the clang lane and the fuzzers are Bazel's
        self.assertEqual(ran.stdout.splitlines()[-1], "1 passed, 3 failed, 0 skipped")
        self.assertEqual(ran.returncode, 1)

    def test_a_lane_over_its_budget_is_one_failed(self):
        self.ran("script", "PASSED in 1.0s", SCRIPT)
        ran = self.run_(".ci/run", CHECK_STATUS="2")
        self.assertEqual(ran.stdout.splitlines()[-1], "1 passed, 2 failed, 0 skipped")
        self.assertEqual(ran.returncode, 1)
        calls = (self.root / "budget_calls").read_text(encoding="utf-8").splitlines()
        self.assertEqual(calls, ["begin ", "lap clang", "lap fuzz", "lap format", "lap tests", "check "])

    def test_a_budget_that_could_not_be_measured_is_one_failed(self):
        self.ran("script", "PASSED in 1.0s", SCRIPT)
        self.assertEqual(self.last_line(".ci/run", CHECK_STATUS="100"), "1 passed, 1 failed, 0 skipped")

    def test_the_count_is_the_last_line_and_the_only_one(self):
        self.ran("script", "PASSED in 1.0s", SCRIPT)
        self.printed += "\nlast words\n"
        ran = self.run_(".ci/run", CHECK_STATUS="1")
        self.assertEqual(ran.stdout.splitlines()[-3:], ["", "last words", "1 passed, 1 failed, 0 skipped"])
        self.assertEqual(ran.stdout.count(" passed, "), 1)

    def test_tests_without_a_count_are_one_failed(self):
        self.program("tools/test.sh", "#!/bin/bash\necho killed\nexit 137\n")
        ran = self.run_(".ci/run")
        self.assertEqual(ran.stdout.splitlines()[-2:], ["killed", "0 passed, 1 failed, 0 skipped"])
        self.assertEqual(ran.returncode, 1)

    def test_each_night_has_seeds_of_its_own(self):
        lanes = ("disk", "chaos", "simulation", "soak")
        ran = self.run_("tools/nightly.sh", "--dry-run", *lanes, NIGHT="26331")
        for seed in ("POWER_SEED=26331", "CHAOS_SEED=26331", "FIRST_SEED=2633100000", "LOGICAL_SEED=26331", "SOAK_SEED=26331"):
            self.assertIn(f"--test_env={seed} ", ran.stdout)
        self.assertEqual(ran.stdout.count("--nocache_test_results"), len(lanes) + 3)  # chaos has four commands
        self.assertIn("--test_env=CHAOS_SEED=2 ", self.run_("tools/nightly.sh", "--dry-run", "chaos", CHAOS_SEED="2").stdout)
        self.assertEqual(self.run_("tools/nightly.sh", "--dry-run", NIGHT="today").returncode, 2)
        self.assertIn("NIGHT=7\n", self.run_("tools/nightly.sh", "chaos", NIGHT="7").stdout)

    def test_a_night_compiles_every_package_alone(self):
        self.assertIn("tools/clang_lane.sh --all", self.run_("tools/nightly.sh", "--dry-run", "alone").stdout)


class ClangLaneTest(unittest.TestCase):
    """Checks which packages tools/clang_lane.sh compiles alone, in a repository with two packages."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("tools/clang_lane.sh", (TREE / "tools/clang_lane.sh").read_text(encoding="utf-8"), 0o755)
        self.write("bin/bazel", """#!/bin/bash
if [ "$1" = query ]; then printf '//lib/a:a\\n//lib/b:b\\n'; exit; fi
for argument; do case $argument in --target_pattern_file=*) file=${argument#*=} ;; --config=alone) alone=alone ;; esac; done
echo "${alone:-groups}:" $(cat "$file")
exit "${BUILD_STATUS:-0}"
""", 0o755)
        for package in ("a", "b"):
            self.write(f"lib/{package}/BUILD.bazel")
            self.write(f"lib/{package}/inner/part.h")
        self.git("init", "-q")
        self.commit("2026-01-01T00:00:00Z")

    def write(self, name, text="", mode=0o644):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)

    def git(self, *arguments, **environment):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments], cwd=self.root, check=True,
                       env=dict(os.environ, **environment))

    def commit(self, date):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "t: t", GIT_AUTHOR_DATE=date, GIT_COMMITTER_DATE=date)

    def lane(self, *arguments, **environment):
        environment["PATH"] = f"{self.root}/bin:{os.environ['PATH']}"
        return subprocess.run(["tools/clang_lane.sh", *arguments], cwd=self.root, capture_output=True, text=True,
                              env=dict(os.environ, **environment))

    def test_a_package_that_changed_within_a_day_is_compiled_alone(self):
        self.write("lib/b/inner/part.h", "// changed\n")
        self.commit("2026-03-01T00:00:00Z")
        self.assertEqual(self.lane().stdout.splitlines(), ["alone: //lib/b:b", "groups: //lib/a:a"])

    def test_every_package_is_compiled_alone_if_the_rules_changed_or_if_asked(self):
        self.write("lib/b/inner/part.h", "// changed\n")
        self.commit("2026-03-01T00:00:00Z")
        self.assertEqual(self.lane("--all").stdout.splitlines(), ["alone: //lib/a:a //lib/b:b"])
        self.write("bazel/cc.bzl", "# changed\n")
        self.commit("2026-03-01T01:00:00Z")
        self.assertEqual(self.lane().stdout.splitlines(), ["alone: //lib/a:a //lib/b:b"])

    def test_a_library_that_does_not_compile_fails_the_lane(self):
        self.assertEqual(self.lane(BUILD_STATUS="1").returncode, 1)
        self.assertEqual(self.lane().returncode, 0)


if __name__ == "__main__":
    unittest.main()
