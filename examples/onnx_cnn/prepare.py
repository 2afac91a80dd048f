#!/usr/bin/env python3
"""Converts MNIST's files to NumPy files: image.npy u8[10000, 1, 28, 28] and digit.npy u8[10000]."""

import gzip
import pathlib

import numpy

MNIST = pathlib.Path(__file__).resolve().parent.parent / "data" / "mnist"


def read(name, header_bytes):
    with gzip.open(MNIST / name) as file:
        return numpy.frombuffer(file.read(), numpy.uint8, offset=header_bytes)


image = read("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)
digit = read("t10k-labels-idx1-ubyte.gz", 8)
order = numpy.random.default_rng(seed=1).permutation(len(digit))
numpy.save("image.npy", image[order])  # bytes: a quarter of the size of f32
numpy.save("digit.npy", digit[order])
print(f"{len(digit)} samples")
