#!/usr/bin/env python3
"""Writes model.onnx: the graph of the model as it trains, and its initial weights."""

import torch

from model import Net

torch.manual_seed(1)
net = Net().train()  # batch norm and dropout as they train
sample = torch.zeros(2, 1, 28, 28)
torch.onnx.export(net, (sample,), "model.onnx", dynamo=True, optimize=False, external_data=False,
                  dynamic_shapes=({0: "batch"},), output_names=["logits"])
