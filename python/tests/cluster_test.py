#!/usr/bin/env python3
"""Tests muster.Client against real clusters: a local one, and one with certificates and tokens."""

import pathlib
import sys
import types
import unittest
from unittest import mock

import support

TORCH = support.import_torch()
support.prepare()

import numpy as np

import muster
from muster import errors

LINEAR = support.ROOT / "examples/linear.yaml"
# Runs until it is stopped.
LONG = {
    "name": "long",
    "model": {"zoo": {"name": "linear"}},
    "data": {"linear": {"slope": 3, "intercept": -1, "samples": 4096}, "batch_size": 64},
    "training": {"steps": 10**9, "optimizer": {"sgd": {"learning_rate": 0.1, "momentum": 0.9}}},
    "checkpoint": {"every": "0s"},
}


class LocalClusterTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = support.LocalCluster(cls)
        cls.client = support.enter(cls, muster.Client(patience=30))
        cls.linear = cls.client.jobs.wait(cls.client.jobs.submit(LINEAR), timeout=support.PATIENCE)

    def test_a_job_is_trained(self):
        self.assertIn("the local cluster", self.client.where)
        self.assertRegex(self.linear.id, r"linear-\d+")
        self.assertEqual((self.linear.state, self.linear.step, self.linear.total_steps), ("SUCCEEDED", 640, 640))
        self.assertTrue(self.linear.ended)
        self.assertLess(self.linear.create_time, self.linear.end_time)
        self.assertEqual(self.client.jobs.get(self.linear.id), self.linear)
        self.assertEqual(self.linear.proto.spec.data.batch_size, 64)

    def test_a_program_has_no_logical_workers(self):
        program = {**LONG, "model": {"external": {"path": "/data/model.safetensors"}}, "data": {"external": {}, "batch_size": 8}}
        with self.assertRaises(errors.InvalidSpecError) as refused:
            self.client.jobs.submit(program, overrides={"resources.workers": {"max": 2, "logical": 4}})
        self.assertIn(
            ("resources.workers.logical", "not with model.external: the program decides how it sums over its samples; remove it"),
            [(fault.field, fault.message) for fault in refused.exception.faults])

    def test_metrics_are_arrays(self):
        metrics = self.client.metrics(self.linear)
        self.assertEqual(set(metrics), {"loss", "gradient_norm", "learning_rate", "samples_per_second"})
        np.testing.assert_array_equal(metrics["loss"]["step"], np.arange(640))
        self.assertLess(metrics["loss"]["value"][-1], metrics["loss"]["value"][0] / 100)
        self.assertTrue((np.diff(metrics["loss"]["time"]) >= 0).all())
        few = self.client.metrics(self.linear, ["loss"], first_step=100, last_step=199, points=10)
        self.assertEqual(list(few), ["loss"])
        self.assertLessEqual(len(few["loss"]), 10)

    def test_evaluations_are_in_jobs_and_metrics(self):
        job = self.client.jobs.submit({
            "name": "mlp", "model": {"zoo": {"name": "mlp", "args": {"width": 4, "height": 4, "hidden": "8", "classes": 3}}},
            "data": {"synthetic": {"samples": 64, "holdout": 0.5}, "batch_size": 8},
            "training": {"steps": 8, "evaluate_every_steps": 4, "optimizer": {"sgd": {"learning_rate": 0.1}}}})
        job = self.client.jobs.wait(job, timeout=support.PATIENCE)
        metrics = self.client.metrics(job)
        self.assertEqual(job.evaluation.step, 8)
        self.assertEqual(job.evaluation.loss, metrics["evaluation_loss"]["value"][-1])
        self.assertEqual(job.evaluation.accuracy, metrics["evaluation_accuracy"]["value"][-1])
        self.assertEqual(list(metrics["evaluation_loss"]["step"]), [4, 8])

    def test_a_checkpoint_is_read(self):
        checkpoint, = self.client.checkpoints.list(self.linear)
        self.assertEqual((checkpoint.name, checkpoint.step), (f"{self.linear.id}@640", 640))
        self.assertEqual(self.linear.checkpoint, checkpoint.name)
        self.assertIn(checkpoint, self.client.checkpoints.list())
        values = self.client.checkpoints.read(self.linear)
        self.assertEqual({name: (array.shape, array.dtype.name) for name, array in values.items()},
                         {"weight": ((1, 1), "float32"), "bias": ((1,), "float32")})
        np.testing.assert_allclose(values["weight"], [[3]], atol=0.05)
        slots = self.client.checkpoints.read(checkpoint, slots=True)
        self.assertEqual(set(slots), {"weight", "bias", "weight.momentum", "bias.momentum"})

    def test_a_downloaded_checkpoint_is_sound(self):
        folder = self.client.checkpoints.download(self.linear.checkpoint, self.cluster.home / "trained")
        self.assertIn("OK", support.muster("checkpoint", "verify", str(folder)))
        read = muster.read_checkpoint(folder, slots=True)
        for name, array in self.client.checkpoints.read(self.linear, slots=True).items():
            np.testing.assert_array_equal(read.pop(name), array)
        self.assertEqual(read, {})
        file = folder / "model-00001-of-00001.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"!")
        with self.assertRaisesRegex(errors.DataLossError, "SHA-256"):
            muster.read_checkpoint(folder)
        with self.assertRaises(errors.NotFoundError):
            muster.read_checkpoint(self.cluster.home)

    def test_a_torch_model_gets_the_values(self):
        torch = torch_or_fake()
        model = torch.nn.Linear(1, 1)
        with mock.patch.dict(sys.modules, torch=torch):
            self.client.checkpoints.load_state_dict(model, self.linear)
        values = self.client.checkpoints.read(self.linear)
        np.testing.assert_array_equal(model.weight.detach().numpy(), values["weight"])
        np.testing.assert_array_equal(model.bias.detach().numpy(), values["bias"])

    def test_a_job_is_suspended_resumed_saved_and_cancelled(self):
        job = self.client.jobs.wait(self.client.jobs.submit(LONG), state="RUNNING", timeout=support.PATIENCE)
        saved = self.client.checkpoints.save(job)
        suspended = self.client.jobs.suspend(job, wait=True)
        self.assertEqual(suspended.state, "SUSPENDED")
        self.assertGreaterEqual(suspended.step, saved.step)
        self.assertIn(suspended.id, [each.id for each in self.client.jobs.list(states=["suspended"])])
        self.client.jobs.resume(job, workers_max=1)
        running = self.client.jobs.wait(job, state="running", timeout=support.PATIENCE)
        self.assertEqual(running.workers, ("worker-0",))
        self.assertEqual(self.client.jobs.cancel(job).state, "CANCELLED")
        with self.assertRaises(errors.JobEndedError) as ended:
            self.client.jobs.wait(job)
        self.assertEqual((ended.exception.reason, ended.exception.job.state), ("CANCELLED", "CANCELLED"))
        self.client.jobs.delete(job)
        with self.assertRaises(errors.NotFoundError):
            self.client.jobs.get(job)

    def test_a_watch_shows_every_event_once(self):
        job = self.client.jobs.submit(LINEAR)
        updates = list(self.client.jobs.watch(job, timeout=support.PATIENCE))
        self.assertEqual(updates[-1].job.state, "SUCCEEDED")
        reasons = [event.reason for update in updates for event in update.events]
        self.assertEqual(reasons[0], "SUBMITTED")
        self.assertEqual(reasons[-1], "COMPLETED")
        self.assertEqual(reasons.count("STARTED"), 1)

    def test_logs_are_those_of_the_members(self):
        logs = self.client.jobs.logs(self.linear)
        self.assertEqual(list(logs), ["ps-0", "worker-0"])
        self.assertIn(self.linear.id, logs["worker-0"])
        self.assertEqual(len(self.client.jobs.logs(self.linear, lines=1)["ps-0"].splitlines()), 1)
        queued = self.client.jobs.submit(LONG, overrides={"resources.workers.min": 9})
        self.addCleanup(self.client.jobs.cancel, queued)
        with self.assertRaisesRegex(errors.NotFoundError, "has no members"):
            self.client.jobs.logs(queued)

    def test_errors_have_fields_lines_and_reasons(self):
        text = LINEAR.read_text(encoding="utf-8").replace("learning_rate: 0.1", "learning_rate: -1")
        with self.assertRaises(errors.InvalidSpecError) as faulty:
            self.client.jobs.submit(text)
        fault, = faulty.exception.faults
        self.assertEqual(fault.field, "training.optimizer.sgd.learning_rate")
        self.assertEqual(fault.place, f"job:{text[:text.index('learning_rate: -1')].count(chr(10)) + 1}")
        self.assertEqual(faulty.exception.reason, "INVALID_SPEC")
        with self.assertRaises(errors.NotFoundError) as missing:
            self.client.checkpoints.get(f"{self.linear.id}@7")
        self.assertEqual(missing.exception.reason, "CHECKPOINT_NOT_FOUND")
        with self.assertRaises(errors.FailedPreconditionError) as late:
            self.client.jobs.cancel(self.linear)
        self.assertEqual(late.exception.reason, "JOB_FINISHED")
        with self.assertRaisesRegex(errors.InvalidArgumentError, "known: QUEUED"):
            self.client.jobs.list(states=["sleeping"])

    def test_the_port_of_the_status_page_is_known(self):
        page = (self.cluster.home / ".muster/local/page.address").read_text(encoding="utf-8").strip()
        with self.assertRaisesRegex(errors.InvalidArgumentError, "is the port of a status page"):
            muster.Client(page.replace("http://", "").rstrip("/")).jobs.list()

    def test_a_submission_is_checked_or_repeated_without_another_job(self):
        before = len(self.client.jobs.list())
        self.client.jobs.submit(LINEAR, validate_only=True)
        self.assertEqual(len(self.client.jobs.list()), before)
        first = self.client.jobs.submit(LINEAR, request_id="only-once", overrides={"name": "once"})
        again = self.client.jobs.submit(LINEAR, request_id="only-once", overrides={"name": "once"})
        self.assertEqual(first.id, again.id)

    def test_relative_paths_begin_at_this_folder(self):
        folder = self.cluster.home / "here"
        folder.mkdir()
        (folder / "text.txt").write_bytes(b"abcdefgh" * 4096)
        job = {"name": "text", "model": {"zoo": {"name": "gpt", "args": {"layers": 1, "heads": 1, "channels": 8, "context": 8}}},
               "data": {"text": {"path": "text.txt"}, "batch_size": 2},
               "training": {"steps": 2, "optimizer": {"sgd": {"learning_rate": 0.1}}}}
        with mock.patch.object(pathlib.Path, "cwd", lambda: folder):
            submitted = self.client.jobs.submit(job)
        self.assertEqual(submitted.proto.spec.data.text.path, str(folder / "text.txt"))
        self.client.jobs.wait(submitted, timeout=support.PATIENCE)

    def test_progress_bars_follow_the_work(self):
        bars = []

        class Bar:
            def __init__(self, **options):
                self.n, self.total, self.closed = 0, options["total"], False
                bars.append(self)

            def set_postfix_str(self, note, refresh):
                self.note = note

            def update(self, more):
                self.n += more

            def close(self):
                self.closed = True

        tqdm = types.ModuleType("tqdm.auto")
        tqdm.tqdm = Bar
        with mock.patch.dict(sys.modules, {"tqdm": types.ModuleType("tqdm"), "tqdm.auto": tqdm}):
            self.client.jobs.wait(self.linear, progress=True)
            self.client.checkpoints.read(self.linear, progress=True)
        self.assertEqual([(bar.n, bar.total, bar.closed) for bar in bars], [(640, 640, True), (bars[1].total,) * 2 + (True,)])
        self.assertIn("SUCCEEDED, loss", bars[0].note)
        with mock.patch.dict(sys.modules, {"tqdm": None, "tqdm.auto": None}):
            self.client.jobs.wait(self.linear, progress=True)


