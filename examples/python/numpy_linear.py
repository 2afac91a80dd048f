#!/usr/bin/env python3
"""Fits a line with NumPy alone: the shortest program that trains through parameter servers.

  muster launch --workers 2 -- python3 examples/python/numpy_linear.py [STEPS]
"""

import sys

import numpy

import muster.numpy as mn

SAMPLES = 4096
generator = numpy.random.default_rng(seed=1)
x = generator.uniform(-1, 1, SAMPLES).astype(numpy.float32)
y = 3 * x + 2

job = mn.join(
    {"slope": numpy.zeros(1, numpy.float32), "intercept": numpy.zeros(1, numpy.float32)},
    {
        "name": "numpy-linear",
        "data": {"batch_size": 64},
        "training": {"steps": int(sys.argv[1]) if len(sys.argv) > 1 else 200, "optimizer": {"sgd": {"learning_rate": 0.3}}},
        "resources": {"workers": {"min": 1, "max": 2}},
    })
for batch in job.batches(samples=SAMPLES):
    inputs, targets = x[batch.indices], y[batch.indices]
    difference = job.params["slope"] * inputs + job.params["intercept"] - targets
    loss = float(numpy.mean(difference**2))
    job.step({"slope": numpy.array([2 * numpy.mean(difference * inputs)], numpy.float32),
              "intercept": numpy.array([2 * numpy.mean(difference)], numpy.float32)}, loss=loss)
if job.rank == 0:
    print(f"y = {job.params['slope'][0]:.3f} x + {job.params['intercept'][0]:.3f}")
