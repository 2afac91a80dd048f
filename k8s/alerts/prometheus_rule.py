#!/usr/bin/env python3
"""Writes the addresses of the runbooks into muster.rules.yaml, and makes the PrometheusRule of prometheus-operator from that file.

Run it after a change of RUNBOOKS or of the rules. Then run k8s/render.sh.
"""

import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
# The address of the published docs/alerts.md. Every alert's runbook_url is this address and the alert's name.
RUNBOOKS = "https://muster.example/docs/alerts.html"
RULES = HERE / "muster.rules.yaml"
COMPONENT = HERE.parent / "components" / "prometheus-operator" / "rules.yaml"
HEAD = """# Made by k8s/alerts/prometheus_rule.py from muster.rules.yaml there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: muster
spec:
"""


def runbook_url(alert):
    return f"{RUNBOOKS}#{alert.lower()}"


def with_runbooks(rules):
    """Returns the rules with the address of every alert's section."""
    return re.sub(r"(- alert: (\w+)\n(?:(?!- alert: ).*\n)*? +runbook_url: ).*", lambda rule: rule[1] + runbook_url(rule[2]), rules)


def text(rules):
    """Returns the PrometheusRule with these rules."""
    lines = [line for line in rules.splitlines() if not line.startswith("#")]
    return HEAD + "".join(f"  {line}\n" if line else "\n" for line in lines)


if __name__ == "__main__":
    rules = with_runbooks(RULES.read_text(encoding="utf-8"))
    RULES.write_text(rules, encoding="utf-8")
    COMPONENT.write_text(text(rules), encoding="utf-8")
