#!/usr/bin/python3
"""Makes tests/goldens/*.safetensors: one training step of every zoo model as PyTorch computes it.

The files are committed, so neither setup nor tests need PyTorch. To make them anew (Debian 12, PyTorch 1.13):

    sudo apt-get install --no-install-recommends python3-torch python3-numpy
    tools/make_goldens.py

Everything is computed in float64 from float32 initial values and stored as float32. A file <model>.safetensors holds

    input, target             one batch (i32 where integer)
    parameters/<name>         before the step; names, shapes and order are those of lib/graph/zoo.cc
    loss, gradients/<name>    of the batch
    after_sgd/<name>          after one step of SGD
    after_adamw/<name>        after one step of AdamW, which decays matrices, kernels and embeddings only

and gpt_training.safetensors several AdamW steps in a row: input[step, B, T], target[step, B, T], parameters/<name> before
the first, losses[step] and after_adamw/<name> after the last. The metadata says the model and the hyperparameters.
"""

import json
import math
import pathlib
import struct

import numpy as np
import torch
import torch.nn.functional as F

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "goldens"
SGD = {"learning_rate": 0.1, "momentum": 0.9}
# With the usual epsilon of 1e-8, gradients that are zero but for rounding (of the bias of attention's keys) would move
# their parameters by the whole learning rate in a random direction.
ADAMW = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-4, "weight_decay": 0.1}
STEPS = 5


class Model:
    """Parameters by name and a loss; `draw` makes the initial values."""

    def __init__(self, name, args, seed):
        self.name, self.args = name, args
        self.random = np.random.RandomState(seed)
        self.parameters = {}

    def draw(self, name, shape, scale, mean=0.0):
        values = (mean + scale * self.random.uniform(-1, 1, shape)).astype(np.float32)
        self.parameters[name] = torch.tensor(values.astype(np.float64), requires_grad=True)

    def draw_layer(self, name, shape):
        scale = 1 / math.sqrt(np.prod(shape[1:]))
        self.draw(name + ".weight", shape, scale)
        self.draw(name + ".bias", shape[:1], scale)

    def layer(self, name):
        return self.parameters[name + ".weight"], self.parameters[name + ".bias"]

    def floats(self, *shape):
        return torch.tensor(self.random.normal(size=shape).astype(np.float32).astype(np.float64))

    def integers(self, limit, *shape):
        return torch.tensor(self.random.randint(0, limit, shape))


class Linear(Model):
    def __init__(self, inputs, outputs):
        super().__init__("linear", {"inputs": inputs, "outputs": outputs}, seed=1)
        self.draw("weight", (outputs, inputs), 1)
        self.draw("bias", (outputs,), 1)

    def batch(self):
        return self.floats(6, self.args["inputs"]), self.floats(6, self.args["outputs"])

    def loss(self, x, target):
        return F.mse_loss(F.linear(x, self.parameters["weight"], self.parameters["bias"]), target)


class Mlp(Model):
    def __init__(self, inputs, hidden, classes):
        super().__init__("mlp", {"inputs": inputs, "hidden": hidden, "classes": classes}, seed=2)
        self.widths = [inputs, *map(int, hidden.split(",")), classes]
        for i, (inner, outer) in enumerate(zip(self.widths, self.widths[1:])):
            self.draw_layer(f"layers.{i}", (outer, inner))

    def batch(self):
        return self.floats(7, self.widths[0]), self.integers(self.widths[-1], 7)

    def loss(self, x, target):
        last = len(self.widths) - 2
        for i in range(last):
            x = F.relu(F.linear(x, *self.layer(f"layers.{i}")))
        return F.cross_entropy(F.linear(x, *self.layer(f"layers.{last}")), target)


class Lenet(Model):
    def __init__(self, classes):
        super().__init__("lenet", {"classes": classes}, seed=3)
        self.draw_layer("conv1", (6, 1, 5, 5))
        self.draw_layer("conv2", (16, 6, 5, 5))
        self.draw_layer("fc1", (120, 400))
        self.draw_layer("fc2", (84, 120))
        self.draw_layer("fc3", (classes, 84))

    def batch(self):
        return self.floats(2, 1, 28, 28), self.integers(self.args["classes"], 2)

    def loss(self, x, target):
        x = F.max_pool2d(F.relu(F.conv2d(x, *self.layer("conv1"), padding=2)), 2)
        x = F.max_pool2d(F.relu(F.conv2d(x, *self.layer("conv2"))), 2)
        x = x.flatten(1)
        x = F.relu(F.linear(x, *self.layer("fc1")))
        x = F.relu(F.linear(x, *self.layer("fc2")))
        return F.cross_entropy(F.linear(x, *self.layer("fc3")), target)


