#!/usr/bin/env python3
"""Tests how a training program submits its job, without a cluster."""

import json
import os
import struct
import unittest
from unittest import mock

import support

support.prepare()

import numpy as np

import muster
from muster import _spec, _submission
from muster.client import Client

TENSORS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "mean": np.array([0.5], np.float32), "scale": np.float32(2)}
JOB = {"name": "line", "data": {"batch_size": 4}}


class FakeJobs:
    """Takes the place of client.jobs, and keeps what it was asked for."""

    submitted = []

    def submit(self, job, *, overrides, request_id):
        spec, _ = _spec.read(job, overrides)
        with open(spec.model.external.path, "rb") as file:
            self.submitted.append((spec, request_id, file.read()))
        return mock.Mock(id="line-3")


class SubmissionTest(unittest.TestCase):
    def setUp(self):
        self.home = support.enter(self, support.home())
        FakeJobs.submitted.clear()
        for name in list(os.environ):
            if name.startswith("MUSTER_"):
                del os.environ[name]
        support.enter(self, mock.patch.object(Client, "__init__", lambda self, **_: setattr(self, "jobs", FakeJobs())))
        support.enter(self, mock.patch.object(Client, "close", lambda self: None))

    def job(self, spec=JOB, job=None, process=0):
        return _submission.job_of(spec, job, process, lambda: TENSORS, ["mean"], _submission.Coordinator())

    def test_a_job_is_submitted_with_its_values(self):
        self.assertEqual(self.job(), "line-3")
        spec, request, content = FakeJobs.submitted[0]
        self.assertEqual((spec.model.WhichOneof("source"), spec.data.WhichOneof("source")), ("external", "external"))
        self.assertEqual(len(request), 36)
        self.assertFalse(os.path.exists(spec.model.external.path))
        length, = struct.unpack_from("<Q", content)
        header = json.loads(content[8:8 + length])
        self.assertEqual(json.loads(header.pop("__metadata__")["muster.statistics"]), ["mean"])
        self.assertEqual({name: (each["dtype"], each["shape"]) for name, each in header.items()},
                         {"w": ("F32", [2, 3]), "mean": ("F32", [1]), "scale": ("F32", [])})
        self.assertEqual(list(header), list(TENSORS))
        for name, each in header.items():
            begin, end = each["data_offsets"]
            values = np.frombuffer(content[8 + length + begin:8 + length + end], np.float32)
            np.testing.assert_array_equal(values, TENSORS[name].ravel())
        self.assertFalse(spec.resources.HasField("workers"))

    def test_a_launch_gives_its_id_folder_and_workers(self):
        os.environ.update(MUSTER_LAUNCH_ID="an-id", MUSTER_MODEL_DIR=str(self.home), MUSTER_WORKERS="3", MUSTER_SUBMIT="1")
        self.job()
        spec, request, _ = FakeJobs.submitted[0]
        self.assertEqual((request, spec.model.external.path), ("an-id", f"{self.home}/an-id.safetensors"))
        self.assertEqual((spec.resources.workers.min, spec.resources.workers.max), (3, 3))
        self.job({**JOB, "resources": {"workers": {"min": 1, "max": 2}}})
        self.assertEqual((FakeJobs.submitted[1][0].resources.workers.min, FakeJobs.submitted[1][0].resources.workers.max), (1, 2))

    def test_a_job_file_with_another_model_is_refused(self):
        for field, source in (("model", {"zoo": {"name": "linear"}}), ("data", {"batch_size": 4, "linear": {"samples": 8}})):
            with self.assertRaisesRegex(muster.LoopError, f"the job file has {field}.*remove that field"):
                self.job({**JOB, field: source})
        self.assertEqual(FakeJobs.submitted, [])

    def test_other_programs_only_attach(self):
        self.assertEqual(self.job(job="line"), "line")
        self.assertEqual(self.job(spec=None), "")
        self.assertEqual(self.job(process=1), "")
        os.environ["MUSTER_SUBMIT"] = "0"
        self.assertEqual(self.job(), "line")
        os.environ["MUSTER_JOB"] = "line-7"
        self.assertEqual(self.job(), "line-7")
        self.assertEqual(FakeJobs.submitted, [])

    def test_a_worker_is_found_by_its_socket(self):
        import socket
        os.environ.pop("MUSTER_PROGRAM_SOCKET", None)
        os.environ["XDG_RUNTIME_DIR"] = str(self.home)
        folder = self.home / f"muster-{os.getuid()}"
        folder.mkdir()
        listeners = []
        for name in ("worker-0.sock", "worker-1.sock"):
            if listeners:
                self.assertEqual(_submission.socket_path(), str(folder / "worker-0.sock"))
            listeners.append(support.enter(self, socket.socket(socket.AF_UNIX)))
            listeners[-1].bind(str(folder / name))
        with self.assertRaisesRegex(muster.LoopError, "several workers have a socket: .*worker-0.sock, .*worker-1.sock; set MUSTER_PROGRAM_SOCKET"):
            _submission.socket_path()
        os.environ["MUSTER_PROGRAM_SOCKET"] = "/elsewhere"
        self.assertEqual(_submission.socket_path(), "/elsewhere")


if __name__ == "__main__":
    support.main()
