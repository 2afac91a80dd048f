#!/usr/bin/env python3
"""Converts MNIST's files to NumPy files: pixels.npy f32[10000, 784] and digits.npy i32[10000]."""

import gzip
import pathlib

import numpy

MNIST = pathlib.Path(__file__).resolve().parent.parent / "data" / "mnist"


def read(name, header_bytes):
    with gzip.open(MNIST / name) as file:
        return numpy.frombuffer(file.read(), numpy.uint8, offset=header_bytes)


pixels = read("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 784)
digits = read("t10k-labels-idx1-ubyte.gz", 8)

# Muster trains on the first samples and holds out the last ones. Shuffle once, so that both are alike.
order = numpy.random.default_rng(seed=1).permutation(len(digits))
numpy.save("pixels.npy", (pixels[order] / 255).astype("<f4"))
numpy.save("digits.npy", digits[order].astype("<i4"))
print(f"{len(digits)} samples")
