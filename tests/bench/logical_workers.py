#!/usr/bin/env python3
"""Compares a job with logical workers and the same job without, in turns on this machine: time of a step, bytes and memory.

    tests/bench/logical_workers.py [--old FOLDER] [--new FOLDER] [--jobs gpt,mlp] [--workers 1,2,4] [--logical 8] [--pairs 20]

--old and --new: folders of the programs (default: bazel-bin). The old ones run the job without logical workers. --logical 0: as many
logical workers as workers ("full strength"). Each program folder gets a cluster of its own for each number of workers; one is idle
while the other trains. Ratios are of pairs, new by old: the one in the middle, and the quarters.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import tempfile
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Files, and settings for a number of steps. The 8,500 images of the mlp have 66 batches of 128.
JOBS = {
    "gpt": ("examples/char_gpt.yaml", lambda steps: [f"training.steps={steps}", "training.schedule.warmup_steps=1"]),
    "mlp": ("examples/mnist_mlp.yaml", lambda steps: ["data.batch_size=128", f"training.epochs={steps / 66}"]),
}


class Cluster:
    """A local cluster with one ps. `options` are more options of `muster local up`."""

    def __init__(self, programs, workers, *options):
        self.muster = pathlib.Path(programs).absolute() / "cli/muster"
        self.workers = workers
        self.folder = tempfile.TemporaryDirectory(dir="/tmp")
        self.address = self.run("local", "up", "--dir", self.folder.name, "--ps", "1", "--workers", str(workers), *options).strip()

    def run(self, *arguments):
        return subprocess.run([self.muster, *arguments], check=True, capture_output=True, text=True, cwd=ROOT).stdout

    def close(self):
        self.run("local", "down", "--dir", self.folder.name)
        self.folder.cleanup()

    def members(self):
        return json.loads(self.run("members", "--server", self.address, "-o", "json"))["members"]

    def train(self, file, settings):
        """Returns seconds of a step, bytes that a worker sends and receives in a step, MiB of a worker and of the ps."""
        before = self.read()
        job = json.loads(self.run("submit", file, "--server", self.address, "-o", "json",
                                  *(word for setting in settings for word in ("--set", setting))))["name"].removeprefix("jobs/")
        self.run("wait", job, "--server", self.address, "--for", "succeeded", "--timeout", "30m")
        after = self.read()
        steps = after["steps"] - before["steps"]
        return {
            "seconds": (after["seconds"] - before["seconds"]) / steps,
            "sent": (after["sent"] - before["sent"]) / steps,
            "received": (after["received"] - before["received"]) / steps,
            "worker MiB": after["worker"],
            "ps MiB": after["ps"],
        }

    def read(self):
        """Adds up the counters of all workers. Memory is the largest that a process of the role has had."""
        sums = {"steps": 0.0, "seconds": 0.0, "sent": 0.0, "received": 0.0, "worker": 0.0, "ps": 0.0}
        names = {
            "steps": "muster_worker_step_duration_seconds_count",
            "seconds": "muster_worker_step_duration_seconds_sum",
            "sent": "muster_worker_push_bytes_total",
            "received": "muster_worker_params_bytes_total",
        }
        for member in self.members():
            role = "worker" if member["name"].endswith(tuple("0123456789")) and "worker" in member["name"] else "ps"
            status = pathlib.Path(f"/proc/{member['pid']}/status").read_text(encoding="utf-8")
            sums[role] = max(sums[role], int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024)
            if role == "ps":
                continue
            netloc = urllib.parse.urlparse(member["metrics_url"]).netloc
            with urllib.request.urlopen(f"http://{netloc}/metrics") as answer:
                page = answer.read().decode()
            for key, name in names.items():
                sums[key] += sum(map(float, re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE)))
        return sums


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", default="bazel-bin")
    parser.add_argument("--new", default="bazel-bin")
    parser.add_argument("--jobs", default="gpt,mlp")
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--logical", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    for workers in map(int, options.workers.split(",")):
        logical = options.logical or workers
        for job in options.jobs.split(","):
            file, settings = JOBS[job]
            old, new = Cluster(options.old, workers), Cluster(options.new, workers)
            try:
                counts = f"min: {workers}, max: {workers}"
                common = [*settings(options.steps), "training.evaluate_every_steps=0", "resources.ps=1", "checkpoint.every=0s"]
                runs = {
                    "old": lambda: old.train(file, [*common, f"resources.workers={{{counts}}}"]),
                    "new": lambda: new.train(file, [*common, f"resources.workers={{{counts}, logical: {logical}}}"]),
                }
                results = {"old": [], "new": []}
                for pair in range(options.pairs + 1):
                    for name in ("old", "new") if pair % 2 else ("new", "old"):
                        result = runs[name]()
                        if pair > 0:  # the first pair warms up
                            results[name].append(result)
            finally:
                old.close()
                new.close()
            print(f"{job}, {workers} workers, {logical} logical, {options.pairs} pairs of {options.steps} steps:")
            for key in results["old"][0]:
                a, b = [r[key] for r in results["old"]], [r[key] for r in results["new"]]
                ratios = sorted(y / x for x, y in zip(a, b))
                print(f"  {key}: {statistics.median(a):.6g} and {statistics.median(b):.6g}; ratio {statistics.median(ratios):.3f} "
                      f"({ratios[len(ratios) // 4]:.3f} to {ratios[3 * len(ratios) // 4]:.3f})", flush=True)


if __name__ == "__main__":
    main()
