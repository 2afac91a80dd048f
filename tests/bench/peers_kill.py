#!/usr/bin/env python3
"""Kills one of two workers of a job and compares PyTorch's DistributedDataParallel, torchrun, and Muster.

    tests/bench/peers_kill.py [--hidden 1024] [--strikes 3] [--patience 60] [--bin bazel-bin]

All train the same perceptron of two hidden layers with Adam, 16 samples a step, on this machine's processors; DDP uses gloo. One worker of
DDP gets SIGKILL or SIGSTOP after 250 steps. The time is from the signal to a new step that began after it. A job without one for --patience
seconds counts as waiting. torchrun restarts all workers (--max_restarts), which continue from a checkpoint that rank 0 writes every 100
steps. A worker of Muster gets only SIGKILL. It restarts after 0.3 s, and there is no checkpoint except the last (tests/bench/recovery.py).
Needs PyTorch (Debian's python3-torch) and `bazel build //:coordinator //:ps //:worker //:muster`.
"""

import argparse
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import recovery

KILLED_AT, CHECKPOINT_EVERY = 250, 100


def train(hidden, folder):
    """Runs a rank of a DDP job without end. Writes the number of each step to FOLDER/steps-RANK."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    torch.manual_seed(0)
    layers = [torch.nn.Linear(recovery.INPUTS, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, hidden), torch.nn.ReLU(),
              torch.nn.Linear(hidden, recovery.CLASSES)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    checkpoint, step = folder / "checkpoint", 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        step = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    share = recovery.BATCH // dist.get_world_size()
    with open(folder / f"steps-{rank}", "a", buffering=1) as steps:
        while True:
            rows, classes = torch.rand(share, recovery.INPUTS), torch.randint(recovery.CLASSES, (share,))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(rows), classes).backward()
            optimizer.step()
            step += 1
            steps.write(f"{step}\n")
            if rank == 0 and step % CHECKPOINT_EVERY == 0:
                state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, folder / "checkpoint.new")
                os.replace(folder / "checkpoint.new", checkpoint)


def last_step(folder):
    """Returns the last step of rank 0."""
    file = folder / "steps-0"
    made = file.read_text().split() if file.exists() else []
    return max((int(step) for step in made), default=0)


def await_step(folder, step, jobs, until):
    """Returns whether the step was made in time; False as soon as all of these processes have ended."""
    while time.monotonic() < until:
        if last_step(folder) >= step:
            return True
        if all(job.poll() is not None for job in jobs):
            return False
        time.sleep(0.02)
    return False


def strike(launcher, what, hidden, patience):
    """Strikes a DDP job and returns a sentence about its outcome."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = pathlib.Path(name)
        program = [__file__, "--rank-of", str(hidden), str(folder)]
        log = open(folder / "log", "w")
        if launcher == "torchrun":
            # PyTorch 1.13 on Python 3.11 accepts only redirections of a single stream.
            jobs = [subprocess.Popen([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--max_restarts=5",
                                      "--redirects=1", "--tee=2", f"--log_dir={folder}/logs", *program], stdout=log, stderr=log)]
        else:
            port = str(20000 + os.getpid() % 20000)
            jobs = [subprocess.Popen([sys.executable, *program], stdout=log, stderr=log,
                                     env=dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE="2", RANK=str(rank)))
                    for rank in range(2)]
        try:
            if not await_step(folder, KILLED_AT, jobs, time.monotonic() + 120):
                return "did not get going: " + (folder / "log").read_text()[-300:]
            victim = int((folder / "pid-1").read_text())
            before, begin = last_step(folder), time.monotonic()
            os.kill(victim, what)
            left = jobs if launcher == "torchrun" else jobs[:1]
            if await_step(folder, before + 2, left, begin + patience):
                seconds = time.monotonic() - begin
                again = before - before // CHECKPOINT_EVERY * CHECKPOINT_EVERY
                return f"goes on after {seconds:.1f} s, {again} steps made again"
            if left[0].poll() is None:
                return f"waits, for {patience:.0f} s by now, without a word"
            said = [line for line in (folder / "log").read_text().splitlines() if "rror" in line]
            return f"ended after {time.monotonic() - begin:.1f} s: {said[-1] if said else 'no error was printed'}"
        finally:
            for pid in folder.glob("pid-*"):
                try:
                    os.kill(int(pid.read_text()), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            for job in jobs:
                job.kill()
                job.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--strikes", type=int, default=3)
    parser.add_argument("--patience", type=float, default=60)
    parser.add_argument("--bin", default="bazel-bin")
    arguments = parser.parse_args()
    for launcher in ("two processes", "torchrun"):
        for what in (signal.SIGKILL, signal.SIGSTOP):
            for _ in range(arguments.strikes if what == signal.SIGKILL else 1):
                print(f"DDP, {launcher}, {what.name}: {strike(launcher, what, arguments.hidden, arguments.patience)}", flush=True)
    muster = str(pathlib.Path(arguments.bin).resolve() / "cli/muster")
    _, seconds, again, _ = recovery.measure(muster, arguments.hidden, "worker", arguments.strikes)
    print(f"Muster, SIGKILL: goes on after {statistics.median(seconds):.2f} s (median of {len(seconds)}), {again} steps made again in all")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--rank-of":
        train(int(sys.argv[2]), pathlib.Path(sys.argv[3]))
    else:
        main()
