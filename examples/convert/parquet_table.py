#!/usr/bin/env python3
"""Converts a Parquet file: features.npy f32[samples, columns] and target.npy i32[samples].

  parquet_table.py FILE LABEL_COLUMN       needs numpy and pyarrow; every other column has numbers

The file is read in batches, so it may be larger than the memory. The rows must be in random order already.
"""

import sys

import numpy
import pyarrow.parquet

path, label_column = sys.argv[1:]
file = pyarrow.parquet.ParquetFile(path)
columns = [name for name in file.schema_arrow.names if name != label_column]
samples = file.metadata.num_rows
features = numpy.lib.format.open_memmap("features.npy", "w+", numpy.float32, (samples, len(columns)))
target = numpy.lib.format.open_memmap("target.npy", "w+", numpy.int32, (samples,))
row = 0
for batch in file.iter_batches(columns=columns + [label_column]):
    rows = slice(row, row + batch.num_rows)
    for position, name in enumerate(columns):
        features[rows, position] = batch.column(name).to_numpy(zero_copy_only=False)
    target[rows] = batch.column(label_column).to_numpy(zero_copy_only=False)
    row += batch.num_rows
features.flush()
target.flush()
print(f"{samples} samples, columns {columns}")
