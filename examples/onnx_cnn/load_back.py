#!/usr/bin/env python3
"""Loads the trained weights into the PyTorch model and evaluates it on the samples that the job held out."""

import glob
import sys

import numpy
import torch
from safetensors.torch import load_file

from model import Net

folder = sys.argv[1]  # what `muster checkpoint get` wrote
trained = {}
for path in glob.glob(f"{folder}/model-*-of-*.safetensors"):
    trained |= load_file(path)

# Running means and variances are in the checkpoint. The counters num_batches_tracked are not: keep the module's.
net = Net()
own = net.state_dict()
counters = {name: own[name] for name in own if name.endswith("num_batches_tracked")}
net.load_state_dict(counters | trained, strict=True)

held_out = round(0.1 * len(numpy.load("digit.npy")))
image = torch.from_numpy(numpy.load("image.npy")[-held_out:]).float()
digit = torch.from_numpy(numpy.load("digit.npy")[-held_out:]).long()
net.eval()
with torch.no_grad():
    logits = net(image)
loss = torch.nn.functional.cross_entropy(logits, digit)
accuracy = (logits.argmax(1) == digit).float().mean()
print(f"evaluation loss {loss:.4f}, accuracy {100 * accuracy:.2f} %")
