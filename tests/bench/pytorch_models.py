#!/usr/bin/env python3
"""Times the training step of a zoo model in PyTorch, for comparison in tests/bench/models.sh and tools/gpu_check.sh.

    pytorch_models.py --zoo gpt2 --batch 1 --context 256 --threads 2 [--device cuda:0] [--precision bf16] [--compile]
                      [--profile] [--json]

Prints the median milliseconds of forward and backward. The models are those of lib/graph/zoo, without dropout. PyTorch's fast paths
are used: fused attention, channels-last images, and torch.compile with --compile. On a GPU every step copies its samples from
page-locked host memory, as Muster does. Parameters and gradients stay on the device.
"""

import argparse
import contextlib
import json
import time

import torch
from torch import nn
from torch.nn import functional as F


def attention(q, k, v, causal):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if causal:
        hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.softmax(scores, -1) @ v


def gelu(x, tanh):
    return F.gelu(x, approximate="tanh") if tanh else F.gelu(x)


class Block(nn.Module):
    def __init__(self, channels, heads, pre_norm):
        super().__init__()
        self.heads, self.pre_norm = heads, pre_norm
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.projection = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.fc1, self.fc2 = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def attend(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(x).split(c, 2))
        return self.projection(attention(q, k, v, self.pre_norm).transpose(1, 2).reshape(b, t, c))

    def forward(self, x):
        if self.pre_norm:
            x = x + self.attend(self.norm1(x))
            return x + self.fc2(gelu(self.fc1(self.norm2(x)), True))
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.fc2(gelu(self.fc1(x), False)))


class Gpt2(nn.Module):
    def __init__(self, context, layers=12, heads=12, channels=768, vocabulary=50257):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, channels), nn.Embedding(1024, channels)
        self.blocks = nn.Sequential(*[Block(channels, heads, True) for _ in range(layers)])
        self.norm = nn.LayerNorm(channels)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight[:ids.shape[1]]
        logits = F.linear(self.norm(self.blocks(x)), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Bert(nn.Module):
    def __init__(self, context, layers=24, heads=16, channels=1024, vocabulary=30522):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, channels), nn.Embedding(512, channels)
        self.segments, self.norm = nn.Embedding(2, channels), nn.LayerNorm(channels)
        self.blocks = nn.Sequential(*[Block(channels, heads, False) for _ in range(layers)])
        self.pooler, self.next = nn.Linear(channels, channels), nn.Linear(channels, 2)
        self.transform, self.transform_norm = nn.Linear(channels, channels), nn.LayerNorm(channels)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight[:ids.shape[1]] + self.segments(ids % 2)
        x = self.blocks(self.norm(x))
        y = self.transform_norm(F.gelu(self.transform(x)))
        logits = F.linear(y, self.tokens.weight, self.bias)
        following = self.next(torch.tanh(self.pooler(x[:, 0])))
        return (F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()) +
                F.cross_entropy(following.float(), targets[:, 0] % 2))


class LstmLm(nn.Module):
    def __init__(self, context, layers=2, channels=650, vocabulary=10000):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, channels)
        self.lstm = nn.LSTM(channels, channels, layers, batch_first=True)
        self.head = nn.Linear(channels, vocabulary)

    def forward(self, ids, targets):
        logits = self.head(self.lstm(self.tokens(ids))[0])
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Mlp(nn.Module):
    def __init__(self, hidden=(1024, 1024, 1024)):
        super().__init__()
        sizes = [784, *hidden]
        self.layers = nn.Sequential(*[m for i in range(len(hidden)) for m in (nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU())])
        self.head = nn.Linear(sizes[-1], 10)

    def forward(self, x, targets):
        return F.cross_entropy(self.head(self.layers(x)).float(), targets)


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.shortcut = None
        if stride != 1 or inputs != 4 * width:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(y)))))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class Resnet50(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1, self.pool = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.MaxPool2d(3, 2, 1)
        blocks, inputs = [], 64
        for stage, (width, count) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)]):
            for i in range(count):
                blocks.append(Bottleneck(inputs, width, 2 if stage > 0 and i == 0 else 1))
                inputs = 4 * width
        self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(2048, 1000)

    def forward(self, x, targets):
        x = self.blocks(self.pool(F.relu(self.bn1(self.conv1(x)))))
        return F.cross_entropy(self.fc(x.mean((2, 3))).float(), targets)


