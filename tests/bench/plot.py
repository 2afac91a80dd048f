#!/usr/bin/env python3
"""Draws docs/figures/*.svg from tests/bench/results/*.json (README.md there has the schema). Needs only Python.

    tests/bench/plot.py [--results FOLDER] [--figures FOLDER]
    tests/bench/plot.py --table shm | tcp    prints the table that docs/benchmarks.md has below the picture

The newest result of each kind, members and link is drawn. The same results give the same bytes: results_test.py compares the
committed pictures with the committed results.
"""

import argparse
import json
import pathlib
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# A browser uses the second style if the reader prefers dark pages. The background has the color of the page, so that the picture is
# readable in a viewer that supports only one style.
STYLE = """\
text { font: 12px sans-serif; fill: #1f2328 } .title { font-weight: bold } .small { font-size: 11px; fill: #59636e }
.page { fill: #ffffff } .grid { stroke: #d1d9e0; fill: none } .line { fill: none; stroke-width: 2 } .limit { stroke: #cf222e; stroke-width: 1.5 }
.floor { stroke: #59636e; stroke-dasharray: 4 3 } .limit-text { fill: #cf222e }
.a { stroke: #0969da } .a-mark { fill: #0969da } .b { stroke: #bc4c00 } .b-mark { fill: #bc4c00 }
.c { stroke: #6e7781; stroke-dasharray: 5 3 } .c-mark { fill: #6e7781 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9198a1 } .page { fill: #0d1117 } .grid { stroke: #30363d }
.limit { stroke: #f85149 } .limit-text { fill: #f85149 }
.floor { stroke: #9198a1 } .a { stroke: #4493f8 } .a-mark { fill: #4493f8 } .b { stroke: #f0883e } .b-mark { fill: #f0883e }
.c { stroke: #9198a1 } .c-mark { fill: #9198a1 }
}"""


def number(value):
    """Formats a coordinate with one decimal, or none if it is zero."""
    return f"{value:.1f}".removesuffix(".0")


def text(x, y, words, anchor="start", kind=""):
    names = f' class="{kind}"' if kind else ""
    return f'<text x="{number(x)}" y="{number(y)}" text-anchor="{anchor}"{names}>{escape(words)}</text>'


def line(x1, y1, x2, y2, kind):
    return f'<path d="M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}" class="{kind}"/>'


def mark(x, y, kind):
    """Draws a point of a series: a circle, a square or a triangle, so that a reader need not distinguish colors."""
    if kind == "a":
        return f'<circle cx="{number(x)}" cy="{number(y)}" r="4" class="a-mark"/>'
    if kind == "b":
        return f'<rect x="{number(x - 3.5)}" y="{number(y - 3.5)}" width="7" height="7" class="b-mark"/>'
    return f'<path d="M{number(x)} {number(y - 4)}l4 7h-8z" class="c-mark"/>'


def picture(width, height, title, parts):
    width, height = number(width), number(height)
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
                      f"<title>{escape(title)}</title>", f"<style>\n{STYLE}\n</style>", '<rect width="100%" height="100%" class="page"/>',
                      *parts, "</svg>", ""])


def legend(x, y, entries):
    parts = []
    for kind, words, room in entries:
        parts += [line(x, y - 4, x + 24, y - 4, f"line {kind}"), mark(x + 12, y - 4, kind), text(x + 30, y, words)]
        x += room
    return parts


def tick_step(largest, ticks_max):
    """Returns the smallest of 1, 2, 5, 10, 20, ... that gives at most `ticks_max` ticks."""
    scale = 1
    while True:
        for factor in (1, 2, 5):
            if largest / (factor * scale) <= ticks_max:
                return factor * scale
        scale *= 10


def size_words(size):
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size >> shift} {unit}"
    return f"{size} B"


