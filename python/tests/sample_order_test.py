#!/usr/bin/env python3
"""Tests that the program's order of samples is the default one of lib/data/order/sample_order.h."""

import unittest

import support

support.prepare()

import numpy as np

from muster._sample_order import SampleOrder

# Printed by SampleOrder::Full() of lib/data/order/sample_order.cc: seed, samples, batch size, batch, first position, count, epoch, samples.
OF_THE_ENGINE = (
    (7, 10, 10, 0, 0, 10, 0, [1, 4, 8, 2, 5, 6, 0, 9, 7, 3]),
    (7, 60000, 64, 1000, 30, 5, 1, [54085, 41733, 46286, 21153, 4177]),
    (123456789012345, 1000003, 256, 12345, 250, 6, 3, [131557, 124752, 612482, 597640, 116181, 71182]),
    (2**64 - 1, 2**40, 1000, 77777777, 990, 3, 0, [851033930922, 793694279758, 766112898919]),
    (0, 3, 1, 8, 0, 1, 2, [2]),
    (1, 1, 1, 5, 0, 1, 5, [0]),
    (9, 40000, 20000, 3, 16380, 8, 1, [12472, 31278, 12058, 25052, 22540, 12474, 20866, 11066]),
)


class SampleOrderTest(unittest.TestCase):
    def test_the_order_is_that_of_the_engine(self):
        for seed, samples, batch_size, batch, first, count, epoch, expected in OF_THE_ENGINE:
            with self.subTest(samples=samples):
                order = SampleOrder(seed, samples, batch_size)
                self.assertEqual(order.indices(batch, first, count).tolist(), expected)
                self.assertEqual(order.epoch(batch), epoch)

    def test_shares_tile_batches_and_batches_tile_the_epoch(self):
        order = SampleOrder(3, 50_000, 12_500)
        shares = [order.indices(batch, first, count) for batch in range(4, 8) for first, count in ((0, 9000), (9000, 0), (9000, 3500))]
        self.assertEqual(sorted(np.concatenate(shares)), list(range(50_000)))


if __name__ == "__main__":
    support.main()
