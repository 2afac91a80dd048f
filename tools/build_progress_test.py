#!/usr/bin/env python3
"""Tests tools/build_progress.py with recorded output of Bazel 4.2.3, and with a fake Bazel that only prints."""

import os
import pathlib
import pty
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import build_progress  # noqa: E402

# Lines of Bazel, each with its second. COLD was recorded with --jobs=2. Its number of actions is nearly the
# final one from 17 s on, as if Bazel had known all actions then.
COLD = """0 Starting local Bazel server and connecting to it...
2 Loading: 0 packages loaded
2 Analyzing: 4 targets (1 packages loaded, 0 targets configured)
5 [0 / 4] [Prepa] BazelWorkspaceStatusAction stable-status.txt
10 [7 / 14] Precompiling bazel/precompiled/messages.inc.h; 5s processwrapper-sandbox ... (2 actions, 1 running)
17 [31 / 581] Precompiling bazel/precompiled/grpc.inc.h; 5s processwrapper-sandbox ... (2 actions running)
22 [36 / 581] Compiling services/coordinator/access_service.cc; 0s processwrapper-sandbox ... (2 actions running)
32 [42 / 581] Compiling proto/muster/v1/coordinator.pb.cc; 2s processwrapper-sandbox ... (2 actions running)
37 [53 / 581] Compiling services/coordinator/commit_queue.cc; 0s processwrapper-sandbox ... (2 actions running)
42 [65 / 581] Compiling lib/job/labels.cc; 0s processwrapper-sandbox ... (2 actions running)
48 [81 / 581] Compiling lib/graph/operators/normalisation.cc; 0s processwrapper-sandbox ... (2 actions running)
83 [143 / 581] Compiling services/coordinator/status_page/coordinator_status.cc; 1s processwrapper-sandbox ... (2 actions running)
127 [211 / 581] Compiling services/coordinator/job_traces.cc; 2s processwrapper-sandbox ... (2 actions, 1 running)
171 [275 / 581] Compiling services/coordinator/user_operations.cc; 4s processwrapper-sandbox ... (2 actions, 1 running)
227 [370 / 583] Compiling lib/fleet/trace_teller.cc; 0s processwrapper-sandbox ... (2 actions, 1 running)
300 [497 / 583] Compiling kernels/cpu/batch_norm.cc; 0s processwrapper-sandbox ... (2 actions, 1 running)
347 [558 / 583] Compiling cli/job_commands.cc; 2s processwrapper-sandbox ... (2 actions, 1 running)
365 INFO: Build completed successfully, 583 total actions"""
NOTHING_TO_DO = """0 Loading: 0 packages loaded
0 Analyzing: 4 targets (0 packages loaded, 0 targets configured)
0 INFO: Analyzed 4 targets (0 packages loaded, 0 targets configured).
0 INFO: Found 4 targets...
0 [0 / 1] [Prepa] BazelWorkspaceStatusAction stable-status.txt
1 INFO: Elapsed time: 0.412s, Critical Path: 0.05s
1 INFO: 1 process: 1 internal.
1 INFO: Build completed successfully, 1 total action
1 INFO: Build completed successfully, 1 total action"""
FAILURE = """0 Loading: 0 packages loaded
1 INFO: Analyzed 4 targets (0 packages loaded, 0 targets configured).
1 INFO: Found 4 targets...
1 [0 / 4] [Prepa] BazelWorkspaceStatusAction stable-status.txt
3 [5 / 21] Compiling lib/file/file.cc; 1s processwrapper-sandbox ... (2 actions running)
4 ERROR: /home/me/muster/lib/file/BUILD.bazel:5:11: Compiling lib/file/file.cc failed: (Exit 1): gcc failed: error executing command /usr/bin/gcc -U_FORTIFY_SOURCE -Wall ... (remaining 60 argument(s) skipped)
4 
4 Use --sandbox_debug to see verbose messages from the sandbox
4 lib/file/file.cc: In function 'absl::Status muster::Sync(int)':
4 lib/file/file.cc:12:3: error: 'fsink' was not declared in this scope; did you mean 'fsync'?
4    12 |   fsink(descriptor);
4       |   ^~~~~
4       |   fsync
4 INFO: Elapsed time: 4.213s, Critical Path: 1.02s
4 INFO: 7 processes: 5 internal, 2 processwrapper-sandbox.
4 FAILED: Build did NOT complete successfully
4 FAILED: Build did NOT complete successfully"""
# A Bazel that prints the recorded lines, then exits with a status.
BAZEL = """#!/bin/bash
echo "$@" >"$CALLED"
cat "$PRINTED" >&2
exit "$STATUS"
"""