def build(arguments):
    batch, context = arguments.batch, arguments.context
    if arguments.zoo in ("gpt2", "bert", "lstm_lm"):
        model, vocabulary = {"gpt2": (Gpt2, 50257), "bert": (Bert, 30522), "lstm_lm": (LstmLm, 10000)}[arguments.zoo]
        return model(context), torch.randint(0, vocabulary, (batch, context)), torch.randint(0, vocabulary, (batch, context))
    if arguments.zoo == "mlp":
        return Mlp(), torch.randn(batch, 784), torch.randint(0, 10, (batch,))
    return Resnet50(), torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))


def kernels_by_time(step, steps, on_gpu):
    """Returns [{"kernel", "calls", "seconds"}] of one step, the slowest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])) as trace:
        for _ in range(steps):
            step()
    entries = []
    for event in trace.key_averages():
        if on_gpu:
            # PyTorch 2.6 renamed this field. Kernels have their own events, apart from the operators that launch them.
            microseconds = getattr(event, "self_device_time_total", None)
            if microseconds is None:
                microseconds = event.self_cuda_time_total
            # Ranges of torch.compile contain kernels, which would count twice.
            is_range = getattr(event, "is_user_annotation", False) or event.key.startswith(("## ", "Torch-Compiled Region"))
            if is_range or "CUDA" not in str(getattr(event, "device_type", "CUDA")):
                continue
        else:
            microseconds = event.self_cpu_time_total
        if microseconds > 0:
            entries.append({"kernel": event.key, "calls": event.count / steps, "seconds": microseconds / steps * 1e-6})
    return sorted(entries, key=lambda entry: -entry["seconds"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zoo", choices=["gpt2", "bert", "lstm_lm", "mlp", "resnet50"], required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="fp32")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--profile", action="store_true", help="the kernels of a step by time (with --json)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = arguments.precision == "tf32"
    torch.backends.cudnn.benchmark = True

    on_gpu = arguments.device.startswith("cuda")
    model, x, targets = build(arguments)
    model = model.to(arguments.device)
    if arguments.channels_last and x.dim() == 4:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    if on_gpu:
        x, targets = x.pin_memory(), targets.pin_memory()
    run = torch.compile(model) if arguments.compile else model
    if arguments.precision == "bf16":
        cast = lambda: torch.autocast("cuda" if on_gpu else "cpu", torch.bfloat16)
    else:
        cast = contextlib.nullcontext

    # A separate stream copies the next samples during a step, as in a job.
    copies = torch.cuda.Stream() if on_gpu else None

    def bring():
        if not on_gpu:
            return [x, targets]
        with torch.cuda.stream(copies):
            return [part.to(arguments.device, non_blocking=True) for part in (x, targets)]

    samples = bring()

    def step():
        nonlocal samples
        model.zero_grad(set_to_none=True)
        now = samples
        if on_gpu:
            torch.cuda.current_stream().wait_stream(copies)
            for part in now:
                part.record_stream(torch.cuda.current_stream())
        with cast():
            loss = run(*now)
        loss.backward()
        samples = bring()
        if on_gpu:
            torch.cuda.synchronize()

    begin = time.perf_counter()
    step()
    first = time.perf_counter() - begin
    for _ in range(3):
        step()
    times = []
    for _ in range(arguments.steps):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    times.sort()
    if not arguments.json:
        print(f"{times[len(times) // 2] * 1e3:.3f} ms median, {times[0] * 1e3:.3f} ms fastest, torch {torch.__version__}")
        return
    device = torch.cuda.get_device_name(arguments.device) if on_gpu else "cpu"
    result = {"device": device, "precision": arguments.precision, "batch": arguments.batch, "compile": arguments.compile,
              "torch": torch.__version__, "first_step_seconds": first, "step_seconds": times[len(times) // 2],
              "fastest_step_seconds": times[0]}
    if arguments.profile:
        result["profile"] = kernels_by_time(step, 5, on_gpu)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
