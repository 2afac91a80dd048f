#!/usr/bin/python3
"""Makes tests/goldens: one training step of every zoo model as PyTorch computes it.

The files are committed, so neither setup nor tests need PyTorch. To make them again (Debian 12, PyTorch 1.13):

    sudo apt-get install --no-install-recommends python3-torch python3-numpy
    tools/make_goldens.py

Everything is computed in float64 from float32 initial values and stored as float32. For the smallest models a file
<model>.safetensors holds

    input, target             one batch (i32 where integer)
    parameters/<name>         before the step; names, shapes and order are those of lib/graph/zoo
    loss, gradients/<name>    of the batch
    after_sgd/<name>          after one step of SGD
    after_adamw/<name>        after one step of AdamW, which decays matrices, kernels and embeddings only

and gpt_training.safetensors several AdamW steps in a row: input[step, B, T], target[step, B, T], parameters/<name> before
the first, losses[step] and after_adamw/<name> after the last. The metadata says the model and the hyperparameters.

For other models <model>.json holds no tensors. Their values are a function of the tensor's name; see uniform().

    model, batch              the job file's model; samples
    inputs                    by name: a list of integers, or the half-width of uniform numbers
    loss
    parameters                by name: mean and half-width of its uniform initial values; norm of its gradient, and the dot
                              product of the gradient with the uniform numbers called "<name>.direction". For a running
                              statistic the batch's takes the gradient's place
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


def uniform(name, count):
    """In [-1, 1), by name and index: Vigna's splitmix64, its state seeded with the FNV-1a hash of the name."""
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = (state ^ byte) * 0x100000001B3 % 2**64
    with np.errstate(over="ignore"):
        z = np.uint64(state) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1


class Net:
    """A model as it runs: layers draw their parameters when they are first called."""

    def __init__(self):
        self.parameters = {}
        self.ranges = {}
        self.statistics = {}

    def parameter(self, name, shape, half_width, mean=0.0):
        if name not in self.parameters:
            values = (mean + half_width * uniform(name, int(np.prod(shape)))).astype(np.float32)
            tensor = torch.tensor(values.reshape(shape).astype(np.float64), requires_grad=True)
            self.parameters[name], self.ranges[name] = tensor, (mean, half_width)
        return self.parameters[name]

    def linear(self, name, x, outputs, bias=True):
        inputs = x.shape[-1]
        weight = self.parameter(name + ".weight", (outputs, inputs), math.sqrt(3 / inputs))
        return F.linear(x, weight, self.parameter(name + ".bias", (outputs,), 0.3) if bias else None)

    def conv(self, name, x, outputs, kernel, stride=1, padding=0, bias=False):
        kernel = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        shape = (outputs, x.shape[1], *kernel)
        weight = self.parameter(name + ".weight", shape, math.sqrt(6 / np.prod(shape[1:])))
        return F.conv2d(x, weight, self.parameter(name + ".bias", (outputs,), 0.3) if bias else None, stride, padding)

    def batch_norm(self, name, x, eps, gain=True):
        channels = (x.shape[1],)
        weight = self.parameter(name + ".weight", channels, 0.3, mean=1.0) if gain else None
        # Without gains most ReLUs are kept open: networks as deep as Inception amplify the rounding of closed ones.
        bias = self.parameter(name + ".bias", channels, 0.3, mean=0.0 if gain else 1.0)
        values = x.detach().transpose(0, 1).flatten(1)
        self.statistics[name + ".running_mean"] = values.mean(1)
        self.statistics[name + ".running_var"] = values.var(1, unbiased=True)
        return F.batch_norm(x, None, None, weight, bias, training=True, eps=eps)

    def layer_norm(self, name, x, eps=1e-5):
        channels = x.shape[-1:]
        gain, bias = self.parameter(name + ".weight", channels, 0.3, mean=1.0), self.parameter(name + ".bias", channels, 0.3)
        return F.layer_norm(x, channels, gain, bias, eps)

    def embedding(self, name, ids, rows, channels):
        return F.embedding(ids, self.parameter(name + ".weight", (rows, channels), 0.5))

    def lstm(self, name, x, channels, directions=1):
        inputs, half_width = x.shape[-1], math.sqrt(3 / channels)
        w = self.parameter(name + ".weight_ih", (directions, 4 * channels, inputs), half_width)
        r = self.parameter(name + ".weight_hh", (directions, 4 * channels, channels), half_width)
        bias = self.parameter(name + ".bias", (directions, 8 * channels), 0.3)
        weights = [part for d in range(directions) for part in (w[d], r[d], *bias[d].chunk(2))]
        zeros = x.new_zeros(directions, x.shape[0], channels)
        return torch._VF.lstm(x, (zeros, zeros), weights, True, 1, 0.0, True, directions == 2, True)[0]

    def heads(self, x, heads):
        return x.view(*x.shape[:2], heads, -1).transpose(1, 2)

    def attend(self, q, k, v, heads, mask):
        q, k, v = self.heads(q, heads), self.heads(k, heads), self.heads(v, heads)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    def self_attention(self, name, x, heads, mask):
        q, k, v = self.linear(name + ".qkv", x, 3 * x.shape[-1]).chunk(3, -1)
        return self.linear(name + ".projection", self.attend(q, k, v, heads, mask), x.shape[-1])

    def cross_attention(self, name, x, memory, heads, mask):
        q = self.linear(name + ".query", x, x.shape[-1])
        k, v = self.linear(name + ".key_value", memory, 2 * x.shape[-1]).chunk(2, -1)
        return self.linear(name + ".projection", self.attend(q, k, v, heads, mask), x.shape[-1])


