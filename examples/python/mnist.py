#!/usr/bin/env python3
"""Trains a small convolutional network on handwritten digits.

  muster launch --workers 2 -- python3 examples/python/mnist.py [STEPS]
"""

import gzip
import pathlib
import sys

import numpy
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import muster.torch as mt

DATA = pathlib.Path(__file__).resolve().parent.parent / "data" / "mnist"


def read(name, header):
    with gzip.open(DATA / name) as file:
        return torch.from_numpy(numpy.frombuffer(file.read()[header:], numpy.uint8).copy())


images = read("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28).float() / 255
labels = read("t10k-labels-idx1-ubyte.gz", 8).long()
train, held_out = TensorDataset(images[:8500], labels[:8500]), TensorDataset(images[8500:], labels[8500:])

torch.manual_seed(1)
model = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                      nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
                      nn.Flatten(), nn.Linear(32 * 7 * 7, 10))

job = mt.join(model, {
    "name": "mnist",
    "data": {"batch_size": 64, "seed": 1},
    "training": {"steps": int(sys.argv[1]) if len(sys.argv) > 1 else 264, "optimizer": {"adamw": {"learning_rate": 1e-3}}},
    "resources": {"workers": {"min": 1, "max": 2}},
})
optimizer = job.optimizer(model)


def score(samples):
    """Returns the means over held-out samples, which Muster shares among the workers."""
    x, y = images[8500:][samples], labels[8500:][samples]
    model.eval()
    with torch.no_grad():
        logits = model(x)
    model.train()
    return {"loss": functional.cross_entropy(logits, y).item(), "accuracy": (logits.argmax(1) == y).float().mean().item()}


for x, y in job.loader(train, evaluation_samples=len(held_out)):
    loss = functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    job.log(loss=loss)
    if job.step_number % 132 == 131:
        result = job.evaluate(score)
        if job.rank == 0 and result:  # empty if a worker left meanwhile
            print(f"step {job.step_number + 1}: accuracy {result['accuracy']:.3f}")
