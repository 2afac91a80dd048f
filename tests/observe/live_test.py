#!/usr/bin/env python3
"""Checks that a Prometheus that observes a real cluster has the metrics that dashboards and alerts query."""

import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(os.path.dirname(os.path.abspath(__file__)))
ROOT = HERE / ".." / ".."
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import metrics_page  # noqa: E402
import observed_cluster  # noqa: E402

# Expressions and metrics that may have no value here. A local cluster lacks some, and a healthy cluster has no alerts to list.
ELSEWHERE = (*metrics_page.ELSEWHERE, "max by (alertname")


def expressions():
    for path in sorted((ROOT / "k8s" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel.get("targets", []):
                yield f"{path.stem}: {panel['title']}", re.sub(r"\$(job|instance)", ".*", target["expr"].replace("$__rate_interval", "5m"))


def metrics_of_the_rules():
    """Returns the sorted names of the metrics that the alert rules use."""
    rules = re.findall(r"^\s+expr: (?:\|\n((?:\s{10,}.*\n)+)|(.*)\n)", (ROOT / "k8s/alerts/muster.rules.yaml").read_text(encoding="utf-8"), re.M)
    text = re.sub(r'"[^"]*"', "", "\n".join("".join(rule) for rule in rules))
    return sorted(set(re.findall(r"\b(?:muster|process)_\w+", text)))


@unittest.skipUnless(shutil.which("prometheus"), "no prometheus: nothing observed the cluster")
class Live(unittest.TestCase):
    def test_dashboards_and_alerts_find_what_they_ask_for(self):
        # The folder's name is short: the paths of sockets below it have a limit.
        with tempfile.TemporaryDirectory(dir="/tmp") as folder, \
                observed_cluster.ObservedCluster(ROOT / "cli/muster", folder, ROOT / "examples") as cluster:
            job = cluster.train(until_step=60)
            cluster.lose("ps-1")
            cluster.await_value("sum(muster_ps_restore_duration_seconds_count)", 1)
            cluster.await_scrapes()

            silent = []
            asked = 0
            for where, expression in expressions():
                asked += 1
                if not any(name in expression for name in ELSEWHERE) and not any(map(math.isfinite, cluster.values(expression))):
                    silent.append(f"{where}: {expression}")
            self.assertGreater(asked, 80)
            self.assertEqual(silent, [], "these expressions have no value")

            used = [name for name in metrics_of_the_rules() if not name.startswith(ELSEWHERE)]
            self.assertGreater(len(used), 25)
            known = set(cluster.ask("label/__name__/values"))
            self.assertEqual([name for name in used if name not in known], [], "no such metrics")
            rules = [rule for group in cluster.ask("rules")["groups"] for rule in group["rules"]]
            self.assertEqual(len(rules), (ROOT / "k8s/alerts/muster.rules.yaml").read_text(encoding="utf-8").count("- alert: "))
            self.assertEqual([rule["name"] for rule in rules if rule.get("lastError")], [])

            # docs/metrics.md describes exactly the metrics that exist, except those of ELSEWHERE.
            families = metrics_page.families(cluster)
            documented = metrics_page.rows((ROOT / "docs/metrics.md").read_text(encoding="utf-8"))
            for name, row in families.items():
                self.assertEqual(documented.get(name), row, f"docs/metrics.md: run tests/observe/metrics_page.py")
            self.assertEqual([name for name in documented if name not in families and not name.startswith(ELSEWHERE)], [])

            # A job that has ended leaves no series except alerts.
            self.assertTrue(cluster.values(f'{{job="{job}"}}'))
            cluster.run("cancel", job)
            cluster.await_value(f'absent({{job="{job}",alertname=""}})', 1)

            # `muster local down` also ends the Prometheus that `up --observe` started.
            cluster.down()
            with self.assertRaises(OSError):
                cluster.ask("query", query="up")


class WithoutPrometheus(unittest.TestCase):
    def test_the_cluster_comes_up_all_the_same(self):
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            muster = [(ROOT / "cli/muster").absolute(), "local"]
            up = subprocess.run([*muster, "up", "--observe", "--ps", "1", "--workers", "1", "--dir", folder], capture_output=True, text=True,
                                env={**os.environ, "PATH": "/nowhere"}, check=False)
            down = subprocess.run([*muster, "down", "--dir", folder], capture_output=True, text=True, check=False)
        self.assertEqual((up.returncode, down.returncode), (0, 0), up.stderr + down.stderr)
        self.assertIn("cannot observe the cluster with Prometheus: there is no prometheus in PATH", up.stderr)


if __name__ == "__main__":
    if shutil.which("prometheus") is None:
        print("tests/observe/live_test.py:1: Skipped\nno prometheus: nothing observed the cluster")
    unittest.main()
