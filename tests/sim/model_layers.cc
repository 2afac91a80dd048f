#include "tests/sim/model_layers.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "lib/graph/cost.h"
#include "lib/graph/shape_inference.h"
#include "lib/graph/zoo/zoo.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr double kForwardShare =
    1.0 / 3;                      // a layer computes two products in backward, one in forward
constexpr double kPiecesMin = 2;  // of a shard

double BytesOf(const v1::Parameter& parameter) {
  double bytes = sizeof(float);
  for (const int64_t side : parameter.shape()) bytes *= static_cast<double>(side);
  return bytes;
}

}  // namespace

absl::StatusOr<ModelLayers> LayersOf(const v1::ModelSpec& spec) {
  ASSIGN_OR_RETURN(const v1::Graph graph, BuildModel(spec));
  ASSIGN_OR_RETURN(const TensorTypes types, InferTypes(graph, /*batch=*/1));
  absl::flat_hash_map<std::string, double> unread;  // bytes by name
  for (const v1::Parameter& parameter : graph.parameters()) {
    unread[parameter.name()] = BytesOf(parameter);
  }
  ModelLayers model;
  double flops = 0;
  for (const v1::Node& node : graph.nodes()) {
    double bytes = 0;
    for (const std::string& input : node.inputs()) {
      const auto parameter = unread.find(input);
      if (parameter == unread.end()) continue;
      bytes += parameter->second;
      unread.erase(parameter);
    }
    if (bytes > 0 || model.layers.empty()) model.layers.emplace_back();
    const auto node_flops = static_cast<double>(NodeCost(node, types).flops);
    model.layers.back().bytes += bytes;
    model.layers.back().work += node_flops;
    model.bytes += bytes;
    flops += node_flops;
  }
  for (ModelLayers::Layer& layer : model.layers) layer.work /= flops;
  return model;
}

SimulatedJob CutForShards(const ModelLayers& model, double seconds,
                          const std::vector<double>& shares, double chunk_bytes) {
  SimulatedJob job;
  for (const ModelLayers::Layer& layer : model.layers) {
    job.layers.push_back({.forward_seconds = seconds * layer.work * kForwardShare,
                          .backward_seconds = seconds * layer.work * (1 - kForwardShare)});
  }
  const double largest = *std::ranges::max_element(shares) * model.bytes;
  const auto pieces = static_cast<int>(std::max(kPiecesMin, std::ceil(largest / chunk_bytes)));
  size_t layer = 0;
  double position = 0, layer_end = model.layers.front().bytes;
  for (int piece = 0; piece < pieces; ++piece) {
    for (size_t shard = 0; shard < shares.size(); ++shard) {
      if (shares[shard] == 0) continue;
      while (position >= layer_end && layer + 1 < model.layers.size()) {
        layer_end += model.layers[++layer].bytes;
      }
      const double bytes = shares[shard] * model.bytes / pieces;
      job.chunks.push_back(
          {.layer = static_cast<int>(layer), .bytes = bytes, .shard = static_cast<int>(shard)});
      position += bytes;
    }
  }
  return job;
}

}  // namespace muster
