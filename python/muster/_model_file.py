"""Writes the model file of a job with model.external: safetensors with f32 tensors."""

from __future__ import annotations

import json
import pathlib
from typing import Mapping, Sequence

import numpy as np
import numpy.typing as npt


def write(path: pathlib.Path, tensors: Mapping[str, npt.NDArray[np.float32]], statistics: Sequence[str]) -> None:
    """Writes `tensors` in their order. `statistics` are the names that the optimizer must not touch."""
    header: dict[str, object] = {"__metadata__": {"muster.statistics": json.dumps(list(statistics))}} if statistics else {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + 4 * tensor.size
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as output:
        output.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            output.write(np.ascontiguousarray(tensor, dtype="<f4").tobytes())