def padding_scores(ids):
    return torch.where(ids != 0, 0.0, -10000.0).double()


def future_scores(length):
    return torch.full((length, length), -math.inf, dtype=torch.float64).triu(1)


def token_loss(logits, target, **options):
    return F.cross_entropy(logits.flatten(0, -2), target.flatten(), **options)


def vgg16(net, args, input, target):
    x = input
    for b, (convolutions, widths) in enumerate(((2, 1), (2, 2), (3, 4), (3, 8), (3, 8))):
        for c in range(convolutions):
            x = F.relu(net.conv(f"blocks.{b}.conv{c}", x, widths * args["width"], 3, padding=1, bias=True))
        x = F.max_pool2d(x, 2)
    x = F.relu(net.linear("fc1", x.flatten(1), args["hidden"]))
    x = F.relu(net.linear("fc2", x, args["hidden"]))
    return F.cross_entropy(net.linear("fc3", x, args["classes"]), target)


def resnet(net, args, input, target):
    keras = args.get("variant") == "keras"
    eps = 1.001e-5 if keras else 1e-5

    def conv_norm(conv, norm, x, outputs, kernel, stride=1):
        return net.batch_norm(norm, net.conv(conv, x, outputs, kernel, stride, kernel // 2, bias=keras), eps)

    width = args["width"]
    x = F.max_pool2d(F.relu(conv_norm("conv1", "bn1", input, width, 7, 2)), 3, 2, 1)
    for stage, blocks in enumerate(map(int, args["blocks"].split(","))):
        inner = width * 2**stage
        for b in range(blocks):
            name, stride = f"layer{stage + 1}.{b}.", 2 if stage > 0 and b == 0 else 1
            y = F.relu(conv_norm(name + "conv1", name + "bn1", x, inner, 1, stride if keras else 1))
            y = F.relu(conv_norm(name + "conv2", name + "bn2", y, inner, 3, 1 if keras else stride))
            y = conv_norm(name + "conv3", name + "bn3", y, 4 * inner, 1)
            if b == 0:
                x = conv_norm(name + "downsample.0", name + "downsample.1", x, 4 * inner, 1, stride)
            x = F.relu(x + y)
    return F.cross_entropy(net.linear("fc", x.mean((2, 3)), args["classes"]), target)


def inception_v3(net, args, input, target):
    def layer(name, x, outputs, kernel, stride=1, padding="same"):
        kernel = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        same = (kernel[0] // 2, kernel[1] // 2)
        x = net.conv(name + ".conv", x, outputs // args["shrink"], kernel, stride, same if padding == "same" else 0)
        return F.relu(net.batch_norm(name + ".bn", x, 1e-3, gain=False))

    def branch(name, x, *layers):
        for i, options in enumerate(layers):
            x = layer(f"{name}.{i}", x, *options)
        return x

    def pooled(x):
        return F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)

    def block_a(name, x, pool):
        return torch.cat([branch(name + "branch1x1", x, (64, 1)),
                          branch(name + "branch5x5", x, (48, 1), (64, 5)),
                          branch(name + "branch3x3", x, (64, 1), (96, 3), (96, 3)),
                          branch(name + "branch_pool", pooled(x), (pool, 1))], 1)

    def block_b(name, x, c):
        return torch.cat([branch(name + "branch1x1", x, (192, 1)),
                          branch(name + "branch7x7", x, (c, 1), (c, (1, 7)), (192, (7, 1))),
                          branch(name + "branch7x7_double", x,
                                 (c, 1), (c, (7, 1)), (c, (1, 7)), (c, (7, 1)), (192, (1, 7))),
                          branch(name + "branch_pool", pooled(x), (192, 1))], 1)

    def block_c(name, x):
        single = branch(name + "branch3x3", x, (384, 1))
        double = branch(name + "branch3x3_double", x, (448, 1), (384, 3))
        return torch.cat([branch(name + "branch1x1", x, (320, 1)),
                          layer(name + "branch3x3_wide", single, 384, (1, 3)),
                          layer(name + "branch3x3_tall", single, 384, (3, 1)),
                          layer(name + "branch3x3_double_wide", double, 384, (1, 3)),
                          layer(name + "branch3x3_double_tall", double, 384, (3, 1)),
                          branch(name + "branch_pool", pooled(x), (192, 1))], 1)

    x = branch("stem", input, (32, 3, 2, "valid"), (32, 3, 1, "valid"), (64, 3))
    x = F.max_pool2d(x, 3, 2)
    x = layer("stem.4", layer("stem.3", x, 80, 1), 192, 3, 1, "valid")
    x = F.max_pool2d(x, 3, 2)
    for b, pool in enumerate((32, 64, 64)):
        x = block_a(f"blocks.{b}.", x, pool)
    x = torch.cat([branch("blocks.3.branch3x3", x, (384, 3, 2, "valid")),
                   branch("blocks.3.branch3x3_double", x, (64, 1), (96, 3), (96, 3, 2, "valid")),
                   F.max_pool2d(x, 3, 2)], 1)
    for b, c in enumerate((128, 160, 160, 192)):
        x = block_b(f"blocks.{b + 4}.", x, c)
    x = torch.cat([branch("blocks.8.branch3x3", x, (192, 1), (320, 3, 2, "valid")),
                   branch("blocks.8.branch7x7", x, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2, "valid")),
                   F.max_pool2d(x, 3, 2)], 1)
    for b in (9, 10):
        x = block_c(f"blocks.{b}.", x)
    return F.cross_entropy(net.linear("fc", x.mean((2, 3)), args["classes"]), target, label_smoothing=0.1)


def lstm_lm(net, args, input, target):
    x = net.embedding("embedding", input, args["vocabulary"], args["channels"])
    for i in range(args["layers"]):
        x = net.lstm(f"layers.{i}.lstm", x, args["channels"])
    return token_loss(net.linear("head", x, args["vocabulary"]), target)


def gnmt(net, args, source, target_input, target):
    channels, vocabulary = args["channels"], args["vocabulary"]
    memory = net.embedding("embedding", source, vocabulary, channels)
    for i in range(args["layers"]):
        y = net.lstm(f"encoder.{i}.lstm", memory, channels, directions=2 if i == 0 else 1)
        memory = y if i < 2 else memory + y
    x = net.lstm("decoder.0.lstm", net.embedding("embedding", target_input, vocabulary, channels), channels)
    query = net.linear("attention.query", x, channels, bias=False)
    key = net.linear("attention.key", memory, channels, bias=False)
    bias = net.parameter("attention.bias", (channels,), 0.3)
    weight = net.parameter("attention.weight", (1, channels), 0.5)
    scale = net.parameter("attention.scale", (1,), 0.3, mean=1.0)
    pairs = torch.tanh(query[:, :, None] + key[:, None] + bias)
    scores = pairs @ (scale * weight / weight.norm()).squeeze(0) + padding_scores(source)[:, None]
    found = scores.softmax(-1) @ memory
    for i in range(1, args["layers"]):
        y = net.lstm(f"decoder.{i}.lstm", torch.cat([x, found], -1), channels)
        x = y if i < 2 else x + y
    return token_loss(net.linear("head", x, vocabulary), target, ignore_index=0, label_smoothing=0.1)


def transformer(net, args, source, target_input, target):
    heads, channels = args["heads"], args["channels"]
    mask = padding_scores(source)[:, None, None]
    table = net.parameter("embedding.weight", (args["vocabulary"], channels), 0.5)

    def embed(ids):
        time = torch.arange(ids.shape[1], dtype=torch.float64)[:, None]
        angle = time / 10000 ** (torch.arange(0, channels, 2, dtype=torch.float64) / channels)
        return F.embedding(ids, table) * math.sqrt(channels) + torch.stack([angle.sin(), angle.cos()], -1).flatten(1)

    def feed_forward(name, x):
        return net.linear(name + ".contract", F.relu(net.linear(name + ".expand", x, args["inner"])), channels)

    memory = embed(source)
    for i in range(args["layers"]):
        block = f"encoder.{i}."
        y = net.self_attention(block + "attention", memory, heads, mask)
        memory = net.layer_norm(block + "attention.norm", memory + y)
        memory = net.layer_norm(block + "mlp.norm", memory + feed_forward(block + "mlp", memory))
    x = embed(target_input)
    for i in range(args["layers"]):
        block = f"decoder.{i}."
        y = net.self_attention(block + "attention", x, heads, future_scores(x.shape[1]))
        x = net.layer_norm(block + "attention.norm", x + y)
        y = net.cross_attention(block + "source_attention", x, memory, heads, mask)
        x = net.layer_norm(block + "source_attention.norm", x + y)
        x = net.layer_norm(block + "mlp.norm", x + feed_forward(block + "mlp", x))
    return token_loss(F.linear(x, table), target, ignore_index=0, label_smoothing=0.1)


def bert(net, args, tokens, segments, masked_tokens, next_sentence):
    channels, vocabulary, eps = args["channels"], args["vocabulary"], 1e-12
    mask = padding_scores(tokens)[:, None, None]
    x = net.embedding("token_embedding", tokens, vocabulary, channels)
    x = x + net.embedding("position_embedding", torch.arange(args["context"]), args["positions"], channels)
    x = x + net.embedding("segment_embedding", segments, 2, channels)
    x = net.layer_norm("embedding_norm", x, eps)
    for i in range(args["layers"]):
        block = f"blocks.{i}."
        y = net.self_attention(block + "attention", x, args["heads"], mask)
        x = net.layer_norm(block + "attention.norm", x + y, eps)
        y = F.gelu(net.linear(block + "mlp.expand", x, 4 * channels))
        x = net.layer_norm(block + "mlp.norm", x + net.linear(block + "mlp.contract", y, channels), eps)
    y = net.layer_norm("masked.norm", F.gelu(net.linear("masked.transform", x, channels)), eps)
    logits = F.linear(y, net.parameters["token_embedding.weight"], net.parameter("masked.bias", (vocabulary,), 0.3))
    order = net.linear("next_sentence.logits", torch.tanh(net.linear("pooler", x[:, 0], channels)), 2)
    return token_loss(logits, masked_tokens, ignore_index=-100) + F.cross_entropy(order, next_sentence)


def gpt2(net, args, input, target):
    channels, vocabulary = args["channels"], args["vocabulary"]
    x = net.embedding("token_embedding", input, vocabulary, channels)
    x = x + net.embedding("position_embedding", torch.arange(args["context"]), args["positions"], channels)
    for i in range(args["layers"]):
        block = f"blocks.{i}."
        y = net.layer_norm(block + "norm1", x)
        x = x + net.self_attention(block + "attention", y, args["heads"], future_scores(args["context"]))
        y = net.linear(block + "mlp.expand", net.layer_norm(block + "norm2", x), 4 * channels)
        x = x + net.linear(block + "mlp.contract", F.gelu(y, approximate="tanh"), channels)
    return token_loss(F.linear(net.layer_norm("final_norm", x), net.parameters["token_embedding.weight"]), target)


def ncf(net, args, user, item, target):
    users, items, factors = args["users"], args["items"], args["factors"]
    first, *widths = map(int, args["layers"].split(","))
    mf = (net.embedding("mf_user_embedding", user, users, factors) *
          net.embedding("mf_item_embedding", item, items, factors))
    x = torch.cat([net.embedding("mlp_user_embedding", user, users, first // 2),
                   net.embedding("mlp_item_embedding", item, items, first // 2)], 1)
    for i, width in enumerate(widths):
        x = F.relu(net.linear(f"mlp.{i}", x, width))
    logits = net.linear("head", torch.cat([mf, x], 1), 1).squeeze(1)
    return F.binary_cross_entropy_with_logits(logits, target)


def fingerprint(name, twin, args, inputs):
    """`inputs`: by name, a tensor of integers, or the shape of uniform numbers."""
    half_width = 1.7
    tensors = {key: value if torch.is_tensor(value) else
               torch.tensor((half_width * uniform(key, int(np.prod(value)))).astype(np.float32)
                            .reshape(value).astype(np.float64)) for key, value in inputs.items()}
    net = Net()
    loss = twin(net, args, **tensors)
    loss.backward()
    net.statistics.update({key: p.grad for key, p in net.parameters.items()})
    parameters = {}
    for key, gradient in net.statistics.items():
        mean, width = net.ranges.get(key, (float(key.endswith("running_var")), 0.0))
        projection = gradient.flatten() @ torch.tensor(uniform(key + ".direction", gradient.numel()))
        parameters[key] = [mean, width, gradient.norm().item(), projection.item()]
    golden = {"model": {"name": name, "args": args}, "batch": len(next(iter(tensors.values()))),
              "inputs": {key: value.flatten().tolist() if torch.is_tensor(value) else half_width
                         for key, value in inputs.items()},
              "loss": loss.item(), "parameters": parameters}
    path = FOLDER / (name + ".json")
    lines = ",\n  ".join(json.dumps(key) + ": " + json.dumps(value) for key, value in parameters.items())
    del golden["parameters"]
    path.write_text(json.dumps(golden)[:-1] + ', "parameters": {\n  ' + lines + "}}\n")
    print(f"{path.name}: {path.stat().st_size:,} bytes, {len(parameters)} parameters")


def write_fingerprints():
    random = np.random.RandomState(5)

    def ids(limit, *shape):
        return torch.tensor(random.randint(0, limit, shape))

    def padded(limit, *shape):
        tokens = torch.tensor(random.randint(1, limit, shape))
        for row in range(shape[0]):
            tokens[row, shape[1] - row:] = 0
        return tokens

    fingerprint("vgg16", vgg16, dict(image=64, width=3, hidden=12, classes=5, dropout=0),
                dict(input=(3, 3, 64, 64), target=ids(5, 3)))
    fingerprint("resnet50", resnet, dict(image=64, width=4, blocks="1,2,1,1", classes=5),
                dict(input=(4, 3, 64, 64), target=ids(5, 4)))
    fingerprint("resnet101", resnet, dict(image=64, width=4, blocks="2,1,2", classes=5, variant="keras"),
                dict(input=(4, 3, 64, 64), target=ids(5, 4)))
    fingerprint("inception_v3", inception_v3, dict(image=107, shrink=16, classes=5),
                dict(input=(6, 3, 107, 107), target=ids(5, 6)))
    fingerprint("lstm_lm", lstm_lm, dict(layers=2, channels=8, context=6, vocabulary=13, dropout=0),
                dict(input=ids(13, 3, 6), target=ids(13, 3, 6)))
    fingerprint("gnmt", gnmt, dict(layers=4, channels=8, vocabulary=13, source_length=7, target_length=5, dropout=0),
                dict(source=padded(13, 3, 7), target_input=padded(13, 3, 5), target=padded(13, 3, 5)))
    fingerprint("transformer", transformer,
                dict(layers=2, heads=2, channels=8, inner=12, vocabulary=13, source_length=7, target_length=5, dropout=0),
                dict(source=padded(13, 3, 7), target_input=padded(13, 3, 5), target=padded(13, 3, 5)))
    masked = ids(13, 3, 7)
    masked[ids(3, 3, 7) > 0] = -100
    fingerprint("bert", bert,
                dict(layers=2, heads=2, channels=8, context=7, positions=9, vocabulary=13, dropout=0),
                dict(tokens=padded(13, 3, 7), segments=ids(2, 3, 7), masked_tokens=masked, next_sentence=ids(2, 3)))
    fingerprint("gpt2", gpt2,
                dict(layers=2, heads=2, channels=8, context=7, positions=9, vocabulary=13, dropout=0),
                dict(input=ids(13, 3, 7), target=ids(13, 3, 7)))
    fingerprint("ncf", ncf, dict(users=9, items=7, factors=4, layers="8,6,4"),
                dict(user=ids(9, 6), item=ids(7, 6), target=(6,)))


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
    write_fingerprints()


if __name__ == "__main__":
    main()
