#!/usr/bin/env python3
"""Trains programs in Python through real daemons: the same mathematics as PyTorch, and the same bits through kills."""

import contextlib
import importlib.util
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
import unittest

import support

torch = support.import_torch()
support.prepare()

import numpy

import loop_program
from muster._sample_order import SampleOrder

TESTS = support.ROOT / "python/tests"
PATIENCE = 300


def has(module):
    return importlib.util.find_spec(module) is not None


NEEDS_TORCH = unittest.skipUnless(torch, "torch is not there: PyTorch loops did not run")


def spec_of(steps, optimizer, workers, **training):
    return {
        "name": "loop",
        "data": {"batch_size": 32, "seed": 9},
        "training": {"steps": steps, "optimizer": optimizer, **training},
        "resources": {"workers": {"min": workers}, "ps": 1},
        "checkpoint": {"every_steps": max(1, steps // 4)},
    }


class Launch:
    """A running `muster launch` in a folder of its own."""

    def __init__(self, folder, command, workers=1, ps=1, flags=()):
        self.folder = folder
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        self.log = folder / "output"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [support.program("muster"), "launch", f"--workers={workers}", f"--ps={ps}", f"--out={folder / 'run'}", *flags,
                 "--", sys.executable, TESTS / "run_program.py", *command], stdout=log, stderr=subprocess.STDOUT, env=environment)

    def output(self):
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self):
        """Returns the exit code."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(PATIENCE)
            raise RuntimeError(f"still running after {PATIENCE} s: {self.output()}") from None

    def records(self):
        """Returns the lines of the job's metrics by step; a step that was made again counts once."""
        records = {}
        for file in self.folder.glob("run/state/jobs/*/metrics.jsonl"):
            for line in file.read_text(encoding="utf-8").splitlines():
                record = json.loads(line)
                if "loss" in record and "evaluation" not in record:
                    records[record["step"]] = record
        return records

    def values(self):
        """Returns the bytes of the last checkpoint's tensors by file."""
        checkpoints = sorted(self.folder.glob("run/state/jobs/*/checkpoints/step-*"))
        return {file.name: file.read_bytes() for file in sorted(checkpoints[-1].glob("*.safetensors"))}

    def pids(self, role):
        """Returns the processes below the launcher whose program is `role`."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_bytes().split(b"\0")
                if parent != self.process.pid:
                    continue
                name = os.fsdecode(command[0])
                is_program = any(part.endswith(b"loop_program.py") for part in command)
                if is_program if role == "program" else f"services/{role}/" in name or name.endswith(f"/{role}"):
                    found.append(int(entry.name))
        return sorted(found)


class LoopTest(unittest.TestCase):
    def setUp(self):
        self.home = support.enter(self, support.home())

    def launch(self, name, kind, spec, workers, **options):
        folder = self.home / name
        folder.mkdir()
        return Launch(folder, [TESTS / "loop_program.py", kind, json.dumps(spec), folder / "progress"], workers=workers, **options)

    def finished(self, *arguments, **options):
        run = self.launch(*arguments, **options)
        self.assertEqual(run.wait(), 0, run.output())
        return run

    def test_numpy_trains_the_same_on_any_number_of_workers(self):
        losses = {}
        for workers in (1, 2, 4):
            run = self.finished(f"numpy-{workers}", "numpy", spec_of(100, {"adam": {"learning_rate": 0.01}}, workers), workers)
            losses[workers] = [record["loss"] for _, record in sorted(run.records().items())]
            self.assertEqual(len(losses[workers]), 100, run.output())
        self.assertLess(losses[1][-1], losses[1][0] / 2)
        for workers in (2, 4):
            numpy.testing.assert_allclose(losses[workers], losses[1], rtol=1e-4)

    @NEEDS_TORCH
    def test_torch_trains_the_same_with_and_without_muster(self):
        """The same model, data, optimizer and schedule in a loop of torch alone, and on 1, 2 and 4 workers."""
        steps, settings = 100, {"learning_rate": 0.01, "weight_decay": 0.1}
        spec = spec_of(steps, {"adamw": settings}, 1)
        torch.set_num_threads(1)
        inputs, targets = (torch.from_numpy(array) for array in loop_program.make_data())
        order = SampleOrder(spec["data"]["seed"], loop_program.SAMPLES, spec["data"]["batch_size"])
        model = loop_program.make_torch_model(is_plain=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=settings["learning_rate"], weight_decay=settings["weight_decay"])
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
        alone = []
        for step in range(steps):
            batch = torch.from_numpy(order.indices(step, 0, spec["data"]["batch_size"]))
            loss = torch.nn.functional.cross_entropy(model(inputs[batch]), targets[batch])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            alone.append(loss.item())
        self.assertLess(alone[-1], alone[0] / 2)
        for workers in (1, 2, 4):
            run = self.finished(f"torch-{workers}", "plain", spec_of(steps, {"adamw": settings}, workers), workers)
            losses = [record["loss"] for _, record in sorted(run.records().items())]
            numpy.testing.assert_allclose(losses, alone, rtol=1e-4, err_msg=f"{workers} workers")
            for name, values in model.named_parameters():
                said = re.search(rf"final {re.escape(name)} (\S+)", run.output())
                self.assertIsNotNone(said, run.output())
                self.assertAlmostEqual(float(said[1]), values.double().sum().item(), delta=1e-3, msg=name)

    def test_a_program_that_ends_early_fails_the_job(self):
        spec = spec_of(1000, {"sgd": {"learning_rate": 0.1}}, 2)
        run = self.launch("early", "numpy", {**spec, "labels": {"stop": "at-5"}}, 2)
        self.assertEqual(run.wait(), 1, run.output())
        self.assertIn("the program ended in step 5 of 1000, and loop-1 has not ended", run.output())

    def test_the_program_has_the_last_values_after_its_loop(self):
        for kind in ("numpy", "plain") if torch else ("numpy",):
            run = self.finished(f"last-{kind}", kind, spec_of(5, {"sgd": {"learning_rate": 0.5}}, 2), 2)
            (content,) = run.values().values()
            size = int.from_bytes(content[:8], "little")
            for name, tensor in json.loads(content[8:8 + size]).items():
                if name == "__metadata__":
                    continue
                begin, end = (8 + size + offset for offset in tensor["data_offsets"])
                said = re.search(rf"final {re.escape(name)} (\S+)", run.output())
                self.assertIsNotNone(said, f"{name}: {run.output()}")
                self.assertAlmostEqual(float(said[1]), numpy.frombuffer(content[begin:end], "<f4").astype(float).sum(), delta=1e-9)

    @NEEDS_TORCH
    def test_kills_do_not_change_a_bit(self):
        seed = int(os.environ.get("MUSTER_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
        print(f"seed {seed}", flush=True)
        rolls = random.Random(seed)
        kills = int(os.environ.get("MUSTER_TEST_KILLS", "20"))
        steps = 60 * (kills + 1)
        spec = spec_of(steps, {"adamw": {"learning_rate": 0.01}}, 2)
        undisturbed = self.finished("undisturbed", "torch", spec, 2)
        run = self.launch("killed", "torch", spec, 2, flags=[f"--restarts={kills}"])
        progress, killed = run.folder / "progress", 0
        for kill in range(kills):
            goal = 60 * kill + rolls.randrange(10, 50)
            role = rolls.choice(["program", "program", "worker", "ps", "coordinator"])
            self.await_step(run, progress, goal)
            if pids := run.pids(role):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rolls.choice(pids), signal.SIGKILL)
                    killed += 1
                    print(f"killed a {role} at step {goal}", flush=True)
        self.assertEqual(run.wait(), 0, run.output())
        self.assertGreater(killed, kills // 2)
        self.assertEqual(sorted(run.records()), list(range(steps)))
        # Losses are means over the workers that reported them, and a killed worker or program may not have. The norm of the
        # gradient is the whole batch's. NaN: the answer of a shard was lost.
        norms = {step: record["gradient_norm"] for step, record in run.records().items() if "gradient_norm" in record}
        self.assertGreater(len(norms), steps // 2)
        for step, norm in norms.items():
            self.assertEqual(norm, undisturbed.records()[step]["gradient_norm"], f"step {step}, seed {seed}")
        self.assertEqual(undisturbed.values().keys(), run.values().keys())
        for name, content in undisturbed.values().items():
            self.assertEqual(content, run.values()[name], f"{name} differs, seed {seed}")

    def test_the_examples_train(self):
        self.train_example("numpy_linear", 50)

    @NEEDS_TORCH
    def test_the_examples_with_torch_train(self):
        self.train_example("mnist", 4)
        self.train_example("char_gpt", 4)

    @unittest.skipUnless(torch and has("transformers"), "transformers is not there: examples/python/finetune_hf.py did not run")
    def test_the_example_with_transformers_trains(self):
        self.train_example("finetune_hf", 4, support.ROOT / "examples/data/licences/BSD")

    @unittest.skipUnless(torch and has("torchvision"), "torchvision is not there: examples/python/resnet_imagefolder.py did not run")
    def test_the_example_with_torchvision_trains(self):
        from PIL import Image
        for label in ("cat", "dog"):
            (self.home / "images" / label).mkdir(parents=True)
            for i in range(4):
                Image.new("RGB", (32, 32), (40 * i, 9, 99)).save(self.home / "images" / label / f"{i}.png")
        self.train_example("resnet_imagefolder", 2, self.home / "images")

    def train_example(self, name, steps, *arguments):
        folder = self.home / name
        folder.mkdir()
        run = Launch(folder, [support.ROOT / f"examples/python/{name}.py", *arguments, str(steps)], workers=2)
        self.assertEqual(run.wait(), 0, run.output())
        self.assertEqual(len(run.records()), steps, run.output())

    def await_step(self, run, progress, goal):
        end = time.monotonic() + PATIENCE
        while True:
            lines = progress.read_text(encoding="utf-8").splitlines() if progress.exists() else []
            if any(int(line.split()[0]) >= goal for line in lines[-2:] if line.endswith(tuple("0123456789"))):
                return
            if run.process.poll() is not None or time.monotonic() > end:
                self.fail(f"step {goal} was not reached: {run.output()}")
            time.sleep(0.005)


if __name__ == "__main__":
    support.main()
