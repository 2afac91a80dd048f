// Loops over the elements of a shape, with several tensors in step, some of them broadcast.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/dimensions.h"

namespace muster::kernels {

// Nested loops in row-major order: dimension 0 is the outermost loop. Loop d moves tensor t by
// strides[t][d] elements, or by 0 if the tensor repeats along d.
template <int kTensors>
struct LoopNest {
  int rank = 0;
  std::array<int64_t, kDimensionsMax> sizes;
  std::array<std::array<int64_t, kDimensionsMax>, kTensors> strides;

  void Append(int64_t size, const std::array<int64_t, kTensors>& step) {
    sizes[rank] = size;
    for (int t = 0; t < kTensors; ++t) strides[t][rank] = step[t];
    ++rank;
  }

  int64_t iterations() const {
    int64_t product = 1;
    for (int d = 0; d < rank; ++d) product *= sizes[d];
    return product;
  }
};

// Walks the iterations of a nest in order.
template <int kTensors>
class NestCursor {
 public:
  // Starts at iteration `start` of `nest`. Requires: `nest` outlives the cursor.
  explicit NestCursor(const LoopNest<kTensors>& nest, int64_t start = 0) : nest_(nest) {
    for (int d = nest.rank - 1; d >= 0; --d) {
      index_[d] = start % nest.sizes[d];
      start /= nest.sizes[d];
      for (int t = 0; t < kTensors; ++t) offsets_[t] += index_[d] * nest.strides[t][d];
    }
  }

  int64_t offset(int tensor) const { return offsets_[tensor]; }

  void Next() {
    for (int d = nest_.rank - 1; d >= 0; --d) {
      if (++index_[d] < nest_.sizes[d]) {
        for (int t = 0; t < kTensors; ++t) offsets_[t] += nest_.strides[t][d];
        return;
      }
      index_[d] = 0;
      for (int t = 0; t < kTensors; ++t) {
        offsets_[t] -= (nest_.sizes[d] - 1) * nest_.strides[t][d];
      }
    }
  }

 private:
  const LoopNest<kTensors>& nest_;
  std::array<int64_t, kDimensionsMax> index_{};
  std::array<int64_t, kTensors> offsets_{};
};

// The shape to which numpy broadcasts the given shapes.
class BroadcastShape {
 public:
  template <typename... D>
  explicit BroadcastShape(const D&... shapes) {
    (Widen(shapes), ...);
  }

  operator Dimensions() const {  // NOLINT: as a shape everywhere
    return Dimensions(sizes_.data() + kDimensionsMax - rank_, rank_);
  }

 private:
  void Widen(Dimensions shape);

  std::array<int64_t, kDimensionsMax> sizes_;  // stored at the end of the array
  int rank_ = 0;
};

// Aborts if `rank` is more than kDimensionsMax.
void CheckRank(size_t rank);

// Returns the loops over `shape` for tensors that broadcast to it. The nest has as few loops as
// possible, but at least one. Loops of one iteration are omitted, and neighbouring loops that every
// tensor traverses without a gap are merged. The innermost strides are 0 or 1.
template <int kTensors>
LoopNest<kTensors> MakeLoopNest(Dimensions shape, const std::array<Dimensions, kTensors>& tensors) {
  CheckRank(shape.size());
  LoopNest<kTensors> inside_out;
  std::array<int64_t, kTensors> elements;  // elements of each tensor inside the current dimension
  elements.fill(1);
  for (size_t back = 1; back <= shape.size(); ++back) {
    const int64_t size = shape[shape.size() - back];
    std::array<int64_t, kTensors> step;
    bool joins = inside_out.rank > 0;
    for (int t = 0; t < kTensors; ++t) {
      const Dimensions& tensor = tensors[t];
      const int64_t own = back <= tensor.size() ? tensor[tensor.size() - back] : 1;
      step[t] = own == 1 ? 0 : elements[t];
      elements[t] *= own;
      const int inner = inside_out.rank - 1;
      joins = joins && step[t] == inside_out.strides[t][inner] * inside_out.sizes[inner];
    }
    if (size == 1) continue;
    if (joins) {
      inside_out.sizes[inside_out.rank - 1] *= size;
    } else {
      inside_out.Append(size, step);
    }
  }
  if (inside_out.rank == 0) inside_out.Append(1, {});
  LoopNest<kTensors> nest;
  for (int d = inside_out.rank - 1; d >= 0; --d) {
    std::array<int64_t, kTensors> step;
    for (int t = 0; t < kTensors; ++t) step[t] = inside_out.strides[t][d];
    nest.Append(inside_out.sizes[d], step);
  }
  return nest;
}

}  // namespace muster::kernels
