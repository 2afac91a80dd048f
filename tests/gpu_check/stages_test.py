#!/usr/bin/env python3
"""Tests the stages of gpu_check with fake programs, which print as programs on a GPU do and end in the same ways."""

import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.join(HERE, "..", "..", "tools", "gpu_check")

# Answers to --gtest_list_tests and GTEST_FILTER as a gtest program does. The names say how each test ends.
GPU_TESTS = """#!/usr/bin/env python3
import os, sys, time
tests = ["TestedDeviceTest.IsThere"] + os.environ["FAKE_TESTS"].split()
if "--gtest_list_tests" in sys.argv:
    if os.environ["GTEST_FILTER"].startswith("Nccl"):
        tests = [t for t in tests if t.startswith("Nccl")]
    for test in tests:
        print(test.split(".")[0] + ".\\n  " + test.split(".")[1])
    sys.exit()
wanted = os.environ.get("GTEST_FILTER", "TestedDeviceTest.IsThere").split(":")
for argument in sys.argv[1:]:
    wanted = [argument.split("=")[1].replace("*", "IsThere")]
bad = broken = 0
for test in (t for t in tests if t in wanted):
    print("[ RUN      ] " + test, flush=True)
    how = test.split(".")[1]
    if how.startswith("Crash"):
        os.abort()
    if how.startswith("Hang"):
        time.sleep(600)
    if how.startswith("Break") or broken:
        bad = broken = 1
        print("a/b_test.cc:7: Failure\\nan illegal memory access was encountered\\n[  FAILED  ] %s (1 ms)" % test)
    elif how.startswith("Fail"):
        bad = 1
        print("a/b_test.cc:7: Failure\\nValue of: x\\n[  FAILED  ] %s (1 ms)" % test)
    elif how.startswith("Skip") or (test == "TestedDeviceTest.IsThere" and "FAKE_NO_GPU" in os.environ):
        print("a/b_test.cc:9: Skipped\\nno driver\\n[  SKIPPED ] %s (0 ms)" % test)
    else:
        print("[       OK ] %s (1 ms)" % test)
sys.exit(bad)
"""

MUSTER = """#!/usr/bin/env python3
import json, os, sys
arguments = " ".join(sys.argv[1:])
if "deterministic" in arguments:
    print("muster: no kernel repeats to the bit", file=sys.stderr)
    sys.exit(1)
print(json.dumps({"step_seconds": 0.08, "fastest_step_seconds": 0.07, "step_flops": 1e12, "peak_flops_per_second": 1e14,
                  "profile": [{"node": "head", "op": "Linear", "types": "", "seconds": 0.01}], "arguments": arguments}))
"""

PYTORCH = """import json, os, sys
arguments = " ".join(sys.argv[1:])
if "--compile" in arguments and "--profile" not in arguments and "FAKE_NO_TRITON" in os.environ:
    raise RuntimeError("no triton")
print(json.dumps({"step_seconds": 0.1, "fastest_step_seconds": 0.09, "arguments": arguments,
                  "cache": os.environ["TORCHINDUCTOR_CACHE_DIR"],
                  "profile": [{"kernel": "gemm", "calls": 1, "seconds": 0.02}]}))
"""


