#!/usr/bin/env python3
"""Tests of muster.torch against the fake worker, and of the fake worker's optimizers against torch's."""

import concurrent.futures
import copy
import os
import subprocess
import sys
import unittest
import warnings

import support

torch = support.import_torch()
if torch is None:
    print("python/tests/torch_loop_test.py:1: Skipped\ntorch is not there: muster.torch was not tested")
    sys.exit()
support.prepare()

import fake_worker
import numpy as np

import muster
import muster.torch as mt

HAS_HOOKS = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")
LOSS = torch.nn.MSELoss()
SAMPLES = torch.utils.data.TensorDataset(torch.randn(48, 4, generator=torch.Generator().manual_seed(1)),
                                         torch.randn(48, 2, generator=torch.Generator().manual_seed(2)))
SGD = {"kind": "sgd", "learning_rate": 0.1, "momentum": 0.0, "nesterov": False}
ADAM = {"kind": "adam", "learning_rate": 0.01, "beta1": 0.8, "beta2": 0.99, "epsilon": 1e-8}


def network(*, norm=False, dropout=0.0):
    torch.manual_seed(7)
    layers = [torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8) if norm else torch.nn.ReLU(), torch.nn.Dropout(dropout), torch.nn.Linear(8, 2)]
    return torch.nn.Sequential(*layers)


def fake_job(model, optimizer=None, **arguments):
    table = mt._Table(model)
    return fake_worker.FakeJob(table.values(), optimizer or SGD, statistics=table.statistics, **arguments)


def train(model, path, *, each=None, loader=None, **optimizer_arguments):
    """Trains to the end of the job, as a user's loop does."""
    job = mt.join(model, socket=path)
    optimizer = job.optimizer(model, **optimizer_arguments)
    after = each(job, optimizer) if each else None
    for x, y in job.loader(SAMPLES, **(loader or {})):
        optimizer.zero_grad(set_to_none=True)
        loss = LOSS(model(x), y)
        loss.backward()
        optimizer.step()
        job.log(loss=loss)
        if after:
            after()
    return job


def same(test, values, model, tolerance=1e-6):
    for name, tensor in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items():
        np.testing.assert_allclose(values[name], tensor.detach().numpy(), rtol=0, atol=tolerance, err_msg=f"{test}: {name}")


def alone(model, optimizer, batches, after=None):
    """Trains `model` by torch alone on batches of sample numbers."""
    for indices in batches:
        optimizer.zero_grad()
        x, y = SAMPLES[indices]
        LOSS(model(x), y).backward()
        optimizer.step()
        if after:
            after()


def batches_of(job, steps):
    from muster._sample_order import SampleOrder
    order = SampleOrder(job.seed, len(SAMPLES), job.batch_size)
    return [order.indices(step, 0, job.batch_size) for step in range(steps)]