class BuildProgressTest(unittest.TestCase):
    def replay(self, recorded, status=0, terminal=False):
        """Returns what is written, as (second, text), if Bazel prints `recorded`."""
        self.now, written = 0, []
        progress = build_progress.BuildProgress(
            "quickstart", lambda text: written.append((self.now, text)), lambda: self.now, terminal, arguments=["//:ps"])
        for line in recorded.splitlines():
            second, _, text = line.partition(" ")
            while self.now < int(second):
                self.now += 1
                progress.show()
            progress.read(text)
        progress.end(status)
        return written

    def test_a_cold_build_shows_percent_and_time_left(self):
        written = self.replay(COLD)
        seconds = [second for second, _ in written]
        self.assertTrue(all(later - earlier >= 10 for earlier, later in zip(seconds, seconds[1:-1])), seconds)
        texts = [text for _, text in written]
        self.assertEqual(texts[0], "quickstart: compiling\n")
        self.assertIn("quickstart: compiling 24 %, about 4 min left\n", texts)
        self.assertEqual(texts[-1], "quickstart: compiled in 6:05 min\n")

    def test_the_time_left_is_right_within_a_third(self):
        for second, text in self.replay(COLD):
            if "about" in text and second < 330:
                number, unit = text.split("about ")[1].split()[:2]
                left = int(number) * (60 if unit == "min" else 1)
                self.assertLess(abs(left - (365 - second)), 30 + (365 - second) / 3, (second, text))

    def test_the_percentage_never_falls(self):
        # Without --jobs=200 Bazel finds actions during the whole build: 337, 338, 408 and so on.
        late = COLD.replace("/ 581]", "/ 338]").replace("[370 / 583]", "[370 / 408]").replace("[497 / 583]", "[497 / 524]")
        for recorded in (COLD, late):
            percents = [int(text.split("compiling ")[1].split(" %")[0]) for _, text in self.replay(recorded) if " %" in text]
            self.assertEqual(percents, sorted(percents))
            self.assertLess(percents[-1], 100)

    def test_the_first_number_of_actions_is_no_percentage(self):
        self.assertFalse([text for second, text in self.replay(COLD, terminal=True) if second < 20 and " %" in text])

    def test_on_a_terminal_the_line_rewrites_itself(self):
        written = self.replay(COLD, terminal=True)
        self.assertGreater(len(written), 50)
        for _, text in written[:-1]:
            self.assertTrue(text.startswith("\r") and text.endswith("\033[K"), repr(text))
            self.assertNotIn("\n", text)
        self.assertEqual(written[-1][1], "quickstart: compiled in 6:05 min\n")

    def test_with_nothing_to_do_it_says_only_that(self):
        self.assertEqual([text for _, text in self.replay(NOTHING_TO_DO)], ["quickstart: everything is compiled already\n"])

    def test_errors_are_shown_in_full(self):
        text = "".join(text for _, text in self.replay(FAILURE, status=1))
        errors = [line.partition(" ")[2] for line in FAILURE.splitlines()]
        first = next(number for number, line in enumerate(errors) if line.startswith("ERROR"))
        for line in errors[first:]:
            if not line.startswith("INFO: ") and not line.startswith("["):
                self.assertIn(line + "\n", text)

    def test_a_failure_names_cause_place_and_remedy(self):
        self.assertEqual("".join(text for _, text in self.replay(FAILURE, status=1)[-1:]), """quickstart: the build failed after 0:04 min (Bazel's exit status: 1)
  cause:  'fsink' was not declared in this scope; did you mean 'fsync'?
  place:  lib/file/file.cc:12:3
  remedy: correct it (the full message is above) and run the same command again; finished parts stay compiled
""")

    def test_a_full_disk_has_a_remedy_of_its_own(self):
        full = "3 ERROR: /home/me/muster/lib/file/BUILD.bazel:5:11: Compiling lib/file/file.cc failed: (Exit 1): gcc failed\n" \
            "3 fatal error: error writing to /tmp/ccYd7Xb2.s: No space left on device"
        last = self.replay(full, status=1)[-1][1]
        self.assertIn("place:  /home/me/muster/lib/file/BUILD.bazel:5:11\n", last)
        self.assertIn("remedy: free space", last)

    def test_memory_that_ran_out_has_a_remedy_of_its_own(self):
        last = self.replay("3 g++: fatal error: Killed signal terminated program cc1plus", status=1)[-1][1]
        self.assertIn("remedy: the memory ran out", last)
        self.assertIn("bazel build --jobs=1 //:ps", last)

    def test_an_interruption_is_no_failure(self):
        self.assertEqual(self.replay(COLD.splitlines()[0], status=8)[-1][1], "quickstart: interrupted after 0:00 min; the same command continues from there\n")


class ProgramTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "bazel").write_text(BAZEL, encoding="utf-8")
        (self.root / "bazel").chmod(0o755)

    def start(self, recorded, status, stderr):
        printed = self.root / "printed"
        printed.write_text("".join(line.partition(" ")[2] + "\n" for line in recorded.splitlines()), encoding="utf-8")
        return subprocess.Popen([sys.executable, build_progress.__file__, "quickstart", "--config=nocuda", "//:ps"], stderr=stderr, text=True, env={
            **os.environ, "PATH": f"{self.root}:{os.environ['PATH']}", "PRINTED": str(printed), "CALLED": str(self.root / "called"),
            "STATUS": str(status), "TERM": "xterm"})

    def test_the_status_is_that_of_bazel(self):
        for status in (0, 1, 36):
            program = self.start(FAILURE, status, subprocess.PIPE)
            errors = program.communicate()[1]
            self.assertEqual(program.returncode, status)
            self.assertIn("error:", errors)
            self.assertNotIn("\033", errors)
        called = (self.root / "called").read_text(encoding="utf-8")
        self.assertRegex(called, "^build --jobs=200 .*--config=nocuda //:ps\n$")

    def test_a_terminal_is_noticed(self):
        ours, its = pty.openpty()
        program = self.start(COLD, 0, its)
        os.close(its)
        shown = b""
        try:
            while some := os.read(ours, 4096):
                shown += some
        except OSError:  # Linux reports the end of the terminal this way
            pass
        os.close(ours)
        self.assertEqual(program.wait(), 0)
        self.assertIn(b"\rquickstart: ", shown)
        self.assertTrue(shown.endswith(b"\r\033[Kquickstart: compiled in 0:00 min\r\n"), shown)


if __name__ == "__main__":
    unittest.main()
