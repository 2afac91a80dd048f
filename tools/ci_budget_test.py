#!/usr/bin/env python3
"""Tests tools/ci_budget.sh with a fake clock, a fake compiler and lanes that only pretend to take time."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

TREE = pathlib.Path(__file__).parent.parent
DOCUMENT = """# Testing
| `clang` | 999 | a table of another section |
## Budget
| lane | yardsticks |
|---|---:|
| `clang` | 100 |
| `tests` | 200 |
## Build time
| `fuzz` | 999 |
"""
# A fake compiler. Each run takes the next number of seconds from the file YARDSTICKS: half for compiling, half for
# running the program.
COMPILER = """#!/bin/bash
read -r seconds rest <"$YARDSTICKS"
echo "$rest $seconds" >"$YARDSTICKS"
spend() { read -r clock cpu <"$CI_BUDGET_CLOCK"; echo "$((clock + $1)) $((cpu + $1))" >"$CI_BUDGET_CLOCK"; }
[ "$seconds" != broken ] || exit 1
spend $((seconds / 2))
while [ "$1" != -o ]; do shift; done
{ echo '#!/bin/bash'; declare -f spend; echo "spend $((seconds / 2))"; } >"$2"
chmod +x "$2"
"""


class CiBudgetTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in ("tools", "docs", "bin", "laps"):
            (self.root / name).mkdir()
        shutil.copy(TREE / "tools/ci_budget.sh", self.root / "tools")
        (self.root / "docs/testing.md").write_text(DOCUMENT, encoding="utf-8")
        (self.root / "bin/g++").write_text(COMPILER, encoding="utf-8")
        (self.root / "bin/g++").chmod(0o755)
        (self.root / "bin/nproc").write_text("#!/bin/bash\necho 1\n", encoding="utf-8")
        (self.root / "bin/nproc").chmod(0o755)
        self.log = self.root / "cache/muster/ci_budget.log"
        self.clock, self.yardsticks = self.root / "clock", self.root / "yardsticks"
        self.clock.write_text("1000 50", encoding="utf-8")
        self.environment = {
            "PATH": f"{self.root}/bin:{os.environ['PATH']}", "HOME": str(self.root), "XDG_CACHE_HOME": str(self.root / "cache"),
            "CI_BUDGET_CLOCK": str(self.clock), "YARDSTICKS": str(self.yardsticks)}

    def budget(self, *arguments):
        return subprocess.run(["tools/ci_budget.sh", *arguments], cwd=self.root, env=self.environment, capture_output=True, text=True, check=False)

    def run_lanes(self, yardsticks="4 4 4 4", **cost):
        """Runs lanes of `cost` seconds of processor time, half of that by the clock. Returns the result of `check`."""
        self.yardsticks.write_text(yardsticks, encoding="utf-8")
        shutil.rmtree(self.root / "laps")
        (self.root / "laps").mkdir()
        self.budget("begin", "laps")
        for lane, seconds in cost.items():
            clock, cpu = (int(number) for number in self.clock.read_text(encoding="utf-8").split())
            self.clock.write_text(f"{clock + seconds // 2} {cpu + seconds}", encoding="utf-8")
            self.budget("lap", "laps", lane)
        return self.budget("check", "laps")

    def logged(self):
        return [line.split() for line in self.log.read_text(encoding="utf-8").splitlines() if not line.startswith("date ")]

    def test_lanes_within_their_budget_pass(self):
        check = self.run_lanes(clang=400, tests=796)
        self.assertEqual(check.returncode, 0)
        self.assertIn("one yardstick is 4.00 s", check.stderr)
        self.assertRegex(check.stderr, r"clang +100\.0 of 100 yardsticks \(400 s of processor time, 200 s by the clock\)\n")
        self.assertNotIn("over", check.stderr)

    def test_a_lane_over_its_budget_by_less_than_a_quarter_passes_with_a_warning(self):
        check = self.run_lanes(clang=496, tests=8)
        self.assertEqual(check.returncode, 0)
        self.assertRegex(check.stderr, "clang .*warning, 24 % over")

    def test_a_lane_over_its_budget_by_more_than_a_quarter_fails(self):
        check = self.run_lanes(clang=504, tests=8)
        self.assertEqual(check.returncode, 1)
        self.assertRegex(check.stderr, "clang .*FAILED, 26 % over; .*docs/testing.md")
        self.assertNotRegex(check.stderr, "tests .*FAILED")

    def test_the_status_is_the_number_of_lanes_that_failed(self):
        self.assertEqual(self.run_lanes(clang=1000, tests=2000).returncode, 2)

    def test_a_lane_without_a_budget_fails(self):
        check = self.run_lanes(fuzz=4)
        self.assertEqual(check.returncode, 1)
        self.assertRegex(check.stderr, "fuzz .*FAILED, because .* no row")

    def test_a_slower_machine_has_the_same_verdict(self):
        self.assertEqual(self.run_lanes("40 40 40 40", clang=4000).returncode, 0)
        self.assertEqual(self.run_lanes("40 40 40 40", clang=5040).returncode, 1)

    def test_the_median_ignores_one_measurement_beside_another_program(self):
        check = self.run_lanes("4 400 4 4", clang=504)
        self.assertEqual(check.returncode, 1)
        self.assertIn("one yardstick is 4.00 s", check.stderr)

    def test_both_measurements_count(self):
        self.assertIn("one yardstick is 6.00 s", self.run_lanes("4 4 8 8", clang=4).stderr)

    def test_the_log_grows_by_a_line_for_each_lane(self):
        self.run_lanes(clang=400, tests=8)
        self.run_lanes(clang=504)
        rows = self.logged()
        self.assertEqual([row[2:] for row in rows], [
            ["clang", "400.0", "200.0", "4.00", "100.0", "100", "ok"],
            ["tests", "8.0", "4.0", "4.00", "2.0", "200", "ok"],
            ["clang", "504.0", "252.0", "4.00", "126.0", "100", "FAILED"]])
        for date, commit, *_ in rows:
            self.assertRegex(date, r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
            self.assertRegex(commit, r"^([0-9a-f]{12}|unknown)$")

    def test_the_log_is_where_the_variable_says(self):
        self.environment["MUSTER_CI_BUDGET_LOG"] = str(self.root / "elsewhere")
        self.run_lanes(clang=4)
        self.assertFalse(self.log.exists())
        self.assertTrue((self.root / "elsewhere").exists())

    def test_a_log_that_cannot_be_written_fails_no_lane(self):
        self.environment["MUSTER_CI_BUDGET_LOG"] = "/dev/null/log"
        check = self.run_lanes(clang=4)
        self.assertEqual(check.returncode, 0)
        self.assertIn("/dev/null/log cannot be written", check.stderr)

    def test_a_yardstick_that_cannot_be_measured_is_no_number_of_lanes(self):
        self.assertEqual(self.run_lanes("broken", clang=4).returncode, 100)
        self.assertEqual(self.run_lanes("4 4 broken", clang=4).returncode, 100)

    def test_the_processor_time_of_children_is_measured(self):
        """With this machine's clock: a lane that computes costs more than one that sleeps."""
        del self.environment["CI_BUDGET_CLOCK"]
        (self.root / "bin/bazel").write_text("#!/bin/bash\nexit 1\n", encoding="utf-8")
        (self.root / "bin/bazel").chmod(0o755)
        (self.root / "bin/g++").write_text("""#!/bin/bash
while [ "$1" != -o ]; do shift; done
printf '#!/bin/bash\\nfor ((i = 0; i < 20000; i++)); do :; done\\n' >"$2"; chmod +x "$2"
""", encoding="utf-8")
        lanes = """tools/ci_budget.sh begin laps
            sleep 0.2
            tools/ci_budget.sh lap laps clang
            bash -c 'for ((i = 0; i < 300000; i++)); do :; done' | cat
            tools/ci_budget.sh lap laps tests
            tools/ci_budget.sh check laps; true"""
        subprocess.run(["bash", "-c", lanes], cwd=self.root, env=self.environment, capture_output=True, check=True)
        (_, _, _, sleep, clock, *_), (_, _, _, computing, *_) = self.logged()
        self.assertGreaterEqual(float(clock), 0.2)
        self.assertLess(float(sleep), 0.2)
        self.assertGreater(float(computing), 2 * float(sleep))

    def test_the_document_has_a_budget_for_each_lane(self):
        shutil.copy(TREE / "docs/testing.md", self.root / "docs")
        lanes = re.findall(r"ci_budget\.sh lap \S+ ([a-z]+)", (TREE / ".ci/run").read_text(encoding="utf-8"))
        self.assertEqual(lanes, ["clang", "fuzz", "format", "tests"])
        check = self.run_lanes(**{lane: 4 for lane in lanes})
        self.assertEqual(check.returncode, 0, check.stderr)
        self.assertEqual(len(self.logged()), len(lanes))


if __name__ == "__main__":
    unittest.main()
