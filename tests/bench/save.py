#!/usr/bin/env python3
"""Measures how much a checkpoint slows the steps during its write. A job on a local cluster saves at regular steps, and the steps just
after each save are compared with the others.

    tests/bench/save.py [--every 60] [--window 20] [--saves 8] [--bin bazel-bin]
    tests/bench/save.py --modes [--rounds 3] [--channels 1024] [--folder /tmp] [--bin bazel-bin]

The second form compares checkpoints that go through the coordinator (`checkpoint.mode: stream`) with those that ps write themselves
(`direct`). It runs the same job on the same cluster of two ps in both modes, `--rounds` times, and also measures the speed of the disk.

Needs `bazel build //:coordinator //:ps //:worker //:muster`. The window must be longer than a save. The worker computes with one
thread; coordinator and ps use the other processors.
"""

import argparse
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

BATCH = 4
JOB = """
name: save
model: {{zoo: {{name: gpt, args: {{layers: 4, heads: 4, channels: 256, context: 64, vocabulary: 256}}}}}}
data: {{synthetic: {{samples: 65536}}, batch_size: {batch}}}
training: {{steps: {steps}, optimizer: {{adamw: {{learning_rate: 1e-4}}}}}}
resources: {{workers: {{min: 1, max: 1}}, ps: 1}}
checkpoint: {{every_steps: {every}, keep_last: 2}}
"""


LARGE_JOB = """
name: large
model: {{zoo: {{name: gpt, args: {{layers: 4, heads: 8, channels: {channels}, context: 8, vocabulary: 256}}}}}}
data: {{synthetic: {{samples: 1024}}, batch_size: 1}}
training: {{steps: 9, optimizer: {{adamw: {{learning_rate: 1e-4}}}}}}
resources: {{workers: {{min: 1, max: 1}}, ps: 2}}
checkpoint: {{every_steps: 3, keep_last: 1, mode: {mode}}}
"""


def metric(url, name):
    """Returns the sum of a metric's series."""
    page = urllib.request.urlopen(url, timeout=10).read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.split("{")[0].split(" ")[0] == name)


