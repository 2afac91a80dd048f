#!/usr/bin/env python3
"""Tests of muster.numpy against the fake worker."""

import concurrent.futures
import os
import subprocess
import sys
import threading
import unittest
from unittest import mock

import support

support.prepare()

import fake_worker
import numpy as np

import muster
import muster.numpy as mn
from muster import _loop

X = np.random.default_rng(1).normal(size=(40, 3)).astype(np.float32)
Y = X @ np.array([1, -2, 0.5], np.float32) + 1
FIRST = {"w": np.zeros(3, np.float32), "b": np.zeros(1, np.float32)}


def gradients(params, indices):
    """Returns the mean gradient and the loss of a linear model over the samples."""
    error = X[indices] @ params["w"] + params["b"] - Y[indices]
    return {"w": 2 * X[indices].T @ error / len(indices), "b": np.array([2 * error.mean()])}, float((error**2).mean())


def train(path, **arguments):
    """Trains to the end of the job. Returns the steps and the last values that the program saw."""
    steps = []
    job = mn.join(FIRST, job="fake-1", socket=path, **arguments)
    for batch in job.batches(samples=len(X)):
        found, loss = gradients(job.params, batch.indices)
        job.step(found, loss=loss)
        steps.append((batch.step, batch.indices.tolist()))
    return steps


def in_threads(job, function=train):
    with concurrent.futures.ThreadPoolExecutor(job.workers) as pool:
        return list(pool.map(function, job.paths))


class NumpyLoopTest(unittest.TestCase):
    def test_workers_train_together_as_one_with_the_whole_batch(self):
        results = []
        for workers in (1, 3):
            with fake_worker.FakeJob(FIRST, batch_size=10, steps=30, workers=workers, seed=5) as job:
                steps = in_threads(job)
                results.append(job.values)
                together = [index for rank in steps for index in rank[0][1]]
                self.assertEqual(len(set(together)), 10)
                self.assertEqual({data["samples"] for data in job.data}, {40})
        for name in FIRST:
            np.testing.assert_allclose(results[0][name], results[1][name], atol=1e-5)
        np.testing.assert_allclose(results[0]["w"], [1, -2, 0.5], atol=0.1)

    def test_the_simple_form_waits_in_step(self):
        with fake_worker.FakeJob(FIRST, steps=20, waits=2) as job:
            attached = mn.join(FIRST, socket=job.paths[0])
            params, count = attached.params, 0
            while params is not None:
                params, count = attached.step(gradients(params, np.arange(40))[0]), count + 1
            self.assertEqual(count, 20)
            np.testing.assert_array_equal(attached.params["w"], job.history[20][0]["w"])
            self.assertLess(gradients(job.values, np.arange(40))[1], 0.5)
            self.assertEqual(job.data, [{"samples": 0, "evaluation_samples": 0}])

    def test_reports_have_means_and_numbers_that_json_lacks(self):
        with fake_worker.FakeJob(FIRST, steps=2) as job:
            attached = mn.join(FIRST, socket=job.paths[0])
            for batch in attached.batches(samples=40):
                attached.log(loss=1.0, accuracy=0.25)
                attached.log(loss=np.float32(2.0), accuracy=0.75, worst=float("inf"))
                attached.step({"w": np.ones(3), "b": None}, loss=None)
            report = job.finished[0][1]
            self.assertEqual((report["loss"], report["metrics"], report["step"], report["samples"]),
                             (1.5, {"accuracy": 0.5, "worst": "inf"}, 0, 8))
            np.testing.assert_array_equal(job.values["b"], [0])  # it had no gradient

    def test_no_loss_is_none(self):
        with fake_worker.FakeJob(FIRST, steps=1) as job:
            attached = mn.join(FIRST, socket=job.paths[0])
            for _ in attached.batches():
                attached.step({"w": np.ones(3), "b": np.ones(1)})
            self.assertIsNone(job.finished[0][1]["loss"])

    def test_weights_make_means_over_tokens(self):
        with fake_worker.FakeJob({"w": np.zeros(2)}, {"kind": "sgd", "learning_rate": 1.0}, steps=1, workers=2) as job:
            def push(path):
                attached = mn.join({"w": np.zeros(2)}, socket=path)
                for _ in attached.batches():
                    attached.step({"w": np.full(2, 1.0 + 3 * attached.rank)}, weight=(3.0, 1.0)[attached.rank])
            in_threads(job, push)
            np.testing.assert_array_equal(job.values["w"], [-1.75, -1.75])

    def test_a_step_that_begins_again_leaves_no_trace(self):
        shares = [(0, 2), (2, 8)]
        with fake_worker.FakeJob(FIRST, batch_size=10, steps=8, workers=2, shares={3: shares}) as undisturbed:
            in_threads(undisturbed)
        with fake_worker.FakeJob(FIRST, batch_size=10, steps=8, workers=2) as job:
            job.again = {2: [(None, 2)], 3: [(shares, 3)], 6: [(None, 4)]}
            steps = in_threads(job)
        self.assertEqual([step for step, _ in steps[0]], [0, 1, 2, 2, 3, 3, 4, 5, 6, 4, 5, 6, 7])
        for name in FIRST:
            np.testing.assert_array_equal(job.values[name], undisturbed.values[name])

    def test_groups_and_the_job_files_schedule_give_the_learning_rates(self):
        groups = [{"learning_rate": 0.5, "weight_decay": 0.0}, {"learning_rate": 0.25, "weight_decay": 0.0}]
        for schedule, expected in ((None, (-0.5, -0.25)), (lambda step: 2.0, (-2.0, -1.0))):
            with fake_worker.FakeJob({"a": [0], "b": [0]}, steps=1, groups=groups, group_of={"b": 1}, schedule=schedule) as job:
                attached = mn.join({"a": np.zeros(1), "b": np.zeros(1)}, socket=job.paths[0])
                for _ in attached.batches():
                    attached.step({"a": np.ones(1), "b": np.ones(1)})
                self.assertEqual((job.values["a"][0], job.values["b"][0]), expected)

    def test_workers_share_an_evaluation(self):
        with fake_worker.FakeJob(FIRST, batch_size=10, steps=2, workers=3) as job:
            def run(path):
                attached, seen, means = mn.join(FIRST, socket=path), [], []
                for batch in attached.batches(samples=40, evaluation_samples=20):
                    attached.step(gradients(attached.params, batch.indices)[0])
                    def measure(indices):
                        seen.extend(indices.tolist())
                        return {"mean": indices.mean()}
                    means.append(attached.evaluate(measure) if batch.step == 0 else attached.evaluate(measure, 1))
                return seen, means
            found = in_threads(job, run)
        self.assertEqual(sorted(index for seen, _ in found for index in seen), sorted([*range(20), 0]))
        for _, means in found:
            self.assertEqual(means, [{"mean": 9.5}, {"mean": 0.0}])

    def test_an_evaluation_may_be_too_late(self):
        for reason in ("done", "cancelled"):
            with fake_worker.FakeJob(FIRST, steps=1) as job:
                attached, found = mn.join(FIRST, socket=job.paths[0]), []

                def run():
                    for _ in attached.batches(samples=40, evaluation_samples=20):
                        attached.step({"w": np.ones(3), "b": None})
                        job.end(reason)
                        found.append(attached.evaluate(lambda indices: {"loss": 1.0}))
                if reason == "done":
                    run()
                    self.assertEqual(found, [{}])
                else:
                    with self.assertRaises(muster.Suspended), self.assertLogs("muster", "WARNING"):
                        run()

    def test_values_are_read_only(self):
        with fake_worker.FakeJob(FIRST) as job:
            with self.assertRaisesRegex(ValueError, "read-only"):
                mn.join(FIRST, socket=job.paths[0]).params["w"][0] = 1


