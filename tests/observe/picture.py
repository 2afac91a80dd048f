#!/usr/bin/env python3
"""Draws docs/dashboards/*.svg: the dashboards of a real, healthy cluster. Needs Python and Prometheus, not Grafana.

    tests/observe/picture.py [FOLDER] [DASHBOARD...]    FOLDER has the programs, default: bazel-bin; default: all dashboards
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
SCALES = {"percentunit": (100, " %"), "bytes": (1, "B"), "Bps": (1, "B/s"), "s": (1, "s"), "reqps": (1, " req/s")}
NAMED = {"green": "#3fa45b", "yellow": "#b58f1a", "orange": "#e0752d", "red": "#d64b4b", "blue": "#4c8bf5"}  # "text" has the color of other text


def readable(value, unit):
    kind, _, own = unit.partition(":")
    factor, suffix = (1, " " + own.strip() if kind == "suffix" else own) if own else SCALES.get(unit, (1, ""))
    value *= factor
    if unit == "s" and 0 < abs(value) < 1:
        return f"{value * 1e3:.3g} ms" if abs(value) >= 1e-3 else f"{value * 1e6:.3g} us"
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size and unit != "percentunit":
            return f"{value / size:.3g} {letter}{suffix}"
    return f"{value:.3g}{' ' if suffix and suffix[0] != ' ' else ''}{suffix}"


def axis_unit(panel):
    """Returns the unit of the axis: none if the unit is long, because it then stands beside the title."""
    return "none" if ":" in panel["unit"] else panel["unit"]


def title_of(panel):
    own = panel["unit"].partition(":")[2].strip()
    return f"{panel['title']} ({own})" if own else panel["title"]


def matches(when, value):
    if when == "nan":
        return not math.isfinite(value)
    if isinstance(when, tuple):
        return (when[0] is None or value >= when[0]) and (when[1] is None or value <= when[1])
    return value == when


def shown(panel, value):
    """Returns the text and the color of a number, as Grafana chooses them."""
    for when, word, color in panel["words"]:
        if matches(when, value):
            return word, color
    passed = [color for limit, color in panel["steps"] if limit is None or value >= limit]
    return readable(value, axis_unit(panel)), passed[-1]


def colored(x, y, content, color, anchor="start", kind=""):
    """Returns a line of text in a color of NAMED."""
    return plot.text(x, y, content, anchor, kind).replace("<text", f'<text style="fill: {NAMED[color]}"', 1) if color in NAMED \
        else plot.text(x, y, content, anchor, kind)


def stat(panel, samples, x, y, w, h):
    """Draws a value in large letters, or a line for each series."""
    if not samples:
        return [plot.text(x + w / 2, y + h / 2 + 16, "-", "middle", "big")]
    parts = []
    for i, sample in enumerate(samples[:2]):
        word, color = shown(panel, float(sample["value"][1]))
        middle = y + h / 2 + 16 + 40 * (i - (min(len(samples), 2) - 1) / 2)
        parts.append(colored(x + w / 2, middle, word, color, "middle", "big"))
        if panel["queries"][0][1]:
            parts.append(plot.text(x + w / 2, middle - 24, named(panel["queries"][0][1], sample["metric"]), "middle", "tiny"))
    return parts


def rows(panel, samples, x, y, w, h):
    """Draws a table: headings, then a row for each series."""
    if not samples:
        return [plot.text(x + w / 2, y + h / 2, "none", "middle", "tiny")]
    labels = [label for label, _ in panel["columns"] if any(sample["metric"].get(label) for sample in samples)]
    headings = dict(panel["columns"])
    colors = {(label, value): color for label, value, color in panel["colors"]}
    parts = []
    for column, label in enumerate(labels):
        left = x + 8 + column * (w - 16) / len(labels)
        parts.append(plot.text(left, y + 34, headings[label], kind="tiny"))
        for row, sample in enumerate(samples[:int(h / 14) - 3]):
            value = sample["metric"].get(label, "")
            parts.append(colored(left, y + 50 + 14 * row, value[:40], colors.get((label, value), "text"), kind="tiny" if len(value) > 24 else "small"))
    return parts


def named(legend, metric):
    return re.sub(r"\{\{(\w+)\}\}", lambda found: metric.get(found[1], ""), legend)


def marks(cluster, begin, end):
    """Yields (color, time) of each annotation."""
    for _, color, _, expression, value_is_time in generate.ANNOTATIONS:
        before = None
        for line in cluster.ask("query_range", query=expression, start=begin, end=end, step=1)["result"]:
            for at, value in line["values"]:
                when = float(value) / 1e3 if value_is_time else float(at)
                if begin < when < end and (before is None or when - before > 1.5):
                    yield color, when
                before = when


def expression_of(text, window):
    return re.sub(r"\$(job|instance)", ".*", text.replace("$__rate_interval", window))


def series_of(cluster, panel, begin, end):
    """Yields the legend and the points of every line."""
    for expression, legend in panel["queries"]:
        answer = cluster.ask("query_range", query=expression_of(expression, "10s"), start=begin, end=end, step=(end - begin) / POINTS)
        for line in answer["result"]:
            name = named(legend, line["metric"])
            points = [(float(at), float(value)) for at, value in line["values"]]
            yield name, [(at, value) for at, value in points if math.isfinite(value)]


def graph(cluster, panel, marked, x, y, width, height, begin, end):
    lines = [(name, points) for name, points in series_of(cluster, panel, begin, end) if points]
    lines.sort(key=lambda line: -max(value for _, value in line[1]))
    values = [value for _, points in lines for _, value in points]
    parts = []
    if not values:
        return [plot.text(x + width / 2, y + height / 2, "none", "middle", "tiny")]
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
        parts.append(plot.text(left - 4, at + 3, readable(10 ** value if logarithmic else value, axis_unit(panel)), "end", "tiny"))
    for color, when in marked:
        at = left + (when - begin) / (end - begin) * (right - left)
        parts.append(f'<path d="M{plot.number(at)} {top}V{bottom}" style="stroke: {NAMED[color]}; stroke-opacity: 0.45; stroke-dasharray: 2 3"/>')
    for limit, color in panel["steps"]:
        if limit is not None and low <= project(limit) <= high:
            at = bottom - (project(limit) - low) / (high - low) * (bottom - top)
            parts.append(f'<path d="M{left} {plot.number(at)}H{right}" style="stroke: {NAMED[color]}"/>')
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
    marked = list(marks(cluster, begin, end))
    for panel, place in zip(panels, places):
        x, y, w, h = 8 + place["x"] * COLUMN, 36 + place["y"] * ROW, place["w"] * COLUMN - 8, place["h"] * ROW - 8
        height = max(height, y + h + 12)
        parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="4" class="panel"/>')
        parts.append(plot.text(x + 8, y + 16, title_of(panel), kind="small"))
        if panel["kind"] == "timeseries":
            parts += graph(cluster, panel, marked, x, y, w, h, begin, end)
            continue
        samples = cluster.ask("query", query=expression_of(panel["queries"][0][0], "10s"), time=end)["result"]
        parts += (stat if panel["kind"] == "stat" else rows)(panel, samples, x, y, w, h)
    width = 16 + 24 * COLUMN
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
                      f"<title>{escape(dashboard['title'])}</title>", f"<style>\n{STYLE}\n</style>",
                      '<rect width="100%" height="100%" class="page"/>', *parts, "</svg>", ""])


def main():
    programs = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "bazel-bin")
    # The folder is in memory, because the disk of a machine that builds may be nearly full.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, \
            observed_cluster.ObservedCluster(programs / "cli/muster", folder, ROOT / "examples") as cluster:
        photograph(cluster, sys.argv[2:] or list(generate.DASHBOARDS))


def photograph(cluster, names):
    begin = time.time()
    cluster.train(until_step=1000, checkpoint_every=500)
    # Rates and step times need a quarter of a minute, and the metric of the dashboard that judges the loss needs more than a minute.
    cluster.await_value(f"0.97 - min({generate.LEARNING})", 0)
    cluster.await_value("count(muster_job_worker_step_seconds)", 6)
    cluster.await_scrapes()
    for name in names:
        picture = draw(cluster, name, begin, time.time())
        (ROOT / "docs" / "dashboards" / f"{name}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
