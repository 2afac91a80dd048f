// Fills the rows of a model that reads "input" and "target" and nothing else.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/data/dataset.h"
#include "lib/data/input_use.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// The positions of the two among the graph's inputs.
class LabelledRows {
 public:
  // Requires: the graph has both inputs; see Check().
  explicit LabelledRows(const v1::Graph& graph);

  // Returns INVALID_ARGUMENT for `field`, naming a third input or the missing one of the two.
  static absl::Status Check(const v1::Graph& graph, absl::string_view field);

  absl::Span<std::byte> input(Dataset::Rows rows) const { return rows[input_]; }
  absl::Span<std::byte> target(Dataset::Rows rows) const { return rows[target_]; }

  int input_number() const { return input_; }

  // The ids of "input" and of "target" that the model accepts.
  const InputUse& input_use() const { return uses_[input_]; }
  const InputUse& target_use() const { return uses_[target_]; }

  // CHECKs that each of the two holds `rows` rows, or none.
  void CheckSizes(Dataset::Rows memory, size_t rows, size_t input_bytes, size_t target_bytes) const;

 private:
  std::vector<InputUse> uses_;
  int input_ = 0;
  int target_ = 0;
};

}  // namespace muster
