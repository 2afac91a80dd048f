#!/usr/bin/env python3
"""Tests that several processes of a host train as one rank, with gloo, against the fake worker."""

import faulthandler
import os
import pathlib
import socket
import subprocess
import sys
import threading
import unittest

import support

torch = support.import_torch()
if torch is None:
    print("python/tests/local_group_test.py:1: Skipped\ntorch is not there: local groups were not tested")
    sys.exit()
support.prepare()

import fake_worker
import numpy as np

import muster.torch as mt

LOSS = torch.nn.MSELoss()
SAMPLES = torch.utils.data.TensorDataset(torch.randn(48, 4, generator=torch.Generator().manual_seed(1)),
                                         torch.randn(48, 2, generator=torch.Generator().manual_seed(2)))


class Network(torch.nn.Module):
    """Has a batch norm, and a part that only the first sample of a batch may use."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8, momentum=1.0), torch.nn.Linear(8, 2))
        self.rare = torch.nn.Parameter(torch.ones(2))
        self.body[1].eval()  # keeps the result independent of how the batch is divided


def program(path, mode):
    """The program of each process. `mode` is a fault to make."""
    torch.set_num_threads(1)
    model = Network()
    job = mt.join(model, socket=path)
    optimizer = job.optimizer(model)
    for x, y in job.loader(SAMPLES, evaluation_samples=10):
        # Only process 0 has a gradient of `rare`.
        scale = model.rare * 0.5 if job._group is None or job._group.process == 0 else 1.0
        loss = LOSS(model.body(x) * (scale if mode == "rare" else 1.0), y)
        loss.backward()
        if mode == "crash" and job.step_number == 1 and job._group.process == 1:
            os._exit(3)
        if mode == "raise" and job.step_number == 1 and job._group.process == 1:
            raise LookupError("no such sample")
        optimizer.step()
        optimizer.zero_grad()
        job.log(loss=loss)
        if job.step_number == 1:
            found = job.evaluate(lambda indices: {"mean": float(indices.mean()), "count": float(len(indices))})
            assert found["mean"] == 4.5, found


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(path, mode, size, by_torchrun=False):
    """Starts the processes as `muster launch` or torchrun do."""
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = []
    for process in range(size):
        own = ({"RANK": process, "WORLD_SIZE": size, "LOCAL_RANK": process, "LOCAL_WORLD_SIZE": size} if by_torchrun else
               {"MUSTER_LOCAL_PROCESSES": size, "MUSTER_LOCAL_PROCESS": process})
        processes.append(subprocess.Popen([sys.executable, str(pathlib.Path(sys.argv[0]).absolute()), "program", path, mode],
                                          env={**common, **{name: str(value) for name, value in own.items()}},
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    return processes


def fake_job(**arguments):
    table = mt._Table(Network())
    return fake_worker.FakeJob(table.values(), {"kind": "sgd", "learning_rate": 0.1, "momentum": 0.9}, statistics=table.statistics,
                               batch_size=8, **arguments)


class LocalGroupTest(unittest.TestCase):
    def end(self, processes):
        """Returns the exit codes and errors of the processes. Kills those that do not end."""
        ends = []
        for each in processes:
            killer = threading.Timer(60, each.kill)
            killer.start()
            ends.append(each.communicate()[1])
            killer.cancel()
        return [each.returncode for each in processes], ends

    def test_processes_are_one_rank_with_the_whole_batch(self):
        with fake_job(steps=5) as alone:
            program(alone.paths[0], "plain")
        for mode, size, by_torchrun in (("plain", 2, False), ("rare", 2, True), ("plain", 4, False)):
            with self.subTest(mode=mode, size=size), fake_job(steps=5) as job:
                job.again = {2: [(None, 2)]}
                codes, found = self.end(start(job.paths[0], mode, size, by_torchrun))
                self.assertEqual(codes, [0] * size, found)
                self.assertEqual(sorted(hello["process"] for hello in job.hellos), list(range(size)))
                if mode == "rare":
                    self.assertTrue((job.values["rare"] != 1).all())
                else:
                    self.assertAlmostEqual(job.finished[-1][1]["loss"], alone.finished[-1][1]["loss"], places=5)
                    for name, value in alone.values.items():
                        np.testing.assert_allclose(job.values[name], value, rtol=0, atol=1e-6, err_msg=name)

    def test_an_end_reaches_every_process(self):
        with fake_job(steps=10**6) as job:
            processes = start(job.paths[0], "plain", 2)
            job.wait(lambda: job.version > 3)
            job.end("suspended")
            codes, found = self.end(processes)
            self.assertEqual(codes, [7, 7], found)
            self.assertIn("muster resume fake-1", found[1])

    def test_the_end_of_one_process_ends_the_others(self):
        with fake_job() as job:
            codes, found = self.end(start(job.paths[0], "crash", 2))
            self.assertEqual(codes, [1, 3], found)
            self.assertIn("another process of this host ended", found[0])
            self.assertEqual(job.failures, [])  # a launch starts the processes again

    def test_an_exception_of_any_process_is_reported(self):
        with fake_job() as job:
            codes, found = self.end(start(job.paths[0], "raise", 2))
            self.assertEqual(codes, [1, 1], found)
            self.assertEqual(len(job.failures), 1)
            self.assertIn("LookupError: no such sample", job.failures[0])

    def test_a_killed_worker_is_found_again_by_all(self):
        with fake_job(steps=300) as job:
            processes = start(job.paths[0], "plain", 2)
            job.wait(lambda: job.version > 3)
            job.stop(0)
            job.start(0)
            codes, found = self.end(processes)
            self.assertEqual(codes, [0, 0], found)
            self.assertEqual(sorted(hello["process"] for hello in job.hellos), [0, 0, 1, 1])


if __name__ == "__main__":
    if sys.argv[1:2] == ["program"]:
        faulthandler.dump_traceback_later(40)  # if it hangs, the test shows where
        program(*sys.argv[2:])
    else:
        support.main()