class OptimizerTest(unittest.TestCase):
    def test_each_optimizer_makes_the_steps_of_torch(self):
        adam = {"lr": 0.01, "betas": (0.8, 0.99)}
        table = {
            "sgd": (SGD, 0.0, torch.optim.SGD, {"lr": 0.1}),
            "decay": (SGD, 0.1, torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1}),
            "momentum": ({**SGD, "momentum": 0.9}, 0.0, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
            "nesterov": ({**SGD, "momentum": 0.9, "nesterov": True}, 0.0, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
            "adam": (ADAM, 0.1, torch.optim.Adam, {**adam, "weight_decay": 0.1}),
            "adamw": ({**ADAM, "kind": "adamw"}, 0.1, torch.optim.AdamW, {**adam, "weight_decay": 0.1}),
        }
        for name, (optimizer, decay, kind, arguments) in table.items():
            with self.subTest(optimizer=name):
                model = network()
                groups = [{"learning_rate": optimizer["learning_rate"], "weight_decay": decay}]
                with fake_job(model, optimizer, groups=groups, steps=5) as job:
                    expected = copy.deepcopy(model)
                    alone(expected, kind(expected.parameters(), **arguments), batches_of(job, 5))
                    train(model, job.paths[0])
                    same(name, job.values, expected)

    def test_schedulers_of_torch_count_in_each_step(self):
        makers = {
            "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6),
            "one cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=6, cycle_momentum=False),
        }
        for name, make in makers.items():
            with self.subTest(scheduler=name):
                model = network()
                with fake_job(model, steps=6) as job:
                    expected = copy.deepcopy(model)
                    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
                    alone(expected, optimizer, batches_of(job, 6), make(optimizer).step)

                    def each(attached, optimizer, make=make):
                        scheduler = make(optimizer)
                        attached.attach(scheduler=scheduler)
                        return scheduler.step
                    job.again = {3: [(None, 3)], 5: [(None, 2)]}  # schedulers go back, too
                    train(model, job.paths[0], each=each)
                    same(name, job.values, expected)

    def test_groups_have_their_rates_and_decay(self):
        model = network()
        groups = [{"learning_rate": 0.1, "weight_decay": 0.2}, {"learning_rate": 0.05, "weight_decay": 0.0}]
        biases = {name: 1 for name, _ in model.named_parameters() if name.endswith("bias")}
        for given in (False, True):
            with self.subTest(given=given), fake_job(network(), groups=groups, group_of=biases, steps=4) as job:
                model, expected = network(), network()
                weights_of = lambda model: [each for name, each in model.named_parameters() if name not in biases]
                biases_of = lambda model: [each for name, each in model.named_parameters() if name in biases]
                alone(expected, torch.optim.SGD([{"params": weights_of(expected), "lr": 0.1, "weight_decay": 0.2},
                                                 {"params": biases_of(expected), "lr": 0.3 if given else 0.05}], lr=1), batches_of(job, 4))
                attached = mt.join(model, socket=job.paths[0])
                own = [{"params": biases_of(model), "lr": 0.3}, {"params": weights_of(model), "weight_decay": 0.2}]
                optimizer = attached.optimizer(own if given else model)
                self.assertIsInstance(optimizer, torch.optim.Optimizer)
                self.assertEqual([(len(group["params"]), group["lr"], group["weight_decay"]) for group in optimizer.param_groups],
                                 [(2, 0.3, 0.0), (2, 0.1, 0.2)] if given else [(2, 0.1, 0.2), (2, 0.05, 0.0)])
                for x, y in attached.loader(SAMPLES):
                    LOSS(model(x), y).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                same("groups", job.values, expected)

    def test_the_job_files_schedule_sets_the_rates(self):
        model = network()
        seen = []
        with fake_job(model, steps=3, schedule=lambda step: 0.1 / (step + 1)) as job:
            train(model, job.paths[0], each=lambda _, optimizer: lambda: seen.append(optimizer.param_groups[0]["lr"]))
        self.assertEqual(seen, [0.1, 0.05, 0.1 / 3])


class LoopTest(unittest.TestCase):
    def test_accumulation_is_the_whole_batch(self):
        model = network()
        with fake_job(model, steps=4, batch_size=12) as job:
            expected = copy.deepcopy(model)
            alone(expected, torch.optim.SGD(expected.parameters(), lr=0.1), batches_of(job, 4))
            attached = mt.join(model, socket=job.paths[0])
            optimizer = attached.optimizer(model)
            for number, (x, y) in enumerate(attached.loader(SAMPLES, accumulate=3)):
                self.assertEqual(len(x), 4)
                with attached.no_sync():
                    (LOSS(model(x), y) / 3).backward()
                if number % 3 == 2:
                    optimizer.step()
                    optimizer.zero_grad()
            self.assertEqual(number, 11)
            same("accumulation", job.values, expected)

    def test_fewer_backward_calls_than_before_are_sent_in_step(self):
        model = torch.nn.Linear(1, 1, bias=False)
        with fake_job(model, steps=4) as job:
            attached = mt.join(model, socket=job.paths[0])
            optimizer = attached.optimizer(model)
            first = model.weight.item()
            for step, _ in enumerate(attached.loader([0] * 8)):
                for _ in range((2, 2, 1, 1)[step]):
                    model(torch.ones(1, 1)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            self.assertAlmostEqual(job.values["weight"].item(), first - 0.1 * 6, places=5)

    def test_autocast_in_bf16_and_parameters_in_bf16(self):
        model = network()
        with fake_job(model, steps=3) as job:
            expected = copy.deepcopy(model)
            optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
            attached = mt.join(model, socket=job.paths[0])
            mine = attached.optimizer(model)
            for (x, y), indices in zip(attached.loader(SAMPLES), batches_of(job, 3)):
                for network_, optimizer_, (a, b) in ((model, mine, (x, y)), (expected, optimizer, SAMPLES[indices])):
                    with torch.autocast("cpu", dtype=torch.bfloat16):
                        loss = LOSS(network_(a).float(), b)
                    loss.backward()
                    optimizer_.step()
                    optimizer_.zero_grad()
            same("autocast", job.values, expected)
        half = network().to(torch.bfloat16)
        with fake_job(half, steps=3) as job:
            before = {name: value.copy() for name, value in job.values.items()}
            attached = mt.join(half, socket=job.paths[0])
            optimizer = attached.optimizer(half)
            for x, y in attached.loader(SAMPLES):
                LOSS(half(x.bfloat16()).float(), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                self.assertEqual(half[0].weight.dtype, torch.bfloat16)
            self.assertFalse(np.array_equal(before["0.weight"], job.values["0.weight"]))

    def test_tied_weights_are_one_parameter(self):
        def tied():
            torch.manual_seed(3)
            model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 2))
            model[1].weight = model[0].weight
            return model
        model, expected = tied(), tied()
        with fake_job(model, steps=4) as job:
            self.assertEqual(sorted(job.values), ["0.weight", "2.bias", "2.weight"])
            alone(expected, torch.optim.SGD(expected.parameters(), lr=0.1), batches_of(job, 4))
            train(model, job.paths[0])
            self.assertIs(model[1].weight, model[0].weight)
            same("tied", job.values, expected)

    def test_a_parameter_may_have_no_gradient_in_some_steps(self):
        class Branches(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(5)
                self.sides = torch.nn.ModuleList([torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)])
                self.count = 0

            def forward(self, x):
                self.count += 1
                return self.sides[(0, 0, 1, 0, 1, 1)[self.count - 1]](x)
        model, expected = Branches(), Branches()
        with fake_job(model, {**SGD, "momentum": 0.9}, steps=6) as job:
            alone(expected, torch.optim.SGD(expected.parameters(), lr=0.1, momentum=0.9), batches_of(job, 6))
            for each in expected.parameters():
                each.grad = None
            train(model, job.paths[0])
            # torch 1 sets gradients to zero instead of None
            if torch.optim.Optimizer.zero_grad.__defaults__ == (True,):
                same("branches", job.values, expected)

    def test_statistics_are_means_over_the_workers(self):
        with fake_job(network(norm=True), steps=3, workers=2) as job:
            self.assertEqual([row["name"] for row in job.table if row["statistic"]],
                             ["1.running_mean", "1.running_var", "1.num_batches_tracked"])
            models = [network(norm=True) for _ in range(2)]
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                list(pool.map(train_quietly, models, job.paths))
            self.assertEqual(job.values["1.num_batches_tracked"], 3)
            one, two = network(norm=True), network(norm=True)
            for model, half in ((one, slice(0, 4)), (two, slice(4, 8))):
                model(SAMPLES[batches_of(job, 1)[0]][0][half])
            mean = (one[1].running_mean + two[1].running_mean) / 2
            np.testing.assert_allclose(job.history[1][0]["1.running_mean"], mean.numpy(), atol=1e-6)

    def test_a_step_that_begins_again_leaves_no_trace(self):
        shares = [(0, 2), (2, 6)]

        def run(job):
            def each(path):
                model = network(norm=True, dropout=0.0)
                train_quietly(model, path)
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                list(pool.map(each, job.paths))
            return job.values
        with fake_job(network(norm=True), {**SGD, "momentum": 0.9}, steps=7, workers=2, shares={3: shares}) as job:
            undisturbed = run(job)
        with fake_job(network(norm=True), {**SGD, "momentum": 0.9}, steps=7, workers=2) as job:
            job.again = {1: [(None, 1)], 3: [(shares, 3)], 5: [(None, 4)]}
            disturbed = run(job)
        for name in undisturbed:
            np.testing.assert_array_equal(undisturbed[name], disturbed[name], err_msg=name)

    def test_dropout_repeats_with_its_step(self):
        results = []
        for again in ({}, {2: [(None, 2)], 4: [(None, 1)]}):
            model = network(dropout=0.5)
            with fake_job(model, steps=6) as job:
                job.again = again
                train(model, job.paths[0])
                results.append(job.values)
        for name in results[0]:
            np.testing.assert_array_equal(results[0][name], results[1][name])

    def test_worker_processes_read_ahead_and_follow_a_change(self):
        results = []
        for workers in (0, 2):
            model = network()
            with fake_job(model, steps=8, batch_size=8) as job:
                job.again = {2: [([(0, 8)], 2)], 4: [(None, 1)]}
                train(model, job.paths[0], loader={"num_workers": workers, "persistent_workers": workers > 0})
                results.append(job.values)
        np.testing.assert_array_equal(results[0]["0.weight"], results[1]["0.weight"])

    def test_a_stream_is_the_programs_own_loader(self):
        model = torch.nn.Linear(1, 1, bias=False)
        with fake_job(model, steps=5) as job:
            job.again = {2: [(None, 2)]}
            attached = mt.join(model, socket=job.paths[0])
            optimizer = attached.optimizer(model)
            seen = []
            for item in attached.loader([10, 11, 12], stream=True):
                seen.append(item)
                model(torch.ones(1, 1)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            self.assertEqual(seen, [10, 11, 12, 12, 10, 11])
            self.assertEqual(job.data, [{"samples": 0, "evaluation_samples": 0}])

    def test_a_loader_by_epoch_ends_after_each(self):
        model = network()
        with fake_job(model, steps=9, batch_size=12) as job:
            attached = mt.join(model, socket=job.paths[0])
            optimizer = attached.optimizer(model)
            loader = attached.loader(SAMPLES, by_epoch=True, evaluation_samples=3)
            self.assertEqual(len(loader), 4)
            steps = []
            for _ in range(4):
                steps.append([])
                for x, y in loader:
                    LOSS(model(x), y).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    steps[-1].append((attached.epoch, attached.step_number))
                if len(steps) == 1:
                    self.assertEqual(attached.evaluate(lambda indices: {"count": float(len(indices))}), {"count": 3.0})
            self.assertEqual(steps, [[(0, step) for step in range(4)], [(1, step) for step in range(4, 8)], [(2, 8)], []])

    def test_frozen_parameters_stay_in_the_program(self):
        model = network()
        model[0].weight.requires_grad_(False)
        with fake_job(model, steps=2) as job:
            self.assertNotIn("0.weight", job.values)
            before = model[0].weight.clone()
            train(model, job.paths[0])
            self.assertTrue(torch.equal(before, model[0].weight))

    def test_a_frozen_group_of_the_job_file_gets_no_gradient(self):
        model = network()
        with fake_job(model, steps=2, frozen=["0.weight"]) as job:
            before = job.values["0.weight"].copy()
            train(model, job.paths[0])
            np.testing.assert_array_equal(job.values["0.weight"], before)

    @unittest.skipUnless(HAS_HOOKS, "this torch has no hook after the accumulation of a gradient (2.1 or later has)")
    def test_gradients_leave_during_backward(self):
        model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])  # a message each
        with fake_job(model, steps=2) as job:
            attached = mt.join(model, socket=job.paths[0])
            optimizer = attached.optimizer(model)
            for _ in attached.loader([0] * 8):
                model(torch.ones(1, 512)).sum().backward()
                before = sum(kind == fake_worker.GRADIENTS for _, kind in job.messages)
                if attached.step_number == 1:
                    job.wait(lambda: sum(kind == fake_worker.GRADIENTS for _, kind in job.messages) == 5)
                else:
                    self.assertEqual(before, 0)
                optimizer.step()
                optimizer.zero_grad()

    def test_memory_that_is_sealed_is_copied(self):
        model = network()
        with fake_job(model, steps=2, seals=True) as job:
            pointer = model[0].weight.data_ptr()
            train(model, job.paths[0])
            self.assertEqual(model[0].weight.data_ptr(), pointer)
        model = network()
        with fake_job(model, steps=2) as job:
            train(model, job.paths[0])
            self.assertNotEqual(model[0].weight.data_ptr(), pointer)

    def test_a_worker_that_is_killed_is_found_again(self):
        results = []
        for kills in (False, True):
            model = network()
            with fake_job(model, steps=5) as job:
                attached = mt.join(model, socket=job.paths[0])
                optimizer = attached.optimizer(model)
                for x, y in attached.loader(SAMPLES):
                    LOSS(model(x), y).backward()
                    if kills and attached.step_number == 2 and len(job.hellos) == 1:
                        job.stop(0)
                        job.start(0)
                    optimizer.step()
                    optimizer.zero_grad()
                results.append(job.values)
        np.testing.assert_array_equal(results[0]["0.weight"], results[1]["0.weight"])


