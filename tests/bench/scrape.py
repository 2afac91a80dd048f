#!/usr/bin/env python3
"""Measures the response time of /metrics on the coordinator and every member of a local cluster that trains at full speed.

    tests/bench/scrape.py [FOLDER]    folder of the programs; default: bazel-bin
"""

import http.client
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRAPES = 300


def scrape(url):
    """Returns the seconds of a scrape, and the bytes of the page."""
    begin = time.perf_counter()
    connection = http.client.HTTPConnection(urllib.parse.urlparse(url).netloc)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read()
    connection.close()
    return time.perf_counter() - begin, len(page)


def main():
    muster = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "bazel-bin").absolute() / "cli/muster"
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        run = lambda *arguments: subprocess.run([muster, *arguments], check=True, capture_output=True, text=True, cwd=ROOT).stdout
        address = run("local", "up", "--dir", folder, "--ps", "2", "--workers", "2").strip()
        try:
            run("submit", "examples/mnist_lenet.yaml", "--server", address, "--set", "training.epochs=10000",
                "--set", "checkpoint.every_steps=100")
            fleet = json.loads(run("members", "--server", address, "-o", "json"))
            urls = {"coordinator": fleet["coordinator_metrics_url"]} | {member["name"]: member["metrics_url"] for member in fleet["members"]}
            time.sleep(5)  # until it trains at full speed
            print(f"{'member':12} {'bytes':>7} {'median':>9} {'99 %':>9} {'longest':>9}")
            for name, url in sorted(urls.items()):
                taken, sizes = zip(*(scrape(url) for _ in range(SCRAPES)))
                milliseconds = sorted(1e3 * seconds for seconds in taken)
                print(f"{name:12} {sizes[-1]:7} {statistics.median(milliseconds):6.2f} ms {milliseconds[int(0.99 * SCRAPES)]:6.2f} ms "
                      f"{milliseconds[-1]:6.2f} ms")
        finally:
            run("local", "down", "--dir", folder)


if __name__ == "__main__":
    main()
