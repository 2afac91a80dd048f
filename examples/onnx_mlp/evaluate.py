#!/usr/bin/env python3
"""Loads the trained weights into the PyTorch model and evaluates it on the samples that the job held out."""

import sys

import numpy
import torch

from load_back import load_back
from model import Net

net = Net()
load_back(net, sys.argv[1])  # what `muster checkpoint get` wrote

held_out = round(0.1 * len(numpy.load("digits.npy")))
pixels = torch.from_numpy(numpy.load("pixels.npy")[-held_out:])
digits = torch.from_numpy(numpy.load("digits.npy")[-held_out:]).long()
net.eval()
with torch.no_grad():
    logits = net(pixels)
loss = torch.nn.functional.cross_entropy(logits, digits)
accuracy = (logits.argmax(1) == digits).float().mean()
print(f"evaluation loss {loss:.4f}, accuracy {100 * accuracy:.2f} %")
