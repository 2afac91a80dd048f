#!/usr/bin/env python3
"""Cuts the licences into windows: tokens.npy i32[samples, 64], and next.npy, the same one byte later."""

import pathlib

import numpy

CONTEXT = 64
TEXTS = pathlib.Path(__file__).resolve().parent.parent / "data" / "licences"

text = numpy.frombuffer(b"".join(path.read_bytes() for path in sorted(TEXTS.iterdir())), numpy.uint8)
samples = (len(text) - 1) // CONTEXT
order = numpy.random.default_rng(seed=1).permutation(samples)  # training and held-out windows from every text
for name, first in (("tokens", 0), ("next", 1)):
    windows = text[first:first + samples * CONTEXT].reshape(samples, CONTEXT)
    numpy.save(f"{name}.npy", windows[order].astype("<i4"))
print(f"{samples} samples")