class EndTest(unittest.TestCase):
    def test_each_end_has_its_message_and_exit_code(self):
        for reason, code, message in (("suspended", 7, "muster resume fake-1"), ("drained", 7, "another worker"),
                                      ("cancelled", 8, "no longer uses this worker"), ("failed", 8, "failed: why")):
            with self.subTest(reason=reason), fake_worker.FakeJob(FIRST) as job:
                attached = mn.join(FIRST, socket=job.paths[0])
                with self.assertRaises(muster.Suspended) as caught, self.assertLogs("muster", "WARNING"):
                    for batch in attached.batches(samples=40):
                        attached.step(gradients(attached.params, batch.indices)[0])
                        job.end(reason, "why")
                self.assertIsInstance(caught.exception, SystemExit)
                self.assertEqual((caught.exception.code, caught.exception.reason), (code, reason))
                self.assertIn(message, str(caught.exception))

    def test_a_worker_that_is_killed_is_found_again(self):
        with fake_worker.FakeJob(FIRST, batch_size=10, steps=8) as undisturbed:
            in_threads(undisturbed)
        with fake_worker.FakeJob(FIRST, batch_size=10, steps=8) as job, self.assertLogs("muster", "WARNING"):
            attached = mn.join(FIRST, socket=job.paths[0])
            for batch in attached.batches(samples=len(X)):
                found, loss = gradients(attached.params, batch.indices)
                if batch.step == 3 and len(job.hellos) == 1:
                    job.stop(0)
                    threading.Timer(0.3, job.start, [0]).start()
                attached.step(found, loss=loss)
            self.assertEqual(len(job.hellos), 2)
            self.assertEqual(len(job.data), 2)
        for name in FIRST:
            np.testing.assert_array_equal(job.values[name], undisturbed.values[name])

    def test_a_lost_worker_is_an_error_after_the_patience(self):
        with fake_worker.FakeJob(FIRST) as job:
            attached = mn.join(FIRST, socket=job.paths[0], patience=0.3)
            with self.assertRaisesRegex(muster.WorkerLost, "for 0.3 s; start a worker there"), self.assertLogs("muster", "WARNING"):
                for batch in attached.batches(samples=40):
                    job.stop(0)
                    attached.step(gradients(attached.params, batch.indices)[0])
        with self.assertRaises(muster.WorkerLost), self.assertLogs("muster", "WARNING"):
            mn.join(FIRST, socket="/nowhere/worker.sock", patience=0)

    def test_an_exception_is_reported_with_its_traceback(self):
        with fake_worker.FakeJob(FIRST) as job:
            with self.assertRaises(ZeroDivisionError):
                with mn.join(FIRST, socket=job.paths[0]) as attached:
                    for _ in attached.batches():
                        attached.step({"w": np.ones(3) / (1 // 0), "b": None})
            job.wait(lambda: job.failures)
            self.assertIn("ZeroDivisionError", job.failures[0])
            self.assertIn("Traceback", job.failures[0])

    def test_a_loop_that_is_left_early_fails_the_job(self):
        with fake_worker.FakeJob(FIRST) as job:
            with self.assertLogs("muster", "ERROR"), mn.join(FIRST, socket=job.paths[0]) as attached:
                for _ in attached.batches():
                    break
            job.wait(lambda: job.failures)
            self.assertIn("the program ended in step 0 of 3, and fake-1 has not ended", job.failures[0])

    def test_close_lets_another_program_continue(self):
        with fake_worker.FakeJob(FIRST, steps=1) as job:
            attached = mn.join(FIRST, socket=job.paths[0])
            for _ in attached.batches():
                attached.close()
                break
            for _ in (other := mn.join(FIRST, socket=job.paths[0])).batches():
                other.step({"w": np.ones(3), "b": None})
            self.assertEqual(job.failures, [])

    def test_an_evaluation_needs_a_step_of_its_own(self):
        with fake_worker.FakeJob(FIRST, steps=1) as job:
            attached = mn.join(FIRST, socket=job.paths[0])
            for _ in attached.batches(samples=40, evaluation_samples=20):
                attached.step({"w": np.ones(3), "b": None})
                attached.evaluate(lambda indices: {"loss": 1.0})
                with self.assertRaisesRegex(muster.LoopError, "called twice in step 0"):
                    attached.evaluate(lambda indices: {"loss": 1.0})
            with self.assertRaisesRegex(muster.LoopError, "after the end of fake-1"):
                attached.evaluate(lambda indices: {"loss": 1.0})

    def test_the_exception_hook_reports_programs_without_with(self):
        program = ("import muster.numpy as mn, numpy as np, sys\n"
                   "job = mn.join({'w': np.zeros(3), 'b': np.zeros(1)}, socket=sys.argv[1])\n"
                   "for batch in job.batches():\n    raise LookupError('no such file')\n")
        with fake_worker.FakeJob(FIRST) as job:
            run = subprocess.run([sys.executable, "-c", program, job.paths[0]], env={**os.environ, "PYTHONPATH": str(support.ROOT / "python")},
                                 stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual(run.returncode, 1)
            self.assertIn("LookupError: no such file", run.stderr)
            job.wait(lambda: job.failures)
            self.assertIn("LookupError: no such file", job.failures[0])

    def test_the_wait_for_a_step_may_go_on_after_ctrl_c(self):
        with fake_worker.FakeJob(FIRST, steps=4) as job:
            attached, steps = mn.join(FIRST, socket=job.paths[0]), []
            receive = _loop.Channel.receive

            def interrupted(channel):
                if len(steps) == 2:
                    steps.append("^C")
                    raise KeyboardInterrupt
                return receive(channel)
            with mock.patch.object(_loop.Channel, "receive", interrupted):
                for _ in range(2):  # a second cell of a notebook
                    try:
                        for batch in attached.batches(40):
                            steps.append(batch.step)
                            attached.step({"w": np.ones(3), "b": None})
                    except KeyboardInterrupt:
                        pass
            self.assertEqual(steps, [0, 1, "^C", 2, 3])
            self.assertEqual([kind for _, kind in job.messages].count(fake_worker.NEXT), 5)


class ErrorTest(unittest.TestCase):
    def error(self, run, **arguments):
        with fake_worker.FakeJob(FIRST, **arguments) as job:
            with self.assertRaises(muster.LoopError) as caught:
                run(job, job.paths[0])
            return str(caught.exception)

    def test_a_changed_model_is_named(self):
        for own, message in (({"w": np.zeros(4), "b": np.zeros(1)}, r"'w' has shape \[4\] in the program and \[3\] in fake-1; the model"),
                             ({"w": np.zeros(3)}, "the program has no parameter 'b', and fake-1 has"),
                             ({**FIRST, "c": np.zeros(1)}, "fake-1 has no parameter 'c', and the program has"),
                             ({"w": np.zeros(3), "b": np.zeros(1, int)}, "'b' is of type int64")):
            self.assertRegex(self.error(lambda job, path, own=own: mn.join(own, socket=path)), message)
        self.assertIn("'b' is a statistic in the program", self.error(lambda job, path: mn.join(FIRST, socket=path, statistics=["b"])))

    def test_memory_that_does_not_fit_is_an_error(self):
        full = mock.Mock(mmap=mock.Mock(side_effect=OSError(12, "Cannot allocate memory")))

        def join(_, path):
            with mock.patch.object(_loop, "mmap", full):
                mn.join(FIRST, socket=path)
        self.assertIn("cannot share 128 bytes of memory with the worker: Cannot allocate memory", self.error(join))
        files = [os.memfd_create("short") for _ in range(3)]
        with self.assertRaisesRegex(muster.LoopError, "a memory file of the worker has 0 bytes instead of 64"):
            _loop._memories(list(files), 16)
        for file in files:
            os.close(file)

    def test_another_protocol_is_refused_with_both_numbers(self):
        self.assertRegex(self.error(lambda job, path: mn.join(FIRST, socket=path), protocol=2), "refused this program: protocol 1 is not 2")

    def test_steps_are_in_order(self):
        def twice(_, path):
            job = mn.join(FIRST, socket=path)
            for _ in job.batches():
                job.step({"w": np.ones(3), "b": None})
                job.step({"w": np.ones(3), "b": None})
        self.assertIn("step 0: step() was called twice", self.error(twice))

        def never(_, path):
            for _ in mn.join(FIRST, socket=path).batches():
                pass
        self.assertIn("step 0 has no gradients, and the program asks for the next step; call", self.error(never))

        def early(_, path):
            job = mn.join(FIRST, socket=path)
            for _ in job.batches(40, evaluation_samples=4):
                job.evaluate(lambda indices: {})
        self.assertIn("call it after step()", self.error(early))

    def test_gradients_fit_the_parameters(self):
        def push(gradients_):
            def run(_, path):
                job = mn.join(FIRST, socket=path)
                for _ in job.batches():
                    job.step(gradients_)
            return self.error(run)
        self.assertIn("gradient of 'w' has shape [2], and the parameter [3]", push({"w": np.ones(2), "b": None}))
        self.assertIn("no gradient of 'b'; give None", push({"w": np.ones(3)}))
        self.assertIn("has no parameter 'c'", push({"w": np.ones(3), "b": None, "c": None}))

    def test_too_few_samples_and_faulty_metrics(self):
        self.assertIn("batch_size 8 and the program only 5 samples",
                      self.error(lambda job, path: next(mn.join(FIRST, socket=path).batches(samples=5))))
        self.assertIn("at most 64 bytes", self.error(lambda job, path: mn.join(FIRST, socket=path).log(**{"x" * 65: 1})))

    def test_a_forked_process_is_told_to_join_itself(self):
        with fake_worker.FakeJob(FIRST, steps=2) as job:
            attached = mn.join(FIRST, socket=job.paths[0])
            batches = attached.batches()
            next(batches)
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    attached.step({"w": np.ones(3), "b": None})
                except muster.LoopError as error:
                    os.write(write, str(error).encode())
                os._exit(0)
            os.waitpid(child, 0)
            self.assertIn("this process was forked from", os.read(read, 1000).decode())
            attached.step({"w": np.ones(3), "b": None})  # the parent goes on
            self.assertEqual(next(batches).step, 1)

    def test_a_worker_without_socket_is_named(self):
        with support.home() as home:
            os.environ.pop("MUSTER_PROGRAM_SOCKET", None)
            os.environ["XDG_RUNTIME_DIR"] = str(home)
            with self.assertRaisesRegex(muster.LoopError, "no worker has a socket in .*; set MUSTER_PROGRAM_SOCKET"):
                mn.join(FIRST)


if __name__ == "__main__":
    support.main()
