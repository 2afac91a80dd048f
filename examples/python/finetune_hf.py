#!/usr/bin/env python3
"""Trains a small GPT-2 of Hugging Face transformers on a text file, in a loop of its own.

  muster launch --workers 2 -- python3 examples/python/finetune_hf.py FILE [STEPS]

Needs transformers and accelerate. A pretrained model works too: GPT2LMHeadModel.from_pretrained("gpt2").
"""

import pathlib
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import muster.torch as mt

CONTEXT = 64


class Windows(torch.utils.data.Dataset):
    """Windows of CONTEXT bytes; the model shifts the labels itself."""

    def __init__(self, path):
        self.text = torch.tensor(list(pathlib.Path(path).read_bytes()))

    def __len__(self):
        return len(self.text) // CONTEXT

    def __getitem__(self, i):
        window = self.text[i * CONTEXT:(i + 1) * CONTEXT]
        return {"input_ids": window, "labels": window}


def main():
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
    job = mt.join(model, {
        "name": "finetune",
        "data": {"batch_size": 8},
        "training": {
            "steps": int(sys.argv[2]) if len(sys.argv) > 2 else 200,
            "optimizer": {"adamw": {"learning_rate": 5e-4, "weight_decay": 0.01}},
            "clip": {"global_norm": 1.0},
        },
        "resources": {"workers": {"min": 1, "max": 2}},
    })
    optimizer = job.optimizer(model)
    for batch in job.loader(Windows(sys.argv[1])):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        job.log(loss=loss)


if __name__ == "__main__":
    main()
