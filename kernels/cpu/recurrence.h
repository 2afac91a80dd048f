// What the recurrent kernels share: walking one direction of a sequence.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/recurrent_loops.h"
#include "kernels/recurrent_shape.h"

namespace muster::kernels {

// Of the processor's level.
const RecurrentLoops& Recurrent();

// One hidden vector per sample: that of sample b at data + b * stride; null: zeros.
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

  // This direction's part of y[B, T, D H] (or dy) at a step, `y` its first element.
  int64_t OutputOffset(int64_t step) const {
    return TimeOf(step) * output_stride() + index_ * shape_.hidden;
  }
  int64_t output_stride() const { return shape_.directions * shape_.hidden; }  // of a time
  int64_t sample_stride() const { return shape_.time * output_stride(); }

  // This direction's part of a [D, B, H]; null stays.
  template <typename T>
  T* Last(T* all) const {
    return all == nullptr ? nullptr : all + index_ * shape_.batch * shape_.hidden;
  }

  // h before a step: h0[D, B, H], or the output of the step before.
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

// row(b) for every sample, in parallel where `elements` per sample are worth it.
template <typename F>
void ForEachSample(int64_t batch, int64_t elements, F row) {
  ParallelFor(batch, std::max<int64_t>(1, (1 << 12) / elements), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) row(b);
  });
}

}  // namespace muster::kernels
