#!/usr/bin/env python3
"""Trains a character-level GPT on the licence texts of examples/data.

  muster launch --workers 2 -- python3 examples/python/char_gpt.py [STEPS]
"""

import pathlib
import sys

import numpy
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import muster.torch as mt

CONTEXT, CHANNELS, HEADS, LAYERS, VOCABULARY = 64, 128, 4, 4, 256
TEXTS = pathlib.Path(__file__).resolve().parent.parent / "data" / "licences"


class Windows(Dataset):
    """Windows of CONTEXT bytes of a text, and the same one byte later."""

    def __init__(self, text):
        self.text = torch.from_numpy(text.astype(numpy.int64))

    def __len__(self):
        return (len(self.text) - 1) // CONTEXT

    def __getitem__(self, i):
        window = self.text[i * CONTEXT:(i + 1) * CONTEXT + 1]
        return window[:-1], window[1:]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(CHANNELS), nn.LayerNorm(CHANNELS)
        self.qkv, self.out = nn.Linear(CHANNELS, 3 * CHANNELS), nn.Linear(CHANNELS, CHANNELS)
        self.up, self.down = nn.Linear(CHANNELS, 4 * CHANNELS), nn.Linear(4 * CHANNELS, CHANNELS)
        self.register_buffer("mask", torch.ones(CONTEXT, CONTEXT).tril().log(), persistent=False)

    def forward(self, x):
        batch = x.shape[0]
        q, k, v = (part.reshape(batch, CONTEXT, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        weights = (q @ k.transpose(-2, -1) / q.shape[-1]**0.5 + self.mask).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, CONTEXT, CHANNELS))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(VOCABULARY, CHANNELS), nn.Embedding(CONTEXT, CHANNELS)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(CHANNELS)
        self.head = nn.Linear(CHANNELS, VOCABULARY, bias=False)
        for table in (self.embedding, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        self.head.weight = self.embedding.weight  # one parameter in two places

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.embedding(tokens) + self.positions.weight)))


def main():
    text = numpy.frombuffer(b"".join(path.read_bytes() for path in sorted(TEXTS.iterdir())), numpy.uint8)
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    torch.manual_seed(1)
    model = Net()
    job = mt.join(model, {
        "name": "char-gpt",
        "data": {"batch_size": 16, "seed": 7},
        "training": {
            "steps": steps,
            "optimizer": {"adamw": {"learning_rate": 3e-3, "beta2": 0.95, "weight_decay": 0.1}},
            "clip": {"global_norm": 1.0},
        },
        "resources": {"workers": {"min": 1, "max": 2}},
    })
    optimizer = job.optimizer(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    job.attach(schedule=schedule)
    for tokens, targets in job.loader(Windows(text)):
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        job.log(loss=loss)


if __name__ == "__main__":
    main()