def panel(x, y, width, height, table, top, lines):
    """Draws one table of goodput against message size, on a logarithmic axis."""
    sizes = [row["bytes"] for row in table["rows"]]
    steps = max(sizes).bit_length() - min(sizes).bit_length()
    across = {size: x + 12 + (width - 24) * (size.bit_length() - min(sizes).bit_length()) / max(steps, 1) for size in sizes}
    up = lambda value: y + height - height * value / top  # noqa: E731
    plural = lambda count, word: f"{count} {word}" + ("s" if count > 1 and word != "ps" else "")  # noqa: E731
    where = {"near": "processors near", "far": "processors far"}.get(table["processors"], "processors near or far, not told apart")
    parts = [text(x, y - 10, f"{plural(table['workers'], 'worker')} + {plural(table['ps'], 'ps')}, {where}", kind="title")]
    step = tick_step(top, 6)
    for tick in range(0, top + 1, step):
        parts += [line(x, up(tick), x + width, up(tick), "grid"), text(x - 6, up(tick) + 4, str(tick), "end", "small")]
    for size in sizes:
        parts.append(text(across[size], y + height + 16, size_words(size), "middle", "small"))
    for kind, name in lines:
        path, pen_is_down = "", False
        points = []
        for row in table["rows"]:
            if name not in row:
                pen_is_down = False  # no line across a missing measurement
                continue
            at = (across[row["bytes"]], up(row[name]["value"]))
            path += f"{'L' if pen_is_down else 'M'}{number(at[0])} {number(at[1])}"
            pen_is_down = True
            points.append(mark(*at, kind))
        if path:
            parts += [f'<path d="{path}" class="line {kind}"/>', *points]
    return parts


def newest_goodput(results, link):
    """Returns {(workers, ps): tables} over one link, from the newest result with these members."""
    newest = {}
    for result in results:
        if result["what"] != "goodput":
            continue
        here = {}
        for table in result["tables"]:
            if table["link"] == link:
                here.setdefault((table["workers"], table["ps"]), []).append(table)
        newest.update(here)  # results are sorted by time
    return dict(sorted(newest.items()))


def goodput_table(results, link):
    """Returns the table of docs/benchmarks.md in Markdown: Muster's goodput, and in brackets its ratio to the bare loop."""
    names, cells = [], {}
    for (workers, ps), tables in newest_goodput(results, link).items():
        for table in tables:
            names.append(f"{workers} + {ps}" + (f", {table['processors']}" if table["processors"] != "unknown" else ""))
            for row in table["rows"]:
                if "muster" in row:
                    ratio = row.get("bare_" + link, {}).get("ratio")
                    cells[row["bytes"], len(names)] = f"{row['muster']['value']:.2f}" + (f" ({ratio:.2f})" if ratio else "")
    line_of = lambda texts: "|" + "|".join(f" {text} " if text else " " for text in texts) + "|\n"  # noqa: E731
    lines = [line_of(["", *names]), "|" + "---:|" * (len(names) + 1) + "\n"]
    for size in sorted({size for size, _ in cells}):
        lines.append(line_of([size_words(size), *(cells.get((size, column + 1), "") for column in range(len(names)))]))
    return "".join(lines)


