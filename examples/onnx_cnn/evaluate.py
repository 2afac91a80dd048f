#!/usr/bin/env python3
"""Loads the trained weights into the PyTorch model and evaluates it on the samples that the job held out."""

import sys

import numpy
import torch

from load_back import load_back
from model import Net

net = Net()
load_back(net, sys.argv[1])  # what `muster checkpoint get` wrote

held_out = round(0.1 * len(numpy.load("digit.npy")))
image = torch.from_numpy(numpy.load("image.npy")[-held_out:]).float()
digit = torch.from_numpy(numpy.load("digit.npy")[-held_out:]).long()
net.eval()
with torch.no_grad():
    logits = net(image)
loss = torch.nn.functional.cross_entropy(logits, digit)
accuracy = (logits.argmax(1) == digit).float().mean()
print(f"evaluation loss {loss:.4f}, accuracy {100 * accuracy:.2f} %")
