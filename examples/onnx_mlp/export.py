#!/usr/bin/env python3
"""Writes model.onnx: the graph of the model, and its initial weights."""

import torch

from model import Net

torch.manual_seed(1)  # the weights of the file are the job's initial weights
net = Net().train()
sample = torch.zeros(2, 784)  # any values; two rows, because the exporter may treat one row as a constant
torch.onnx.export(net, (sample,), "model.onnx", dynamo=True, optimize=False, external_data=False,
                  dynamic_shapes=({0: "batch"},), output_names=["logits"])