def train_quietly(model, path):
    # Two programs of one process share torch's random numbers.
    train(model, path)


class ErrorTest(unittest.TestCase):
    def error(self, run, model=None, **arguments):
        model = model or network()
        with fake_job(model, **arguments) as job:
            with self.assertRaises(muster.LoopError) as caught:
                run(model, job.paths[0])
            return str(caught.exception)

    def loop(self, change, model=None, **arguments):
        """Returns the error of a loop that calls change(model, optimizer, loss) instead of backward() and step()."""
        def run(model, path):
            job = mt.join(model, socket=path)
            optimizer = job.optimizer(model)
            for x, y in job.loader(SAMPLES):
                change(model, optimizer, LOSS(model(x), y))
        return self.error(run, model, **arguments)

    def test_tensors_that_the_job_cannot_hold_are_named(self):
        for dtype, message in ((torch.float64, "'weight' is float64; use float32"), (torch.complex64, "'weight' is complex64")):
            with self.assertRaisesRegex(muster.LoopError, message):
                mt.join(torch.nn.Linear(2, 2, dtype=dtype))
        with self.assertRaisesRegex(muster.LoopError, "'weight' has no values yet; run one forward pass"):
            mt.join(torch.nn.LazyLinear(2))
        with self.assertRaisesRegex(muster.LoopError, "no parameter with requires_grad"):
            mt.join(torch.nn.ReLU())
        with self.assertRaisesRegex(muster.LoopError, r"'0\.weight' gets sparse gradients; use Embedding\(sparse=False\)"):
            mt.join(torch.nn.Sequential(torch.nn.Embedding(8, 4, sparse=True)))
        model = torch.nn.Embedding(8, 4)

        def sparse(_, path):
            job = mt.join(model, socket=path)
            optimizer = job.optimizer(model)
            for _ in job.loader([0] * 8):
                torch.nn.functional.embedding(torch.tensor([1]), model.weight, sparse=True).sum().backward()
                optimizer.step()
        self.assertIn("the gradient of 'weight' is sparse; use sparse=False", self.error(sparse, model))

    def test_a_changed_model_is_named(self):
        wider = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(9, 2))
        self.assertIn("'0.weight' has shape [9, 4] in the program and [8, 4] in fake-1",
                      self.error(lambda model, path: mt.join(wider, socket=path)))

    @unittest.skipUnless(HAS_HOOKS, "this torch has no hook after the accumulation of a gradient (2.1 or later has)")
    def test_clipping_after_the_push_has_its_remedy(self):
        def change(model, optimizer, loss):
            loss.backward()
            if steps:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            steps.append(1)
            optimizer.step()
            optimizer.zero_grad()
        for steps in ([], [1]):  # from the second step on, and in the first
            found = self.loop(change)
            self.assertRegex(found, r"gradient of '0\.weight' was changed after backward\(\).*training\.clip\.global_norm")

        def clipped(model, path):
            job = mt.join(model, socket=path)
            optimizer = job.optimizer(model, overlap=False)
            for x, y in job.loader(SAMPLES):
                LOSS(model(x), y).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
                optimizer.step()
                optimizer.zero_grad()
        model = network()
        with fake_job(model, steps=2) as job:
            clipped(model, job.paths[0])
            self.assertLess(np.abs(job.history[0][0]["0.weight"] - job.values["0.weight"]).max(), 2e-4)

    @unittest.skipUnless(HAS_HOOKS, "this torch has no hook after the accumulation of a gradient (2.1 or later has)")
    def test_more_backward_calls_than_before_are_an_error(self):
        count = []

        def change(model, optimizer, loss):
            count.append(1)
            for _ in count:
                loss.backward(retain_graph=True)
            optimizer.step()
            optimizer.zero_grad()
        self.assertIn("got another gradient after 1 backward() calls", self.loop(change))

    def test_gradients_that_add_up_over_steps_are_warned_of_once(self):
        model = network()
        with fake_job(model, steps=4) as job, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            attached = mt.join(model, socket=job.paths[0])
            optimizer = attached.optimizer(model)
            for x, y in attached.loader(SAMPLES):
                LOSS(model(x), y).backward()
                optimizer.step()
            found = [str(each.message) for each in caught if "zero_grad" in str(each.message)]
            self.assertEqual(len(found), 1)
            self.assertIn("the gradient of '0.weight' contains the one of the step before", found[0])
        for set_to_none in (True, False):
            model = network()
            with fake_job(model, steps=4) as job, warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)
                attached = mt.join(model, socket=job.paths[0])
                optimizer = attached.optimizer(model)
                for x, y in attached.loader(SAMPLES):
                    optimizer.zero_grad(set_to_none=set_to_none)
                    LOSS(model(x), y).backward()
                    optimizer.step()

    def test_steps_are_in_order(self):
        self.assertIn("step 0 has no gradients, and the program asks for the next step; call optimizer.step()",
                      self.loop(lambda model, optimizer, loss: loss.backward()))

        def twice(model, optimizer, loss):
            loss.backward()
            optimizer.step()
            optimizer.step()
        self.assertIn("optimizer.step() was called twice", self.loop(twice))
        self.assertIn("no optimizer; call job.optimizer(model)",
                      self.error(lambda model, path: next(iter(mt.join(model, socket=path).loader(SAMPLES)))))

    def test_thawed_and_changed_parameters_are_errors(self):
        model = network()
        model[0].weight.requires_grad_(False)

        def thaw(model, optimizer, loss):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            model[0].weight.requires_grad_(True)
        self.assertIn("'0.weight' was frozen when the program joined", self.loop(thaw, model))

        def change(model, optimizer, loss):
            loss.backward()
            with torch.no_grad():
                model[0].weight.clamp_(-0.1, 0.1)
            optimizer.step()
        self.assertIn("'0.weight' was changed in this step, and the job would lose the change", self.loop(change))

    def test_settings_of_the_job_file_cannot_differ(self):
        def with_groups(*groups, **arguments):
            return self.error(lambda model, path: mt.join(model, socket=path).optimizer(
                [{"params": model.parameters(), **groups[0]}], **arguments), optimizer=ADAM)
        self.assertIn("weight_decay is 0.5, and 0.0 in the job file; set it in training.parameter_groups", with_groups({"weight_decay": 0.5}))
        self.assertIn("betas is (0.5, 0.5), and (0.8, 0.99) in the job file; all groups share it", with_groups({"betas": (0.5, 0.5)}))
        self.assertIn("the optimizer has no '0.bias'", self.error(
            lambda model, path: mt.join(model, socket=path).optimizer([model[0].weight])))
        self.assertIn("is not in the model that joined", self.error(
            lambda model, path: mt.join(model, socket=path).optimizer([torch.nn.Parameter(torch.ones(1))])))

    def test_a_schedule_in_both_places_is_an_error(self):
        def change(_, optimizer, loss):
            optimizer.param_groups[0]["lr"] = 7.0
            loss.backward()
            optimizer.step()
        self.assertIn("the program set the learning rate 7.0, and the job file has a schedule", self.loop(change, schedule=lambda step: 0.1))

    def test_a_grad_scaler_is_refused_with_the_remedy(self):
        class Scaler:  # torch's own is disabled without a GPU
            def step(self, optimizer):
                if getattr(optimizer, "_step_supports_amp_scaling", False):
                    optimizer.step(grad_scaler=self)
        self.assertIn("use bfloat16, which needs none", self.loop(lambda model, optimizer, loss: (loss.backward(), Scaler().step(optimizer))))

    def test_arguments_of_the_loader_that_the_job_decides_are_refused(self):
        for name in ("batch_size", "shuffle", "sampler"):
            self.assertIn(f"takes no {name}; the job file has data.batch_size", self.error(
                lambda model, path, name=name: mt.join(model, socket=path).loader(SAMPLES, **{name: 1})))
        self.assertIn("use job.loader(dataset, stream=True)", self.error(lambda model, path: mt.join(model, socket=path).loader(iter([]))))

        def short(model, path):
            job = mt.join(model, socket=path)
            optimizer = job.optimizer(model)
            for _ in job.loader(iter([1]), stream=True):
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
        self.assertIn("the stream ended at step 1 of 3", self.error(short))

    def test_a_batch_is_divided_into_parts_with_samples(self):
        def run(model, path):
            job = mt.join(model, socket=path)
            job.optimizer(model)
            next(iter(job.loader(SAMPLES, accumulate=9)))
        self.assertIn("this process has 8 samples, which accumulate=9 cannot divide", self.error(run))

    def test_states_that_do_not_reach_back_are_an_error(self):
        class Counter:
            def state_dict(self):
                return {}

            def load_state_dict(self, state):
                pass
        model = network()
        with fake_job(model, steps=4) as job, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            job.again = {3: [(None, 0)]}
            job.version, job.history[1] = 1, job.history[0]
            with self.assertRaisesRegex(muster.LoopError, "goes back to step 0, and the state of 'counter' does not reach so far"):
                train(model, job.paths[0], each=lambda attached, _: attached.attach(counter=Counter()))
        with fake_job(model, steps=4) as job, self.assertWarnsRegex(UserWarning, "begins at step 2; load the states of counter"):
            job.version = 2
            train(model, job.paths[0], each=lambda attached, _: attached.attach(counter=Counter()))
        with fake_job(model) as job, self.assertRaisesRegex(muster.LoopError, r"attach\(count=...\): a int has no state_dict"):
            mt.join(model, socket=job.paths[0]).attach(count=1)

    def test_a_new_program_steps_schedulers_that_step_each_time(self):
        def scheduled(attached, optimizer):
            warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 3))
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            attached.attach(warm=warm, scheduler=scheduler)
            return lambda: (warm.step(), scheduler.step())
        model = network()
        with fake_job(model, steps=6) as job:
            train(model, job.paths[0], each=scheduled)
            undisturbed = job.values
        model = network()
        with fake_job(model, steps=6) as job:
            def killed(attached, optimizer):
                step = scheduled(attached, optimizer)

                def after():
                    step()
                    if attached.step_number == 3:
                        raise InterruptedError
                return after
            with self.assertRaises(InterruptedError):
                train(model, job.paths[0], each=killed)
            job.wait(lambda: job.version == 4)
            job.stop(0)
            job.start(0)
            train(network(), job.paths[0], each=scheduled)
            for name in undisturbed:
                np.testing.assert_array_equal(job.values[name], undisturbed[name])

        def by_epoch(attached, optimizer):
            attached.attach(scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1))
        with fake_job(model, steps=6) as job, self.assertRaisesRegex(muster.LoopError, "'scheduler' does not step once in each step"):
            job.version = 2
            train(model, job.paths[0], each=by_epoch)

    def test_a_failed_program_ends_with_its_traceback_first(self):
        program = ("import muster.torch as mt, torch, sys\n"
                   "model = torch.nn.Linear(1, 1)\n"
                   "job = mt.join(model, socket=sys.argv[1])\n"
                   "optimizer = job.optimizer(model)\n"
                   "for x in job.loader([1.0] * 8):\n    model(x)\n")
        with fake_job(torch.nn.Linear(1, 1)) as job:
            run = subprocess.run([sys.executable, "-c", program, job.paths[0]], env={**os.environ, "PYTHONPATH": str(support.ROOT / "python")},
                                 stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual(run.returncode, 1)
            job.wait(lambda: job.failures)
            self.assertIn(run.stderr.strip().splitlines()[-1], job.failures[0])


if __name__ == "__main__":
    support.main()
