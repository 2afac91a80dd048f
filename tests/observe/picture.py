#!/usr/bin/env python3
"""Draws docs/dashboards/*.svg: dashboards, of a real cluster that loses a parameter server while it trains. Needs Python alone.

    tests/observe/picture.py [FOLDER] [DASHBOARD...]    where the programs are, default: bazel-bin; default: overview job
"""

import math
import pathlib
import re
import sys
import tempfile
import time
from xml.sax.saxutils import escape

import observed_cluster

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "k8s" / "dashboards"))
sys.path.insert(0, str(ROOT / "tests" / "bench"))

import generate  # noqa: E402
import plot  # noqa: E402

COLUMN, ROW = 44, 22  # pixels of a unit of Grafana's grid
POINTS = 80
COLOURS = ("#4c8bf5", "#e0752d", "#3fa45b", "#b877d9", "#c9a227", "#d64b4b", "#2aa1b3", "#8e8e8e")
STYLE = plot.STYLE + "\n.panel { fill: none; stroke: #8c959f; stroke-opacity: 0.35 } .big { font-size: 26px } .tiny { font-size: 9px; fill: #6e7781 }\n" + \
    "\n".join(f".s{i} {{ stroke: {colour}; fill: none; stroke-width: 1.4 }} .t{i} {{ fill: {colour}; font-size: 9px }}"
              for i, colour in enumerate(COLOURS))
SCALES = {"percentunit": (100, " %"), "bytes": (1, "B"), "Bps": (1, "B/s"), "s": (1, "s")}


def readable(value, unit):
    factor, suffix = SCALES.get(unit, (1, ""))
    value *= factor
    if unit == "s" and 0 < abs(value) < 1:
        return f"{value * 1e3:.3g} ms" if abs(value) >= 1e-3 else f"{value * 1e6:.3g} us"
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size and unit != "percentunit":
            return f"{value / size:.3g} {letter}{suffix}"
    return f"{value:.3g}{' ' if suffix and suffix[0] != ' ' else ''}{suffix}"


def expression_of(text, window):
    return re.sub(r"\$(job|instance)", ".*", text.replace("$__rate_interval", window))


def series_of(cluster, panel, begin, end):
    """Legend and points of every line."""
    for expression, legend in panel["queries"]:
        answer = cluster.ask("query_range", query=expression_of(expression, "10s"), start=begin, end=end, step=(end - begin) / POINTS)
        for line in answer["result"]:
            name = re.sub(r"\{\{(\w+)\}\}", lambda found: line["metric"].get(found[1], ""), legend)
            points = [(float(at), float(value)) for at, value in line["values"]]
            yield name, [(at, value) for at, value in points if math.isfinite(value)]


def graph(cluster, panel, x, y, width, height, begin, end):
    lines = [(name, points) for name, points in series_of(cluster, panel, begin, end) if points]
    lines.sort(key=lambda line: -max(value for _, value in line[1]))
    values = [value for _, points in lines for _, value in points]
    parts = []
    if not values:
        return [plot.text(x + width / 2, y + height / 2, "no data", "middle", "tiny")]
    logarithmic = panel["log"] and min(values) > 0
    project = math.log10 if logarithmic else (lambda value: value)
    low, high = (project(min(values)) if logarithmic else min(0.0, *values)), project(max(values))
    if high <= low:
        high = low + 1
    left, right, top, bottom = x + 46, x + width - 8, y + 26, y + height - 30
    for part in (0, 0.5, 1):
        at = bottom - part * (bottom - top)
        value = low + part * (high - low)
        parts.append(plot.line(left, at, right, at, "grid"))
        parts.append(plot.text(left - 4, at + 3, readable(10 ** value if logarithmic else value, panel["unit"]), "end", "tiny"))
    for i, (name, points) in enumerate(lines[:len(COLOURS)]):
        path, last = "", None
        for at, value in points:
            letter = "M" if last is None or at - last > 1.5 * (end - begin) / POINTS else "L"
            last = at
            path += f"{letter}{plot.number(left + (at - begin) / (end - begin) * (right - left))} " \
                    f"{plot.number(bottom - (project(value) - low) / (high - low) * (bottom - top))}"
        parts.append(f'<path d="{path}" class="s{i}"/>')
    names, at = [], left
    for i, (name, _) in enumerate(lines[:len(COLOURS)]):
        if at + 5.2 * len(name) > right:
            break
        names.append(plot.text(at, y + height - 10, name, kind=f"t{i}"))
        at += 5.2 * len(name) + 12
    return parts + names


def draw(cluster, name, begin, end):
    dashboard = generate.dashboard_json(name, generate.DASHBOARDS[name])
    panels = [panel for row in generate.DASHBOARDS[name]["rows"].values() for panel in row]
    places = [panel["gridPos"] for panel in dashboard["panels"] if panel["type"] != "row"]
    parts = [plot.text(12, 24, dashboard["title"], kind="title")]
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            parts.append(plot.text(12, 50 + panel["gridPos"]["y"] * ROW, panel["title"], kind="title"))
    height = 0
    for panel, place in zip(panels, places):
        x, y, w, h = 8 + place["x"] * COLUMN, 36 + place["y"] * ROW, place["w"] * COLUMN - 8, place["h"] * ROW - 8
        height = max(height, y + h + 12)
        parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="4" class="panel"/>')
        parts.append(plot.text(x + 8, y + 16, panel["title"], kind="small"))
        if panel["kind"] == "timeseries":
            parts += graph(cluster, panel, x, y, w, h, begin, end)
            continue
        samples = cluster.ask("query", query=expression_of(panel["queries"][0][0], "10s"), time=end)["result"]
        if panel["kind"] == "stat":
            value = readable(float(samples[0]["value"][1]), panel["unit"]) if samples else "-"
            parts.append(plot.text(x + w / 2, y + h / 2 + 16, value, "middle", "big"))
        else:
            for i, sample in enumerate(samples[:7]):
                labels = {key: value for key, value in sample["metric"].items() if key not in ("__name__", "job", "role")}
                parts.append(plot.text(x + 8, y + 36 + 14 * i, "  ".join(f"{value}" for _, value in sorted(labels.items()))[:80], kind="tiny"))
    width = 16 + 24 * COLUMN
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
                      f"<title>{escape(dashboard['title'])}</title>", f"<style>\n{STYLE}\n</style>",
                      '<rect width="100%" height="100%" class="page"/>', *parts, "</svg>", ""])


def main():
    programs = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "bazel-bin")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, \
            observed_cluster.ObservedCluster(programs / "cli/muster", folder, ROOT / "examples") as cluster:
        photograph(cluster, sys.argv[2:] or ["overview", "job"])


def photograph(cluster, names):
    begin = time.time()
    cluster.train(until_step=300)
    cluster.lose("ps-1")
    step = cluster.values("max(muster_job_step)")[0]
    cluster.await_value("max(muster_job_step)", step + 300)
    cluster.await_scrapes()
    for name in names:
        picture = draw(cluster, name, begin, time.time())
        (ROOT / "docs" / "dashboards" / f"{name}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
