"""The Case that a recipe's function returns, and functions that make random samples."""

import dataclasses
import typing

import torch
from recipes import SAMPLES


@dataclasses.dataclass
class Case:
    model: torch.nn.Module  # its first output is the logits, or the loss if the graph computes the loss
    inputs: typing.Dict[str, torch.Tensor]  # all samples, by the name of forward()'s argument
    target: typing.Optional[torch.Tensor] = None  # None: the graph computes the loss
    outputs: typing.Tuple[str, ...] = ("logits",)


def images(size, channels=3, name="input"):
    return {name: torch.randn(SAMPLES, channels, size, size)}


def classes(count=10):
    return torch.randint(0, count, (SAMPLES,))


def tokens(length, count):
    return torch.randint(2, count, (SAMPLES, length))


def padding_mask(length):
    """Returns a mask that is one where a sample has a token. Samples have several lengths."""
    lengths = torch.arange(SAMPLES) % 3 + length - 2
    return (torch.arange(length)[None, :] < lengths[:, None]).long()


def without_dropout(model):
    """Sets every dropout rate to zero. The dropout nodes stay in the file if the exporter keeps them."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and ("drop" in name or module.__class__.__name__ in ("StochasticDepth",)):
                setattr(module, name, 0.0)
    return model
