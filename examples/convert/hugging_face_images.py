#!/usr/bin/env python3
"""Converts a Hugging Face data set of images: image.npy u8[samples, 3, SIZE, SIZE] and target.npy i32[samples].

  hugging_face_images.py DATASET SIZE       needs numpy, pillow and datasets

DATASET is a name on the hub or a folder. Its columns `image` and `label` are read.
"""

import sys

import numpy
from datasets import load_dataset
from PIL import ImageOps

name, size = sys.argv[1], int(sys.argv[2])
data = load_dataset(name, split="train").shuffle(seed=1)
images = numpy.lib.format.open_memmap("image.npy", "w+", numpy.uint8, (len(data), 3, size, size))
target = numpy.zeros(len(data), "<i4")
for row, sample in enumerate(data):
    images[row] = numpy.asarray(ImageOps.fit(sample["image"].convert("RGB"), (size, size))).transpose(2, 0, 1)
    target[row] = sample["label"]
images.flush()
numpy.save("target.npy", target)
print(f"{len(data)} samples, {target.max() + 1} classes")
