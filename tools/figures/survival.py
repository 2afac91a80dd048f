#!/usr/bin/env python3
"""Draws docs/figures/survival.svg: the loss of a job whose worker was killed, and of an undisturbed job.

    tools/figures/survival.py [--check]

The data is tools/figures/survival.json, recorded on one machine with 2 cores:

    muster local up
    muster submit examples/char_gpt.yaml --set training.steps=400 --set resources.workers.min=2 ...
    kill -9 PID_OF_WORKER_0; sleep 2; muster local up
    muster metrics char-gpt-2 --csv

--check exits with 1 if the committed picture differs from the one made from the data. Needs only Python.
"""
import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "tools/figures/survival.json"
FIGURE = ROOT / "docs/figures/survival.svg"
WIDTH, HEIGHT, LEFT, TOP = 720, 300, 56, 64

STYLE = """\
text { font: 12px sans-serif; fill: #1f2328 } .title { font-weight: bold; font-size: 14px } .small { font-size: 11px; fill: #59636e }
.page { fill: #ffffff } .grid { stroke: #d1d9e0 } .killed { stroke: #cf222e; stroke-dasharray: 4 3 } .killed-text { fill: #cf222e }
.calm { fill: none; stroke: #f0883e; stroke-width: 6; stroke-opacity: 0.45 } .struck { fill: none; stroke: #0969da; stroke-width: 1.6 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9198a1 } .page { fill: #0d1117 } .grid { stroke: #30363d }
.killed { stroke: #f85149 } .killed-text { fill: #f85149 } .struck { stroke: #4493f8 }
}"""


def picture(data):
    calm, struck = data["undisturbed_loss"], data["killed_loss"]
    top, bottom = max(calm + struck), min(calm + struck)
    high, low = int(top) + 1, int(bottom)
    right, floor = WIDTH - 20, HEIGHT - 40
    x = lambda step: LEFT + (right - LEFT) * step / len(calm)  # noqa: E731
    y = lambda loss: floor - (floor - TOP) * (loss - low) / (high - low)  # noqa: E731
    path = lambda losses: "M" + "L".join(f"{x(i):.1f} {y(v):.1f}" for i, v in enumerate(losses, 1))  # noqa: E731
    parts = [f'<text x="16" y="22" class="title">{data["title"]}</text>',
             f'<text x="16" y="42" class="small">{data["caption"]}</text>']
    for loss in range(low, high + 1):
        parts += [f'<path d="M{LEFT} {y(loss):.1f}H{right}" class="grid"/>',
                  f'<text x="{LEFT - 8}" y="{y(loss) + 4:.1f}" text-anchor="end" class="small">{loss}</text>']
    for step in range(0, len(calm) + 1, 100):
        parts.append(f'<text x="{x(step):.1f}" y="{floor + 16}" text-anchor="middle" class="small">{step}</text>')
    parts += [f'<text x="{right}" y="{floor + 32}" text-anchor="end" class="small">step</text>',
              f'<path d="{path(calm)}" class="calm"/>', f'<path d="{path(struck)}" class="struck"/>']
    kill = x(data["resumed_at_step"])
    parts += [f'<path d="M{kill:.1f} {TOP}V{floor}" class="killed"/>',
              f'<text x="{kill + 6:.1f}" y="{TOP + 12}" class="killed-text">kill -9 worker-0, step {data["resumed_at_step"]}</text>']
    for line, words in enumerate(data["events"]):
        parts.append(f'<text x="{kill + 6:.1f}" y="{TOP + 30 + 16 * line}" class="small">{words}</text>')
    legend = floor - 40
    parts += [f'<path d="M{LEFT + 90} {legend}h26" class="calm"/>',
              f'<text x="{LEFT + 122}" y="{legend + 4}">undisturbed</text>',
              f'<path d="M{LEFT + 90} {legend + 20}h26" class="struck"/>',
              f'<text x="{LEFT + 122}" y="{legend + 24}">worker killed</text>']
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
                      f'height="{HEIGHT}" role="img">', f"<title>{data['title']}</title>", f"<style>\n{STYLE}\n</style>",
                      '<rect width="100%" height="100%" class="page"/>', *parts, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    flags = parser.parse_args()
    drawn = picture(json.loads(DATA.read_text(encoding="utf-8")))
    if flags.check:
        sys.exit(FIGURE.read_text(encoding="utf-8") != drawn)
    FIGURE.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
