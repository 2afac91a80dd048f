"""A small transformer that predicts the next byte of a text, with a head that shares the embedding's weight."""

import torch
from torch import nn
from torch.nn import functional

CONTEXT, CHANNELS, HEADS, LAYERS, VOCABULARY = 64, 32, 4, 2, 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(CHANNELS), nn.LayerNorm(CHANNELS)
        self.qkv, self.out = nn.Linear(CHANNELS, 3 * CHANNELS), nn.Linear(CHANNELS, CHANNELS)
        self.up, self.down = nn.Linear(CHANNELS, 4 * CHANNELS), nn.Linear(4 * CHANNELS, CHANNELS)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, CHANNELS)
        self.positions = nn.Embedding(CONTEXT, CHANNELS)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(CHANNELS)
        self.head = nn.Linear(CHANNELS, VOCABULARY, bias=False)
        for table in (self.embedding, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):  # i64[batch, CONTEXT]; logits f32[batch, CONTEXT, VOCABULARY]
        x = self.embedding(tokens) + self.positions(torch.arange(CONTEXT))
        return self.head(self.norm(self.blocks(x)))
