#!/usr/bin/env python3
"""Converts a folder of images, one subfolder for each class: image.npy u8[samples, 3, SIZE, SIZE] and target.npy i32[samples].

  image_folder.py FOLDER SIZE       needs numpy and pillow
"""

import pathlib
import sys

import numpy
from PIL import Image, ImageOps

folder, size = pathlib.Path(sys.argv[1]), int(sys.argv[2])
classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
samples = [(path, label) for label, name in enumerate(classes) for path in sorted((folder / name).iterdir())
           if path.suffix.lower() in (".jpg", ".jpeg", ".png", ".webp")]
if not samples:
    sys.exit(f"{folder} has no subfolders with images: it needs one for each class. If a CSV file has the labels, use image_and_table.py")
order = numpy.random.default_rng(seed=1).permutation(len(samples))

# The array grows on disk, row by row, and not in memory.
images = numpy.lib.format.open_memmap("image.npy", "w+", numpy.uint8, (len(samples), 3, size, size))
for row, sample in enumerate(order):
    with Image.open(samples[sample][0]) as image:
        pixels = ImageOps.fit(ImageOps.exif_transpose(image).convert("RGB"), (size, size))  # resized, the middle cut out
    images[row] = numpy.asarray(pixels).transpose(2, 0, 1)
images.flush()
numpy.save("target.npy", numpy.array([samples[sample][1] for sample in order], "<i4"))
pathlib.Path("classes.txt").write_text("\n".join(classes) + "\n", encoding="utf-8")
print(f"{len(samples)} samples, {len(classes)} classes")
