// Sums and maxima of mapped tensors, shared by the reductions and by derivatives with broadcasting.
#pragma once

#include <array>

#include "kernels/cpu/elementwise_loops.h"
#include "kernels/dimensions.h"

namespace muster::kernels {

// Returns the loops for this processor.
const ElementwiseLoops& Elementwise();

// Compute y of shape `shape` = loop(sources...). The 1 to 3 sources are broadcast to `shape`.
void MapElements(ElementwiseLoop* loop, float* y, Dimensions shape, const Operand& a);
void MapElements(ElementwiseLoop* loop, float* y, Dimensions shape, const Operand& a,
                 const Operand& b);
void MapElements(ElementwiseLoop* loop, float* y, Dimensions shape, const Operand& a,
                 const Operand& b, const Operand& c);

// Computes y of shape `to`: factor times the sum of loop(sources...) over the dimensions along
// which `to` broadcasts to `shape`. Without a loop it sums the first source. Sums add up blocks of
// floats in double, in an order that depends only on the shapes and the instruction set. If `to`
// equals `shape`, y may be a source of that shape.
struct MappedSum {
  ElementwiseLoop* loop = nullptr;
  int sources = 1;
  std::array<Operand, 3> operands;
  double factor = 1;
};
void SumElements(float* y, Dimensions to, Dimensions shape, const MappedSum& sum);

// Computes y of shape `to`: the maximum of x over the dimensions along which `to` broadcasts to x's
// shape.
void MaxElements(float* y, Dimensions to, const Operand& x);

}  // namespace muster::kernels
