// Sums and maxima of mapped tensors: what the derivatives with broadcasting and the reductions
// share.
#pragma once

#include <array>

#include "kernels/cpu/elementwise_loops.h"
#include "kernels/dimensions.h"

namespace muster::kernels {

// Of the processor's level.
const ElementwiseLoops& Elementwise();

// y of shape `shape` = loop(sources...), 1 to 3 of them, each broadcast to `shape`.
void MapElements(ElementwiseLoop* loop, float* y, Dimensions shape, const Operand& a);
void MapElements(ElementwiseLoop* loop, float* y, Dimensions shape, const Operand& a,
                 const Operand& b);
void MapElements(ElementwiseLoop* loop, float* y, Dimensions shape, const Operand& a,
                 const Operand& b, const Operand& c);

// y of shape `to` = factor times the sum of loop(sources...) over what broadcasts `to` to `shape`.
// Without a loop, of the first source. Sums are blocks of floats, added in double; their order
// depends on the shapes alone. Where `to` is all of `shape`, y may be a source of that shape.
struct MappedSum {
  ElementwiseLoop* loop = nullptr;
  int sources = 1;
  std::array<Operand, 3> operands;
  double factor = 1;
};
void SumElements(float* y, Dimensions to, Dimensions shape, const MappedSum& sum);

// y of shape `to` = the maximum of x over what broadcasts `to` to x's shape.
void MaxElements(float* y, Dimensions to, const Operand& x);

}  // namespace muster::kernels
