#!/usr/bin/env python3
"""Writes the table of docs/metrics.md from the metrics that a real cluster exports: names, types, labels and help.

    tests/observe/metrics_page.py [FOLDER]    folder of the programs; default: bazel-bin
"""

import pathlib
import re
import sys
import tempfile

import observed_cluster

PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "docs" / "metrics.md"
# Prefixes of metrics that a local cluster lacks or may lack. Their rows are written by hand.
ELSEWHERE = ("muster_gpu_", "muster_tls_", "muster_ps_backup_", "muster_worker_peak_flops", "muster_collective_")
# Labels that Prometheus adds, and the label of histogram buckets.
TARGET = {"__name__", "instance", "role", "le"}


def families(cluster):
    """Returns {name: (type, labels, help)} of all metrics."""
    found = {}
    for name, metadata in cluster.ask("metadata").items():
        if not name.startswith(("muster_", "process_")):
            continue
        kind = metadata[0]["type"]
        series = cluster.ask("series", **{"match[]": name + ("_count" if kind == "histogram" else "")})
        labels = {label for one in series for label, value in one.items() if label not in TARGET and (label, value) != ("job", "muster")}
        if name in ("muster_members", "muster_member_heartbeat_age_seconds"):
            labels.add("role")  # these metrics have a label `role` of their own
        if name == "muster_transport_info":
            labels |= {"device", "fallback", "network"}  # empty within a host, and Prometheus drops empty labels
        found[name] = (kind, ", ".join(sorted(labels)), metadata[0]["help"].rstrip("."))
    return found


def rows(text):
    """Returns the rows of the page, in the form of families()."""
    return {name: (kind, labels.replace("`", ""), about)
            for name, kind, labels, about in re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) ?\| (.*) \|$", text, re.M)}


def table(found):
    lines = ["| metric | type | labels | what it is |", "|---|---|---|---|"]
    for name, (kind, labels, about) in sorted(found.items()):
        marked = ", ".join(f"`{label}`" for label in labels.split(", ")) if labels else ""
        lines.append(f"| `{name}` | {kind} | {marked} | {about} |".replace("|  |", "| |"))
    return "\n".join(lines)


def main():
    programs = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "bazel-bin")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, \
            observed_cluster.ObservedCluster(programs / "cli/muster", folder, PAGE.parent.parent / "examples") as cluster:
        cluster.train(until_step=60)
        cluster.lose("ps-1")
        cluster.await_scrapes()
        found = families(cluster)
    text = PAGE.read_text(encoding="utf-8")
    found.update({name: row for name, row in rows(text).items() if name.startswith(ELSEWHERE)})
    begin, end = text.index("| metric |"), text.rindex(" |\n") + 2
    PAGE.write_text(text[:begin] + table(found) + text[end:], encoding="utf-8")


if __name__ == "__main__":
    main()
