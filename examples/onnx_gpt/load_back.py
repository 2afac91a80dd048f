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

# The head shares the embedding's weight: two names in the module, one in the checkpoint.
net = Net()
names = {}
for name, parameter in net.named_parameters(remove_duplicate=False):
    names.setdefault(parameter, []).append(name)
for shared in names.values():
    value = next(trained[name] for name in shared if name in trained)
    trained |= dict.fromkeys(shared, value)
net.load_state_dict(trained, strict=True)

held_out = round(0.1 * len(numpy.load("tokens.npy")))
tokens = torch.from_numpy(numpy.load("tokens.npy")[-held_out:]).long()
following = torch.from_numpy(numpy.load("next.npy")[-held_out:]).long()
net.eval()
with torch.no_grad():
    logits = net(tokens)
loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())
print(f"evaluation loss {loss:.4f}")
