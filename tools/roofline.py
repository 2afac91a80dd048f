#!/usr/bin/env python3
"""Prints the least time of a training step on a device, by part, from `muster model describe`, as a Markdown table.

    muster model describe --zoo resnet50 --batch 256 | tools/roofline.py
    muster model describe --zoo bert --arg size=large --arg context=512 --batch 32 | tools/roofline.py

Each pass of a layer takes the longer of two times: its FLOPs at the peak of bf16, and its bytes at the memory's bandwidth. Every
tensor is read or written once per pass, in bf16; other effects of caches are ignored. "Expected" assumes the usual share of that
peak: 60 % for products, 85 % for passes over memory. Layers are fused as the graph passes fuse them: BatchNorm with the Add and
Relu after it, Gelu with its Linear, Add with the LayerNorm after it.
"""

import argparse
import collections
import math
import re
import sys

PRODUCTS, PASSES = 0.60, 0.85  # of the roofline


class Part:
    def __init__(self):
        self.flops = self.bytes = self.floor = self.expected = 0.0


class Step:
    def __init__(self, arguments):
        self.arguments = arguments
        self.parts = collections.OrderedDict()

    def add(self, part, bytes, flops=0.0):
        entry = self.parts.setdefault(part, Part())
        seconds = max(flops / self.arguments.flops, bytes / self.arguments.bandwidth)
        entry.flops += flops
        entry.bytes += bytes
        entry.floor += seconds
        entry.expected += seconds / (PRODUCTS if flops else PASSES)


def layers(lines):
    for line in lines:
        row = re.match(r"(\S+) +(\w+) +\w+\[([\d, ]*)\] *([\d,]+\d)?(?: +([\d.]+))?$", line.rstrip())
        if row and row[2] != "OP":
            shape = [int(size) for size in row[3].split(",") if size.strip()]
            yield row[1], row[2], math.prod(shape), int((row[4] or "0").replace(",", "")), 1e9 * float(row[5] or 0), shape


def group(name, op):
    if op == "Conv2d":
        stage = re.match(r"layer(\d)", name)
        return "convolutions, stage " + stage[1] if stage else "stem convolution"
    if op == "Linear":
        return "matrix products of the blocks" if name.startswith("blocks.") else "head"
    return op


def product(step, part, x, w, y, flops, first=False):
    step.add(part + ", forward", 2 * (x + w + y), flops)
    step.add(part + ", backward", 2 * (x + w + y), flops)  # of the weights
    if not first:
        step.add(part + ", backward", 2 * (x + w + y), flops)  # of the input


def count(step, rows):
    """Adds the costs of all rows of `describe`, in order. A convolution reads the row before it, or the input of its residual block."""
    previous = block = step.arguments.image
    parameters = 0
    for i, (name, op, n, weights, flops, shape) in enumerate(rows):
        parameters += weights
        following = [row[1] for row in rows[i + 1:i + 3]]
        if op == "Conv2d":
            x = block if "downsample" in name else previous
            product(step, group(name, op), x, weights, n, flops, first=i == 0)
        elif op == "Linear":
            product(step, group(name, op), previous, weights, n, flops)
        elif op == "BatchNorm":
            adds = following[:1] == ["Add"]
            kind = "batch norms at blocks' ends, with Add and Relu" if adds else "other batch norms, with Relu"
            step.add(kind + ", forward", 2 * n * (4 if adds else 3))
            step.add(kind + ", backward", 2 * n * (7 if adds else 5))
        elif op == "Relu" and "relu3" in name:
            step.add("sums of a block's two gradients", 2 * 3 * block)
            block = n
        elif op == "MaxPool2d":
            step.add("max pooling", 2 * previous + 6 * n + 6 * n + 2 * previous)  # positions take 4 bytes
            block = n
        elif op == "GlobalAveragePool2d":
            step.add("average pooling", 2 * (previous + n) * 2)
        elif op == "SelfAttention":
            step.add("attention, forward", 2 * (previous + n), flops)
            step.add("attention, backward", 2 * (2 * previous + 2 * n), 2.5 * flops)  # scores again
        elif op == "LayerNorm":
            step.add("layer norms with Add", 2 * n * (4 + 6))
        elif op == "Gelu":
            step.add("Gelu's derivative", 2 * n * 3)  # forward is in the product, which writes one tensor more
            step.add("matrix products of the blocks, forward", 2 * n)
        elif op == "Dropout":
            step.add("dropout", 2 * n * 4)
        elif op in ("SoftmaxCrossEntropy", "CorrectCount"):
            step.add("loss and accuracy", 2 * previous * (3 if op == "SoftmaxCrossEntropy" else 1))
        if op != "Add" and n > 1 and op not in ("SoftmaxCrossEntropy", "CorrectCount"):
            previous = n
    step.add("gradients to f32, values to bf16", parameters * (6 + 6))
    if any(op == "Conv2d" for _, op, *_ in rows):
        step.add("images to where they are read", 2 * 4 * step.arguments.image)
    return parameters


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flops", type=float, default=989e12, help="peak of bf16, dense")
    parser.add_argument("--bandwidth", type=float, default=3.35e12, help="bytes a second")
    parser.add_argument("--pcie", type=float, default=55e9, help="bytes a second, each way")
    parser.add_argument("--image", type=int, default=256 * 3 * 224 * 224, help="elements of the input, of an image model")
    step = Step(parser.parse_args())
    rows = list(layers(sys.stdin))
    if not rows:
        sys.exit("no layers on standard input: pipe `muster model describe` into this")
    parameters = count(step, rows)
    print("| part of a step | GFLOP | GB | roofline, ms | expected, ms | measured, ms |\n|---|---:|---:|---:|---:|---:|")
    total = Part()
    for name, part in step.parts.items():
        print("| %s | %s | %.2f | %.2f | %.2f | |" % (name, "%.0f" % (part.flops / 1e9) if part.flops else "", part.bytes / 1e9,
                                                      1e3 * part.floor, 1e3 * part.expected))
        for key in ("flops", "bytes", "floor", "expected"):
            setattr(total, key, getattr(total, key) + getattr(part, key))
    print("| **sum** | %.0f | %.2f | %.2f | %.2f | |" % (total.flops / 1e9, total.bytes / 1e9, 1e3 * total.floor, 1e3 * total.expected))
    print("| beside it, over PCIe: values in, gradients out (f32, each way) | | %.2f | %.2f | | |" %
          (4 * parameters / 1e9, 4e3 * parameters / step.arguments.pcie))
    if any(op == "Conv2d" for _, op, *_ in rows):
        print("| beside the step before, over PCIe: images in f32 (in uint8: a quarter) | | %.2f | %.2f | | |" %
              (4 * step.arguments.image / 1e9, 4e3 * step.arguments.image / step.arguments.pcie))


if __name__ == "__main__":
    main()
