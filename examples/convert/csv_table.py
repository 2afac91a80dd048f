#!/usr/bin/env python3
"""Converts a CSV file with a header: features.npy f32[samples, columns], each column scaled, and target.npy.

  csv_table.py FILE LABEL_COLUMN       needs numpy; every other column has numbers

If every label is an integer, target.npy has classes, i32[samples]. Otherwise it has numbers, f32[samples, 1].
"""

import csv
import sys

import numpy

path, label_column = sys.argv[1:]
with open(path, newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
columns = [name for name in rows[0] if name != label_column]
features = numpy.array([[float(row[name]) for name in columns] for row in rows], "<f4")
labels = [row[label_column] for row in rows]

order = numpy.random.default_rng(seed=1).permutation(len(rows))
mean, deviation = features.mean(axis=0), features.std(axis=0) + 1e-8
numpy.save("features.npy", ((features - mean) / deviation)[order])
numpy.savez("scale.npz", mean=mean, deviation=deviation)  # new samples need the same scale
if all(label.lstrip("-").isdigit() for label in labels):
    numpy.save("target.npy", numpy.array(labels, "<i4")[order])
else:
    numpy.save("target.npy", numpy.array(labels, "<f4").reshape(-1, 1)[order])
print(f"{len(rows)} samples, columns {columns}")
