"""The order of samples: a pure function of (seed, batch, position). It is the default one of lib/data/order/sample_order.h."""

from __future__ import annotations

from typing import Dict, Tuple

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

_FEISTEL_ROUNDS = 6
_SAMPLE_ORDER_STREAM = 1
_BLOCK = 1 << 14  # positions that are computed together
_BLOCKS_KEPT = 4
_WORD = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


class SampleOrder:
    """Returns the samples of batches. An epoch has samples // batch_size batches; the incomplete last one is dropped."""

    def __init__(self, seed: int, samples: int, batch_size: int) -> None:
        self._seed = seed
        self._samples = samples
        self._batch_size = batch_size
        self._batches = samples // batch_size
        self._blocks: Dict[Tuple[int, int], Indices] = {}

    def epoch(self, batch: int) -> int:
        return batch // self._batches

    def indices(self, batch: int, first_position: int, count: int) -> Indices:
        """Returns the samples at positions [first_position, first_position + count) of a batch."""
        epoch = self.epoch(batch)
        begin = batch % self._batches * self._batch_size + first_position
        end = begin + count
        parts = [self._block(epoch, block)[max(begin - block * _BLOCK, 0):end - block * _BLOCK]
                 for block in range(begin // _BLOCK, (max(end, begin + 1) - 1) // _BLOCK + 1)]
        return np.concatenate(parts)

    def _block(self, epoch: int, block: int) -> Indices:
        key = (epoch, block)
        if key not in self._blocks:
            while len(self._blocks) >= _BLOCKS_KEPT:
                self._blocks.pop(next(iter(self._blocks)))
            positions = np.arange(block * _BLOCK, min((block + 1) * _BLOCK, self._samples), dtype=np.int64)
            self._blocks[key] = permuted_samples(self._seed, epoch, self._samples, positions)
        return self._blocks[key]


def permuted_samples(seed: int, epoch: int, n: int, positions: Indices) -> Indices:
    """Returns the samples at `positions` of the permutation of [0, n) that (seed, epoch) selects.

    A Feistel network permutes [0, 4^half_bits). Values of n or more go through it again.
    """
    half_bits = np.uint64(((n - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << int(half_bits)) - 1)
    stream = (epoch << 8 | _SAMPLE_ORDER_STREAM) & 0xFFFFFFFFFFFFFFFF
    result = positions.astype(np.uint64)
    todo = np.arange(len(result))
    while len(todo):
        x = result[todo]
        left, right = x >> half_bits, x & mask
        for feistel_round in range(_FEISTEL_ROUNDS):
            mixed = _first_random_words(seed, stream, np.uint64(feistel_round << 32) | right)
            left, right = right, left ^ (mixed & mask)
        result[todo] = left << half_bits | right
        todo = todo[result[todo] >= np.uint64(n)]
    return result.astype(np.int64)


def _first_random_words(seed: int, stream: int, indices: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns the first 32-bit word of kernels::RandomWords(seed, stream, index) for each index (Philox4x32-10)."""
    zeros = np.zeros_like(indices)
    c0, c1 = indices & _WORD, indices >> _SHIFT
    c2, c3 = zeros + np.uint64(stream & 0xFFFFFFFF), zeros + np.uint64(stream >> 32)
    key0, key1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        product0, product1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = ((product1 >> _SHIFT) ^ c1 ^ np.uint64(key0), product1 & _WORD,
                          (product0 >> _SHIFT) ^ c3 ^ np.uint64(key1), product0 & _WORD)
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0
