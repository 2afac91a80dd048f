#!/usr/bin/env python3
"""Writes the PrometheusRule of the component prometheus-operator: muster.rules.yaml as the operator wants it. Then run k8s/render.sh."""

import pathlib

HERE = pathlib.Path(__file__).resolve().parent
COMPONENT = HERE.parent / "components" / "prometheus-operator" / "rules.yaml"
HEAD = """# Made by k8s/alerts/prometheus_rule.py from muster.rules.yaml there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: muster
spec:
"""


def text(rules):
    lines = [line for line in rules.splitlines() if not line.startswith("#")]
    return HEAD + "".join(f"  {line}\n" if line else "\n" for line in lines)


if __name__ == "__main__":
    COMPONENT.write_text(text((HERE / "muster.rules.yaml").read_text(encoding="utf-8")), encoding="utf-8")
