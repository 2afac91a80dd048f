#!/usr/bin/env python3
"""Measures how much `muster trace` slows a job on a local cluster. Times steps with and without a trace in turns, so that other load
of the machine affects both.

    tests/bench/trace_overhead.py [FOLDER] [--pairs N] [--steps N] [--scrape]

FOLDER: folder of the programs; default: bazel-bin. --steps: number of steps that a trace records. The output has the time of the
recorded steps, and that of all steps until the file is written. In the latter, coordinator and muster use the same processors.
--scrape: instead of a trace, scrapes /metrics of all members once a second for five seconds.
"""

import argparse
import http.client
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def read_metrics(url):
    connection = http.client.HTTPConnection(urllib.parse.urlparse(url).netloc)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    return page


def steps_so_far(url):
    """Returns the number of steps of a worker, and the time of the reading."""
    counts = re.findall(r"^muster_worker_step_duration_seconds_count(?:{.*})? (\S+)$", read_metrics(url), re.MULTILINE)
    return sum(map(float, counts)), time.perf_counter()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="bazel-bin")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--scrape", action="store_true")
    options = parser.parse_args()
    muster = pathlib.Path(options.folder).absolute() / "cli/muster"
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        run = lambda *arguments: subprocess.run([muster, *arguments], check=True, capture_output=True, text=True, cwd=ROOT).stdout
        address = run("local", "up", "--dir", folder, "--ps", "1", "--workers", "1").strip()
        try:
            job = json.loads(run("submit", "examples/mnist_lenet.yaml", "--server", address, "-o", "json", "--set", "training.epochs=100000", "--set",
                      "resources.ps=1", "--set", "resources.workers={min: 1, max: 1}"))["name"].removeprefix("jobs/")
            fleet = json.loads(run("members", "--server", address, "-o", "json"))
            urls = [fleet["coordinator_metrics_url"], *(member["metrics_url"] for member in fleet["members"])]
            worker = next(member["metrics_url"] for member in fleet["members"] if "worker" in member["name"])
            while steps_so_far(worker)[0] < 200:  # warm-up
                time.sleep(0.1)

            def disturbed():
                if options.scrape:
                    for _ in range(5):
                        for url in urls:
                            read_metrics(url)
                        time.sleep(1)
                    return None
                file = os.path.join(folder, "trace.json")
                run("trace", job, "--server", address, "--steps", str(options.steps), "-o", file)
                with open(file, encoding="utf-8") as trace:
                    events = json.load(trace)["traceEvents"]
                begins = sorted(event["ts"] for event in events if event.get("ph") == "X" and event["name"] == "step")
                return (begins[-1] - begins[0]) / (len(begins) - 1) / 1e6

            def step(act):
                """Returns the seconds of a step while act() ran, the result of act(), and its duration."""
                steps, begin = steps_so_far(worker)
                result = act()
                more, end = steps_so_far(worker)
                return (end - begin) / (more - steps), result, end - begin

            recorded, meanwhile, without = [], [], []
            for _ in range(options.pairs):
                on, own, taken = step(disturbed)
                off, _, _ = step(lambda: time.sleep(taken))
                recorded.append(own)
                meanwhile.append(on)
                without.append(off)

            def say(what, times):
                ratios = sorted(on / off for on, off in zip(times, without))
                print(f"{what}: {1e3 * statistics.median(times):.3f} ms a step, {1e3 * statistics.median(without):.3f} ms otherwise; ratio of a "
                      f"pair {statistics.median(ratios):.4f} in the middle, quarters {ratios[len(ratios) // 4]:.4f} and "
                      f"{ratios[3 * len(ratios) // 4]:.4f}")

            if options.scrape:
                say("scraped", meanwhile)
            else:
                say("recorded", recorded)
                say("until the file was written", meanwhile)
        finally:
            run("local", "down", "--dir", folder)


if __name__ == "__main__":
    main()
