#!/usr/bin/env python3
"""What a checkpoint costs the steps during which it is written: a job on a local cluster saves every so many steps, and the steps just
after each save are held against the others.

    tests/bench/save.py [--every 60] [--window 20] [--saves 8] [--bin bazel-bin]

Needs `bazel build //:coordinator //:ps //:worker //:muster`. The window must be longer than a save takes. The worker computes with one
thread; coordinator and ps use what other processors there are.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

BATCH = 4
JOB = """
name: save
model: {{zoo: {{name: gpt, args: {{layers: 4, heads: 4, channels: 256, context: 64, vocabulary: 256}}}}}}
data: {{synthetic: {{samples: 65536}}, batch_size: {batch}}}
training: {{steps: {steps}, optimizer: {{adamw: {{learning_rate: 1e-4}}}}}}
resources: {{workers: {{min: 1, max: 1}}, ps: 1}}
checkpoint: {{every_steps: {every}, keep_last: 2}}
"""


def step_seconds(log):
    """Of every step, in order."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [BATCH / line["samples_per_second"] for line in lines if "loss" in line]


def saves(coordinator_log):
    """How many checkpoints were committed, by the coordinator's own word."""
    return coordinator_log.read_text().count("CHECKPOINT_COMMITTED")


def compare(seconds, every, window):
    """(medians while saving, of the others; the slowest of each), the first period left out: everything is new in it."""
    during = [s for step, s in enumerate(seconds) if step >= every and step % every < window]
    others = [s for step, s in enumerate(seconds) if step >= every and step % every >= window]
    return statistics.median(during), statistics.median(others), max(during), max(others)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=60)
    parser.add_argument("--window", type=int, default=20)
    parser.add_argument("--saves", type=int, default=8)
    parser.add_argument("--bin", default="bazel-bin")
    arguments = parser.parse_args()
    muster = pathlib.Path(arguments.bin).resolve() / "cli" / "muster"
    if not muster.exists():
        sys.exit(f"save.py: no {muster}: bazel build //:coordinator //:ps //:worker //:muster")
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
