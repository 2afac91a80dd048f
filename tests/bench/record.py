#!/usr/bin/env python3
"""Converts the output of tests/bench/sync.sh into a result of tests/bench/results, whose README.md has the schema:

    tests/bench/sync.sh --links tcp | tests/bench/record.py --command "tests/bench/sync.sh --links tcp" \\
      > tests/bench/results/2026-11-22-goodput-tcp.json && tests/bench/plot.py

Date, time, machine and commit default to the present ones. Prints a line that it cannot read, and exits with 65.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
TITLE = re.compile(r"(\d+) workers, (\d+) ps, (\w+), poll \w+: Gbit/s, medians \(runs\), processors (near|far|unknown)$")
CELL = re.compile(r"([\d.]+)(?: us)?(?: \((\d+)\))?$")
SIZE = re.compile(r"(\d+) ([KMG]?)i?B$")


class Unreadable(ValueError):
    """A line that does not belong to a table of sync.sh. The message names the line and the expected text."""


def series(name):
    """Converts a column heading to a name: "bare ucx-tcp" becomes "bare_ucx_tcp"."""
    return re.sub(r"[ -]", "_", name.strip().lower())


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def figures(names, texts, where):
    """Returns {series: {"value": median, "runs": number, "ratio": Muster's to this one}} of one row, without missing measurements."""
    found = {}
    last = None
    for name, text in zip(names, texts):
        if name != "ratio":
            last = series(name)
        if not text:
            continue
        cell = CELL.match(text)
        if not cell or (name == "ratio" and last not in found):
            raise Unreadable(f"{where}: '{text}' under '{name}' is no figure; expected one such as '12.24 (3)'")
        if name == "ratio":
            found[last]["ratio"] = float(cell[1])
            continue
        found[last] = {"value": float(cell[1])}
        if cell[2]:
            found[last]["runs"] = int(cell[2])
    return found


def tables(lines):
    """Returns ("goodput" or "round_trip", tables) of printed lines. Raises Unreadable."""
    found, title, names, rows = [], None, None, None
    for number, line in enumerate((line.strip() for line in lines), 1):
        where = f"line {number}"
        if not line or line.startswith("|--"):
            continue
        if not line.startswith("|"):
            title = TITLE.match(line)
            if not title:
                raise Unreadable(f"{where}: '{line}' is no title of sync.sh; expected "
                                 "'N workers, N ps, LINK, poll P: Gbit/s, medians (runs), processors near'")
            continue
        texts = cells(line)
        if texts[0] == "size" or texts[0].startswith("4 KiB push"):
            names, rows = texts, []
            if texts[0] != "size":
                found.append({"message_bytes": 4096, "rows": rows})
            elif not title:
                raise Unreadable(f"{where}: a table of goodput without a title above it")
            else:
                found.append({"link": title[3], "workers": int(title[1]), "ps": int(title[2]), "processors": title[4], "rows": rows})
            continue
        if names is None:
            raise Unreadable(f"{where}: a row without the table's head above it")
        if len(texts) != len(names):
            raise Unreadable(f"{where}: {len(texts)} cells under {len(names)} names")
        if names[0] == "size":
            size = SIZE.match(texts[0])
            if not size:
                raise Unreadable(f"{where}: '{texts[0]}' is no size; expected one such as '64 KiB'")
            rows.append({"bytes": int(size[1]) * UNITS[size[2]], **figures(names[1:], texts[1:], where)})
        else:
            rows.append({"case": texts[0], "processors": texts[1], **figures(names[2:], texts[2:], where)})
    kinds = {"goodput" if "link" in table else "round_trip" for table in found}
    if len(kinds) != 1:
        raise Unreadable("no table of sync.sh" if not kinds else "goodput and round trips are results of their own: give one at a time")
    return kinds.pop(), found


def dump(result):
    """Returns JSON with one row per line, so that a change of a figure changes one line."""
    lines = []
    for key, value in result.items():
        if key != "tables":
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
            continue
        texts = []
        for table in value:
            head = "".join(f"{json.dumps(k)}: {json.dumps(v)}, " for k, v in table.items() if k != "rows")
            rows = ",\n   ".join(json.dumps(row) for row in table["rows"])
            texts.append(f"  {{{head}\"rows\": [\n   {rows}]}}")
        lines.append(' "tables": [\n' + ",\n".join(texts) + "]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def this_machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    kernel = ".".join(os.uname().release.split(".")[:2])
    return f"{os.cpu_count()} cores ({models[0] if models else os.uname().machine}), {memory:.0f} GiB, kernel {kernel}"


def this_commit():
    command = ["git", "-C", os.path.dirname(os.path.abspath(__file__)), "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", required=True, help="the command that printed the tables")
    parser.add_argument("--date", help="YYYY-MM-DD, UTC")
    parser.add_argument("--time", help="HH:MM, UTC")
    parser.add_argument("--machine")
    parser.add_argument("--commit")
    parser.add_argument("--note", default="", help="a remark for the reader about this run")
    flags = parser.parse_args()
    try:
        what, found = tables(sys.stdin)
    except Unreadable as error:
        print(f"record.py: standard input: {error}", file=sys.stderr)
        sys.exit(65)
    now = datetime.datetime.now(datetime.timezone.utc)
    result = {"what": what, "date": flags.date or now.strftime("%Y-%m-%d"), "time": flags.time or now.strftime("%H:%M"),
              "machine": flags.machine or this_machine(), "command": flags.command, "commit": flags.commit or this_commit(),
              "note": flags.note, "unit": "Gbit/s" if what == "goodput" else "us", "tables": found}
    sys.stdout.write(dump(result))


if __name__ == "__main__":
    main()