def goodput(results, link):
    """Draws goodput against message size over one link, with a row of panels for each number of members. Returns None without results."""
    newest = newest_goodput(results, link)
    if not newest:
        return None
    lines = [("c", "peer"), ("b", "bare_" + link), ("a", "muster")]
    top = max(row[name]["value"] for tables in newest.values() for table in tables for row in table["rows"] for _, name in lines if name in row)
    step = tick_step(top, 6)
    top = int(-(-top // step) * step)
    named = {"shm": "shared memory", "tcp": "TCP"}.get(link, link)
    title = f"Goodput over {named}, Gbit/s, by message size"
    width, height, left, first = 370, 190, 48, 88
    parts = [text(left, 24, title, kind="title"),
             *legend(left, 48, [("a", "Muster", 90), ("b", "bare loop, one thread per side", 240), ("c", "best peer (ps-lite or BytePS)", 0)])]
    for row, tables in enumerate(newest.values()):
        for column, table in enumerate(tables):
            parts += panel(left + column * (width + 54), first + row * (height + 66), width, height, table, top, lines)
    columns = max(len(tables) for tables in newest.values())
    return picture(left + columns * (width + 54) - 30, first + len(newest) * (height + 66) - 32, title, parts)


def rate_words(rate):
    return rate.replace("gbit", " Gbit/s").replace("mbit", " Mbit/s")


def shaped_network(results):
    """Draws the step time relative to the optimum, by mode and members, with a mark for each card rate. Returns None without results."""
    rows = next((result["tables"][0]["rows"] for result in reversed(results) if result["what"] == "shaped_network"), None)
    if rows is None:
        return None
    rates, groups = [], {}
    for row in rows:
        if row["rate"] not in rates:
            rates.append(row["rate"])
        members = groups.setdefault((row["mode"], row["chunk_bytes"]), {})
        members.setdefault((row["workers"], row["ps"]), []).append(row)
    title = "A step over a shaped network, in multiples of the optimum"
    left, width, pitch, y = 190, 560, 20, 100
    largest = max(1.16, max(row["ratio"] for row in rows)) + 0.02
    across = lambda ratio: left + width * (ratio - 1) / (largest - 1)  # noqa: E731
    begin, body = y - 14, []
    for (mode, chunk_bytes), members in groups.items():
        names = {"separate": "separate ps", "colocated": "colocated ps too", "allreduce": "all-reduce, no ps"}
        body.append(text(16, y, f"{names.get(mode, mode)}, chunks of {size_words(chunk_bytes)}", kind="title"))
        y += pitch
        for (workers, ps), measured in members.items():
            body += [text(32, y, f"{workers} workers" + (f", {ps} separate ps" if ps else "")), line(left, y - 4, left + width, y - 4, "grid")]
            for row in measured:
                index = rates.index(row["rate"])
                apart = 5 * (index - (len(rates) - 1) / 2)  # so equal ratios do not hide one another
                body.append(mark(across(row["ratio"]), y - 4 + apart, "abc"[index % 3]))
            y += pitch
        y += 6
    end = y - 14
    parts = [text(16, 24, title, kind="title")]
    for index, rate in enumerate(rates):
        parts += [mark(left + index * 110, 44, "abc"[index % 3]), text(left + 10 + index * 110, 48, rate_words(rate))]
    for hundredth in range(0, int((largest - 1) * 100) + 1, 2):
        parts.append(text(across(1 + hundredth / 100), end + 16, f"{1 + hundredth / 100:.2f}", "middle", "small"))
    parts += [line(across(1), begin, across(1), end, "grid"),
              line(across(1.046), begin, across(1.046), end, "floor"), text(across(1.046), begin - 6, "1.046: frames' headers", "middle", "small"),
              line(across(1.10), begin, across(1.10), end, "limit"), text(across(1.10), begin - 6, "goal 1.10", "middle", "limit-text")]
    return picture(left + width + 30, end + 30, title, parts + body)


def read(folder):
    """Returns all results of a folder, the oldest first."""
    found = []
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        found.append((result["date"], result["time"] or "", path.name, result))
    return [result for *_, result in sorted(found, key=lambda entry: entry[:3])]


def pictures(results):
    """Returns {file name: SVG} for all pictures that have results."""
    drawn = {"goodput_shm.svg": goodput(results, "shm"), "goodput_tcp.svg": goodput(results, "tcp"), "shaped_network.svg": shaped_network(results)}
    return {name: svg for name, svg in drawn.items() if svg}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "tests/bench/results")
    parser.add_argument("--figures", type=pathlib.Path, default=ROOT / "docs/figures")
    parser.add_argument("--table", choices=["shm", "tcp"])
    flags = parser.parse_args()
    if flags.table:
        print(goodput_table(read(flags.results), flags.table), end="")
        return
    flags.figures.mkdir(parents=True, exist_ok=True)
    for name, svg in pictures(read(flags.results)).items():
        (flags.figures / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
