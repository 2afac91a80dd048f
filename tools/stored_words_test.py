#!/usr/bin/env python3
"""Checks that the coordinator decides nothing by the reason or the message of a job.

Both are words for people. If code compared them, rewording an event would change behavior. services/coordinator/common/job_phase.cc alone reads
the words of stored jobs.
"""

import pathlib
import re
import unittest

TREE = pathlib.Path(__file__).resolve().parent.parent
WORD = r"\b(?:reason|message)\(\)"
DECIDES = re.compile(rf"{WORD}\s*[=!]=|[=!]=\s*[\w.>()-]*{WORD}|{WORD}\.(?:starts_with|ends_with|find|rfind)\(|(?:StartsWith|EndsWith|StrContains)\([\w.>()-]*{WORD}")
ALLOWED = {
    "services/coordinator/common/job_phase.cc": "reads stored jobs",
    "services/coordinator/job/recovery/failure_detector.cc": "reads the errors of members, whose reasons are part of the protocol",
}


def decisions(text):
    """Returns the lines that compare a reason or a message."""
    return [line.strip() for line in text.splitlines() if DECIDES.search(line)]


class StoredWordsTest(unittest.TestCase):
    def test_finds_comparisons(self):
        for line in ['if (record_.reason() == "X") {', 'return x != job->message();', 'job.reason().starts_with("WAITS_")',
                     'absl::StartsWith(job.reason(), "WAITS_FOR_")', "text = m.message().substr(0, m.message().rfind(k));"]:
            self.assertEqual(decisions(line), [line])
        for line in ['Note(cause.reason(), cause.message(), now);', 'status.error_message() == "x"', 'set_reason(told ? a : b)']:
            self.assertEqual(decisions(line), [])

    def test_the_coordinator_compares_no_words(self):
        found = {}
        for path in sorted((TREE / "services/coordinator").rglob("*")):
            name = path.relative_to(TREE).as_posix()
            if path.suffix not in (".cc", ".h") or name.endswith("_test.cc") or "/testing/" in name:
                continue
            if lines := decisions(path.read_text(encoding="utf-8")):
                found[name] = lines
        self.assertEqual({name: lines for name, lines in found.items() if name not in ALLOWED}, {})
        self.assertEqual(set(ALLOWED) - set(found), set(), "no longer needed")


if __name__ == "__main__":
    unittest.main()
