// Shared code of the recurrent kernels: traverses one direction of a sequence.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/recurrent_loops.h"
#include "kernels/recurrent_shape.h"

namespace muster::kernels {

// Returns the loops for this processor.
const RecurrentLoops& Recurrent();

// One hidden vector per sample: that of sample b is at data + b * stride. Null means zeros.
struct Hidden {
  const float* data;
  int64_t stride;

  const float* Of(int64_t sample) const {
    return data == nullptr ? nullptr : data + sample * stride;
  }
};

class Direction {
 public:
  Direction(const RecurrentShape& shape, int64_t index)
      : shape_(shape), index_(index), reversed_(index == 1 || shape.reverse) {}

  int64_t TimeOf(int64_t step) const { return reversed_ ? shape_.time - 1 - step : step; }

  // The offset of this direction's part of y[B, T, D H] (or dy) at a step.
  int64_t OutputOffset(int64_t step) const {
    return TimeOf(step) * output_stride() + index_ * shape_.hidden;
  }
  int64_t output_stride() const { return shape_.directions * shape_.hidden; }  // of one time
  int64_t sample_stride() const { return shape_.time * output_stride(); }

  // This direction's part of a [D, B, H]. Null stays null.
  template <typename T>
  T* Last(T* all) const {
    return all == nullptr ? nullptr : all + index_ * shape_.batch * shape_.hidden;
  }

  // Returns h before a step: h0[D, B, H], or the output of the previous step.
  Hidden Previous(const float* y, const float* h0, int64_t step) const {
    if (step == 0) return {Last(h0), shape_.hidden};
    return {y + OutputOffset(step - 1), sample_stride()};
  }

  // rows[B, T, H] = h before the step of each time.
  void GatherPrevious(float* rows, const float* y, const float* h0) const;

 private:
  const RecurrentShape& shape_;
  int64_t index_;
  bool reversed_;
};

// Calls row(b) for every sample. It runs in parallel if `elements` per sample make that worthwhile.
template <typename F>
void ForEachSample(int64_t batch, int64_t elements, F row) {
  ParallelFor(batch, std::max<int64_t>(1, (1 << 12) / elements), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) row(b);
  });
}

}  // namespace muster::kernels
