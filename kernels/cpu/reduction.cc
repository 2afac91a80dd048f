#include "kernels/reduction.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cpu/loop_nest.h"
#include "kernels/cpu/reduction_loop.h"

namespace muster::kernels {
namespace {

// `shape` with the reduced dimensions set to 1.
class ReducedShape {
 public:
  ReducedShape(Dimensions shape, Dimensions axes) : rank_(shape.size()) {
    CheckRank(shape.size());
    std::copy(shape.begin(), shape.end(), sizes_.begin());
    for (int64_t axis : axes) sizes_[axis < 0 ? axis + rank_ : axis] = 1;
  }

  operator Dimensions() const { return Dimensions(sizes_.data(), rank_); }  // NOLINT

 private:
  std::array<int64_t, kDimensionsMax> sizes_;
  int64_t rank_;
};

// Returns how many elements are reduced to one.
int64_t Share(Dimensions shape, Dimensions reduced) { return Elements(shape) / Elements(reduced); }

}  // namespace

void ReduceSum(float* y, const Operand& x, Dimensions axes) {
  SumElements(y, ReducedShape(x.dimensions, axes), x.dimensions, {.operands = {x}});
}

void ReduceMean(float* y, const Operand& x, Dimensions axes) {
  const ReducedShape to(x.dimensions, axes);
  SumElements(y, to, x.dimensions, {.operands = {x}, .factor = 1.0 / Share(x.dimensions, to)});
}

void ReduceMax(float* y, const Operand& x, Dimensions axes) {
  MaxElements(y, ReducedShape(x.dimensions, axes), x);
}

void ReduceSumGrad(float* dx, Dimensions to, const float* dy, Dimensions axes) {
  MapElements(Elementwise().copy, dx, to, {dy, ReducedShape(to, axes)});
}

void ReduceMeanGrad(float* dx, Dimensions to, const float* dy, Dimensions axes) {
  const ReducedShape reduced(to, axes);
  const float factor = 1.0f / Share(to, reduced);
  MapElements(Elementwise().mul, dx, to, {dy, reduced}, {&factor, {}});
}

void ReduceMaxGrad(float* dx, const float* dy, const Operand& x, const float* y, Dimensions axes) {
  const ReducedShape reduced(x.dimensions, axes);
  std::vector<float> shares(Elements(reduced));
  SumElements(shares.data(), reduced, x.dimensions,
              {.loop = Elementwise().equal, .sources = 2, .operands = {x, Operand{y, reduced}}});
  MapElements(Elementwise().div, shares.data(), reduced, {dy, reduced}, {shares.data(), reduced});
  MapElements(Elementwise().if_equal, dx, x.dimensions, x, {y, reduced}, {shares.data(), reduced});
}

}  // namespace muster::kernels
