#!/usr/bin/env python3
"""Writes model.onnx: the graph of the model, and its initial weights."""

import torch

from model import Net

torch.manual_seed(1)
net = Net().train()
samples = (torch.zeros(2, 3, 28, 28), torch.zeros(2, 2), torch.zeros(2, dtype=torch.long))  # ids need torch.long
torch.onnx.export(net, samples, "model.onnx", dynamo=True, optimize=False, external_data=False,
                  dynamic_shapes=({0: "batch"}, {0: "batch"}, {0: "batch"}), output_names=["logits"])
