// How the devices that share a graph (the ranks) divide its tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace muster {

struct TensorParallel {
  int degree = 1;  // number of ranks
  int rank = 0;

  friend bool operator==(const TensorParallel&, const TensorParallel&) = default;
};

// The division of a dimension of `size` elements: `blocks` equal blocks, each of `units` equal
// units. A rank has the same units of every block. A unit (a head of attention) is never cut.
struct DimensionSplit {
  int64_t size = 0;
  int64_t units = 0;
  int64_t blocks = 1;

  int64_t unit_elements() const { return size / blocks / units; }
  friend bool operator==(const DimensionSplit&, const DimensionSplit&) = default;
};

// A range of units or elements.
struct RankRange {
  int64_t first = 0;
  int64_t size = 0;

  friend bool operator==(const RankRange&, const RankRange&) = default;
};

// Returns the units of this rank: first ranks have one more if the degree does not divide `units`.
// Requires: units >= degree.
RankRange UnitsOf(int64_t units, const TensorParallel& group);

// Returns the elements of this rank in a split of one block.
RankRange ElementsOf(const DimensionSplit& split, const TensorParallel& group);

// Returns the size of this rank's dimension, of all blocks.
int64_t SizeOf(const DimensionSplit& split, const TensorParallel& group);

// The elements of a parameter that a rank has. Its tensor is `runs` runs of `run_elements` elements
// of the whole tensor. Run i starts at element offset + i stride.
struct ParameterSlice {
  int64_t offset = 0;
  int64_t runs = 1;
  int64_t run_elements = 0;
  int64_t stride = 0;  // 0 if there is one run

  int64_t elements() const { return runs * run_elements; }
  friend bool operator==(const ParameterSlice&, const ParameterSlice&) = default;
};

// Returns the slice of a parameter that is divided along `dim`. `shape` is that of the whole.
ParameterSlice SliceOf(absl::Span<const int64_t> shape, int dim, const DimensionSplit& split,
                       const TensorParallel& group);

// The part that a rank has of a tensor of the whole graph.
struct TensorPlacement {
  enum class Kind {
    kReplicated,  // all of it; every rank computes the same values and the same gradient
    // All of it, but each rank computes only a part of the gradient: the parts add up to it.
    kShared,
    kShard,    // its part of dimension `dim`
    kPartial,  // a term of the same shape; the terms of all ranks add up to the tensor
  };

  std::string ToString() const;
  friend bool operator==(const TensorPlacement&, const TensorPlacement&) = default;

  Kind kind = Kind::kReplicated;
  int dim = 0;  // of a shard
  DimensionSplit split = {};
};

}  // namespace muster
