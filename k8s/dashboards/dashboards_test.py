#!/usr/bin/env python3
"""Checks that the committed dashboards equal the output of generate.py, that Grafana can read them, and that every expression is valid."""

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

    def test_panels_of_one_value_have_a_color_for_each(self):
        """A panel of one number has thresholds or words, and each word has a color."""
        for name, dashboard in dashboards().items():
            for panel in dashboard["panels"]:
                if panel["type"] != "stat":
                    continue
                defaults = panel["fieldConfig"]["defaults"]
                self.assertIsNone(defaults["thresholds"]["steps"][0]["value"], f"{name}: {panel['title']}: the first color has no limit")
                limits = [step["value"] for step in defaults["thresholds"]["steps"][1:]]
                self.assertEqual(limits, sorted(limits), f"{name}: {panel['title']}")
                for word in defaults["mappings"]:
                    results = [word["options"]["result"]] if "result" in word["options"] else word["options"].values()
                    self.assertTrue(all(result["text"] and result["color"] for result in results), f"{name}: {panel['title']}")

    def test_the_overview_begins_with_the_verdict(self):
        panels = dashboards()["overview.json"]["panels"]
        rows = [i for i, panel in enumerate(panels) if panel["type"] == "row"]
        self.assertEqual([panel["title"] for panel in panels[rows[0] + 1:rows[1]]],
                         ["Verdict", "Learning", "Bound by", "Firing alerts", "Free disk", "Jobs", "Alerts"])

    def test_mark_recoveries_and_checkpoints(self):
        for dashboard in dashboards().values():
            self.assertEqual([annotation["name"] for annotation in dashboard["annotations"]["list"]], ["Recoveries", "Checkpoints"])

    @unittest.skipUnless(shutil.which("promtool"), "no promtool: the verdicts were not evaluated")
    def test_verdicts(self):
        """Evaluates the verdict expressions over invented series."""

        def steps(job, worker, data, compute, wait):
            return {f'muster_job_worker_step_seconds{{job="{job}",worker="{worker}",phase="{phase}"}}': value
                    for phase, value in (("data", data), ("compute", compute), ("wait", wait))}

        healthy = {"muster_coordinator_term": 1, 'muster_job_trouble{job="a"}': 0, 'muster_job_state{job="a",state="running"}': 1}
        alert = 'ALERTS{{alertstate="firing",alertname="Muster{}",severity="{}"}}'
        cases = [
            (generate.VERDICT, healthy, {"{}": 0}),
            (generate.VERDICT, {**healthy, alert.format("JobFailed", "info"): 1}, {"{}": 0}),
            (generate.VERDICT, {**healthy, 'muster_job_state{job="b",state="recovering"}': 1}, {"{}": 1}),
            (generate.VERDICT, {**healthy, 'muster_job_trouble{job="b"}': 1}, {"{}": 2}),
            (generate.VERDICT, {**healthy, alert.format("StateDiskFull", "critical"): 1, 'muster_job_trouble{job="b"}': 1}, {"{}": 3}),
            (generate.VERDICT, {}, {"{}": 4}),
            # The slowest worker decides, because the other one waits for it, not for the network. In a tie, data wins, as in the program.
            (generate.bound_by(), {**steps("in", "w-0", 3, 2, 0.1), **steps("tie", "w-0", 2, 2, 2), **steps("cpu", "w-0", 0, 2, 3),
                                   **steps("cpu", "w-1", 0, 4.9, 0.1), **steps("net", "w-0", 0, 1.1, 3.9), **steps("net", "w-1", 0, 1, 4)},
             {'{job="in"}': 1, '{job="tie"}': 1, '{job="cpu"}': 2, '{job="net"}': 3}),
            (generate.LEARNING, {'muster_job_loss{job="a"}': "2-0.05x60", 'muster_job_loss{job="b"}': "1+0x60"}, {'{job="b"}': 1}),
        ]
        tests = [{"interval": "1m", "input_series": [{"series": series, "values": value if isinstance(value, str) else f"{value}x60"}
                                                     for series, value in given.items()],
                  "promql_expr_test": [{"expr": expression if expression is not generate.LEARNING else f"({expression}) > 0.97", "eval_time": "30m",
                                        "exp_samples": [{"labels": labels, "value": value} for labels, value in expected.items()]}]}
                 for expression, given, expected in cases]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "verdicts.json"  # which is YAML
            path.write_text(json.dumps({"tests": tests}), encoding="utf-8")
            ran = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)

    @unittest.skipUnless(shutil.which("promtool"), "no promtool: the expressions were not parsed")
    def test_ask_in_promql(self):
        expressions = [target["expr"] for dashboard in dashboards().values() for panel in dashboard["panels"]
                       for target in panel.get("targets", [])] + [annotation[3] for annotation in generate.ANNOTATIONS]
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
