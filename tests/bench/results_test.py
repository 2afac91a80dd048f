#!/usr/bin/env python3
"""Checks that record.py reads the output of sync.sh. Checks that plot.py makes the committed pictures, and the page's tables, from
the committed results."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

HERE = pathlib.Path(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import plot  # noqa: E402
import record  # noqa: E402

DOCS = HERE / ".." / ".." / "docs"
FIGURES = DOCS / "figures"

# Stubs of `muster bench sync -o name` and of the bare loop print figures, and a round trip of 0.2 us for 64 bytes. The stub of taskset
# binds nothing, because a test may not be allowed to use processor 0.
MUSTER = "#!/bin/sh\necho SIZE 30.25 1.5\n"
BARE_LOOP = "#!/bin/sh\ncase \"$*\" in *--bytes=64\\ *) echo 1 0.2 ;; *) echo 40 0.75 ;; esac\n"
TASKSET = "#!/bin/sh\nshift 2\nexec \"$@\"\n"


def printed_by_sync(*arguments):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("cli/muster", MUSTER), ("tests/bench/bare_loop", BARE_LOOP), ("path/taskset", TASKSET)):
            program = pathlib.Path(folder) / name
            program.parent.mkdir(parents=True)
            program.write_text(text, encoding="utf-8")
            program.chmod(0o755)
        environment = {**os.environ, "BIN": folder, "PATH": f"{folder}/path:{os.environ['PATH']}"}
        return subprocess.run([HERE / "sync.sh", "--turns", "2", *arguments], env=environment, check=True,
                              capture_output=True, text=True).stdout


def recorded_from(printed):
    flags = ["--command", "sync.sh", "--machine", "here", "--commit", "c0ffee", "--date", "2026-11-22", "--time", "12:00"]
    return subprocess.run([sys.executable, HERE / "record.py", *flags], input=printed, capture_output=True, text=True, check=False)


class Record(unittest.TestCase):
    def test_reads_the_goodput_that_sync_prints(self):
        result = json.loads(recorded_from(printed_by_sync("--members", "1,2", "--links", "tcp", "--sizes", "4K,1M")).stdout)
        self.assertEqual((result["what"], result["unit"], result["commit"]), ("goodput", "Gbit/s", "c0ffee"))
        self.assertEqual([(table["link"], table["workers"], table["ps"], table["processors"]) for table in result["tables"]],
                         [("tcp", 1, 1, "near"), ("tcp", 2, 2, "near")])
        rows = result["tables"][0]["rows"]
        self.assertEqual([row["bytes"] for row in rows], [4096, 1 << 20])
        self.assertEqual(rows[1]["muster"], {"value": 30.25, "runs": 2})
        self.assertEqual(rows[1]["bare_tcp"], {"value": 40.0, "runs": 2, "ratio": 0.76})
        self.assertEqual(rows[1]["peer"], {"value": 10.0, "ratio": 3.02})

    def test_reads_the_round_trips_that_sync_prints(self):
        result = json.loads(recorded_from(printed_by_sync("--round-trip")).stdout)
        self.assertEqual((result["what"], result["unit"]), ("round_trip", "us"))
        self.assertEqual(result["tables"][0]["rows"][0], {"case": "shared memory, both poll", "processors": "near",
                                                          "muster": {"value": 1.5, "runs": 2}, "bare_loop": {"value": 0.75, "runs": 2, "ratio": 2.0}})

    def test_leaves_out_what_was_not_measured(self):
        table = ["1 workers, 1 ps, tcp, poll auto: Gbit/s, medians (runs), processors far", "| size | Muster | bare tcp | ratio | peer | ratio |",
                 "|---:|---:|---:|---:|---:|---:|", "| 1 MiB | 46.85 (1) |  |  | 10 | 4.69 |", "| 2 MiB |  | 31.82 (5) |  | | |"]
        rows = record.tables(table)[1][0]["rows"]
        self.assertEqual(rows[0], {"bytes": 1 << 20, "muster": {"value": 46.85, "runs": 1}, "peer": {"value": 10.0, "ratio": 4.69}})
        self.assertEqual(rows[1], {"bytes": 2 << 20, "bare_tcp": {"value": 31.82, "runs": 5}})

    def test_refuses_what_it_cannot_read_and_says_where(self):
        title = "1 workers, 1 ps, tcp, poll auto: Gbit/s, medians (runs), processors far\n"
        head = title + "| size | Muster | peer | ratio |\n|---:|---:|---:|---:|\n"
        for printed, reason in (("", "no table"),
                                ("sync.sh: no bazel-bin\n", "line 1: 'sync.sh: no bazel-bin' is no title"),
                                ("| 4 KiB | 1 |\n", "line 1: a row without"),
                                ("| size | Muster |\n", "line 1: a table of goodput without a title"),
                                (head + "| 4 KiB | fast (3) | | |\n", "line 4: 'fast (3)' under 'Muster'"),
                                (head + "| 4 KiB | 1 (3) | | 2 |\n", "line 4: '2' under 'ratio'"),
                                (head + "| four | 1 (3) | | |\n", "line 4: 'four' is no size"),
                                (head + "| 4 KiB | 1 (3) |\n", "line 4: 2 cells under 4 names")):
            with self.subTest(printed=printed):
                run = recorded_from(printed)
                self.assertEqual((run.returncode, run.stdout), (65, ""))
                self.assertIn(reason, run.stderr)


class Results(unittest.TestCase):
    def test_are_written_as_record_writes_them(self):
        paths = sorted((HERE / "results").glob("*.json"))
        self.assertGreater(len(paths), 5)
        for path in paths:
            with self.subTest(path=path.name):
                written = path.read_text(encoding="utf-8")
                result = json.loads(written)
                self.assertEqual(written, record.dump(result))
                self.assertEqual(set(result), {"what", "date", "time", "machine", "command", "commit", "note", "unit", "tables"})
                self.assertTrue(path.name.startswith(result["date"]))
                self.assertRegex(result["commit"], "^[0-9a-f]{7,40}$")


class Pictures(unittest.TestCase):
    def test_are_what_plot_makes_of_the_results(self):
        drawn = plot.pictures(plot.read(HERE / "results"))
        self.assertEqual(set(drawn), {path.name for path in FIGURES.glob("*.svg")})
        for name, svg in drawn.items():
            with self.subTest(picture=name):
                self.assertEqual((FIGURES / name).read_text(encoding="utf-8"), svg, f"docs/figures/{name} is out of date: tests/bench/plot.py")

    def test_stand_on_the_page_with_their_tables(self):
        page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
        for name in plot.pictures(plot.read(HERE / "results")):
            self.assertIn(f"(figures/{name})", page)
        for link in ("shm", "tcp"):
            with self.subTest(link=link):
                self.assertIn("\n\n" + plot.goodput_table(plot.read(HERE / "results"), link) + "\n", page,
                              f"docs/benchmarks.md lacks the table of tests/bench/plot.py --table {link}")

    def test_are_xml_that_asks_for_nothing_outside(self):
        for name, svg in plot.pictures(plot.read(HERE / "results")).items():
            with self.subTest(picture=name):
                xml.etree.ElementTree.fromstring(svg)
                self.assertNotIn("href", svg)
                self.assertIsNone(re.search(r"url\(|@import", svg))

    def test_take_results_in_the_order_of_their_time(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, date, time in (("a", "2026-11-23", "09:00"), ("b", "2026-11-22", "10:00"), ("c", "2026-11-22", None)):
                (pathlib.Path(folder) / (name + ".json")).write_text(json.dumps({"date": date, "time": time, "note": name}), encoding="utf-8")
            self.assertEqual([result["note"] for result in plot.read(folder)], ["c", "b", "a"])

    def test_are_of_the_newest_result_of_each_link_and_members(self):
        old, new = ({"what": "goodput", "tables": [{"link": "tcp", "workers": count, "ps": count, "processors": "near", "rows": [{"bytes": 4096, "muster": {"value": value}}]}
                                                   for count in counts]} for value, counts in ((7, (1, 2)), (3, (2,))))
        svg = plot.goodput([old, new], "tcp")
        self.assertEqual(svg, plot.goodput([{"what": "goodput", "tables": [old["tables"][0], new["tables"][0]]}], "tcp"))
        self.assertNotEqual(svg, plot.goodput([old], "tcp"))

    def test_leave_a_gap_where_nothing_was_measured(self):
        rows = [{"bytes": 4096 << shift, "muster": {"value": 5}} for shift in range(4)]
        del rows[1]["muster"]
        svg = plot.goodput([{"what": "goodput", "tables": [{"link": "tcp", "workers": 1, "ps": 1, "processors": "far", "rows": rows}]}], "tcp")
        paths = [path for path in re.findall(r'<path d="([^"]+)" class="line a"/>', svg) if path.count("M") > 1]
        self.assertEqual([path.count("L") for path in paths], [1])


if __name__ == "__main__":
    unittest.main()
