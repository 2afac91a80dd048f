#!/usr/bin/env python3
"""Commands of docs/production_checklist.md exist, and its queries are PromQL over metrics that exist."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

DOCS = pathlib.Path(os.path.dirname(os.path.abspath(__file__)))
PAGE = (DOCS / "production_checklist.md").read_text(encoding="utf-8")


def code_lines():
    return re.findall(r"^ {8}(\S.*)$", PAGE, re.MULTILINE)


def queries():
    return re.findall(r"promtool query instant \$PROM '([^']*)'", PAGE)


class ProductionChecklistTest(unittest.TestCase):
    def test_every_item_has_a_good_result_or_a_page(self):
        items = re.findall(r"^- \[ \] (.*?)(?=^- \[ \] |^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
        self.assertGreater(len(items), 30)
        for item in items:
            self.assertTrue("Good:" in item or "](" in item, item)

    def test_muster_has_the_commands_and_their_flags(self):
        reference = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
        # The section of each command, and the options of every command.
        sections = dict(re.findall(r"^#+ muster ([\w ]+)\n(.*?)(?=^#+ muster |\Z)", reference, re.MULTILINE | re.DOTALL))
        everywhere = set(re.findall(r"--[a-z-]+", reference.split("\n## ")[0])) | {"--tls", "--token-file", "--server"}
        found = [re.sub(r" +#.*", "", call).split() for line in code_lines()
                 for call in re.findall(r"(?:^|&& |; )muster ((?:[^;&<>]|>(?! ))*)", line)]
        self.assertGreater(len(found), 15)
        for words in found:
            while words[0].startswith("--"):  # an option of every command, and its value
                self.assertIn(words[0], everywhere)
                words = words[2:]
            name = " ".join(words[:2]) if " ".join(words[:2]) in sections else words[0]
            self.assertIn(name, sections, words)
            for flag in (word.split("=")[0] for word in words if word.startswith("--")):
                self.assertIn(flag, sections[name], words)

    def test_pods_have_one_name(self):
        runs = [re.search(r"\brun (.*?) -- ", line + " -- ") for line in code_lines() if re.match(r"kubectl .*?\brun ", line)]
        self.assertGreaterEqual(len(runs), 1)
        for run in runs:
            # kubectl takes a second word before `--` for the first word of the command. Options are written with `=`.
            names = [word for word in run[1].split() if not word.startswith("-")]
            self.assertEqual(len(names), 1, run[1])
            self.assertRegex(names[0], r"^[a-z]([a-z0-9-]*[a-z0-9])?$")

    def test_port_forwards_outlive_their_pods(self):
        forwards = [line for line in PAGE.splitlines() if "port-forward" in line and line.lstrip().startswith(("kubectl", "while"))]
        self.assertEqual(len(forwards), 3)
        for line in forwards:
            self.assertRegex(line, r"^while true; do kubectl .* port-forward .*; sleep 1; done &")

    def test_tools_of_prometheus_are_told_where_it_is(self):
        for line in code_lines():
            if line.startswith("amtool"):
                self.assertIn("--alertmanager.url=$ALERTMANAGER", line)
            if line.startswith("promtool"):
                self.assertIn("instant $PROM ", line)
        for variable in set(re.findall(r"\$([A-Z]{4,})", "\n".join(code_lines()))):
            self.assertIn(f"export {variable}=", PAGE)

    def test_metrics_exist(self):
        known = set(re.findall(r"^\| `(\w+)`", (DOCS / "metrics.md").read_text(encoding="utf-8"), re.MULTILINE))
        self.assertGreaterEqual(len(queries()), 8)
        for query in queries():
            self.assertLessEqual(set(re.findall(r"\bmuster_\w+", query)), known, query)

    @unittest.skipUnless(shutil.which("promtool"), "no promtool: the queries were not parsed")
    def test_queries_are_promql(self):
        rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries())]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rules.json"  # which is YAML
            path.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}), encoding="utf-8")
            ran = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)


if __name__ == "__main__":
    if shutil.which("promtool") is None:
        print("docs/production_checklist_test.py:1: Skipped\nno promtool: the queries were not parsed")
    unittest.main()
