// What the floating initialisers of an ONNX graph are used for: the ground on which is decided
// which of them are trained and which are one tensor.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "proto/third_party/onnx/onnx.pb.h"

namespace muster {

enum class UseKind {
  kWeight,       // of a matrix product, a convolution, a recurrence
  kTable,        // whose rows are picked by the data
  kBias,         // added to such a product
  kNorm,         // gain or bias of a normalisation
  kSlope,        // of a PRelu
  kStatistic,    // running mean or variance
  kElementwise,  // meets the data in any other way
};

using Neighbours = std::set<std::pair<std::string, const onnx::NodeProto*>>;

// One way by which an initialiser reaches what is computed from the data: directly, or by nodes
// that read nothing of the data (a transposed weight).
struct InitializerUse {
  UseKind kind;
  // Where it meets the data.
  const onnx::NodeProto* node = nullptr;
  int input = 0;
  // Where the way begins: the input of `first` that is the initialiser itself.
  onnx::NodeProto* first = nullptr;
  int first_input = 0;
  bool on_activations = false;  // weights came before: it does not meet the model's raw input
  bool is_derived = false;      // it meets the data after arithmetic, not as it lies in the file
  // Products that the use belongs to, each by its weight and its node: that of a bias, else the
  // nearest before it; the nearest behind. At most 64 of each.
  Neighbours before, behind;

  // "weight of Conv 'conv1'"
  std::string ToString() const;
};

// By initialiser, in the order of the nodes; the graphs inside nodes count. Pointers go into
// `graph`.
using InitializerUses = absl::flat_hash_map<std::string, std::vector<InitializerUse>>;

InitializerUses FindInitializerUses(onnx::GraphProto& graph);

}  // namespace muster
