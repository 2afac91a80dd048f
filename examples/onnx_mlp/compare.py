#!/usr/bin/env python3
"""Writes the first 256 samples to first_pixels.npy and first_digits.npy, and prints the losses of five steps of SGD
in PyTorch, each over all of them, to compare them with a job's."""

import numpy
import torch

from model import Net

pixels, digits = numpy.load("pixels.npy")[:256], numpy.load("digits.npy")[:256]
numpy.save("first_pixels.npy", pixels)
numpy.save("first_digits.npy", digits)

torch.manual_seed(1)  # the same initial weights as in export.py
net = Net()
pixels, digits = torch.from_numpy(pixels), torch.from_numpy(digits).long()
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(5):
    loss = torch.nn.functional.cross_entropy(net(pixels), digits)
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    print(f"{step},{loss.item():.8f}")
