#!/usr/bin/env python3
"""Loads the trained weights into the PyTorch model and evaluates it on the samples that the job held out."""

import sys

import numpy
import torch

from load_back import load_back
from model import Net

net = Net()
load_back(net, sys.argv[1])  # what `muster checkpoint get` wrote

held_out = round(0.1 * len(numpy.load("tokens.npy")))
tokens = torch.from_numpy(numpy.load("tokens.npy")[-held_out:]).long()
following = torch.from_numpy(numpy.load("next.npy")[-held_out:]).long()
net.eval()
with torch.no_grad():
    logits = net(tokens)
loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())
print(f"evaluation loss {loss:.4f}")