def disk_seconds(folder, size):
    """Returns the seconds to write and sync a file of this size in `folder`, and those to read it back for its SHA-256."""
    block = os.urandom(4 << 20)
    path = pathlib.Path(folder) / "plain"
    begin = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(size // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    written = time.perf_counter()
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(len(block)):
            digest.update(part)
    read = time.perf_counter()
    path.unlink()
    return written - begin, read - written


def side_by_side(muster, arguments):
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        run = lambda *words: subprocess.run([muster, *words], check=True, capture_output=True, text=True, env=environment).stdout
        address = run("local", "up", "--dir", folder, "--ps", "2", "--workers", "1").strip()
        taken, work = {"stream": [], "direct": []}, {"stream": [], "direct": []}
        disk, digest = [], []
        try:
            fleet = json.loads(run("members", "--server", address, "-o", "json"))
            url = fleet["coordinator_metrics_url"]
            job = pathlib.Path(folder) / "job.yaml"
            for _ in range(arguments.rounds):
                for mode in taken:
                    job.write_text(LARGE_JOB.format(channels=arguments.channels, mode=mode))
                    before = [metric(url, f"muster_checkpoint_duration_seconds_{part}") for part in ("sum", "count")]
                    bytes_before, cpu = metric(url, "muster_checkpoint_bytes_total"), metric(url, "process_cpu_seconds_total")
                    identity = run("submit", "--server", address, "--wait", str(job))
                    seconds, count = (metric(url, f"muster_checkpoint_duration_seconds_{part}") - was
                                      for part, was in zip(("sum", "count"), before))
                    size = int((metric(url, "muster_checkpoint_bytes_total") - bytes_before) / count)
                    taken[mode].append(seconds / count)
                    work[mode].append((metric(url, "process_cpu_seconds_total") - cpu) / count)
                    logs = pathlib.Path(folder).glob("**/coordinator.log")
                    assert not any("SHARD_SENT" in log.read_text() for log in logs), identity
                seconds = disk_seconds(folder, size)
                disk.append(seconds[0])
                digest.append(seconds[1])
        finally:
            subprocess.run([muster, "local", "down", "--dir", folder], stdout=subprocess.DEVNULL)
    middle = statistics.median
    print(f"checkpoints of {size / 1e6:.0f} MB, 2 ps, {os.cpu_count()} processors, {arguments.rounds} rounds of 3")
    print("| | seconds a checkpoint (each round) | MB/s | coordinator's processor seconds |\n|---|---|---:|---:|")
    for mode in taken:
        each = ", ".join(f"{seconds:.2f}" for seconds in taken[mode])
        print(f"| {mode} | {middle(taken[mode]):.2f} ({each}) | {size / middle(taken[mode]) / 1e6:.0f} | {middle(work[mode]):.2f} |")
    for what, seconds in (("a plain file, written and synced", disk), ("its SHA-256", digest)):
        each = ", ".join(f"{second:.2f}" for second in seconds)
        print(f"| {what} | {middle(seconds):.2f} ({each}) | {size / middle(seconds) / 1e6:.0f} | |")
    limit = middle(disk) + middle(digest)
    print(f"limit: {middle(disk):.2f} s + {middle(digest):.2f} s = {limit:.2f} s; "
          f"stream {middle(taken['stream']) / limit:.2f} of it, direct {middle(taken['direct']) / limit:.2f}")


def step_seconds(log):
    """Returns the seconds of every step, in order."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [BATCH / line["samples_per_second"] for line in lines if "loss" in line]


def saves(coordinator_log):
    """Returns the number of committed checkpoints in the coordinator's log."""
    return coordinator_log.read_text().count("CHECKPOINT_COMMITTED")


def compare(seconds, every, window):
    """Returns the medians during a save and of the others, and the slowest of each. Omits the first period, which is a warm-up."""
    during = [s for step, s in enumerate(seconds) if step >= every and step % every < window]
    others = [s for step, s in enumerate(seconds) if step >= every and step % every >= window]
    return statistics.median(during), statistics.median(others), max(during), max(others)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=60)
    parser.add_argument("--window", type=int, default=20)
    parser.add_argument("--saves", type=int, default=8)
    parser.add_argument("--modes", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--channels", type=int, default=1024)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--bin", default="bazel-bin")
    arguments = parser.parse_args()
    muster = pathlib.Path(arguments.bin).resolve() / "cli" / "muster"
    if not muster.exists():
        sys.exit(f"save.py: no {muster}: bazel build //:coordinator //:ps //:worker //:muster")
    if arguments.modes:
        return side_by_side(muster, arguments)
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        local = [muster, "local"]
        subprocess.run([*local, "up", "--dir", folder, "--ps", "1", "--workers", "1"], check=True, env=environment,
                       stdout=subprocess.DEVNULL)
        try:
            status = subprocess.run([*local, "status", "--dir", folder], check=True, capture_output=True, text=True).stdout
            server = next(word for word in status.split() if ":" in word and word.rsplit(":", 1)[1].isdigit())
            job = pathlib.Path(folder) / "job.yaml"
            job.write_text(JOB.format(batch=BATCH, steps=arguments.every * (arguments.saves + 1), every=arguments.every))
            subprocess.run([muster, "--server", server, "submit", "--wait", job], check=True, stdout=subprocess.DEVNULL)
            state = pathlib.Path(folder)
            log = next(state.glob("**/metrics.jsonl"))
            committed = saves(next(state.glob("**/coordinator.log")))
            bytes_saved = sum(file.stat().st_size for file in max(state.glob("**/step-*")).iterdir())
            during, others, slowest_during, slowest = compare(step_seconds(log), arguments.every, arguments.window)
        finally:
            subprocess.run([*local, "down", "--dir", folder], stdout=subprocess.DEVNULL)
    print(f"{committed} checkpoints of {bytes_saved / 1e6:.1f} MB, {os.cpu_count()} processors")
    print("| steps | median | slowest |\n|---|---:|---:|")
    print(f"| the {arguments.window} from each save on | {during * 1e3:.1f} ms | {slowest_during * 1e3:.1f} ms |")
    print(f"| the others | {others * 1e3:.1f} ms | {slowest * 1e3:.1f} ms |")
    print(f"median ratio {during / others:.3f}")


if __name__ == "__main__":
    main()
