#!/usr/bin/env python3
"""Converts a CSV file with a header: features.npy f32[samples, columns], each column scaled, and target.npy.

  csv_table.py TABLE LABEL_COLUMN [--ids COLUMN...]       needs numpy

--ids names columns with categories: each becomes COLUMN.npy i32[samples]. Integers from 0 to 2147483647 are ids already and stay
as they are. In any other column the categories are sorted as text: line i of COLUMN.txt, counted from 0, is the category with id i.
Every column that is not named has numbers.
Labels that are integers are classes, i32[samples]; other numbers are f32[samples, 1]; words are classes, named in classes.txt.
"""

import argparse
import csv
import math
import pathlib
import sys

import numpy

parser = argparse.ArgumentParser()
parser.add_argument("table")
parser.add_argument("label")
parser.add_argument("--ids", nargs="+", default=[])
options = parser.parse_args()

with open(options.table, newline="", encoding="utf-8") as file:
    reader = csv.DictReader(file, restval="")
    header, rows = reader.fieldnames or [], list(reader)
special = [options.label, *options.ids]
for name in special:
    if name not in header:
        sys.exit(f"{options.table} has no column '{name}' in its first line")
if not rows:
    sys.exit(f"{options.table} has no rows below its first line")
columns = [name for name in header if name not in special]
order = numpy.random.default_rng(seed=1).permutation(len(rows))  # one order for every file


def number(text):
    try:
        return float(text)
    except ValueError:
        return math.nan


def numbers(name):
    for i, row in enumerate(rows):
        if not math.isfinite(number(row[name])):
            sys.exit(f"{options.table}, row {i + 1} below the header: '{row[name]}' in column '{name}' is not a number. "
                     f"Categories: --ids {name}. Names of images: image_and_table.py. Otherwise remove the column or the row.")
    return numpy.array([number(row[name]) for row in rows])


def ids(name, names_file):
    texts = [row[name] for row in rows]
    if all(text.isascii() and text.isdigit() and int(text) < 2**31 for text in texts):
        return numpy.array([int(text) for text in texts], "<i4")
    categories, found = numpy.unique(texts, return_inverse=True)
    pathlib.Path(names_file).write_text("\n".join(categories) + "\n", encoding="utf-8")
    return found.astype("<i4")


labels = [row[options.label] for row in rows]
if all(label.lstrip("-").isdigit() for label in labels):
    target = numpy.array(labels, "<i4")
elif "" in labels or any(math.isfinite(number(label)) for label in labels):
    target = numbers(options.label).astype("<f4").reshape(-1, 1)
else:
    target = ids(options.label, "classes.txt")
numpy.save("target.npy", target[order])
if columns:
    features = numpy.array([numbers(name) for name in columns]).T
    mean, deviation = features.mean(axis=0), features.std(axis=0) + 1e-8
    numpy.save("features.npy", ((features - mean) / deviation)[order].astype("<f4"))
    numpy.savez("scale.npz", mean=mean, deviation=deviation)  # new samples need the same scale
for name in options.ids:
    numpy.save(f"{name}.npy", ids(name, f"{name}.txt")[order])
print(f"{len(rows)} samples, features {columns}, ids {options.ids}")
