// Training steps in simulated time: workers that compute layer by layer, shards that sum and apply,
// and the network between them. For clusters that are not at hand.
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
  std::vector<int> shard_hosts;  // of every shard; allreduce: shard r is worker r's
  bool allreduce = false;
  NetworkRates network;
  double sum_bytes_per_second = 0;    // of a shard's thread, per gradient byte that it takes in
  double apply_bytes_per_second = 0;  // likewise, per byte of values
  bool priority = true;               // front layers first; else first come, first served
  bool overlap = true;                // a layer's forward waits for its own values only
};

struct SimulatedStep {
  double seconds = 0;        // from one forward's beginning to the next, in steady state
  double bytes_per_nic = 0;  // the most that a card sends in a step
};

// BSP, as the data plane does it: a chunk is pushed when its layer's backward is done, travels to
// its shard (or around the ring, summed on the way, ending at the shard), is summed and applied
// there one chunk after the other, and its value goes back to every worker (or around the ring). A
// worker's own host is reached at once. Deterministic. Every layer's forward and backward take
// their time on every worker; workers do not disturb one another.
SimulatedStep Simulate(const SimulatedJob& job, const SimulatedCluster& cluster);

// The bounds of Jiang et al., OSDI 2020: seconds that the busiest card of n workers' and k other
// hosts needs for M bytes at B bytes per second, each way.
double SeparateOptimum(int n, int k, double bytes, double bytes_per_second);
double ColocatedOptimum(int n, int k, double bytes, double bytes_per_second);  // Theorem 1
double RingOptimum(int n, double bytes, double bytes_per_second);

}  // namespace muster
