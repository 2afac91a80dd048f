#!/usr/bin/env python3
"""Writes model.onnx: the graph of the model, and its initial weights."""

import torch

from model import CONTEXT, Net

torch.manual_seed(1)
net = Net().train()
sample = torch.zeros(2, CONTEXT, dtype=torch.long)
torch.onnx.export(net, (sample,), "model.onnx", dynamo=True, optimize=False, external_data=False,
                  dynamic_shapes=({0: "batch"},), output_names=["logits"])
