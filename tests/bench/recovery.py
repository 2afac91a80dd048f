#!/usr/bin/env python3
"""Measures how long a job pauses when a member is killed, by phase and model size.

    tests/bench/recovery.py [--strikes 5] [--hidden 256,1024,4096,8192] [--bin bazel-bin]

The models are perceptrons of two hidden layers with Adam, on a local cluster of 2 workers. Every job uses 2 ps. Workers are killed in a job
without replicas on a cluster of 2 ps, ps in a job with replicas of shards on a cluster of 3 ps. The process restarts 0.3 s later. The only
checkpoint is the last one. Phases are means from the coordinator's metrics (docs/metrics.md). "seen" is the time from `kill -9` to the first
new step, as a watcher of the job sees it, median and longest. Needs `bazel build //:coordinator //:ps //:worker //:muster`.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import urllib.request

INPUTS, CLASSES, BATCH = 784, 10, 16
PHASES = ["halt", "plan", "prepare", "first_step"]
JOB = """
name: recovery
model: {{zoo: {{name: mlp, args: {{hidden: "{hidden},{hidden}"}}}}}}
data: {{synthetic: {{samples: 65536}}, batch_size: {batch}}}
training: {{steps: 1000000, optimizer: {{adam: {{learning_rate: 1e-4}}}}}}
resources: {{workers: {{min: 2, max: 2}}, ps: {shards}, ps_replication: {replication}}}
restart: {{max_restarts: 1000}}
"""


def elements(hidden):
    return (INPUTS + 1) * hidden + (hidden + 1) * hidden + (hidden + 1) * CLASSES


def phase_sums(url):
    """Returns {phase: (total seconds, count)}."""
    page = urllib.request.urlopen(url, timeout=10).read().decode()
    found = {}
    for phase in PHASES:
        values = [re.search(rf'muster_recovery_phase_duration_seconds_{what}{{[^}}]*phase="{phase}"[^}}]*}} (\S+)', page) for what in ("sum", "count")]
        found[phase] = tuple(float(value[1]) if value else 0.0 for value in values)
    return found


def measure(muster, hidden, role, strikes):
    """Returns (mean seconds of each phase, [seconds until a new step was seen, sorted], steps made again, seconds of a step)"""
    replication = 2 if role == "ps" else 1
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        run = lambda *arguments: subprocess.run([muster, *arguments], check=True, capture_output=True, text=True).stdout
        server = run("local", "up", "--dir", folder, "--ps", "3" if role == "ps" else "2", "--workers", "2").strip()
        try:
            url = json.loads(run("members", "--server", server, "-o", "json"))["coordinator_metrics_url"]
            file = pathlib.Path(folder) / "job.yaml"
            file.write_text(JOB.format(hidden=hidden, batch=BATCH, shards=2, replication=replication))
            job = run("submit", "--server", server, "-o", "name", str(file)).strip()
            before = phase_sums(url)
            # Chaos strikes two seconds after the previous recovery. It ends when this script cancels the job.
            chaos = subprocess.Popen([muster, "chaos", "--job", job, "--dir", folder, "--roles", role, "--kill-every", "2s", "--for", "10m",
                                      "--seed", "1", "--deadline", "120s"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            recovered, lines = 0, []
            for line in chaos.stdout:
                lines.append(line)
                recovered += "a step again" in line
                if recovered == strikes:
                    after = phase_sums(url)
                    run("cancel", "--server", server, job)
                    lines += chaos.stdout.readlines()
                    break
            chaos.wait()
            metrics_log = next(pathlib.Path(folder).glob("**/metrics.jsonl")).read_text().splitlines()
            if recovered < strikes:
                sys.exit("recovery.py: chaos ended early:\n" + "".join(lines))
        finally:
            subprocess.run([muster, "local", "down", "--dir", folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seen = sorted(float(found[1]) for found in (re.search(r"a step again (\S+) s after", line) for line in lines) if found)
    logs = [json.loads(line) for line in metrics_log]
    step = statistics.median(BATCH / record["samples_per_second"] for record in logs if "loss" in record)
    phases = {phase: (after[phase][0] - before[phase][0]) / max(1.0, after[phase][1] - before[phase][1]) for phase in PHASES}
    again = next((line.split()[-1] for line in lines if line.startswith("steps made again")), "?")
    return phases, seen, again, step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strikes", type=int, default=5)
    parser.add_argument("--hidden", default="256,1024,4096,8192")
    parser.add_argument("--bin", default="bazel-bin")
    arguments = parser.parse_args()
    muster = pathlib.Path(arguments.bin).resolve() / "cli" / "muster"
    if not muster.exists():
        sys.exit(f"recovery.py: no {muster}: bazel build //:coordinator //:ps //:worker //:muster")
    print("| parameters | killed | " + " | ".join(PHASES) + " | seen: median | longest | steps made again | a step |")
    print("|---:|---|" + "---:|" * (len(PHASES) + 4), flush=True)
    for hidden in map(int, arguments.hidden.split(",")):
        for role in ("worker", "ps"):
            phases, seen, again, step = measure(muster, hidden, role, arguments.strikes)
            print(f"| {elements(hidden) / 1e6:.2f} M | {role} | " + " | ".join(f"{1e3 * phases[phase]:.0f} ms" for phase in PHASES) +
                  f" | {seen[len(seen) // 2]:.2f} s | {seen[-1]:.2f} s | {again} | {1e3 * step:.0f} ms |", flush=True)


if __name__ == "__main__":
    main()
