// Finds how a model uses the values of its inputs, from its graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

struct InputUse {
  // The model accepts ids in [lowest, limit): an Embedding's rows, a loss's classes, the indices of
  // a Gather. The whole int64 range for f32 inputs, and if nothing limits the ids.
  int64_t lowest = std::numeric_limits<int64_t>::min();
  int64_t limit = std::numeric_limits<int64_t>::max();
  // The ignore_index of the loss that reads it as target. This id is also valid, and does not
  // count.
  std::optional<int64_t> ignore_index;
  bool is_probability = false;  // the f32 target of a SigmoidCrossEntropy
  bool is_label = false;        // a CorrectCount reads it

  bool Takes(int64_t id) const {
    return (lowest <= id && id < limit) || (ignore_index && id == *ignore_index);
  }
  bool is_bounded() const { return limit < std::numeric_limits<int64_t>::max(); }
};

// Returns the values that the model takes, "0 to 9" or "0 to 1, -100 is ignored", or "" if it takes
// any.
std::string ToText(const InputUse& use);

// Returns the use of each graph input. Follows inputs through ops that only rearrange them.
std::vector<InputUse> UsesOfInputs(const v1::Graph& graph);

// Returns how many of the i32 values in `rows` are not the ignore_index. Requires: `use` has one.
int64_t CountTargets(const InputUse& use, absl::Span<const std::byte> rows);

}  // namespace muster
