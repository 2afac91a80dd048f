"""A program that loop_test.py launches: a small network on fixed data, in PyTorch or in NumPy.

  loop_program.py torch|plain|numpy SPEC_JSON PROGRESS_FILE

Appends a line to PROGRESS_FILE after every step. At the end process 0 prints "final NAME SUM" for each parameter. `plain` is the
network of `torch` without batch norm and dropout.
"""

import json
import os
import sys

import numpy

SAMPLES, INPUTS, HIDDEN, CLASSES = 512, 20, 16, 4


def make_data():
    """Returns f32[SAMPLES, INPUTS] and i64[SAMPLES]."""
    generator = numpy.random.default_rng(seed=5)
    inputs = generator.standard_normal((SAMPLES, INPUTS)).astype(numpy.float32)
    return inputs, (inputs[:, :CLASSES].argmax(1)).astype(numpy.int64)


def make_torch_model(is_plain):
    """Returns a network. Unless it is plain, it has statistics, and its forward pass draws random numbers."""
    import torch
    torch.manual_seed(3)
    first, last = torch.nn.Linear(INPUTS, HIDDEN), torch.nn.Linear(HIDDEN, CLASSES)
    if is_plain:
        return torch.nn.Sequential(first, torch.nn.Tanh(), last)
    return torch.nn.Sequential(first, torch.nn.BatchNorm1d(HIDDEN), torch.nn.Tanh(), torch.nn.Dropout(0.1), last)


def say(name, total):
    print("final", name, repr(float(total)))


def train_torch(spec, tell, is_plain=False):
    import torch
    import muster.torch as mt
    torch.set_num_threads(1)
    inputs, targets = make_data()
    model = make_torch_model(is_plain)
    job = mt.join(model, spec)
    optimizer = job.optimizer(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=spec["training"]["steps"])
    job.attach(schedule=schedule)
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(inputs), torch.from_numpy(targets), torch.arange(SAMPLES))
    for x, y, index in job.loader(dataset):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        job.log(loss=loss, index=index.double().mean().item())
        tell(job.step_number)
    if job.rank == 0:
        for name, values in model.named_parameters():
            say(name, values.detach().double().sum())


def train_plain(spec, tell):
    train_torch(spec, tell, is_plain=True)


def train_numpy(spec, tell):
    import muster.numpy as mn
    inputs, targets = make_data()
    generator = numpy.random.default_rng(seed=3)
    first = {"weight": generator.standard_normal((INPUTS, CLASSES)).astype(numpy.float32) * numpy.float32(0.1),
             "bias": numpy.zeros(CLASSES, numpy.float32)}
    job = mn.join(first, spec)
    for batch in job.batches(samples=SAMPLES):
        x, y = inputs[batch.indices], targets[batch.indices]
        logits = x @ job.params["weight"] + job.params["bias"]
        shares = numpy.exp(logits - logits.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        rows = numpy.arange(len(y))
        loss = float(-numpy.log(shares[rows, y]).mean())
        shares[rows, y] -= 1
        shares /= numpy.float32(len(y))
        job.step({"weight": x.T @ shares, "bias": shares.sum(0)}, loss=loss)
        tell(batch.step)
        if spec.get("labels", {}).get("stop") == f"at-{batch.step}":
            sys.exit(0)
    if job.rank == 0:
        for name, values in job.params.items():
            say(name, values.astype(numpy.float64).sum())


def main():
    kind, spec, progress = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    with open(progress, "a", encoding="utf-8") as file:

        def tell(step):
            file.write(f"{step} {os.getpid()}\n")
            file.flush()

        {"torch": train_torch, "plain": train_plain, "numpy": train_numpy}[kind](spec, tell)


if __name__ == "__main__":
    main()
