#!/usr/bin/env python3
"""The memory of ps in docs/sizing.md is what jobs take on a local cluster."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import time
import unittest
import urllib.request

ROOT = pathlib.Path(os.path.dirname(os.path.abspath(__file__))).parent
MUSTER = ROOT / "cli" / "muster"
PATIENCE_S = 60
WORKERS = 2
JOB = """
name: sizing
model: {zoo: {name: mlp, args: {height: 16, width: 16, hidden: "512,512", classes: 512}}}
data: {synthetic: {samples: 4096}, batch_size: 8}
training: {steps: 1000000, optimizer: {adamw: {learning_rate: 1e-3}}}
resources: {workers: {min: 2, max: 2}, ps: 2}
"""
PARAMETERS = 256 * 512 + 512 + 2 * (512 * 512 + 512)
ADAM, MOMENTUM, SGD = "adam, adamw, lamb", "sgd, lars with momentum; adagrad; rmsprop", "sgd, lars without momentum"
# The settings, the row and the column of the table, and the bytes that the second table adds.
CASES = [
    ([], ADAM, "`bsp`", 0),
    (["training.optimizer={sgd: {learning_rate: 1e-3}}"], SGD, "`bsp`", 0),
    (["training.optimizer={sgd: {learning_rate: 1e-3, momentum: 0.9}}"], MOMENTUM, "`bsp`", 0),
    (["sync={mode: ssp}"], ADAM, "`ssp`, `asp`", 0),
    (["sync={mode: asp}"], ADAM, "`ssp`, `asp`", 0),
    (["sync={values: bf16}"], ADAM, "`bsp`, `values: bf16` or `fp16`", 0),
    (["sync={mode: local_sgd, every: 8}"], ADAM, "`local_sgd`", 0),
    (["sync={backup_workers: 1}"], ADAM, "`bsp`", 4),
    (["sync={compression: int8}"], ADAM, "`bsp`", 1.016 * WORKERS),
    (["sync={compression: bf16}"], ADAM, "`bsp`", 0),
    (["resources.ps_replication=2"], ADAM, "`bsp`", 36 + 8),
]


def bytes_a_parameter():
    """The table, by row and column."""
    page = (ROOT / "docs" / "sizing.md").read_text(encoding="utf-8")
    head, _, *rows = re.search(r"^\| optimizer \| slots .*\n(?:\|.*\n)+", page, re.MULTILINE)[0].splitlines()
    columns = [cell.strip() for cell in head.strip("|").split("|")]
    table = {}
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        for column, cell in list(zip(columns, cells))[2:]:
            state, gradients = re.fullmatch(r"(\d+) \+ (\d+) W", cell).groups()
            table[cells[0], column] = int(state) + int(gradients) * WORKERS
    return table


class SizingTest(unittest.TestCase):
    def run_muster(self, *arguments):
        ran = subprocess.run([MUSTER, *arguments], capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 0, f"muster {arguments}: {ran.stdout}{ran.stderr}")
        return ran.stdout

    def await_running(self, server, job):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            now = json.loads(self.run_muster(server, "-o", "json", "get", job))
            if now["state"] == "RUNNING" and int(now.get("progress", {}).get("step", 0)) > 0:
                return
            self.assertNotEqual(now["state"], "FAILED", now)
            self.assertLess(time.monotonic(), deadline, now)
            time.sleep(0.05)

    def bytes_of(self, server, job):
        total = 0.0
        for member in json.loads(self.run_muster(server, "-o", "json", "members"))["members"]:
            if member["role"] == "PS":
                with urllib.request.urlopen(member["metrics_url"], timeout=PATIENCE_S) as page:
                    text = page.read().decode()
                total += sum(float(value) for value in re.findall(rf'^muster_ps_job_bytes{{job="{job}"}} (.*)$', text, re.MULTILINE))
        return total

    def test_ps_take_the_memory_of_the_table(self):
        table = bytes_a_parameter()
        # The folder's name is short: the paths of sockets below it have a limit.
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            path = pathlib.Path(folder) / "job.yaml"
            path.write_text(JOB, encoding="utf-8")
            self.run_muster("local", "up", "--dir", folder, "--ps", "2", "--workers", str(WORKERS))
            try:
                server = "--server=" + (pathlib.Path(folder) / "coordinator.address").read_text(encoding="utf-8").strip()
                for settings, row, column, more in CASES:
                    with self.subTest(settings=settings):
                        sets = [word for setting in settings for word in ("--set", setting)]
                        job = self.run_muster(server, "-o", "name", "submit", str(path), *sets).strip().rsplit("/", 1)[-1]
                        try:
                            self.await_running(server, job)
                            found = self.bytes_of(server, job) / PARAMETERS
                            # Biases are never narrowed, and chunks end at a cache line.
                            self.assertAlmostEqual(found, table[row, column] + more, delta=0.01 * found)
                        finally:
                            self.run_muster(server, "cancel", job)
            finally:
                self.run_muster("local", "down", "--dir", folder)


if __name__ == "__main__":
    unittest.main()
