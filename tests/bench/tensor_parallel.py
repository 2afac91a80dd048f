#!/usr/bin/env python3
"""Compares N devices that share a model with N devices that share the batch, in turns on this machine: time of a step.

    tests/bench/tensor_parallel.py [--devices 2] [--channels 512] [--batch 8] [--pairs 5]

The model is a gpt of four layers. Each device has one thread. Ratios are of pairs, ranks by replicas: the one in the middle, and the quarters.
"""

import argparse
import statistics

from logical_workers import Cluster


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--channels", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    common = [f"model.zoo={{name: gpt, args: {{layers: 4, heads: 8, channels: {options.channels}, context: 128, vocabulary: 257}}}}",
              f"data.batch_size={options.batch}", f"training.steps={options.steps}", "training.schedule.warmup_steps=1",
              "training.evaluate_every_steps=0", "resources.workers={min: 1, max: 1}", "resources.ps=1", "checkpoint.every=0s"]
    cluster = Cluster("bazel-bin", 1, "--devices", f"cpu:{options.devices}", "--threads", "1")
    seconds = {1: [], options.devices: []}
    try:
        for pair in range(options.pairs + 1):
            for degree in seconds if pair % 2 else reversed(seconds):
                result = cluster.train("examples/char_gpt.yaml", [*common, f"resources.tensor_parallel={degree}"])
                if pair > 0:  # the first pair warms up
                    seconds[degree].append(result["seconds"])
    finally:
        cluster.close()
    replicas, ranks = seconds.values()
    ratios = sorted(y / x for x, y in zip(replicas, ranks))
    print(f"{options.devices} devices, width {options.channels}, batch {options.batch}, {options.pairs} pairs of {options.steps} steps: "
          f"replicas {1e3 * statistics.median(replicas):.1f} ms, ranks {1e3 * statistics.median(ranks):.1f} ms, "
          f"ratio {statistics.median(ratios):.3f} ({ratios[len(ratios) // 4]:.3f} to {ratios[3 * len(ratios) // 4]:.3f})")


if __name__ == "__main__":
    main()