class Gpt(Model):
    def __init__(self, layers, heads, channels, context, vocabulary, tied):
        args = dict(layers=layers, heads=heads, channels=channels, context=context, vocabulary=vocabulary, tied=tied)
        super().__init__("gpt", args, seed=4)
        self.draw("token_embedding.weight", (vocabulary, channels), 0.5)
        self.draw("position_embedding.weight", (context, channels), 0.5)
        for i in range(layers):
            self.draw_norm(f"blocks.{i}.norm1")
            self.draw_layer(f"blocks.{i}.attention.qkv", (3 * channels, channels))
            self.draw_layer(f"blocks.{i}.attention.projection", (channels, channels))
            self.draw_norm(f"blocks.{i}.norm2")
            self.draw_layer(f"blocks.{i}.mlp.expand", (4 * channels, channels))
            self.draw_layer(f"blocks.{i}.mlp.contract", (channels, 4 * channels))
        self.draw_norm("final_norm")
        if not tied:
            self.draw("head.weight", (vocabulary, channels), 0.5)

    def draw_norm(self, name):
        channels = (self.args["channels"],)
        self.draw(name + ".weight", channels, 0.3, mean=1)
        self.draw(name + ".bias", channels, 0.3)

    def batch(self, *leading):
        shape = (*leading, 3, self.args["context"])
        return self.integers(self.args["vocabulary"], *shape), self.integers(self.args["vocabulary"], *shape)

    def norm(self, name, x):
        return F.layer_norm(x, x.shape[-1:], *self.layer(name), eps=1e-5)

    def attention(self, qkv):
        batch, time, triple = qkv.shape
        heads, channels = self.args["heads"], triple // 3
        q, k, v = (part.view(batch, time, heads, -1).transpose(1, 2) for part in qkv.split(channels, dim=-1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(channels // heads)
        future = torch.ones(time, time, dtype=torch.bool).triu(1)
        probabilities = scores.masked_fill(future, -math.inf).softmax(-1)
        return (probabilities @ v).transpose(1, 2).reshape(batch, time, channels)

    def loss(self, ids, target):
        table = self.parameters["token_embedding.weight"]
        x = F.embedding(ids, table) + self.parameters["position_embedding.weight"]
        for i in range(self.args["layers"]):
            block = f"blocks.{i}."
            y = F.linear(self.norm(block + "norm1", x), *self.layer(block + "attention.qkv"))
            x = x + F.linear(self.attention(y), *self.layer(block + "attention.projection"))
            y = F.linear(self.norm(block + "norm2", x), *self.layer(block + "mlp.expand"))
            x = x + F.linear(F.gelu(y, approximate="tanh"), *self.layer(block + "mlp.contract"))
        head = table if self.args["tied"] else self.parameters["head.weight"]
        return F.cross_entropy(F.linear(self.norm("final_norm", x), head).flatten(0, -2), target.flatten())


def sgd(parameters):
    return torch.optim.SGD(parameters.values(), lr=SGD["learning_rate"], momentum=SGD["momentum"])


def adamw(parameters):
    decayed = [p for p in parameters.values() if p.dim() >= 2]
    others = [p for p in parameters.values() if p.dim() < 2]
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": ADAMW["weight_decay"]}, {"params": others, "weight_decay": 0}],
        lr=ADAMW["learning_rate"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["epsilon"])


def named(prefix, tensors):
    return {f"{prefix}/{name}": tensor.detach().clone() for name, tensor in tensors.items()}


def one_step(model):
    x, target = model.batch()
    tensors = {"input": x, "target": target, **named("parameters", model.parameters)}
    loss = model.loss(x, target)
    loss.backward()
    tensors["loss"] = loss
    tensors.update(named("gradients", {name: p.grad for name, p in model.parameters.items()}))
    for name, optimizer in (("after_sgd", sgd), ("after_adamw", adamw)):
        with torch.no_grad():
            for key, p in model.parameters.items():
                p.copy_(tensors["parameters/" + key])
        optimizer(model.parameters).step()
        tensors.update(named(name, model.parameters))
    return tensors


def training(model):
    x, target = model.batch(STEPS)
    tensors = {"input": x, "target": target, **named("parameters", model.parameters)}
    optimizer = adamw(model.parameters)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model.loss(x[step], target[step])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {**tensors, "losses": torch.stack(losses), **named("after_adamw", model.parameters)}


def write(name, model, tensors):
    header = {"__metadata__": {
        "model": json.dumps({"name": model.name, "args": model.args}),
        "sgd": json.dumps(SGD), "adamw": json.dumps(ADAMW), "torch": torch.__version__}}
    payload = b""
    for key, tensor in tensors.items():
        array = tensor.detach().numpy()
        integer = np.issubdtype(array.dtype, np.integer)
        data = array.astype("<i4" if integer else "<f4").tobytes()
        header[key] = {"dtype": "I32" if integer else "F32", "shape": list(array.shape),
                       "data_offsets": [len(payload), len(payload) + len(data)]}
        payload += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path = FOLDER / (name + ".safetensors")
    path.write_bytes(struct.pack("<Q", len(text)) + text + payload)
    print(f"{path.name}: {path.stat().st_size:,} bytes, {len(tensors)} tensors")


def main():
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    gpt = dict(layers=2, heads=2, channels=16, context=8, vocabulary=32)
    for name, model in (("linear", Linear(inputs=3, outputs=2)),
                        ("mlp", Mlp(inputs=16, hidden="12,8", classes=5)),
                        ("lenet", Lenet(classes=10)),
                        ("gpt", Gpt(**gpt, tied=False)),
                        ("gpt_tied", Gpt(**gpt, tied=True))):
        write(name, model, one_step(model))
    model = Gpt(**gpt, tied=False)
    write("gpt_training", model, training(model))


if __name__ == "__main__":
    main()
