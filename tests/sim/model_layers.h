// Models as a simulation sees them: how long each layer computes and how many bytes it has.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/muster/v1/job.pb.h"
#include "tests/sim/sync_simulation.h"

namespace muster {

struct ModelLayers {
  struct Layer {
    double work = 0;   // share of the model's forward, all together 1
    double bytes = 0;  // of its parameters as f32
  };
  std::vector<Layer> layers;  // in the order of the forward
  double bytes = 0;           // of all
};

// A layer is a node that reads parameters nobody read before it, and the nodes up to the next such;
// its work is its share of the model's FLOPs (lib/graph/cost.h).
absl::StatusOr<ModelLayers> LayersOf(const v1::ModelSpec& spec);

// A model's step of `seconds`, a third of it forward, cut for shards of these shares of the bytes
// (>= 0, together 1): a shard gets pieces of equal size, of at most `chunk_bytes` and at least
// two, the pieces of all shards taking turns along the model. So shards have their shares exactly,
// which the coordinator's cut reaches within 5 %. A piece belongs to the first layer that it
// touches.
SimulatedJob CutForShards(const ModelLayers& model, double seconds,
                          const std::vector<double>& shares, double chunk_bytes);

}  // namespace muster
