// Simulates training steps: workers that compute layer by layer, shards that sum and apply, and the
// network between them. Use it for clusters that are not available.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/sim/network_model.h"

namespace muster {

struct SimulatedJob {
  struct Layer {
    double forward_seconds = 0;
    double backward_seconds = 0;
  };
  struct Chunk {
    int layer = 0;
    double bytes = 0;
    int shard = 0;
  };
  std::vector<Layer> layers;  // in the order of the forward
  std::vector<Chunk> chunks;
};

struct SimulatedCluster {
  int workers = 1;               // on hosts 0 .. workers - 1
  std::vector<int> shard_hosts;  // by shard; allreduce: shard r is on worker r
  bool allreduce = false;
  NetworkRates network;
  double sum_bytes_per_second = 0;    // of a shard's thread, per gradient byte received
  double apply_bytes_per_second = 0;  // of a shard's thread, per byte of values
  bool priority = true;               // front layers first; false: first come, first served
  bool overlap = true;                // a layer's forward waits for its own values only
};

struct SimulatedStep {
  double seconds = 0;        // from the start of one forward to the next, in steady state
  double bytes_per_nic = 0;  // the most that any card sends in a step
};

// Simulates BSP as the data plane does it:
// 1. A worker pushes a chunk when the backward of its layer is done.
// 2. The chunk travels to its shard, or around the ring, where each worker adds its gradient.
// 3. The shard sums and applies one chunk after another.
// 4. The new value travels to every worker, or around the ring.
// A worker reaches its own host at once. Every layer takes the same time on every worker, and
// workers do not slow one another. Deterministic.
SimulatedStep Simulate(const SimulatedJob& job, const SimulatedCluster& cluster);

// The bounds of Jiang et al., OSDI 2020. They return the seconds that the busiest card of n worker
// hosts and k other hosts needs for M bytes at B bytes per second, in each direction.
double SeparateOptimum(int n, int k, double bytes, double bytes_per_second);
double ColocatedOptimum(int n, int k, double bytes, double bytes_per_second);  // Theorem 1
double RingOptimum(int n, double bytes, double bytes_per_second);

}  // namespace muster
