// Finds the uses of an ONNX graph's floating initialisers. They decide which initialisers are
// trained, and which are one tensor.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "proto/third_party/onnx/onnx.pb.h"

namespace muster {

enum class UseKind {
  kWeight,       // weight of a matrix product, a convolution, a recurrence
  kTable,        // a table; the data picks its rows
  kBias,         // added to such a product
  kNorm,         // gain or bias of a normalisation
  kSlope,        // slope of a PRelu
  kStatistic,    // running mean or variance
  kElementwise,  // any other operation with the data
};

using Neighbours = std::set<std::pair<std::string, const onnx::NodeProto*>>;

// One path from an initialiser to a computation with the data: directly, or through nodes that read
// no data (a transposed weight).
struct InitializerUse {
  UseKind kind;
  // The node and input at which the path meets the data.
  const onnx::NodeProto* node = nullptr;
  int input = 0;
  // The start of the path: the input of `first` that is the initialiser itself.
  onnx::NodeProto* first = nullptr;
  int first_input = 0;
  bool on_activations = false;  // weights came before, so it does not meet the model's raw input
  bool is_derived = false;      // it meets the data after arithmetic, not as stored in the file
  // Products that the use belongs to, each with its weight and its node. `before`: the product of a
  // bias, else the nearest before the use. `behind`: the nearest after it. At most 64 of each.
  Neighbours before, behind;

  // "weight of Conv 'conv1'"
  std::string ToString() const;
};

// The uses of each initialiser, in the order of the nodes, including those of graphs inside nodes.
// Pointers point into the graph.
using InitializerUses = absl::flat_hash_map<std::string, std::vector<InitializerUse>>;

InitializerUses FindInitializerUses(onnx::GraphProto& graph);

}  // namespace muster