class Stages(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        for name in ("stages.py", "report.py"):
            shutil.copy(os.path.join(SOURCES, name), self.folder)
        for name, text in (("gpu_tests", GPU_TESTS), ("muster", MUSTER), ("pytorch_models.py", PYTORCH)):
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(os.path.join(self.folder, name), 0o755)
        self.results = os.path.join(self.folder, "results")

    def command(self, *arguments):
        return [sys.executable, os.path.join(self.folder, "stages.py"), *arguments]

    def environment(self, **more):
        return {**os.environ, "FAKE_TESTS": "A.Good", "PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": self.folder, **more}

    def run_stage(self, *arguments, **environment):
        return subprocess.run(self.command(*arguments), env=self.environment(**environment), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, universal_newlines=True, check=False)

    def text_of(self, path):
        with open(path, encoding="utf-8") as file:
            return file.read()

    def saved(self, pattern):
        (path,) = glob.glob(os.path.join(self.results, pattern))
        return json.loads(self.text_of(path))

    def test_without_a_gpu_every_stage_says_so_and_writes_nothing(self):
        for stage in ("tests", "nccl", "models", "profile", "job", "all"):
            ended = self.run_stage(stage, self.results, FAKE_NO_GPU="1")
            self.assertEqual(ended.returncode, 69, ended.stderr)
            self.assertEqual(ended.stderr, f"gpu_check: {stage}: no GPU: no driver\n")
        self.assertEqual(os.listdir(self.results), [])

    def test_all_tests_pass(self):
        ended = self.run_stage("tests", self.results, FAKE_TESTS="A.Good A.Better B.Best")
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertIn("4 passed\n", ended.stdout)
        self.assertEqual(self.saved("tests-*-tests.json")["tests"]["B.Best"]["status"], "passed")
        (logs,) = glob.glob(os.path.join(self.results, "tests-*-logs.tar.gz"))
        with tarfile.open(logs) as archive:
            self.assertTrue(any(name.endswith("tests-000-0.out") for name in archive.getnames()))

    def test_a_skipped_test_has_failed(self):
        ended = self.run_stage("tests", self.results, FAKE_TESTS="A.Good A.Skip")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("| A.Skip | skipped | b_test.cc:9: Skipped no driver |", ended.stdout)
        self.assertIn("FAILED: 1 tests", ended.stdout)

    def test_a_test_that_ends_the_program_takes_no_other_along(self):
        ended = self.run_stage("tests", self.results, FAKE_TESTS="A.Good A.Crash A.Later A.Fail B.CrashToo B.Last")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("4 passed, 1 failed, 2 crashed", ended.stdout)
        self.assertEqual(self.saved("tests-*-tests.json")["tests"]["A.Crash"]["status"], "crashed")
        self.assertIn("| A.Crash | crashed | SIGABRT", ended.stdout)

    def test_a_test_that_breaks_the_device_takes_no_other_along(self):
        ended = self.run_stage("tests", self.results, FAKE_TESTS="A.Good A.Break A.Later B.BreakToo B.Last")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("4 passed, 2 failed\n", ended.stdout)

    def test_tests_that_break_the_device_on_purpose_run_alone(self):
        ended = self.run_stage("tests", self.results, FAKE_TESTS="SomeFaultTest.One A.Good SomeFaultTest.Two")
        self.assertEqual(ended.returncode, 0)
        (logs,) = glob.glob(os.path.join(self.results, "tests-*-logs.tar.gz"))
        with tarfile.open(logs) as archive:
            run = [archive.extractfile(name).read().decode() for name in archive.getnames() if "/tests-" in name and name.endswith(".out")]
        self.assertEqual(sorted(text.count("RUN") for text in run), [1, 1, 2])

    def test_what_the_time_does_not_reach_is_said(self):
        begin = time.monotonic()
        ended = self.run_stage("tests", self.results, "--seconds", "4", FAKE_TESTS="A.Good A.Hang A.Later")
        self.assertLess(time.monotonic() - begin, 30)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("2 passed, 2 not reached", ended.stdout)
        self.assertIn("not reached, for want of time: 2 tests", ended.stdout)

    def test_a_program_that_runs_nothing_of_what_was_asked_for_is_not_asked_for_ever(self):
        path = os.path.join(self.folder, "gpu_tests")
        text = self.text_of(path)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace("if t in wanted", 'if t in wanted and not t.startswith("Lost")'))
        ended = self.run_stage("tests", self.results, FAKE_TESTS="Lost.One")
        self.assertIn("1 passed, 1 crashed", ended.stdout)

    def test_nccl_runs_its_own_cases_alone(self):
        ended = self.run_stage("nccl", self.results, FAKE_TESTS="A.Fail NcclCommunicatorTest.Good")
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertIn("1 passed\n", ended.stdout)
        ended = self.run_stage("nccl", self.results)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("there are no tests", ended.stdout)

    def test_models_compares_every_variant_and_goes_on_after_failures(self):
        ended = self.run_stage("models", "gpt2", self.results, FAKE_NO_TRITON="1")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("| Muster | autotuned, resident | 80.00 |", ended.stdout)
        self.assertIn("| Muster | deterministic, streamed | failed: muster: no kernel repeats to the bit |", ended.stdout)
        self.assertIn("| PyTorch | torch.compile | failed: RuntimeError: no triton |", ended.stdout)
        self.assertIn("| PyTorch | eager | 100.00 |", ended.stdout)
        self.assertEqual(len(glob.glob(os.path.join(self.results, "*.json"))), 6)
        ours = self.saved("*muster-autotuned-streamed-1.json")["arguments"]
        for words in ("--arg dropout=0", "--autotuned --values streamed", "--precision bf16 --batch 32", "--device cuda:0"):
            self.assertIn(words, ours)
        theirs = self.saved("*pytorch-eager-1.json")
        self.assertIn("--precision bf16 --batch 32", theirs["arguments"])
        self.assertNotIn("--compile", theirs["arguments"])
        self.assertTrue(theirs["cache"].startswith(self.folder))

    def test_both_models_are_compared_where_none_is_named(self):
        ended = self.run_stage("models", self.results)
        self.assertIn("GPT-2 124M", ended.stdout)
        self.assertIn("ResNet-50", ended.stdout)
        self.assertIn("--channels-last", self.saved("*resnet50-pytorch-eager-1.json")["arguments"])

    def test_profile_shows_both_sides(self):
        ended = self.run_stage("profile", "resnet50", self.results)
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertIn("| head | Linear | 10.000 |", ended.stdout)
        self.assertIn("| gemm | 1 | 20.000 | 100.0 % |", ended.stdout)

    def test_ranks_are_compared_with_one(self):
        ended = self.run_stage("ranks", self.results)
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertIn("| 8 | 80.00 | 1.000 | 8.00 |", ended.stdout)
        saved = json.load(open(glob.glob(os.path.join(self.results, "*rank-0-of-4.json"))[0], encoding="utf-8"))
        self.assertIn("--tensor-parallel 4", saved["arguments"])

    def test_nothing_is_overwritten(self):
        for _ in range(3):
            self.assertEqual(self.run_stage("tests", self.results).returncode, 0)
        for pattern in ("*.md", "*-tests.json", "*-logs.tar.gz"):
            self.assertEqual(len(glob.glob(os.path.join(self.results, pattern))), 3)

    def test_all_runs_what_the_time_allows_and_says_what_it_does_not(self):
        ended = self.run_stage("all", self.results, "--seconds", "25", FAKE_TESTS="A.Good A.Hang NcclCommunicatorTest.Good")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("## tests", ended.stdout)
        self.assertIn("not reached, for want of time: profile resnet50", ended.stdout)

    def test_a_signal_ends_what_was_started(self):
        process = subprocess.Popen(self.command("tests", self.results), env=self.environment(FAKE_TESTS="A.Hang"),
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        pattern = os.path.join(self.folder, "work-*", "logs-*", "tests-000-0.out")
        while not any("A.Hang" in self.text_of(path) for path in glob.glob(pattern)):
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.assertEqual(glob.glob(os.path.join(self.folder, "work-*")), [])
        (table,) = glob.glob(os.path.join(self.results, "*.md"))
        self.assertEqual(self.text_of(table), "## tests: began, and did not end\n")

    def test_a_signal_that_comes_at_any_moment_ends_what_was_started(self):
        # Popen holds this lock for a moment whenever it checks whether a program has ended.
        sys.path.insert(0, SOURCES)
        import stages
        process = stages.start(["sleep", "600"], None, None, None)
        try:
            with process._waitpid_lock:
                stages.stop(signal.SIGTERM, None)
            with self.assertRaises(stages.Stopped):
                stages.ended_within(600, process)
        finally:
            stages.kill_group(process)
            stages.stop(0, None)

    def test_what_cannot_be_meant_is_refused(self):
        self.assertEqual(self.run_stage("tests", "gpt2", self.results).returncode, 2)
        self.assertEqual(self.run_stage("models", "gpt7", self.results).returncode, 2)
        self.assertEqual(self.run_stage("tests").returncode, 2)
        self.assertEqual(self.run_stage("tests", "/proc/nowhere").returncode, 2)


if __name__ == "__main__":
    unittest.main()
