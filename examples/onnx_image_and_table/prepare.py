#!/usr/bin/env python3
"""Makes inputs as convert/image_and_table.py writes them: image.npy u8[10000, 3, 28, 28], features.npy f32[10000, 2], hint.npy
i32[10000] and target.npy i32[10000]."""

import gzip
import pathlib

import numpy

MNIST = pathlib.Path(__file__).resolve().parent.parent / "data" / "mnist"


def read(name, header_bytes):
    with gzip.open(MNIST / name) as file:
        return numpy.frombuffer(file.read(), numpy.uint8, offset=header_bytes)


pixels = read("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)
digits = read("t10k-labels-idx1-ubyte.gz", 8)
features = numpy.stack([pixels.mean(axis=(1, 2, 3)), pixels.max(axis=(1, 2)).mean(axis=1)], axis=1)  # ink, and width

order = numpy.random.default_rng(seed=1).permutation(len(digits))  # one order for every file
numpy.save("image.npy", pixels[order].repeat(3, axis=1))
numpy.save("features.npy", ((features - features.mean(axis=0)) / features.std(axis=0))[order].astype("<f4"))
numpy.save("hint.npy", (digits % 3)[order].astype("<i4"))  # a category: 0, 1 or 2
numpy.save("target.npy", digits[order].astype("<i4"))
print(f"{len(digits)} samples")