def torch_or_fake():
    """Returns torch, or a fake with the parts that load_state_dict needs."""
    if TORCH:
        return TORCH

    class Tensor:
        def __init__(self, array):
            self.array = array

        def detach(self):
            return self

        def numpy(self):
            return self.array

    class Linear:
        def __init__(self, *_):
            self.weight, self.bias = Tensor(np.zeros((1, 1), np.float32)), Tensor(np.zeros(1, np.float32))

        def state_dict(self, keep_vars):
            del keep_vars
            return {"weight": self.weight, "bias": self.bias}

        def named_buffers(self):
            return ()

        def load_state_dict(self, state, strict):
            assert strict and set(state) == {"weight", "bias"}
            self.weight, self.bias = state["weight"], state["bias"]

    torch = types.ModuleType("torch")
    torch.from_numpy = Tensor
    torch.nn = types.SimpleNamespace(Linear=Linear)
    return torch


class SecureClusterTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = support.SecureCluster(cls)

    def connect(self, **options):
        client = muster.Client(**options)
        self.addCleanup(client.close)
        return client

    def test_a_token_or_a_certificate_may_submit(self):
        for proof in ({"tls": str(self.cluster.authority), "token_file": str(self.cluster.token("submit"))},
                      {"tls": str(self.cluster.certificate)}):
            with self.subTest(proof=proof):
                client = self.connect(server=self.cluster.address, **proof)
                job = client.jobs.wait(client.jobs.submit(LINEAR), timeout=support.PATIENCE)
                np.testing.assert_allclose(client.checkpoints.read(job)["weight"], [[3]], atol=0.05)

    def test_a_context_names_the_coordinator_and_the_token(self):
        support.muster("context", "add", "lab", "--server", self.cluster.address, "--tls", str(self.cluster.authority),
                       "--token-file", str(self.cluster.token("read")))
        self.addCleanup(support.muster, "context", "remove", "lab")
        client = self.connect(context="lab")
        self.assertIn("(context lab)", client.where)
        client.jobs.list()
        with self.assertRaises(errors.PermissionDeniedError) as refused:
            client.jobs.submit(LINEAR)
        self.assertEqual(refused.exception.reason, "NOT_ALLOWED")

    def test_a_new_token_in_the_file_is_used_at_once(self):
        file = self.cluster.folder / "changing.token"
        file.write_text("not-a-token", encoding="utf-8")
        client = self.connect(server=self.cluster.address, tls=str(self.cluster.authority), token_file=str(file))
        with self.assertRaises(errors.UnauthenticatedError):
            client.jobs.list()
        file.write_bytes(self.cluster.token("read").read_bytes())
        client.jobs.list()

    def test_without_proof_the_reason_says_so(self):
        with self.assertRaises(errors.MusterError) as unknown:
            self.connect(server=self.cluster.address, tls=str(self.cluster.authority)).jobs.list()
        self.assertEqual(unknown.exception.reason, "NO_CREDENTIALS")
        with self.assertRaisesRegex(errors.UnavailableError, "tls="):
            self.connect(server=self.cluster.address).jobs.list()

    def test_another_authority_is_refused(self):
        other = self.cluster.folder / "other"
        other.mkdir()
        support.muster("certs", "init", folder=other)
        with self.assertRaisesRegex(errors.UnavailableError, "the TLS handshake failed; check that ca.crt"):
            self.connect(server=self.cluster.address, tls=str(other / "muster-ca")).jobs.list()

    def test_files_that_are_not_there_are_named_at_once(self):
        for tls, token, reason in ((self.cluster.folder, None, "CERTIFICATE_FILES"),
                                   (self.cluster.authority, self.cluster.folder / "none", "TOKEN_FILE")):
            with self.subTest(reason=reason), self.assertRaises(errors.UnavailableError) as missing:
                muster.Client(self.cluster.address, tls=str(tls), token_file=token and str(token))
            self.assertEqual(missing.exception.reason, reason)

    def test_a_watch_outlives_the_coordinator(self):
        client = self.connect(server=self.cluster.address, tls=str(self.cluster.certificate))
        job = client.jobs.submit(LONG)
        reasons, step = [], None
        for update in client.jobs.watch(job, timeout=support.PATIENCE):
            reasons += [event.reason for event in update.events]
            if step is None and update.job.step > 0:
                step = update.job.step
                self.cluster.kill_coordinator()
                self.cluster.start_coordinator(self.cluster.address)
            elif step is not None and update.job.step > step:
                client.jobs.cancel(job)
        self.assertEqual((reasons.count("SUBMITTED"), reasons[-1]), (1, "CANCELLED"))


if __name__ == "__main__":
    support.main()
