#!/usr/bin/env python3
"""The committed dashboards are what generate.py makes, Grafana can take them, and every expression is one."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import generate  # noqa: E402


def dashboards():
    return {name: json.loads(text) for name, text in generate.texts().items()}


class Dashboards(unittest.TestCase):
    def test_are_what_their_description_makes(self):
        self.assertEqual(sorted(path.name for path in HERE.glob("*.json")), sorted(generate.texts()))
        for name, text in generate.texts().items():
            self.assertEqual((HERE / name).read_text(encoding="utf-8"), text, f"{name}: run k8s/dashboards/generate.py, then k8s/render.sh")

    def test_are_all_in_the_config_map(self):
        listed = re.search(r"files: \[(.*)\]", (HERE / "kustomization.yaml").read_text(encoding="utf-8"))[1]
        self.assertEqual(sorted(listed.split(", ")), sorted(generate.texts()))

    def test_are_told_apart(self):
        self.assertEqual(len({dashboard["uid"] for dashboard in dashboards().values()}), len(dashboards()))
        for name, dashboard in dashboards().items():
            numbers = [panel["id"] for panel in dashboard["panels"]]
            self.assertEqual(len(set(numbers)), len(numbers), name)
            places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
            self.assertEqual(len(set(places)), len(places), name)

    def test_fix_neither_source_nor_variable(self):
        for name, dashboard in dashboards().items():
            known = {variable["name"] for variable in dashboard["templating"]["list"]} | {"__rate_interval"}
            for panel in dashboard["panels"]:
                for target in panel.get("targets", []):
                    self.assertEqual(target["datasource"]["uid"], "${datasource}", panel["title"])
                    self.assertLessEqual(set(re.findall(r"\$(\w+)", target["expr"])), known, f"{name}: {panel['title']}")

    @unittest.skipUnless(shutil.which("promtool"), "no promtool: the expressions were not parsed")
    def test_ask_in_promql(self):
        expressions = [target["expr"] for dashboard in dashboards().values() for panel in dashboard["panels"]
                       for target in panel.get("targets", [])]
        self.assertGreater(len(expressions), 80)
        rules = [{"record": f"expression:{i}", "expr": re.sub(r"\$(job|instance)", ".*", expression.replace("$__rate_interval", "1m"))}
                 for i, expression in enumerate(expressions)]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rules.json"  # which is YAML
            path.write_text(json.dumps({"groups": [{"name": "expressions", "rules": rules}]}), encoding="utf-8")
            ran = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)


if __name__ == "__main__":
    if shutil.which("promtool") is None:
        print("k8s/dashboards/dashboards_test.py:1: Skipped\nno promtool: the expressions were not parsed")
    unittest.main()
