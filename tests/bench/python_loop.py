#!/usr/bin/env python3
"""Times a PyTorch loop's step on Muster, on DistributedDataParallel (gloo) and alone, in turns on this machine.

    python_loop.py [--models char_gpt,mlp,small] [--rounds 3] [--steps 60] [--threads 1] [--workers 1,2]

Every process has the same number of threads. The batch is 16 windows (char_gpt), 64 rows (mlp, 67 million parameters) or 8 rows
(small, 150 tensors of 64 numbers at most) for all workers together. A figure is the median time of a step after the first quarter, in milliseconds, on process 0. The optimizer is
AdamW in all of them: on the workers for DDP and the plain loop, on the ps for Muster.

Needs torch, and `bazel build //:coordinator //:ps //:worker //:muster //python/muster`.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "examples/python"), str(ROOT / "python")]
BATCH = {"char_gpt": 16, "mlp": 64, "small": 8}
WIDTH = 4096


def make(name):
    """Returns a model and a data set of fixed random samples."""
    import torch
    torch.manual_seed(1)
    if name == "char_gpt":
        import char_gpt
        tokens = torch.randint(256, (512, char_gpt.CONTEXT))
        return char_gpt.Net(), torch.utils.data.TensorDataset(tokens, tokens.roll(-1, 1))
    if name == "small":
        layers = [torch.nn.Linear(8, 8) for _ in range(75)]
        return torch.nn.Sequential(*layers), torch.utils.data.TensorDataset(torch.randn(512, 8), torch.randn(512, 8))
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers[:-1]), torch.utils.data.TensorDataset(torch.randn(512, WIDTH), torch.randn(512, WIDTH))


def loss_of(name, output, target):
    from torch.nn import functional
    if name == "char_gpt":
        return functional.cross_entropy(output.flatten(0, 1), target.flatten())
    return functional.mse_loss(output, target)


def train(arguments):
    """Runs one loop in this process and writes the times of its steps to a file."""
    import torch
    torch.set_num_threads(arguments.threads)
    model, dataset = make(arguments.model)
    times, before = [], None
    if arguments.mode == "muster":
        import muster.torch as mt
        job = mt.join(model, {
            "name": "bench", "data": {"batch_size": BATCH[arguments.model]},
            "training": {"steps": arguments.steps, "optimizer": {"adamw": {"learning_rate": 1e-4}}},
            "resources": {"workers": {"min": arguments.processes}, "ps": 1}, "checkpoint": {"every": "0s"}})
        optimizer, rank = job.optimizer(model), int(os.environ.get("MUSTER_SUBMIT", "1")) - 1
        batches = job.loader(dataset)
    else:
        rank = int(os.environ.get("RANK", "0"))
        if arguments.mode == "ddp":
            torch.distributed.init_process_group("gloo")
            model = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        share = BATCH[arguments.model] // arguments.processes
        loader = torch.utils.data.DataLoader(dataset, share, shuffle=True, drop_last=True)

        def endless():
            while True:
                yield from loader
        batches = (batch for _, batch in zip(range(arguments.steps), endless()))
    for x, y in batches:
        now = time.perf_counter()
        if before is not None:
            times.append(now - before)
        before = now
        loss = loss_of(arguments.model, model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if arguments.mode == "muster":
            job.log(loss=loss)
    if rank == 0:
        pathlib.Path(arguments.result).write_text(json.dumps(times), encoding="utf-8")


def run(arguments, model, mode, processes):
    """Returns the median milliseconds of a step."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        result = f"{folder}/times"
        command = [sys.executable, __file__, "--model", model, "--mode", mode, "--processes", str(processes), "--result", result,
                   "--steps", str(arguments.steps), "--threads", str(arguments.threads)]
        environment = dict(os.environ, OMP_NUM_THREADS=str(arguments.threads), PYTHONPATH=os.pathsep.join(sys.path))
        if mode == "muster":
            command = [str(ROOT / "bazel-bin/cli/muster"), "launch", f"--workers={processes}", f"--out={folder}/run", "--", *command]
        elif mode == "ddp":
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *command[1:]]
        done = subprocess.run(command, env=environment, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}:\n{done.stdout}")
        times = json.loads(pathlib.Path(result).read_text(encoding="utf-8"))
    return 1e3 * statistics.median(times[len(times) // 4:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default="char_gpt,mlp,small")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", default="1,2")
    for name in ("model", "mode", "result"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.mode:
        return train(arguments)
    for model in arguments.models.split(","):
        for workers in map(int, arguments.workers.split(",")):
            other = "plain" if workers == 1 else "ddp"
            pairs = [(run(arguments, model, other, workers), run(arguments, model, "muster", workers)) for _ in range(arguments.rounds)]
            ratios = sorted(theirs / ours for theirs, ours in pairs)
            print(f"{model}, {workers} workers: {other} {statistics.median(pair[0] for pair in pairs):.2f} ms, muster "
                  f"{statistics.median(pair[1] for pair in pairs):.2f} ms, {other} / muster {statistics.median(ratios):.3f} "
                  f"({', '.join(f'{ratio:.3f}' for ratio in ratios)})", flush=True)
    return None


if __name__ == "__main__":
    main()
