#!/usr/bin/env python3
"""Exports models from PyTorch to ONNX, and times their training step in PyTorch.

    onnx_models.py --model resnet18 --export FILE              # writes a file for `muster bench model --onnx FILE`
    onnx_models.py --model resnet18 --batch 8 --threads 2      # prints the median milliseconds of forward and backward

tests/bench/models.sh uses this to measure the effect of an import on a model. The models are torchvision's resnet18, convnext_tiny
and vit_b_16 on 224x224, and a language model of two LSTM layers, without dropout. The older exporter writes them in training form.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


class LanguageModel(nn.Module):
    """Two LSTM layers of 650 over 35 tokens, like the medium model of Zaremba et al. 2014."""

    def __init__(self, vocabulary=10000, hidden=650):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = nn.LSTM(hidden, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, ids):
        return self.head(self.lstm(self.embedding(ids))[0])


def build(name, batch):
    torch.manual_seed(1)
    if name == "lstm":
        return LanguageModel(), torch.randint(0, 10000, (batch, 35)), torch.randint(0, 10000, (batch, 35))
    import torchvision  # needed for image models only

    options = {"vit_b_16": {"dropout": 0.0, "attention_dropout": 0.0}, "convnext_tiny": {"stochastic_depth_prob": 0.0}}
    model = getattr(torchvision.models, name)(weights=None, **options.get(name, {}))
    return model, torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["resnet18", "convnext_tiny", "vit_b_16", "lstm"], required=True)
    parser.add_argument("--export", help="write the model to this file and time nothing")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, x, targets = build(arguments.model, arguments.batch)
    model.train()
    if arguments.export:
        torch.onnx.export(model, (x,), arguments.export, dynamo=False, training=torch.onnx.TrainingMode.TRAINING,
                          do_constant_folding=False, opset_version=17, input_names=["input"], output_names=["logits"],
                          dynamic_axes={"input": {0: "batch"}})
        return

    def step():
        model.zero_grad(set_to_none=True)
        logits = model(x)
        F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)).backward()

    for _ in range(2):
        step()
    times = []
    for _ in range(arguments.steps):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    times.sort()
    print(f"{times[len(times) // 2] * 1e3:.3f} ms median, {times[0] * 1e3:.3f} ms fastest, torch {torch.__version__}")


if __name__ == "__main__":
    main()
