#!/usr/bin/env python3
"""What `muster trace` costs the job that it looks at: steps of a local cluster's job while it is recorded, and as long again
while it is not, in turns, so that what else the machine does disturbs both.

    tests/bench/trace_overhead.py [FOLDER] [--pairs N] [--steps N] [--scrape]

FOLDER: where the programs are; default: bazel-bin. --steps: how many a trace records; it takes as long as they do, and with
it goes the reading of what was recorded. --scrape: not a trace but /metrics of all members, once a second, a hundred times
as often as a scraper does by default in 100 s.
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


def totals(url):
    """Steps and seconds of a worker so far."""
    page = read_metrics(url)
    of = lambda name: sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE))
    return of("muster_worker_step_duration_seconds_count"), of("muster_worker_step_duration_seconds_sum")


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
            job = json.loads(run("submit", "examples/mnist_lenet.yaml", "--server", address, "-o", "json", "--set", "training.epochs=100000",
                                 "--set", "resources.ps=1", "--set", "resources.workers={min: 1, max: 1}"))["id"]
            fleet = json.loads(run("members", "--server", address, "-o", "json"))
            urls = [fleet["coordinator_metrics_url"], *(member["metrics_url"] for member in fleet["members"])]
            worker = next(member["metrics_url"] for member in fleet["members"] if "worker" in member["name"])
            while totals(worker)[0] < 200:  # it is warm
                time.sleep(0.1)

            def disturbed():
                if options.scrape:
                    for _ in range(5):
                        for url in urls:
                            read_metrics(url)
                        time.sleep(1)
                else:
                    run("trace", job, "--server", address, "--steps", str(options.steps), "-o", os.path.join(folder, "trace.json"))

            def step(act):
                steps, seconds = totals(worker)
                begin = time.perf_counter()
                act()
                taken = time.perf_counter() - begin
                more, longer = totals(worker)
                return (longer - seconds) / (more - steps), taken

            ratios, with_it, without = [], [], []
            for _ in range(options.pairs):
                on, taken = step(disturbed)
                off, _ = step(lambda: time.sleep(taken))
                ratios.append(on / off)
                with_it.append(on)
                without.append(off)
            ratios.sort()
            print(f"{options.pairs} pairs: a step took {1e3 * statistics.median(with_it):.3f} ms {'scraped' if options.scrape else 'recorded'}, "
                  f"{1e3 * statistics.median(without):.3f} ms otherwise; ratio of a pair {statistics.median(ratios):.4f} in the middle, "
                  f"quarters {ratios[len(ratios) // 4]:.4f} and {ratios[3 * len(ratios) // 4]:.4f}")
        finally:
            run("local", "down", "--dir", folder)


if __name__ == "__main__":
    main()
