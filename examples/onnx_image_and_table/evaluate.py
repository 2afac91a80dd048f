#!/usr/bin/env python3
"""Loads the trained weights into the PyTorch model and evaluates it on the samples that the job held out."""

import sys

import numpy
import torch

from load_back import load_back
from model import Net

net = Net()
load_back(net, sys.argv[1])  # what `muster checkpoint get` wrote

held_out = round(0.1 * len(numpy.load("target.npy")))
image, features, hint, target = (torch.from_numpy(numpy.load(f"{name}.npy")[-held_out:]) for name in ("image", "features", "hint", "target"))
net.eval()
with torch.no_grad():
    logits = net(image.float(), features, hint.long())
loss = torch.nn.functional.cross_entropy(logits, target.long())
accuracy = (logits.argmax(1) == target).float().mean()
print(f"evaluation loss {loss:.4f}, accuracy {100 * accuracy:.2f} %")
