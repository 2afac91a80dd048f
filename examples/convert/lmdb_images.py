#!/usr/bin/env python3
"""Converts an LMDB of images: image.npy u8[samples, 3, SIZE, SIZE] and target.npy i32[samples].

  lmdb_images.py FOLDER SIZE       needs numpy, pillow and lmdb

The format of the values in an LMDB differs between projects. decode() reads a label of four bytes, little-endian, and an
encoded image behind it. Change it to the format of your values.
"""

import io
import sys

import lmdb
import numpy
from PIL import Image, ImageOps


def decode(value):
    with Image.open(io.BytesIO(value[4:])) as image:
        return image.convert("RGB"), int.from_bytes(value[:4], "little")


folder, size = sys.argv[1], int(sys.argv[2])
with lmdb.open(folder, readonly=True, lock=False) as environment, environment.begin() as transaction:
    samples = transaction.stat()["entries"]
    order = numpy.random.default_rng(seed=1).permutation(samples)
    images = numpy.lib.format.open_memmap("image.npy", "w+", numpy.uint8, (samples, 3, size, size))
    target = numpy.zeros(samples, "<i4")
    for row, (_, value) in zip(order, transaction.cursor()):
        image, target[row] = decode(value)
        images[row] = numpy.asarray(ImageOps.fit(image, (size, size))).transpose(2, 0, 1)
images.flush()
numpy.save("target.npy", target)
print(f"{samples} samples, {target.max() + 1} classes")
