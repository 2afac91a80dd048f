// What a model does with the values of its inputs, read from its graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

struct InputUse {
  // The model takes ids of [lowest, limit): an Embedding's rows, a loss's classes, what a Gather
  // may index. The whole int64 where nothing bounds them, and for f32 inputs.
  int64_t lowest = std::numeric_limits<int64_t>::min();
  int64_t limit = std::numeric_limits<int64_t>::max();
  // Of the loss that reads it as target: that id may come too, and does not count.
  std::optional<int64_t> ignore_index;
  bool is_probability = false;  // the f32 target of a SigmoidCrossEntropy
  bool is_label = false;        // a CorrectCount compares with it

  bool Takes(int64_t id) const {
    return (lowest <= id && id < limit) || (ignore_index && id == *ignore_index);
  }
  bool is_bounded() const { return limit < std::numeric_limits<int64_t>::max(); }
};

// By graph input. Follows them through ops that only rearrange.
std::vector<InputUse> UsesOfInputs(const v1::Graph& graph);

// How many of the i32 values in `rows` are not the ignore_index, which `use` has.
int64_t CountTargets(const InputUse& use, absl::Span<const std::byte> rows);

}  // namespace muster
