// Models as a simulation needs them: the compute time and the bytes of each layer.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/muster/v1/job.pb.h"
#include "tests/sim/sync_simulation.h"

namespace muster {

struct ModelLayers {
  struct Layer {
    double work = 0;   // share of the model's forward; all shares sum to 1
    double bytes = 0;  // of its parameters as f32
  };
  std::vector<Layer> layers;  // in the order of the forward
  double bytes = 0;           // of all layers
};

// Splits a model into layers. A layer begins at the first node, and at each node that reads
// parameters which no earlier node read. The layer's work is its share of the model's FLOPs
// (lib/graph/cost.h).
absl::StatusOr<ModelLayers> LayersOf(const v1::ModelSpec& spec);

// Cuts a model's step of `seconds` (one third of it forward) into pieces for shards. `shares` are
// the shards' shares of the bytes: each >= 0, sum 1. Every shard with a share above 0 gets the same
// number of pieces, at least two. The pieces of one shard have equal size, at most `chunk_bytes`.
// The pieces of the shards alternate along the model. Shards get their shares exactly; the
// coordinator's cut reaches them within 5 %. A piece belongs to the first layer that it touches.
SimulatedJob CutForShards(const ModelLayers& model, double seconds,
                          const std::vector<double>& shares, double chunk_bytes);

}  // namespace muster
