"""What a recipe's function returns, and random samples for it."""

import dataclasses
import typing

import torch
from recipes import SAMPLES


@dataclasses.dataclass
class Case:
    model: torch.nn.Module  # its first output is the logits, or the loss where the graph computes it
    inputs: typing.Dict[str, torch.Tensor]  # of all samples, by the names of forward()'s arguments
    target: typing.Optional[torch.Tensor] = None  # none: the graph computes the loss
    outputs: typing.Tuple[str, ...] = ("logits",)


def images(size, channels=3, name="input"):
    return {name: torch.randn(SAMPLES, channels, size, size)}


def classes(count=10):
    return torch.randint(0, count, (SAMPLES,))


def tokens(length, count):
    return torch.randint(2, count, (SAMPLES, length))


def padding_mask(length):
    """One where there is a token: samples of several lengths."""
    lengths = torch.arange(SAMPLES) % 3 + length - 2
    return (torch.arange(length)[None, :] < lengths[:, None]).long()


def without_dropout(model):
    """Takes every rate of dropping out to zero; the nodes stay where the exporter keeps them."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and ("drop" in name or module.__class__.__name__ in ("StochasticDepth",)):
                setattr(module, name, 0.0)
    return model
